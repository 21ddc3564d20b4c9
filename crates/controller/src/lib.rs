//! The controller: syncs environments from the branches that contain them.
//!
//! It is level-based. After any trigger (a push, an interval, a request, a restart) it compares the
//! present state of git with that of the cluster. It then executes the same plans as `apply`. Its
//! whole state is in memory and can be lost.
//!
//! Each repository has a task that fetches, each environment one that renders, each release one
//! that syncs. None of them waits for another. They exchange only the newest value and never a
//! queue, so intermediate values are skipped. All tasks share one thread that mostly waits; slow
//! work (git, rendering) runs elsewhere.
//!
//! The controller reports through [`ControllerEvent`]s, and through the [`SyncEvent`]s of each run. It
//! knows no consumer.

mod approval;
mod artifact;
mod assignment;
mod backoff;
pub mod board;
mod catch_panic;
mod clock;
mod concurrency;
mod connected;
mod crash;
mod describe;
mod drift;
mod environment;
mod event;
mod health;
mod history_lookup;
mod inputs;
mod known_environments;
mod kubernetes_events;
pub mod liveness;
mod loader;
mod observed;
mod plan_facts;
mod pull_requests;
mod recorded_sources;
mod release;
mod removals;
mod replicas;
mod requests;
mod run;
mod self_update;
pub mod server;
mod setup;
mod source;
mod stalled_releases;
pub mod statuses;
mod supervisor;
mod waiting;

use std::sync::Arc;

use pleach_planner::plan::Action;
use pleach_reconciler::{NAMED, config::Disk};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::{JoinSet, LocalSet};
use tokio_util::sync::CancellationToken;

pub use self::artifact::WatchedArtifact;
pub use self::event::{
    ControllerEvent, EnvironmentOwner, EventReceivers, EventSender, RetainedOutcome,
};
pub use self::pull_requests::{Live, Previewed, Previews};
pub use self::replicas::ReplicaGroup;
pub use self::setup::{Repository, Setup, SourcePolicy};
pub use pleach_reconciler::outcome::ReconcileOutcome;

use self::backoff::FetchSchedule;
use self::clock::Clock;
use self::concurrency::ReconcilePermits;
use self::crash::Crashes;
use self::drift::Watches;
use self::liveness::Liveness;
use self::loader::Loader;
use self::pull_requests::PullRequests;
use self::pull_requests::work::slots::Slots;
use self::replicas::{Leadership, Replica};
use self::self_update::SelfUpdate;
use self::source::SourceState;
use self::supervisor::Supervisor;
use pleach_engine::bounded_render::RenderSlots;
use pleach_engine::fetching::Fetcher;
use pleach_engine::sync::Claim as LeaseIdentity;
use pleach_git::budget::Budget;

/// Actions of a plan that count as changes of an object.
const ACTIONS: [Action; 5] = [
    Action::Create,
    Action::Update,
    Action::Recreate,
    Action::Adopt,
    Action::Delete,
];
/// Number of concurrent pull request previews. Low, because syncs have priority.
const PREVIEWS: usize = 2;

/// A task of the controller ended unexpectedly.
#[derive(Debug, thiserror::Error)]
#[error("a task of the controller failed; this is a bug")]
pub struct TaskFailed(#[source] tokio::task::JoinError);

/// Resources that all tasks share.
#[derive(Debug, Clone)]
struct Shared {
    events: EventSender,
    clock: Clock,
    lease_identity: LeaseIdentity,
    watches: Watches,
    self_update: SelfUpdate,
    permits: ReconcilePermits,
    /// Permits to fetch the history of a branch.
    histories: Arc<Semaphore>,
    loader: Loader,
    fetching: Fetching,
    crashes: Crashes,
    stop: CancellationToken,
}

/// Means to fetch branches and their histories.
#[derive(Debug, Clone)]
struct Fetching {
    fetcher: Fetcher,
    /// Disk budget of the copies.
    budget: Budget,
}

/// Handle that triggers an immediate fetch of repositories.
#[derive(Debug, Clone)]
pub struct Trigger {
    triggers: Vec<RepositoryTriggers>,
    /// Number of requests per repository, shared with the other replicas.
    requests: watch::Sender<Vec<u64>>,
}

/// Notifications of the tasks of one repository.
#[derive(Debug, Clone, Default)]
struct RepositoryTriggers {
    source: Arc<Notify>,
    pull_requests: Arc<Notify>,
}

impl Trigger {
    fn new(repositories: usize) -> Self {
        Self {
            triggers: (0..repositories)
                .map(|_| RepositoryTriggers::default())
                .collect(),
            requests: watch::Sender::new(vec![0; repositories]),
        }
    }

    /// Triggers a fetch of the repository at this index, here and in the other replicas. Requests
    /// that arrive during a fetch result in one more fetch.
    pub fn fetch(&self, repository: usize) {
        if let Some(triggers) = self.triggers.get(repository) {
            triggers.source.notify_one();
            self.requests
                .send_modify(|requests| requests[repository] += 1);
        }
    }

    /// Triggers a check of the pull requests of a repository, like [`Self::fetch`].
    pub fn check_pull_requests(&self, repository: usize) {
        if let Some(triggers) = self.triggers.get(repository) {
            triggers.pull_requests.notify_one();
            self.requests
                .send_modify(|requests| requests[repository] += 1);
        }
    }
}

/// The controller, ready to run.
pub struct Controller {
    setup: Setup,
    events: EventSender,
    trigger: Trigger,
    liveness: Liveness,
}

impl Controller {
    /// Creates the controller. Nothing runs yet.
    pub fn new(setup: Setup, events: EventSender) -> Self {
        let trigger = Trigger::new(setup.repositories.len());
        Self {
            setup,
            events,
            trigger,
            liveness: Liveness::default(),
        }
    }

    /// Returns the handle that triggers fetches.
    pub fn trigger(&self) -> Trigger {
        self.trigger.clone()
    }

    /// Returns the liveness of the controller, for the probes.
    pub fn liveness(&self) -> Liveness {
        self.liveness.clone()
    }

    /// Runs until stopped. Work in progress ends at its next safe point.
    pub async fn run(self, stop: CancellationToken) -> Result<(), TaskFailed> {
        LocalSet::new().run_until(self.run_here(stop)).await
    }

    async fn run_here(self, stop: CancellationToken) -> Result<(), TaskFailed> {
        let stop = stop.child_token();
        let (watches, requests) = Watches::new(self.setup.drift_watch);
        let (fetching, changes) = fetching(&self.setup);
        let shared = Shared {
            events: self.events.clone(),
            clock: Clock::start(),
            lease_identity: self.setup.lease_identity,
            watches,
            self_update: SelfUpdate::of(self.setup.own),
            permits: ReconcilePermits::new(self.events.clone()),
            histories: Arc::new(Semaphore::new(1)),
            loader: Loader {
                slots: RenderSlots::by(self.setup.program, self.setup.repositories.len()),
                stop: stop.clone(),
            },
            fetching,
            crashes: Crashes::of(pleach_files::temporary()),
            stop: stop.clone(),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn_local(self.liveness.clone().run_heartbeat(stop.clone()));
        tasks.spawn_local(drift::follow_all(requests, stop.clone()));
        let changed = Arc::new(Notify::new());
        let mut sources = Vec::new();
        let mut fetch_schedules = Vec::new();
        let repositories = self.setup.repositories.iter().zip(&self.trigger.triggers);
        for (index, (repository, triggers)) in repositories.enumerate() {
            let (sender, receiver) = watch::channel(SourceState::default());
            let schedule = FetchSchedule::sharing(self.trigger.requests.clone(), index);
            tasks.spawn_local(source::follow(
                repository.clone(),
                (Arc::clone(&triggers.source), schedule.clone()),
                (sender, Arc::clone(&changed)),
                shared.clone(),
            ));
            sources.push(receiver);
            fetch_schedules.push(schedule);
        }
        let (leadership_sender, mut leadership) = watch::channel(match &self.setup.replica_group {
            None => Leadership::All,
            Some(_) => Leadership::Nothing,
        });
        // Keep the membership until all other tasks have ended.
        let leave = CancellationToken::new();
        let mut membership = JoinSet::new();
        if let Some(replica_group) = self.setup.replica_group {
            let replica = Replica::new(
                replica_group,
                shared.clone(),
                leadership_sender,
                (&self.setup.repositories, &self.trigger),
            );
            membership.spawn_local(replica.run(leave.clone()));
        }
        let slots = Slots::new(PREVIEWS);
        let repositories = self.setup.repositories.iter();
        for (repository, triggers) in repositories.zip(&self.trigger.triggers) {
            let Some(previews) = &repository.previews else {
                continue;
            };
            let pull_requests = PullRequests::new(
                (repository, previews, changes),
                Arc::clone(&triggers.pull_requests),
                (slots.clone(), leadership.clone()),
                shared.clone(),
            );
            tasks.spawn_local(pull_requests.run());
        }
        let mut supervisor = Supervisor::new(&self.setup.repositories, fetch_schedules, shared);
        let ended = loop {
            let states = newest(&mut sources);
            let present = leadership.borrow_and_update().clone();
            supervisor.assign(&states, &present, &mut tasks);
            if states.iter().all(|state| state.was_tried) {
                self.liveness.set_ready();
            }
            tokio::select! {
                () = changed.notified() => {}
                // If the channel is closed, this replica runs alone.
                Ok(()) = leadership.changed() => {}
                () = stop.cancelled() => break Ok(()),
                Some(ended) = tasks.join_next() => if let Err(error) = ended
                    && !error.is_cancelled()
                {
                    break Err(TaskFailed(error));
                },
                // If the membership task panics, its Lease expires and the other replicas
                // become leaders.
                Some(ended) = membership.join_next() => if let Err(error) = ended {
                    tasks.abort_all();
                    break Err(TaskFailed(error));
                },
            }
        };
        self.liveness.set_draining();
        stop.cancel();
        let mut ended = ended.and(drain(&mut tasks, &mut membership, &mut leadership).await);
        leave.cancel();
        while let Some(task) = membership.join_next().await {
            ended = ended.and_then(|()| task.map_err(TaskFailed));
        }
        ended
    }
}

/// Returns the latest state of each source.
fn newest(sources: &mut [watch::Receiver<SourceState>]) -> Vec<SourceState> {
    let sources = sources.iter_mut();
    sources
        .map(|source| source.borrow_and_update().clone())
        .collect()
}

/// Creates the fetcher with its disk budget, and the disk space for the changes of each repository.
fn fetching(setup: &Setup) -> (Fetching, Disk) {
    let previewed = setup.repositories.iter();
    let previewed = previewed.filter(|one| one.previews.is_some()).count();
    let (for_branches, for_changes) = shares(setup.disk.budget, previewed);
    let fetching = Fetching {
        fetcher: Fetcher::by(setup.program.clone()),
        budget: Budget::of(for_branches),
    };
    let changes = Disk {
        budget: for_changes,
        fork_head: setup.disk.fork_head,
    };
    (fetching, changes)
}

/// Divides the disk budget into bytes for all branches with their histories, and bytes for the
/// changes of each previewed repository. Changes are untrusted, so they cannot use up the space of
/// branches or of other repositories.
fn shares(budget: u64, previewed: usize) -> (u64, u64) {
    if previewed == 0 {
        return (budget, 0);
    }
    let for_changes = budget / 2;
    (budget - for_changes, for_changes / previewed as u64)
}

/// Waits until all tasks have ended. Aborts them if this replica leaves the group meanwhile.
async fn drain(
    tasks: &mut JoinSet<()>,
    membership: &mut JoinSet<()>,
    leadership: &mut watch::Receiver<Leadership>,
) -> Result<(), TaskFailed> {
    let mut ended = Ok(());
    loop {
        tokio::select! {
            task = tasks.join_next() => match task {
                None => return ended,
                Some(Err(error)) if !error.is_cancelled() => {
                    ended = ended.and(Err(TaskFailed(error)));
                }
                Some(_) => {}
            },
            Ok(()) = leadership.changed() => if *leadership.borrow_and_update() == Leadership::Nothing {
                tasks.abort_all();
            },
            Some(task) = membership.join_next() => if let Err(error) = task {
                tasks.abort_all();
                ended = ended.and(Err(TaskFailed(error)));
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn changes_do_not_use_the_disk_space_of_branches() {
        for (previewed, expected) in [(0, (3000, 0)), (1, (1500, 1500)), (3, (1500, 500))] {
            assert_eq!(shares(3000, previewed), expected, "{previewed}");
        }
    }

    #[tokio::test]
    async fn work_is_aborted_if_the_membership_task_panics() {
        let mut tasks: JoinSet<()> = JoinSet::new();
        tasks.spawn(std::future::pending());
        let mut membership: JoinSet<()> = JoinSet::new();
        membership.spawn(async { panic!("a bug") });
        let (_standing, mut leadership) = watch::channel(Leadership::All);
        let ended = drain(&mut tasks, &mut membership, &mut leadership).await;
        assert!(ended.unwrap_err().0.is_panic());
    }

    #[tokio::test]
    async fn work_is_aborted_if_leadership_is_lost_while_draining() {
        let mut tasks: JoinSet<()> = JoinSet::new();
        tasks.spawn(std::future::pending());
        let mut membership: JoinSet<()> = JoinSet::new();
        membership.spawn(std::future::pending());
        let (leadership_sender, mut leadership) = watch::channel(Leadership::All);
        leadership_sender.send_replace(Leadership::Nothing);
        let draining = drain(&mut tasks, &mut membership, &mut leadership);
        let ended = tokio::time::timeout(Duration::from_secs(10), draining).await;
        assert!(ended.unwrap().is_ok());
    }
}
