//! Which replicas are left to autoscalers that live in the cluster.
//!
//! Those that git has are known before; those of others are found by one LIST,
//! and only when an object says how many replicas it wants.

use std::collections::BTreeSet;

use pleach_domain::finding::{Finding, Kind};
use pleach_domain::ignore::{FieldPattern, Ignored, scale_target, wants_replicas};
use pleach_domain::inventory::Inventory;
use pleach_domain::object::{GroupKind, Manifest, ObjectId};
use pleach_domain::observe::Discovery;
use pleach_domain::plan::Desired;

use super::ends_observation;
use crate::engine::sync::error::SyncError;
use crate::io::cluster::{Class, Cluster, ClusterError, ResourcePath, Selector};

/// What the LIST brought.
pub(super) enum Autoscalers {
    /// Nobody wants to know.
    NotAsked,
    /// Autoscalers and what they scale.
    Found(Vec<(ObjectId, ObjectId)>),
    /// They could not be listed.
    Unknown {
        /// Why.
        why: String,
        /// Whether we may not.
        forbidden: bool,
    },
}

/// Objects that say how many replicas they want.
fn candidates(desired: &Desired) -> impl Iterator<Item = &Manifest> {
    let replicas = FieldPattern::replicas();
    desired.manifests.iter().filter(move |manifest| {
        wants_replicas(manifest) && !desired.ignored.of(manifest.id()).contains(&replicas)
    })
}

/// Lists the autoscalers, cluster-wide or where the objects lie.
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
        return Ok(Autoscalers::NotAsked);
    };
    let mut found = Vec::new();
    let everywhere = [None];
    let each: Vec<Option<&str>> = namespaces.into_iter().map(Some).collect();
    // An autoscaler lies beside what it scales: one namespace is asked alone.
    let scopes: &[&[Option<&str>]] = if each.len() == 1 {
        &[&each]
    } else {
        &[&everywhere, &each]
    };
    for scope in scopes {
        found.clear();
        match list_in(cluster, &path, scope, &mut found).await {
            Ok(()) => return Ok(Autoscalers::Found(found)),
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
    Ok(Autoscalers::Found(found))
}

async fn list_in(
    cluster: &Cluster,
    path: &ResourcePath,
    scope: &[Option<&str>],
    found: &mut Vec<(ObjectId, ObjectId)>,
) -> Result<(), ClusterError> {
    for namespace in scope {
        let list = cluster.list(path, &Selector::namespace(*namespace)).await?;
        for value in &list.items {
            let metadata = &value["metadata"];
            let id = path.id(
                metadata["namespace"].as_str(),
                metadata["name"].as_str().unwrap_or_default(),
            );
            found.extend(scale_target(&id, value).map(|target| (id, target)));
        }
    }
    Ok(())
}

/// Leaves to the autoscalers what they scale. Where they could not be listed,
/// what was left to one the last time still is: to set it back may take away
/// what the load needs.
pub(super) fn leave(desired: &mut Desired, autoscalers: &Autoscalers, inventory: &Inventory) {
    match autoscalers {
        Autoscalers::NotAsked => {}
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
                "HorizontalPodAutoscalers could not be listed: {why}; replicas are as git says unless they were left to one before"
            );
            desired.findings.push(if *forbidden && before.is_empty() {
                Finding::note(Kind::Cluster, "autoscalers-not-seen", message)
            } else {
                Finding::warning(Kind::Cluster, "autoscalers-not-seen", message)
            });
        }
    }
}
