//! Outcome of a reconcile, and decisions about plans that are not executed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pleach_config::dependencies;
use pleach_fields::diff::Cause;
use pleach_formats::file::Drift;
use pleach_formats::{sync::SyncPolicy, window::Windows};
use pleach_model::finding::Finding;
use pleach_planner::plan::{Action, Plan, Taken};
use pleach_state::inventory::{
    Condition, ConditionKind, DEPENDENCY_NOT_READY, Installed, Memory, Suspension, SyncRequest,
    UserRequests, WINDOW_CLOSED,
};

use super::drift::Left;
use super::run::{Target, code, codes, line};
use super::waiting::Awaited;
use super::{NAMED, ReconcileOutcome};
use pleach_cluster::Class;
use pleach_engine::{
    planning::Planned,
    sync::{SyncError, novelty},
    words,
};

/// Message for the time outside of the windows.
const CLOSED: &str = "the environment allows no sync at this time";

/// Message for a drifted release whose last good commit is only known from records.
pub(super) const OTHERWISE: &str =
    "the newest commit cannot be synced, and the release differs from the last good commit";

/// Outcome of a reconcile, with its messages.
pub(super) struct ReconcileReport {
    pub(super) end: ReconcileOutcome,
    pub(super) message: String,
    /// Whether it only corrected drift.
    pub(super) is_correction: bool,
    /// Message for the public: codes and objects.
    pub(super) about: String,
    /// Condition to report.
    pub(super) condition: Option<Condition>,
    /// A sync request that was fulfilled.
    pub(super) request: Option<SyncRequest>,
    /// Requeue delay, if not the interval.
    pub(super) pause: Option<Duration>,
    /// Dependencies that it waits for.
    pub(super) awaited: Option<Awaited>,
    /// State of its objects after the reconcile.
    pub(super) left: Option<Left>,
    /// Outcome for the last applied revision, which is retained while this waits.
    pub(super) kept: Option<Box<Kept>>,
}

/// The last applied revision, retained while a newer one waits.
pub(super) struct Kept {
    pub(super) wanted: Arc<Target>,
    /// Outcome of its reconcile.
    pub(super) looked: ReconcileReport,
}

impl ReconcileReport {
    pub(super) fn new(end: ReconcileOutcome, message: impl Into<String>) -> Self {
        Self {
            end,
            message: message.into(),
            is_correction: false,
            about: String::new(),
            condition: None,
            request: None,
            pause: None,
            awaited: None,
            left: None,
            kept: None,
        }
    }

    /// Returns the outcome in the cluster: that of the retained revision, if any.
    pub(super) fn in_the_end(&self) -> ReconcileOutcome {
        self.kept.as_ref().map_or(self.end, |kept| kept.looked.end)
    }

    /// Returns whether a retry is due soon.
    pub(super) fn failed(&self) -> bool {
        self.end == ReconcileOutcome::Failed || self.in_the_end() == ReconcileOutcome::Failed
    }

    /// Returns whether a drift correction could have unblocked the waiting revision.
    pub(super) fn made_way(&self) -> bool {
        let is_stopped = matches!(
            self.end,
            ReconcileOutcome::Failed | ReconcileOutcome::Refused | ReconcileOutcome::Unapproved
        );
        self.kept.is_some() && is_stopped && self.in_the_end() == ReconcileOutcome::Deployed
    }

    /// Returns the conditions to report: those of the environment first, then others of different
    /// kinds.
    pub(super) fn conditions(&self, of_environment: &[Condition]) -> Vec<Condition> {
        let mut conditions = of_environment.to_vec();
        let kept = self.kept.iter().map(|kept| &kept.looked.condition);
        for condition in [&self.condition].into_iter().chain(kept).flatten() {
            if conditions.iter().all(|known| known.kind != condition.kind) {
                conditions.push(condition.clone());
            }
        }
        conditions
    }

    /// Sets the message for the public.
    pub(super) fn about(mut self, about: impl Into<String>) -> Self {
        self.about = about.into();
        self
    }

    pub(super) fn saying(mut self, kind: ConditionKind, reason: &str) -> Self {
        self.condition = Some(Condition {
            kind,
            reason: reason.to_owned(),
            message: self.message.clone(),
        });
        self
    }
}

/// Returns the outcome for a change that waits for its window.
pub(super) fn window_closed(
    windows: &Windows,
    orders: &UserRequests,
    now: Timestamp,
) -> ReconcileReport {
    let report = ReconcileReport::new(ReconcileOutcome::Waiting, CLOSED).about(CLOSED);
    ReconcileReport {
        // Requests with a window override do not get here.
        request: orders.sync.clone(),
        pause: until_open(windows, now),
        ..report.saying(ConditionKind::Waiting, WINDOW_CLOSED)
    }
}

/// Returns the outcome for a suspended release.
pub(super) fn suspended(suspension: &Suspension, now: Timestamp) -> ReconcileReport {
    let left = suspension.until.map(|until| until.duration_since(now));
    ReconcileReport {
        pause: left.and_then(|left| left.try_into().ok()),
        ..ReconcileReport::new(ReconcileOutcome::Suspended, suspension.words())
    }
}

/// Returns the outcome of a refused plan, or `None` if the plan is allowed.
pub(super) fn refused(
    desired: &Target,
    planned: &Planned,
    orders: &UserRequests,
) -> Option<ReconcileReport> {
    let refusals = desired.refusals(planned);
    let waits = |finding: &Finding| finding.code == dependencies::NOT_READY;
    if !refusals.is_empty() && refusals.iter().all(waits) {
        let awaited = Awaited::of(&planned.desired, &planned.observation.observed);
        let report = ReconcileReport::new(ReconcileOutcome::Waiting, line(&refusals))
            .about(codes(&refusals));
        return Some(ReconcileReport {
            pause: awaited.pause,
            awaited: Some(awaited),
            ..report.saying(ConditionKind::Waiting, DEPENDENCY_NOT_READY)
        });
    }
    if refusals.is_empty() {
        return None;
    }
    let report =
        ReconcileReport::new(ReconcileOutcome::Refused, line(&refusals)).about(codes(&refusals));
    Some(ReconcileReport {
        request: orders.sync.clone(),
        ..report.saying(ConditionKind::Stalled, "Refused")
    })
}

/// Returns the outcome if drift is only reported, or `None` if it is corrected.
pub(super) fn reported(
    desired: &Target,
    planned: &Planned,
    orders: &UserRequests,
) -> Option<ReconcileReport> {
    let only_reports = desired.loaded.environment.sync.drift == Drift::Report;
    if !only_reports || !is_reached(planned) || is_new(planned) || !has_drifted(&planned.plan) {
        return None;
    }
    let report = ReconcileReport::new(ReconcileOutcome::Drifted, drift(&planned.plan));
    Some(ReconcileReport {
        request: orders.sync.clone(),
        ..report.saying(ConditionKind::Drifted, "ChangedByOthers")
    })
}

/// Returns the outcome if no step of a plan can be executed, or `None`. No run records that.
pub(super) fn blocked(plan: &Plan, orders: &UserRequests) -> Option<ReconcileReport> {
    if !plan.is_stuck() {
        return None;
    }
    let errors = plan.findings.iter().filter(|finding| finding.is_error());
    let errors: Vec<Finding> = errors.cloned().collect();
    let report =
        ReconcileReport::new(ReconcileOutcome::Failed, line(&errors)).about(codes(&errors));
    Some(ReconcileReport {
        request: orders.sync.clone(),
        ..report.saying(ConditionKind::Stalled, "Blocked")
    })
}

/// Returns the outcome if planning failed. `failures` is the number of previous failures. Passing
/// errors get no condition at first, and nothing is written to an unreachable cluster.
pub(super) fn unplanned(error: &SyncError, failures: u32) -> ReconcileReport {
    let report =
        ReconcileReport::new(ReconcileOutcome::Failed, words(error)).about(code(error.kind()));
    let may_pass = match error {
        SyncError::Cluster(error) => error.class() != Some(&Class::Forbidden),
        SyncError::Undiscovered(_)
        | SyncError::Unanswered { .. }
        | SyncError::Contended { .. }
        | SyncError::Held { .. } => true,
        _ => false,
    };
    if may_pass || failures == 0 {
        report
    } else {
        report.saying(ConditionKind::Stalled, "Failed")
    }
}

/// Returns how long the windows stay closed. `None`: they are open, or never open again.
pub(super) fn until_open(windows: &Windows, now: Timestamp) -> Option<Duration> {
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
pub(super) fn policy<'m>(
    sync: &SyncPolicy,
    recorded: impl IntoIterator<Item = &'m Memory>,
) -> SyncPolicy {
    recorded.into_iter().fold(sync.clone(), |sync, memory| {
        sync.stricter(memory.approval, &Windows::recorded(&memory.windows))
    })
}

/// Returns whether windows forbid new changes now.
pub(super) fn is_closed(windows: &Windows, orders: &UserRequests, now: Timestamp) -> bool {
    let is_overridden = orders
        .sync
        .as_ref()
        .is_some_and(|sync| sync.override_window);
    !windows.are_open(now) && !is_overridden
}

/// Returns whether the desired state was reconciled before. Remaining differences are then drift.
pub(super) fn is_reached(planned: &Planned) -> bool {
    let record: Option<&Installed> = planned.observation.observed.installed.as_ref();
    record.is_some_and(|record| {
        let installed = record.installed.as_ref();
        record.ready && installed.is_some_and(|installed| planned.desired.is_of(installed))
    })
}

/// Returns whether the record names another commit than the desired one.
pub(super) fn is_of_another_commit(planned: &Planned) -> bool {
    let record: Option<&Installed> = planned.observation.observed.installed.as_ref();
    let installed = record.and_then(|record| record.installed.as_ref());
    installed.is_some_and(|installed| installed.revision != planned.desired.revision)
}

/// Returns whether a plan applies new content, or deletes objects that git removed. A drift
/// correction or its retry is not new.
pub(super) fn is_new(planned: &Planned) -> bool {
    let record = planned.observation.observed.installed.as_ref();
    novelty::is_new(&planned.desired, record, &planned.plan)
}

/// Returns whether no other content was started since the last reconciled one.
pub(super) fn is_left(planned: &Planned) -> bool {
    let record: Option<&Installed> = planned.observation.observed.installed.as_ref();
    record.is_some_and(novelty::is_undisturbed)
}

/// Returns whether exactly this content was applied before, and no other content was started since.
pub(super) fn was_there(planned: &Planned) -> bool {
    let record = planned.observation.observed.installed.as_ref();
    novelty::was_there(&planned.desired, record)
}

/// Returns whether values differ from git. Changed field ownership alone is not drift.
fn has_drifted(plan: &Plan) -> bool {
    plan.changes.iter().any(|change| match change.action {
        Action::Unchanged | Action::Skip | Action::Blocked => false,
        Action::Update => !matches!(change.cause, Some(Cause::Ownership | Cause::Overlay)),
        Action::Create | Action::Recreate | Action::Adopt | Action::Delete => true,
    })
}

/// Summarizes the drift, with the field managers that caused it.
pub(super) fn drift(plan: &Plan) -> String {
    let changed: Vec<_> = plan
        .changes
        .iter()
        .filter(|change| !matches!(change.action, Action::Unchanged | Action::Skip))
        .collect();
    let mut texts: Vec<String> = changed
        .iter()
        .take(NAMED)
        .map(|change| {
            let who: BTreeSet<&str> = change.corrects.iter().map(Taken::who).collect();
            let who: Vec<&str> = who.into_iter().collect();
            if who.is_empty() {
                format!("{}: {}", change.object, change.reason)
            } else {
                format!("{}: changed by {}", change.object, who.join(", "))
            }
        })
        .collect();
    if changed.len() > NAMED {
        texts.push(format!("and {} more", changed.len() - NAMED));
    }
    texts.join("; ")
}

#[cfg(test)]
mod tests {
    use pleach_formats::file::Window;
    use pleach_model::discovery::Discovery;
    use pleach_planner::observe::{ClusterId, Observed};

    use super::*;

    #[test]
    fn a_renamed_release_is_under_the_recorded_policy_of_the_one_that_it_replaces() {
        let closed = Window {
            allow: None,
            deny: Some("00:00-24:00".to_owned()),
            time_zone: None,
        };
        let strict = || Memory {
            approval: true,
            windows: vec![vec![closed.clone()]],
            ..Memory::default()
        };
        let record = |memory: Memory| Installed {
            memory: Some(memory),
            ..Installed::default()
        };
        let now = Timestamp::UNIX_EPOCH;
        // The commit declares neither approval nor windows.
        let loose = SyncPolicy::default();
        for (case, installed, inherited, is_strict) in [
            ("a new release", None, None, false),
            ("a renamed release", None, Some(strict()), true),
            (
                "a release that was there and takes over now",
                Some(record(Memory::default())),
                Some(strict()),
                true,
            ),
            ("a known release", Some(record(strict())), None, true),
            ("no policy", None, Some(Memory::default()), false),
        ] {
            let cluster = ClusterId("cluster".to_owned());
            let version = "v1.36.0".to_owned();
            let mut observed = Observed::of(cluster, version, Discovery::default(), now);
            observed.installed = installed;
            observed.inherited = inherited;
            let policy = policy(&loose, observed.policies());
            assert_eq!(policy.needs_approval, is_strict, "{case}");
            assert_eq!(!policy.windows.are_open(now), is_strict, "{case}");
        }
    }

    #[test]
    fn what_does_not_pass_by_itself_is_said_of_the_release() {
        let reason = |error: &SyncError, failures| {
            let said = unplanned(error, failures).condition;
            said.map(|said| said.reason)
        };
        let lasting = SyncError::NoStateNamespace("state".to_owned());
        assert_eq!(reason(&lasting, 0), None);
        assert_eq!(reason(&lasting, 1).as_deref(), Some("Failed"));
        let passing = SyncError::Contended {
            release: "dev.web".to_owned(),
            source: None,
        };
        assert_eq!(reason(&passing, 1), None);
    }
}
