//! Makes plans in threads of their own: the tasks of others go on meanwhile.

use std::panic::resume_unwind;
use std::time::Duration;

use pleach_domain::plan::{self, Desired, Plan, Policy, Removal};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::engine::sync::{Observation, SyncError};

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
