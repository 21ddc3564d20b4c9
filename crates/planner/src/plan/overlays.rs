//! Temporary changes, and the stages that a bundle declares.
//!
//! A version change may need temporary changes. Each is made before its first
//! stage and reverted after its last one. A change that an earlier run left is
//! continued while it is desired, and otherwise reverted first. Drift is
//! corrected without temporary changes.

mod between;
mod desired;
mod revert;
mod rollout;

use std::collections::{BTreeMap, BTreeSet};

use super::changes::ready;
use super::draft::{Ctx, Draft};
use super::gate;
use super::handover;
use super::model::{Action, Course, Desired, EdgeReason, Need, Op, Overlay, Precondition, StepId};
use super::phases::Bracketed;
use super::verify::completion;
use between::Place;
pub(super) use between::{ancestors, before_later, descendants};
use desired::desired_overlays;
pub(super) use desired::{Begin, DesiredOverlay, End, stops_pods};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{NonSecret, ObjectId};
use pleach_model::order::StageName;
use pleach_state::inventory::Installed;
use pleach_state::overlay::{Journaled, OnFailure, OverlayContent, OverlayId, project};
pub(super) use revert::{before_removal, finish, lift};
use revert::{drop_undesired, hand_over};
use rollout::Rollout;
pub(super) use rollout::holds;

/// Progress of the version change of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Progress {
    /// Git wants a state that was never installed.
    pub(super) fresh: bool,
    /// The state in git is not yet installed and verified.
    pub(super) unfinished: bool,
}

impl Progress {
    pub(super) fn of(desired: &Desired, record: Option<&Installed>) -> Self {
        let Some(record) = record else {
            return Self {
                fresh: true,
                unfinished: true,
            };
        };
        let installed = record.installed.as_ref();
        let applying = record.applying.as_ref();
        let fresh = installed.is_none_or(|attempt| !desired.is_of(attempt))
            || applying.is_some_and(|attempt| !desired.is_of(attempt));
        Self {
            fresh,
            unfinished: fresh || !record.ready || applying.is_some(),
        }
    }
}

impl Desired {
    /// Returns whether targets of temporary changes must be read.
    pub fn needs_targets(&self, record: Option<&Installed>) -> bool {
        self.sequence.targets().next().is_some() && Progress::of(self, record).unfinished
    }

    /// Returns whether the state in git was never installed, or another change
    /// was started since.
    pub fn is_fresh(&self, record: Option<&Installed>) -> bool {
        Progress::of(self, record).fresh
    }

    /// Returns whether the state in git is not yet installed and verified.
    pub(in crate::plan) fn is_unfinished(&self, record: Option<&Installed>) -> bool {
        Progress::of(self, record).unfinished
    }

    /// Returns whether CRDs with storage migrations must be read.
    pub fn needs_migrated(&self, record: Option<&Installed>) -> bool {
        !self.sequence.migrations.is_empty() && Progress::of(self, record).unfinished
    }
}

/// A temporary change that ends after verify.
pub(super) struct Late {
    overlay: usize,
    set: Option<StepId>,
}

/// Adds the steps before verify.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Bracketed) {
    let progress = Progress::of(ctx.desired, ctx.observed.installed.as_ref());
    let has_effects = draft.has_effects() || !draft.ordered().pruned.is_empty();
    let (mut all, mut gates) = (Vec::new(), Vec::new());
    if progress.unfinished {
        all.extend(desired_overlays(ctx, draft));
        all.extend(handover::desired_overlays(ctx, draft.ordered()));
        gates = gate::desired_gates(ctx, draft);
    }
    let names = all.iter().map(|one| &one.id);
    let names: BTreeSet<OverlayId> = names
        .chain(gates.iter().map(|one| &one.id))
        .cloned()
        .collect();
    // Temporary bindings end in pass `access`.
    let dropped = drop_undesired(ctx, draft, &names, &|journaled| !journaled.is_made());
    let mut groups = Groups::new();
    let mut early: BTreeMap<StageName, Vec<StepId>> = BTreeMap::new();
    let mut rollouts: BTreeMap<ObjectId, Rollout> = BTreeMap::new();
    let mut emptied: Vec<(ObjectId, StepId)> = Vec::new();
    for one in all {
        let journaled = ctx.observed.journal.overlays.get(&one.id);
        let apply = draft.done_by.get(&one.object).copied();
        let is_due = progress.fresh && !rollout::is_released(ctx, &one);
        let is_new = journaled.is_none() && is_due && has_effects;
        if journaled.is_none() && !is_new {
            continue;
        }
        let Some((index, set)) = begin(ctx, draft, &one, journaled) else {
            continue;
        };
        if let Some(set) = set {
            for (object, lift) in &dropped {
                if *object == one.object {
                    draft.edge(*lift, Need::Applied, set, EdgeReason::SameObject);
                }
            }
        }
        let place = match &one.begin {
            Begin::Stage => Place::Before,
            Begin::Declared => Place::In,
            Begin::Steps { after, before } => {
                let set = set.unwrap_or_else(|| emptied_before(ctx, draft, &one));
                put_between(draft, (after, before), set);
                restore_after(draft, &dropped, &one, set);
                emptied.push((one.object.clone(), set));
                continue;
            }
        };
        if let Some(set) = set {
            let group = groups.entry((one.from.clone(), place)).or_default();
            group.push(set);
        }
        if let End::Rollout(role) = one.end {
            let rollout = rollouts.entry(one.object).or_default();
            rollout.add(role, index, set);
            continue;
        }
        // An object that is pruned is not restored first.
        if draft
            .ordered()
            .pruned
            .iter()
            .any(|pruned| pruned.id == one.object)
        {
            continue;
        }
        match (&one.end, apply) {
            (End::Apply, Some(apply)) if draft.steps[apply.0].stage > one.from => {
                let stage = draft.steps[apply.0].stage.clone();
                let lift = lift(ctx, draft, index, set, stage);
                draft.edge(apply, Need::Applied, lift, EdgeReason::SameObject);
                hand_over(draft, apply, lift);
                draft.done_by.insert(one.object.clone(), lift);
            }
            (End::Apply, None) if is_applied_later(ctx, &one) => {
                let stage = ctx.stage_of(&one.object);
                draft.overlays[index].until = stage.clone();
                lift(ctx, draft, index, set, stage);
            }
            (End::Stage(stage), _) if *stage < StageName::Verify => {
                let lift = lift(ctx, draft, index, set, stage.clone());
                early.entry(stage.clone()).or_default().push(lift);
            }
            _ => draft.late.push(Late {
                overlay: index,
                set,
            }),
        }
    }
    for (object, rollout) in rollouts {
        rollout.plan(ctx, draft, &object);
    }
    handover::recheck(ctx, draft, &emptied);
    handover::restart(ctx, draft, &emptied);
    let is_new = progress.fresh && has_effects;
    for one in &mut gates {
        one.guard_also(draft, emptied.iter().map(|(_, set)| *set));
    }
    close(ctx, draft, gates, is_new, (&mut groups, &mut early));
    restarts(ctx, draft, progress, &mut groups);
    gather(ctx, draft, &mut groups, &early, progress);
    install(ctx, draft, groups, early);
}

/// Orders the start and end of temporary changes before verify, then the
/// declared stages. In a contradiction, temporary changes win.
fn install(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    groups: Groups,
    early: BTreeMap<StageName, Vec<StepId>>,
) {
    let (stages, before): (Groups, Groups) = groups
        .into_iter()
        .partition(|((_, place), _)| *place == Place::In);
    for ((stage, place), steps) in before {
        between::place(ctx, draft, &steps, &stage, place);
    }
    for steps in early.values() {
        gate::answered(ctx, draft, steps, None);
    }
    for (stage, steps) in early {
        between::place(ctx, draft, &steps, &stage, Place::After);
    }
    for ((stage, place), steps) in stages {
        between::place(ctx, draft, &steps, &stage, place);
    }
}

/// Adds the steps that close and lift gates.
fn close(
    ctx: &Ctx<'_>,
    draft: &mut Bracketed,
    gates: Vec<gate::DesiredGate>,
    is_new: bool,
    (groups, early): (&mut Groups, &mut BTreeMap<StageName, Vec<StepId>>),
) {
    for one in gates {
        let journaled = ctx.observed.journal.overlays.get(&one.id);
        if journaled.is_none() && !is_new {
            continue;
        }
        let (index, close) = gate::close(ctx, draft, &one, journaled);
        if let Some(journaled) = journaled {
            gate::before_writes(ctx, draft, journaled, close);
        }
        if one.is_of_stage() {
            let place = (one.from.clone(), Place::Before);
            groups.entry(place).or_default().push(close);
        }
        // After an incomplete change, the gate stays closed.
        if draft.is_blocked() {
            continue;
        }
        if one.until < StageName::Verify {
            let lift = lift(ctx, draft, index, Some(close), one.until.clone());
            early.entry(one.until).or_default().push(lift);
        } else {
            draft.late.push(Late {
                overlay: index,
                set: Some(close),
            });
        }
    }
}

/// Steps by their stage and their place in it.
type Groups = BTreeMap<(StageName, Place), Vec<StepId>>;

/// Makes every step of a declared stage part of its barrier, except temporary
/// changes around the stage.
fn gather(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    groups: &mut Groups,
    early: &BTreeMap<StageName, Vec<StepId>>,
    progress: Progress,
) {
    let before = groups
        .iter()
        .filter(|((_, place), _)| *place == Place::Before);
    let around: BTreeSet<StepId> = before
        .map(|(_, steps)| steps)
        .chain(early.values())
        .flatten()
        .copied()
        .collect();
    super::stages::run(ctx, draft, &around, progress.unfinished);
    let grouped = groups.iter().filter(|((_, place), _)| *place == Place::In);
    let grouped: BTreeSet<StepId> = grouped.flat_map(|(_, steps)| steps).copied().collect();
    for step in &draft.steps {
        let is_declared = matches!(step.stage, StageName::Declared(_));
        let is_placed = around.contains(&step.id) || grouped.contains(&step.id);
        if is_declared && !is_placed && !draft.dropped.contains(&step.id) {
            let group = groups.entry((step.stage.clone(), Place::In)).or_default();
            group.push(step.id);
        }
    }
}

/// Returns whether an unchanged object belongs to a later declared stage.
fn is_applied_later(ctx: &Ctx<'_>, one: &DesiredOverlay<'_>) -> bool {
    let stage = ctx.stage_of(&one.object);
    stage > one.from && ctx.is_desired(&one.object) && ctx.declared(&stage).is_some()
}

/// Records a temporary change, with the step that makes it if necessary.
fn begin(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    one: &DesiredOverlay<'_>,
    journaled: Option<&Journaled>,
) -> Option<(usize, Option<StepId>)> {
    let object = &one.object;
    let live = one.live.value();
    let now = project(&one.patch.0, live);
    if journaled.is_none() {
        if now == one.patch.0 && !one.is_always_made() {
            // The object already has these values, so there is nothing to
            // change or revert.
            return None;
        }
        if matches!(
            draft.action(object),
            Some(Action::Create | Action::Recreate)
        ) {
            let message = format!(
                "overlay {}: this plan creates the object, so it is not changed temporarily",
                one.id
            );
            let finding = Finding::note(Kind::Repository, "overlay-of-new-object", message);
            draft.findings.push(finding.on(object.clone()));
            return None;
        }
    }
    let original = journaled.map_or_else(|| NonSecret(now.clone()), |one| one.original.clone());
    draft.overlays.push(Overlay {
        id: one.id.clone(),
        object: object.clone(),
        content: OverlayContent::Patch {
            patch: one.patch.clone(),
            original,
        },
        course: if journaled.is_some() {
            Course::Kept
        } else {
            Course::Made
        },
        from: journaled.is_none().then(|| one.from.clone()),
        until: one.until(),
        undo: vec![Op::Lift],
        on_failure: one.on_failure.clone(),
    });
    if one.stops_pods() && ctx.is_desired(object) {
        // The object becomes ready only after the change is reverted.
        if let Some(apply) = draft.done_by.get(object).copied() {
            draft.at(apply).until = None;
        }
    }
    let index = draft.overlays.len() - 1;
    if journaled.is_some_and(|journaled| now == journaled.set.0) {
        return Some((index, None));
    }
    let op = Op::Set {
        patch: one.patch.clone(),
    };
    let set = draft.step(ctx, one.from.clone(), object.clone(), op, &one.reason);
    let step = draft.at(set);
    step.overlay = Some(one.id.clone());
    step.require = vec![Precondition::Uid(one.live.meta().uid.clone())];
    step.until.clone_from(&one.ready);
    if let Some(deadline) = one.deadline {
        step.deadline = deadline;
    }
    Some((index, Some(set)))
}

/// Orders a step between earlier and later ones.
fn put_between(draft: &mut Draft, (after, before): (&[(StepId, Need)], &[StepId]), set: StepId) {
    for &(step, need) in after {
        draft.edge(step, need, set, EdgeReason::Overlay);
    }
    for &step in before {
        draft.edge(set, Need::Ready, step, EdgeReason::Overlay);
    }
}

/// Waits for a workload that an earlier run emptied, because it may still have
/// pods.
fn emptied_before(ctx: &Ctx<'_>, draft: &mut Draft, one: &DesiredOverlay<'_>) -> StepId {
    let reason = "a previous run removed its pods for its successor";
    let (object, until) = (one.object.clone(), one.ready.clone());
    draft.wait(ctx, one.from.clone(), object, until, reason)
}

/// If the move is reversed, an emptied workload is restored only after its
/// intended successor is emptied.
fn restore_after(
    draft: &mut Draft,
    dropped: &[(ObjectId, StepId)],
    one: &DesiredOverlay<'_>,
    emptied: StepId,
) {
    let OnFailure::UndoUnless { ready } = &one.on_failure else {
        return;
    };
    for (object, lift) in dropped {
        if object == ready {
            draft.at(*lift).stage = one.from.clone();
            draft.edge(emptied, Need::Ready, *lift, EdgeReason::Overlay);
        }
    }
}

/// Adds restarts of declared stages that this change has not done yet.
fn restarts(ctx: &Ctx<'_>, draft: &mut Bracketed, progress: Progress, groups: &mut Groups) {
    if !progress.fresh {
        return;
    }
    let mark = ctx.desired.mark();
    for rule in &ctx.sequence.stages {
        for (object, live) in rule
            .restart
            .iter()
            .flat_map(|selector| desired::matching(ctx, selector))
        {
            let is_new = matches!(
                draft.action(object),
                Some(Action::Create | Action::Recreate)
            );
            let is_removed = draft
                .ordered()
                .pruned
                .iter()
                .any(|pruned| pruned.id == *object);
            let name = rule.stage.as_str();
            let key = pleach_model::object::annotations::restarted(name);
            let done = &live.value()["spec"]["template"]["metadata"]["annotations"][&key];
            if is_new || is_removed || done == mark.as_str() {
                continue;
            }
            let op = Op::Restart {
                key,
                mark: mark.clone(),
            };
            let reason = format!("stage {name} restarts it");
            let step = draft.step(ctx, rule.stage.clone(), object.clone(), op, &reason);
            draft.at(step).require = vec![Precondition::Uid(live.meta().uid.clone())];
            draft.at(step).until = ready(ctx, object, jiff::SignedDuration::ZERO);
            if let Some(deadline) = rule.timeout {
                draft.at(step).deadline = deadline;
            }
            if let Some(done) = draft.done_by.get(object).copied() {
                let (from, need) = completion(&draft.steps[done.0]);
                draft.edge(from, need, step, EdgeReason::SameObject);
            }
            groups
                .entry((rule.stage.clone(), Place::In))
                .or_default()
                .push(step);
        }
    }
}
