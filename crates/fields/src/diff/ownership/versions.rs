//! Changes the API versions of managedFields entries.

use serde_json::{Value, json};

use super::{FieldSet, entries, is_main_resource, owned_by};
use pleach_model::object::ApiVersion;

/// Returns managedFields with all entries of the group at version `to`. `None` if all of them
/// already are.
fn all_at(metadata: &Value, to: &ApiVersion) -> Option<Value> {
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

/// Does the same as `all_at`, but also restricts the fields of `manager` to the ones in `before`.
///
/// Returns `None` if there is nothing to change. A server attributes defaults that it fills in with
/// a patch to the patch's manager. Restricting the fields undoes that.
pub fn all_at_with(
    metadata: &Value,
    to: &ApiVersion,
    (manager, before): (&str, &FieldSet),
) -> Option<Value> {
    let moved = all_at(metadata, to);
    if moved.is_none() && owned_by(metadata, manager) == *before {
        return None;
    }
    let record = moved.unwrap_or_else(|| metadata["managedFields"].clone());
    let mut record = record.as_array().cloned().unwrap_or_default();
    for entry in &mut record {
        if is_main_resource(entry) && entry["manager"] == manager {
            let fields = FieldSet::parse(&entry["fieldsV1"]).intersection(before);
            entry["fieldsV1"] = fields.to_json();
        }
    }
    record.retain(|entry| !FieldSet::parse(&entry["fieldsV1"]).is_empty());
    Some(Value::Array(record))
}

/// Returns managedFields with all entries at a version in `from` changed to `to`. `None` if there
/// is no such entry.
///
/// Entries that become equal are merged. The server allows one entry for each manager, operation,
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
    fn defaults_of_the_new_version_are_not_left_to_the_manager_that_moves() {
        let to = ApiVersion::parse("example.org/v1");
        let owned = |fields: Value| FieldSet::parse(&json!({"f:spec": fields}));
        let moves = |record: Value, before: &FieldSet| {
            all_at_with(&json!({ "managedFields": record }), &to, ("o", before))
        };
        let (nothing, x) = (FieldSet::default(), owned(json!({"f:x": {}})));
        let ours = || entry("a", "v1", "f:a");
        // The first patch, then the patch that removes the fields which the first one added.
        let moved = moves(json!([entry("a", "v1beta1", "f:a")]), &nothing);
        assert_eq!(moved, Some(json!([ours()])));
        let moved = moves(json!([ours(), entry("o", "v1", "f:b")]), &nothing);
        assert_eq!(moved, Some(json!([ours()])));
        assert_eq!(moves(json!([ours()]), &nothing), None);
        // Fields of a temporary change remain.
        let mut both = entry("o", "v1", "f:b");
        both["fieldsV1"]["f:spec"]["f:x"] = json!({});
        let moved = moves(json!([ours(), both]), &x);
        assert_eq!(moved, Some(json!([ours(), entry("o", "v1", "f:x")])));
        assert_eq!(moves(json!([entry("o", "v1", "f:x")]), &x), None);
    }

    #[test]
    fn entries_move_and_merge_by_manager() {
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
