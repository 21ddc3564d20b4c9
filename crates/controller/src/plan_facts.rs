//! Facts of plans, for the decisions about a release.

use std::collections::BTreeSet;

use jiff::Timestamp;
use pleach_cluster::Class;
use pleach_config::dependencies;
use pleach_engine::{
    planning::Planned,
    sync::{SyncError, novelty},
    words,
};
use pleach_fields::diff::Cause;
use pleach_formats::sync::SyncPolicy;
use pleach_model::finding::Finding;
use pleach_planner::plan::{Action, Plan, Taken};
use pleach_reconciler::NAMED;
use pleach_reconciler::outcome::policy;
use pleach_reconciler::release::{Failure, PlanSummary, Reasons, Refusal};
use pleach_state::inventory::Installed;

use super::run::{Target, code, codes, line};

/// Codes of findings that mean the record belongs to another user or cluster.
const FOREIGN_RECORD: [&str; 3] = ["wrong-cluster", "other-repository", "other-tooling"];

/// Returns the facts of an error. Some errors pass without a change.
pub(super) fn failure(error: &SyncError) -> Failure {
    let is_transient = match error {
        SyncError::Cluster(error) => error.class() != Some(&Class::Forbidden),
        SyncError::Undiscovered(_)
        | SyncError::Unanswered { .. }
        | SyncError::Contended { .. }
        | SyncError::LeaseTaken { .. } => true,
        _ => false,
    };
    let reasons = Reasons {
        message: words(error),
        public_message: code(error.kind()).to_owned(),
    };
    Failure {
        reasons,
        is_transient,
    }
}

/// Returns the facts of a plan, without its fetch and approval.
pub(super) fn summary(desired: &Target, planned: &Planned) -> PlanSummary {
    let observed = &planned.observation.observed;
    let record = observed.installed.as_ref();
    let plan = &planned.plan;
    PlanSummary {
        is_new: novelty::is_new(&planned.desired, record, plan),
        is_reconciled: is_reconciled(planned),
        is_last_started: record.is_some_and(novelty::is_undisturbed),
        is_applied: novelty::was_there(&planned.desired, record),
        is_ours: is_ours(plan),
        is_unrecorded: planned.is_new(),
        is_of_another_commit: is_of_another_commit(planned),
        has_steps: plan.has_steps(),
        covers_all_objects: observed.focus.is_none(),
        has_drifted: has_drifted(plan),
        drift: drift(plan),
        recorded: recorded(desired, planned),
        degraded: planned.observation.degraded(),
        contended: record.map_or_else(Vec::new, |record| record.contended(Timestamp::now())),
        nodes_behind: plan.nodes_behind().map(str::to_owned).unwrap_or_default(),
        requests: planned.observation.user_requests(),
        fetch: None,
        policy: policy_of(desired, planned),
        refused: refused(desired, planned),
        blocked: blocked(plan),
        approval: None,
    }
}

/// Returns the policy for a plan. The rest of a change of nodes after its pause needs an approval,
/// whatever the environment declares.
fn policy_of(desired: &Target, planned: &Planned) -> SyncPolicy {
    let declared = &desired.loaded.environment.sync;
    let policy = policy(declared, planned.observation.observed.policies());
    let needs_approval = policy.needs_approval || planned.plan.continues_after_pause();
    SyncPolicy {
        needs_approval,
        ..policy
    }
}

/// Returns the refusal of a plan, if any.
fn refused(desired: &Target, planned: &Planned) -> Option<Refusal> {
    let refusals = desired.refusals(planned);
    if refusals.is_empty() {
        return None;
    }
    let mut all = refusals.iter();
    Some(Refusal {
        waits: all.all(|finding| finding.code == dependencies::NOT_READY),
        requeue_after: None,
        reasons: reasons(&refusals),
    })
}

/// Returns the errors of a plan that has no executable step.
fn blocked(plan: &Plan) -> Option<Reasons> {
    if !plan.is_stuck() {
        return None;
    }
    let errors = plan.findings.iter().filter(|finding| finding.is_error());
    let errors: Vec<Finding> = errors.cloned().collect();
    Some(reasons(&errors))
}

/// Returns findings as messages.
pub(super) fn reasons(findings: &[Finding]) -> Reasons {
    Reasons {
        message: line(findings),
        public_message: codes(findings),
    }
}

/// Returns whether the record belongs to this release on the expected cluster.
fn is_ours(plan: &Plan) -> bool {
    let mut refusals = plan.refusals();
    refusals.all(|finding| !FOREIGN_RECORD.contains(&finding.code.as_str()))
}

/// Returns the recorded commit, if it came from the present branch.
fn recorded(desired: &Target, planned: &Planned) -> Option<String> {
    let record = planned.observation.observed.installed.as_ref()?;
    let is_of_branch = desired.source.is_some() && record.source == desired.source;
    let installed = record.installed.as_ref().filter(|_| is_of_branch)?;
    Some(installed.revision.clone())
}

/// Returns whether the desired state was reconciled before. Remaining differences are then drift.
fn is_reconciled(planned: &Planned) -> bool {
    let record: Option<&Installed> = planned.observation.observed.installed.as_ref();
    record.is_some_and(|record| {
        let installed = record.installed.as_ref();
        record.ready && installed.is_some_and(|installed| planned.desired.is_of(installed))
    })
}

/// Returns whether the record names another commit than the desired one.
fn is_of_another_commit(planned: &Planned) -> bool {
    let record: Option<&Installed> = planned.observation.observed.installed.as_ref();
    let installed = record.and_then(|record| record.installed.as_ref());
    installed.is_some_and(|installed| installed.revision != planned.desired.revision)
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
fn drift(plan: &Plan) -> String {
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
                let fields = fields(&change.corrects);
                let who = who.join(", ");
                format!("{}: {fields} changed by {who}", change.object)
            }
        })
        .collect();
    if changed.len() > NAMED {
        texts.push(format!("and {} more", changed.len() - NAMED));
    }
    texts.join("; ")
}

/// Lists the first corrected fields of an object.
fn fields(corrected: &[Taken]) -> String {
    let fields: BTreeSet<String> = corrected.iter().map(|one| one.field.to_string()).collect();
    let (count, mut fields) = (fields.len(), fields.into_iter());
    let mut shown: Vec<String> = fields.by_ref().take(NAMED).collect();
    if count > shown.len() {
        shown.push(format!("and {} more", count - shown.len()));
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use pleach_formats::{file::Window, sync::SyncPolicy};
    use pleach_model::discovery::Discovery;
    use pleach_planner::observe::{ClusterId, Observed};
    use pleach_reconciler::outcome::plan_failed;
    use pleach_state::inventory::Memory;

    use super::*;

    #[test]
    fn a_renamed_release_inherits_the_recorded_policy() {
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
    fn a_persistent_error_becomes_a_condition() {
        let reason = |error: &SyncError, failures| {
            let condition = plan_failed(&failure(error), failures).condition;
            condition.map(|condition| condition.reason)
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
