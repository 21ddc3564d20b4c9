//! The part of server-side apply that scenes need: maps are granular, and
//! everything else is a leaf.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::scene::MANAGER;
use crate::observe::{FieldConflict, Prediction};
use pleach_state::live::Live;

type Path = Vec<String>;

/// Returns the leaves of an object without its identifying fields.
fn leaves(value: &Value) -> BTreeMap<Path, Value> {
    fn walk(value: &Value, path: &mut Path, found: &mut BTreeMap<Path, Value>) {
        match value.as_object().filter(|map| !map.is_empty()) {
            Some(map) => {
                for (key, value) in map {
                    path.push(key.clone());
                    walk(value, path, found);
                    path.pop();
                }
            }
            None => drop(found.insert(path.clone(), value.clone())),
        }
    }
    let mut found = BTreeMap::new();
    walk(value, &mut Vec::new(), &mut found);
    found.retain(|path, _| match path[0].as_str() {
        "apiVersion" | "kind" | "status" => false,
        "metadata" => matches!(
            path.get(1).map(String::as_str),
            Some("labels" | "annotations")
        ),
        _ => true,
    });
    found
}

/// Returns the fields that an apply of this object owns.
pub(super) fn fields(value: &Value) -> Value {
    fields_of(leaves(value).keys())
}

fn fields_of<'a>(paths: impl Iterator<Item = &'a Path>) -> Value {
    let mut set = json!({});
    for path in paths {
        let mut at = &mut set;
        for key in path {
            let map: &mut Map<String, Value> = at.as_object_mut().unwrap();
            at = map.entry(format!("f:{key}")).or_insert_with(|| json!({}));
        }
    }
    set
}

fn paths_of(fields: &Value) -> BTreeSet<Path> {
    fn walk(value: &Value, path: &mut Path, found: &mut BTreeSet<Path>) {
        for (key, value) in value.as_object().into_iter().flatten() {
            path.push(key.trim_start_matches("f:").to_owned());
            if value.as_object().is_some_and(Map::is_empty) {
                found.insert(path.clone());
            } else {
                walk(value, path, found);
            }
            path.pop();
        }
    }
    let mut found = BTreeSet::new();
    walk(fields, &mut Vec::new(), &mut found);
    found
}

/// Builds an entry of managedFields.
pub(super) fn entry(manager: &str, operation: &str, fields: &Value) -> Value {
    json!({"manager": manager, "operation": operation, "apiVersion": "v1",
           "fieldsType": "FieldsV1", "fieldsV1": fields})
}

fn set(value: &mut Value, path: &Path, to: Value) {
    let mut at = value;
    for key in path {
        at = &mut at[key];
    }
    *at = to;
}

fn remove(value: &mut Value, path: &Path) {
    let (last, parents) = path.split_last().unwrap();
    let parent = parents.iter().try_fold(value, |at, key| at.get_mut(key));
    if let Some(parent) = parent.and_then(Value::as_object_mut) {
        parent.shift_remove(last);
    }
}

/// Owned paths by operation and manager.
type Owners = Vec<(String, String, BTreeSet<Path>)>;

fn owners(object: &Value) -> Owners {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    object["metadata"]["managedFields"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|entry| {
            let paths = paths_of(&entry["fieldsV1"]);
            (text(&entry["operation"]), text(&entry["manager"]), paths)
        })
        .collect()
}

fn record(object: &mut Value, owners: &Owners) {
    object["metadata"]["managedFields"] = owners
        .iter()
        .filter(|(.., paths)| !paths.is_empty())
        .map(|(operation, manager, paths)| entry(manager, operation, &fields_of(paths.iter())))
        .collect();
}

/// Updates an object as another manager, which then owns the changed fields.
pub(super) fn write(object: &mut Value, manager: &str, body: &Value) {
    let mut owners = owners(object);
    let before = leaves(object);
    let mut mine = BTreeSet::new();
    for (path, value) in leaves(body) {
        if before.get(&path) != Some(&value) {
            set(object, &path, value);
            for (.., paths) in &mut owners {
                paths.remove(&path);
            }
            mine.insert(path);
        }
    }
    owners.push(("Update".to_owned(), manager.to_owned(), mine));
    record(object, &owners);
    object["metadata"]["resourceVersion"] = json!("2");
}

/// Returns the answer to a dry-run apply.
pub(super) fn dry_run(live: &Value, desired: &Value) -> Prediction {
    let desired = leaves(desired);
    let before = leaves(live);
    let mut after = live.clone();
    let mut owners = owners(live);
    let is_ours = |operation: &str, manager: &str| operation == "Apply" && manager == MANAGER;
    let mut conflicts = Vec::new();
    let mut given_up = BTreeSet::new();
    for (operation, manager, paths) in &mut owners {
        if is_ours(operation, manager) {
            given_up = std::mem::take(paths);
            continue;
        }
        paths.retain(|path| {
            let conflict = desired
                .get(path)
                .is_some_and(|desired| before.get(path) != Some(desired));
            if conflict {
                conflicts.push(FieldConflict {
                    manager: manager.clone(),
                    api_version: None,
                    field: format!(".{}", path.join(".")),
                });
            }
            !conflict
        });
    }
    for path in given_up.iter().filter(|path| !desired.contains_key(*path)) {
        if !owners.iter().any(|(.., paths)| paths.contains(path)) {
            remove(&mut after, path);
        }
    }
    for (path, value) in &desired {
        set(&mut after, path, value.clone());
    }
    owners.retain(|(operation, manager, _)| !is_ours(operation, manager));
    let ours = desired.into_keys().collect();
    owners.insert(0, ("Apply".to_owned(), MANAGER.to_owned(), ours));
    record(&mut after, &owners);
    let after = Live::new(after, MANAGER);
    if conflicts.is_empty() {
        Prediction::Answer(after)
    } else {
        Prediction::Conflict {
            fields: conflicts,
            forced: Some(after),
            refused: None,
            immutable: Vec::new(),
        }
    }
}
