//! Decides the action on every desired object and emits its steps.

mod adoption;
mod again;
mod crd;
mod displaced;
mod drift;
mod emit;
mod member;
mod previous;
mod recreate;
pub(super) mod refusal;
pub(super) mod untouched;

pub(super) use again::await_deletions;
pub(super) use emit::{block, change, ready, until};
pub(super) use recreate::lost_claims;

use super::draft::{Ctx, Draft};
use super::model::{Action, EdgeReason, Need};
use super::ownership::{self, Claim};
use super::phases::Decided;
use crate::crd::is_crd;
use crate::observe::{Prediction, Unverified};
use crd::Guarded;
use emit::{create, unchanged};
use pleach_fields::diff::Cause;
use pleach_model::discovery::Served;
use pleach_model::object::{DesiredDigest, Manifest, ObjectId};
use pleach_state::inventory::EntryState;
use pleach_state::live::LiveMeta;

/// Decides all desired objects. CRDs come first, because recreating one deletes
/// its custom resources. Objects that metadata proves to be as desired come
/// next, all at once.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Decided) {
    let all = ctx.manifests.values();
    let (crds, others): (Vec<&Manifest>, Vec<&Manifest>) =
        all.partition(|manifest| is_crd(manifest.id()));
    for manifest in crds {
        decide(ctx, draft, manifest);
    }
    for manifest in untouched::record(ctx, draft, others) {
        decide(ctx, draft, manifest);
    }
}

/// Decides a desired object.
pub(super) fn decide(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest) {
    let id = manifest.id();
    match ctx.observed.discovery.served(&manifest.gvk()) {
        Served::Current(_) => {}
        // An earlier release makes the kind available. The object may still
        // exist, at another served version.
        Served::Absent if ctx.desired.terms.prior_releases.serves(&manifest.gvk()) => {}
        // The API server for the kind is part of this release.
        Served::Stale | Served::Absent if refusal::is_to_come(ctx, manifest) => {
            return absent(ctx, draft, manifest);
        }
        Served::Stale => {
            return block(ctx, draft, manifest, refusal::api_stale(manifest));
        }
        Served::Absent if refusal::is_defined(ctx, manifest) => {}
        Served::Absent => return block(ctx, draft, manifest, refusal::not_served(ctx, manifest)),
    }
    if let Some(Prediction::Unverified(Unverified::ApiStale)) = ctx.observed.predicted.get(id) {
        return block(ctx, draft, manifest, refusal::api_stale(manifest));
    }
    if manifest.runs_once() {
        return super::run_once_jobs::decide(ctx, draft, manifest);
    }
    let in_terminating_namespace = id
        .namespace
        .as_ref()
        .is_some_and(|name| ctx.is_terminating(name));
    match ctx.observed.live_meta(id) {
        None => absent(ctx, draft, manifest),
        Some(live) if live.deleting || in_terminating_namespace => {
            terminating(ctx, draft, manifest, live);
        }
        Some(_) if just_deleted(ctx, manifest) => absent(ctx, draft, manifest),
        Some(live) => match ownership::claim(ctx, id, live) {
            Claim::Ours if is_recreated_with_crd(ctx, draft, id) => lost(ctx, draft, manifest),
            Claim::Ours => ours(ctx, draft, manifest, live),
            Claim::Adopt => match crd::guard(ctx, draft, manifest) {
                // Objects applied by other tools are never recreated. The API
                // server decides on the change.
                Guarded::Free | Guarded::Recreate(_) => {
                    adoption::decide(ctx, draft, manifest, live);
                }
                Guarded::Refused => {}
            },
            Claim::Refused(finding) => block(ctx, draft, manifest, *finding),
        },
    }
}

/// Decides an existing member.
fn ours(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest, live: &LiveMeta) {
    if let Some(deletion) = again::deletion(ctx, manifest, live) {
        return again::decide(ctx, draft, manifest, live, deletion);
    }
    match crd::guard(ctx, draft, manifest) {
        Guarded::Free => member::decide(ctx, draft, manifest, live),
        Guarded::Refused => {}
        Guarded::Recreate(fields) => {
            let cause = Some(Cause::Git);
            recreate::decide(ctx, draft, manifest, live, (&fields, None), cause);
        }
    }
}

/// Returns whether the object was deleted between the LIST and the dry run.
fn just_deleted(ctx: &Ctx<'_>, manifest: &Manifest) -> bool {
    matches!(
        ctx.observed.predicted.get(manifest.id()),
        Some(Prediction::Creates)
    )
}

/// Returns whether the CRD of the object is recreated.
pub(super) fn is_recreated_with_crd(ctx: &Ctx<'_>, draft: &Draft, id: &ObjectId) -> bool {
    let crd = ctx.crd(&id.group_kind());
    crd.is_some_and(|(id, _)| draft.action(id) == Some(Action::Recreate))
}

/// Plans the creation of a custom resource that is deleted with its CRD.
fn lost(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest) {
    let reason = "it is deleted with its CRD, which is recreated";
    change(ctx, draft, manifest, Action::Create, reason).unverified =
        Some(Unverified::KindMissing.to_string());
    create(ctx, draft, manifest, reason);
}

/// Plans the creation of an object that does not exist, after checking its dry
/// run.
fn absent(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest) {
    let id = manifest.id();
    if has_ended(ctx, manifest) {
        let reason = "it finished, and the cluster deleted it after its ttlSecondsAfterFinished";
        return unchanged(ctx, draft, manifest, reason);
    }
    let unverified = match ctx.observed.predicted.get(id) {
        Some(Prediction::Creates | Prediction::Answer(_)) => None,
        Some(Prediction::Unverified(_)) => previous::unverified(ctx, manifest),
        Some(Prediction::Refused(refusal)) => match previous::unverified(ctx, manifest) {
            None => return block(ctx, draft, manifest, refusal::refused(refusal)),
            why => why,
        },
        Some(Prediction::Conflict { fields, .. }) => {
            return block(
                ctx,
                draft,
                manifest,
                refusal::conflict(ctx, manifest, fields),
            );
        }
        Some(Prediction::Immutable { .. }) | None => Some(Unverified::Offline),
    };
    let entry = ctx.observed.inventory.entries.get(id);
    let reason = if entry.is_some_and(|entry| entry.state == EntryState::Applied) {
        "it was deleted in the cluster"
    } else {
        "it does not exist yet"
    };
    change(ctx, draft, manifest, Action::Create, reason).unverified =
        unverified.map(|why| why.to_string());
    create(ctx, draft, manifest, reason);
}

/// Returns whether a Job is absent because it finished: git has not changed it,
/// and the run that applied it saw the whole release ready.
fn has_ended(ctx: &Ctx<'_>, manifest: &Manifest) -> bool {
    let id = manifest.id();
    if !id.is("batch", "Job") || manifest.value()["spec"]["ttlSecondsAfterFinished"].is_null() {
        return false;
    }
    let installed = ctx.observed.installed.as_ref();
    let entry = ctx.observed.inventory.entries.get(id);
    let recorded = entry
        .filter(|entry| entry.state == EntryState::Applied)
        .and_then(|entry| entry.desired);
    let is_as_applied = match (ctx.desired.digests.get(id), recorded) {
        (Some(DesiredDigest::Known(desired)), Some(recorded)) => *desired == recorded,
        _ => false,
    };
    is_as_applied && installed.is_some_and(|installed| installed.ready)
}

/// Plans an object that is being deleted. A terminating object is never
/// applied, so its deletion is awaited and it is created again.
fn terminating(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest, live: &LiveMeta) {
    let id = manifest.id();
    let waiting = terminating_reason(live);
    change(ctx, draft, manifest, Action::Create, &waiting);
    let gone = draft.wait_for_end(ctx, ctx.stage_of(id), id, &live.uid, &waiting);
    let step = create(ctx, draft, manifest, "the previous object is gone");
    draft.edge(gone, Need::Absent, step, EdgeReason::SameObject);
}

/// Describes the obstacle to the end of a deletion.
pub(super) fn terminating_reason(live: &LiveMeta) -> String {
    if !live.deleting {
        "its namespace is being deleted; created again when it is gone".to_owned()
    } else if live.finalizers.is_empty() {
        "it is being deleted; created again when it is gone".to_owned()
    } else {
        format!(
            "it is being deleted and waits for {}; created again when it is gone",
            live.finalizers.join(", ")
        )
    }
}
