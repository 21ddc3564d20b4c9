//! How a sync ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pleach_domain::inventory::Inventory;
use pleach_domain::object::ObjectId;
use pleach_domain::overlay::{OverlayId, OverlayKind};
use pleach_domain::plan::{Plan, StepId};
use serde::Serialize;

use super::error::SyncError;
use super::events::Outcome;
use crate::engine::stop::Cause;

/// Why a step failed; decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum FailureKind {
    /// The cluster cannot be reached, or does not let us (exit 4).
    Cluster,
    /// Fields of others, or a precondition that no longer holds (exit 5).
    Conflict,
    /// Only a planned step could do it (exit 7).
    Policy,
    /// Not ready in time, or failed to become ready (exit 6).
    NotReady,
    /// The server refuses the object (exit 3).
    Refused,
    /// Anything else (exit 1).
    Other,
}

/// A step that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// What kind of failure.
    pub kind: FailureKind,
    /// One line: what failed and why.
    pub message: String,
    /// The obvious next step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Failure {
    /// A failure without a hint.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hint: None,
        }
    }
}

/// A temporary change that is still on after a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Standing {
    /// Its name.
    pub overlay: OverlayId,
    /// Its sort.
    #[serde(skip)]
    pub kind: OverlayKind,
    /// What it changes.
    pub object: ObjectId,
    /// When it is taken back.
    pub rule: String,
    /// Why it could not be taken back now, where it should have been.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// How a sync ended, step by step.
#[derive(Debug, Clone, Default)]
pub struct SyncResult {
    /// By step.
    pub outcomes: BTreeMap<StepId, Outcome>,
    /// Why it ended before its plan did.
    pub stopped: Option<Cause>,
    /// `deployed`, `unchanged`, `failed`, `interrupted`, `superseded` or `unverified`.
    pub ending: &'static str,
    /// Temporary changes that are still on.
    pub standing: Vec<Standing>,
    /// Temporary changes that were taken back because the run did not come to its
    /// end.
    pub undone: BTreeSet<OverlayId>,
    /// The members as they are now, be it unrecorded; none where nothing was begun.
    pub members: Option<Arc<Inventory>>,
    /// Why the result could not be recorded in the cluster, if it could not.
    pub unrecorded: Option<Arc<SyncError>>,
}

impl SyncResult {
    /// A plan of which nothing was begun.
    pub(super) fn not_begun(plan: &Plan, cause: Cause) -> Self {
        let outcomes = plan.steps.iter();
        Self {
            outcomes: outcomes
                .map(|step| (step.id, Outcome::Stopped { applied: false }))
                .collect(),
            stopped: Some(cause),
            ending: cause.word(),
            ..Self::default()
        }
    }

    /// Whether every step ended well.
    pub fn is_success(&self) -> bool {
        self.stopped.is_none()
            && self.unrecorded.is_none()
            && self
                .outcomes
                .values()
                .all(|outcome| *outcome == Outcome::Done)
    }

    /// The failures with their objects, in the order of the plan.
    pub fn failures<'a>(
        &'a self,
        plan: &'a Plan,
    ) -> impl Iterator<Item = (&'a ObjectId, &'a Failure)> {
        self.outcomes
            .iter()
            .filter_map(|(id, outcome)| match outcome {
                Outcome::Failed(failure) => Some((&plan.steps[id.0].object, failure)),
                Outcome::Done | Outcome::Skipped { .. } | Outcome::Stopped { .. } => None,
            })
    }
}
