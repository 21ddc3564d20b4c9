//! API discovery: served kinds, and availability of their servers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::object::{ApiVersion, GroupKind, Gvk};

/// Aggregated discovery, with the freshness of every group-version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discovery {
    /// Groups by name. The core group is the empty string. Shared, because releases of one cluster
    /// are planned concurrently.
    pub groups: Arc<BTreeMap<String, ServedGroup>>,
}

/// A group and its versions, the preferred one first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedGroup {
    /// Versions in the server's order of preference.
    pub versions: Vec<ServedVersion>,
}

/// One version of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedVersion {
    /// Version, such as `v1`.
    pub version: String,
    /// Whether its server answered the discovery request.
    pub freshness: Freshness,
    /// Resources without subresources. Empty while stale.
    pub resources: Vec<Resource>,
}

/// Availability of the server of a group-version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Freshness {
    /// The server answers.
    Current,
    /// The group-version is registered, but its server does not answer.
    Stale,
}

/// A served resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resource {
    /// Kind in camel case.
    pub kind: String,
    /// Plural name, as in URLs.
    pub plural: String,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// Allowed verbs.
    pub verbs: BTreeSet<String>,
}

/// Lookup result for a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served<'a> {
    /// The kind is served, and its server answers.
    Current(&'a Resource),
    /// The group-version is registered, but its server does not answer.
    Stale,
    /// The kind is not served.
    Absent,
}

impl Discovery {
    /// Returns the groups for modification. Copies them if they are shared.
    pub fn groups_mut(&mut self) -> &mut BTreeMap<String, ServedGroup> {
        Arc::make_mut(&mut self.groups)
    }

    /// Looks up a kind at a version.
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

    /// Returns whether a group-version is registered and its server answers.
    pub fn answers(&self, api_version: &ApiVersion) -> bool {
        self.groups.get(&api_version.group).is_some_and(|group| {
            group.versions.iter().any(|served| {
                served.version == api_version.version && served.freshness == Freshness::Current
            })
        })
    }

    /// Returns the preferred version that serves a kind.
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

    /// Returns the kind with a plural in a group.
    pub fn kind_of(&self, group: &str, plural: &str) -> Option<GroupKind> {
        let versions = &self.groups.get(group)?.versions;
        let mut resources = versions.iter().flat_map(|version| &version.resources);
        let resource = resources.find(|resource| resource.plural == plural)?;
        Some(GroupKind::new(group, resource.kind.clone()))
    }

    /// Returns whether any version of the group is stale. A missing kind of such a group is
    /// unknown, not absent.
    pub fn is_stale(&self, group: &str) -> bool {
        self.groups.get(group).is_some_and(|group| {
            group
                .versions
                .iter()
                .any(|v| v.freshness == Freshness::Stale)
        })
    }

    /// Returns the stale group-versions.
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
