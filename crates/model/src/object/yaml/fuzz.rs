//! Property tests with arbitrary input. `PROPTEST_CASES=100000` runs more cases.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::parse::library;
use super::{emit_all, parse_documents, parse_nodes, plain};

/// Generates words that can be a string or another type.
fn word() -> impl Strategy<Value = String> {
    let words = [
        "y",
        "Yes",
        "NO",
        "on",
        "oFF",
        "true",
        "False",
        "null",
        "Null",
        "~",
        "nan",
        ".NaN",
        "inf",
        "Infinity",
        "0",
        "00",
        "017",
        "08",
        "9",
        "12345678901234567890",
        "1_0",
        "+1",
        "-1",
        "0x1f",
        "0b1",
        "0o7",
        "1e3",
        "1.0",
        ".5",
        "500m",
        "1.2.3",
        "2001-01-01",
        "1:30",
        "=",
        "<<",
        "a/b",
        "/a",
        "_x",
        ".x",
        "é",
        "-x",
        "--- x",
        "k8s.io/x",
        "a#b",
        "a:b",
        "@",
        "`",
        "%x",
        "!",
        "",
    ];
    let count = words.len();
    (0..count).prop_map(move |index| words[index].to_owned())
}

/// Generates texts from tokens that are hard to parse.
fn text() -> impl Strategy<Value = String> {
    let token = prop_oneof![
        4 => "[a-c]{1,2}",
        4 => Just(": ".to_owned()),
        3 => Just("\n".to_owned()),
        2 => Just("\n  ".to_owned()),
        2 => Just("\n    ".to_owned()),
        2 => Just("- ".to_owned()),
        1 => Just("\n---\n".to_owned()),
        1 => Just("\n...\n".to_owned()),
        1 => Just("? ".to_owned()),
        1 => Just("{".to_owned()),
        1 => Just("}".to_owned()),
        1 => Just("[".to_owned()),
        1 => Just("]".to_owned()),
        1 => Just(", ".to_owned()),
        1 => Just("&a ".to_owned()),
        1 => Just("*a ".to_owned()),
        1 => Just("<<: ".to_owned()),
        1 => Just("!!binary ".to_owned()),
        1 => Just("!x ".to_owned()),
        1 => Just("|\n".to_owned()),
        1 => Just(">-2\n".to_owned()),
        1 => Just("'".to_owned()),
        1 => Just("\"".to_owned()),
        1 => Just("\\x".to_owned()),
        1 => Just("\t".to_owned()),
        1 => Just("%YAML 9.9\n".to_owned()),
        1 => Just("#".to_owned()),
        1 => Just(" /a --b: ".to_owned()),
        1 => Just("0x1_0 -.inf 1e999 0777 ~ ".to_owned()),
        2 => Just("\nk: ".to_owned()),
        2 => Just("\n- ".to_owned()),
        3 => word(),
        1 => any::<String>(),
    ];
    prop_oneof![
        prop::collection::vec(token, 0..60).prop_map(|tokens| tokens.concat()),
        any::<String>(),
    ]
}

proptest! {
    /// Both readers return the same values or both fail. Values survive a round trip.
    #[test]
    fn any_text_is_read_or_refused(text in text()) {
        if !text.contains('\t')
            && let Some(plain) = plain::parse(&text)
        {
            prop_assert_eq!(Some(plain), library(&text).ok());
        }
        let read = parse_documents(&text);
        let nodes = parse_nodes("a.yaml", &text);
        prop_assert_eq!(read.is_ok(), nodes.is_ok(), "{:?} {:?}", read, nodes);
        match (read, nodes) {
            (Ok(documents), Ok(nodes)) => {
                let values: Vec<_> = documents.into_iter().map(|one| one.value).collect();
                let placed: Vec<_> = nodes.iter().map(super::Node::to_value).collect();
                prop_assert_eq!(&values, &placed);
                let again = parse_documents(&emit_all(&values));
                let again: Vec<_> = again.unwrap().into_iter().map(|one| one.value).collect();
                prop_assert_eq!(values, again);
            }
            (Err(errors), _) => prop_assert!(!errors.is_empty()),
            (Ok(_), Err(_)) => {}
        }
    }
}

#[test]
fn bombs_are_refused() {
    // A "billion laughs" bomb: ten aliases of ten aliases of … one word.
    let mut laughs = String::from("a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]\n");
    for level in 1..10 {
        let below = format!("*a{}, ", level - 1).repeat(10);
        let below = below.trim_end_matches(", ");
        let _never_fails = writeln!(laughs, "a{level}: &a{level} [{below}]");
    }
    let deep = [
        "[".repeat(100_000),
        "{a: ".repeat(100_000),
        "- ".repeat(100_000),
        "? ".repeat(100_000),
    ];
    let merges = format!("a: &a {{x: 1}}\nb: {{<<: [{}]}}\n", "*a, ".repeat(200_000));
    for text in deep.iter().chain([&laughs, &merges]) {
        assert!(parse_documents(text).is_err());
        assert!(parse_nodes("a.yaml", text).is_err());
    }
}
