//! Determines how the items of a list are identified.
//!
//! The schema of the kind takes precedence. Without one, the keys in our managedFields are used,
//! because the server wrote them. Otherwise a small table of well-known lists applies. The table
//! also covers lists that are atomic for the server, but whose items have names.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::diff::ownership::FieldSet;
use pleach_model::kinds::{ListKind, Schema};
use pleach_model::object::{FieldPath, KeyValue, PathSegment, canonical_json};

/// Well-known lists by field name, with candidates for the key of their items.
///
/// The first candidate that all items have, with distinct values, is used. Keys are sorted, as in
/// managedFields.
const KEYED: &[(&str, &[&[&str]])] = &[
    ("conditions", &[&["type"]]),
    ("containers", &[&["name"]]),
    ("containerStatuses", &[&["name"]]),
    ("env", &[&["name"]]),
    ("ephemeralContainers", &[&["name"]]),
    ("hostAliases", &[&["ip"]]),
    ("imagePullSecrets", &[&["name"]]),
    ("initContainers", &[&["name"]]),
    ("initContainerStatuses", &[&["name"]]),
    ("matchConditions", &[&["name"]]),
    ("ownerReferences", &[&["uid"]]),
    (
        "ports",
        &[
            &["name"],
            &["containerPort", "protocol"],
            &["port", "protocol"],
        ],
    ),
    ("resourceClaims", &[&["name"]]),
    ("schedulingGates", &[&["name"]]),
    ("secrets", &[&["name"]]),
    (
        "topologySpreadConstraints",
        &[&["topologyKey", "whenUnsatisfiable"]],
    ),
    ("versions", &[&["name"]]),
    ("volumeDevices", &[&["devicePath"]]),
    ("volumeMounts", &[&["mountPath"]]),
    ("volumes", &[&["name"]]),
    ("webhooks", &[&["name"]]),
];

/// Lists of scalars whose order is not significant.
const SETS: &[&str] = &["finalizers"];

/// How to compare a list.
pub(super) enum Shape {
    /// By key, with the steps to the items on the old and the new side.
    Keyed(Vec<PathSegment>, Vec<PathSegment>),
    /// As a set of scalars.
    Set(Vec<PathSegment>, Vec<PathSegment>),
    /// By position.
    Positions,
}

/// Determines how to compare the list at `field`.
pub(super) fn shape(
    field: Option<&str>,
    old: &[Value],
    new: &[Value],
    owned: Option<&FieldSet>,
    schema: Option<Schema<'_>>,
) -> Shape {
    let declared = schema.map(Schema::list);
    let item = schema.and_then(Schema::items);
    if let Some(ListKind::Map(keys)) = declared {
        let mut keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        keys.sort_unstable();
        if let (Some(old), Some(new)) = (selectors(old, &keys, item), selectors(new, &keys, item)) {
            return Shape::Keyed(old, new);
        }
    }
    let from_server = owned.and_then(FieldSet::list_keys);
    let from_table = KEYED
        .iter()
        .find(|(name, _)| Some(*name) == field)
        .map_or(&[] as &[&[&str]], |(_, candidates)| candidates);
    let candidates = from_server
        .iter()
        .map(|keys| keys.iter().map(String::as_str).collect::<Vec<_>>())
        .chain(from_table.iter().map(|keys| keys.to_vec()));
    for keys in candidates {
        if let (Some(old), Some(new)) = (selectors(old, &keys, item), selectors(new, &keys, item)) {
            return Shape::Keyed(old, new);
        }
    }
    let is_set = match declared {
        Some(declared) => declared == ListKind::Set,
        None => {
            owned.is_some_and(FieldSet::is_scalar_set)
                || field.is_some_and(|field| SETS.contains(&field))
        }
    };
    if is_set && let (Some(old), Some(new)) = (scalars(old), scalars(new)) {
        return Shape::Set(old, new);
    }
    Shape::Positions
}

/// Returns the name of the last field in a path. `None` for a list item.
pub(super) fn field_of(path: &FieldPath) -> Option<&str> {
    path.0.last().and_then(|segment| match segment {
        PathSegment::Key(key) => Some(key.as_str()),
        _ => None,
    })
}

/// Returns whether two lists of maps have the same items in a different order. Lists of scalars,
/// such as arguments, are excluded, because their order is significant.
pub(super) fn is_permuted(old: &[Value], new: &[Value]) -> bool {
    if old.len() != new.len() || old == new || !old.iter().all(Value::is_object) {
        return false;
    }
    let sorted = |items: &[Value]| {
        let mut texts: Vec<Vec<u8>> = items.iter().map(canonical_json).collect();
        texts.sort_unstable();
        texts
    };
    sorted(old) == sorted(new)
}

/// Returns the keys of the items as values.
pub(super) fn keys(steps: &[PathSegment]) -> Value {
    let value = |value: &KeyValue| match value {
        KeyValue::Bool(value) => Value::from(*value),
        KeyValue::Int(value) => Value::from(*value),
        KeyValue::Text(value) => Value::from(value.as_str()),
    };
    steps
        .iter()
        .map(|step| match step {
            PathSegment::Select(keys) => Value::Object(
                keys.iter()
                    .map(|(key, one)| (key.clone(), value(one)))
                    .collect(),
            ),
            PathSegment::Item(one) => value(one),
            PathSegment::Key(_) | PathSegment::Index(_) => Value::Null,
        })
        .collect()
}

/// Returns the step to each item. `None` if an item lacks a key or two items share a key.
fn selectors(
    items: &[Value],
    keys: &[&str],
    schema: Option<Schema<'_>>,
) -> Option<Vec<PathSegment>> {
    // The server fills in defaults for key fields that a manifest omits.
    let default = |key: &str| {
        let declared = schema.and_then(|item| item.field(key)?.default());
        match declared {
            Some(value) => KeyValue::from_json(value),
            None if key == "protocol" => Some(KeyValue::Text("TCP".to_owned())),
            None => None,
        }
    };
    unique(items.iter().map(|item| {
        let map = item.as_object()?;
        keys.iter()
            .map(|key| {
                let value = match map.get(*key) {
                    Some(value) => KeyValue::from_json(value)?,
                    None => default(key)?,
                };
                Some(((*key).to_owned(), value))
            })
            .collect::<Option<Vec<_>>>()
            .map(PathSegment::Select)
    }))
}

fn scalars(items: &[Value]) -> Option<Vec<PathSegment>> {
    unique(
        items
            .iter()
            .map(|item| KeyValue::from_json(item).map(PathSegment::Item)),
    )
}

fn unique(steps: impl Iterator<Item = Option<PathSegment>>) -> Option<Vec<PathSegment>> {
    let steps: Vec<PathSegment> = steps.collect::<Option<_>>()?;
    let distinct: BTreeSet<&PathSegment> = steps.iter().collect();
    (distinct.len() == steps.len()).then_some(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_as_the_server_sorts_keys() {
        for (name, candidates) in KEYED {
            for keys in *candidates {
                assert!(keys.is_sorted(), "{name}");
            }
        }
    }
}
