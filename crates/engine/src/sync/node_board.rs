//! Nodes of the present run: folded from its events, and written to the status of the release.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use pleach_planner::plan::{Plan, StepId};
use pleach_state::inventory::{NodePhase, NodeProgress, NodesReport};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::events::EventKind;
use super::node_progress::{NodeChange, RollOut};
use super::state::{Announcement, State, announce};
use crate::words;

/// Shortest time between two writes of the status.
const PAUSE: Duration = Duration::from_secs(5);

/// Shortest time between a write and one that only has other messages.
const MESSAGES: Duration = Duration::from_mins(1);

/// Number of changes that wait for their Kubernetes Event. Beyond it, the oldest are dropped.
const WAITING: usize = 200;

/// Time for the Kubernetes Events at the end of a run.
const LAST: Duration = Duration::from_secs(5);

/// The nodes of a run.
#[derive(Debug)]
pub(super) struct NodeBoard {
    content: Mutex<Content>,
    changed: Notify,
}

#[derive(Debug)]
struct Content {
    roll_out: RollOut,
    /// Changes without a Kubernetes Event.
    news: VecDeque<NodeChange>,
    /// Number of phases entered.
    changes: u64,
}

/// A write of the status.
#[derive(Debug, Clone)]
struct Written {
    at: Instant,
    changes: u64,
    report: NodesReport,
}

impl NodeBoard {
    /// Creates the board of a plan.
    pub(super) fn of(plan: &Plan) -> Self {
        let content = Content {
            roll_out: RollOut::of(plan, Timestamp::now()),
            news: VecDeque::new(),
            changes: 0,
        };
        Self {
            content: Mutex::new(content),
            changed: Notify::new(),
        }
    }

    /// Returns whether the plan has no nodes.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().roll_out.is_empty()
    }

    /// Returns the nodes.
    pub(super) fn nodes(&self) -> Vec<NodeProgress> {
        self.lock().roll_out.nodes()
    }

    /// Returns the nodes as the status has them.
    pub(super) fn report(&self) -> NodesReport {
        NodesReport::of(&self.nodes())
    }

    /// Moves the node of a step to another phase.
    pub(super) fn enter(&self, step: StepId, phase: NodePhase) -> Option<NodeChange> {
        self.change(|roll_out| roll_out.enter(step, phase, Timestamp::now()))
    }

    /// Applies an event.
    pub(super) fn apply(&self, event: &EventKind) -> Option<NodeChange> {
        self.change(|roll_out| roll_out.apply(event, Timestamp::now()))
    }

    fn change(
        &self,
        change: impl FnOnce(&mut RollOut) -> Option<NodeChange>,
    ) -> Option<NodeChange> {
        let change = {
            let mut content = self.lock();
            let change = change(&mut content.roll_out)?;
            content.changes += 1;
            if event_of(&change).is_some() {
                if content.news.len() == WAITING {
                    content.news.pop_front();
                }
                content.news.push_back(change.clone());
            }
            change
        };
        self.changed.notify_one();
        Some(change)
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the nodes to the status whenever they changed, and the Kubernetes Events about them.
    /// A failure is only logged: the run does not depend on it. Never ends.
    pub(super) async fn write(&self, state: &mut State, revision: &str) -> Infallible {
        let mut written = Written {
            at: Instant::now(),
            changes: 0,
            report: self.report(),
        };
        loop {
            self.announce(state, revision).await;
            let (changes, report) = {
                let content = self.lock();
                (content.changes, NodesReport::of(&content.roll_out.nodes()))
            };
            match due(&written, changes, &report) {
                Some(at) if at <= Instant::now() => {
                    if let Err(error) = state.write_nodes(&report).await {
                        tracing::debug!(error = %words(&error), "failed to write the nodes of a release");
                    }
                    written = Written {
                        at: Instant::now(),
                        changes,
                        report,
                    };
                }
                at => {
                    let at = at.unwrap_or_else(|| Instant::now() + MESSAGES);
                    tokio::select! {
                        () = self.changed.notified() => {}
                        () = sleep_until(at) => {}
                    }
                }
            }
        }
    }

    /// Writes the Kubernetes Events that are due at the end of a run.
    pub(super) async fn finish(&self, state: &State, revision: &str) {
        // Events are a convenience; a slow server must not delay the record.
        drop(tokio::time::timeout(LAST, self.announce(state, revision)).await);
    }

    async fn announce(&self, state: &State, revision: &str) {
        loop {
            let Some(change) = self.lock().news.pop_front() else {
                return;
            };
            let Some((reason, is_warning, message)) = event_of(&change) else {
                continue;
            };
            let announcement = Announcement {
                reason,
                is_warning,
                message: &message,
                revision,
            };
            let (cluster, name, store) = (state.cluster(), state.name(), state.store());
            if let Err(error) = announce(cluster, name, store, announcement).await {
                tracing::debug!(release = %name, error = %words(&error), "failed to write an Event");
            }
        }
    }
}

/// Returns the time at which the nodes are written. `None` without a change.
fn due(written: &Written, changes: u64, report: &NodesReport) -> Option<Instant> {
    if changes != written.changes {
        return Some(written.at + PAUSE);
    }
    (*report != written.report).then(|| written.at + MESSAGES)
}

/// Returns the Kubernetes Event about a change: reason, whether it is a warning, and message. Only
/// begin, end and failure have one.
fn event_of(change: &NodeChange) -> Option<(&'static str, bool, String)> {
    let NodeChange {
        node,
        before,
        took: _,
    } = change;
    let name = &node.name;
    match node.phase {
        NodePhase::Failed => {
            let message = format!("node {name} failed while {before:?}: {}", node.message);
            Some(("NodeFailed", true, message))
        }
        NodePhase::Done if *before == NodePhase::Preloading => {
            Some(("NodePreloaded", false, format!("node {name} is preloaded")))
        }
        NodePhase::Done => Some(("NodeDone", false, format!("node {name} is changed"))),
        NodePhase::Evacuating | NodePhase::Draining | NodePhase::Upgrading
            if *before == NodePhase::Pending =>
        {
            Some((
                "NodeBegun",
                false,
                format!("the change of node {name} began"),
            ))
        }
        NodePhase::Pending
        | NodePhase::Preloading
        | NodePhase::Evacuating
        | NodePhase::Draining
        | NodePhase::Upgrading
        | NodePhase::Verifying => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(before: NodePhase, phase: NodePhase) -> NodeChange {
        NodeChange {
            node: NodeProgress {
                name: "a".to_owned(),
                phase,
                since: Timestamp::UNIX_EPOCH,
                message: "not drained in time".to_owned(),
            },
            before,
            took: Duration::ZERO,
        }
    }

    #[test]
    fn begin_end_and_failure_have_an_event() {
        for (before, phase, expected) in [
            (NodePhase::Pending, NodePhase::Preloading, None),
            (NodePhase::Preloading, NodePhase::Pending, None),
            (
                NodePhase::Preloading,
                NodePhase::Done,
                Some("NodePreloaded"),
            ),
            (NodePhase::Pending, NodePhase::Evacuating, Some("NodeBegun")),
            (NodePhase::Pending, NodePhase::Upgrading, Some("NodeBegun")),
            (NodePhase::Evacuating, NodePhase::Draining, None),
            (NodePhase::Draining, NodePhase::Upgrading, None),
            (NodePhase::Upgrading, NodePhase::Verifying, None),
            (NodePhase::Verifying, NodePhase::Done, Some("NodeDone")),
            (NodePhase::Draining, NodePhase::Failed, Some("NodeFailed")),
        ] {
            let event = event_of(&change(before, phase));
            let reason = event.as_ref().map(|(reason, ..)| *reason);
            assert_eq!(reason, expected, "{before:?} to {phase:?}");
            let is_warning = event.is_some_and(|(_, is_warning, _)| is_warning);
            assert_eq!(is_warning, phase == NodePhase::Failed);
        }
    }

    #[test]
    fn a_status_is_written_when_it_changed_and_not_often() {
        let at = Instant::now();
        let node = |message: &str| {
            let node = NodeProgress {
                message: message.to_owned(),
                ..change(NodePhase::Pending, NodePhase::Draining).node
            };
            NodesReport::of(&[node])
        };
        let written = Written {
            at,
            changes: 3,
            report: node("2 pods are left"),
        };
        for (changes, message, expected) in [
            (3, "2 pods are left", None),
            (3, "1 pod is left", Some(MESSAGES)),
            (4, "2 pods are left", Some(PAUSE)),
            (4, "1 pod is left", Some(PAUSE)),
        ] {
            let due = due(&written, changes, &node(message));
            assert_eq!(due.map(|due| due - at), expected, "{changes} {message}");
        }
    }
}
