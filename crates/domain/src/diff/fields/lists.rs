//! How the items of a list are told apart.
//!
//! Where our managedFields name items by their keys, those keys are used: they
//! are the server's own. Elsewhere a small table of well-known lists, until the
//! exact keys come from the schemas of the kinds.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::diff::ownership::FieldSet;
use crate::object::{KeyValue, PathSegment};

/// Lists by the name of their field, and what may identify their items; the
/// first that every item has, without doubles, is used. Keys are sorted, as in
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

/// Lists of scalars whose order says nothing.
const SETS: &[&str] = &["finalizers"];

/// How a list is compared.
pub(super) enum Shape {
    /// Item by item, each with the step that names it: old, new.
    Keyed(Vec<PathSegment>, Vec<PathSegment>),
    /// As a set of scalars.
    Set(Vec<PathSegment>, Vec<PathSegment>),
    /// By position.
    Positions,
}

/// Tells how the list at `field` is compared.
pub(super) fn shape(
    field: Option<&str>,
    old: &[Value],
    new: &[Value],
    owned: Option<&FieldSet>,
) -> Shape {
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
        if let (Some(old), Some(new)) = (selectors(old, &keys), selectors(new, &keys)) {
            return Shape::Keyed(old, new);
        }
    }
    let is_set = owned.is_some_and(FieldSet::is_scalar_set)
        || field.is_some_and(|field| SETS.contains(&field));
    if is_set && let (Some(old), Some(new)) = (scalars(old), scalars(new)) {
        return Shape::Set(old, new);
    }
    Shape::Positions
}

/// The step to each item; none where one has no such key or two have the same.
fn selectors(items: &[Value], keys: &[&str]) -> Option<Vec<PathSegment>> {
    unique(items.iter().map(|item| {
        let map = item.as_object()?;
        keys.iter()
            .map(|key| {
                let value = match map.get(*key) {
                    Some(value) => KeyValue::from_json(value)?,
                    // The server's default; manifests leave it out.
                    None if *key == "protocol" => KeyValue::Text("TCP".to_owned()),
                    None => return None,
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
