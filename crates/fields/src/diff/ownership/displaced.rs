//! Finds list items of other managers that displaced ours.

use serde_json::Value;

use super::{FieldSet, apply_entry, entries, is_main_resource, manager_of};
use crate::diff::locate;
use pleach_model::object::{KeyValue, PathSegment};

/// Returns items of other managers that conflict with a missing item of ours, by manager.
///
/// An item conflicts if it has the same value in a `unique` field as an item that is in `desired`,
/// but not in the live object. A manager that changes the key of an item replaces our item by its
/// own. An apply would then add ours again next to it. Items that were merely added are not
/// returned. Only entries with the API version of ours are considered.
pub fn displacing(
    live: &Value,
    desired: &Value,
    ours: &str,
    unique: &[&str],
) -> Vec<(String, FieldSet)> {
    let metadata = &live["metadata"];
    let Some(our_entry) = apply_entry(metadata, ours) else {
        return Vec::new();
    };
    entries(metadata)
        .iter()
        .filter(|entry| is_main_resource(entry) && manager_of(entry) != ours)
        .filter(|entry| entry["apiVersion"] == our_entry["apiVersion"])
        .map(|entry| {
            let theirs = FieldSet::parse(&entry["fieldsV1"]);
            let found = below(&theirs, live, desired, unique);
            (manager_of(entry).to_owned(), found)
        })
        .filter(|(_, found)| !found.is_empty())
        .collect()
}

fn below(theirs: &FieldSet, live: &Value, desired: &Value, unique: &[&str]) -> FieldSet {
    let mut found = FieldSet::default();
    for (segment, child) in theirs.items() {
        let Some(live_child) = locate::step(live, &segment) else {
            continue;
        };
        let inner = match (locate::step(desired, &segment), &segment) {
            (Some(desired), _) => below(child, live_child, desired, unique),
            (None, PathSegment::Select(keys)) if child.itself => {
                let is_in_the_way = missing(keys, live, desired)
                    .any(|item| unique.iter().any(|&field| same(item, live_child, field)));
                if is_in_the_way {
                    child.clone()
                } else {
                    FieldSet::default()
                }
            }
            (None, _) => continue,
        };
        found = found.with(&segment, inner);
    }
    found
}

/// Returns the desired items that are missing in the live list.
fn missing<'w>(
    keys: &[(String, KeyValue)],
    live: &Value,
    desired: &'w Value,
) -> impl Iterator<Item = &'w Value> {
    let live = live.as_array().map_or(&[][..], Vec::as_slice);
    let desired = desired.as_array().map_or(&[][..], Vec::as_slice);
    // The server fills in defaults for key fields that a manifest omits.
    let is_item = move |item: &Value, other: &Value| {
        let mut names = keys.iter().map(|(key, _)| key);
        names.all(|key| match item.get(key) {
            Some(value) => other.get(key) == Some(value),
            None => other[key]
                .as_str()
                .is_none_or(|text| locate::can_be_omitted(key, text)),
        })
    };
    desired
        .iter()
        .filter(move |item| !live.iter().any(|other| is_item(item, other)))
}

fn same(item: &Value, other: &Value, field: &str) -> bool {
    let value = item.get(field);
    value.is_some() && value == other.get(field)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const OURS: &str = "pleach/a.b";

    fn port(number: u16) -> String {
        format!("k:{{\"port\":{number},\"protocol\":\"TCP\"}}")
    }

    fn service(version: &str) -> Value {
        let item = json!({".": {}, "f:name": {}, "f:port": {}});
        json!({
            "metadata": {"managedFields": [
                {"manager": OURS, "operation": "Apply", "apiVersion": "v1",
                 "fieldsV1": {"f:spec": {"f:selector": {}}}},
                {"manager": "hand", "operation": "Update", "apiVersion": version,
                 "fieldsV1": {"f:spec": {"f:paused": {}, "f:ports": {
                    (port(81)): item, (port(90)): item}}}}]},
            "spec": {"ports": [
                {"name": "http", "port": 81, "protocol": "TCP"},
                {"name": "extra", "port": 90, "protocol": "TCP"}]}})
    }

    fn check(version: &str, desired: &Value, unique: &[&str]) -> Vec<(String, Value)> {
        let desired = json!({"spec": {"ports": desired}});
        displacing(&service(version), &desired, OURS, unique)
            .into_iter()
            .map(|(manager, fields)| (manager, fields.to_json()))
            .collect()
    }

    #[test]
    fn another_protocol_is_another_key_also_where_ours_is_unsaid() {
        let live = json!({
            "metadata": {"managedFields": [
                {"manager": OURS, "operation": "Apply", "apiVersion": "v1",
                 "fieldsV1": {"f:spec": {"f:selector": {}}}},
                {"manager": "hand", "operation": "Update", "apiVersion": "v1",
                 "fieldsV1": {"f:spec": {"f:ports": {
                    r#"k:{"port":80,"protocol":"UDP"}"#: {".": {}, "f:name": {}, "f:port": {}}}}}}]},
            "spec": {"ports": [{"name": "http", "port": 80, "protocol": "UDP"}]}});
        let desired = json!({"spec": {"ports": [{"name": "http", "port": 80}]}});
        assert_eq!(displacing(&live, &desired, OURS, &["name"]).len(), 1);
    }

    #[test]
    fn an_item_with_a_changed_key_replaces_ours() {
        let desired = json!([{"name": "http", "port": 80}]);
        let fields = json!({"f:spec": {"f:ports": {
            (port(81)): {".": {}, "f:name": {}, "f:port": {}}}}});
        assert_eq!(
            check("v1", &desired, &["name"]),
            [("hand".to_owned(), fields)]
        );
        // No field has to be unique, or the entry has another API version.
        assert!(check("v1", &desired, &["nodePort"]).is_empty());
        assert!(check("v1", &desired, &[]).is_empty());
        assert!(check("v2", &desired, &["name"]).is_empty());
        // The protocol is part of the key.
        let desired = json!([{"name": "http", "port": 81, "protocol": "UDP"}]);
        assert_eq!(check("v1", &desired, &["name"]).len(), 1);
        // None of our items is missing.
        let there = json!([{"name": "http", "port": 81}]);
        assert!(check("v1", &there, &["name"]).is_empty());
    }
}
