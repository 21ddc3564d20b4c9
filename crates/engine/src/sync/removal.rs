//! Uninstall of a release: its steps, its record, and the removal of the record.

use std::sync::Arc;

use pleach_formats::check::{Check, CheckOutcome};
use pleach_model::object::{ObjectId, Origin, Secrecy};
use pleach_planner::observe::Observed;
use pleach_planner::plan::{Desired, Outgoing, Plan};
use pleach_state::inventory::{
    AttemptResult, EntryState, Installed, Inventory, RunFacts, RunOutcome,
};

use super::answers::Source;
use super::checks;
use super::error::SyncError;
use super::events::{EventKind, StepOutcome, Verb};
use super::report::SyncResult;
use super::state::State;
use super::{Books, Executed, Observation, Run, record, returned};
use pleach_cluster::ResourcePath;

/// Executes an uninstall.
///
/// The record shrinks after confirmed deletions, and is removed once it has no members. Until then,
/// the uninstall can be resumed.
pub(super) async fn execute(
    run: &Run<'_>,
    desired: &Desired,
    observation: Observation,
    plan: &Plan,
    outgoing: &Outgoing,
) -> Result<SyncResult, SyncError> {
    let Observation {
        observed,
        mut state,
    } = observation;
    if state.record().uid.is_empty() {
        // Without a record, there are no members.
        return Ok(ended(SyncResult::default(), RunOutcome::Uninstalled));
    }
    if plan.steps.is_empty() && !writes(desired, &observed, plan, outgoing) {
        return Ok(ended(SyncResult::default(), RunOutcome::Removed));
    }
    let before = record::superset(desired, &observed, plan);
    run.with_lease(plan, &mut state, async |state| {
        let executed = if plan.steps.is_empty() {
            Executed {
                result: SyncResult::default(),
                inventory: before,
            }
        } else {
            begin(run, state, &before).await?;
            let attempt = record::attempt(desired);
            let last_plan = record::last_plan(desired, &observed, plan, attempt.at);
            state.keep_plan(&last_plan).await?;
            let journal = observed.journal.clone();
            let journal_writer = state.journal_writer(journal, attempt, plan.effects());
            let books = Books {
                inventory: before,
                journal_writer,
                key: state.key().cloned(),
                nodes: state.nodes_in_change().clone(),
            };
            Box::pin(run.steps(desired, &observed, plan, books)).await
        };
        finish(run, state, desired, &observed, plan, outgoing, executed).await
    })
    .await
}

/// Records the intended uninstall before the first deletion.
async fn begin(run: &Run<'_>, state: &mut State, before: &Inventory) -> Result<(), SyncError> {
    run.events.send(EventKind::Phase(Verb::Apply));
    let change = |record: &mut Installed| {
        record.removed = true;
        record.ready = false;
    };
    let message = "the release is being uninstalled";
    state.commit(before, change, "Uninstalling", message).await
}

/// Finishes an uninstall that has started, with any outcome.
async fn finish(
    run: &Run<'_>,
    state: &mut State,
    desired: &Desired,
    observed: &Observed,
    plan: &Plan,
    outgoing: &Outgoing,
    executed: Executed,
) -> Result<SyncResult, SyncError> {
    let Executed { result, inventory } = executed;
    if !plan.steps.is_empty() {
        run.events.send(EventKind::Phase(Verb::Report));
    }
    let mut inventory = without_released(inventory, outgoing, plan, &result);
    if result.is_success() {
        for id in returned::remembered(desired, observed, plan).keys() {
            inventory.entries.remove(id);
        }
    }
    if plan.has_steps() && result.is_success() && inventory.entries.is_empty() {
        // Terminating pods can have recreated their registrations.
        let context = (run.cluster, run.events);
        let remaining = returned::keep(context, desired, observed, plan, &mut inventory);
        Box::pin(remaining).await;
    }
    write_record(run, state, plan, outgoing, &inventory, result).await
}

/// Returns whether execution would write anything, even only the record.
pub(super) fn writes(
    desired: &Desired,
    observed: &Observed,
    plan: &Plan,
    outgoing: &Outgoing,
) -> bool {
    let Some(record) = &observed.installed else {
        return false;
    };
    let before = record::superset(desired, observed, plan);
    let after = without_released(before, outgoing, plan, &SyncResult::default());
    let is_over = outgoing.ends && after.entries.is_empty();
    let is_recorded = record.removed && !record.ready && after == observed.inventory;
    !plan.steps.is_empty() || is_over || !is_recorded
}

fn ended(result: SyncResult, outcome: RunOutcome) -> SyncResult {
    SyncResult { outcome, ..result }
}

/// Removes retained objects from the inventory once their marks are removed.
fn without_released(
    mut inventory: Inventory,
    outgoing: &Outgoing,
    plan: &Plan,
    result: &SyncResult,
) -> Inventory {
    for id in &outgoing.released {
        let steps = plan.steps.iter().filter(|step| step.object == *id);
        let mut done = steps.map(|step| result.outcomes.get(&step.id) == Some(&StepOutcome::Done));
        let is_done = match done.next() {
            // An object without marks is only removed after a successful run, because the next run
            // could be requested to delete it.
            None => result.is_success(),
            Some(first) => first && done.all(|is_done| is_done),
        };
        if is_done {
            inventory.entries.remove(id);
        }
    }
    inventory
}

/// Writes the remaining record, or removes it if it is empty.
async fn write_record(
    run: &Run<'_>,
    state: &mut State,
    plan: &Plan,
    outgoing: &Outgoing,
    inventory: &Inventory,
    mut result: SyncResult,
) -> Result<SyncResult, SyncError> {
    let is_over = outgoing.ends && result.is_success() && inventory.entries.is_empty();
    let (written, outcome) = if is_over {
        (state.end().await, RunOutcome::Uninstalled)
    } else {
        let (name, reason) = if let Some(cause) = result.stopped {
            (cause.outcome(), cause.reason())
        } else if result.is_success() {
            (RunOutcome::Removed, "Removed")
        } else {
            (RunOutcome::Failed, "Failed")
        };
        let message = message(plan, &result, inventory);
        let had_effects = plan.has_steps();
        let change = |record: &mut Installed| {
            record.removed = true;
            record.ready = false;
            if had_effects {
                let last = record.installed.as_ref().or(record.applying.as_ref());
                let (version, revision) = last.map_or_else(Default::default, |last| {
                    (last.version.clone(), last.revision.clone())
                });
                record.push(AttemptResult {
                    version,
                    revision,
                    result: name.clone(),
                    at: jiff::Timestamp::now(),
                    message: message.clone(),
                    local: run.claim.local.clone().unwrap_or_default(),
                    overridden: Vec::new(),
                    run: RunFacts {
                        by: run.claim.who.clone(),
                        approved_by: run.claim.approved_by.clone().unwrap_or_default(),
                        ..record::facts(plan, &result)
                    },
                });
            }
        };
        (
            state.commit(inventory, change, reason, &message).await,
            name,
        )
    };
    // Report the result even if it could not be recorded.
    result.unrecorded = written.err().map(Arc::new);
    result.outcome = if result.unrecorded.is_some() {
        RunOutcome::Failed
    } else {
        outcome
    };
    run.events.send(EventKind::Finished(result.clone()));
    Ok(result)
}

fn message(plan: &Plan, result: &SyncResult, inventory: &Inventory) -> String {
    let problem = record::first_problem(plan, result).or_else(|| record::how_far(plan, result));
    problem.map_or_else(
        || {
            format!(
                "the release is no longer in git; {} objects stay",
                inventory.entries.len()
            )
        },
        |problem| record::bounded(&problem),
    )
}

impl Source<'_> {
    /// Finds the objects of a `blockUninstall` rule, by its index.
    pub(crate) async fn blocking(&self, index: usize) -> CheckOutcome {
        let rule = self.desired.terms.block_uninstall.get(index);
        let rule = rule.and_then(|rule| Some((rule, rule.for_each.group_kind()?)));
        let Some((rule, kind)) = rule else {
            return CheckOutcome::seen(Vec::new());
        };
        let discovery = &self.observed.discovery;
        if discovery.is_stale(&kind.group) {
            let group = &kind.group;
            return CheckOutcome::Unknown(format!(
                "the server behind the group {group} does not answer"
            ));
        }
        let Ok(check) = Check::of_end(rule, Origin::new("", 0)) else {
            return CheckOutcome::Unknown("a newer pleach recorded the rule".to_owned());
        };
        // A kind that is not served has no usable objects.
        let Some(path) = ResourcePath::preferred(discovery, &kind) else {
            return CheckOutcome::seen(Vec::new());
        };
        let is_member = |id: &ObjectId| {
            let entry = self.observed.inventory.entries.get(id);
            entry.is_some_and(|entry| entry.state == EntryState::Applied)
        };
        let of = |id: &ObjectId| (!is_member(id)).then(Secrecy::default);
        checks::inspect(self.cluster, Some(&path), &check, &of).await
    }
}
