//! Record of a sync: what is written before the first change and at the end.

mod outcome;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use pleach_fields::diff::ownership::status_came_last;
use pleach_model::object::{DesiredDigest, Manifest, ObjectId, ServiceRef, SortedLookup};
use pleach_model::order::{StageName, defined_kinds, registered_services, stage_of};
use pleach_planner::observe::Observed;
use pleach_planner::plan::{Action, Body, Change, Desired, Op, Plan, Precondition, made_by_others};
use pleach_report::audit::LastPlan;
use pleach_state::inventory::{
    Attempt, Entry, EntryState, Installed, Inventory, Memory, RunOutcome,
};
use pleach_state::live::Live;
use serde_json::Value;

use super::CONCURRENCY;
use super::error::SyncError;
use super::paths::Paths;
use super::returned;
pub(super) use outcome::{
    RECONCILED, RecordedOutcome, bounded, corrected, facts, finish, first_problem, how_far,
};
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

#[cfg(test)]
mod tests;
