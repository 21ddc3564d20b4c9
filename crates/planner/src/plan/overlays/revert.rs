//! Ends of temporary changes, which revert them.

use std::collections::BTreeSet;

use super::holds;
use crate::plan::changes::until;
use crate::plan::draft::{Ctx, Draft};
use crate::plan::gate;
use crate::plan::model::{Course, EdgeReason, Need, Op, Overlay, StepId, Until};
use crate::plan::phases::Bracketed;
use crate::plan::verify::completion;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::ObjectId;
use pleach_model::order::StageName;
use pleach_state::overlay::{Journaled, OverlayId};

/// Adds the ends of temporary changes after verify and before pruning.
pub(in crate::plan) fn finish(ctx: &Ctx<'_>, draft: &mut Bracketed) {
    let late = std::mem::take(&mut draft.late);
    if late.is_empty() {
        return;
    }
    let before: Vec<(StepId, Need)> = match draft.verified {
        Some(verified) => vec![(verified, Need::Applied)],
        None => draft.steps.iter().map(completion).collect(),
    };
    let lifts: Vec<StepId> = late
        .into_iter()
        .map(|late| lift(ctx, draft, late.overlay, late.set, StageName::Ungate))
        .collect();
    let verified = draft.verified;
    gate::answered(ctx, draft, &lifts, verified);
    let why = EdgeReason::Overlay;
    let reason = "temporary changes stay until all earlier steps are done";
    draft.all_before(ctx, StageName::Ungate, &before, &lifts, &why, reason);
    if draft.verified.is_some() {
        let reason = "temporary changes are reverted before objects are pruned";
        let done = draft.wait(ctx, StageName::Ungate, ctx.release(), None, reason);
        for lift in lifts {
            let (from, need) = completion(&draft.steps[lift.0]);
            draft.edge(from, need, done, EdgeReason::Overlay);
        }
        draft.verified = Some(done);
    }
}

/// Reverts temporary changes of earlier runs before an uninstall. Only the
/// journal knows the previous values, and it may be removed with the release.
pub(in crate::plan) fn before_removal(ctx: &Ctx<'_>, draft: &mut Bracketed, ends: bool) {
    if ends || !draft.steps.is_empty() {
        drop_undesired(ctx, draft, &BTreeSet::new(), &|_| true);
    }
}

/// Reverts temporary changes of earlier runs that are no longer desired.
pub(super) fn drop_undesired(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    needed: &BTreeSet<OverlayId>,
    which: &dyn Fn(&Journaled) -> bool,
) -> Vec<(ObjectId, StepId)> {
    let mut dropped = Vec::new();
    let journaled = ctx.observed.journal.overlays.iter();
    for (id, journaled) in journaled.filter(|(_, journaled)| which(journaled)) {
        let live = ctx.observed.targets.get(&journaled.object);
        // The existence of a gate is checked when it is closed or lifted.
        let is_there =
            journaled.is_gate() || live.is_some_and(|live| live.meta().uid == journaled.uid);
        if needed.contains(id) && is_there {
            continue;
        }
        if !is_there {
            let message = format!(
                "overlay {id}: the object that a previous run changed temporarily is gone; there is nothing to revert"
            );
            let finding = Finding::note(Kind::Cluster, "overlay-gone", message);
            draft.findings.push(finding.on(journaled.object.clone()));
        }
        draft.overlays.push(Overlay {
            id: id.clone(),
            object: journaled.object.clone(),
            content: journaled.into(),
            course: Course::Dropped,
            from: None,
            until: StageName::Preflight,
            undo: vec![Op::Lift],
            on_failure: journaled.on_failure.clone(),
        });
        let index = draft.overlays.len() - 1;
        let own: Vec<StepId> = draft
            .steps
            .iter()
            .filter(|step| step.object == journaled.object && !matches!(step.op, Op::Wait))
            .map(|step| step.id)
            .collect();
        let apply = draft.done_by.get(&journaled.object).copied();
        if let Some(apply) = apply.filter(|_| holds(&journaled.set.0)) {
            // Reverted before the apply, the undesired template would be rolled
            // out.
            let stage = draft.steps[apply.0].stage.clone();
            let step = lift(ctx, draft, index, None, stage);
            draft.edge(apply, Need::Applied, step, EdgeReason::SameObject);
            hand_over(draft, apply, step);
            draft.done_by.insert(journaled.object.clone(), step);
        } else {
            let step = lift(ctx, draft, index, None, StageName::Preflight);
            for later in own {
                draft.edge(step, Need::Applied, later, EdgeReason::SameObject);
            }
            gate::before_writes(ctx, draft, journaled, step);
            dropped.push((journaled.object.clone(), step));
        }
    }
    dropped
}

/// Adds the step that reverts a temporary change.
pub(in crate::plan) fn lift(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    overlay: usize,
    set: Option<StepId>,
    stage: StageName,
) -> StepId {
    let is_gate = draft.overlays[overlay].is_gate();
    let Overlay { id, object, .. } = draft.overlays[overlay].clone();
    let what = if is_gate { "gate" } else { "overlay" };
    let reason = match draft.overlays[overlay].course {
        Course::Dropped => format!("{what} {id} of a previous run is no longer needed"),
        Course::Made | Course::Kept => format!("{what} {id} ends"),
    };
    let step = draft.step(ctx, stage, object.clone(), Op::Lift, &reason);
    draft.at(step).overlay = Some(id);
    if is_gate {
        draft.at(step).until = Some(gate::probed(ctx, &object, false));
    }
    // Only our own objects are awaited.
    if ctx.is_desired(&object) && ctx.policy.wait {
        draft.at(step).until =
            until(ctx, &object).filter(|until| matches!(until, Until::Ready { .. }));
    }
    if let Some(set) = set {
        let (from, need) = completion(&draft.steps[set.0]);
        draft.edge(from, need, step, EdgeReason::Overlay);
    }
    step
}

/// Moves readiness dependencies from the apply to the step that reverts the
/// temporary change.
pub(super) fn hand_over(draft: &mut Draft, apply: StepId, lift: StepId) {
    for step in &mut draft.steps {
        if step.id == lift {
            continue;
        }
        for edge in &mut step.needs {
            if edge.from == apply && edge.state == Need::Ready {
                edge.from = lift;
            }
        }
    }
}
