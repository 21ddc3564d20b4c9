//! Comparison of pleach's YAML parser with kubectl.
//!
//! `tests/fixtures/yaml/conformance.json` contains texts with kubectl's answer (null: refused),
//! which `tests/control_plane/yaml.rs` verifies. If pleach differs, the case has its answer and the
//! reason, and docs/reference/yaml.md lists it.

use std::fmt::Write as _;

use pleach_model::object::yaml::{Node, parse_documents, parse_nodes};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    text: String,
    /// Documents according to kubectl. Null if it refuses.
    kubectl: Value,
    /// Answer of pleach, if different.
    #[serde(default, deserialize_with = "even_null")]
    pleach: Option<Value>,
    why: Option<String>,
}

fn even_null<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("../fixtures/yaml/conformance.json")).unwrap()
}

#[test]
fn pleach_reads_what_kubectl_reads() {
    let mut wrong = Vec::new();
    for case in cases() {
        let read = parse_documents(&case.text).map_or(Value::Null, |documents| {
            documents.into_iter().map(|d| d.value).collect()
        });
        let expected = case.pleach.as_ref().unwrap_or(&case.kubectl);
        if read != *expected {
            wrong.push(format!("{}: {read:?}\n  expected {expected:?}", case.name));
        }
        assert_ne!(
            case.pleach.as_ref(),
            Some(&case.kubectl),
            "{}: no difference",
            case.name
        );
        // The parser with locations gives the same result.
        let nodes = parse_nodes("a.yaml", &case.text).map_or(Value::Null, |nodes| {
            nodes.iter().map(Node::to_value).collect()
        });
        assert_eq!(nodes, read, "{}", case.name);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_difference_has_a_reason_and_is_documented() {
    let page = include_str!("../../docs/reference/yaml.md");
    let mut differences = 0;
    for case in cases() {
        assert_eq!(case.pleach.is_some(), case.why.is_some(), "{}", case.name);
        if let Some(why) = case.why {
            let row = format!("| {} | ", case.name);
            assert!(page.contains(&row) && page.contains(&why), "{}", case.name);
            differences += 1;
        }
    }
    let rows = page.lines().filter(|line| line.starts_with("| ")).count();
    assert_eq!(rows, differences + 1, "a row that no case shows");
}

/// A CRD of the size of the largest upstream ones.
#[test]
fn a_definition_of_700_kb_is_read_whole() {
    let mut text = String::from(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n\
         metadata: {name: foos.example.org}\nspec:\n  group: example.org\n  scope: Namespaced\n  \
         names: {kind: Foo, plural: foos}\n  versions:\n  - name: v1\n    served: true\n    \
         storage: true\n    schema:\n      openAPIV3Schema:\n        type: object\n        \
         properties:\n",
    );
    let mut number = 0;
    while text.len() < 700_000 {
        write!(
            text,
            "          field{number}:\n            description: >-\n              The field \
             number {number}, described: at length.\n            type: object\n            \
             properties: {{name: {{type: string}}, on: {{type: boolean}}}}\n"
        )
        .unwrap();
        number += 1;
    }
    let documents = parse_documents(&text).unwrap();
    let fields =
        &documents[0].value["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    assert_eq!(fields.as_object().unwrap().len(), number);
    // A tab after a colon near the end is reported with its location.
    let broken = text.replace("field900:\n", "field900:\t\n");
    let errors = parse_documents(&broken).unwrap_err();
    let line = broken.lines().position(|line| line.contains('\t')).unwrap() + 1;
    assert_eq!(
        (errors.len(), errors[0].line, errors[0].column),
        (1, line, 20)
    );
}
