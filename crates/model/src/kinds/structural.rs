//! Converts structural schemas of CRDs to [`Schema`]s, for custom resources that an environment
//! ships.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::openapi::merge;
use super::schema::{Node, Schema, SchemaSet, Type};
use super::{KindTable, Scope};
use crate::object::{ApiVersion, GroupKind, Gvk, Manifest};

/// Maximum nesting depth of a schema. It equals the limit for reading YAML and JSON.
const MAX_DEPTH: usize = 128;

/// CRDs that an environment ships. Their schemas are parsed on first use.
#[derive(Debug, Clone, Default)]
pub struct Crds {
    kinds: BTreeMap<GroupKind, Crd>,
}

#[derive(Debug, Clone)]
struct Crd {
    scope: Scope,
    /// Served versions in the order of the CRD.
    versions: Vec<String>,
    json: Bytes,
    schemas: OnceLock<SchemaSet>,
}

/// The part of a CRD without schemas.
#[derive(Deserialize)]
struct Head {
    spec: HeadSpec,
}

#[derive(Deserialize)]
struct HeadSpec {
    group: String,
    scope: Option<String>,
    names: HeadNames,
    versions: Vec<HeadVersion>,
}

#[derive(Deserialize)]
struct HeadNames {
    kind: String,
}

#[derive(Deserialize)]
struct HeadVersion {
    name: String,
    #[serde(default)]
    served: bool,
}

impl Crds {
    /// Extracts the CRDs from manifests.
    pub fn of<'a>(manifests: impl IntoIterator<Item = &'a Manifest>) -> Self {
        let mut kinds = BTreeMap::new();
        for manifest in manifests {
            if !manifest
                .id()
                .is("apiextensions.k8s.io", "CustomResourceDefinition")
            {
                continue;
            }
            // A CRD without these fields is invalid and defines no kind.
            let Ok(Head { spec }) = serde_json::from_slice(manifest.json()) else {
                continue;
            };
            kinds.insert(
                GroupKind::new(spec.group, spec.names.kind),
                Crd {
                    scope: match spec.scope.as_deref() {
                        Some("Cluster") => Scope::Cluster,
                        _ => Scope::Namespaced,
                    },
                    versions: spec
                        .versions
                        .into_iter()
                        .filter(|version| version.served)
                        .map(|version| version.name)
                        .collect(),
                    json: manifest.json().clone(),
                    schemas: OnceLock::new(),
                },
            );
        }
        Self { kinds }
    }

    /// Returns the schema of a kind at a version. `None` if no CRD serves it.
    pub fn schema(&self, gvk: &Gvk) -> Option<Schema<'_>> {
        let crd = self.kinds.get(&gvk.group_kind())?;
        if !crd.versions.contains(&gvk.api_version.version) {
            return None;
        }
        crd.schemas.get_or_init(|| read(&crd.json)).schema(gvk)
    }

    /// Returns the scope of a kind. `None` if no CRD defines it.
    pub fn scope(&self, kind: &GroupKind) -> Option<Scope> {
        self.kinds.get(kind).map(|crd| crd.scope)
    }

    /// Returns the served versions of a kind.
    pub fn versions(&self, kind: &GroupKind) -> &[String] {
        self.kinds.get(kind).map_or(&[], |crd| &crd.versions)
    }

    /// Returns the defined kinds in sorted order.
    pub fn kinds(&self) -> impl Iterator<Item = &GroupKind> {
        self.kinds.keys()
    }
}

/// All kinds that an environment can use: built-in kinds and kinds of its CRDs.
#[derive(Debug, Clone, Copy)]
pub struct Catalog<'a> {
    /// Built-in kinds of Kubernetes.
    pub table: &'a KindTable,
    /// Kinds of the CRDs.
    pub crds: &'a Crds,
}

impl<'a> Catalog<'a> {
    /// Returns the schema of a kind at a version.
    pub fn schema(self, gvk: &Gvk) -> Option<Schema<'a>> {
        self.crds.schema(gvk).or_else(|| self.table.schema(gvk))
    }
}

/// Parses the schemas of all versions of a CRD.
fn read(json: &[u8]) -> SchemaSet {
    let mut set = SchemaSet::default();
    let crd: Value = serde_json::from_slice(json).unwrap_or_default();
    let spec = &crd["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut reader = Reader {
        known: BTreeMap::new(),
        set: &mut set,
    };
    let metadata = metadata();
    for version in spec["versions"].as_array().into_iter().flatten() {
        let schema = &version["schema"]["openAPIV3Schema"];
        if !schema.is_object() {
            continue;
        }
        let mut root = reader.node(schema, 0);
        reader.add_object_fields(&mut root, &metadata);
        let root = reader.add(root);
        let version = ApiVersion {
            group: text(&spec["group"]),
            version: text(&version["name"]),
        };
        reader
            .set
            .roots
            .entry(version.to_string())
            .or_default()
            .insert(text(&spec["names"]["kind"]), root);
    }
    set
}

struct Reader<'a> {
    known: BTreeMap<String, u32>,
    set: &'a mut SchemaSet,
}

impl Reader<'_> {
    fn add(&mut self, node: Node) -> u32 {
        self.set.add(node, &mut self.known)
    }

    fn child(&mut self, schema: &Value, depth: usize) -> u32 {
        let node = if depth > MAX_DEPTH {
            Node::default()
        } else {
            stacker::maybe_grow(64 * 1024, 1024 * 1024, || self.node(schema, depth))
        };
        self.add(node)
    }

    fn node(&mut self, schema: &Value, depth: usize) -> Node {
        let list = |key: &str| {
            schema
                .get(key)
                .and_then(Value::as_array)
                .map_or(&[][..], Vec::as_slice)
        };
        let flag = |key: &str| schema.get(key) == Some(&Value::Bool(true));
        let mut node = Node {
            kind: kind(schema),
            default: schema.get("default").cloned(),
            choices: list("enum").to_vec(),
            nullable: flag("nullable"),
            open: flag("x-kubernetes-preserve-unknown-fields"),
            atomic: schema["x-kubernetes-map-type"] == "atomic",
            required: list("required")
                .iter()
                .filter_map(|name| name.as_str().map(str::to_owned))
                .collect(),
            ..Node::default()
        };
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let index = self.child(field, depth + 1);
            node.fields.insert(name.clone(), index);
        }
        match schema.get("additionalProperties") {
            Some(values @ Value::Object(_)) => {
                node.values = Some(self.child(values, depth + 1));
            }
            Some(Value::Bool(true)) => node.open = true,
            _ => {}
        }
        if let Some(items) = schema.get("items") {
            node.items = Some(self.child(items, depth + 1));
            node.merge = merge(schema);
        }
        if flag("x-kubernetes-embedded-resource") {
            let metadata = metadata();
            self.add_object_fields(&mut node, &metadata);
        }
        node
    }

    /// Adds the fields that all objects have, regardless of their schema.
    fn add_object_fields(&mut self, node: &mut Node, metadata: &Value) {
        let metadata = self.child(metadata, 0);
        let text = self.add(Node {
            kind: Type::String,
            ..Node::default()
        });
        node.kind = Type::Object;
        node.fields.insert("metadata".to_owned(), metadata);
        for name in ["apiVersion", "kind"] {
            node.fields.insert(name.to_owned(), text);
        }
    }
}

fn kind(schema: &Value) -> Type {
    // Pattern that controller-gen generates for quantities.
    let is_quantity = schema["pattern"]
        .as_str()
        .is_some_and(|pattern| pattern.starts_with(r"^(\+|-)?(([0-9]+(\.[0-9]*)?)"));
    let either = schema["x-kubernetes-int-or-string"] == true;
    let text = |key: &str| schema.get(key).and_then(Value::as_str).unwrap_or_default();
    match (text("type"), text("format")) {
        _ if either && is_quantity => Type::Quantity,
        _ if either => Type::IntOrString,
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

/// Returns the schema of object metadata, which CRDs do not contain.
fn metadata() -> Value {
    let text = json!({"type": "string"});
    let texts = json!({"type": "object", "additionalProperties": text});
    json!({
        "type": "object",
        "properties": {
            "name": text, "generateName": text, "namespace": text, "selfLink": text, "uid": text,
            "resourceVersion": text, "generation": {"type": "integer"},
            "creationTimestamp": {"type": "string", "format": "date-time"},
            "deletionTimestamp": {"type": "string", "format": "date-time"},
            "deletionGracePeriodSeconds": {"type": "integer"},
            "labels": texts, "annotations": texts,
            "finalizers": {"type": "array", "items": text, "x-kubernetes-list-type": "set"},
            "ownerReferences": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["uid"],
                "items": {
                    "type": "object",
                    "x-kubernetes-map-type": "atomic",
                    "properties": {
                        "apiVersion": text, "kind": text, "name": text, "uid": text,
                        "controller": {"type": "boolean"}, "blockOwnerDeletion": {"type": "boolean"},
                    },
                },
            },
            "managedFields": {
                "type": "array",
                "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            },
        },
    })
}
