//! Built-in kinds and schemas of Kubernetes minors, available without a cluster.
//!
//! `make schemas` writes the tables. They are checked in compressed, in two files per minor (kinds
//! and schemas). The newest table comes from a real API server with default flags: from its
//! aggregated discovery and its `OpenAPI` v3 documents. Older tables come from the documents that
//! Kubernetes publishes with its source. Schemas are decoded on first use, once per process.
//!
//! The tables only contain built-in kinds. Custom resources come from the CRDs of the environment's
//! releases ([`Crds`], with the same [`Schema`]). [`Catalog`] combines both. The planner
//! compares this data with the API that the cluster actually serves.

mod history;
mod openapi;
mod schema;
mod structural;
mod tables;

pub use history::History;
pub use openapi::OpenApiError;
pub use schema::{ListKind, Schema, Type};
pub use structural::{Catalog, Crds};

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::sync::Arc;

use flate2::read::GzDecoder;
use flate2::{Compression, GzBuilder};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::discovery::Discovery;
use crate::finding::{Finding, Kind};
use crate::object::{ApiVersion, GroupKind, Gvk};
use schema::SchemaSet;
use tables::{BuiltIn, TABLES};

/// Groups of older Kubernetes versions that no table contains. Without this list they would pass as
/// groups of unknown custom resources.
const REMOVED_GROUPS: [&str; 1] = ["extensions"];

/// Scope of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Scope {
    /// The objects are in namespaces.
    Namespaced,
    /// The objects are cluster-scoped.
    Cluster,
}

/// Error from reading a kind table.
#[derive(Debug, thiserror::Error)]
pub enum KindTableError {
    /// The bytes are not gzip.
    #[error("failed to decompress a kind table")]
    Decompress(#[source] io::Error),
    /// The content is not a kind table.
    #[error("failed to parse a kind table")]
    Parse(#[source] serde_json::Error),
}

/// The built-in kinds of one Kubernetes minor.
///
/// ```
/// use pleach_model::object::GroupKind;
/// use pleach_model::kinds::{KindTable, Scope};
///
/// let table = KindTable::for_minor("1.36").expect("checked in");
/// let deployment = GroupKind::new("apps", "Deployment");
/// assert_eq!(table.scope(&deployment), Some(Scope::Namespaced));
/// assert_eq!(table.versions(&deployment), ["v1"]);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KindTable {
    minor: String,
    /// Kinds by group, then by name. The core group is empty.
    groups: BTreeMap<String, BTreeMap<String, KindEntry>>,
    #[serde(skip)]
    schemas: Source,
}

/// Source of a table's schemas.
#[derive(Debug, Clone, Default)]
enum Source {
    /// No schemas.
    #[default]
    None,
    /// Embedded in the program. Decoded on first use.
    BuiltIn(&'static BuiltIn),
    /// Read from documents.
    Read(Arc<SchemaSet>),
}

impl Source {
    fn set(&self) -> Option<&SchemaSet> {
        match self {
            Self::None => None,
            Self::BuiltIn(table) => Some(table.schemas()),
            Self::Read(set) => Some(set),
        }
    }
}

impl PartialEq for Source {
    fn eq(&self, other: &Self) -> bool {
        self.set() == other.set()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KindEntry {
    plural: String,
    scope: Scope,
    /// Served versions in the server's order of preference.
    versions: Vec<String>,
    /// Supported verbs, sorted.
    verbs: Vec<String>,
}

impl KindTable {
    /// Returns the table of a minor, such as `1.36`. A leading `v` and a patch number are ignored.
    ///
    /// Returns `None` if there is no built-in table of that minor.
    pub fn for_minor(version: &str) -> Option<Self> {
        let requested = parse_minor(version)?;
        TABLES
            .iter()
            .find(|table| parse_minor(table.minor) == Some(requested))
            .map(Self::built_in)
    }

    /// Returns the table of a minor, or the closest one and a note. Without a version, the newest
    /// table is returned.
    pub fn nearest(version: Option<&str>) -> (Self, Option<Finding>) {
        let requested = version.and_then(parse_minor);
        let distance = |minor: &str| match (requested, parse_minor(minor)) {
            (Some(requested), Some(minor)) => {
                (requested.0.abs_diff(minor.0), requested.1.abs_diff(minor.1))
            }
            _ => (0, 0),
        };
        // At equal distance, prefer the newer table: kinds that it lacks were removed for good.
        let table = TABLES
            .iter()
            .rev()
            .min_by_key(|table| distance(table.minor))
            .unwrap_or(&TABLES[TABLES.len() - 1]);
        let minor = table.minor;
        let exact = version.is_none() || (requested.is_some() && requested == parse_minor(minor));
        let note = (!exact).then(|| {
            Finding::note(
                Kind::Repository,
                "kubernetes-unknown",
                format!(
                    "the kinds of Kubernetes {} are not built in; those of {minor} are used",
                    version.unwrap_or_default()
                ),
            )
        });
        (Self::built_in(table), note)
    }

    /// Returns the minors of the built-in tables, in ascending order.
    pub fn minors() -> impl Iterator<Item = &'static str> {
        TABLES.iter().map(|table| table.minor)
    }

    fn built_in(table: &'static BuiltIn) -> Self {
        #[expect(
            clippy::expect_used,
            reason = "a test reads every table that is checked in"
        )]
        let mut read: Self = decode(table.kinds).expect("checked-in tables are readable");
        read.schemas = Source::BuiltIn(table);
        read
    }

    /// Creates a table from the discovery of an API server.
    pub fn from_discovery(minor: &str, discovery: &Discovery) -> Self {
        let mut groups: BTreeMap<String, BTreeMap<String, KindEntry>> = BTreeMap::new();
        for (group, served) in &*discovery.groups {
            let kinds = groups.entry(group.clone()).or_default();
            for version in &served.versions {
                for resource in &version.resources {
                    kinds
                        .entry(resource.kind.clone())
                        .or_insert_with(|| KindEntry {
                            plural: resource.plural.clone(),
                            scope: if resource.namespaced {
                                Scope::Namespaced
                            } else {
                                Scope::Cluster
                            },
                            versions: Vec::new(),
                            verbs: resource.verbs.iter().cloned().collect(),
                        })
                        .versions
                        .push(version.version.clone());
                }
            }
        }
        Self {
            minor: minor.to_owned(),
            groups,
            schemas: Source::None,
        }
    }

    /// Adds the schemas of all kinds from the server's `OpenAPI` v3 documents, one per
    /// group-version.
    pub fn with_schemas(self, documents: &[Value]) -> Result<Self, OpenApiError> {
        let kinds = self.groups.iter().flat_map(|(group, kinds)| {
            kinds.iter().flat_map(move |(kind, entry)| {
                entry.versions.iter().map(move |version| {
                    let version = ApiVersion {
                        group: group.clone(),
                        version: version.clone(),
                    };
                    (version, kind.clone())
                })
            })
        });
        let set = openapi::read(documents, kinds)?;
        Ok(Self {
            schemas: Source::Read(Arc::new(set)),
            ..self
        })
    }

    /// Reads a table from the output of [`Self::to_gz`] and [`Self::schemas_to_gz`].
    pub fn from_gz(kinds: &[u8], schemas: &[u8]) -> Result<Self, KindTableError> {
        let mut table: Self = decode(kinds)?;
        table.schemas = Source::Read(Arc::new(decode(schemas)?));
        Ok(table)
    }

    /// Writes the kinds as compressed JSON without a timestamp. Equal tables yield equal bytes.
    pub fn to_gz(&self) -> io::Result<Vec<u8>> {
        encode(self)
    }

    /// Writes the schemas in the same format.
    pub fn schemas_to_gz(&self) -> io::Result<Vec<u8>> {
        encode(&self.schemas.set())
    }

    /// Returns the schema of a kind at a version.
    pub fn schema(&self, gvk: &Gvk) -> Option<Schema<'_>> {
        self.schemas.set()?.schema(gvk)
    }

    /// Returns the Kubernetes minor, such as `1.36`.
    pub fn minor(&self) -> &str {
        &self.minor
    }

    /// Returns the scope of a kind. `None` if the table does not contain it.
    pub fn scope(&self, kind: &GroupKind) -> Option<Scope> {
        self.entry(kind).map(|entry| entry.scope)
    }

    /// Returns the plural name of a kind, as in URLs.
    pub fn plural(&self, kind: &GroupKind) -> Option<&str> {
        self.entry(kind).map(|entry| entry.plural.as_str())
    }

    /// Returns whether a kind is served at a version.
    pub fn served(&self, gvk: &Gvk) -> bool {
        self.versions(&gvk.group_kind())
            .contains(&gvk.api_version.version)
    }

    /// Returns the served versions of a kind, the preferred one first. Empty if the table does not
    /// contain the kind.
    pub fn versions(&self, kind: &GroupKind) -> &[String] {
        self.entry(kind).map_or(&[], |entry| &entry.versions)
    }

    /// Returns the verbs of a kind, such as `create` and `patch`. Empty if the table does not
    /// contain the kind.
    pub fn verbs(&self, kind: &GroupKind) -> &[String] {
        self.entry(kind).map_or(&[], |entry| &entry.verbs)
    }

    /// Returns whether a group belongs or belonged to Kubernetes. A kind of such a group that the
    /// table does not contain is not served.
    pub fn knows_group(&self, group: &str) -> bool {
        self.groups.contains_key(group) || REMOVED_GROUPS.contains(&group)
    }

    /// Returns the names of all kinds in all groups.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let groups = self.groups.values();
        groups.flat_map(BTreeMap::keys).map(String::as_str)
    }

    /// Returns all kinds, sorted by group and name.
    pub fn group_kinds(&self) -> impl Iterator<Item = GroupKind> {
        let groups = self.groups.iter();
        groups.flat_map(|(group, kinds)| kinds.keys().map(move |kind| GroupKind::new(group, kind)))
    }

    /// Returns each `group/version` that serves a kind of this name. Kinds can move between groups,
    /// but retain their names.
    pub fn api_versions(&self, kind: &str) -> Vec<String> {
        self.groups
            .iter()
            .filter_map(|(group, kinds)| Some((group, kinds.get(kind)?)))
            .flat_map(|(group, entry)| {
                entry.versions.iter().map(move |version| {
                    if group.is_empty() {
                        version.clone()
                    } else {
                        format!("{group}/{version}")
                    }
                })
            })
            .collect()
    }

    fn entry(&self, kind: &GroupKind) -> Option<&KindEntry> {
        self.groups.get(&kind.group)?.get(&kind.kind)
    }
}

fn decode<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T, KindTableError> {
    let mut text = Vec::new();
    GzDecoder::new(bytes)
        .read_to_end(&mut text)
        .map_err(KindTableError::Decompress)?;
    serde_json::from_slice(&text).map_err(KindTableError::Parse)
}

fn encode(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut encoder = GzBuilder::new()
        .mtime(0)
        .write(Vec::new(), Compression::best());
    encoder.write_all(&serde_json::to_vec(value)?)?;
    encoder.finish()
}

/// Parses major and minor of a version such as `1.36`, `v1.36.3` or `1.36+`.
fn parse_minor(version: &str) -> Option<(u32, u32)> {
    let version = version.trim().trim_start_matches('v');
    let mut parts = version.split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts
        .next()?
        .trim_end_matches(|c: char| !c.is_ascii_digit())
        .parse()
        .ok()?;
    Some((major, minor))
}

#[cfg(test)]
mod tests;
