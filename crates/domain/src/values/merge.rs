//! Merging layers.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::object::Origin;
use crate::object::yaml::Node;

/// One source of values.
#[derive(Debug, Clone)]
pub struct Layer {
    /// What it is called in messages: `bundle`, `version`, `environment _eu.yaml`, …
    pub name: String,
    /// What it says: a map.
    pub node: Node,
}

/// The layer and place that a value comes from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    /// Name of the layer.
    pub layer: String,
    /// File and line.
    pub place: Origin,
}

/// Merged values with the origin of every leaf.
#[derive(Debug, Clone, PartialEq)]
pub struct Values {
    /// What templates see as `values`: always a map.
    pub merged: Value,
    /// Source of every leaf, by JSON pointer. Leaves are scalars, lists and
    /// empty maps.
    pub origins: BTreeMap<String, Source>,
    /// Files of all layers, also of those that were overridden, in their order.
    pub files: Vec<String>,
}

/// A row of `pleach render --show-values`.
#[derive(Debug, Clone, PartialEq)]
pub struct ValueRow {
    /// Dotted path, such as `image.tag`.
    pub path: String,
    /// The value of the leaf.
    pub value: Value,
    /// Where it comes from.
    pub source: Source,
}

impl Values {
    /// Merges layers, the first one lowest.
    pub fn merge(layers: &[Layer]) -> Self {
        let _ = layers;
        Self {
            merged: Value::Object(serde_json::Map::new()),
            origins: BTreeMap::new(),
            files: Vec::new(),
        }
    }

    /// Every leaf with its source, sorted by path.
    pub fn show(&self) -> Vec<ValueRow> {
        Vec::new()
    }
}
