//! Outcomes of reconciles, and decisions about plans that are not executed.

use std::time::Duration;

use jiff::Timestamp;
use pleach_formats::{sync::SyncPolicy, window::Windows};
use pleach_state::inventory::{
    AWAITING_APPROVAL, Condition, ConditionKind, Memory, Suspension, SyncRequest, UserRequests,
    WINDOW_CLOSED,
};

use crate::release::{Failure, Reasons, TargetId};

/// Message for the time outside of the windows.
const CLOSED: &str = "the environment allows no sync at this time";

/// Message about a panic.
const PANICKED: &str = "the reconcile panicked; this is a bug: see the panic message on stderr of the controller, which retries";

/// Outcome of a reconcile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReconcileOutcome {
    /// The release is in sync.
    Unchanged,
    /// The desired state was applied.
    Deployed,
    /// The release was uninstalled.
    Removed,
    /// The reconcile failed and will be retried.
    Failed,
    /// The plan was refused.
    Refused,
    /// The release has drifted, and the policy is to only report it.
    Drifted,
    /// A newer revision replaced this one.
    Superseded,
    /// The controller shuts down.
    Interrupted,
    /// A user suspended the release.
    Suspended,
    /// The release waits for a window or a dependency.
    Waiting,
    /// The plan waits for an approval.
    Unapproved,
}

impl ReconcileOutcome {
    /// Returns the outcome in one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unchanged => "unchanged",
            Self::Deployed => "deployed",
            Self::Removed => "removed",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Drifted => "drifted",
            Self::Superseded => "superseded",
            Self::Interrupted => "interrupted",
            Self::Suspended => "suspended",
            Self::Waiting => "waiting",
            Self::Unapproved => "unapproved",
        }
    }
}

/// Outcome of a reconcile, with its messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReconcileReport {
    /// The outcome.
    pub outcome: ReconcileOutcome,
    /// The reason in one line, if any; the counts for a deployment.
    pub message: String,
    /// Whether it only corrected drift.
    pub is_correction: bool,
    /// Message for the public: codes and objects.
    pub public_message: String,
    /// Condition to report.
    pub condition: Option<Condition>,
    /// A sync request that was fulfilled.
    pub request: Option<SyncRequest>,
    /// Requeue delay, if not the interval.
    pub requeue_after: Option<Duration>,
    /// Whether it waits for dependencies.
    pub waits: bool,
    /// Outcome for the last applied revision, which is retained while this waits.
    pub retained: Option<Box<Retained>>,
}

/// The last applied revision, retained while a newer one waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retained {
    /// The desired state at that revision.
    pub target: TargetId,
    /// The revision.
    pub revision: String,
    /// Outcome of its reconcile.
    pub report: ReconcileReport,
}

impl ReconcileReport {
    /// Creates a report without conditions and requests.
    pub fn new(outcome: ReconcileOutcome, message: impl Into<String>) -> Self {
        Self {
            outcome,
            message: message.into(),
            is_correction: false,
            public_message: String::new(),
            condition: None,
            request: None,
            requeue_after: None,
            waits: false,
            retained: None,
        }
    }

    /// Creates a report with the messages for operators and for the public.
    pub fn with_reasons(outcome: ReconcileOutcome, reasons: &Reasons) -> Self {
        Self::new(outcome, reasons.message.clone())
            .with_public_message(reasons.public_message.clone())
    }

    /// Returns the outcome in the cluster: that of the retained revision, if any.
    pub fn effective_outcome(&self) -> ReconcileOutcome {
        self.retained
            .as_ref()
            .map_or(self.outcome, |retained| retained.report.outcome)
    }

    /// Returns whether a retry is due soon.
    pub fn failed(&self) -> bool {
        self.outcome == ReconcileOutcome::Failed
            || self.effective_outcome() == ReconcileOutcome::Failed
    }

    /// Returns whether a drift correction could have unblocked the waiting revision.
    pub fn could_unblock(&self) -> bool {
        let is_stopped = matches!(
            self.outcome,
            ReconcileOutcome::Failed | ReconcileOutcome::Refused | ReconcileOutcome::Unapproved
        );
        self.retained.is_some()
            && is_stopped
            && self.effective_outcome() == ReconcileOutcome::Deployed
    }

    /// Returns the conditions to report: those of the environment first, then others of different
    /// kinds.
    pub fn conditions(&self, of_environment: &[Condition]) -> Vec<Condition> {
        let mut conditions = of_environment.to_vec();
        let retained = self
            .retained
            .iter()
            .map(|retained| &retained.report.condition);
        for condition in [&self.condition].into_iter().chain(retained).flatten() {
            if conditions.iter().all(|known| known.kind != condition.kind) {
                conditions.push(condition.clone());
            }
        }
        conditions
    }

    /// Sets the message for the public.
    #[must_use]
    pub fn with_public_message(mut self, public_message: impl Into<String>) -> Self {
        self.public_message = public_message.into();
        self
    }

    /// Adds a condition with the message of the report.
    #[must_use]
    pub fn with_condition(mut self, kind: ConditionKind, reason: &str) -> Self {
        self.condition = Some(Condition {
            kind,
            reason: reason.to_owned(),
            message: self.message.clone(),
        });
        self
    }
}

/// Returns the outcome of a reconcile that panicked. The panic message is only on stderr, because it
/// can quote anything.
pub fn panicked() -> ReconcileReport {
    ReconcileReport::new(ReconcileOutcome::Failed, PANICKED).with_public_message("internal")
}

/// Returns the outcome of a plan that waits for approval.
pub fn unapproved(missing: &Reasons) -> ReconcileReport {
    let report = ReconcileReport::with_reasons(ReconcileOutcome::Unapproved, missing);
    report.with_condition(ConditionKind::Stalled, AWAITING_APPROVAL)
}

/// Returns the outcome for a change that waits for its window.
pub fn window_closed(
    windows: &Windows,
    requests: &UserRequests,
    now: Timestamp,
) -> ReconcileReport {
    let report =
        ReconcileReport::new(ReconcileOutcome::Waiting, CLOSED).with_public_message(CLOSED);
    ReconcileReport {
        // Requests with a window override do not get here.
        request: requests.sync.clone(),
        requeue_after: until_open(windows, now),
        ..report.with_condition(ConditionKind::Waiting, WINDOW_CLOSED)
    }
}

/// Returns the outcome for a suspended release.
pub fn suspended(suspension: &Suspension, now: Timestamp) -> ReconcileReport {
    let left = suspension.until.map(|until| until.duration_since(now));
    ReconcileReport {
        requeue_after: left.and_then(|left| left.try_into().ok()),
        ..ReconcileReport::new(ReconcileOutcome::Suspended, suspension.words())
    }
}

/// Returns the outcome if planning failed. `failures` is the number of previous failures. Passing
/// errors get no condition at first, and nothing is written to an unreachable cluster.
pub fn plan_failed(failure: &Failure, failures: u32) -> ReconcileReport {
    let report = ReconcileReport::with_reasons(ReconcileOutcome::Failed, &failure.reasons);
    if failure.is_transient || failures == 0 {
        report
    } else {
        report.with_condition(ConditionKind::Stalled, "Failed")
    }
}

/// Returns how long the windows stay closed. `None`: they are open, or never open again.
pub fn until_open(windows: &Windows, now: Timestamp) -> Option<Duration> {
    if windows.are_open(now) {
        return None;
    }
    let closed: Duration = windows
        .open_after(now)?
        .duration_since(now)
        .try_into()
        .ok()?;
    // Add a second, because timers and wall clock can differ.
    Some(closed + Duration::from_secs(1))
}

/// Returns the sync policy of a release: that of the environment file, made as strict as the
/// recorded policies. A commit that loosens the policy is still subject to the recorded one.
pub fn policy<'m>(sync: &SyncPolicy, recorded: impl IntoIterator<Item = &'m Memory>) -> SyncPolicy {
    recorded.into_iter().fold(sync.clone(), |sync, memory| {
        sync.stricter(memory.approval, &Windows::recorded(&memory.windows))
    })
}

/// Returns whether windows forbid new changes now.
pub fn is_window_closed(windows: &Windows, requests: &UserRequests, now: Timestamp) -> bool {
    let is_overridden = requests
        .sync
        .as_ref()
        .is_some_and(|sync| sync.override_window);
    !windows.are_open(now) && !is_overridden
}
