//! Releases that actions can be about: their cluster and the store of their record.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pleach_cluster::{Cluster, ClusterError};
use pleach_engine::planning::agent;
use pleach_engine::sync::{is_cluster, state};
use pleach_model::object::ReleaseName;
use pleach_state::inventory::{ReleaseSummary, Store};
use state::Search;

use crate::SourcePolicy;
use crate::server::ui::auth::{KnownRelease, KnownReleases};

/// Time-out of each request to a cluster.
const REQUEST: Duration = Duration::from_secs(4);

/// Releases of the source policies.
pub(super) struct ActionTargets {
    source_policies: Vec<Arc<SourcePolicy>>,
    known: KnownReleases,
}

/// An installed release.
pub(super) struct ActionTarget {
    pub(super) cluster: Cluster,
    pub(super) release: ReleaseSummary,
}

/// Result of the search for a release.
pub(super) enum Found {
    One(Box<ActionTarget>),
    Nothing,
    /// Several clusters or namespaces have a release of this name.
    Several,
}

impl ActionTarget {
    /// Returns the release for a review of permissions.
    pub(super) fn known(&self) -> KnownRelease {
        KnownRelease {
            name: self.release.name.clone(),
            namespace: match &self.release.store {
                Store::Release => None,
                Store::ConfigMap { namespace } => Some(namespace.clone()),
            },
        }
    }
}

impl ActionTargets {
    pub(super) fn new(source_policies: Vec<Arc<SourcePolicy>>, known: KnownReleases) -> Self {
        Self {
            source_policies,
            known,
        }
    }

    /// Returns the releases of this name that the controller knows.
    pub(super) fn known(&self, name: &ReleaseName) -> Vec<KnownRelease> {
        let known = (self.known)().into_iter();
        known.filter(|release| release.name == *name).collect()
    }

    /// Finds a release by its name. Fails if a cluster does not answer and no other one has it.
    pub(super) async fn find(&self, name: &ReleaseName) -> Result<Found, ClusterError> {
        let search = self.search(name);
        let mut found = Vec::new();
        let mut failed = None;
        let mut seen = BTreeSet::new();
        for policy in &self.source_policies {
            let cluster = policy.cluster.as_ref().map(|id| &id.0);
            let is_candidate = policy.branches.branch(&name.environment).is_some();
            if !is_candidate || cluster.is_some_and(|id| !seen.insert(id)) {
                continue;
            }
            match find_in(policy, name, &search).await {
                Ok(targets) => found.extend(targets),
                Err(error) => failed = Some(error),
            }
        }
        let first = found.pop();
        match (first, found.is_empty(), failed) {
            (Some(target), true, _) => Ok(Found::One(Box::new(target))),
            (Some(_), false, _) => Ok(Found::Several),
            (None, _, Some(error)) => Err(error),
            (None, _, None) => Ok(Found::Nothing),
        }
    }

    /// Returns the location of the record, as far as it is known. An account can lack the permission
    /// to search everywhere.
    fn search(&self, name: &ReleaseName) -> Search {
        let known = self.known(name).into_iter();
        let namespaces: BTreeSet<String> = known.filter_map(|release| release.namespace).collect();
        match namespaces.first() {
            Some(namespace) if namespaces.len() == 1 => Search::In(Store::ConfigMap {
                namespace: namespace.clone(),
            }),
            _ => Search::Everywhere,
        }
    }
}

async fn find_in(
    policy: &SourcePolicy,
    name: &ReleaseName,
    search: &Search,
) -> Result<Vec<ActionTarget>, ClusterError> {
    let mut connection = policy.connection.clone();
    connection.user_agent = agent(Some(name));
    connection.connect_timeout = REQUEST;
    connection.request_timeout = REQUEST;
    connection.patience = REQUEST;
    let cluster = Cluster::connect(&connection).await?;
    let mut targets = Vec::new();
    for release in state::release(&cluster, name, search).await? {
        if let Some(id) = &policy.cluster
            && is_cluster(&cluster, &release.store, &id.0).await != Some(true)
        {
            continue;
        }
        targets.push(ActionTarget {
            cluster: cluster.clone(),
            release,
        });
    }
    Ok(targets)
}
