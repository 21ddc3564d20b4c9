//! Exemption of pleach's own user from gates.
//!
//! People may share that user, so a gate stops it too. It is exempt only if the
//! plan itself writes closed resources while the gate is closed. A finding then
//! reports the exemption.

use std::collections::BTreeSet;

use crate::plan::{
    draft::{Ctx, Draft},
    model::{Course, EdgeReason, Need, Op, Step, StepId},
    overlays::{ancestors, descendants},
    phases::Bracketed,
};
use pleach_formats::gate::{Closed, Gate, is_policy};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::ObjectId;
use pleach_state::overlay::{Journaled, OverlayContent};

/// Prefix of ServiceAccount user names, which no person has.
const ACCOUNT: &str = "system:serviceaccount:";

/// Exempts our own user from the gates that would stop this plan.
pub(in crate::plan) fn run(ctx: &Ctx<'_>, draft: &mut Bracketed) {
    let closes = draft.steps.iter();
    let closes = closes.filter(|step| !draft.dropped.contains(&step.id));
    let closes: Vec<(StepId, Gate)> = closes
        .filter_map(|step| match &step.op {
            Op::Close { gate } => Some((step.id, gate.clone())),
            _ => None,
        })
        .collect();
    for (close, mut gate) in closes {
        let Some(object) = stopped(ctx, draft, close, &gate) else {
            continue;
        };
        draft.findings.push(report(ctx, &gate, &object));
        gate.exempts_us = true;
        let id = draft.steps[close.0].overlay.clone();
        for overlay in &mut draft.overlays {
            if Some(&overlay.id) == id.as_ref() {
                overlay.content = OverlayContent::Gate(Some(gate.clone()));
            }
        }
        draft.at(close).op = Op::Close { gate };
    }
}

/// Returns the first object of a closed kind that the plan writes while the
/// gate is closed. A gate of an earlier run is closed from the start.
fn stopped(ctx: &Ctx<'_>, draft: &Draft, close: StepId, gate: &Gate) -> Option<ObjectId> {
    let id = draft.steps[close.0].overlay.as_ref();
    let mut overlays = draft.overlays.iter();
    let is_retained = overlays.any(|one| Some(&one.id) == id && one.course == Course::Kept);
    let before = if is_retained {
        BTreeSet::new()
    } else {
        ancestors(draft, &[close])
    };
    let lifts = draft.steps.iter();
    let lifts = lifts.filter(|step| step.op == Op::Lift && step.overlay.as_ref() == id);
    let after = descendants(draft, lifts.map(|step| step.id).collect());
    let mut writes = writes(ctx, draft, &gate.closed).into_iter();
    let write = writes.find(|step| !before.contains(step) && !after.contains(step))?;
    Some(draft.steps[write.0].object.clone())
}

/// Reports the exemption, as a warning if people may share the user.
fn report(ctx: &Ctx<'_>, gate: &Gate, object: &ObjectId) -> Finding {
    let access = ctx.observed.access.as_ref();
    let user = access.and_then(|access| access.user.as_deref());
    let user_name = match user {
        Some(user) => format!("`{user}`, the user that pleach runs as"),
        None => "the user that pleach runs as".to_owned(),
    };
    let message = format!(
        "gate {} does not stop {user_name}: this plan writes {object} while it is closed",
        gate.name
    );
    let is_shared = user.is_some_and(|user| !user.starts_with(ACCOUNT));
    let finding = if is_shared {
        Finding::warning(Kind::Policy, "gate-exempts-us", message).hint(
            "the gate does not stop other clients with the same user either; give pleach its own user",
        )
    } else {
        Finding::note(Kind::Policy, "gate-exempts-us", message)
    };
    finding.on(gate.id())
}

/// Makes writes wait that a gate of an earlier run would refuse. They wait for
/// `step`, which updates or lifts the gate.
pub(in crate::plan) fn before_writes(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    journaled: &Journaled,
    step: StepId,
) {
    let Some(gate) = journaled.gate() else {
        return;
    };
    if gate.exempts_us {
        return;
    }
    for write in writes(ctx, draft, &gate.closed) {
        draft.edge(step, Need::Ready, write, EdgeReason::Overlay);
    }
}

/// Returns the steps that create or change objects of a closed kind.
fn writes(ctx: &Ctx<'_>, draft: &Draft, closed: &[Closed]) -> Vec<StepId> {
    let steps = draft.steps.iter();
    let steps = steps.filter(|step| !draft.dropped.contains(&step.id));
    let is_closed = |step: &&Step| {
        let Some((group, resource)) = written(ctx, step) else {
            return false;
        };
        let mut closed = closed.iter();
        closed.any(|one| {
            let mut groups = one.groups.iter();
            let mut resources = one.resources.iter();
            groups.any(|one| one == "*" || one == group)
                // A kind with an unknown plural may be closed.
                && resources.any(|one| one == "*" || resource.is_none_or(|plural| plural == one))
        })
    };
    steps.filter(is_closed).map(|step| step.id).collect()
}

/// Returns the group and the plural of the objects that a step creates or
/// changes.
fn written<'s>(ctx: &'s Ctx<'_>, step: &'s Step) -> Option<(&'s str, Option<&'s str>)> {
    match &step.op {
        Op::Wait | Op::Pause | Op::Delete(_) | Op::Close { .. } => return None,
        Op::Lift if is_policy(&step.object) => return None,
        // A migration writes custom resources; the name of the CRD is
        // `<plural>.<group>`.
        Op::Migrate { crd, .. } => {
            let (plural, group) = crd.name.split_once('.')?;
            return Some((group, Some(plural)));
        }
        Op::Apply { .. }
        | Op::Create { .. }
        | Op::Own(_)
        | Op::Patch { .. }
        | Op::Set { .. }
        | Op::Lift
        | Op::Restart { .. }
        | Op::Replace { .. }
        | Op::UpgradeNode { .. }
        | Op::Preload { .. }
        | Op::RememberImages { .. }
        | Op::CleanNode { .. }
        | Op::Copy { .. } => {}
    }
    let kind = step.object.group_kind();
    let defined = ctx.crd(&kind).map(|(_, one)| one.plural.as_str());
    let served = || {
        let preferred = ctx.observed.discovery.preferred(&kind);
        preferred.map(|(_, resource)| resource.plural.as_str())
    };
    Some((step.object.group.as_str(), defined.or_else(served)))
}
