//! Records changes and steps of single objects.

use jiff::SignedDuration;

use crate::observe::FieldConflict;
use crate::plan::{
    draft::{Ctx, Draft},
    model::{Action, Body, Change, EdgeReason, Need, Op, Own, Precondition, StepId, Until},
};
use pleach_model::finding::Finding;
use pleach_model::object::{DesiredDigest, FieldPath, Manifest, ObjectId};
use pleach_model::order::{ReadinessDemand, StageName};
use pleach_state::live::LiveMeta;

/// Records the change of a desired object.
pub(in crate::plan) fn change<'d>(
    ctx: &Ctx<'_>,
    draft: &'d mut Draft,
    manifest: &Manifest,
    action: Action,
    reason: &str,
) -> &'d mut Change {
    let id = manifest.id();
    let stage = ctx.stage_of(id);
    let require = match ctx.observed.live_meta(id) {
        None => vec![Precondition::Absent],
        Some(live) => as_seen(&ctx.stage_of_kind(id), live),
    };
    let change = draft.change(id, action, stage, reason, require);
    change.digest = ctx.desired.digests.get(id).copied();
    change
}

/// Returns the preconditions of a decision: no other client took a field of
/// ours. Registrations, and objects where we own nothing yet, must not have
/// been written at all.
pub(super) fn as_seen(stage: &StageName, live: &LiveMeta) -> Vec<Precondition> {
    let uid = Precondition::Uid(live.uid.clone());
    let seen = match live.fingerprint {
        Some(fingerprint) if *stage != StageName::Registrations => {
            Precondition::Fingerprint(fingerprint)
        }
        _ => Precondition::ResourceVersion(live.resource_version.clone()),
    };
    vec![uid, seen]
}

/// Records that an object matches git.
pub(super) fn unchanged(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest, reason: &str) {
    change(ctx, draft, manifest, Action::Unchanged, reason);
}

/// Records that an object cannot be applied.
pub(in crate::plan) fn block(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    manifest: &Manifest,
    finding: Finding,
) {
    let finding = finding
        .at(manifest.origin().clone())
        .on(manifest.id().clone());
    change(ctx, draft, manifest, Action::Blocked, &finding.message);
    draft.findings.push(finding);
}

/// Options of an apply.
#[derive(Debug, Default)]
pub(super) struct Manner {
    /// Conflicts that the apply forces, with their owners.
    pub(super) take_over: Vec<FieldConflict>,
    /// Fields that keep their cluster value in this apply.
    pub(super) leave: Vec<FieldPath>,
}

/// Adds the step that creates an object, with its completion condition.
pub(super) fn create(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    manifest: &Manifest,
    reason: &str,
) -> StepId {
    let id = manifest.id();
    // A creation also sends the ignored fields.
    let digest = ctx.desired.ignored.initial(id);
    let digest = digest.or_else(|| ctx.desired.digests.get(id).copied());
    let require = vec![Precondition::Absent];
    send(
        ctx,
        draft,
        manifest,
        (digest, Manner::default()),
        require,
        reason,
    )
}

fn send(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    manifest: &Manifest,
    (digest, manner): (Option<DesiredDigest>, Manner),
    require: Vec<Precondition>,
    reason: &str,
) -> StepId {
    let id = manifest.id();
    let op = Op::Apply {
        body: Body::Rendered(digest.unwrap_or(DesiredDigest::Unkeyed)),
        take_over: manner.take_over,
        leave: manner.leave,
    };
    let step = draft.step(ctx, ctx.stage_of(id), id.clone(), op, reason);
    draft.at(step).require = require;
    draft.at(step).until = until(ctx, id);
    draft.done_by.insert(id.clone(), step);
    step
}

/// Adds the step that applies an existing object, after the optional change of
/// its field ownership.
pub(super) fn apply_after(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    manifest: &Manifest,
    own: Option<(Own, &str)>,
    manner: Manner,
    live: &LiveMeta,
    reason: &str,
) {
    let id = manifest.id();
    // The apply must not require a resourceVersion: our own patch changes it,
    // and so do controllers while the backend is replaced. A foreign field
    // written since then is a conflict anyway.
    let require = vec![Precondition::Uid(live.uid.clone())];
    let patched = own.map(|(own, why)| {
        let step = draft.step(ctx, ctx.stage_of(id), id.clone(), Op::Own(own), why);
        draft.at(step).require.clone_from(&require);
        step
    });
    let digest = ctx.desired.digests.get(id).copied();
    let step = send(ctx, draft, manifest, (digest, manner), require, reason);
    if let Some(patched) = patched {
        draft.edge(patched, Need::Applied, step, EdgeReason::SameObject);
    }
}

/// Returns the completion condition of an object. A CRD completes when its kind
/// answers, and other objects when they are ready. `None` for kinds without a
/// status.
pub(in crate::plan) fn until(ctx: &Ctx<'_>, id: &ObjectId) -> Option<Until> {
    let crd = ctx.facts.get(id).and_then(|facts| facts.defines.as_ref());
    if let Some(served) = crd.and_then(|crd| crd.served.first()) {
        return Some(Until::Served(served.clone()));
    }
    let kind = id.group_kind();
    let rules = &ctx.desired.sequence.readiness;
    if !rules.waits_for(&kind) {
        return None;
    }
    ready(ctx, id, rules.stable_for(&kind))
}

/// Returns the readiness condition of an object, if its annotation asks for
/// one.
pub(in crate::plan) fn ready(
    ctx: &Ctx<'_>,
    id: &ObjectId,
    stable_for: SignedDuration,
) -> Option<Until> {
    let facts = ctx.facts.get(id);
    let optional = match facts.map(|facts| facts.readiness).unwrap_or_default() {
        ReadinessDemand::Require => false,
        ReadinessDemand::Warn => true,
        ReadinessDemand::None => return None,
    };
    Some(Until::Ready {
        stable_for,
        optional,
    })
}
