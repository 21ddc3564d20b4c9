//! Schemas of kinds, from built-in tables and from CRDs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::object::Gvk;

/// Type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Type {
    /// Any value.
    #[default]
    Any,
    /// A map with named fields, with uniform values, or with arbitrary content.
    #[serde(rename = "o")]
    Object,
    /// A list.
    #[serde(rename = "l")]
    List,
    /// A string.
    #[serde(rename = "s")]
    String,
    /// An integer.
    #[serde(rename = "i")]
    Integer,
    /// A number.
    #[serde(rename = "n")]
    Number,
    /// A Boolean.
    #[serde(rename = "b")]
    Boolean,
    /// An integer or a string.
    #[serde(rename = "is")]
    IntOrString,
    /// A quantity such as `100m` or `2Gi`, as a string or number.
    #[serde(rename = "q")]
    Quantity,
    /// Base64-encoded bytes.
    #[serde(rename = "by")]
    Bytes,
    /// An RFC 3339 timestamp.
    #[serde(rename = "t")]
    Time,
}

/// Merge strategy of a list in server-side apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListKind<'a> {
    /// The list is replaced as a whole.
    Atomic,
    /// The items are scalars and identify themselves.
    Set,
    /// These fields identify the items.
    Map(&'a [String]),
}

/// Merge strategy of a list in its stored form. Absent for atomic lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Merge {
    Set,
    Map(Vec<String>),
}

/// Schema of one value. Children are indexes into the set.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Node {
    #[serde(rename = "t", skip_serializing_if = "is_default")]
    pub(super) kind: Type,
    #[serde(rename = "f", skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) fields: BTreeMap<String, u32>,
    #[serde(rename = "r", skip_serializing_if = "Vec::is_empty")]
    pub(super) required: Vec<String>,
    #[serde(rename = "i", skip_serializing_if = "Option::is_none")]
    pub(super) items: Option<u32>,
    #[serde(rename = "v", skip_serializing_if = "Option::is_none")]
    pub(super) values: Option<u32>,
    #[serde(rename = "m", skip_serializing_if = "Option::is_none")]
    pub(super) merge: Option<Merge>,
    /// The map is owned as a whole.
    #[serde(rename = "a", skip_serializing_if = "is_default")]
    pub(super) atomic: bool,
    /// Unknown fields are preserved.
    #[serde(rename = "o", skip_serializing_if = "is_default")]
    pub(super) open: bool,
    #[serde(rename = "z", skip_serializing_if = "is_default")]
    pub(super) nullable: bool,
    #[serde(rename = "d", skip_serializing_if = "Option::is_none")]
    pub(super) default: Option<Value>,
    #[serde(rename = "e", skip_serializing_if = "Vec::is_empty")]
    pub(super) choices: Vec<Value>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A set of schemas that share nodes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SchemaSet {
    pub(super) nodes: Vec<Node>,
    /// Root nodes by `group/version`, then by kind.
    pub(super) roots: BTreeMap<String, BTreeMap<String, u32>>,
}

impl SchemaSet {
    pub(super) fn schema(&self, gvk: &Gvk) -> Option<Schema<'_>> {
        let root = *self
            .roots
            .get(&gvk.api_version.to_string())?
            .get(&gvk.kind)?;
        self.at(root)
    }

    fn at(&self, index: u32) -> Option<Schema<'_>> {
        let node = self.nodes.get(usize::try_from(index).ok()?)?;
        Some(Schema { set: self, node })
    }

    /// Adds a node or returns the index of an equal one.
    pub(super) fn add(&mut self, node: Node, known: &mut BTreeMap<String, u32>) -> u32 {
        // Serialization of a node cannot fail.
        let key = serde_json::to_string(&node).unwrap_or_default();
        *known.entry(key).or_insert_with(|| self.push(node))
    }

    pub(super) fn push(&mut self, node: Node) -> u32 {
        self.nodes.push(node);
        u32::try_from(self.nodes.len() - 1).unwrap_or(u32::MAX)
    }
}

/// Schema of a kind or of one of its fields.
///
/// ```
/// use pleach_model::kinds::{KindTable, ListKind, Type};
/// use pleach_model::object::Gvk;
///
/// let table = KindTable::for_minor("1.36").expect("built in");
/// let service = table.schema(&Gvk::new("v1", "Service")).expect("known");
/// let ports = service.field("spec").and_then(|spec| spec.field("ports")).expect("known");
/// let ListKind::Map(keys) = ports.list() else { panic!("a list of maps") };
/// assert_eq!(keys, ["port", "protocol"]);
/// let protocol = ports.items().and_then(|port| port.field("protocol")).expect("known");
/// assert_eq!(protocol.kind(), Type::String);
/// assert_eq!(protocol.default(), Some(&"TCP".into()));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Schema<'a> {
    set: &'a SchemaSet,
    node: &'a Node,
}

impl<'a> Schema<'a> {
    /// Returns the type of the value.
    pub fn kind(self) -> Type {
        self.node.kind
    }

    /// Returns a field of a map. `None` if the schema does not name it.
    pub fn field(self, name: &str) -> Option<Self> {
        self.set.at(*self.node.fields.get(name)?)
    }

    /// Returns the field names of a map in sorted order.
    pub fn fields(self) -> impl Iterator<Item = &'a str> {
        self.node.fields.keys().map(String::as_str)
    }

    /// Returns the required fields of a map. Only CRDs declare them reliably.
    pub fn required(self) -> &'a [String] {
        &self.node.required
    }

    /// Returns the schema of list items.
    pub fn items(self) -> Option<Self> {
        self.set.at(self.node.items?)
    }

    /// Returns the schema of the values in a map with arbitrary keys.
    pub fn values(self) -> Option<Self> {
        self.set.at(self.node.values?)
    }

    /// Returns the merge strategy of a list. Atomic for any other type.
    pub fn list(self) -> ListKind<'a> {
        match &self.node.merge {
            None => ListKind::Atomic,
            Some(Merge::Set) => ListKind::Set,
            Some(Merge::Map(keys)) => ListKind::Map(keys),
        }
    }

    /// Returns whether a map is owned as a whole, like an atomic list.
    pub fn is_atomic_map(self) -> bool {
        self.node.atomic
    }

    /// Returns whether the value is a quantity, for which `1000m` equals `1`.
    pub fn is_quantity(self) -> bool {
        self.node.kind == Type::Quantity
    }

    /// Returns whether fields that the schema does not name are preserved.
    pub fn preserves_unknown(self) -> bool {
        self.node.open || self.node.kind == Type::Any
    }

    /// Returns the default that the server fills in for an absent value.
    pub fn default(self) -> Option<&'a Value> {
        self.node.default.as_ref()
    }

    /// Returns the allowed values. Empty if all values are allowed.
    pub fn choices(self) -> &'a [Value] {
        &self.node.choices
    }

    /// Returns the path to the nearest map below this value that has a field.
    ///
    /// The search descends into list items. The status is skipped, because only controllers write
    /// it.
    pub fn holder_of(self, field: &str) -> Option<Vec<&'a str>> {
        let mut seen = BTreeSet::new();
        let mut queue = VecDeque::from([(self, Vec::new())]);
        while let Some((schema, path)) = queue.pop_front() {
            for (name, index) in &schema.node.fields {
                if name == "status" || !seen.insert(*index) {
                    continue;
                }
                let Some(inner) = self.set.at(*index) else {
                    continue;
                };
                let inner = inner.items().unwrap_or(inner);
                let mut path = path.clone();
                path.push(name.as_str());
                if inner.field(field).is_some() {
                    return Some(path);
                }
                queue.push_back((inner, path));
            }
        }
        None
    }

    /// Returns the schema at a path below this one. A step is a field name, or any text for list
    /// items and for values of maps with arbitrary keys.
    pub fn at<'p>(self, path: impl IntoIterator<Item = &'p str>) -> Option<Self> {
        path.into_iter().try_fold(self, |schema, step| {
            schema
                .field(step)
                .or_else(|| schema.items())
                .or_else(|| schema.values())
        })
    }
}
