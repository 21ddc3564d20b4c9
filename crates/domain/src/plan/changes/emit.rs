//! Changes and steps of single objects, as the decisions about them make them.

use jiff::SignedDuration;

use crate::finding::Finding;
use crate::object::{FieldPath, Manifest, ObjectId};
use crate::observe::{DesiredDigest, FieldConflict, LiveMeta};
use crate::order::{ReadinessDemand, StageName};
use crate::plan::draft::{Ctx, Draft};
use crate::plan::model::{
    Action, Body, Change, EdgeReason, Need, Op, Own, Precondition, StepId, Until,
};

/// Records what happens to a desired object.
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

/// What must still hold for a decision to be right: nobody took a field of
/// ours; of a registration, or where we own nothing yet, nobody wrote at all.
fn as_seen(stage: &StageName, live: &LiveMeta) -> Vec<Precondition> {
    let uid = Precondition::Uid(live.uid.clone());
    let seen = match live.fingerprint {
        Some(fingerprint) if *stage != StageName::Registrations => {
            Precondition::Fingerprint(fingerprint)
        }
        _ => Precondition::ResourceVersion(live.resource_version.clone()),
    };
    vec![uid, seen]
}

/// Records that an object is as wanted.
pub(super) fn unchanged(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest, reason: &str) {
    change(ctx, draft, manifest, Action::Unchanged, reason);
}

/// Records that an object cannot be brought about.
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

/// What an apply does beside sending the object.
#[derive(Debug, Default)]
pub(super) struct Manner {
    /// Fields that are taken over in a conflict, and from whom.
    pub(super) take_over: Vec<FieldConflict>,
    /// Fields that are left as they are, this once.
    pub(super) leave: Vec<FieldPath>,
}

/// The step that creates an object, and what completes it.
pub(super) fn create(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    manifest: &Manifest,
    reason: &str,
) -> StepId {
    let id = manifest.id();
    // What is ignored is sent this once.
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

/// The step that applies an object that exists, after one that changes its
/// record of owners.
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
    // The apply may not ask for a resourceVersion: the patch moves it, and so do
    // controllers that write to the object while its backend is exchanged. What
    // others hold by then is a conflict all the same.
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

/// What completes an object: a CRD is done when its kind answers, others when
/// they are ready; kinds without a status are done when they are applied.
pub(in crate::plan) fn until(ctx: &Ctx<'_>, id: &ObjectId) -> Option<Until> {
    let definition = ctx.facts.get(id).and_then(|facts| facts.defines.as_ref());
    if let Some(served) = definition.and_then(|definition| definition.served.first()) {
        return Some(Until::Served(served.clone()));
    }
    let kind = id.group_kind();
    let rules = &ctx.desired.sequence.readiness;
    if !rules.waits_for(&kind) {
        return None;
    }
    ready(ctx, id, rules.stable_for(&kind))
}

/// Readiness of an object, as far as it is asked for.
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
