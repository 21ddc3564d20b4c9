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

    /// Returns the patch that restores the values of a node, and `None` if the node has all values
    /// of this patch already.
    pub fn inverse(&self, node: &Value) -> Option<Self> {
        let differs = |(path, value): &(&String, &Option<String>)| read(node, path) != **value;
        let changed = self.0.iter().filter(differs);
        let former: BTreeMap<String, Option<String>> = changed
            .map(|(path, _)| (path.clone(), read(node, path)))
            .collect();
        (!former.is_empty()).then_some(Self(former))
    }

    /// Adds the values to a merge patch of a node.
    pub fn add_to(&self, patch: &mut Value) {
        for (path, value) in &self.0 {
            let Some((map, key)) = path.split_once('/') else {
                continue;
            };
            let map = &mut patch["metadata"][map];
            if !map.is_object() {
                *map = Value::Object(Map::new());
            }
            map[key] = value.clone().map_or(Value::Null, Value::String);
        }
    }

    /// Returns the values of this patch that restore what `declared` set, as far as the node still
    /// has the declared values. Others belong to somebody else by now.
    #[must_use]
    pub fn restoring(&self, declared: &Self, node: &Value) -> Self {
        let is_ours = |path: &String| {
            let set = declared.0.get(path);
            set.is_some_and(|set| read(node, path) == *set)
        };
        let former = self.0.iter().filter(|(path, _)| is_ours(path));
        Self(
            former
                .map(|(path, value)| (path.clone(), value.clone()))
                .collect(),
        )
    }

    /// Adds former values; earlier ones win.
    pub fn remember(&mut self, former: Self) {
        for (path, value) in former.0 {
            self.0.entry(path).or_insert(value);
        }
    }

    /// Returns whether it has no values.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Formats the changed keys.
impl fmt::Display for MetadataPatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&str> = self.0.keys().map(String::as_str).collect();
        f.write_str(&keys.join(" "))
    }
}

fn is_reserved(key: &str) -> bool {
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
    fn former_values_are_restored_unless_somebody_changed_them() {
        let patch = declared(json!({"metadata": {"labels": {"a": "1", "gone": null},
            "annotations": {"b": "2"}}}))
        .unwrap();
        let before = json!({"metadata": {"labels": {"a": "0", "gone": "x"}}});
        let former = patch.inverse(&before).unwrap();
        let mut node = before.clone();
        let mut set = json!({});
        patch.add_to(&mut set);
        json_patch::merge(&mut node, &set);
        assert_eq!(
            node,
            json!({"metadata": {"labels": {"a": "1"}, "annotations": {"b": "2"}}})
        );
        assert_eq!(patch.inverse(&node), None);
        node["metadata"]["labels"]["a"] = json!("9");
        let mut restored = json!({});
        former.restoring(&patch, &node).add_to(&mut restored);
        assert_eq!(
            restored,
            json!({"metadata": {"labels": {"gone": "x"}, "annotations": {"b": null}}})
        );
    }
}
