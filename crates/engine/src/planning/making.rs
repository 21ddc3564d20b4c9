//! Planning on separate threads, so that it does not block the tasks of other releases.

use std::panic::resume_unwind;
use std::time::Duration;

use pleach_config::dependencies::Hindrance;
use pleach_formats::check::Looked;
use pleach_planner::observe::{Grants, Observed, Surroundings};
use pleach_planner::plan::{self, Desired, Plan, Policy, Removal};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::sync::{Observation, SyncError, look_into_namespaces};
use pleach_cluster::Cluster;

/// Permits for concurrent plans. Each plan can use its whole budget.
static TURNS: Semaphore = Semaphore::const_new(2);
/// Time limit of a plan. The planner counts its work and normally gives up long before.
const LIMIT: Duration = Duration::from_mins(1);

/// Input of the plan of a release.
pub(super) struct Making {
    pub(super) desired: Desired,
    pub(super) observation: Observation,
    pub(super) policy: Policy,
    /// Set to uninstall the whole release.
    pub(super) removal: Option<Removal>,
}

/// Answers of the cluster to the questions of a plan.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Observed objects of checks, by check name.
    pub(super) checked: Vec<(String, Looked)>,
    pub(super) surroundings: Option<Surroundings>,
    pub(super) hindrances: Vec<Hindrance>,
    pub(super) access: Grants,
}

impl Answers {
    /// Returns whether the answers can change the plan, compared with default [`Surroundings`] and
    /// no other answers.
    pub(super) fn are_news(&self) -> bool {
        let Self {
            checked,
            surroundings,
            hindrances,
            access,
        } = self;
        let is_granted = access.is_enough() && access.user.is_none();
        let is_clear = hindrances.is_empty() && is_granted;
        let is_around = surroundings.as_ref().is_some_and(|found| !found.is_clear());
        !checked.is_empty() || is_around || !is_clear
    }

    pub(super) fn report(self, observed: &mut Observed) {
        observed.checked.extend(self.checked);
        observed.surroundings = self.surroundings;
        observed.hindrances.extend(self.hindrances);
        observed.access = self.access;
    }
}

/// Plans with the content of the namespaces that the plan deletes. The content decides whether they
/// can be deleted, which affects the rest of the plan.
pub(super) async fn settle_namespaces(
    cluster: &Cluster,
    making: Making,
) -> Result<(Making, Plan), SyncError> {
    let (mut making, plan) = making.plan().await?;
    let observed = &mut making.observation.observed;
    let contents = look_into_namespaces(cluster, observed, &plan).await;
    if contents.is_empty() {
        return Ok((making, plan));
    }
    observed.contents.extend(contents);
    making.plan().await
}

impl Making {
    /// Plans from the present facts. Propagates a panic of the planner.
    pub(super) async fn plan(self) -> Result<(Self, Plan), SyncError> {
        // The semaphore is never closed.
        let turn = TURNS.acquire().await.ok();
        let release = self.desired.name.to_string();
        let making = spawn_blocking(move || {
            let plan = self.make();
            // A plan beyond the time limit keeps its permit until it ends.
            drop(turn);
            (self, plan)
        });
        match timeout(LIMIT, making).await {
            Ok(Ok(made)) => Ok(made),
            Ok(Err(ended)) => match ended.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // Canceled only at shutdown of the runtime.
                Err(_) => Err(SyncError::TooLong {
                    release,
                    limit: LIMIT,
                }),
            },
            Err(_) => Err(SyncError::TooLong {
                release,
                limit: LIMIT,
            }),
        }
    }

    fn make(&self) -> Plan {
        let Self {
            desired,
            observation,
            policy,
            removal,
        } = self;
        let observed = &observation.observed;
        match removal {
            Some(removal) => plan::remove(desired, removal, observed, policy),
            None => plan::plan(desired, observed, policy),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surroundings_are_news_only_where_a_plan_points_something_out() {
        let answers = |cordoned: &[&str]| Answers {
            surroundings: Some(Surroundings {
                nodes: Some(3),
                cordoned: cordoned.iter().map(|&name| name.to_owned()).collect(),
                ..Surroundings::default()
            }),
            ..Answers::default()
        };
        assert!(!Answers::default().are_news());
        assert!(!answers(&[]).are_news());
        assert!(answers(&["node"]).are_news());
    }
}
