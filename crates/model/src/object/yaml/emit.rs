//! YAML output that every YAML parser reads as the same values.
//!
//! The YAML crate's emitter is not used: kubectl refuses its block scalars with tabs, and users
//! pipe the output of `pleach render` into kubectl. Three string styles suffice: plain where
//! unambiguous, literal blocks for multi-line strings, JSON quotes otherwise.

use std::fmt::Write as _;

use serde_json::{Map, Value};

/// Longest key written before `:`. YAML parsers look ahead at most 1,024 characters.
const LONGEST_KEY: usize = 800;

/// Writes one value as a document that ends with a line break. Quotes strings that resemble a YAML
/// 1.1 boolean, number or date.
///
/// ```
/// use pleach_model::object::yaml::emit;
/// let value = serde_json::json!({"a": "on", "b": ["0755", 8]});
/// assert_eq!(emit(&value), "a: \"on\"\nb:\n- \"0755\"\n- 8\n");
/// ```
pub fn emit(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => entries(&mut out, map, 0, false),
        Value::Array(list) if !list.is_empty() => items(&mut out, list, 0, false),
        scalar => {
            inline(&mut out, scalar, 0);
            out.push('\n');
        }
    }
    out
}

/// Writes several values as one stream, with `---` before each document.
pub fn emit_all<'a>(values: impl IntoIterator<Item = &'a Value>) -> String {
    let mut out = String::new();
    for value in values {
        out.push_str("---\n");
        out.push_str(&emit(value));
    }
    out
}

fn entries(out: &mut String, map: &Map<String, Value>, indent: usize, mut on_line: bool) {
    for (key, value) in map {
        if !std::mem::take(&mut on_line) {
            spaces(out, indent);
        }
        if key.len() > LONGEST_KEY {
            out.push_str("? ");
            quoted(out, key);
            out.push('\n');
            spaces(out, indent);
        } else if is_plain(key) {
            out.push_str(key);
        } else {
            quoted(out, key);
        }
        out.push(':');
        match value {
            Value::Object(map) if !map.is_empty() => {
                out.push('\n');
                entries(out, map, indent + 2, false);
            }
            // Like kubectl, do not indent items below their key.
            Value::Array(list) if !list.is_empty() => {
                out.push('\n');
                items(out, list, indent, false);
            }
            scalar => {
                out.push(' ');
                inline(out, scalar, indent + 2);
                out.push('\n');
            }
        }
    }
}

fn items(out: &mut String, list: &[Value], indent: usize, mut on_line: bool) {
    for item in list {
        if !std::mem::take(&mut on_line) {
            spaces(out, indent);
        }
        out.push_str("- ");
        match item {
            Value::Object(map) if !map.is_empty() => entries(out, map, indent + 2, true),
            Value::Array(list) if !list.is_empty() => items(out, list, indent + 2, true),
            scalar => {
                inline(out, scalar, indent + 2);
                out.push('\n');
            }
        }
    }
}

/// Writes a scalar, or an empty map or list. Indents lines of a literal block by `indent`.
fn inline(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Number(number) => {
            // Writing to a String cannot fail.
            let _ = write!(out, "{number}");
        }
        Value::Array(_) => out.push_str("[]"),
        Value::Object(_) => out.push_str("{}"),
        Value::String(text) if is_literal(text) => literal(out, text, indent.max(2)),
        Value::String(text) if is_plain(text) => out.push_str(text),
        Value::String(text) => quoted(out, text),
    }
}

fn spaces(out: &mut String, count: usize) {
    out.extend(std::iter::repeat_n(' ', count));
}

/// Writes a literal block without its last line break.
fn literal(out: &mut String, text: &str, indent: usize) {
    let body = text.trim_end_matches('\n');
    out.push_str(match text.len() - body.len() {
        0 => "|-",
        1 => "|",
        _ => "|+",
    });
    for line in body.split('\n') {
        out.push('\n');
        if !line.is_empty() {
            spaces(out, indent);
            out.push_str(line);
        }
    }
    // The caller writes the last line break of the block.
    for _ in (body.len() + 1)..text.len() {
        out.push('\n');
    }
}

/// Returns whether a string can be a literal block: several lines of printable characters with
/// unambiguous indentation.
fn is_literal(text: &str) -> bool {
    let first = text.split('\n').next().unwrap_or_default();
    text.contains('\n')
        && !first.is_empty()
        && !first.starts_with([' ', '\t'])
        && text.chars().all(|c| c == '\n' || c == '\t' || is_printable(c))
        // Parsers disagree about lines that contain only blanks.
        && text
            .split('\n')
            .all(|line| line.is_empty() || !line.trim_matches([' ', '\t']).is_empty())
}

/// Returns whether YAML allows a character unescaped everywhere.
fn is_printable(c: char) -> bool {
    !c.is_control()
        && !matches!(
            c,
            '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}'
        )
}

/// Returns whether every YAML 1.1 and 1.2 parser reads the unquoted text as a string.
fn is_plain(text: &str) -> bool {
    let bytes = text.as_bytes();
    let Some((&first, rest)) = bytes.split_first() else {
        return false;
    };
    let start = match first {
        b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'/' | b'$' | b'(' => true,
        b'0'..=b'9' => !looks_like_number(bytes),
        // Flags of containers: `-v`, `--leader-elect`.
        b'-' => match rest {
            [b'-', next, ..] | [next, ..] => next.is_ascii_alphabetic(),
            [] => false,
        },
        _ => false,
    };
    start
        && !is_word(text)
        && rest.iter().enumerate().all(|(at, byte)| {
            let next = rest.get(at + 1);
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => true,
                b':' => next.is_some_and(|next| *next != b' '),
                b' ' => next.is_some_and(|next| *next != b' ' && *next != b'#'),
                byte => b"_./@+=~^()-$;!*?&%|<>,'\"\\".contains(byte),
            }
        })
}

/// Returns whether a parser can read a text that starts with a digit as a number, date or time:
/// `0b1`, `1_000`, `0x1F`, `1:30`, `2001-01-01T00:00:00Z`.
fn looks_like_number(text: &[u8]) -> bool {
    text.iter()
        .all(|byte| byte.is_ascii_hexdigit() || b"+-._: xXoOTtZz".contains(byte))
}

/// Returns whether YAML 1.1 reads a word as another type, ignoring case.
pub(super) fn is_word(text: &str) -> bool {
    const WORDS: [&str; 9] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    text.len() <= 5 && WORDS.iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// Writes a string in double quotes with JSON escapes, which YAML shares.
fn quoted(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if is_printable(c) => out.push(c),
            // All unprintable characters are below U+10000.
            c => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::object::yaml::parse_documents;

    fn check(value: &Value, text: &str) {
        assert_eq!(emit(value), text);
        assert_eq!(parse_documents(text).unwrap()[0].value, *value);
    }

    #[rstest]
    #[case("yes")]
    #[case("On")]
    #[case("y")]
    #[case("N")]
    #[case("tRue")]
    #[case("null")]
    #[case("~")]
    #[case("")]
    #[case("0755")]
    #[case("0b11")]
    #[case("0o17")]
    #[case("0x1F")]
    #[case("1_000")]
    #[case("685_230.15")]
    #[case("1e3")]
    #[case("+12")]
    #[case("-12")]
    #[case(".5")]
    #[case(".inf")]
    #[case("-.INF")]
    #[case("1:30")]
    #[case("2001-01-01")]
    #[case("2001-12-14 21:59:43")]
    #[case("<<")]
    #[case("=")]
    #[case("- a")]
    #[case("? a")]
    #[case("a: b")]
    #[case("a #b")]
    #[case("#a")]
    #[case("a:")]
    #[case(" a")]
    #[case("a ")]
    #[case("{{ x }}")]
    #[case("[a]")]
    #[case("&a")]
    #[case("*a")]
    #[case("!a")]
    #[case("@a")]
    #[case("%a")]
    #[case("`a")]
    #[case("'a'")]
    #[case("---")]
    fn ambiguous_text_is_quoted(#[case] text: &str) {
        check(&json!(text), &format!("\"{text}\"\n"));
    }

    #[rstest]
    #[case("web")]
    #[case("10m")]
    #[case("1Gi")]
    #[case("v1.2.3")]
    #[case("docker.io/example/api:v0.12.0")]
    #[case("--leader-elect=true")]
    #[case("-v=2")]
    #[case("system:serviceaccount:a:b")]
    #[case("/var/run")]
    #[case("two words, and it's \"fine\"")]
    #[case("$(NODE_NAME)")]
    fn unambiguous_text_is_plain(#[case] text: &str) {
        check(&json!(text), &format!("{text}\n"));
    }

    #[test]
    fn the_layout_is_kubectls() {
        check(
            &json!({
                "a": {"b": [{"c": 1, "d": [2]}, [3, {"e": null}], "f"]},
                "g": {}, "h": [], "on": true, "i": 1.5,
            }),
            "\
a:
  b:
  - c: 1
    d:
    - 2
  - - 3
    - e: null
  - f
g: {}
h: []
\"on\": true
i: 1.5
",
        );
    }

    #[rstest]
    #[case("one\ntwo\n", "k: |\n  one\n  two\n")]
    #[case("one\n\n  two", "k: |-\n  one\n\n    two\n")]
    #[case("one\n\n\n", "k: |+\n  one\n\n\n")]
    #[case("all:\n\tmake\n", "k: |\n  all:\n  \tmake\n")]
    #[case(" one\ntwo", "k: \" one\\ntwo\"\n")]
    #[case("one\n \ntwo", "k: \"one\\n \\ntwo\"\n")]
    #[case("one\r\ntwo\r\n", "k: \"one\\r\\ntwo\\r\\n\"\n")]
    #[case("\n", "k: \"\\n\"\n")]
    fn lines_are_literal_blocks(#[case] text: &str, #[case] expected: &str) {
        check(&json!({ "k": text }), expected);
    }

    #[test]
    fn long_texts_are_not_folded() {
        let text = "word ".repeat(100) + "end";
        check(&json!({ "k": text }), &format!("k: {text}\n"));
    }

    #[test]
    fn long_keys_round_trip() {
        let mut map = Map::new();
        map.insert("k".repeat(2000), json!([1, {"a": "b"}]));
        map.insert("z".to_owned(), json!(1));
        let value = json!({ "data": map });
        assert_eq!(parse_documents(&emit(&value)).unwrap()[0].value, value);
    }

    #[test]
    fn a_stream_has_its_markers() {
        let values = [json!({"a": 1}), json!("text\nlines\n"), json!([])];
        let text = emit_all(&values);
        assert_eq!(text, "---\na: 1\n---\n|\n  text\n  lines\n---\n[]\n");
        let read: Vec<Value> = parse_documents(&text)
            .unwrap()
            .into_iter()
            .map(|document| document.value)
            .collect();
        assert_eq!(read, values);
    }

    /// Generates strings that parsers and emitters often misread.
    fn text() -> impl Strategy<Value = String> {
        prop_oneof![
            "[ab01_+.:#,\\[\\]{}&*!|>'\"%@`~?=\\\\\n\t<yneoxEb/ -]{0,9}",
            "(yes|no|on|off|y|n|true|null|~|0o?[0-9]{1,3}|[0-9_]{1,6}(\\.[0-9_]+)?(e[+-]?[0-9])?)",
            any::<String>(),
        ]
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            // Whole floats are read back as integers, so exclude them.
            any::<f64>()
                .prop_filter("not whole", |f| f.is_finite()
                    && (f.fract() != 0.0 || f.abs() > 1e17))
                .prop_map(Value::from),
            text().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::vec((text(), inner), 0..6)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn written_yaml_round_trips(value in json_value().prop_filter("null is no document", |v| !v.is_null())) {
            let text = emit(&value);
            let documents = parse_documents(&text).unwrap();
            prop_assert_eq!(documents.len(), 1);
            prop_assert_eq!(&documents[0].value, &value);
        }

        #[test]
        fn streams_keep_their_documents(values in prop::collection::vec(json_value().prop_filter("null is no document", |v| !v.is_null()), 0..5)) {
            let read: Vec<Value> = parse_documents(&emit_all(&values)).unwrap().into_iter().map(|d| d.value).collect();
            prop_assert_eq!(read, values);
        }
    }
}
