//! Record of a sync: what is written before the first change and at the end.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use pleach_fields::diff::ownership::status_came_last;
use pleach_model::object::{DesiredDigest, Manifest, ObjectId, ServiceRef, SortedLookup};
use pleach_model::order::{StageName, defined_kinds, registered_services, stage_of};
use pleach_planner::observe::Observed;
use pleach_planner::plan::{
    Action, Body, Change, Desired, Op, Plan, Precondition, Taken, made_by_others,
};
use pleach_report::audit::LastPlan;
use pleach_state::inventory::{
    Attempt, AttemptResult, Entry, EntryState, Installed, Inventory, Memory, Override, RunOutcome,
};
use pleach_state::live::Live;
use serde_json::Value;

use super::CONCURRENCY;
use super::error::SyncError;
use super::events::StepOutcome;
use super::interrupted_summary::Remainder;
use super::paths::Paths;
use super::report::SyncResult;
use super::returned;
use super::state::State;
use pleach_cluster::{Cluster, ClusterError, ResourcePath, Selector};

/// Creates the attempt that starts now.
pub fn attempt(desired: &Desired) -> Attempt {
    Attempt {
        version: desired.version.clone(),
        revision: desired.revision.clone(),
        digest: desired.digest(),
        at: Timestamp::now(),
    }
}

/// Summarizes the writes of a plan that is about to be executed.
pub(super) fn last_plan(
    desired: &Desired,
    observed: &Observed,
    plan: &Plan,
    at: Timestamp,
) -> LastPlan {
    let paths = Paths::new(&observed.discovery, &desired.manifests);
    LastPlan::of(plan, (at, &desired.revision), |id| {
        Some(paths.of_kind(&id.group_kind())?.plural)
    })
}

/// Returns whether execution would write anything, even only the record. If no step can be
/// executed, nothing is recorded either.
pub(super) fn writes(desired: &Desired, observed: &Observed, plan: &Plan) -> bool {
    !plan.is_stuck() && (!plan.steps.is_empty() || !is_current(desired, observed, plan))
}

/// Returns whether the record already equals the one after a sync without steps.
fn is_current(desired: &Desired, observed: &Observed, plan: &Plan) -> bool {
    let Some(record) = &observed.installed else {
        return false;
    };
    let is_this = |attempt: &Option<Attempt>| {
        attempt.as_ref().is_some_and(|attempt| {
            attempt.version == desired.version
                && attempt.revision == desired.revision
                && attempt.digest == desired.digest()
        })
    };
    let is_recorded = if record.ready {
        is_this(&record.installed) && record.applying.is_none()
    } else {
        // Applied without waiting, and requested in the same way again.
        let last = record.history.first();
        is_this(&record.applying) && last.is_some_and(|last| last.result == RunOutcome::Unverified)
    };
    is_recorded
        && !record.removed
        && record.memory.as_ref()
            == Some(&memory(desired, record, &observed.inventory, Under::Recorded))
        && super::is_keyed(desired)
        // An ended contention must still be removed from the record.
        && !record.clone().calm_down(observed.at)
        && is_noted(desired, observed, plan)
}

/// Returns whether the inventory already contains the observed facts. A changed status alone is not
/// worth a write, because the next change makes it obsolete.
fn is_noted(desired: &Desired, observed: &Observed, plan: &Plan) -> bool {
    if is_fresh(desired, observed, plan) {
        return true;
    }
    let mut found = refreshed(desired, observed, plan);
    for (id, entry) in &mut found.entries {
        let moves = observed
            .full
            .get(id)
            .is_some_and(|live| status_came_last(&live.value()["metadata"]));
        if let Some(noted) = observed.inventory.entries.get(id).filter(|_| moves) {
            entry.resource_version.clone_from(&noted.resource_version);
        }
    }
    found == observed.inventory
}

/// Policy to record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Under {
    /// The policy of git, because a plan with new content was admitted.
    Desired,
    /// A policy at least as strict as the recorded one.
    Recorded,
}

/// Returns the data that the record needs for an uninstall: the present policies of git, and the
/// stages of members that git no longer contains.
pub(super) fn memory(
    desired: &Desired,
    record: &Installed,
    inventory: &Inventory,
    under: Under,
) -> Memory {
    let previous = record.memory.as_ref();
    let memory = desired.memory().with_previous_stages(previous, inventory);
    match under {
        Under::Desired => memory,
        Under::Recorded => memory.under_policy_of(previous, Timestamp::now()),
    }
}

/// Returns the inventory before the first change, with all present and possible members.
pub(super) fn superset(desired: &Desired, observed: &Observed, plan: &Plan) -> Inventory {
    let mut inventory = refreshed(desired, observed, plan);
    let defined = defined_kinds(&desired.manifests);
    let manifests: BTreeMap<&ObjectId, &Manifest> = desired
        .manifests
        .iter()
        .map(|manifest| (manifest.id(), manifest))
        .collect();
    let adopted: BTreeSet<&ObjectId> = plan
        .changes
        .iter()
        .filter(|change| change.action == Action::Adopt)
        .map(|change| &change.object)
        .collect();
    for step in &plan.steps {
        let (Op::Apply { body, .. } | Op::Create { body, .. }) = &step.op else {
            continue;
        };
        let id = &step.object;
        let existed = observed.live_meta(id).is_some_and(|live| !live.deleting);
        let entry = inventory
            .entries
            .entry(id.clone())
            .or_insert_with(|| Entry {
                stage: stage_of(&id.group_kind(), &defined).to_string(),
                ..Entry::default()
            });
        if let Some(manifest) = manifests.get(id) {
            entry.api_version = manifest.api_version().to_string();
        }
        if step.require.contains(&Precondition::Absent) {
            // The entry of a previous incarnation does not apply to the new object.
            entry.state = EntryState::Intended;
            entry.uid = None;
        }
        entry.adopted |= adopted.contains(id) && id.is("", "Namespace");
        // A namespace that pleach creates only because it is missing is protected, so that its
        // content is not deleted with it.
        entry.protected |= matches!(body, Body::Inline(_)) && id.is("", "Namespace") && !existed;
    }
    for (id, entry) in returned::remembered(desired, observed, plan) {
        inventory.entries.insert(id, entry.clone());
    }
    note_stages(desired, plan, &mut inventory);
    inventory
}

/// Records the stage of each object. Uninstalls use them in reverse order, even without the bundle.
fn note_stages(desired: &Desired, plan: &Plan, inventory: &mut Inventory) {
    let mut defined = None;
    for id in desired.manifests.iter().map(Manifest::id) {
        let Some(entry) = inventory.entries.get_mut(id) else {
            continue;
        };
        match plan.assigned.get(id) {
            Some(stage) if entry.stage == stage.as_str() => {}
            Some(stage) => entry.stage = stage.to_string(),
            None if is_own(&entry.stage) => {
                let defined = defined.get_or_insert_with(|| defined_kinds(&desired.manifests));
                entry.stage = stage_of(&id.group_kind(), defined).to_string();
            }
            None => {}
        }
    }
}

/// Returns whether the stage is declared by a bundle.
fn is_own(stage: &str) -> bool {
    !stage.is_empty() && StageName::standard(stage).is_none()
}

/// Returns whether [`refreshed`] would change nothing: live objects confirm all entries, and none
/// was read in full. Copies nothing.
fn is_fresh(desired: &Desired, observed: &Observed, plan: &Plan) -> bool {
    let entries = &observed.inventory.entries;
    let mut metadata = SortedLookup::new(&observed.meta);
    let is_confirmed = |(id, entry): (&ObjectId, &Entry)| {
        let full = observed.full.get(id).map(Live::meta);
        let live = full.or_else(|| metadata.get(id));
        entry.state != EntryState::Intended
            && live.is_some_and(|live| entry.uid.as_deref() == Some(&live.uid))
    };
    let is_read = |change: &Change| {
        change.action == Action::Unchanged && observed.full.contains_key(&change.object)
    };
    let mut members = SortedLookup::new(entries);
    let is_placed = |id: &ObjectId| {
        members
            .get(id)
            .is_none_or(|entry| match plan.assigned.get(id) {
                Some(stage) => entry.stage == stage.as_str(),
                None => !is_own(&entry.stage),
            })
    };
    observed.found.is_empty()
        && entries.iter().all(is_confirmed)
        && !plan.changes.iter().any(is_read)
        && desired.manifests.iter().map(Manifest::id).all(is_placed)
}

/// Like [`refreshed`], but avoids a copy if nothing changed.
pub(super) fn into_refreshed(desired: &Desired, observed: Observed, plan: &Plan) -> Inventory {
    if is_fresh(desired, &observed, plan) {
        observed.inventory
    } else {
        refreshed(desired, &observed, plan)
    }
}

/// Returns the inventory updated by the observation: without members that are gone, and with the
/// live versions of unchanged ones.
fn refreshed(desired: &Desired, observed: &Observed, plan: &Plan) -> Inventory {
    let mut inventory = observed.inventory.clone();
    let desired_ids: HashSet<&ObjectId> = desired.manifests.iter().map(Manifest::id).collect();
    inventory.entries.retain(|id, entry| {
        if desired_ids.contains(id) {
            // A run-once job that was deleted by its own rule is complete.
            let is_over = desired.has_run(id, &observed.journal);
            return !is_over || observed.live_meta(id).is_some() || !observed.is_complete(id);
        }
        match (entry.state, observed.live_meta(id)) {
            // Recreated by its workload. The entry is updated below.
            (EntryState::Observed, Some(_)) => true,
            (EntryState::Applied | EntryState::Kept, Some(live)) => {
                entry.uid.as_deref() == Some(&live.uid)
            }
            // Never confirmed and no longer in git, or gone: drop it, unless the search was
            // incomplete.
            (EntryState::Intended, _) | (_, None) => !observed.is_complete(id),
        }
    });
    // Pods can create them after the run that created the pods.
    let apply_set = desired.apply_set();
    for (id, entry) in &observed.found {
        let live = observed.live_meta(id);
        let is_theirs = live.is_none_or(|live| made_by_others(live, &apply_set).is_some());
        if !is_theirs {
            inventory.entries.insert(id.clone(), entry.clone());
        }
    }
    for (id, entry) in &mut inventory.entries {
        if entry.state == EntryState::Observed
            && let Some(live) = observed.live_meta(id)
            && still_matches(observed, id, entry)
        {
            entry.uid = Some(live.uid.clone());
        }
    }
    for Change {
        object: id, action, ..
    } in &plan.changes
    {
        let is_read = desired_ids.contains(id) && observed.full.contains_key(id);
        if *action != Action::Unchanged || !is_read {
            continue;
        }
        let Some(live) = observed.live_meta(id) else {
            continue;
        };
        let entry = inventory.entries.entry(id.clone()).or_default();
        entry.state = EntryState::Applied;
        entry.uid = Some(live.uid.clone());
        entry.resource_version = Some(live.resource_version.clone());
        entry.generation = live.generation;
        entry.fingerprint = live.fingerprint;
        if let Some(DesiredDigest::Known(digest)) = desired.digests.get(id) {
            entry.desired = Some(*digest);
        }
    }
    note_stages(desired, plan, &mut inventory);
    inventory
}

/// Returns whether a runtime object is still the recorded one. An object that was found by its
/// Service must still refer to it.
fn still_matches(observed: &Observed, id: &ObjectId, entry: &Entry) -> bool {
    let Some(service) = &entry.service else {
        return true;
    };
    observed
        .registrations
        .iter()
        .any(|registration| registration.id == *id && registration.services.contains(service))
}

/// Records the runtime objects of a verified release with their uids, because they can have been
/// recreated.
pub(super) async fn record_run_time_objects(
    cluster: &Cluster,
    desired: &Desired,
    observed: &Observed,
    inventory: &mut Inventory,
) -> Result<(), SyncError> {
    let paths = Paths::new(&observed.discovery, &desired.manifests);
    for object in &desired.runtime_objects {
        let Some(kind) = object.group_kind() else {
            continue;
        };
        let sample = ObjectId::new(&kind.group, &kind.kind, None, "");
        let Some(path) = paths.of_member(&sample, "") else {
            continue;
        };
        if let Some(service) = &object.service {
            record_registrations(cluster, desired, &path, service, inventory).await?;
        } else if let Some(name) = &object.name {
            record_named(cluster, desired, &path, name, inventory).await?;
        }
    }
    Ok(())
}

/// Records registrations, which are found by their Service.
async fn record_registrations(
    cluster: &Cluster,
    desired: &Desired,
    path: &ResourcePath,
    service: &str,
    inventory: &mut Inventory,
) -> Result<(), SyncError> {
    let kind = path.group_kind();
    let list = cluster.list(path, &Selector::default()).await?;
    for value in list.items {
        let ours = registered_services(&kind, &value)
            .into_iter()
            .find(|target| {
                target.name == service
                    && desired
                        .manifests
                        .iter()
                        .any(|manifest| *manifest.id() == target.id())
            });
        if let Some(target) = ours {
            let id = path.id(None, value["metadata"]["name"].as_str().unwrap_or_default());
            remember(inventory, id, &value, path, Some(target));
        }
    }
    Ok(())
}

/// Records other runtime objects, which are found by name in each namespace of the release.
async fn record_named(
    cluster: &Cluster,
    desired: &Desired,
    path: &ResourcePath,
    name: &str,
    inventory: &mut Inventory,
) -> Result<(), SyncError> {
    let namespaces: BTreeSet<Option<&str>> = if path.namespaced {
        let namespaces = desired.manifests.iter();
        namespaces
            .filter_map(|manifest| manifest.id().namespace.as_deref())
            .map(Some)
            .collect()
    } else {
        [None].into()
    };
    let read: Vec<(Option<&str>, Option<Value>)> = stream::iter(namespaces)
        .map(|namespace| async move {
            let value = cluster.get(path, namespace, name).await?;
            Ok::<_, ClusterError>((namespace, value))
        })
        .buffered(CONCURRENCY)
        .try_collect()
        .await?;
    for (namespace, value) in read {
        if let Some(value) = value {
            remember(inventory, path.id(namespace, name), &value, path, None);
        }
    }
    Ok(())
}

/// Records an object. An applied member stays one, even if it is also declared as a runtime object.
fn remember(
    inventory: &mut Inventory,
    id: ObjectId,
    value: &Value,
    path: &ResourcePath,
    service: Option<ServiceRef>,
) {
    let entry = inventory.entries.entry(id).or_insert_with(|| Entry {
        state: EntryState::Observed,
        ..Entry::default()
    });
    if entry.state == EntryState::Observed {
        entry.api_version = path.api_version.to_string();
        entry.uid = value["metadata"]["uid"].as_str().map(str::to_owned);
        entry.service = service;
    }
}

/// Reason and message of the condition Ready for a reconciled release.
pub(super) const RECONCILED: (&str, &str) = ("Deployed", "");

/// Outcome of a sync, as recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecordedOutcome {
    /// Outcome of the run, as recorded.
    pub(super) result: RunOutcome,
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
}

impl RecordedOutcome {
    /// Returns the outcome of a plan without anything to execute or record.
    pub(super) fn of_nothing(plan: &Plan, was_ready: bool) -> RunOutcome {
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
    pub(super) fn of(
        plan: &Plan,
        result: &SyncResult,
        was_ready: bool,
        unrecorded: Option<&SyncError>,
    ) -> Self {
        let verified = plan.verifies();
        let (name, reason) = if let Some(cause) = result.stopped {
            (cause.outcome(), cause.reason())
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
        }
    }

    /// Adds the override of a local run, if any.
    pub(super) fn local(self, override_reason: Option<&String>) -> Self {
        Self {
            local: override_reason.cloned().unwrap_or_default(),
            ..self
        }
    }
}

impl RecordedOutcome {
    /// Returns the outcome to show, which distinguishes that nothing was done.
    pub(super) fn outcome(&self, plan: &Plan, was_ready: bool) -> RunOutcome {
        if plan.steps.is_empty() && was_ready && self.result == RunOutcome::Deployed {
            RunOutcome::Unchanged
        } else {
            self.result.clone()
        }
    }
}

/// Returns the fields that were reverted from other field managers.
pub(super) fn corrected(plan: &Plan, result: &SyncResult) -> Vec<(ObjectId, Taken)> {
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
fn belongs_in_history(record: &Installed, attempt: &Attempt, result: &RunOutcome) -> bool {
    let is_versioned = attempt.version != attempt.revision;
    record.history.first().is_none_or(|last| {
        last.result != *result || (is_versioned && last.version != attempt.version)
    })
}

/// Writes the outcome of a sync.
pub(super) async fn finish(
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
pub(super) fn bounded(message: &str) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(1000) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Summarizes the progress of a stopped run in one line.
pub(super) fn how_far(plan: &Plan, result: &SyncResult) -> Option<String> {
    result.stopped?;
    Some(Remainder::of(plan, result).summary())
}

pub(super) fn first_problem(plan: &Plan, result: &SyncResult) -> Option<String> {
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

#[cfg(test)]
mod tests;
