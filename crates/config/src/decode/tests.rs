//! Tests that decode structs from texts with errors.

use serde::Deserialize;

use super::*;
use pleach_model::object::yaml::parse_nodes;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "only read")]
struct File {
    id: String,
    count: Option<usize>,
    #[serde(default)]
    items: Vec<Item>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "only read")]
struct Item {
    name: String,
    kind: Option<Kind>,
    create_namespace: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Text,
    Number,
}

fn errors(text: &str) -> Vec<String> {
    let node = parse_nodes("f.yaml", text).unwrap().remove(0);
    let mut findings = Vec::new();
    let decoded = decode::<File>(&node, &mut findings);
    assert_eq!(decoded.is_none(), !findings.is_empty());
    findings
        .into_iter()
        .map(|finding| {
            let hint = finding.hint.clone().map(|hint| format!(" ({hint})"));
            format!("{finding}{}", hint.unwrap_or_default())
        })
        .collect()
}

#[test]
fn valid_values_are_decoded() {
    assert_eq!(
        errors("id: a\ncount: 3\nitems:\n- {name: b, kind: text}\n"),
        [""; 0]
    );
}

#[test]
fn all_errors_come_at_once_with_their_lines() {
    let text = "\
id: 5
cuont: 1
count: -1
items:
- name: a
  createNamepsace: true
  kind: txet
- kind: number
- name: on
- text
";
    let mut found = errors(text);
    found.sort();
    assert_eq!(
        found,
        [
            "f.yaml:10: `items[3]`: expected a map, found a string",
            "f.yaml:1: `id`: expected a string, found a number (put it in quotes)",
            "f.yaml:2: unknown field `cuont` (did you mean `count`?)",
            "f.yaml:3: `count`: expected a non-negative integer",
            "f.yaml:6: `items[0]`: unknown field `createNamepsace` (did you mean `createNamespace`?)",
            "f.yaml:7: `items[0].kind`: `txet` is not one of text, number (did you mean `text`?)",
            "f.yaml:8: `items[1]`: `name` is required",
            "f.yaml:9: `items[2].name`: expected a string, found a boolean (put it in quotes)",
        ]
    );
}

#[test]
fn a_hidden_field_is_not_called_missing() {
    assert_eq!(
        errors("id: []\n"),
        ["f.yaml:1: `id`: expected a string, found a list"]
    );
    assert_eq!(errors("count: 1\n"), ["f.yaml:1: `id` is required"]);
}

#[test]
fn a_file_with_many_errors_is_not_read_to_its_end() {
    let lines: Vec<String> = (0..250).map(|number| format!("x{number}: 1\n")).collect();
    let found = errors(&lines.concat());
    assert_eq!(found.len(), MOST + 1);
    assert_eq!(
        found[MOST],
        "f.yaml:100: only the first 100 errors of a file are reported"
    );
}
