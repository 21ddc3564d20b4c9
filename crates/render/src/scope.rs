//! Kinds that a release can use: built-in kinds, and those of the CRDs in the environment's
//! releases.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::source::Written;
use pleach_model::kinds::{History, KindTable, Schema, Scope};
use pleach_model::object::{ApiVersion, GroupKind, Gvk};
use pleach_model::suggest::nearest;

/// Lookup result for a kind at a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Known {
    /// The kind is served.
    Served(Scope),
    /// The version is not served, but these are (`group/version`). `custom` is set if a CRD defines
    /// the kind.
    NotServed { instead: Vec<String>, custom: bool },
    /// The kind is neither built-in nor defined by a CRD.
    Unknown,
}

/// A kind that a CRD defines.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Custom {
    scope: Scope,
    versions: Vec<String>,
}

/// Built-in kinds and kinds of CRDs.
#[derive(Debug, Clone)]
pub(super) struct Kinds<'a> {
    table: &'a KindTable,
    custom: BTreeMap<GroupKind, Custom>,
}

impl<'a> Kinds<'a> {
    pub(super) fn new(table: &'a KindTable) -> Self {
        Self {
            table,
            custom: BTreeMap::new(),
        }
    }

    /// Adds the kinds that CRDs among the objects define.
    pub(super) fn define<'o>(&mut self, objects: impl IntoIterator<Item = &'o Written>) {
        for object in objects {
            self.define_one(&object.value);
        }
    }

    /// Adds the kind that an object defines, if it is a CRD.
    pub(super) fn define_one(&mut self, object: &Value) {
        if let Some((kind, custom)) = crd(object) {
            self.custom.insert(kind, custom);
        }
    }

    /// Returns whether the kinds of all objects are built-in or defined among them. CRDs of other
    /// releases do not matter then.
    pub(super) fn cover<'o>(&self, objects: impl Iterator<Item = &'o Written> + Clone) -> bool {
        let mut own = self.clone();
        own.define(objects.clone());
        objects
            .into_iter()
            .all(|object| own.known(&gvk(object)) != Known::Unknown)
    }

    /// Returns whether an object has a built-in kind, independent of CRDs, and is not a CRD itself.
    pub(super) fn is_builtin(&self, object: &Written) -> bool {
        let gvk = gvk(object);
        let kind = gvk.group_kind();
        self.table.scope(&kind).is_some() && self.table.served(&gvk) && !is_crd(&kind)
    }

    /// Returns all served APIs, as `group/version` and `group/version/Kind`, sorted.
    pub(super) fn api_versions(&self) -> Vec<String> {
        let mut all = BTreeSet::new();
        let mut add = |kind: &GroupKind, versions: &[String]| {
            for version in named(&kind.group, versions) {
                all.insert(format!("{version}/{}", kind.kind));
                all.insert(version);
            }
        };
        for kind in self.table.group_kinds() {
            add(&kind, self.table.versions(&kind));
        }
        for (kind, custom) in &self.custom {
            add(kind, &custom.versions);
        }
        all.into_iter().collect()
    }

    /// Returns the schema of a built-in kind.
    pub(super) fn schema(&self, gvk: &Gvk) -> Option<Schema<'a>> {
        self.table.schema(gvk)
    }

    /// Returns the Kubernetes minor version.
    pub(super) fn minor(&self) -> &str {
        self.table.minor()
    }

    /// Returns a hint for an unserved kind in a built-in group: the kind was removed, is newer, or
    /// does not exist.
    pub(super) fn advice(&self, gvk: &Gvk) -> String {
        let minor = self.minor();
        match History::of(gvk, minor) {
            Some(History::RemovedIn(_)) => {
                "the kind was removed, and no other group serves a kind with that name".to_owned()
            }
            Some(History::ServedSince(_)) => {
                "`cluster.kubernetes` of the environment declares the version of the cluster"
                    .to_owned()
            }
            None => match nearest(&gvk.kind, self.table.names()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("Kubernetes {minor} has no kind of that name"),
            },
        }
    }

    pub(super) fn known(&self, gvk: &Gvk) -> Known {
        let kind = gvk.group_kind();
        if let Some(scope) = self.table.scope(&kind).filter(|_| self.table.served(gvk)) {
            return Known::Served(scope);
        }
        if let Some(custom) = self.custom.get(&kind) {
            return if custom.versions.contains(&gvk.api_version.version) {
                Known::Served(custom.scope)
            } else {
                Known::NotServed {
                    instead: named(&kind.group, &custom.versions),
                    custom: true,
                }
            };
        }
        match self.table.scope(&kind) {
            Some(_) => Known::NotServed {
                instead: named(&kind.group, self.table.versions(&kind)),
                custom: false,
            },
            None if self.table.knows_group(&kind.group) => Known::NotServed {
                instead: self.table.api_versions(&kind.kind),
                custom: false,
            },
            None => Known::Unknown,
        }
    }
}

fn gvk(object: &Written) -> Gvk {
    let text = |key: &str| object.value[key].as_str().unwrap_or_default();
    Gvk::new(text("apiVersion"), text("kind"))
}

fn is_crd(kind: &GroupKind) -> bool {
    kind.is("apiextensions.k8s.io", "CustomResourceDefinition")
}

fn named(group: &str, versions: &[String]) -> Vec<String> {
    versions
        .iter()
        .map(|version| {
            ApiVersion {
                group: group.to_owned(),
                version: version.clone(),
            }
            .to_string()
        })
        .collect()
}

/// Returns the kind that a `CustomResourceDefinition` defines.
fn crd(value: &Value) -> Option<(GroupKind, Custom)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let api_version = ApiVersion::parse(value["apiVersion"].as_str()?);
    if api_version.group != "apiextensions.k8s.io"
        || value["kind"].as_str() != Some("CustomResourceDefinition")
    {
        return None;
    }
    let spec = &value["spec"];
    let scope = match spec["scope"].as_str()? {
        "Cluster" => Scope::Cluster,
        _ => Scope::Namespaced,
    };
    let versions = spec["versions"]
        .as_array()?
        .iter()
        .filter(|version| version["served"].as_bool() == Some(true))
        .filter_map(|version| text(&version["name"]))
        .collect();
    let kind = GroupKind::new(text(&spec["group"])?, text(&spec["names"]["kind"])?);
    Some((kind, Custom { scope, versions }))
}
