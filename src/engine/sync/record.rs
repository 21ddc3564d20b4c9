//! What a sync writes down: before its first change, and at its end.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use pleach_domain::inventory::{Attempt, AttemptResult, Entry, EntryState, Inventory};
use pleach_domain::object::{Digest, Manifest, ObjectId, canonical_json};
use pleach_domain::observe::{DesiredDigest, Observed};
use pleach_domain::order::{StageName, defined_kinds, registered_services, stage_of};
use pleach_domain::plan::{Action, Body, Desired, Op, Plan};
use serde_json::json;

use super::error::SyncError;
use super::paths::Paths;
use super::report::SyncResult;
use super::state::State;
use crate::io::cluster::{Cluster, Selector};

/// Digest of everything that is desired of a release.
fn desired_digest(desired: &Desired) -> Digest {
    let objects: Vec<_> = desired
        .digests
        .iter()
        .map(|(id, digest)| match digest {
            DesiredDigest::Known(digest) => json!([id.to_string(), digest.to_string()]),
            DesiredDigest::Unkeyed => json!([id.to_string(), null]),
        })
        .collect();
    Digest::of(&canonical_json(&json!([
        desired.bundle,
        desired.version,
        objects
    ])))
}

/// The attempt that begins now.
pub(super) fn attempt(desired: &Desired) -> Attempt {
    Attempt {
        version: desired.version.clone(),
        revision: desired.revision.clone(),
        digest: desired_digest(desired),
        at: Timestamp::now(),
    }
}

/// Whether the record says already what it would say after a sync without steps.
pub(super) fn is_current(
    state: &State,
    desired: &Desired,
    observed: &Observed,
    plan: &Plan,
) -> bool {
    let record = state.record();
    let installed = record.installed.as_ref().is_some_and(|installed| {
        installed.version == desired.version
            && installed.revision == desired.revision
            && installed.digest == desired_digest(desired)
    });
    installed
        && super::is_keyed(desired)
        && record.ready
        && record.applying.is_none()
        && refreshed(desired, observed, plan, observed.inventory.clone()) == observed.inventory
}

/// The inventory before the first change: everything that is a member, and
/// everything that may become one.
pub(super) fn superset(desired: &Desired, observed: &Observed, plan: &Plan) -> Inventory {
    let mut inventory = refreshed(desired, observed, plan, observed.inventory.clone());
    let defined = defined_kinds(&desired.manifests);
    let wanted = manifests(desired);
    let adopted: BTreeSet<&ObjectId> = plan
        .changes
        .iter()
        .filter(|change| change.action == Action::Adopt)
        .map(|change| &change.object)
        .collect();
    for step in &plan.steps {
        let Op::Apply { body, .. } = &step.op else {
            continue;
        };
        let id = &step.object;
        let existed = observed.live_meta(id).is_some();
        let entry = inventory
            .entries
            .entry(id.clone())
            .or_insert_with(|| Entry {
                stage: stage_of(&id.group_kind(), &defined).to_string(),
                ..Entry::default()
            });
        if let Some(manifest) = wanted.get(id) {
            entry.api_version = manifest.api_version().to_string();
        }
        entry.adopted |= adopted.contains(id) && id.is("", "Namespace");
        // A namespace that we make because nobody else does is not deleted with
        // what lies in it.
        entry.protected |= matches!(body, Body::Inline(_)) && id.is("", "Namespace") && !existed;
    }
    inventory
}

fn manifests(desired: &Desired) -> BTreeMap<&ObjectId, &Manifest> {
    desired
        .manifests
        .iter()
        .map(|manifest| (manifest.id(), manifest))
        .collect()
}

/// The inventory after what was found out while observing: members that are
/// gone leave it, unchanged ones are recorded as they are now.
fn refreshed(
    desired: &Desired,
    observed: &Observed,
    plan: &Plan,
    mut inventory: Inventory,
) -> Inventory {
    let wanted = manifests(desired);
    inventory.entries.retain(|id, entry| {
        if wanted.contains_key(id) {
            return true;
        }
        match (entry.state, observed.live_meta(id)) {
            // Never confirmed, and git has it no more: it was never ours.
            (EntryState::Intended, _) => false,
            (_, Some(live)) => entry.uid.as_deref() == Some(&live.uid),
            (_, None) => !observed.is_complete(id),
        }
    });
    for change in &plan.changes {
        let id = &change.object;
        let is_read = wanted.contains_key(id) && observed.full.contains_key(id);
        if change.action != Action::Unchanged || !is_read {
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
    inventory
}

/// The inventory after the steps: intended entries that came to nothing leave
/// it, and after a verified sync the run-time objects are recorded.
pub(super) async fn settled(
    cluster: &Cluster,
    desired: &Desired,
    observed: &Observed,
    plan: &Plan,
    result: &SyncResult,
    mut inventory: Inventory,
) -> Result<Inventory, SyncError> {
    // An intended entry of a step that failed stays: the object may exist.
    if !result.is_success() || desired.runtime_objects.is_empty() || !plan.has_steps() {
        return Ok(inventory);
    }
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
            let list = cluster.list(&path, &Selector::default()).await?;
            for value in list.items {
                let ours = registered_services(&kind, &value)
                    .into_iter()
                    .find(|target| {
                        target.name == *service
                            && desired
                                .manifests
                                .iter()
                                .any(|manifest| *manifest.id() == target.id())
                    });
                let id = path.id(None, value["metadata"]["name"].as_str().unwrap_or_default());
                if let Some(target) = ours {
                    let mut entry = observed_entry(&value, &path.api_version.to_string());
                    entry.service = Some(target);
                    inventory.entries.entry(id).or_insert(entry);
                }
            }
        } else if let Some(name) = &object.name {
            let namespaces: BTreeSet<Option<String>> = if path.namespaced {
                desired
                    .manifests
                    .iter()
                    .map(|manifest| manifest.id().namespace.clone())
                    .filter(Option::is_some)
                    .collect()
            } else {
                [None].into()
            };
            for namespace in namespaces {
                if let Some(value) = cluster.get(&path, namespace.as_deref(), name).await? {
                    let id = path.id(namespace.as_deref(), name);
                    let entry = observed_entry(&value, &path.api_version.to_string());
                    inventory.entries.entry(id).or_insert(entry);
                }
            }
        }
    }
    // Recreated run-time objects have another uid: the record follows.
    Ok(inventory)
}

fn observed_entry(value: &serde_json::Value, api_version: &str) -> Entry {
    Entry {
        state: EntryState::Observed,
        api_version: api_version.to_owned(),
        uid: value["metadata"]["uid"].as_str().map(str::to_owned),
        ..Entry::default()
    }
}

/// Writes the result.
pub(super) async fn finish(
    state: &mut State,
    desired: &Desired,
    plan: &Plan,
    result: &SyncResult,
    inventory: &Inventory,
    attempt: Attempt,
) -> Result<(), SyncError> {
    let blocked = plan.count(Action::Blocked);
    let verified = plan.changes.is_empty() || verified(plan) || state.record().ready;
    let (outcome, reason) = if result.interrupted {
        ("interrupted", "Interrupted")
    } else if !result.is_success() {
        ("failed", "Failed")
    } else if blocked > 0 {
        ("failed", "Blocked")
    } else if verified {
        ("deployed", "Deployed")
    } else {
        ("unverified", "NotVerified")
    };
    let message = first_problem(plan, result);
    let (repository, bundle) = (desired.repository.clone(), desired.bundle.clone());
    let stage = reached(plan, result);
    let shown = message.clone();
    let steps = plan.has_steps();
    state
        .commit(
            inventory,
            |installed| {
                installed.repository = repository;
                installed.bundle = bundle;
                installed.stage = stage;
                installed.ready = outcome == "deployed";
                if steps || outcome != "deployed" {
                    installed.push(AttemptResult {
                        version: attempt.version.clone(),
                        revision: attempt.revision.clone(),
                        result: outcome.to_owned(),
                        at: Timestamp::now(),
                        message: shown,
                    });
                }
                if outcome == "deployed" {
                    installed.installed = Some(attempt);
                    installed.applying = None;
                } else {
                    installed.applying = Some(attempt);
                }
            },
            reason,
            &message,
        )
        .await
}

/// Whether the plan holds the barrier behind which everything is ready.
fn verified(plan: &Plan) -> bool {
    plan.steps
        .iter()
        .any(|step| step.stage == StageName::Verify && step.object.is("pleach.dev", "Release"))
}

fn first_problem(plan: &Plan, result: &SyncResult) -> String {
    let failed = result
        .failures(plan)
        .next()
        .map(|(object, failure)| format!("{object}: {}", failure.message));
    let blocked = || {
        plan.changes
            .iter()
            .find(|change| change.action == Action::Blocked)
            .map(|change| format!("{}: {}", change.object, change.reason))
    };
    failed.or_else(blocked).unwrap_or_default()
}

/// The last stage in which a step was carried out.
fn reached(plan: &Plan, result: &SyncResult) -> String {
    plan.steps
        .iter()
        .rev()
        .find(|step| result.outcomes.get(&step.id) == Some(&super::events::Outcome::Done))
        .map(|step| step.stage.to_string())
        .unwrap_or_default()
}
