//! Which kinds a Kubernetes minor serves and what their fields hold, known
//! without a cluster.
//!
//! The tables are written by `make schemas` and are checked in compressed, two
//! files per minor (kinds; schemas), so that render, lint and diff need no
//! cluster. The newest comes from a real API server with its default flags: its
//! aggregated discovery and its `OpenAPI` v3 documents. Those before come from
//! the same documents as Kubernetes publishes them with its source. Schemas are
//! decoded when one is asked for, once per process.
//!
//! They hold built-in kinds only; custom resources come from the definitions of
//! the environment's releases ([`Definitions`], with the same [`Schema`]), and
//! [`Catalog`] asks both. What the cluster really serves is the planner's to
//! compare.

mod history;
mod openapi;
mod schema;
mod structural;
mod tables;

pub use history::History;
pub use openapi::OpenApiError;
pub use schema::{ListKind, Schema, Type};
pub use structural::{Catalog, Definitions};

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::sync::Arc;

use flate2::read::GzDecoder;
use flate2::{Compression, GzBuilder};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::finding::{Finding, Kind};
use crate::object::{ApiVersion, GroupKind, Gvk};
use crate::observe::Discovery;
use schema::SchemaSet;
use tables::{BuiltIn, TABLES};

/// Groups that older Kubernetes served and no table has. Without this list
/// they would pass as groups of unknown custom resources.
const REMOVED_GROUPS: [&str; 1] = ["extensions"];

/// Whether the objects of a kind live in namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Scope {
    /// They do.
    Namespaced,
    /// They do not.
    Cluster,
}

/// A table that cannot be read.
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
/// use pleach_domain::object::GroupKind;
/// use pleach_domain::kinds::{KindTable, Scope};
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
    /// By group, then by kind; the core group is empty.
    groups: BTreeMap<String, BTreeMap<String, KindEntry>>,
    #[serde(skip)]
    schemas: Source,
}

/// Where the schemas of a table are.
#[derive(Debug, Clone, Default)]
enum Source {
    /// It has none.
    #[default]
    None,
    /// In the program, decoded on first use.
    BuiltIn(&'static BuiltIn),
    /// They were read from documents.
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
    /// In the server's order of preference.
    versions: Vec<String>,
    /// What can be asked of the kind, sorted.
    verbs: Vec<String>,
}

impl KindTable {
    /// The table of a minor, such as `1.36`; a `v` in front and a patch number
    /// are ignored. None when no table of it is built in.
    pub fn for_minor(version: &str) -> Option<Self> {
        let wanted = parse_minor(version)?;
        TABLES
            .iter()
            .find(|table| parse_minor(table.minor) == Some(wanted))
            .map(Self::built_in)
    }

    /// The table of a minor or else the one nearest to it, then with a note.
    /// Nothing declared means the newest.
    pub fn nearest(version: Option<&str>) -> (Self, Option<Finding>) {
        let wanted = version.and_then(parse_minor);
        let distance = |minor: &str| match (wanted, parse_minor(minor)) {
            (Some(wanted), Some(minor)) => (wanted.0.abs_diff(minor.0), wanted.1.abs_diff(minor.1)),
            _ => (0, 0),
        };
        // Of two at the same distance the newer: what it lacks is gone for good.
        let table = TABLES
            .iter()
            .rev()
            .min_by_key(|table| distance(table.minor))
            .unwrap_or(&TABLES[TABLES.len() - 1]);
        let minor = table.minor;
        let exact = version.is_none() || (wanted.is_some() && wanted == parse_minor(minor));
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

    /// The minors whose tables are built in, the oldest first.
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

    /// Takes what an API server serves.
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

    /// Adds the schemas of all kinds from the `OpenAPI` v3 documents of the
    /// server's group-versions.
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

    /// Reads a table as [`Self::to_gz`] and [`Self::schemas_to_gz`] write it.
    pub fn from_gz(kinds: &[u8], schemas: &[u8]) -> Result<Self, KindTableError> {
        let mut table: Self = decode(kinds)?;
        table.schemas = Source::Read(Arc::new(decode(schemas)?));
        Ok(table)
    }

    /// Writes the kinds as JSON, compressed without a time: the same table
    /// gives the same bytes.
    pub fn to_gz(&self) -> io::Result<Vec<u8>> {
        encode(self)
    }

    /// Writes the schemas in the same way.
    pub fn schemas_to_gz(&self) -> io::Result<Vec<u8>> {
        encode(&self.schemas.set())
    }

    /// What the fields of a kind hold at a version.
    pub fn schema(&self, gvk: &Gvk) -> Option<Schema<'_>> {
        self.schemas.set()?.schema(gvk)
    }

    /// The Kubernetes minor, such as `1.36`.
    pub fn minor(&self) -> &str {
        &self.minor
    }

    /// Whether a kind is namespaced; none when the table does not have it.
    pub fn scope(&self, kind: &GroupKind) -> Option<Scope> {
        self.entry(kind).map(|entry| entry.scope)
    }

    /// The plural name of a kind, as in URLs.
    pub fn plural(&self, kind: &GroupKind) -> Option<&str> {
        self.entry(kind).map(|entry| entry.plural.as_str())
    }

    /// Whether a kind is served at that version.
    pub fn served(&self, gvk: &Gvk) -> bool {
        self.versions(&gvk.group_kind())
            .contains(&gvk.api_version.version)
    }

    /// The versions a kind is served at, the preferred one first; empty when
    /// the table does not have the kind.
    pub fn versions(&self, kind: &GroupKind) -> &[String] {
        self.entry(kind).map_or(&[], |entry| &entry.versions)
    }

    /// What can be asked of a kind, such as `create` and `patch`; empty when the
    /// table does not have it.
    pub fn verbs(&self, kind: &GroupKind) -> &[String] {
        self.entry(kind).map_or(&[], |entry| &entry.verbs)
    }

    /// Whether a group is one of Kubernetes' own, now or in former minors. A
    /// kind of such a group that the table does not have is not served.
    pub fn knows_group(&self, group: &str) -> bool {
        self.groups.contains_key(group) || REMOVED_GROUPS.contains(&group)
    }

    /// The names of all kinds, whatever their group.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let groups = self.groups.values();
        groups.flat_map(BTreeMap::keys).map(String::as_str)
    }

    /// Every `group/version` at which a kind of that name is served, whatever
    /// its group: kinds move between groups and keep their names.
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

/// Major and minor of a version such as `1.36`, `v1.36.3` or `1.36+`.
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
