//! Lookup of environments in the records of clusters. It finds the environments and branches of an
//! unreachable repository, and the previous branch of a contested environment.

use std::collections::BTreeSet;

use pleach_planner::observe::ClusterId;
use pleach_reconciler::config::Branches;
use pleach_state::inventory::{ReleaseSummary, Source};

use super::{Repository, SourcePolicy};
use pleach_cluster::Cluster;
use pleach_engine::{
    planning::agent,
    sync::{
        is_cluster,
        state::{self, Search},
    },
    words,
};

/// An environment that was synced from a branch before.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RecordedEnvironment {
    /// Index of the source policy within the repository.
    pub(super) source_policy: usize,
    pub(super) environment: String,
    pub(super) branch: String,
}

/// Lookup for source policies with a branch pattern. Other source policies list their environments.
pub(super) struct EnvironmentLookup {
    /// Indices of source policies whose cluster did not answer yet.
    open: Vec<usize>,
}

impl EnvironmentLookup {
    pub(super) fn new(repository: &Repository) -> Self {
        let source_policies = repository.source_policies.iter().enumerate();
        let patterns = source_policies.filter(|(_, source_policy)| {
            matches!(source_policy.branches, Branches::Pattern { .. })
        });
        Self {
            open: patterns.map(|(position, _)| position).collect(),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Queries each cluster that has not answered yet.
    pub(super) async fn query(&mut self, repository: &Repository) -> BTreeSet<RecordedEnvironment> {
        let mut found = BTreeSet::new();
        for position in std::mem::take(&mut self.open) {
            let source_policy = &repository.source_policies[position];
            match Box::pin(recorded(source_policy)).await {
                Ok(there) => {
                    found.extend(there.into_iter().map(|(environment, branch)| {
                        RecordedEnvironment {
                            source_policy: position,
                            environment,
                            branch,
                        }
                    }));
                }
                Err(error) => {
                    tracing::debug!(repository = %repository.name, %error, "failed to look up the environments of a cluster");
                    self.open.push(position);
                }
            }
        }
        found
    }
}

/// Returns the source branches in authentic records of an environment, on the cluster of a source
/// policy.
pub(super) async fn sources(
    source_policy: &SourcePolicy,
    environment: &str,
) -> Result<BTreeSet<Source>, String> {
    let (cluster, releases) = records(source_policy).await?;
    let mut found = BTreeSet::new();
    for release in releases {
        if release.name.environment != environment {
            continue;
        }
        let Ok(record) = &release.record else {
            continue;
        };
        let Some(source) = &record.source else {
            continue;
        };
        if is_intended(source_policy, &cluster, &release).await
            && state::is_genuine(&cluster, &release.name, &release.store, record).await
        {
            found.insert(source.clone());
        }
    }
    Ok(found)
}

/// Returns recorded environments with their branches.
async fn recorded(source_policy: &SourcePolicy) -> Result<Vec<(String, String)>, String> {
    let (cluster, releases) = records(source_policy).await?;
    let mut found = Vec::new();
    for release in releases {
        let record = release.record.as_ref().ok();
        let source = record.and_then(|record| record.source.clone());
        let Some(source) = source.filter(|source| source.url == source_policy.url) else {
            continue;
        };
        let environment = &release.name.environment;
        let contains =
            source_policy.branches.environment(&source.branch) == Some(environment.as_str());
        if contains && is_intended(source_policy, &cluster, &release).await {
            found.push((environment.clone(), source.branch));
        }
    }
    Ok(found)
}

async fn records(source_policy: &SourcePolicy) -> Result<(Cluster, Vec<ReleaseSummary>), String> {
    let mut connection = source_policy.connection.clone();
    connection.user_agent = agent(None);
    let cluster = Cluster::connect(&connection).await;
    let cluster = cluster.map_err(|error| words(&error))?;
    let records = state::releases(&cluster, &Search::Everywhere).await;
    let releases = records.map_err(|error| words(&error))?.releases;
    Ok((cluster, releases))
}

/// Returns whether a record belongs to the declared cluster of a source policy, if any.
async fn is_intended(
    source_policy: &SourcePolicy,
    cluster: &Cluster,
    release: &ReleaseSummary,
) -> bool {
    match source_policy
        .cluster
        .as_ref()
        .or(source_policy.fallback.as_ref())
    {
        Some(ClusterId(id)) => is_cluster(cluster, &release.store, id).await == Some(true),
        None => true,
    }
}
