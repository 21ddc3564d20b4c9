//! Events and commands of a release.

use std::collections::BTreeSet;
use std::time::Duration;

use pleach_formats::sync::SyncPolicy;
use pleach_model::object::ObjectId;
use pleach_state::inventory::{Condition, SyncRequest, UserRequests};

pub use crate::TaskId;
use crate::health::Checked;
use crate::outcome::{ReconcileOutcome, ReconcileReport};
use crate::stall::Stall;
use crate::state_changes::Notice;

/// Number of a desired state. The executor stores the state itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetId(pub u64);

/// Number of a content. Two desired states with the same content need no other run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentId(pub u64);

/// Facts of a desired state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetFacts {
    /// Its number.
    pub id: TargetId,
    /// Its content.
    pub content: ContentId,
    /// The commit.
    pub revision: String,
    /// Sync policy of its environment file.
    pub sync: SyncPolicy,
    /// Whether only this release is stalled. Nothing is pruned then.
    pub is_stalled: bool,
    /// Whether the commit is only known from records. Drift is not corrected then.
    pub is_from_records: bool,
    /// Conditions of the environment.
    pub conditions: Vec<Condition>,
    /// Reason why the release is stalled.
    pub stall: Option<Stall>,
}

/// Changed objects of a release.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// The objects.
    pub objects: BTreeSet<ObjectId>,
    /// Whether one of them is a runtime object, which needs a plan of all objects.
    pub has_runtime: bool,
}

/// Message for operators, and message for the public without text from servers or users.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reasons {
    /// One line.
    pub message: String,
    /// Codes and objects.
    pub public_message: String,
}

/// A failed operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The reasons.
    pub reasons: Reasons,
    /// Whether a retry can succeed without a change.
    pub is_transient: bool,
}

/// Fetch that belongs to a sync request with a window override. The request stays open until
/// commits at its time have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetch {
    /// Sequence number of the fetch.
    pub number: u64,
    /// Time until which the request stays open.
    pub until: Duration,
}

/// Refusal of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The reasons.
    pub reasons: Reasons,
    /// Whether it only waits for dependencies.
    pub waits: bool,
    /// Requeue delay of that wait, if no event ends it.
    pub requeue_after: Option<Duration>,
}

/// Approval facts of a plan with steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    /// Digest of its effects.
    pub effects: String,
    /// The retained plan for the same content, if this one does nothing beyond it.
    pub covered_by: Option<TaskId>,
    /// The approval that the record lacks.
    pub missing: Option<Reasons>,
}

/// Facts of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, read by the executor"
)]
pub struct PlanSummary {
    /// Whether it applies new content, or deletes objects that git removed.
    pub is_new: bool,
    /// Whether the content was reconciled before. Remaining differences are drift.
    pub is_reconciled: bool,
    /// Whether no other content was started since the last reconciled one.
    pub is_last_started: bool,
    /// Whether exactly this content was applied before, and no other one was started since.
    pub is_applied: bool,
    /// Whether the record belongs to this release on the expected cluster.
    pub is_ours: bool,
    /// Whether there is no record yet.
    pub is_unrecorded: bool,
    /// Whether the record names another commit.
    pub is_of_another_commit: bool,
    /// Whether it has steps.
    pub has_steps: bool,
    /// Whether it covers all objects.
    pub covers_all_objects: bool,
    /// Whether values differ from git. Changed field ownership alone does not count.
    pub has_drifted: bool,
    /// Summary of the changes.
    pub drift: String,
    /// The recorded commit, if it came from the present branch.
    pub recorded: Option<String>,
    /// Message of a previous controller about lost readiness.
    pub degraded: Option<String>,
    /// Fields that other clients keep writing to.
    pub contended: Vec<String>,
    /// Message about nodes that fell behind; empty if there are none. Only known from a plan of all
    /// objects.
    pub nodes_behind: String,
    /// The user requests.
    pub requests: UserRequests,
    /// Fetch of the sync request, if it overrides the windows.
    pub fetch: Option<Fetch>,
    /// Sync policy, as strict as the recorded policies.
    pub policy: SyncPolicy,
    /// The refusal, if any.
    pub refused: Option<Refusal>,
    /// The errors, if no step can be executed.
    pub blocked: Option<Reasons>,
    /// Approval facts, if a policy needs them and the plan has steps.
    pub approval: Option<Approval>,
}

/// Result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSummary {
    /// The outcome.
    pub outcome: ReconcileOutcome,
    /// The reasons.
    pub reasons: Reasons,
}

/// Result of a history lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The lookup failed. The next reconcile repeats it.
    Failed,
    /// The commit does not count. A newer branch state can change that.
    Nothing,
    /// The release at that commit.
    Target(Box<TargetFacts>),
}

/// Answer to a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Of [`Task::Admit`].
    Admitted {
        /// Changed objects found before.
        found: Changes,
        /// Sequence number of the last fetch that the newest desired state answers.
        answered: u64,
    },
    /// Of [`Task::Plan`]. `None`: the changed objects need a plan of all objects.
    Planned(Result<Option<Box<PlanSummary>>, Failure>),
    /// Of [`Task::CreateRecord`] and [`Task::RecordRevision`].
    Recorded(Result<(), Failure>),
    /// Of [`Task::Approve`]: the missing approval.
    Approved(Option<Reasons>),
    /// Of [`Task::Execute`].
    Executed(RunSummary),
    /// Of [`Task::Report`].
    Reported {
        /// Whether the record is ours.
        is_ours: bool,
        /// Whether the conditions were written. `None`: no write was needed.
        written: Option<bool>,
    },
    /// Of [`Task::Check`].
    Checked(Vec<(ObjectId, Checked)>),
    /// Of [`Task::Wait`]: objects were changed by other clients.
    Changed(Changes),
    /// Of [`Task::Wait`]: objects were written, or are due for a check.
    Written(BTreeSet<ObjectId>),
    /// Of [`Task::Wait`]: a dependency is ready, or the fetch was answered.
    Ready,
    /// The task panicked.
    Panicked,
}

/// Event of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A new desired state.
    Target(Box<TargetFacts>),
    /// Git no longer contains the release.
    Removed,
    /// The controller shuts down.
    Stopped,
    /// The user requests on the record changed.
    Requested,
    /// A release that this one depends on was reconciled.
    DependencyReconciled,
    /// A history lookup ended.
    LookedUp(TaskId, Found),
    /// The time of [`Release::wake_at`](super::Release::wake_at) has come.
    Tick,
    /// A task ended.
    Answer(TaskId, Answer),
}

/// Objects to plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Depth {
    /// These objects, if that is enough.
    Changed(BTreeSet<ObjectId>),
    /// All objects.
    All {
        /// Whether every object gets a dry run.
        verify: bool,
    },
}

/// Whether the record belongs to the release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// It does.
    Ours,
    /// It does not, or that is unknown. Nothing is written to it.
    Foreign,
    /// No plan verified it. The executor reads the record.
    Ask,
}

/// A notification about a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    /// The desired state that it is about.
    pub target: TargetId,
    /// The revision.
    pub revision: String,
    /// The notification.
    pub notice: Notice,
}

/// Reports to the cluster and to subscribers, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusReport {
    /// Whether the record is ours.
    pub ownership: Ownership,
    /// Conditions to write to the record. `None`: they are there.
    pub conditions: Option<Vec<Condition>>,
    /// A plan whose observation can show that the conditions are there.
    pub unless: Option<TaskId>,
    /// A request to withdraw.
    pub fulfilled: Option<SyncRequest>,
    /// Notifications. Each is also a Kubernetes Event, if the record is ours.
    pub notifications: Vec<Notification>,
    /// Number of contended fields, if it was checked.
    pub contended: Option<usize>,
    /// Whether an object is not ready, if it was checked.
    pub is_degraded: Option<bool>,
}

/// Events that end the wait for the next reconcile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// Time from which drift ends it. `None`: drift does not matter.
    pub drift_from: Option<Duration>,
    /// Delay between a write and its readiness check.
    pub debounce: Duration,
    /// Time of the next readiness check without a write.
    pub check_at: Option<Duration>,
    /// Whether a ready dependency ends it.
    pub for_dependencies: bool,
    /// Whether the answer to the fetch of the sync request ends it.
    pub for_fetch: bool,
}

/// A task of the executor. There is at most one at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// Wait for the slot of the release, and for a reconcile permit if one is needed. Then buffer
    /// watch events until the reconcile ends.
    Admit {
        /// The desired state to reconcile. The tasks until the next one are about it.
        target: TargetId,
        /// Whether it needs a permit.
        needs_permit: bool,
        /// The last reconciled state, which is watched too.
        reconciled: Option<TargetId>,
        /// Oldest shared answer to use. `None`: only answers requested from now on.
        since: Option<Duration>,
    },
    /// Plan a desired state.
    Plan {
        /// The desired state.
        target: TargetId,
        /// Objects to plan.
        depth: Depth,
        /// Oldest shared answer to use.
        since: Option<Duration>,
    },
    /// Create the record of a new release.
    CreateRecord(TaskId),
    /// Query the forge for an approval of the plan.
    Approve(TaskId),
    /// Record the present commit, without a run.
    RecordRevision(TaskId),
    /// Execute the plan.
    Execute {
        /// The plan.
        plan: TaskId,
        /// Its desired state.
        target: TargetId,
    },
    /// Report.
    Report(Box<StatusReport>),
    /// Check the readiness of objects.
    Check {
        /// Desired state with the readiness rules.
        rules: TargetId,
        /// The objects.
        objects: BTreeSet<ObjectId>,
    },
    /// Wait for an event.
    Wait(Wait),
}

/// A finished reconcile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// The outcome.
    pub report: ReconcileReport,
    /// Duration of the reconcile.
    pub took: Duration,
    /// Number of drifted objects, if changes triggered the reconcile and were drift.
    pub drifted: Option<usize>,
    /// Whether every further event of an object counts as a change.
    pub alert: bool,
    /// Whether all objects need a readiness check.
    pub check_all: bool,
}

/// Command to the executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Start a task, which replaces the present one.
    Start(TaskId, Task),
    /// Stop the present run at its next safe point.
    Cancel,
    /// A reconcile started: log it.
    Started,
    /// A reconcile finished: log it, release the permit and evaluate buffered watch events.
    Finished(Box<Finished>),
    /// Notify the releases that depend on this one.
    NotifyDependents,
    /// Look up the release at a commit. It replaces an earlier lookup.
    LookUp(TaskId, String),
    /// Create the desired state `id`: content of `from` under the restrictions of the state that is
    /// reconciled now.
    Retain {
        /// Number of the new desired state.
        id: TargetId,
        /// Desired state with the content.
        from: TargetId,
    },
    /// Retain the effects of a plan that waits for approval, in place of an earlier one.
    RetainPlan(TaskId),
    /// End the task of the release.
    End,
}
