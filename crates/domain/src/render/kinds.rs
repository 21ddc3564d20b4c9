//! Which kinds a Kubernetes minor serves, known without a cluster.
//!
//! The tables are written by `make schemas` from the aggregated discovery of a
//! real API server with its default flags and are checked in compressed, one
//! file per minor, so that render and lint need no cluster. They hold built-in
//! kinds only; custom resources come from the definitions of the environment's
//! releases. What the cluster really serves is the planner's to compare.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};

use flate2::read::GzDecoder;
use flate2::{Compression, GzBuilder};
use serde::{Deserialize, Serialize};

use crate::finding::{Finding, Kind};
use crate::object::{GroupKind, Gvk};
use crate::observe::Discovery;

/// The checked-in tables, oldest minor first.
const TABLES: [(&str, &[u8]); 1] = [("1.36", include_bytes!("kinds/1.36.json.gz"))];

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
/// use pleach_domain::render::{KindTable, Scope};
///
/// let table = KindTable::for_minor("1.36").expect("checked in");
/// let deployment = GroupKind::new("apps", "Deployment");
/// assert_eq!(table.scope(&deployment), Some(Scope::Namespaced));
/// assert_eq!(table.versions(&deployment), ["v1"]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KindTable {
    minor: String,
    /// By group, then by kind; the core group is empty.
    groups: BTreeMap<String, BTreeMap<String, KindEntry>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KindEntry {
    plural: String,
    scope: Scope,
    /// In the server's order of preference.
    versions: Vec<String>,
}

impl KindTable {
    /// The table of a minor, such as `1.36`; a `v` in front and a patch number
    /// are ignored. None when no table of it is built in.
    pub fn for_minor(version: &str) -> Option<Self> {
        let wanted = parse_minor(version)?;
        TABLES
            .iter()
            .find(|(minor, _)| parse_minor(minor) == Some(wanted))
            .map(|(_, bytes)| Self::built_in(bytes))
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
        let (minor, bytes) = TABLES
            .iter()
            .rev()
            .min_by_key(|(minor, _)| distance(minor))
            .unwrap_or(&TABLES[TABLES.len() - 1]);
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
        (Self::built_in(bytes), note)
    }

    fn built_in(bytes: &[u8]) -> Self {
        #[expect(
            clippy::expect_used,
            reason = "a test reads every table that is checked in"
        )]
        Self::from_gz(bytes).expect("checked-in tables are readable")
    }

    /// Takes what an API server serves.
    pub fn from_discovery(minor: &str, discovery: &Discovery) -> Self {
        let mut groups: BTreeMap<String, BTreeMap<String, KindEntry>> = BTreeMap::new();
        for (group, served) in &discovery.groups {
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
                        })
                        .versions
                        .push(version.version.clone());
                }
            }
        }
        Self {
            minor: minor.to_owned(),
            groups,
        }
    }

    /// Reads a table as [`Self::to_gz`] writes it.
    pub fn from_gz(bytes: &[u8]) -> Result<Self, KindTableError> {
        let mut text = Vec::new();
        GzDecoder::new(bytes)
            .read_to_end(&mut text)
            .map_err(KindTableError::Decompress)?;
        serde_json::from_slice(&text).map_err(KindTableError::Parse)
    }

    /// Writes the table as JSON with indentation, one kind after the other,
    /// compressed without a time: the same table gives the same bytes.
    pub fn to_gz(&self) -> io::Result<Vec<u8>> {
        let mut encoder = GzBuilder::new()
            .mtime(0)
            .write(Vec::new(), Compression::best());
        encoder.write_all(&serde_json::to_vec_pretty(self)?)?;
        encoder.finish()
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

    /// Whether a group is one of Kubernetes' own, now or in former minors. A
    /// kind of such a group that the table does not have is not served.
    pub fn knows_group(&self, group: &str) -> bool {
        self.groups.contains_key(group) || REMOVED_GROUPS.contains(&group)
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
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn every_table_that_is_checked_in_is_the_minor_it_says() {
        for (minor, bytes) in TABLES {
            let table = KindTable::from_gz(bytes).unwrap();
            assert_eq!(table.minor(), minor);
            assert!(table.groups.len() > 15, "{minor} has too few groups");
        }
    }

    #[rstest]
    #[case("apps", "Deployment", Scope::Namespaced, "deployments", &["v1"])]
    #[case("", "Namespace", Scope::Cluster, "namespaces", &["v1"])]
    #[case("", "Endpoints", Scope::Namespaced, "endpoints", &["v1"])]
    #[case("autoscaling", "HorizontalPodAutoscaler", Scope::Namespaced, "horizontalpodautoscalers", &["v2", "v1"])]
    #[case("apiregistration.k8s.io", "APIService", Scope::Cluster, "apiservices", &["v1"])]
    fn kinds_of_1_36(
        #[case] group: &str,
        #[case] kind: &str,
        #[case] scope: Scope,
        #[case] plural: &str,
        #[case] versions: &[&str],
    ) {
        let table = KindTable::for_minor("v1.36.3").unwrap();
        let kind = GroupKind::new(group, kind);
        assert_eq!(table.scope(&kind), Some(scope));
        assert_eq!(table.plural(&kind), Some(plural));
        assert_eq!(table.versions(&kind), versions);
    }

    #[test]
    fn removed_versions_and_kinds_are_told_from_unknown_ones() {
        let table = KindTable::for_minor("1.36").unwrap();
        assert!(!table.served(&Gvk::new("policy/v1beta1", "PodDisruptionBudget")));
        assert!(table.served(&Gvk::new("policy/v1", "PodDisruptionBudget")));
        assert!(table.knows_group("policy"));
        assert!(table.knows_group("extensions"));
        assert!(!table.knows_group("example.org"));
        assert_eq!(table.api_versions("Ingress"), ["networking.k8s.io/v1"]);
    }

    #[rstest]
    #[case(Some("1.36"), false)]
    #[case(Some("v1.36.9-gke.1"), false)]
    #[case(None, false)]
    #[case(Some("1.29"), true)]
    #[case(Some("1.99"), true)]
    #[case(Some("soon"), true)]
    fn the_nearest_table_comes_with_a_note(#[case] declared: Option<&str>, #[case] noted: bool) {
        let (table, note) = KindTable::nearest(declared);
        assert_eq!(table.minor(), "1.36");
        assert_eq!(note.is_some(), noted, "{note:?}");
        assert!(KindTable::for_minor("1.29").is_none());
    }

    #[test]
    fn a_table_survives_compression() {
        let table = KindTable::for_minor("1.36").unwrap();
        let bytes = table.to_gz().unwrap();
        assert_eq!(bytes, table.to_gz().unwrap());
        assert_eq!(KindTable::from_gz(&bytes).unwrap(), table);
        assert!(KindTable::from_gz(b"no").is_err());
    }
}
