//! The versions at which managers wrote.

use serde_json::{Value, json};

use super::{FieldSet, entries};
use crate::object::ApiVersion;

/// The record of owners with every entry of the group moved to this version of it;
/// none where all are there.
pub fn all_at(metadata: &Value, to: &ApiVersion) -> Option<Value> {
    let versions = entries(metadata)
        .iter()
        .filter_map(|entry| entry["apiVersion"].as_str());
    let from: Vec<String> = versions
        .filter(|known| {
            let known = ApiVersion::parse(known);
            known.group == to.group && known.version != to.version
        })
        .map(str::to_owned)
        .collect();
    moved_to(metadata, &from, &to.to_string())
}

/// The record of owners with every entry at one of the versions `from` moved to
/// another; none where there is no such entry. What a manager holds at both
/// becomes one entry: the server keeps one for each manager, operation,
/// subresource and version.
pub fn moved_to(metadata: &Value, from: &[String], to: &str) -> Option<Value> {
    let is_moved = |entry: &Value| {
        let version = entry["apiVersion"].as_str().unwrap_or_default();
        from.iter().any(|known| known == version)
    };
    if !entries(metadata).iter().any(is_moved) {
        return None;
    }
    let mut moved: Vec<Value> = Vec::new();
    for entry in entries(metadata) {
        let mut entry = entry.clone();
        if is_moved(&entry) {
            entry["apiVersion"] = json!(to);
        }
        let is_same = |known: &&mut Value| {
            ["manager", "operation", "subresource", "apiVersion"]
                .iter()
                .all(|field| known[*field] == entry[*field])
        };
        match moved.iter_mut().find(is_same) {
            Some(known) => {
                let fields = |entry: &Value| FieldSet::parse(&entry["fieldsV1"]);
                known["fieldsV1"] = fields(known).union(&fields(&entry)).to_json();
            }
            None => moved.push(entry),
        }
    }
    Some(Value::Array(moved))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, version: &str, field: &str) -> Value {
        json!({"manager": manager, "operation": "Update", "apiVersion": format!("example.org/{version}"),
               "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {field: {}}}})
    }

    #[test]
    fn entries_move_and_those_of_one_manager_become_one() {
        let metadata = json!({"managedFields": [
            entry("a", "v1beta1", "f:x"), entry("b", "v1", "f:y"), entry("a", "v1", "f:z"),
        ]});
        let from = ["example.org/v1beta1".to_owned()];
        let moved = moved_to(&metadata, &from, "example.org/v1").unwrap();
        let mut one = entry("a", "v1", "f:x");
        one["fieldsV1"]["f:spec"]["f:z"] = json!({});
        assert_eq!(moved, json!([one, entry("b", "v1", "f:y")]));
        let again = json!({ "managedFields": moved });
        assert_eq!(moved_to(&again, &from, "example.org/v1"), None);
    }

    #[test]
    fn all_of_a_group_move() {
        let mut status = entry("operator", "v1alpha1", "f:state");
        status["subresource"] = json!("status");
        let other =
            json!({"manager": "x", "operation": "Update", "apiVersion": "v1", "fieldsV1": {}});
        let metadata = json!({"managedFields": [
            entry("a", "v1beta1", "f:x"), other, status, entry("b", "v1", "f:y"),
        ]});
        let to = ApiVersion::parse("example.org/v1");
        let moved = all_at(&metadata, &to).unwrap();
        let versions: Vec<&Value> = (moved.as_array().unwrap().iter())
            .map(|entry| &entry["apiVersion"])
            .collect();
        let expected = ["example.org/v1", "v1", "example.org/v1", "example.org/v1"];
        assert_eq!(versions, expected);
        assert_eq!(moved[2]["subresource"], "status");
        assert_eq!(all_at(&json!({ "managedFields": moved }), &to), None);
    }
}
