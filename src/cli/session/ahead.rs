//! Reads of the cluster while the manifests are rendered and checked.
//!
//! Only reads that do not depend on the manifests. [`observe_early`] explains why they are recent
//! enough.

use std::collections::BTreeMap;

use futures::future::join_all;
use pleach_config::{ResolvedEnvironment, ResolvedRelease};
use pleach_model::object::ReleaseName;

use super::{connect_for, declared};
use crate::cli::{Context, Target, error::CliError};
use pleach_cluster::{Cluster, ClusterError};
use pleach_engine::planning::agent;
use pleach_engine::sync::{
    Early, SyncError, observe_early,
    state::{self, Records, Search},
};

/// Number of releases that are read during the rendering. Further releases are read when they are
/// planned, and do not repeat requests that were forbidden to the first.
const RELEASES: usize = 1;

/// Early answers of the cluster, each for one use.
#[derive(Debug, Default)]
pub(super) struct EarlyAnswers {
    /// All releases in the store of the environment. `None` if the target is a single release.
    pub(super) records: Option<Result<Records, ClusterError>>,
    /// Facts about the first releases of the target.
    pub(super) releases: BTreeMap<ReleaseName, Result<Early, SyncError>>,
}

/// Connection and answers for an environment, as its files were before the rendering.
pub(super) struct Ahead {
    environment: ResolvedEnvironment,
    answered: Result<(Cluster, EarlyAnswers), CliError>,
}

impl Ahead {
    /// Returns the connection and the answers for a loaded environment. `None` if its files changed
    /// since, because they name the cluster and the place of the state.
    pub(super) fn of(
        self,
        loaded: &ResolvedEnvironment,
    ) -> Option<Result<(Cluster, EarlyAnswers), CliError>> {
        (self.environment == *loaded).then_some(self.answered)
    }
}

/// Connects and reads. `None` if the environment or the cluster id has errors, which loading and
/// connecting report.
pub(super) async fn read(
    ctx: &Context,
    target: &Target,
    cluster_id: Option<String>,
) -> Option<Ahead> {
    let environment = ctx.resolved(&target.environment)?;
    declared(&environment, cluster_id).ok()?;
    let answered = Box::pin(ask(ctx, target, &environment)).await;
    Some(Ahead {
        environment,
        answered,
    })
}

async fn ask(
    ctx: &Context,
    target: &Target,
    environment: &ResolvedEnvironment,
) -> Result<(Cluster, EarlyAnswers), CliError> {
    let requested = target.release.as_ref();
    let releases = environment.releases.iter();
    let releases: Vec<&ResolvedRelease> = releases
        .filter(|release| requested.is_none_or(|requested| release.name.release == *requested))
        .collect();
    let first = releases.first().map(|release| &release.name);
    let cluster = connect_for(ctx, environment, first).await?;
    let listing = async {
        if requested.is_some() {
            return None;
        }
        let search = Search::In(environment.store.clone());
        Some(state::releases(&cluster, &search).await)
    };
    let reading = releases.into_iter().take(RELEASES).map(|release| {
        let cluster = cluster.clone().with_user_agent(&agent(Some(&release.name)));
        async move {
            let early = observe_early(&cluster, &release.name, &release.store);
            (release.name.clone(), Box::pin(early).await)
        }
    });
    let (records, read) = futures::join!(listing, join_all(reading));
    let answers = EarlyAnswers {
        records,
        releases: read.into_iter().collect(),
    };
    Ok((cluster, answers))
}

#[cfg(test)]
mod tests {
    use pleach_config::ClusterRef;
    use pleach_formats::{policy::PrunePolicy, sync::SyncPolicy};
    use pleach_model::object::Origin;
    use pleach_state::inventory::Store;

    use super::*;

    fn environment(context: &str) -> ResolvedEnvironment {
        ResolvedEnvironment {
            repository: "fleet".to_owned(),
            name: "dev".to_owned(),
            origin: Origin::new("environments/dev.yaml".to_owned(), 0),
            cluster: ClusterRef {
                context: Some(context.to_owned()),
                ..ClusterRef::default()
            },
            store: Store::Release,
            sync: SyncPolicy::default(),
            prune: PrunePolicy::default(),
            protect: Vec::new(),
            consent: Vec::new(),
            releases: Vec::new(),
            findings: Vec::new(),
        }
    }

    #[test]
    fn a_connection_is_used_only_for_the_environment_that_it_was_made_for() {
        let ahead = || Ahead {
            environment: environment("one"),
            answered: Err(CliError::interrupted()),
        };
        assert!(ahead().of(&environment("one")).is_some());
        assert!(ahead().of(&environment("two")).is_none());
    }
}
