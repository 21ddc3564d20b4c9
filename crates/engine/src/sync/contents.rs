//! Content of namespaces that a plan would delete.

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, StreamExt as _};
use pleach_model::discovery::{Discovery, Freshness};
use pleach_model::object::{ApiVersion, GroupKind};
use pleach_planner::observe::{Content, Contents};
use serde::Deserialize;
use serde_json::Value;

use super::CONCURRENCY;
use super::absent::confirmed_absent;
use super::answers::Source;
use pleach_cluster::{Class, Cluster, Depth, ResourcePath, Selector};

impl Source<'_> {
    /// Reads the contents of a namespace that a plan would delete.
    pub(crate) async fn contents(&self, namespace: &str) -> Contents {
        read_contents(self.cluster, &self.observed.discovery, namespace).await
    }
}

/// Lists all objects in a namespace. A kind that cannot be listed can hide objects.
pub(super) async fn read_contents(
    cluster: &Cluster,
    discovery: &Discovery,
    namespace: &str,
) -> Contents {
    let (kinds, mut unseen) = listed_kinds(discovery);
    let lists: Vec<_> = stream::iter(kinds)
        .map(|path| async move {
            let selector = Selector {
                namespace: Some(namespace),
                ..Selector::default()
            };
            let list = cluster
                .pick(&path, &selector, Depth::Metadata, |item: Partial| {
                    Some(content(&path, &item.metadata))
                })
                .await;
            (path, list)
        })
        .buffer_unordered(CONCURRENCY)
        .collect()
        .await;
    let mut found = Vec::new();
    for (path, list) in lists {
        match list {
            Ok(list) => found.extend(list),
            Err(error) => {
                let why = super::op::failure(&error).message;
                let why = format!("{} cannot be listed: {why}", path.plural);
                if !matches!(error.class(), Some(Class::KindNotServed | Class::NotFound)) {
                    return Contents::Unknown(why);
                }
                unseen.insert(path.group_kind(), why);
            }
        }
    }
    if let Some(why) = hidden(cluster, unseen).await {
        return Contents::Unknown(why);
    }
    found.sort_by(|a, b| a.id.cmp(&b.id));
    Contents::Known(found)
}

/// Returns the reason why unlisted kinds can have objects. `None` if nothing defines them, because
/// their CRDs were deleted with the release.
async fn hidden(cluster: &Cluster, unseen: BTreeMap<GroupKind, String>) -> Option<String> {
    if unseen.is_empty() {
        return None;
    }
    match confirmed_absent(cluster, unseen.keys().cloned().collect()).await {
        Ok(absent) => {
            let mut unseen = unseen.into_iter();
            let hides = unseen.find(|(kind, _)| !absent.contains(kind));
            hides.map(|(_, why)| why)
        }
        Err(error) => {
            let why = unseen.into_values().next()?;
            let trouble = super::op::failure(&error).message;
            Some(format!("{why}, and whether it is gone: {trouble}"))
        }
    }
}

#[derive(Deserialize)]
struct Partial {
    metadata: Value,
}

fn content(path: &ResourcePath, metadata: &Value) -> Content {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Content {
        id: path.id(
            metadata["namespace"].as_str(),
            metadata["name"].as_str().unwrap_or_default(),
        ),
        uid: text(&metadata["uid"]),
        owners: metadata["ownerReferences"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|owner| text(&owner["uid"]))
            .collect(),
    }
}

/// Returns every namespaced kind once. Also returns the groups that can have unknown kinds, as a
/// kind with an empty name.
fn listed_kinds(discovery: &Discovery) -> (Vec<ResourcePath>, BTreeMap<GroupKind, String>) {
    let mut kinds = Vec::new();
    let mut silent = BTreeMap::new();
    for (group, served) in &*discovery.groups {
        let mut seen = BTreeSet::new();
        for version in &served.versions {
            if version.freshness == Freshness::Stale {
                let version = &version.version;
                let why = format!("the server behind {group}/{version} does not answer");
                silent.insert(GroupKind::new(group, ""), why);
                continue;
            }
            for resource in &version.resources {
                let listed = resource.namespaced && resource.verbs.contains("list");
                if listed && seen.insert(&resource.kind) {
                    kinds.push(ResourcePath {
                        api_version: ApiVersion {
                            group: group.clone(),
                            version: version.version.clone(),
                        },
                        kind: resource.kind.clone(),
                        plural: resource.plural.clone(),
                        namespaced: true,
                    });
                }
            }
        }
    }
    (kinds, silent)
}

#[cfg(test)]
mod tests;
