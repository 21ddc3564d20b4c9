//! Pods of a recreated `StatefulSet`. The new object adopts the pods that its
//! selector matches. Other pods would be orphaned under the names that the new
//! pods need.

use crate::plan::{Propagation, changes::refusal, draft::Ctx, edges::labels_until_now};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{FieldPath, ObjectId};
use pleach_model::order::selects;

/// Returns whether the new StatefulSet adopts the existing pods.
pub(super) fn adopts(ctx: &Ctx<'_>, id: &ObjectId) -> bool {
    let (Some(manifest), Some(live)) = (ctx.manifests.get(id), ctx.observed.full.get(id)) else {
        return true;
    };
    let desired = manifest.value();
    let selector = &desired["spec"]["selector"];
    *selector == live.value()["spec"]["selector"]
        || labels_until_now(ctx, id).is_some_and(|labels| selects(selector, &labels))
}

/// Returns the propagation that a consent should name.
pub(super) fn advised(ctx: &Ctx<'_>, id: &ObjectId) -> Propagation {
    if adopts(ctx, id) {
        Propagation::Orphan
    } else {
        Propagation::Foreground
    }
}

/// Refuses a consent with `Orphan` if the new selector does not match the pods.
pub(super) fn left_behind(fields: &[FieldPath]) -> Finding {
    let message = format!(
        "{}; with `propagation: Orphan` in the consent, its pods keep the names that the new pods need, and the new selector does not match them",
        refusal::cannot_change(fields)
    );
    Finding::error(Kind::Policy, "immutable-field", message).hint(
        "set `propagation: Foreground` in that consent: its pods are then deleted with it and recreated",
    )
}

/// Describes the volume claims that are deleted with a StatefulSet.
pub(in crate::plan) fn lost_claims(
    ctx: &Ctx<'_>,
    id: &ObjectId,
    propagation: Propagation,
) -> Option<&'static str> {
    let live = ctx.observed.full.get(id)?;
    let spec = &live.value()["spec"];
    let deletes_claims = spec["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Delete"
        && spec["volumeClaimTemplates"].is_array();
    (id.is("apps", "StatefulSet") && propagation != Propagation::Orphan && deletes_claims).then_some(
        "its PersistentVolumeClaims are deleted with it, unless .spec.persistentVolumeClaimRetentionPolicy.whenDeleted is set to Retain first",
    )
}
