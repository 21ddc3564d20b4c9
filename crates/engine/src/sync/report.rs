//! Result of a sync.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pleach_model::object::ObjectId;
use pleach_planner::plan::{Plan, StepId};
use pleach_state::inventory::{Inventory, RunOutcome};
use pleach_state::overlay::{OverlayId, OverlayKind};
use serde::Serialize;

use super::error::SyncError;
use super::events::StepOutcome;
use crate::stop::Cause;

/// Category of a failed step, which decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum FailureKind {
    /// The cluster is unreachable or rejects our credentials (exit 4).
    Cluster,
    /// Fields of other field managers, or a failed precondition (exit 5).
    Conflict,
    /// Only possible as a planned step (exit 7).
    Policy,
    /// Not ready in time, or readiness failed (exit 6).
    NotReady,
    /// The plan ends here until a person checked what it did (exit 6).
    Paused,
    /// The server rejects the object (exit 3).
    Refused,
    /// Any other failure (exit 1).
    Other,
}

impl FailureKind {
    /// All categories.
    pub const ALL: [Self; 7] = [
        Self::Cluster,
        Self::Conflict,
        Self::Policy,
        Self::NotReady,
        Self::Paused,
        Self::Refused,
        Self::Other,
    ];

    /// Returns the word for the category in records and output.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Conflict => "conflict",
            Self::Policy => "policy",
            Self::NotReady => "notReady",
            Self::Paused => "paused",
            Self::Refused => "refused",
            Self::Other => "other",
        }
    }
}

/// Failure of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// Category of the failure.
    pub kind: FailureKind,
    /// One line: the operation and the cause.
    pub message: String,
    /// The next step, if it is obvious.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Whether it ends the waits of all other steps too (`failFast`).
    #[serde(skip)]
    pub ends_waits: bool,
    /// Reason why the step changed nothing. Such a step did not fail.
    #[serde(skip)]
    pub not_begun: Option<NotBegun>,
}

/// Reason why a step that waited for its start changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotBegun {
    /// A stop request ended the run.
    Stopped,
    /// Another step failed.
    After(StepId),
}

/// Message of a step that a stop request ended.
const STOPPED: &str = "the run was stopped";

impl Failure {
    /// Creates the failure of an operation that a stop request ended.
    pub(super) fn stopped() -> Self {
        Self::new(FailureKind::NotReady, STOPPED)
    }

    /// Returns whether a stop request ended the operation.
    pub fn is_stop(&self) -> bool {
        self.kind == FailureKind::NotReady && self.message == STOPPED
    }

    /// Creates a failure without a hint.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hint: None,
            ends_waits: false,
            not_begun: None,
        }
    }

    /// Creates the result of a step that did not begin.
    pub(super) fn not_begun(why: NotBegun) -> Self {
        Self {
            not_begun: Some(why),
            ..Self::stopped()
        }
    }

    /// Adds the next step.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self {
            hint: Some(hint.into()),
            ..self
        }
    }
}

/// A temporary change that is still active after a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Standing {
    /// Its name.
    pub overlay: OverlayId,
    /// Its kind.
    #[serde(skip)]
    pub kind: OverlayKind,
    /// The changed object.
    pub object: ObjectId,
    /// The rule by which it is reverted.
    pub rule: String,
    /// Reason why it could not be reverted when it was due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// Result of a sync, by step.
#[derive(Debug, Clone, Default)]
pub struct SyncResult {
    /// Outcome by step.
    pub outcomes: BTreeMap<StepId, StepOutcome>,
    /// Reason why the run stopped early.
    pub stopped: Option<Cause>,
    /// Outcome of the whole run.
    pub outcome: RunOutcome,
    /// Temporary changes that are still active.
    pub standing: Vec<Standing>,
    /// Temporary changes that were reverted because the run did not finish.
    pub undone: BTreeSet<OverlayId>,
    /// The members now, even if unrecorded; `None` if nothing was started.
    pub members: Option<Arc<Inventory>>,
    /// Reason why the result could not be recorded in the cluster.
    pub unrecorded: Option<Arc<SyncError>>,
}

impl SyncResult {
    /// Creates the result of a plan that was stopped before its start.
    pub(super) fn not_begun(plan: &Plan, cause: Cause) -> Self {
        let outcomes = plan.steps.iter();
        Self {
            outcomes: outcomes
                .map(|step| (step.id, StepOutcome::Stopped { applied: false }))
                .collect(),
            stopped: Some(cause),
            outcome: cause.outcome(),
            ..Self::default()
        }
    }

    /// Returns whether every step succeeded.
    pub fn is_success(&self) -> bool {
        self.stopped.is_none()
            && self.unrecorded.is_none()
            && self
                .outcomes
                .values()
                .all(|outcome| *outcome == StepOutcome::Done)
    }

    /// Returns the failures with their objects, in the order of the plan.
    pub fn failures<'a>(
        &'a self,
        plan: &'a Plan,
    ) -> impl Iterator<Item = (&'a ObjectId, &'a Failure)> {
        self.outcomes
            .iter()
            .filter_map(|(id, outcome)| match outcome {
                StepOutcome::Failed(failure) => Some((&plan.steps[id.0].object, failure)),
                StepOutcome::Done | StepOutcome::Skipped { .. } | StepOutcome::Stopped { .. } => {
                    None
                }
            })
    }
}
