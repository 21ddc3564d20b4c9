//! Labels and annotations that a node has while it is changed.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::file::NodePatch;

/// Ends of the prefixes of keys that belong to Kubernetes, kubelets or pleach.
const RESERVED: [&str; 3] = ["kubernetes.io", "k8s.io", "pleach.dev"];

/// Values of a patch of labels and annotations. Keys are `labels/KEY` and `annotations/KEY`; a value
/// of `None` removes the key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MetadataPatch(BTreeMap<String, Option<String>>);

impl MetadataPatch {
    /// Reads a declared patch. The error names the first key that no bundle may change.
    pub fn of(declared: &NodePatch) -> Result<Self, String> {
        let metadata = &declared.metadata;
        let maps = [
            ("labels", &metadata.labels),
            ("annotations", &metadata.annotations),
        ];
        let mut values = BTreeMap::new();
        for (name, map) in maps {
            for (key, value) in map.iter().flatten() {
                if is_reserved(key) {
                    return Err(format!("{name} `{key}` belong to Kubernetes or pleach"));
                }
                values.insert(format!("{name}/{key}"), value.clone());
            }
        }
        if values.is_empty() {
            return Err("the patch changes nothing".to_owned());
        }
        Ok(Self(values))
    }

    /// Returns the values of a node that this patch replaces. Empty if the node has all values of
    /// this patch already.
    pub fn replaces(&self, node: &Value) -> Replaced {
        let all = self.0.iter().map(|(path, set)| {
            let was = read(node, path);
            let set = set.clone();
            (path.clone(), Replacement { was, set })
        });
        Replaced(all.filter(|(_, one)| one.was != one.set).collect())
    }

    /// Adds the values to a merge patch of a node.
    pub fn add_to(&self, patch: &mut Value) {
        for (path, value) in &self.0 {
            add(patch, path, value.as_ref());
        }
    }

    /// Returns whether it changes one of these labels.
    pub fn changes_label(&self, key: &str) -> bool {
        self.0.contains_key(&format!("labels/{key}"))
    }
}

/// Values of labels and annotations that a patch replaced on a node, by `labels/KEY` or
/// `annotations/KEY`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Replaced(BTreeMap<String, Replacement>);

/// A replaced value. `None`: there was, or is, no such key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Replacement {
    was: Option<String>,
    set: Option<String>,
}

impl Replaced {
    /// Adds newer replacements. The first value of a key is the one to restore.
    pub fn add(&mut self, newer: Self) {
        for (path, one) in newer.0 {
            let known = self.0.entry(path).or_insert_with(|| Replacement {
                was: one.was,
                set: None,
            });
            known.set = one.set;
        }
    }

    /// Adds the values to restore to a merge patch of a node: of keys that a bundle declares, as far
    /// as the node still has the value that was set.
    pub fn restore(&self, declared: &[&MetadataPatch], node: &Value, patch: &mut Value) {
        for (path, one) in &self.0 {
            let is_declared = declared.iter().any(|patch| patch.0.contains_key(path));
            if is_declared && read(node, path) == one.set {
                add(patch, path, one.was.as_ref());
            }
        }
    }

    /// Returns whether nothing was replaced.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn add(patch: &mut Value, path: &str, value: Option<&String>) {
    let Some((map, key)) = path.split_once('/') else {
        return;
    };
    let map = &mut patch["metadata"][map];
    if !map.is_object() {
        *map = Value::Object(Map::new());
    }
    map[key] = value.cloned().map_or(Value::Null, Value::String);
}

/// Formats the changed keys.
impl fmt::Display for MetadataPatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&str> = self.0.keys().map(String::as_str).collect();
        f.write_str(&keys.join(" "))
    }
}

/// Returns whether a key of a label or annotation belongs to Kubernetes or pleach.
pub fn is_reserved(key: &str) -> bool {
    let Some((prefix, _)) = key.split_once('/') else {
        return false;
    };
    let mut reserved = RESERVED.into_iter();
    reserved.any(|domain| {
        let start = prefix.strip_suffix(domain);
        start.is_some_and(|start| start.is_empty() || start.ends_with('.'))
    })
}

fn read(node: &Value, path: &str) -> Option<String> {
    let (map, key) = path.split_once('/')?;
    node["metadata"][map][key].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn declared(patch: Value) -> Result<MetadataPatch, String> {
        MetadataPatch::of(&serde_json::from_value(patch).unwrap())
    }

    #[test]
    fn keys_of_kubernetes_and_an_empty_patch_are_refused() {
        for key in [
            "kubernetes.io/os",
            "node-role.kubernetes.io/control-plane",
            "topology.k8s.io/zone",
            "pleach.dev/node-upgrade",
        ] {
            let error = declared(json!({"metadata": {"labels": {key: "x"}}})).unwrap_err();
            assert!(error.contains(key), "{error}");
        }
        assert!(declared(json!({"metadata": {}})).is_err());
        assert!(declared(json!({"metadata": {"labels": {"notkubernetes.io/a": "b"}}})).is_ok());
    }

    #[test]
    fn replaced_values_are_restored_unless_another_client_changed_them() {
        let patch = declared(json!({"metadata": {"labels": {"a": "1", "gone": null},
            "annotations": {"b": "2"}}}))
        .unwrap();
        let before = json!({"metadata": {"labels": {"a": "0", "gone": "x"}}});
        let mut replaced = patch.replaces(&before);
        let mut node = before.clone();
        let mut set = json!({});
        patch.add_to(&mut set);
        json_patch::merge(&mut node, &set);
        assert_eq!(
            node,
            json!({"metadata": {"labels": {"a": "1"}, "annotations": {"b": "2"}}})
        );
        assert!(patch.replaces(&node).is_empty());
        let restored = |replaced: &Replaced, node: &Value, declared: &[&MetadataPatch]| {
            let mut restored = json!({});
            replaced.restore(declared, node, &mut restored);
            restored
        };
        let mut changed = node.clone();
        changed["metadata"]["labels"]["a"] = json!("9");
        assert_eq!(
            restored(&replaced, &changed, &[&patch]),
            json!({"metadata": {"labels": {"gone": "x"}, "annotations": {"b": null}}})
        );
        assert_eq!(restored(&replaced, &node, &[]), json!({}));

        // Another value in git meanwhile.
        let newer = declared(json!({"metadata": {"labels": {"a": "2"}}})).unwrap();
        assert_eq!(
            restored(&replaced, &node, &[&newer]),
            json!({"metadata": {"labels": {"a": "0"}}})
        );
        replaced.add(newer.replaces(&node));
        node["metadata"]["labels"]["a"] = json!("2");
        assert_eq!(
            restored(&replaced, &node, &[&newer]),
            json!({"metadata": {"labels": {"a": "0"}}})
        );
    }
}
