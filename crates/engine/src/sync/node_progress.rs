//! Phases of the nodes that a run changes: a pure fold over the events of its steps.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use pleach_planner::plan::{Op, Plan, StepId};
use pleach_state::inventory::{NodePhase, NodeProgress};

use super::events::{EventKind, StepOutcome};
use super::report::FailureKind;

/// A node that entered another phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeChange {
    /// The node now.
    pub node: NodeProgress,
    /// The phase before.
    pub before: NodePhase,
    /// Duration of the phase before.
    pub took: Duration,
}

/// Results of eviction requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Evictions {
    /// Accepted, or the pod was gone.
    pub accepted: usize,
    /// Refused for now by a budget or a webhook.
    pub refused: usize,
    /// Failed in another way.
    pub failed: usize,
}

/// Progress of the nodes of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RollOut {
    /// Nodes in the order of the plan.
    nodes: Vec<Tracked>,
    /// Step to position of its node.
    steps: BTreeMap<StepId, usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Tracked {
    progress: NodeProgress,
    /// Steps that are not complete.
    open: usize,
}

impl RollOut {
    /// Returns the nodes that a plan preloads or changes, as pending.
    pub fn of(plan: &Plan, at: Timestamp) -> Self {
        let mut known: BTreeMap<&str, usize> = BTreeMap::new();
        let mut roll_out = Self::default();
        for step in &plan.steps {
            if !matches!(step.op, Op::Preload { .. } | Op::UpgradeNode { .. }) {
                continue;
            }
            let name = step.object.name.as_str();
            let position = *known.entry(name).or_insert_with(|| {
                roll_out.nodes.push(Tracked {
                    progress: NodeProgress {
                        name: name.to_owned(),
                        phase: NodePhase::Pending,
                        since: at,
                        message: String::new(),
                    },
                    open: 0,
                });
                roll_out.nodes.len() - 1
            });
            roll_out.nodes[position].open += 1;
            roll_out.steps.insert(step.id, position);
        }
        roll_out
    }

    /// Returns the nodes in the order of the plan.
    pub fn nodes(&self) -> Vec<NodeProgress> {
        let nodes = self.nodes.iter();
        nodes.map(|node| node.progress.clone()).collect()
    }

    /// Returns whether the plan has no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Moves the node of a step to another phase. `None` if it is in that phase.
    pub fn enter(&mut self, step: StepId, phase: NodePhase, at: Timestamp) -> Option<NodeChange> {
        self.set(step, phase, "", at)
    }

    /// Applies an event. Returns the change of a phase, if there is one. A message alone is none.
    pub fn apply(&mut self, event: &EventKind, at: Timestamp) -> Option<NodeChange> {
        match event {
            EventKind::Waiting(step, state) => {
                if let Some(node) = self.node(*step) {
                    node.progress.message = pleach_model::sanitize::one_line(&state.message);
                }
                None
            }
            EventKind::Done(step, _, outcome) => self.end(*step, outcome, at),
            EventKind::Phase(_)
            | EventKind::Queued(_)
            | EventKind::Started(_)
            | EventKind::Applied(_)
            | EventKind::Retrying(..)
            | EventKind::Warning(_)
            | EventKind::Nodes(_)
            | EventKind::Node(_)
            | EventKind::Evicted(_)
            | EventKind::Finished(_) => None,
        }
    }

    fn end(&mut self, step: StepId, outcome: &StepOutcome, at: Timestamp) -> Option<NodeChange> {
        let node = self.node(step)?;
        let phase = node.progress.phase;
        match outcome {
            StepOutcome::Done => {
                node.open = node.open.saturating_sub(1);
                let next = match node.open {
                    0 => NodePhase::Done,
                    // Preloaded; its change follows.
                    _ => NodePhase::Pending,
                };
                self.set(step, next, "", at)
            }
            // It did not begin, or the next run continues with it.
            StepOutcome::Failed(failure)
                if failure.is_stop() || failure.kind == FailureKind::Paused =>
            {
                self.set(step, phase, &failure.message, at)
            }
            StepOutcome::Failed(failure) => self.set(step, NodePhase::Failed, &failure.message, at),
            // It waits for nothing any more.
            StepOutcome::Skipped { .. } | StepOutcome::Stopped { .. } => {
                self.set(step, phase, "", at)
            }
        }
    }

    fn node(&mut self, step: StepId) -> Option<&mut Tracked> {
        self.nodes.get_mut(*self.steps.get(&step)?)
    }

    fn set(
        &mut self,
        step: StepId,
        phase: NodePhase,
        message: &str,
        at: Timestamp,
    ) -> Option<NodeChange> {
        let node = &mut self.node(step)?.progress;
        node.message = pleach_model::sanitize::one_line(message);
        if node.phase == phase {
            return None;
        }
        let took = at.duration_since(node.since);
        let before = std::mem::replace(&mut node.phase, phase);
        node.since = at;
        Some(NodeChange {
            node: node.clone(),
            before,
            took: Duration::try_from(took).unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests;
