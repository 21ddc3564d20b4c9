//! Which kinds a release can use: those of Kubernetes and those that the
//! definitions of the environment's releases add.

use std::collections::BTreeMap;

use serde_json::Value;

use super::source::Written;
use crate::kinds::{History, KindTable, Schema, Scope};
use crate::object::{ApiVersion, GroupKind, Gvk};
use crate::repo::nearest;

/// What is known of a kind at a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Known {
    /// It is served.
    Served(Scope),
    /// It is not served; these versions (`group/version`) are. `custom` says
    /// that a definition decides that and not Kubernetes.
    NotServed { instead: Vec<String>, custom: bool },
    /// Neither Kubernetes nor a definition has it.
    Unknown,
}

/// A kind that a definition adds.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Custom {
    scope: Scope,
    versions: Vec<String>,
}

/// The kinds of Kubernetes and of definitions.
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

    /// Adds the kinds that the definitions among some objects define.
    pub(super) fn define<'o>(&mut self, objects: impl IntoIterator<Item = &'o Written>) {
        for object in objects {
            self.define_one(&object.value);
        }
    }

    /// Adds the kind that an object defines, if it defines one.
    pub(super) fn define_one(&mut self, object: &Value) {
        if let Some((kind, custom)) = definition(object) {
            self.custom.insert(kind, custom);
        }
    }

    /// Whether every kind of some objects is one of Kubernetes or defined by
    /// them, so that the definitions of other releases change nothing.
    pub(super) fn cover<'o>(&self, objects: impl Iterator<Item = &'o Written> + Clone) -> bool {
        let mut own = self.clone();
        own.define(objects.clone());
        objects
            .into_iter()
            .all(|object| own.known(&gvk(object)) != Known::Unknown)
    }

    /// Whether an object is of a kind of Kubernetes, whatever definitions say,
    /// and defines none itself.
    pub(super) fn is_settled(&self, object: &Written) -> bool {
        let gvk = gvk(object);
        let kind = gvk.group_kind();
        self.table.scope(&kind).is_some() && self.table.served(&gvk) && !is_definition(&kind)
    }

    /// What a kind of Kubernetes looks like.
    pub(super) fn schema(&self, gvk: &Gvk) -> Option<Schema<'a>> {
        self.table.schema(gvk)
    }

    /// The Kubernetes minor.
    pub(super) fn minor(&self) -> &str {
        self.table.minor()
    }

    /// What to do about a kind in a group of Kubernetes where none of that name is
    /// served: it may be gone, not there yet, or no kind at all.
    pub(super) fn advice(&self, gvk: &Gvk) -> String {
        let minor = self.minor();
        match History::of(gvk, minor) {
            Some(History::RemovedIn(_)) => {
                "the kind was removed, and no other took its place by that name".to_owned()
            }
            Some(History::ServedSince(_)) => {
                "`cluster.kubernetes` of the environment says which version the cluster has"
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

fn is_definition(kind: &GroupKind) -> bool {
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

/// The kind that a `CustomResourceDefinition` defines.
fn definition(value: &Value) -> Option<(GroupKind, Custom)> {
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
