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
pub(super) struct Recalled {
    /// Index of the source policy within the repository.
    pub(super) grant: usize,
    pub(super) environment: String,
    pub(super) branch: String,
}

/// Lookup for source policies with a branch pattern. Other source policies list their environments.
pub(super) struct Recall {
    /// Indices of source policies whose cluster did not answer yet.
    open: Vec<usize>,
}

impl Recall {
    pub(super) fn new(repository: &Repository) -> Self {
        let grants = repository.grants.iter().enumerate();
        let patterns =
            grants.filter(|(_, grant)| matches!(grant.branches, Branches::Pattern { .. }));
        Self {
            open: patterns.map(|(position, _)| position).collect(),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Queries each cluster that has not answered yet.
    pub(super) async fn inspect(&mut self, repository: &Repository) -> BTreeSet<Recalled> {
        let mut found = BTreeSet::new();
        for position in std::mem::take(&mut self.open) {
            let grant = &repository.grants[position];
            match Box::pin(recorded(grant)).await {
                Ok(there) => {
                    found.extend(there.into_iter().map(|(environment, branch)| Recalled {
                        grant: position,
                        environment,
                        branch,
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
    grant: &SourcePolicy,
    environment: &str,
) -> Result<BTreeSet<Source>, String> {
    let (cluster, releases) = records(grant).await?;
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
        if is_meant(grant, &cluster, &release).await
            && state::is_genuine(&cluster, &release.name, &release.store, record).await
        {
            found.insert(source.clone());
        }
    }
    Ok(found)
}

/// Returns recorded environments with their branches.
async fn recorded(grant: &SourcePolicy) -> Result<Vec<(String, String)>, String> {
    let (cluster, releases) = records(grant).await?;
    let mut found = Vec::new();
    for release in releases {
        let record = release.record.as_ref().ok();
        let source = record.and_then(|record| record.source.clone());
        let Some(source) = source.filter(|source| source.url == grant.url) else {
            continue;
        };
        let environment = &release.name.environment;
        let holds = grant.branches.environment(&source.branch) == Some(environment.as_str());
        if holds && is_meant(grant, &cluster, &release).await {
            found.push((environment.clone(), source.branch));
        }
    }
    Ok(found)
}

async fn records(grant: &SourcePolicy) -> Result<(Cluster, Vec<ReleaseSummary>), String> {
    let mut connection = grant.connection.clone();
    connection.user_agent = agent(None);
    let cluster = Cluster::connect(&connection).await;
    let cluster = cluster.map_err(|error| words(&error))?;
    let records = state::releases(&cluster, &Search::Everywhere).await;
    let releases = records.map_err(|error| words(&error))?.releases;
    Ok((cluster, releases))
}

/// Returns whether a record belongs to the declared cluster of a source policy, if any.
async fn is_meant(grant: &SourcePolicy, cluster: &Cluster, release: &ReleaseSummary) -> bool {
    match grant.cluster.as_ref().or(grant.fallback.as_ref()) {
        Some(ClusterId(id)) => is_cluster(cluster, &release.store, id).await == Some(true),
        None => true,
    }
}
