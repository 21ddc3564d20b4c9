//! Values that `values.schema.json` marks `writeOnly`: secret wherever they get.
//!
//! Templates may put a value anywhere and wrap it in anything. It is looked for
//! in what was rendered: as it is, as part of a text, escaped, and in base64.
//! What only its hash is made of is not found, and does not give it away.

use std::collections::{BTreeSet, HashSet};
use std::fmt;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Shorter values are found in any text by accident; they are looked for as a
/// whole.
const SHORTEST_PART: usize = 4;

/// Shorter lines of a value say too little to be looked for by themselves.
const SHORTEST_LINE: usize = 8;

/// How deep base64 may be packed into base64.
const LAYERS: usize = 2;

const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

/// Values that may not be shown.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretValues {
    /// Looked for in texts.
    parts: BTreeSet<String>,
    /// Looked for as a whole.
    wholes: BTreeSet<String>,
}

impl fmt::Debug for SecretValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretValues")
            .field("count", &self.wholes.len())
            .finish_non_exhaustive()
    }
}

impl SecretValues {
    /// The values that a JSON Schema marks `writeOnly`, with all below them.
    ///
    /// Whether an alternative of the schema (`anyOf`, `if`) applies is not
    /// decided: what any of them marks is secret.
    pub fn of(schema: &Value, values: &Value) -> Self {
        let mut secrets = Self::default();
        secrets.add_all(marked(schema, values));
        secrets
    }

    /// All values below this one.
    pub fn all_of(values: &Value) -> Self {
        let mut secrets = Self::default();
        secrets.add_all(vec![values]);
        secrets
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.wholes.is_empty()
    }

    /// Adds others.
    pub fn extend(&mut self, others: &Self) {
        self.parts.extend(others.parts.iter().cloned());
        self.wholes.extend(others.wholes.iter().cloned());
    }

    /// Whether a text is one of them or holds one of them. Those of less than
    /// four characters only count as a whole.
    pub fn are_in(&self, text: &str) -> bool {
        if self.is_empty() || text.is_empty() {
            return false;
        }
        self.wholes.contains(text)
            || decoded(&STANDARD, text).is_some_and(|text| self.wholes.contains(&text))
            || self.are_part_of(text)
    }

    /// Whether a text is one of them or holds one, escaped or line by line. What
    /// is packed into it is not looked at: see [`unpacked`].
    pub fn are_plainly_in(&self, text: &str) -> bool {
        self.wholes.contains(text) || self.parts.iter().any(|part| text.contains(part.as_str()))
    }

    /// Whether a text holds one that is long enough not to be found by accident.
    pub fn are_part_of(&self, text: &str) -> bool {
        !self.parts.is_empty() && self.packed_in(text, LAYERS)
    }

    fn packed_in(&self, text: &str, layers: usize) -> bool {
        if self.parts.iter().any(|part| text.contains(part.as_str())) {
            return true;
        }
        layers > 0
            && packed(text)
                .iter()
                .any(|inner| self.packed_in(inner, layers - 1))
    }

    /// Adds values with all below them, each once.
    fn add_all(&mut self, mut open: Vec<&Value>) {
        let mut seen = HashSet::new();
        while let Some(value) = open.pop() {
            if !seen.insert(address(value)) {
                continue;
            }
            match value {
                Value::Object(map) => open.extend(map.values()),
                Value::Array(items) => open.extend(items),
                // Neither tells anything.
                Value::Null | Value::Bool(_) => {}
                Value::Number(number) => self.add(number.to_string()),
                Value::String(text) => self.add(text.clone()),
            }
        }
    }

    fn add(&mut self, text: String) {
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return;
        }
        if trimmed.chars().count() >= SHORTEST_PART {
            self.parts.insert(trimmed.to_owned());
            // Within quotes of JSON or YAML.
            let quoted = Value::from(trimmed).to_string();
            self.parts.insert(quoted[1..quoted.len() - 1].to_owned());
        }
        // A text of several lines is indented where it is put.
        if trimmed.contains('\n') {
            let lines = trimmed.lines().map(str::trim);
            self.parts.extend(
                lines
                    .filter(|line| line.chars().count() >= SHORTEST_LINE)
                    .filter(|line| !line.starts_with("-----"))
                    .map(str::to_owned),
            );
        }
        self.wholes.insert(trimmed.to_owned());
        self.wholes.insert(text);
    }
}

/// A text with all that is packed into it as base64.
pub fn unpacked(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::from([text.to_owned()]);
    let mut outer = vec![text.to_owned()];
    for _ in 0..LAYERS {
        outer = outer.iter().flat_map(|text| packed(text)).collect();
        found.extend(outer.iter().cloned());
    }
    found
}

/// What the parts of a text stand for that may be base64.
fn packed(text: &str) -> Vec<String> {
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '-' | '_' | '=');
    // Line breaks within base64 say nothing.
    let joined: String = text.chars().filter(|c| !matches!(c, '\n' | '\r')).collect();
    text.split(|c| !is_base64(c))
        .chain([joined.as_str()])
        .filter(|run| run.len() >= SHORTEST_PART)
        .flat_map(|run| [decoded(&STANDARD, run), decoded(&URL_SAFE, run)])
        .flatten()
        .collect()
}

fn decoded(engine: &GeneralPurpose, text: &str) -> Option<String> {
    let bytes = engine.decode(text).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Which of two equal values it is.
fn address(value: &Value) -> usize {
    std::ptr::from_ref(value).addr()
}

/// The values that a schema marks.
fn marked<'a>(schema: &'a Value, values: &'a Value) -> Vec<&'a Value> {
    let mut walk = Walk {
        root: schema,
        seen: HashSet::new(),
        open: Vec::new(),
    };
    walk.look_at(schema, values);
    let mut marked = Vec::new();
    while let Some((keywords, value)) = walk.open.pop() {
        if keywords.get("writeOnly") == Some(&Value::Bool(true)) {
            marked.push(value);
        }
        walk.follow(keywords, value);
    }
    marked
}

/// The pairs of a schema and a value that it is about. Each is looked at once:
/// schemas refer to themselves and to each other, and may be of any depth.
struct Walk<'a> {
    root: &'a Value,
    seen: HashSet<(usize, usize)>,
    open: Vec<(&'a Map<String, Value>, &'a Value)>,
}

impl<'a> Walk<'a> {
    fn look_at(&mut self, schema: &'a Value, value: &'a Value) {
        let Value::Object(keywords) = schema else {
            return;
        };
        if self.seen.insert((address(schema), address(value))) {
            self.open.push((keywords, value));
        }
    }

    /// What the keywords of a schema lead to.
    fn follow(&mut self, keywords: &'a Map<String, Value>, value: &'a Value) {
        for (keyword, part) in keywords {
            match keyword.as_str() {
                "$ref" => {
                    let root = self.root;
                    let pointer = part.as_str().and_then(|text| text.strip_prefix('#'));
                    if let Some(target) = pointer.and_then(|at| root.pointer(at)) {
                        self.look_at(target, value);
                    }
                }
                "allOf" | "anyOf" | "oneOf" => {
                    for one in part.as_array().into_iter().flatten() {
                        self.look_at(one, value);
                    }
                }
                "if" | "then" | "else" => self.look_at(part, value),
                "dependentSchemas" => {
                    for (_, one) in part.as_object().into_iter().flatten() {
                        self.look_at(one, value);
                    }
                }
                "properties" => {
                    for (key, schema) in part.as_object().into_iter().flatten() {
                        if let Some(child) = value.get(key) {
                            self.look_at(schema, child);
                        }
                    }
                }
                // Which keys a pattern means is not decided: any of them.
                "patternProperties" => {
                    for (_, schema) in part.as_object().into_iter().flatten() {
                        self.children(schema, value, None);
                    }
                }
                "additionalProperties" | "unevaluatedProperties" => {
                    self.children(part, value, keywords.get("properties"));
                }
                "items" | "prefixItems" | "additionalItems" | "contains" | "unevaluatedItems" => {
                    let schemas = match part {
                        Value::Array(schemas) => schemas.as_slice(),
                        one => std::slice::from_ref(one),
                    };
                    for schema in schemas {
                        for item in value.as_array().into_iter().flatten() {
                            self.look_at(schema, item);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// What a schema says of the keys of a map that have no schema of their own.
    fn children(&mut self, schema: &'a Value, value: &'a Value, named: Option<&Value>) {
        for (key, child) in value.as_object().into_iter().flatten() {
            if named.is_none_or(|named| named.get(key).is_none()) {
                self.look_at(schema, child);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD as PLAIN;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::property(json!({"properties": {"a": {"writeOnly": true}}}), &["in a"])]
    #[case::below(json!({"properties": {"m": {"writeOnly": true}}}), &["in m", "in m l", "12345"])]
    #[case::reference(json!({"$defs": {"s": {"writeOnly": true}}, "properties": {"a": {"$ref": "#/$defs/s"}}}), &["in a"])]
    #[case::itself(json!({"$ref": "#"}), &[])]
    #[case::items(json!({"properties": {"m": {"properties": {"l": {"items": {"writeOnly": true}}}}}}), &["in m l", "12345"])]
    #[case::other_keys(json!({"properties": {"a": {}}, "additionalProperties": {"writeOnly": true}}), &["in m", "in m l", "12345", "open"])]
    #[case::alternatives(json!({"anyOf": [{"required": ["x"], "properties": {"a": {"writeOnly": true}}}]}), &["in a"])]
    #[case::not_marked(json!({"properties": {"a": {"writeOnly": false, "readOnly": true}}}), &[])]
    #[case::no_schema(json!(true), &[])]
    fn marked_values_are_found(#[case] schema: Value, #[case] expected: &[&str]) {
        let values = json!({"a": "in a", "m": {"k": "in m", "l": ["in m l", 12345, true, null]}, "b": "open"});
        let secrets = SecretValues::of(&schema, &values);
        for text in ["in a", "in m", "in m l", "12345", "open"] {
            assert_eq!(secrets.are_in(text), expected.contains(&text), "{text}");
        }
        assert_eq!(secrets.is_empty(), expected.is_empty());
    }

    #[test]
    fn a_value_is_found_below_any_number_of_schemas() {
        let (mut schema, mut values) = (json!({"writeOnly": true}), json!("hunter2"));
        for _ in 0..100 {
            schema = json!({"properties": {"a": schema}});
            values = json!({"a": values});
        }
        assert!(SecretValues::of(&schema, &values).are_in("hunter2"));
    }

    #[test]
    fn a_schema_may_refer_to_itself_any_number_of_times() {
        let itself = json!({"$ref": "#"});
        let schema = json!({
            "allOf": vec![itself.clone(); 8],
            "properties": {"next": itself, "a": {"writeOnly": true}},
        });
        let mut values = json!({"a": "hunter2"});
        for _ in 0..50 {
            values = json!({"next": values, "a": "x"});
        }
        let secrets = SecretValues::of(&schema, &values);
        assert!(secrets.are_in("hunter2") && secrets.are_in("x"));
    }

    fn secrets(values: &Value) -> SecretValues {
        SecretValues::of(&json!({"writeOnly": true}), values)
    }

    #[test]
    fn a_value_is_found_however_it_is_wrapped() {
        let secrets = secrets(&json!(["pa\"ss/wörd", "first line\n  second line\n"]));
        let base64 = PLAIN.encode("user:pa\"ss/wörd");
        for text in [
            "pa\"ss/wörd",
            "url=postgres://u:pa\"ss/wörd@db",
            r#"{"p": "pa\"ss/wörd"}"#,
            &PLAIN.encode("pa\"ss/wörd"),
            &base64,
            &format!("Authorization: Basic {base64}"),
            &PLAIN.encode(&base64),
            &base64.replace('=', ""),
            &format!("{}\n{}", &base64[..8], &base64[8..]),
            "    first line\n    second line\n",
        ] {
            assert!(secrets.are_in(text), "{text}");
        }
        for text in ["", "word", "pa", &PLAIN.encode("user")] {
            assert!(!secrets.are_in(text), "{text}");
        }
        assert!(!format!("{secrets:?}").contains("line"));
    }

    #[test]
    fn what_is_packed_is_unpacked() {
        let auth = PLAIN.encode("user:hunter22");
        let text = format!(r#"{{"auths": {{"a.org": {{"auth": "{auth}"}}}}}}"#);
        let found = unpacked(&PLAIN.encode(&text));
        assert!(found.contains(&text), "{found:?}");
        assert!(found.contains("user:hunter22"), "{found:?}");
        let secrets = SecretValues::all_of(&json!({"a": "hunter22", "b": "x\ny\"z"}));
        assert!(secrets.are_plainly_in("user:hunter22"));
        assert!(secrets.are_plainly_in(r#"{"b": "x\ny\"z"}"#));
        assert!(!secrets.are_plainly_in(&text));
    }

    #[test]
    fn short_values_count_as_a_whole() {
        let secrets = secrets(&json!(["abc", ""]));
        assert!(secrets.are_in("abc") && secrets.are_in(&PLAIN.encode("abc")));
        assert!(!secrets.are_in("abcd") && !secrets.are_part_of("abc"));
        assert!(!secrets.are_in(""));
    }
}
