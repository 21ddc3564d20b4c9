//! Predicts an object after a partial removal, including server defaults.

use serde_json::{Value, json};

use super::{FieldSet, entries, is_main_resource};
use crate::diff::locate;
use pleach_model::object::PathSegment;

/// Returns the JSON patch from a live object to the result of [`super::after_adoption`].
///
/// A dry run of the patch returns the object with server defaults. The patch does not touch
/// managedFields.
#[must_use]
pub fn remainder(live: &Value, rest: &Value) -> Value {
    let mut patch = Vec::new();
    let nothing = json!({});
    let own = ["metadata", "status", "apiVersion", "kind"];
    level(&mut patch, "", live, rest, &own);
    for key in ["labels", "annotations"] {
        let (old, new) = (&live["metadata"][key], &rest["metadata"][key]);
        if old.is_object() && new.is_object() {
            level(&mut patch, &format!("/metadata/{key}"), old, new, &[]);
        } else if new.is_object() {
            level(&mut patch, "/metadata", &nothing, &json!({ key: new }), &[]);
        } else if old.is_object() {
            level(&mut patch, "/metadata", &json!({ key: old }), &nothing, &[]);
        }
    }
    Value::Array(patch)
}

/// Appends the operations that change the keys of one map into the keys of another.
fn level(operations: &mut Vec<Value>, at: &str, old: &Value, new: &Value, skip: &[&str]) {
    let members = |value: &Value| -> Vec<(String, Value)> {
        let map = value.as_object().into_iter().flatten();
        map.filter(|(key, _)| !skip.contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    };
    let pointer = |key: &str| format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
    for (key, value) in members(old) {
        match new.get(&key) {
            None => operations.push(json!({"op": "remove", "path": pointer(&key)})),
            Some(other) if *other != value => {
                operations.push(json!({"op": "replace", "path": pointer(&key), "value": other}));
            }
            Some(_) => {}
        }
    }
    for (key, value) in members(new) {
        if old.get(&key).is_none() {
            operations.push(json!({"op": "add", "path": pointer(&key), "value": value}));
        }
    }
}

/// Predicts an object that replaces a live one: the manifest plus live values without an owner,
/// which are server defaults.
///
/// Values that other managers wrote are not restored by the server.
#[must_use]
pub fn recreated(live: &Value, manifest: &Value) -> Value {
    let owned = entries(&live["metadata"])
        .iter()
        .filter(|entry| is_main_resource(entry))
        .fold(FieldSet::default(), |set, entry| {
            set.union(&FieldSet::parse(&entry["fieldsV1"]))
        });
    let mut value = manifest.clone();
    fill(&mut value, live, &owned);
    value
}

/// Adds live values without an owner. List items are matched by the keys in `owned`.
fn fill(value: &mut Value, live: &Value, owned: &FieldSet) {
    if owned.is_whole() {
        return;
    }
    match (value, live) {
        (Value::Object(map), Value::Object(live)) => {
            for (key, theirs) in live {
                let below = owned.child(&PathSegment::Key(key.clone()));
                match (map.get_mut(key), below) {
                    (Some(mine), Some(below)) => fill(mine, theirs, below),
                    // Another manager wrote this value, so the server does not restore it.
                    (Some(_), None) | (None, Some(_)) => {}
                    (None, None) => drop(map.insert(key.clone(), theirs.clone())),
                }
            }
        }
        (Value::Array(items), Value::Array(live)) => {
            for (segment, below) in owned.items() {
                if let (Some(mine), Some(theirs)) = (
                    locate::position(items, &segment),
                    locate::position(live, &segment),
                ) {
                    fill(&mut items[mine], &live[theirs], below);
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_patch_makes_one_object_of_the_other() {
        let live = json!({
            "apiVersion": "v1", "kind": "A", "status": {"x": 1},
            "metadata": {"name": "a", "labels": {"a/b": "1", "c": "2"}, "annotations": {"x": "y"}},
            "spec": {"a": 1}, "data": {"k": "v"}});
        let rest = json!({
            "apiVersion": "v1", "kind": "A",
            "metadata": {"name": "a", "labels": {"c": "3", "d": "4"}},
            "spec": {}, "more": [1]});
        let mut patched = live.clone();
        let patch: json_patch::Patch = serde_json::from_value(remainder(&live, &rest)).unwrap();
        json_patch::patch(&mut patched, &patch).unwrap();
        let mut expected = rest;
        expected["status"] = json!({"x": 1});
        assert_eq!(patched, expected);
    }

    #[test]
    fn a_new_object_has_defaults_and_no_foreign_fields() {
        let entry = |manager: &str, fields: Value| json!({"manager": manager, "operation": "Apply", "fieldsV1": fields});
        let live = json!({
            "metadata": {"managedFields": [
                entry("ours", json!({"f:spec": {"f:selector": {}, "f:containers": {
                    "k:{\"name\":\"a\"}": {".": {}, "f:name": {}, "f:image": {}}}}})),
                entry("theirs", json!({"f:spec": {"f:paused": {}}}))]},
            "spec": {"selector": "a", "paused": true, "grace": 30,
                "containers": [{"name": "a", "image": "a:1", "pull": "Always"}]}});
        let manifest =
            json!({"spec": {"selector": "b", "containers": [{"name": "a", "image": "a:2"}]}});
        assert_eq!(
            recreated(&live, &manifest)["spec"],
            json!({"selector": "b", "grace": 30,
                "containers": [{"name": "a", "image": "a:2", "pull": "Always"}]})
        );
    }
}
