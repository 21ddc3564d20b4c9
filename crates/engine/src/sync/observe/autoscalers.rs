//! Replica counts that pleach leaves to live autoscalers.
//!
//! Autoscalers in git are known before. Others are found by one LIST, which is only sent if an
//! object sets a replica count.

use std::collections::BTreeSet;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use pleach_fields::ignore::{FieldPattern, Ignored, scale_target, sets_replicas};
use pleach_model::discovery::Discovery;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{GroupKind, Manifest, ObjectId};
use pleach_planner::plan::Desired;
use pleach_state::inventory::Inventory;

use super::{CONCURRENCY, ends_observation};
use crate::sync::error::SyncError;
use pleach_cluster::{Class, Cluster, ClusterError, List, ResourcePath, Selector};

/// Result of the LIST.
pub(super) enum Autoscalers {
    /// Not needed.
    NotQueried,
    /// Autoscalers with their targets.
    Found(Vec<(ObjectId, ObjectId)>),
    /// The LIST failed.
    Unknown {
        /// The error.
        why: String,
        /// Whether the LIST was forbidden.
        forbidden: bool,
    },
}

/// Returns the objects that set a replica count.
fn candidates(desired: &Desired) -> impl Iterator<Item = &Manifest> {
    let replicas = FieldPattern::replicas();
    desired.manifests.iter().filter(move |manifest| {
        sets_replicas(manifest) && !desired.ignored.of(manifest.id()).contains(&replicas)
    })
}

/// Lists the autoscalers, cluster-wide or in the namespaces of the objects.
pub(super) async fn list(
    cluster: &Cluster,
    desired: &Desired,
    discovery: &Discovery,
) -> Result<Autoscalers, SyncError> {
    let namespaces: BTreeSet<&str> = candidates(desired)
        .filter_map(|manifest| manifest.id().namespace.as_deref())
        .collect();
    let kind = GroupKind::new("autoscaling", "HorizontalPodAutoscaler");
    let path = ResourcePath::preferred(discovery, &kind);
    let (Some(path), false) = (path, namespaces.is_empty()) else {
        return Ok(Autoscalers::NotQueried);
    };
    let everywhere = [None];
    let each: Vec<Option<&str>> = namespaces.into_iter().map(Some).collect();
    // Autoscalers are in the namespace of their target, so a single namespace is listed alone.
    let scopes: &[&[Option<&str>]] = if each.len() == 1 {
        &[&each]
    } else {
        &[&everywhere, &each]
    };
    for scope in scopes {
        match list_in(cluster, &path, scope).await {
            Ok(found) => return Ok(Autoscalers::Found(found)),
            Err(error) if error.class() == Some(&Class::Forbidden) && scope[0].is_none() => {}
            Err(error) if ends_observation(&error) => return Err(error.into()),
            Err(error) => {
                return Ok(Autoscalers::Unknown {
                    forbidden: error.class() == Some(&Class::Forbidden),
                    why: error
                        .api()
                        .map_or_else(|| error.to_string(), |api| api.message.clone()),
                });
            }
        }
    }
    Ok(Autoscalers::Found(Vec::new()))
}

/// Returns the autoscalers of these namespaces with their targets, in the order of the namespaces.
async fn list_in(
    cluster: &Cluster,
    path: &ResourcePath,
    scope: &[Option<&str>],
) -> Result<Vec<(ObjectId, ObjectId)>, ClusterError> {
    let lists: Vec<List> = stream::iter(scope.to_vec())
        .map(|namespace| async move { cluster.list(path, &Selector::namespace(namespace)).await })
        .buffered(CONCURRENCY)
        .try_collect()
        .await?;
    let mut found = Vec::new();
    for value in lists.iter().flat_map(|list| &list.items) {
        let metadata = &value["metadata"];
        let id = path.id(
            metadata["namespace"].as_str(),
            metadata["name"].as_str().unwrap_or_default(),
        );
        found.extend(scale_target(&id, value).map(|target| (id, target)));
    }
    Ok(found)
}

/// Leaves replica counts to their autoscalers. If the LIST failed, counts that were left before
/// still are, because a reset could remove replicas that the load needs.
pub(super) fn leave(desired: &mut Desired, autoscalers: &Autoscalers, inventory: &Inventory) {
    match autoscalers {
        Autoscalers::NotQueried => {}
        Autoscalers::Found(found) => {
            for (autoscaler, target) in found {
                desired.leave_replicas(target, autoscaler);
            }
        }
        Autoscalers::Unknown { why, forbidden } => {
            let mut left = Ignored::default();
            for manifest in candidates(desired) {
                left.add(manifest, &[FieldPattern::replicas()]);
            }
            let before: Vec<Manifest> = candidates(desired)
                .filter(|manifest| {
                    let entry = inventory.entries.get(manifest.id());
                    entry.and_then(|entry| entry.desired) == Some(left.lean(manifest).digest())
                })
                .cloned()
                .collect();
            for manifest in &before {
                desired.ignored.add(manifest, &[FieldPattern::replicas()]);
            }
            let message = format!(
                "HorizontalPodAutoscalers could not be listed: {why}; replicas are applied as in git, except where an autoscaler controlled them before"
            );
            desired.findings.push(if *forbidden && before.is_empty() {
                Finding::note(Kind::Cluster, "autoscalers-not-seen", message)
            } else {
                Finding::warning(Kind::Cluster, "autoscalers-not-seen", message)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sync::serving::gathering;

    /// The server answers only once as many requests wait as can be sent concurrently.
    #[tokio::test(start_paused = true)]
    async fn namespaces_are_read_in_parallel_and_reported_in_order() {
        let cluster = gathering(CONCURRENCY, |path| {
            let (before, _) = path.rsplit_once('/')?;
            let (_, namespace) = before.rsplit_once('/')?;
            let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "api"});
            let autoscaler = json!({"metadata": {"name": "api", "namespace": namespace},
                "spec": {"scaleTargetRef": target}});
            Some(
                json!({"kind": "HorizontalPodAutoscalerList", "metadata": {},
                "items": [autoscaler]}),
            )
        });
        let names: Vec<String> = (0..2 * CONCURRENCY).map(|one| format!("n{one}")).collect();
        let scope: Vec<Option<&str>> = names.iter().map(|name| Some(name.as_str())).collect();
        let path = ResourcePath::namespaced(
            "autoscaling/v2",
            "HorizontalPodAutoscaler",
            "horizontalpodautoscalers",
        );
        let found = list_in(&cluster, &path, &scope).await.unwrap();
        let found: Vec<Option<&str>> = found
            .iter()
            .map(|(_, target)| target.namespace.as_deref())
            .collect();
        assert_eq!(found, scope);
    }
}
