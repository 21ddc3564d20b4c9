//! Secrets: `stringData` is merged into `data`.
//!
//! The server does the same and drops `stringData`. Without the merge, the values would have no
//! owner, and their drift would be undetectable. Messages name keys, never values.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::identity::article;
use super::normalize::escape;
use super::source::Place;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{ObjectId, from_base64};

/// Merges `stringData` into `data`, where `stringData` wins. Returns findings instead if a value is
/// invalid.
pub(super) fn fold(value: &mut Value, id: &ObjectId, place: &Place) -> Vec<Finding> {
    let mut findings = check(value, "data", id, place);
    findings.extend(check(value, "stringData", id, place));
    if !findings.is_empty() {
        return findings;
    }
    let Value::Object(secret) = value else {
        return findings;
    };
    let Some(Value::Object(texts)) = secret.shift_remove("stringData") else {
        return findings;
    };
    if texts.is_empty() {
        return findings;
    }
    let data = secret
        .entry("data")
        .or_insert_with(|| Value::Object(Map::new()));
    if data.is_null() {
        *data = Value::Object(Map::new());
    }
    if let Value::Object(data) = data {
        for (key, text) in texts {
            let text = text.as_str().unwrap_or_default();
            data.insert(key, STANDARD.encode(text).into());
        }
    }
    findings
}

fn check(value: &Value, field: &str, id: &ObjectId, place: &Place) -> Vec<Finding> {
    let error = |message: String, pointer: &str| {
        Finding::error(Kind::Repository, "secret", message)
            .at(place.field(pointer))
            .on(id.clone())
    };
    let entries = match &value[field] {
        Value::Null => return Vec::new(),
        Value::Object(entries) => entries,
        other => {
            return vec![error(
                format!("{field} is {}, not a map", article(other)),
                &format!("/{field}"),
            )];
        }
    };
    entries
        .iter()
        .filter_map(|(key, entry)| {
            let pointer = format!("/{field}/{}", escape(key));
            match entry {
                Value::String(text) if field == "data" && from_base64(text).is_none() => Some(
                    error(format!("{field} `{key}` is not base64"), &pointer)
                        .hint("write plain text under stringData"),
                ),
                // The server reads null as an empty value.
                Value::Null if field == "data" => None,
                Value::String(_) => None,
                other => Some(
                    error(
                        format!("{field} `{key}` is {}, not a string", article(other)),
                        &pointer,
                    )
                    .hint("quote it"),
                ),
            }
        })
        .collect()
}
