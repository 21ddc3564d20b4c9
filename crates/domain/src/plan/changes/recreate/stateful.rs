//! What becomes of the pods of a `StatefulSet` that is created anew. The new one
//! adopts those that its selector finds. All others would stay as nobody's, under
//! the names that its own pods need.

use crate::finding::{Finding, Kind};
use crate::object::{FieldPath, ObjectId};
use crate::order::selects;
use crate::plan::Propagation;
use crate::plan::changes::refusal;
use crate::plan::draft::Ctx;
use crate::plan::edges::labels_until_now;

/// Whether the new one adopts the pods that are there.
pub(super) fn adopts(ctx: &Ctx<'_>, id: &ObjectId) -> bool {
    let (Some(manifest), Some(live)) = (ctx.manifests.get(id), ctx.observed.full.get(id)) else {
        return true;
    };
    let wanted = manifest.value();
    let selector = &wanted["spec"]["selector"];
    *selector == live.value()["spec"]["selector"]
        || labels_until_now(ctx, id).is_some_and(|labels| selects(selector, &labels))
}

/// What becomes of what it owns, as a consent that names it should say.
pub(super) fn advised(ctx: &Ctx<'_>, id: &ObjectId) -> Propagation {
    if adopts(ctx, id) {
        Propagation::Orphan
    } else {
        Propagation::Foreground
    }
}

/// A consent that leaves behind what the new one does not find.
pub(super) fn left_behind(fields: &[FieldPath]) -> Finding {
    let message = format!(
        "{}; with the consent's `propagation: Orphan` its pods stay under the names that new ones need, and the new selector does not find them",
        refusal::cannot_change(fields)
    );
    Finding::error(Kind::Policy, "immutable-field", message).hint(
        "say `propagation: Foreground` in that consent: its pods are deleted with it, and made anew",
    )
}

/// What goes with it, where its pods do not stay.
pub(in crate::plan) fn taken_along(
    ctx: &Ctx<'_>,
    id: &ObjectId,
    propagation: Propagation,
) -> Option<&'static str> {
    let live = ctx.observed.full.get(id)?;
    let spec = &live.value()["spec"];
    let claims_go = spec["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Delete"
        && spec["volumeClaimTemplates"].is_array();
    (id.is("apps", "StatefulSet") && propagation != Propagation::Orphan && claims_go).then_some(
        "its claims are deleted with it, unless .spec.persistentVolumeClaimRetentionPolicy.whenDeleted becomes Retain before",
    )
}
