//! Original owners of the fields of a temporary change, and how ownership is restored.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use pleach_fields::diff::ownership::{FieldSet, entries, is_main_resource};
use pleach_model::object::{FieldPath, NonSecret, managers};

/// Fields that one `managedFields` entry owned. Paths only, no values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FieldOwner {
    /// The field manager.
    pub manager: String,
    /// `Apply` or `Update`.
    pub operation: String,
    /// API version that the manager wrote with.
    pub api_version: String,
    /// Owned fields, as `fieldsV1`.
    pub fields: NonSecret,
}

/// Returns the owners of some fields, from an object's metadata. Omits pleach's overlay manager and
/// subresources.
pub fn field_owners(metadata: &Value, fields: &[FieldPath]) -> Vec<FieldOwner> {
    entries(metadata)
        .iter()
        .filter(|entry| is_main_resource(entry) && entry["manager"] != managers::OVERLAY)
        .filter_map(|entry| {
            let set = among(&FieldSet::parse(&entry["fieldsV1"]), fields);
            let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
            (!set.is_empty()).then(|| FieldOwner {
                manager: text("manager"),
                operation: text("operation"),
                api_version: text("apiVersion"),
                fields: NonSecret(set.to_json()),
            })
        })
        .collect()
}

/// Returns `managedFields` in which the overlay manager no longer owns `fields`, and their original
/// owners do. `None` if nothing changes.
pub fn restore_owners(
    metadata: &Value,
    fields: &[FieldPath],
    owners: &[FieldOwner],
) -> Option<Value> {
    let before = entries(metadata);
    let mut after: Vec<Value> = Vec::new();
    for entry in before {
        let mut entry = entry.clone();
        if entry["manager"] == managers::OVERLAY && is_main_resource(&entry) {
            let left = without(&FieldSet::parse(&entry["fieldsV1"]), fields);
            if left.is_empty() {
                continue;
            }
            entry["fieldsV1"] = left.to_json();
        }
        after.push(entry);
    }
    for owner in owners {
        let theirs = among(&FieldSet::parse(&owner.fields.0), fields);
        if theirs.is_empty() {
            continue;
        }
        let known = after.iter_mut().find(|entry| {
            is_main_resource(entry)
                && entry["manager"] == owner.manager.as_str()
                && entry["operation"] == owner.operation.as_str()
                && entry["apiVersion"] == owner.api_version.as_str()
        });
        if let Some(entry) = known {
            let all = FieldSet::parse(&entry["fieldsV1"]).union(&theirs);
            entry["fieldsV1"] = all.to_json();
        } else {
            after.push(json!({
                "manager": owner.manager,
                "operation": owner.operation,
                "apiVersion": owner.api_version,
                "fieldsType": "FieldsV1",
                "fieldsV1": theirs.to_json(),
            }));
        }
    }
    // If `managedFields` were empty, the server would reset ownership.
    (!after.is_empty() && after.as_slice() != before).then_some(Value::Array(after))
}

/// Returns the part of a set at or below some fields.
fn among(set: &FieldSet, fields: &[FieldPath]) -> FieldSet {
    set.difference(&without(set, fields))
}

fn without(set: &FieldSet, fields: &[FieldPath]) -> FieldSet {
    fields
        .iter()
        .fold(set.clone(), |set, field| set.without(field))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlay::fields;

    fn entry(manager: &str, operation: &str, fields: &Value) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": "apps/v1",
               "fieldsType": "FieldsV1", "fieldsV1": fields})
    }

    #[test]
    fn previous_owners_get_their_fields_back() {
        let patch = json!({"spec": {"replicas": 0, "paused": true}});
        let touched = fields(&patch);
        let before = json!({"managedFields": [
            entry("helm", "Apply", &json!({"f:spec": {"f:replicas": {}, "f:selector": {}}})),
            entry("scaler", "Update", &json!({"f:spec": {"f:replicas": {}}})),
        ]});
        let owners = field_owners(&before, &touched);
        let names: Vec<&str> = owners.iter().map(|owner| owner.manager.as_str()).collect();
        assert_eq!(names, ["helm", "scaler"]);
        // Our write took the fields from both managers. One of them owned nothing else.
        let now = json!({"managedFields": [
            entry("helm", "Apply", &json!({"f:spec": {"f:selector": {}}})),
            entry(managers::OVERLAY, "Update", &json!({"f:spec": {"f:replicas": {}, "f:paused": {}}})),
        ]});
        let after = restore_owners(&now, &touched, &owners).unwrap();
        assert_eq!(after, before["managedFields"]);
        let again = json!({ "managedFields": after });
        assert_eq!(restore_owners(&again, &touched, &owners), None);
    }

    #[test]
    fn other_fields_of_ours_stay_ours() {
        let touched = fields(&json!({"spec": {"a": 1}}));
        let now = json!({"managedFields": [
            entry(managers::OVERLAY, "Update", &json!({"f:spec": {"f:a": {}, "f:b": {}}})),
        ]});
        let after = restore_owners(&now, &touched, &[]).unwrap();
        assert_eq!(after[0]["fieldsV1"], json!({"f:spec": {"f:b": {}}}));
        // `managedFields` are never emptied.
        let all = fields(&json!({"spec": {"a": 1, "b": 1}}));
        assert_eq!(restore_owners(&now, &all, &[]), None);
    }
}
