//! Converts the `OpenAPI` v3 documents of an API server to schemas, for the built-in tables.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::schema::{Merge, Node, SchemaSet, Type};
use crate::object::ApiVersion;

/// Maximum nesting depth of inline schemas.
const MAX_DEPTH: usize = 64;

/// Name of the quantity schema.
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";

/// Error in an `OpenAPI` document.
#[derive(Debug, thiserror::Error)]
pub enum OpenApiError {
    /// A reference has no target, or the nesting is too deep.
    #[error("the schema {0} cannot be resolved")]
    Reference(String),
    /// A served kind has no schema.
    #[error("{0} has no schema")]
    Missing(String),
}

/// Extracts the schemas of some kinds (`group/version`, kind) from documents, including all
/// referenced schemas.
pub(super) fn read<'a>(
    documents: impl IntoIterator<Item = &'a Value>,
    kinds: impl IntoIterator<Item = (ApiVersion, String)>,
) -> Result<SchemaSet, OpenApiError> {
    let mut reader = Reader {
        schemas: BTreeMap::new(),
        named: BTreeMap::new(),
        known: BTreeMap::new(),
        set: SchemaSet::default(),
    };
    let mut roots = BTreeMap::new();
    for document in documents {
        let Some(schemas) = document["components"]["schemas"].as_object() else {
            continue;
        };
        for (name, schema) in schemas {
            // Documents repeat shared schemas. Copies of a few helpers list different kinds, which
            // are irrelevant here.
            if reader.schemas.contains_key(name.as_str()) {
                continue;
            }
            reader.schemas.insert(name, schema);
            for gvk in schema["x-kubernetes-group-version-kind"]
                .as_array()
                .map_or(&[][..], Vec::as_slice)
            {
                let text = |key: &str| gvk[key].as_str().unwrap_or_default().to_owned();
                let version = ApiVersion {
                    group: text("group"),
                    version: text("version"),
                };
                roots.entry((version, text("kind"))).or_insert(&**name);
            }
        }
    }
    for (version, kind) in kinds {
        let key = (version, kind);
        let Some(name) = roots.get(&key) else {
            return Err(OpenApiError::Missing(format!("{} {}", key.0, key.1)));
        };
        let index = reader.named(name)?;
        let (version, kind) = key;
        reader
            .set
            .roots
            .entry(version.to_string())
            .or_default()
            .insert(kind, index);
    }
    Ok(reader.set)
}

struct Reader<'a> {
    schemas: BTreeMap<&'a str, &'a Value>,
    /// Indexes of named schemas that were read or are being read.
    named: BTreeMap<&'a str, u32>,
    /// Indexes of inline schemas, by their content.
    known: BTreeMap<String, u32>,
    set: SchemaSet,
}

impl<'a> Reader<'a> {
    /// Returns a schema by name. The node of a map is added before its fields are read, because the
    /// map can contain itself.
    fn named(&mut self, name: &str) -> Result<u32, OpenApiError> {
        if let Some(index) = self.named.get(name) {
            return Ok(*index);
        }
        let (name, schema) = self.find(name)?;
        if schema["properties"].is_object() {
            let index = self.set.push(Node::default());
            self.named.insert(name, index);
            let node = self.node(schema, 0)?;
            if let Ok(slot) = usize::try_from(index) {
                self.set.nodes[slot] = node;
            }
            return Ok(index);
        }
        let node = self.scalar_or_free(name, schema)?;
        let index = self.set.add(node, &mut self.known);
        self.named.insert(name, index);
        Ok(index)
    }

    fn find(&self, name: &str) -> Result<(&'a str, &'a Value), OpenApiError> {
        self.schemas
            .get_key_value(name)
            .map(|(name, schema)| (*name, *schema))
            .ok_or_else(|| OpenApiError::Reference(name.to_owned()))
    }

    fn scalar_or_free(&mut self, name: &str, schema: &Value) -> Result<Node, OpenApiError> {
        let mut node = self.node(schema, 0)?;
        if name == QUANTITY {
            node.kind = Type::Quantity;
        }
        Ok(node)
    }

    /// Returns a schema at its place of use: a reference, possibly with a default next to it.
    fn used(&mut self, schema: &Value, depth: usize) -> Result<u32, OpenApiError> {
        if depth > MAX_DEPTH {
            return Err(OpenApiError::Reference("nested too deeply".to_owned()));
        }
        let Some(name) = reference(schema) else {
            let node = self.node(schema, depth)?;
            return Ok(self.set.add(node, &mut self.known));
        };
        // All references to structures have an empty map as a default, which is meaningless.
        let default = schema
            .get("default")
            .filter(|default| default.as_object().is_none_or(|map| !map.is_empty()));
        let Some(default) = default else {
            return self.named(name);
        };
        let (name, schema) = self.find(name)?;
        let mut node = self.scalar_or_free(name, schema)?;
        node.default = Some(default.clone());
        Ok(self.set.add(node, &mut self.known))
    }

    fn node(&mut self, schema: &Value, depth: usize) -> Result<Node, OpenApiError> {
        let mut node = Node {
            kind: kind(schema),
            default: schema.get("default").cloned(),
            choices: list(schema, "enum").to_vec(),
            atomic: schema["x-kubernetes-map-type"] == "atomic",
            required: list(schema, "required")
                .iter()
                .filter_map(|name| name.as_str().map(str::to_owned))
                .collect(),
            ..Node::default()
        };
        match node.kind {
            Type::Object => {
                let empty = Map::new();
                for (name, field) in schema["properties"].as_object().unwrap_or(&empty) {
                    let index = self.used(field, depth + 1)?;
                    node.fields.insert(name.clone(), index);
                }
                if let Some(values) = schema.get("additionalProperties").filter(|v| v.is_object()) {
                    node.values = Some(self.used(values, depth + 1)?);
                }
                // Types such as RawExtension have content outside of the Kubernetes API.
                node.open = node.fields.is_empty() && node.values.is_none();
            }
            Type::List => {
                if let Some(items) = schema.get("items") {
                    node.items = Some(self.used(items, depth + 1)?);
                }
                node.merge = merge(schema);
            }
            _ => {}
        }
        Ok(node)
    }
}

fn list<'a>(schema: &'a Value, key: &str) -> &'a [Value] {
    schema
        .get(key)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// Returns the name that a schema refers to, directly or as its only `allOf`.
fn reference(schema: &Value) -> Option<&str> {
    let target = schema.get("$ref").or_else(|| match list(schema, "allOf") {
        [only] => only.get("$ref"),
        _ => None,
    })?;
    target.as_str()?.strip_prefix("#/components/schemas/")
}

fn kind(schema: &Value) -> Type {
    let text = |key: &str| schema.get(key).and_then(Value::as_str).unwrap_or_default();
    match (text("type"), text("format")) {
        (_, "int-or-string") => Type::IntOrString,
        ("object", _) => Type::Object,
        ("array", _) => Type::List,
        ("string", "byte") => Type::Bytes,
        ("string", "date-time") => Type::Time,
        ("string", _) => Type::String,
        ("integer", _) => Type::Integer,
        ("number", _) => Type::Number,
        ("boolean", _) => Type::Boolean,
        _ => Type::Any,
    }
}

/// Returns the merge strategy of a list.
pub(super) fn merge(schema: &Value) -> Option<Merge> {
    match schema.get("x-kubernetes-list-type")?.as_str()? {
        "set" => Some(Merge::Set),
        "map" => Some(Merge::Map(
            list(schema, "x-kubernetes-list-map-keys")
                .iter()
                .filter_map(|key| key.as_str().map(str::to_owned))
                .collect(),
        )),
        _ => None,
    }
}
