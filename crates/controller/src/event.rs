//! Events of the controller.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pleach_model::object::ReleaseName;
use pleach_page::facts::ReleaseFacts;
use pleach_planner::plan::Action;
use pleach_reconciler::config::StateChange;
use pleach_reconciler::outcome::ReconcileOutcome;
use pleach_state::inventory::ReleaseSummary;
use tokio::sync::mpsc;

use super::pull_requests::Previewed;
use pleach_engine::sync::events::{Events, SyncEvent};

/// Capacity of the queue of controller events.
const EVENTS: usize = 16_384;
/// Capacity of the queue of run events.
const SYNCS: usize = 4_096;

/// Event of the controller.
#[derive(Debug, Clone)]
pub enum ControllerEvent {
    /// The branches of a repository were fetched.
    Fetched {
        /// The repository.
        repository: String,
        /// Number of followed branches.
        branches: usize,
        /// Duration of the fetch.
        took: Duration,
    },
    /// A repository is unreachable.
    SourceUnreachable {
        /// The repository.
        repository: String,
        /// The error.
        message: String,
    },
    /// The number of replicas changed.
    ReplicasChanged {
        /// Number of replicas including this one; 0 while it is not connected to them.
        replicas: usize,
    },
    /// This replica became the leader of an environment, or stopped being it.
    LeadershipChanged {
        /// The environment.
        environment: String,
        /// Whether it is the leader.
        leads: bool,
    },
    /// Releases of a cluster, among them those of environments that other replicas lead.
    Recorded {
        /// These environments, with the names of their leaders.
        environments: BTreeMap<String, String>,
        /// The releases, or the reason why they cannot be read.
        releases: Result<Arc<[ReleaseSummary]>, String>,
    },
    /// Releases of environments of other replicas are not reported any more.
    Unobserved {
        /// The environments.
        environments: BTreeSet<String>,
    },
    /// Another replica syncs an environment on a cluster now, or none does.
    OwnerChanged {
        /// The environment.
        environment: String,
        /// The cluster id, if the configuration declares one.
        cluster: Option<String>,
        /// The replica that syncs it now.
        owner: EnvironmentOwner,
    },
    /// An environment was loaded at a new commit.
    EnvironmentLoaded {
        /// The repository.
        repository: String,
        /// The environment.
        environment: String,
        /// The cluster id, if the configuration declares one.
        cluster: Option<String>,
        /// The commit.
        revision: String,
        /// Its releases, including stalled ones.
        releases: Vec<String>,
        /// Releases that are stalled at the commit, with the reason in one line.
        stalled: BTreeMap<String, String>,
        /// Duration of the load.
        took: Duration,
    },
    /// A commit did not change an environment.
    EnvironmentUnchanged {
        /// The environment.
        environment: String,
        /// The cluster id, if the configuration declares one.
        cluster: Option<String>,
        /// The commit.
        revision: String,
        /// Duration of the load; `None` if no input file changed and nothing was loaded.
        took: Option<Duration>,
    },
    /// An environment is stalled: no newer commit is synced until a user acts.
    EnvironmentStalled {
        /// The repository.
        repository: String,
        /// The environment.
        environment: String,
        /// The cluster id, if the configuration declares one.
        cluster: Option<String>,
        /// The commit that caused it, if one did.
        revision: Option<String>,
        /// One word.
        reason: String,
        /// One line.
        message: String,
    },
    /// The cluster of an environment is unreachable.
    ClusterUnreachable {
        /// The environment.
        environment: String,
        /// The error.
        message: String,
    },
    /// A reconcile of a release started.
    ReconcileStarted {
        /// Environment and release.
        release: ReleaseName,
    },
    /// The number of releases that wait for a reconcile permit changed.
    QueueChanged {
        /// Number of waiting releases.
        waiting: usize,
    },
    /// A release was observed and planned.
    Planned {
        /// Environment and release.
        release: ReleaseName,
        /// Whether its cluster answered.
        answered: bool,
        /// Facts of the plan for the web page. `None` without a page, without a plan, and for a
        /// revision that is retained while a newer one waits.
        facts: Option<Arc<ReleaseFacts>>,
        /// Duration of both.
        took: Duration,
    },
    /// The execution of a plan is about to start.
    Applying {
        /// Environment and release.
        release: ReleaseName,
        /// The revision.
        revision: String,
        /// Numbers of objects to create, update and delete, as text.
        changes: String,
    },
    /// The execution of a plan finished, with any outcome.
    PlanExecuted {
        /// Environment and release.
        release: ReleaseName,
        /// Number of objects per action; empty if it failed.
        objects: Vec<(Action, usize)>,
        /// Duration of the execution.
        took: Duration,
    },
    /// A reconcile after a watch event found drift.
    DriftDetected {
        /// Environment and release.
        release: ReleaseName,
        /// Number of drifted objects.
        objects: usize,
    },
    /// The readiness of a reconciled release was checked.
    HealthChecked {
        /// Environment and release.
        release: ReleaseName,
        /// Whether an object is not ready.
        is_degraded: bool,
    },
    /// Other field managers keep writing to fields of a release, or stopped doing so.
    Contended {
        /// Environment and release.
        release: ReleaseName,
        /// Number of fields that pleach leaves alone.
        fields: usize,
    },
    /// The state of a release changed, for notifications.
    StateChanged(StateChange),
    /// A reconcile of a release finished.
    ReconcileFinished {
        /// Environment and release.
        release: ReleaseName,
        /// The cluster id, if the configuration declares one.
        cluster: Option<String>,
        /// The desired revision.
        revision: String,
        /// The outcome.
        outcome: ReconcileOutcome,
        /// The reason in one line, if any; the counts for a deployment.
        message: String,
        /// Whether it only corrected drift. The message then names objects and managers.
        is_correction: bool,
        /// The message for the public: codes and objects, without text from servers or users. Empty
        /// if the outcome needs no explanation.
        public_message: String,
        /// Outcome for the last applied revision, if the desired one waits.
        retained: Option<RetainedOutcome>,
        /// Duration of the reconcile.
        took: Duration,
    },
    /// A pull request was previewed.
    Previewed {
        /// The repository.
        repository: String,
        /// Its number.
        number: u64,
        /// Its newest commit.
        head: String,
        /// The outcome.
        previewed: Previewed,
        /// One line.
        message: String,
        /// Duration of the preview.
        took: Duration,
    },
    /// The forge of a repository could not be queried for pull requests.
    ForgeUnreachable {
        /// The repository.
        repository: String,
        /// The error.
        message: String,
    },
}

/// Replica that syncs an environment on a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnvironmentOwner {
    /// This replica.
    ThisReplica,
    /// Another replica, or another task of this one.
    Other,
    /// None: no branch contains it, or several do.
    None,
}

/// Outcome for the last applied revision, which is retained while a newer one waits.
#[derive(Debug, Clone)]
pub struct RetainedOutcome {
    /// The revision.
    pub revision: String,
    /// The outcome.
    pub outcome: ReconcileOutcome,
    /// The reason in one line, if any.
    pub message: String,
}

impl ControllerEvent {
    /// Returns whether the event is mere progress. A later event of its kind supersedes it.
    fn is_progress(&self) -> bool {
        match self {
            Self::ReconcileStarted { .. }
            | Self::QueueChanged { .. }
            | Self::Planned { .. }
            | Self::Applying { .. }
            | Self::HealthChecked { .. }
            | Self::EnvironmentUnchanged { .. } => true,
            Self::Fetched { .. }
            | Self::SourceUnreachable { .. }
            | Self::ReplicasChanged { .. }
            | Self::LeadershipChanged { .. }
            | Self::Recorded { .. }
            | Self::Unobserved { .. }
            | Self::OwnerChanged { .. }
            | Self::EnvironmentLoaded { .. }
            | Self::EnvironmentStalled { .. }
            | Self::ClusterUnreachable { .. }
            | Self::PlanExecuted { .. }
            | Self::DriftDetected { .. }
            | Self::StateChanged(_)
            | Self::ReconcileFinished { .. }
            | Self::Previewed { .. }
            | Self::Contended { .. }
            | Self::ForgeUnreachable { .. } => false,
        }
    }
}

/// Sender of the events.
#[derive(Debug, Clone)]
pub struct EventSender {
    /// Controller events.
    events: mpsc::Sender<ControllerEvent>,
    /// Events of runs.
    syncs: mpsc::Sender<SyncEvent>,
    /// Whether events have the facts of plans, for the web page. False at first, because they cost
    /// time.
    pub has_facts: bool,
}

/// Receiver of the events.
#[derive(Debug)]
pub struct EventReceivers {
    /// Controller events.
    pub events: mpsc::Receiver<ControllerEvent>,
    /// Events of runs.
    pub syncs: mpsc::Receiver<SyncEvent>,
}

impl EventSender {
    /// Creates a sender and its receiver. A slow consumer does not block the controller: events of
    /// runs are dropped first, then progress of the controller, and the rest when the queue is
    /// full.
    pub fn new() -> (Self, EventReceivers) {
        let (events, event_receiver) = mpsc::channel(EVENTS);
        let (syncs, sync_receiver) = mpsc::channel(SYNCS);
        let receivers = EventReceivers {
            events: event_receiver,
            syncs: sync_receiver,
        };
        let sender = Self {
            events,
            syncs,
            has_facts: false,
        };
        (sender, receivers)
    }

    /// Sends an event. Ignores a missing receiver.
    pub(super) fn report(&self, event: ControllerEvent) {
        let is_half_full = self.events.capacity() <= EVENTS / 2;
        if !(is_half_full && event.is_progress()) {
            drop(self.events.try_send(event));
        }
    }

    /// Returns the sender of the events of a run.
    pub(super) fn run_events(&self, release: ReleaseName) -> Events {
        Events::bounded(release, self.syncs.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pleach_engine::sync::events::{EventKind, Verb};

    #[test]
    fn progress_is_dropped_first_without_a_receiver() {
        let (events, mut receivers) = EventSender::new();
        for waiting in 0..EVENTS {
            events.report(ControllerEvent::QueueChanged { waiting });
        }
        for replicas in 0..EVENTS {
            events.report(ControllerEvent::ReplicasChanged { replicas });
        }
        let mut received = (0, 0);
        while let Ok(event) = receivers.events.try_recv() {
            if event.is_progress() {
                received.0 += 1;
            } else {
                received.1 += 1;
            }
        }
        assert_eq!(received.0 + received.1, EVENTS);
        assert!(received.1 >= EVENTS / 2, "{received:?}");
        let release = ReleaseName {
            environment: "dev".to_owned(),
            release: "web".to_owned(),
        };
        let events = events.run_events(release);
        for _ in 0..2 * SYNCS {
            events.send(EventKind::Phase(Verb::Apply));
        }
        assert_eq!(receivers.syncs.len(), SYNCS);
    }
}
