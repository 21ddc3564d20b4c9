//! What the fields of a kind hold, from built-in tables and from definitions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::object::Gvk;

/// What a value may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Type {
    /// Anything.
    #[default]
    Any,
    /// A map: with fields, with values of one kind, or with anything.
    #[serde(rename = "o")]
    Object,
    /// A list.
    #[serde(rename = "l")]
    List,
    /// A text.
    #[serde(rename = "s")]
    String,
    /// A whole number.
    #[serde(rename = "i")]
    Integer,
    /// A number.
    #[serde(rename = "n")]
    Number,
    /// True or false.
    #[serde(rename = "b")]
    Boolean,
    /// A whole number or a text.
    #[serde(rename = "is")]
    IntOrString,
    /// An amount such as `100m` or `2Gi`, as text or number.
    #[serde(rename = "q")]
    Quantity,
    /// Bytes as base64.
    #[serde(rename = "by")]
    Bytes,
    /// A time, RFC 3339.
    #[serde(rename = "t")]
    Time,
}

/// How a list is merged by server-side apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListKind<'a> {
    /// As a whole.
    Atomic,
    /// By the items themselves, which are scalars.
    Set,
    /// By these fields of the items.
    Map(&'a [String]),
}

/// How a list is merged, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Merge {
    Set,
    Map(Vec<String>),
}

/// The schema of one value; children are indices into the set.
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
    /// A map that is owned as a whole.
    #[serde(rename = "a", skip_serializing_if = "is_default")]
    pub(super) atomic: bool,
    /// Fields that are not named are kept.
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

/// Schemas that share their parts.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SchemaSet {
    pub(super) nodes: Vec<Node>,
    /// By `group/version`, then by kind.
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

    /// Adds a node, or finds the same one.
    pub(super) fn add(&mut self, node: Node, known: &mut BTreeMap<String, u32>) -> u32 {
        // A node that cannot be written cannot be compared either.
        let key = serde_json::to_string(&node).unwrap_or_default();
        *known.entry(key).or_insert_with(|| self.push(node))
    }

    /// Adds a node.
    pub(super) fn push(&mut self, node: Node) -> u32 {
        self.nodes.push(node);
        u32::try_from(self.nodes.len() - 1).unwrap_or(u32::MAX)
    }
}

/// What a value of a kind, or of one of its fields, may be.
///
/// ```
/// use pleach_domain::kinds::{KindTable, ListKind, Type};
/// use pleach_domain::object::Gvk;
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
    /// What the value is.
    pub fn kind(self) -> Type {
        self.node.kind
    }

    /// A field of a map; none when the schema does not name it.
    pub fn field(self, name: &str) -> Option<Self> {
        self.set.at(*self.node.fields.get(name)?)
    }

    /// The names of the fields of a map, sorted.
    pub fn fields(self) -> impl Iterator<Item = &'a str> {
        self.node.fields.keys().map(String::as_str)
    }

    /// The fields that a map must have. Only definitions say so reliably.
    pub fn required(self) -> &'a [String] {
        &self.node.required
    }

    /// The items of a list.
    pub fn items(self) -> Option<Self> {
        self.set.at(self.node.items?)
    }

    /// The values of a map whose keys are free.
    pub fn values(self) -> Option<Self> {
        self.set.at(self.node.values?)
    }

    /// How a list is merged; atomic for everything that is no list.
    pub fn list(self) -> ListKind<'a> {
        match &self.node.merge {
            None => ListKind::Atomic,
            Some(Merge::Set) => ListKind::Set,
            Some(Merge::Map(keys)) => ListKind::Map(keys),
        }
    }

    /// Whether a map is owned as a whole, as a list without keys is.
    pub fn is_atomic_map(self) -> bool {
        self.node.atomic
    }

    /// Whether the value is an amount: `1000m` and `1` are the same.
    pub fn is_quantity(self) -> bool {
        self.node.kind == Type::Quantity
    }

    /// Whether fields that the schema does not name are kept.
    pub fn preserves_unknown(self) -> bool {
        self.node.open || self.node.kind == Type::Any
    }

    /// What the server fills in when the value is absent.
    pub fn default(self) -> Option<&'a Value> {
        self.node.default.as_ref()
    }

    /// The only values that are allowed; empty when there is no such list.
    pub fn choices(self) -> &'a [Value] {
        &self.node.choices
    }

    /// The path of the map that has a field, where this value itself has not:
    /// the nearest one, through lists. What only the server writes is left out.
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

    /// The schema below this one at a path of field names and, for items of
    /// lists and values of free maps, anything.
    pub fn at<'p>(self, path: impl IntoIterator<Item = &'p str>) -> Option<Self> {
        path.into_iter().try_fold(self, |schema, step| {
            schema
                .field(step)
                .or_else(|| schema.items())
                .or_else(|| schema.values())
        })
    }
}
