//! Which kinds a cluster serves, and whether their servers answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::object::{ApiVersion, GroupKind, Gvk};

/// Aggregated discovery, with the freshness of every group-version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discovery {
    /// By group; the core group is empty. Shared: releases of one cluster are
    /// planned side by side.
    pub groups: Arc<BTreeMap<String, ServedGroup>>,
}

/// A group and its versions, the preferred one first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedGroup {
    /// In the server's order of preference.
    pub versions: Vec<ServedVersion>,
}

/// One version of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedVersion {
    /// Version, such as `v1`.
    pub version: String,
    /// Whether its server answered discovery.
    pub freshness: Freshness,
    /// Resources without subresources; empty while stale.
    pub resources: Vec<Resource>,
}

/// Whether the server behind a group-version answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Freshness {
    /// It answers.
    Current,
    /// It is registered and does not answer.
    Stale,
}

/// A resource that is served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resource {
    /// Kind in camel case.
    pub kind: String,
    /// Plural name, as in URLs.
    pub plural: String,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// Verbs it allows.
    pub verbs: BTreeSet<String>,
}

/// How a kind is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served<'a> {
    /// Served, by a server that answers.
    Current(&'a Resource),
    /// Its group-version is registered and does not answer.
    Stale,
    /// Not served.
    Absent,
}

impl Discovery {
    /// The groups, to be changed.
    pub fn groups_mut(&mut self) -> &mut BTreeMap<String, ServedGroup> {
        Arc::make_mut(&mut self.groups)
    }

    /// How a kind is served at a version.
    pub fn served(&self, gvk: &Gvk) -> Served<'_> {
        let Some(group) = self.groups.get(&gvk.api_version.group) else {
            return Served::Absent;
        };
        let Some(version) = group
            .versions
            .iter()
            .find(|v| v.version == gvk.api_version.version)
        else {
            return Served::Absent;
        };
        match version.resources.iter().find(|r| r.kind == gvk.kind) {
            Some(resource) => Served::Current(resource),
            None if version.freshness == Freshness::Stale => Served::Stale,
            None => Served::Absent,
        }
    }

    /// Whether a group-version is registered and its server answers.
    pub fn answers(&self, api_version: &ApiVersion) -> bool {
        self.groups.get(&api_version.group).is_some_and(|group| {
            group.versions.iter().any(|served| {
                served.version == api_version.version && served.freshness == Freshness::Current
            })
        })
    }

    /// The preferred version that serves a kind.
    pub fn preferred(&self, kind: &GroupKind) -> Option<(ApiVersion, &Resource)> {
        let group = self.groups.get(&kind.group)?;
        group.versions.iter().find_map(|version| {
            let resource = version.resources.iter().find(|r| r.kind == kind.kind)?;
            Some((
                ApiVersion {
                    group: kind.group.clone(),
                    version: version.version.clone(),
                },
                resource,
            ))
        })
    }

    /// Whether a version of the group is registered without a server that answers:
    /// a kind of it that is not found is then unknown, not absent.
    pub fn is_stale(&self, group: &str) -> bool {
        self.groups.get(group).is_some_and(|group| {
            group
                .versions
                .iter()
                .any(|v| v.freshness == Freshness::Stale)
        })
    }

    /// The group-versions that do not answer.
    pub fn stale(&self) -> Vec<ApiVersion> {
        self.groups
            .iter()
            .flat_map(|(group, served)| {
                served
                    .versions
                    .iter()
                    .filter(|v| v.freshness == Freshness::Stale)
                    .map(|v| ApiVersion {
                        group: group.clone(),
                        version: v.version.clone(),
                    })
            })
            .collect()
    }
}
