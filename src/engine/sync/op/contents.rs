//! What lies in a namespace that is about to be deleted.
//!
//! A namespace with objects of others is never deleted. The plan cannot know
//! that for sure: what is in there when the deletion is sent is what counts.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use futures::stream::{self, StreamExt as _};
use pleach_domain::inventory::EntryState;
use pleach_domain::object::{ApiVersion, ObjectId};
use pleach_domain::observe::{Freshness, LiveMeta};
use pleach_domain::plan::Op;

use super::{Operator, failure};
use crate::engine::sync::CONCURRENCY;
use crate::engine::sync::report::{Failure, FailureKind};
use crate::io::cluster::{Class, ResourcePath, Selector};

/// Objects that are named before the rest is counted.
const NAMED: usize = 3;

/// Kinds that the cluster makes by itself beside objects, and that go with them.
const BY_THE_CLUSTER: [(&str, &str); 4] = [
    ("", "Event"),
    ("events.k8s.io", "Event"),
    ("", "Endpoints"),
    ("discovery.k8s.io", "EndpointSlice"),
];

impl Operator<'_> {
    /// Refuses to go on while objects of others lie in a namespace, or while
    /// that cannot be told.
    pub(super) async fn ensure_empty(&self, namespace: &ObjectId) -> Result<(), Failure> {
        let found = self.contents(&namespace.name).await?;
        // What has an owner that goes too, or that counts itself, is no reason.
        let owners: BTreeSet<&str> = found
            .iter()
            .map(|(_, meta)| meta.uid.as_str())
            .chain(self.plan.steps.iter().filter_map(|step| match &step.op {
                Op::Delete(deletion) => Some(deletion.uid()),
                _ => None,
            }))
            .collect();
        let mut others: Vec<String> = found
            .iter()
            .filter(|(id, _)| !self.is_known(id))
            .filter(|(_, meta)| !meta.owners.iter().any(|uid| owners.contains(uid.as_str())))
            .map(|(id, _)| id.to_string())
            .collect();
        if others.is_empty() {
            return Ok(());
        }
        others.sort();
        let more = others.len().saturating_sub(NAMED);
        others.truncate(NAMED);
        if more > 0 {
            others.push(format!("and {more} more"));
        }
        Err(Failure {
            kind: FailureKind::Conflict,
            message: format!("it holds objects of others: {}", others.join(", ")),
            hint: Some("delete or move them first, or take back the consent".to_owned()),
        })
    }

    /// Everything in a namespace. A kind that cannot be listed may hide something.
    async fn contents(&self, namespace: &str) -> Result<Vec<(ObjectId, LiveMeta)>, Failure> {
        let mut kinds = Vec::new();
        for (group, served) in &self.paths.discovery().groups {
            let mut seen = BTreeSet::new();
            for version in &served.versions {
                if version.freshness == Freshness::Stale {
                    return Err(unknown(&format!(
                        "the server behind {group}/{} does not answer",
                        version.version
                    )));
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
        let lists: Vec<_> = stream::iter(kinds)
            .map(|path| async move {
                let selector = Selector {
                    namespace: Some(namespace),
                    ..Selector::default()
                };
                let list = self
                    .cluster
                    .list_metadata(&path, &selector, &self.manager)
                    .await;
                (path, list)
            })
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
        let mut found = Vec::new();
        for (path, list) in lists {
            match list {
                Ok(list) => found.extend(list.items),
                // Its definition went with the release.
                Err(error)
                    if matches!(error.class(), Some(Class::KindNotServed | Class::NotFound)) => {}
                Err(error) => {
                    let why = failure(&error).message;
                    return Err(unknown(&format!("{} cannot be listed: {why}", path.plural)));
                }
            }
        }
        Ok(found)
    }

    /// Whether the cluster itself or the workloads of the release made it.
    fn is_known(&self, id: &ObjectId) -> bool {
        let by_the_cluster = BY_THE_CLUSTER
            .iter()
            .any(|(group, kind)| id.is(group, kind))
            || (id.is("", "ConfigMap") && id.name == "kube-root-ca.crt")
            || (id.is("", "ServiceAccount") && id.name == "default");
        let inventory = self
            .inventory
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        by_the_cluster
            || inventory
                .entries
                .get(id)
                .is_some_and(|entry| entry.state == EntryState::Observed)
    }
}

fn unknown(why: &str) -> Failure {
    Failure::new(
        FailureKind::Cluster,
        format!("what lies in it cannot be told: {why}"),
    )
}
