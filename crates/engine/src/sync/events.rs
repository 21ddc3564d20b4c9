//! Events of a sync.

use std::sync::Arc;
use std::time::Duration;

use pleach_model::finding::Finding;
use pleach_model::object::{ObjectId, ReleaseName};
use pleach_planner::plan::StepId;
use pleach_state::inventory::{NodePhase, NodeProgress};
use serde::Serialize;
use tokio::sync::mpsc::{Sender, UnboundedSender};

use super::node_board::NodeBoard;
use super::node_progress::{Evictions, NodeChange};
use super::report::{Failure, SyncResult};
use crate::lease::Holder;

/// An event, with its release.
#[derive(Debug, Clone)]
pub struct SyncEvent {
    /// Environment and release.
    pub release: ReleaseName,
    /// The event.
    pub kind: EventKind,
}

/// Phases of a sync, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// Read git.
    Fetch,
    /// Render manifests.
    Render,
    /// Read the cluster.
    Observe,
    /// Compare both.
    Diff,
    /// Plan the steps.
    Plan,
    /// Execute the steps.
    Apply,
    /// Wait for readiness.
    Wait,
    /// Delete objects that git no longer contains.
    Prune,
    /// Record the result.
    Report,
}

/// Kind of an event.
#[derive(Debug, Clone)]
pub enum EventKind {
    /// A phase starts.
    Phase(Verb),
    /// The run waits for another client, which executes a plan of the release.
    Queued(Holder),
    /// A step starts.
    Started(StepId),
    /// The operation of a step is done. Its wait can follow.
    Applied(StepId),
    /// A step waits. Sent again when the wait state changes.
    Waiting(StepId, WaitState),
    /// A request is retried.
    Retrying(StepId, String),
    /// A step ended, with its object.
    Done(StepId, ObjectId, StepOutcome),
    /// The nodes that the run changes, all of them pending.
    Nodes(Vec<NodeProgress>),
    /// A node entered another phase.
    Node(NodeChange),
    /// Pods of a node were evicted, or not.
    Evicted(Evictions),
    /// A finding that stops nothing.
    Warning(Finding),
    /// The sync ended.
    Finished(SyncResult),
}

/// State of a wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitState {
    /// The object to wait for.
    pub object: ObjectId,
    /// Condition and last message, in one line.
    pub message: String,
    /// Duration so far.
    pub since: Duration,
}

/// Outcome of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum StepOutcome {
    /// Executed and complete.
    Done,
    /// Failed.
    Failed(Failure),
    /// Not started, because a step that it needs was not successful; or its wait ended with the
    /// wait of that step.
    Skipped {
        /// The unsuccessful step.
        because: StepId,
        /// Whether its operation was executed.
        applied: bool,
    },
    /// Not started, or its wait was interrupted, because the sync was stopped.
    Stopped {
        /// Whether its operation was executed.
        applied: bool,
    },
}

/// Sender of events. Sending never blocks and never fails, because a lost consumer must not stop a
/// sync.
#[derive(Debug, Clone)]
pub struct Events {
    release: ReleaseName,
    sink: Sink,
    /// The nodes that the run changes. `None` outside of a run with nodes.
    nodes: Option<Arc<NodeBoard>>,
}

#[derive(Debug, Clone)]
enum Sink {
    Nowhere,
    /// Consumer of one run.
    All(UnboundedSender<SyncEvent>),
    /// Consumer of many runs. Events beyond its capacity are dropped.
    Some(Sender<SyncEvent>),
}

impl Events {
    /// Creates a sender to a consumer of one run.
    pub fn new(release: ReleaseName, sender: UnboundedSender<SyncEvent>) -> Self {
        Self {
            release,
            sink: Sink::All(sender),
            nodes: None,
        }
    }

    /// Creates a sender to a consumer of many runs. Events beyond its capacity are dropped.
    pub fn bounded(release: ReleaseName, sender: Sender<SyncEvent>) -> Self {
        Self {
            release,
            sink: Sink::Some(sender),
            nodes: None,
        }
    }

    /// Creates a sender that drops all events.
    pub fn silent(release: ReleaseName) -> Self {
        Self {
            release,
            sink: Sink::Nowhere,
            nodes: None,
        }
    }

    /// Returns the sender for a run with these nodes, and reports them.
    pub(super) fn with_nodes(&self, board: &Arc<NodeBoard>) -> Self {
        self.forward(EventKind::Nodes(board.nodes()));
        Self {
            nodes: Some(Arc::clone(board)),
            ..self.clone()
        }
    }

    /// Reports the phase of the node of a step.
    pub(super) fn enter(&self, step: StepId, phase: NodePhase) {
        let change = self.nodes.as_ref();
        let change = change.and_then(|board| board.enter(step, phase));
        if let Some(change) = change {
            self.forward(EventKind::Node(change));
        }
    }

    /// Sends an event.
    pub fn send(&self, kind: EventKind) {
        let change = self.nodes.as_ref();
        let change = change.and_then(|board| board.apply(&kind));
        self.forward(kind);
        if let Some(change) = change {
            self.forward(EventKind::Node(change));
        }
    }

    fn forward(&self, kind: EventKind) {
        let event = || SyncEvent {
            release: self.release.clone(),
            kind,
        };
        // A closed channel has no consumer left.
        match &self.sink {
            Sink::Nowhere => {}
            Sink::All(sender) => drop(sender.send(event())),
            Sink::Some(sender) => drop(sender.try_send(event())),
        }
    }
}
