//! Merges layers of values.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde_json::{Map, Value};

use pleach_model::object::{
    Origin,
    yaml::{Content, Node},
};
use pleach_model::secret_values::SecretValues;

/// A layer of values.
#[derive(Clone)]
pub struct Layer {
    /// Name in messages: `bundle`, `version`, `environment _eu.yaml`, …
    pub name: String,
    /// Content of the layer, a map.
    pub node: Node,
    /// Values that were encrypted.
    pub secrets: SecretValues,
    /// Whether encrypted values are replaced by stand-ins.
    pub has_stand_ins: bool,
}

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never print values, which can be secret.
        f.debug_struct("Layer")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Layer {
    /// Creates a layer of values that are not encrypted.
    pub fn plain(name: String, node: Node) -> Self {
        Self {
            name,
            node,
            secrets: SecretValues::default(),
            has_stand_ins: false,
        }
    }
}

/// Layer and location of a value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    /// Name of the layer.
    pub layer: String,
    /// File and line.
    pub place: Origin,
}

/// Merged values with the source of each leaf.
#[derive(Clone, PartialEq)]
pub struct Values {
    /// Value of the template variable `values`. Always a map.
    pub merged: Value,
    /// Source of each leaf by JSON pointer. Leaves are scalars, lists and empty maps.
    pub origins: BTreeMap<String, Source>,
    /// Files of all layers, including overridden ones, in layer order.
    pub files: Vec<String>,
    /// Values of all layers that were encrypted.
    pub secrets: SecretValues,
    /// Files with encrypted values that are replaced by stand-ins, in layer order.
    pub stand_ins: Vec<String>,
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never print values, which can be secret.
        f.debug_struct("Values")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

/// A row of `pleach render --show-values`.
#[derive(Debug, Clone, PartialEq)]
pub struct ValueRow {
    /// Dotted path, such as `image.tag`.
    pub path: String,
    /// The value of the leaf.
    pub value: Value,
    /// Source of the value.
    pub source: Source,
}

impl Values {
    /// Merges layers in ascending order of precedence. Maps are merged, lists are replaced, null
    /// deletes a value. The result contains no nulls outside of lists.
    pub fn merge(layers: &[Layer]) -> Self {
        let mut merged = Map::new();
        let mut origins = BTreeMap::new();
        let mut files: Vec<String> = Vec::new();
        let mut secrets = SecretValues::default();
        let mut stand_ins = Vec::new();
        for layer in layers {
            secrets.extend(&layer.secrets);
            if layer.has_stand_ins {
                stand_ins.push(layer.node.file.to_string());
            }
            apply(&mut merged, &mut origins, "", layer, &layer.node);
            if !files.iter().any(|file| **file == *layer.node.file) {
                files.push(layer.node.file.to_string());
            }
        }
        Self {
            merged: Value::Object(merged),
            origins,
            files,
            secrets,
            stand_ins,
        }
    }

    /// Returns all leaves with their sources, sorted by path.
    pub fn show(&self) -> Vec<ValueRow> {
        let mut rows: Vec<ValueRow> = self
            .origins
            .iter()
            .filter_map(|(pointer, source)| {
                Some(ValueRow {
                    path: dotted(pointer),
                    value: self.merged.pointer(pointer)?.clone(),
                    source: source.clone(),
                })
            })
            .collect();
        rows.sort_by(|a, b| a.path.cmp(&b.path));
        rows
    }
}

/// Merges a layer into a map.
fn apply(
    below: &mut Map<String, Value>,
    origins: &mut BTreeMap<String, Source>,
    pointer: &str,
    layer: &Layer,
    node: &Node,
) {
    for entry in node.entries() {
        let at = format!(
            "{pointer}/{}",
            entry.key.replace('~', "~0").replace('/', "~1")
        );
        let source = || Source {
            layer: layer.name.clone(),
            place: Origin::new(&*entry.value.file, entry.line),
        };
        match &entry.value.content {
            Content::Scalar(Value::Null) => {
                below.shift_remove(&entry.key);
                forget(origins, &at);
            }
            Content::Map(_) => {
                if !below.get(&entry.key).is_some_and(Value::is_object) {
                    forget(origins, &at);
                    below.insert(entry.key.clone(), Value::Object(Map::new()));
                }
                if let Some(Value::Object(map)) = below.get_mut(&entry.key) {
                    apply(map, origins, &at, layer, &entry.value);
                    if map.is_empty() {
                        origins.entry(at).or_insert_with(source);
                    } else {
                        origins.remove(&at);
                    }
                }
            }
            Content::Scalar(_) | Content::List(_) => {
                below.insert(entry.key.clone(), entry.value.to_value());
                forget(origins, &at);
                origins.insert(at, source());
            }
        }
    }
}

/// Removes the sources of a value and of its descendants.
fn forget(origins: &mut BTreeMap<String, Source>, pointer: &str) {
    origins.remove(pointer);
    let below = format!("{pointer}/");
    let gone: Vec<String> = origins
        .range(below.clone()..)
        .map(|(at, _)| at)
        .take_while(|at| at.starts_with(&below))
        .cloned()
        .collect();
    for at in gone {
        origins.remove(&at);
    }
}

/// Converts a JSON pointer to dotted notation: `/image/tag` becomes `image.tag`.
pub fn dotted(pointer: &str) -> String {
    let mut path = String::new();
    for step in pointer.split('/').skip(1) {
        let key = step.replace("~1", "/").replace("~0", "~");
        if key.is_empty() || key.contains(['.', '/', '[', ' ']) {
            // Writing to a String cannot fail.
            let _ = write!(path, "[{key:?}]");
        } else {
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(&key);
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use pleach_model::object::yaml::{emit, parse_nodes};

    fn layer(name: &str, text: &str) -> Layer {
        let node = parse_nodes(&format!("{name}.yaml"), text)
            .unwrap()
            .remove(0);
        Layer::plain(name.to_owned(), node)
    }

    fn shown(values: &Values) -> Vec<String> {
        values
            .show()
            .into_iter()
            .map(|row| format!("{} = {} ({})", row.path, row.value, row.source.place))
            .collect()
    }

    #[test]
    fn later_layers_win_and_origins_are_recorded() {
        let values = Values::merge(&[
            layer(
                "bundle",
                "image:\n  name: web\n  tag: 1\nports: [80, 443]\nextra: {a: 1}\n",
            ),
            layer("version", "image:\n  tag: 2\n"),
            layer(
                "environment",
                "ports: [8080]\nextra: null\nempty: {}\na.b: x\n",
            ),
        ]);
        assert_eq!(
            values.merged,
            json!({"image": {"name": "web", "tag": 2}, "ports": [8080], "empty": {}, "a.b": "x"})
        );
        assert_eq!(
            shown(&values),
            [
                "[\"a.b\"] = \"x\" (environment.yaml:4)",
                "empty = {} (environment.yaml:3)",
                "image.name = \"web\" (bundle.yaml:2)",
                "image.tag = 2 (version.yaml:2)",
                "ports = [8080] (environment.yaml:1)",
            ]
        );
        assert_eq!(
            values.files,
            ["bundle.yaml", "version.yaml", "environment.yaml"]
        );
    }

    #[test]
    fn maps_replace_scalars_and_scalars_replace_maps() {
        let values = Values::merge(&[
            layer("a", "x: 1\nv: {z: {w: 1}}\n"),
            layer("b", "x: {z: 1}\nv: 2\n"),
        ]);
        assert_eq!(values.merged, json!({"x": {"z": 1}, "v": 2}));
        assert_eq!(shown(&values), ["v = 2 (b.yaml:2)", "x.z = 1 (b.yaml:1)"]);
    }

    #[test]
    fn null_deletes_also_in_new_maps_but_not_in_lists() {
        let values = Values::merge(&[
            layer("a", "x: {w: null, z: 1}\nl: [null]\nonly: {gone: null}\n"),
            layer("b", "x:\n  z: null\n"),
        ]);
        assert_eq!(values.merged, json!({"x": {}, "l": [null], "only": {}}));
        assert_eq!(
            shown(&values),
            [
                "l = [null] (a.yaml:2)",
                "only = {} (a.yaml:3)",
                "x = {} (b.yaml:1)"
            ]
        );
    }

    fn scalar() -> impl Strategy<Value = Value> {
        prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::from),
            prop::collection::vec(any::<i8>().prop_map(Value::from), 0..3).prop_map(Value::from),
        ]
    }

    /// Generates maps with few distinct keys, so that layers overlap. `nulls` also generates
    /// deletions.
    fn map(nulls: bool) -> impl Strategy<Value = Value> {
        let leaf = if nulls {
            prop_oneof![scalar(), Just(Value::Null)].boxed()
        } else {
            scalar().boxed()
        };
        let value = leaf.prop_recursive(3, 24, 4, |inner| {
            prop::collection::vec(("[a-d]", inner), 0..4)
                .prop_map(|entries| Value::Object(entries.into_iter().collect()))
        });
        prop::collection::vec(("[a-d]", value), 0..4)
            .prop_map(|entries| Value::Object(entries.into_iter().collect()))
    }

    /// Generates maps in which a key always or never holds a map.
    ///
    /// A scalar between two maps would separate the upper from the lower map and make the result
    /// depend on the order.
    fn shaped() -> impl Strategy<Value = Value> {
        let empty = Just(json!({}));
        empty.prop_recursive(3, 24, 4, |inner| {
            let entry = prop_oneof![("[ab]", inner), ("[cd]", scalar())];
            prop::collection::vec(entry, 0..4)
                .prop_map(|entries| Value::Object(entries.into_iter().collect()))
        })
    }

    fn merge(layers: &[&Value]) -> Values {
        let layers: Vec<Layer> = layers
            .iter()
            .enumerate()
            .map(|(index, value)| layer(&index.to_string(), &emit(value)))
            .collect();
        Values::merge(&layers)
    }

    fn has_null(value: &Value) -> bool {
        match value {
            Value::Object(map) => map.values().any(has_null),
            value => value.is_null(),
        }
    }

    fn leaves(value: &Value, at: &str, out: &mut Vec<String>) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                for (key, value) in map {
                    leaves(value, &format!("{at}/{key}"), out);
                }
            }
            _ if at.is_empty() => {}
            _ => out.push(at.to_owned()),
        }
    }

    proptest! {
        #[test]
        fn empty_is_neutral(a in map(false)) {
            let empty = json!({});
            prop_assert_eq!(&merge(&[&a, &empty]).merged, &a);
            prop_assert_eq!(&merge(&[&empty, &a]).merged, &a);
        }

        #[test]
        fn twice_is_once(a in map(false)) {
            prop_assert_eq!(&merge(&[&a, &a]).merged, &a);
        }

        #[test]
        fn order_of_merging_does_not_matter_where_shapes_agree(a in shaped(), b in shaped(), c in shaped()) {
            let left = merge(&[&merge(&[&a, &b]).merged, &c]).merged;
            let right = merge(&[&a, &merge(&[&b, &c]).merged]).merged;
            let all = merge(&[&a, &b, &c]).merged;
            prop_assert_eq!(&left, &all);
            prop_assert_eq!(&right, &all);
        }

        #[test]
        fn the_last_layer_wins(a in map(true), b in map(false)) {
            let merged = merge(&[&a, &b]);
            let mut of_last = Vec::new();
            leaves(&b, "", &mut of_last);
            for pointer in of_last {
                let expected = b.pointer(&pointer).unwrap();
                // An empty map is merged into the existing map.
                if expected.is_object() {
                    prop_assert!(merged.merged.pointer(&pointer).unwrap().is_object());
                } else {
                    prop_assert_eq!(merged.merged.pointer(&pointer).unwrap(), expected);
                    prop_assert_eq!(&merged.origins[&pointer].layer, "1");
                }
            }
        }

        #[test]
        fn no_null_is_left_and_every_leaf_has_one_origin(a in map(true), b in map(true), c in map(true)) {
            let merged = merge(&[&a, &b, &c]);
            prop_assert!(!has_null(&merged.merged));
            let mut expected = Vec::new();
            leaves(&merged.merged, "", &mut expected);
            expected.sort();
            let found: Vec<String> = merged.origins.keys().cloned().collect();
            prop_assert_eq!(found, expected);
        }
    }
}
