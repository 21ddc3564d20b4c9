//! Outcome of a run, as recorded.

use std::collections::BTreeSet;

use jiff::Timestamp;
use pleach_model::object::ObjectId;
use pleach_planner::plan::{Action, Desired, Op, Plan, Taken};
use pleach_planner::text_diff;
use pleach_state::inventory::{
    Attempt, AttemptResult, Installed, Inventory, Override, RunFacts, RunOutcome,
};

use super::{Under, memory};
use crate::sync::Claim;
use crate::sync::error::SyncError;
use crate::sync::events::StepOutcome;
use crate::sync::interrupted_summary::Remainder;
use crate::sync::report::{FailureKind, SyncResult};
use crate::sync::state::State;

/// Reason and message of the condition Ready for a reconciled release.
pub(in crate::sync) const RECONCILED: (&str, &str) = ("Deployed", "");

/// Outcome of a sync, as recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::sync) struct RecordedOutcome {
    /// Outcome of the run, as recorded.
    pub(in crate::sync) result: RunOutcome,
    /// Reason of the condition Ready.
    reason: &'static str,
    /// The first problem, in one line.
    message: String,
    /// The last stage with an executed step.
    stage: String,
    /// User and reason of a local run that overrode the controller.
    local: String,
    /// Checks that failed and were overridden.
    overridden: Vec<Override>,
    /// Facts of the run, without its duration.
    facts: RunFacts,
}

impl RecordedOutcome {
    /// Returns the outcome of a plan without anything to execute or record.
    pub(in crate::sync) fn of_nothing(plan: &Plan, was_ready: bool) -> RunOutcome {
        if plan.is_stuck() {
            RunOutcome::Failed
        } else if was_ready {
            RunOutcome::Unchanged
        } else {
            RunOutcome::Unverified
        }
    }

    /// Evaluates a result. `was_ready`: the release was ready before, and still is after a plan
    /// without changes.
    pub(in crate::sync) fn of(
        plan: &Plan,
        result: &SyncResult,
        was_ready: bool,
        unrecorded: Option<&SyncError>,
    ) -> Self {
        let verified = plan.verifies();
        let (name, reason) = if let Some(cause) = result.stopped {
            (cause.outcome(), cause.reason())
        } else if unrecorded.is_none() && is_paused(plan, result) {
            (RunOutcome::Failed, "Paused")
        } else if !result.is_success() || unrecorded.is_some() {
            (RunOutcome::Failed, "Failed")
        } else if plan.count(Action::Blocked) > 0 {
            (RunOutcome::Failed, "Blocked")
        } else if verified || (was_ready && !plan.has_steps()) || plan.changes.is_empty() {
            (RunOutcome::Deployed, RECONCILED.0)
        } else {
            (RunOutcome::Unverified, "NotVerified")
        };
        let message = first_problem(plan, result)
            .or_else(|| unrecorded.map(ToString::to_string))
            .or_else(|| how_far(plan, result))
            .map(|message| bounded(&message))
            .unwrap_or_default();
        let stage = plan
            .steps
            .iter()
            .rev()
            .find(|step| result.outcomes.get(&step.id) == Some(&StepOutcome::Done))
            .map(|step| step.stage.to_string())
            .unwrap_or_default();
        Self {
            result: name,
            reason,
            message,
            stage,
            local: String::new(),
            overridden: plan.overrides.clone(),
            facts: facts(plan, result),
        }
    }

    /// Adds the author of the run: its user and process, and the override of a local run, if any.
    pub(in crate::sync) fn by(self, claim: &Claim) -> Self {
        Self {
            local: claim.local.clone().unwrap_or_default(),
            facts: RunFacts {
                by: claim.who.clone(),
                approved_by: claim.approved_by.clone().unwrap_or_default(),
                ..self.facts
            },
            ..self
        }
    }
}

impl RecordedOutcome {
    /// Returns the outcome to show, which distinguishes that nothing was done.
    pub(in crate::sync) fn outcome(&self, plan: &Plan, was_ready: bool) -> RunOutcome {
        if plan.steps.is_empty() && was_ready && self.result == RunOutcome::Deployed {
            RunOutcome::Unchanged
        } else {
            self.result.clone()
        }
    }
}

/// Returns whether a run ended at a pause, and nothing else failed.
fn is_paused(plan: &Plan, result: &SyncResult) -> bool {
    let mut failures = result.failures(plan).peekable();
    failures.peek().is_some() && failures.all(|(_, failure)| failure.kind == FailureKind::Paused)
}

/// Returns the facts of a run, without its author and duration.
pub(in crate::sync) fn facts(plan: &Plan, result: &SyncResult) -> RunFacts {
    let done: BTreeSet<&ObjectId> = plan
        .steps
        .iter()
        .filter(|step| !matches!(step.op, Op::Wait))
        .filter(|step| result.outcomes.get(&step.id) == Some(&StepOutcome::Done))
        .map(|step| &step.object)
        .collect();
    let is_change =
        |action: Action| !matches!(action, Action::Unchanged | Action::Skip | Action::Blocked);
    let actions = plan.changes.iter();
    let actions = actions.filter(|change| done.contains(&change.object));
    let actions: Vec<Action> = actions
        .map(|change| change.action)
        .filter(|action| is_change(*action))
        .collect();
    let changes = match actions.as_slice() {
        [] => String::new(),
        actions => text_diff::summary_of_done(actions.iter().copied()),
    };
    let failures = result
        .failures(plan)
        .map(|(_, failure)| failure.kind.word());
    let failures: BTreeSet<&str> = failures.collect();
    RunFacts {
        by: String::new(),
        approved_by: String::new(),
        seconds: None,
        changes,
        failures: failures.into_iter().map(str::to_owned).collect(),
    }
}

/// Returns the fields that were reverted from other field managers.
pub(in crate::sync) fn corrected(plan: &Plan, result: &SyncResult) -> Vec<(ObjectId, Taken)> {
    let applied: BTreeSet<&ObjectId> = plan
        .steps
        .iter()
        .filter(|step| matches!(step.op, Op::Apply { .. }))
        .filter(|step| result.outcomes.get(&step.id) == Some(&StepOutcome::Done))
        .map(|step| &step.object)
        .collect();
    plan.changes
        .iter()
        .filter(|change| applied.contains(&change.object))
        .flat_map(|change| {
            let corrects = change.corrects.iter();
            corrects.map(|taken| (change.object.clone(), taken.clone()))
        })
        .collect()
}

/// Returns whether a result belongs in the history. A run without effects only does if the newest
/// entry has another result or version. Without versions, each commit counts as one, which is not
/// worth an entry.
pub(super) fn belongs_in_history(
    record: &Installed,
    attempt: &Attempt,
    result: &RunOutcome,
) -> bool {
    let is_versioned = attempt.version != attempt.revision;
    record.history.first().is_none_or(|last| {
        last.result != *result || (is_versioned && last.version != attempt.version)
    })
}

/// Writes the outcome of a sync.
pub(in crate::sync) async fn finish(
    state: &mut State,
    desired: &Desired,
    outcome: &RecordedOutcome,
    (had_effects, corrected): (bool, &[(ObjectId, Taken)]),
    inventory: &Inventory,
    attempt: Attempt,
) -> Result<(), SyncError> {
    let deployed = outcome.result == RunOutcome::Deployed;
    let change = |record: &mut Installed| {
        record.repository.clone_from(&desired.repository);
        record.bundle.clone_from(&desired.bundle);
        if let Some(source) = &desired.terms.source {
            record.source = Some(source.clone());
        }
        record.stage.clone_from(&outcome.stage);
        record.ready = deployed;
        record.removed = false;
        record.memory = Some(memory(desired, record, inventory, Under::Recorded));
        let now = Timestamp::now();
        record.calm_down(now);
        for (object, taken) in corrected {
            record.correct(object, &taken.field.to_string(), &taken.manager, now);
        }
        if had_effects || !deployed || belongs_in_history(record, &attempt, &outcome.result) {
            record.push(AttemptResult {
                version: attempt.version.clone(),
                revision: attempt.revision.clone(),
                result: outcome.result.clone(),
                at: Timestamp::now(),
                message: outcome.message.clone(),
                local: outcome.local.clone(),
                overridden: outcome.overridden.clone(),
                run: RunFacts {
                    seconds: Some(now.duration_since(attempt.at).as_secs()),
                    ..outcome.facts.clone()
                },
            });
        }
        if deployed {
            record.installed = Some(attempt);
            record.applying = None;
        } else {
            record.applying = Some(attempt);
        }
    };
    state
        .commit(inventory, change, outcome.reason, &outcome.message)
        .await
}

/// Formats a message in one line of at most 1 KiB, because messages of servers can be long.
pub(in crate::sync) fn bounded(message: &str) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(1000) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Summarizes the progress of a stopped run in one line.
pub(in crate::sync) fn how_far(plan: &Plan, result: &SyncResult) -> Option<String> {
    result.stopped?;
    Some(Remainder::of(plan, result).summary())
}

pub(in crate::sync) fn first_problem(plan: &Plan, result: &SyncResult) -> Option<String> {
    let failed = result
        .failures(plan)
        .next()
        .map(|(object, failure)| format!("{object}: {}", failure.message));
    failed.or_else(|| {
        let blocked = plan
            .changes
            .iter()
            .find(|change| change.action == Action::Blocked)?;
        Some(format!("{}: {}", blocked.object, blocked.reason))
    })
}
