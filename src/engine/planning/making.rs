//! Makes plans in threads of their own: the tasks of others go on meanwhile.

use std::panic::resume_unwind;
use std::time::Duration;

use pleach_domain::check::Looked;
use pleach_domain::depends::Hindrance;
use pleach_domain::observe::{Grants, Observed, Surroundings};
use pleach_domain::plan::{self, Desired, Plan, Policy, Removal};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::engine::sync::{Observation, SyncError, look_into_namespaces};
use crate::io::cluster::Cluster;

/// How many are made at the same time: each may use up the budget of a plan.
static TURNS: Semaphore = Semaphore::const_new(2);
/// How long one may take. The planner counts what it does, and gives up long before.
const LIMIT: Duration = Duration::from_mins(1);

/// What the plan of a release is made from.
pub(super) struct Making {
    pub(super) desired: Desired,
    pub(super) observation: Observation,
    pub(super) policy: Policy,
    /// Set where the release goes as a whole.
    pub(super) removal: Option<Removal>,
}

/// What the cluster answered to the questions of a plan.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// What was looked at for checks, by their names.
    pub(super) checked: Vec<(String, Looked)>,
    pub(super) surroundings: Option<Surroundings>,
    pub(super) hindrances: Vec<Hindrance>,
    pub(super) access: Grants,
}

impl Answers {
    /// Whether a plan is another one with them than with [`Surroundings`] that are clear and
    /// no other answer.
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

    pub(super) fn tell(self, observed: &mut Observed) {
        observed.checked.extend(self.checked);
        observed.surroundings = self.surroundings;
        observed.hindrances.extend(self.hindrances);
        observed.access = self.access;
    }
}

/// Makes a plan that knows what lies in the namespaces that it deletes: what it needs
/// otherwise depends on whether they go.
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
    /// Makes the plan from what is known now. A panic of the planner is one of the caller.
    pub(super) async fn plan(self) -> Result<(Self, Plan), SyncError> {
        // It is never closed.
        let turn = TURNS.acquire().await.ok();
        let release = self.desired.name.to_string();
        let making = spawn_blocking(move || {
            let plan = self.make();
            // One that takes too long keeps its turn until it ends.
            drop(turn);
            (self, plan)
        });
        match timeout(LIMIT, making).await {
            Ok(Ok(made)) => Ok(made),
            Ok(Err(ended)) => match ended.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // Nobody ends it but the end of all.
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
