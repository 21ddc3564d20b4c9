//! Normalizes objects for comparing and showing them.
//!
//! Removes fields that the server adds to every object. Sorts keys in the order of `pleach render`,
//! so that both sides of a diff align.

use serde_json::{Map, Value};

use pleach_model::object::annotations;

/// Fields of `metadata` that the server writes.
const SERVER_METADATA: &[&str] = &[
    "managedFields",
    "resourceVersion",
    "uid",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
];

/// Annotations with bookkeeping data of tools.
const BOOKKEEPING: &[&str] = &[annotations::DESIRED, annotations::LAST_APPLIED];

/// Returns an object in its comparable form.
///
/// Server-managed fields and bookkeeping annotations are removed. The status is removed unless
/// `keep_status` is set. Keys are sorted at every level.
#[must_use]
pub fn normalized(object: &Value, keep_status: bool) -> Value {
    let mut value = sorted(object);
    let Some(map) = value.as_object_mut() else {
        return value;
    };
    if !keep_status {
        map.shift_remove("status");
    }
    if let Some(metadata) = map.get_mut("metadata").and_then(Value::as_object_mut) {
        for key in SERVER_METADATA {
            metadata.shift_remove(*key);
        }
        if let Some(annotations) = metadata
            .get_mut("annotations")
            .and_then(Value::as_object_mut)
        {
            for key in BOOKKEEPING {
                annotations.shift_remove(*key);
            }
            if annotations.is_empty() {
                metadata.shift_remove("annotations");
            }
        }
    }
    value
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_unstable_by_key(|(key, _)| *key);
            Value::Object(
                entries
                    .into_iter()
                    .map(|(key, value)| (key.clone(), sorted(value)))
                    .collect::<Map<String, Value>>(),
            )
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        scalar => scalar.clone(),
    }
}

/// Moves the identifying fields to the front, in their customary order.
#[must_use]
pub fn in_reading_order(object: Value) -> Value {
    let mut ordered = first(object, &["apiVersion", "kind", "metadata"]);
    if let Some(metadata) = ordered.get_mut("metadata") {
        *metadata = first(metadata.take(), &["name", "namespace"]);
    }
    ordered
}

fn first(object: Value, first: &[&str]) -> Value {
    let Value::Object(mut fields) = object else {
        return object;
    };
    let mut ordered = Map::with_capacity(fields.len());
    for name in first {
        if let Some((name, value)) = fields.shift_remove_entry(*name) {
            ordered.insert(name, value);
        }
    }
    ordered.extend(fields);
    Value::Object(ordered)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn live() -> Value {
        json!({
            "kind": "ConfigMap", "apiVersion": "v1",
            "metadata": {
                "uid": "u", "name": "a", "resourceVersion": "1", "generation": 2, "selfLink": "/x",
                "creationTimestamp": "2026-07-01T10:00:00Z", "managedFields": [{"manager": "x"}],
                "annotations": {"pleach.dev/desired": "sha256:0", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
                "labels": {"b": "2", "a": "1"}},
            "status": {"x": 1}, "data": {"z": "1", "y": "2"}})
    }

    #[test]
    fn fields_of_the_server_and_of_tools_are_omitted() {
        let value = normalized(&live(), false);
        assert_eq!(
            value,
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"y": "2", "z": "1"},
                "metadata": {"name": "a", "labels": {"a": "1", "b": "2"}}})
        );
        assert_eq!(
            value.to_string(),
            r#"{"apiVersion":"v1","data":{"y":"2","z":"1"},"kind":"ConfigMap","metadata":{"labels":{"a":"1","b":"2"},"name":"a"}}"#
        );
        assert_eq!(normalized(&live(), true)["status"], json!({"x": 1}));
    }

    #[test]
    fn annotations_of_users_stay() {
        let mut live = live();
        live["metadata"]["annotations"]["team"] = json!("web");
        assert_eq!(
            normalized(&live, false)["metadata"]["annotations"],
            json!({"team": "web"})
        );
    }
}
