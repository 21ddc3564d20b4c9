//! Dependencies between steps, each with its reason.

mod crds;
mod dependencies;
mod endpoints;
mod needs;
mod reverse;
mod selectors;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::changes::until;
use super::draft::{Changed, Ctx, Draft};
use super::model::{Action, EdgeReason, Need, StepId, Until};
use super::phases::Decided;
use dependencies::dependencies;
pub(super) use dependencies::{answering, intercepted, registered};
pub(super) use endpoints::{newly_selected, wait_for};
use needs::{Dependencies, Dependency, Joint, are_few};
use pleach_model::discovery::Served;
use pleach_model::object::ObjectId;
use pleach_model::order::{Direction, StageName};
pub(super) use reverse::is_let_through;
use reverse::{Reversed, required_before, reversed};
pub(super) use selectors::{is_interrupted, labels_until_now, selects};

/// Adds edges for the dependencies between objects. Blocks the dependents of
/// blocked objects, and no others (I10).
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Decided, direction: Direction) {
    let mut changes = draft.changes.values();
    if draft.steps.is_empty() && changes.all(|change| change.action == Action::Unchanged) {
        // There is nothing to order or to block.
        dependencies::check(ctx, draft);
        return;
    }
    let mut dependencies = dependencies(ctx, draft);
    crds::before_workloads(ctx, direction, &mut dependencies);
    selectors::run(ctx, draft, &mut dependencies);
    block_descendants(draft, &dependencies);
    let reversed = match direction {
        Direction::Forward => Reversed::default(),
        Direction::Reverse => reversed(ctx, draft, &dependencies),
    };
    for joint in dependencies.joints {
        join(ctx, draft, joint);
    }
    for (position, dependency) in dependencies.single.into_iter().enumerate() {
        if reversed.holds(position) {
            let need = required_before(ctx, &dependency);
            downgrade(draft, dependency.to, need, dependency.from);
            recheck(draft, &dependency);
            continue;
        }
        let Some(to) = draft.done_by.get(dependency.to).copied() else {
            recheck(draft, &dependency);
            continue;
        };
        let Dependency {
            from,
            to: object,
            need,
            why,
        } = dependency;
        if let Some(from) = relied_on(ctx, draft, from, &why) {
            if why == EdgeReason::Selects {
                selectors::join(draft, from, object);
            }
            let first = first_step_of(draft, to);
            draft.edge(from, need, first, why);
        }
    }
    for (workloads, crds) in &reversed.after_workloads {
        downgrade_after(ctx, draft, workloads, crds);
    }
    endpoints::run(ctx, draft, &reversed);
}

/// Makes each of several objects wait for all of several others. Unchanged
/// objects are re-checked afterwards.
fn join(ctx: &Ctx<'_>, draft: &mut Decided, joint: Joint<'_>) {
    let Joint {
        from,
        to,
        why,
        reason,
    } = joint;
    let (changed, unchanged): (Vec<&ObjectId>, Vec<&ObjectId>) = to
        .into_iter()
        .partition(|id| draft.done_by.contains_key(*id));
    if !changed.is_empty() {
        let mut earlier = Vec::with_capacity(from.len());
        for id in &from {
            let step = relied_on(ctx, draft, id, &why);
            earlier.extend(step.map(|step| (step, Need::Applied)));
        }
        let later = changed.iter().filter_map(|id| draft.done_by.get(*id));
        let later: Vec<StepId> = later.map(|step| first_step_of(draft, *step)).collect();
        let stage = last_stage(draft, &earlier);
        if are_few(earlier.len(), later.len()) {
            draft.each_before(&earlier, &later, &why);
        } else {
            draft.all_before(ctx, stage, &earlier, &later, &why, &reason);
        }
    }
    let steps = from.iter().filter_map(|id| draft.done_by.get(*id));
    let earlier: Vec<(StepId, Need)> = steps.map(|step| (*step, Need::Applied)).collect();
    if earlier.is_empty() || unchanged.is_empty() {
        return;
    }
    let stage = last_stage(draft, &earlier);
    let joined = draft.wait(ctx, stage, ctx.release(), None, &reason);
    for (from, need) in earlier {
        draft.edge(from, need, joined, why.clone());
    }
    for id in unchanged {
        let after = draft.rechecked.entry(id.clone()).or_default();
        after.push((Changed::All(joined), Need::Applied, why.clone()));
    }
}

/// Returns the stage of the last of several steps.
fn last_stage(draft: &Draft, steps: &[(StepId, Need)]) -> StageName {
    let stages = steps.iter().map(|(step, _)| &draft.steps[step.0].stage);
    stages.max().cloned().unwrap_or(StageName::Preflight)
}

/// Makes CRDs downgrade after workloads are ready.
fn downgrade_after(ctx: &Ctx<'_>, draft: &mut Draft, workloads: &[&ObjectId], crds: &[&ObjectId]) {
    let earlier = workloads.iter().filter_map(|id| draft.done_by.get(*id));
    let earlier: Vec<(StepId, Need)> = earlier.map(|step| (*step, Need::Ready)).collect();
    let later = crds.iter().filter_map(|id| draft.done_by.get(*id));
    let later: Vec<StepId> = later.map(|step| first_step_of(draft, *step)).collect();
    if are_few(earlier.len(), later.len()) {
        draft.each_before(&earlier, &later, &EdgeReason::Reverse);
        return;
    }
    let stage = last_stage(draft, &earlier);
    let reason = "workloads are ready before their CRDs are downgraded";
    draft.all_before(ctx, stage, &earlier, &later, &EdgeReason::Reverse, reason);
}

/// Re-checks readiness of objects whose dependency is about to change.
fn recheck(draft: &mut Decided, dependency: &Dependency<'_>) {
    let Dependency {
        from,
        to,
        need,
        why,
    } = dependency;
    if draft.done_by.contains_key(*from) {
        let after = draft.rechecked.entry((*to).clone()).or_default();
        let from = Changed::Object((*from).clone());
        after.push((from, *need, why.clone()));
    }
}

/// Makes a dependency downgrade after its dependent.
fn downgrade(draft: &mut Draft, earlier: &ObjectId, need: Need, later: &ObjectId) {
    let steps = (draft.done_by.get(earlier), draft.done_by.get(later));
    if let (Some(&earlier), Some(&later)) = steps {
        let first = first_step_of(draft, later);
        draft.edge(earlier, need, first, EdgeReason::Reverse);
    }
}

/// Returns the step after which other objects can rely on an object. An
/// unchanged object may still be unfinished after an interrupted run. Then a
/// wait is added: for a CRD whose kind is not served yet, or for an object that
/// an annotation requires to be ready.
fn relied_on(
    ctx: &Ctx<'_>,
    draft: &mut Decided,
    id: &ObjectId,
    why: &EdgeReason,
) -> Option<StepId> {
    if *why == EdgeReason::Operator {
        let step = draft.done_by.get(id).copied()?;
        return Some(crds::written_by(draft, step));
    }
    if let Some(step) = draft.done_by.get(id).or_else(|| draft.awaited.get(id)) {
        return Some(*step);
    }
    if ctx.desired.has_run(id, &ctx.observed.journal) {
        return None;
    }
    let until = until(ctx, id).filter(|until| match (why, until) {
        (EdgeReason::Crd, Until::Served(gvk)) => {
            ctx.observed.discovery.served(gvk) == Served::Absent
        }
        (EdgeReason::Api, _) => {
            let api = ctx.facts.get(id).and_then(|facts| facts.registers.as_ref());
            api.is_some_and(|api| !ctx.observed.discovery.answers(api))
        }
        (EdgeReason::After | EdgeReason::Selects, _) => true,
        _ => false,
    })?;
    if draft.action(id) != Some(Action::Unchanged) {
        return None;
    }
    let reason = "it does not change, but other objects need it ready";
    let wait = draft.wait(ctx, ctx.stage_of(id), id.clone(), Some(until), reason);
    draft.awaited.insert(id.clone(), wait);
    Some(wait)
}

/// Returns the first step of an object. It may have steps before its last one,
/// such as a patch or a wait, and dependencies apply to the first.
pub(super) fn first_step_of(draft: &Draft, step: StepId) -> StepId {
    let mut first = step;
    while let Some(edge) = draft.steps[first.0]
        .needs
        .iter()
        .find(|edge| edge.why == EdgeReason::SameObject)
    {
        first = edge.from;
    }
    first
}

/// Blocks everything that needs a blocked object. Unchanged objects need
/// nothing, so they neither become blocked nor pass the block on.
fn block_descendants(draft: &mut Draft, dependencies: &Dependencies<'_>) {
    let mut open: VecDeque<ObjectId> = draft
        .changes
        .values()
        .filter(|change| change.action == Action::Blocked)
        .map(|change| change.object.clone())
        .collect();
    if open.is_empty() {
        return;
    }
    let mut dependents: BTreeMap<&ObjectId, Vec<&ObjectId>> = BTreeMap::new();
    let mut joints: BTreeMap<&ObjectId, Vec<usize>> = BTreeMap::new();
    for (position, joint) in dependencies.joints.iter().enumerate() {
        for &from in &joint.from {
            joints.entry(from).or_default().push(position);
        }
    }
    let mut passed = BTreeSet::new();
    for dependency in &dependencies.single {
        let known = dependents.entry(dependency.from).or_default();
        known.push(dependency.to);
    }
    let mut steps: BTreeMap<ObjectId, Vec<StepId>> = BTreeMap::new();
    for step in &draft.steps {
        steps.entry(step.object.clone()).or_default().push(step.id);
    }
    while let Some(cause) = open.pop_front() {
        let direct = dependents.get(&cause).into_iter().flatten();
        let joined = joints.get(&cause).into_iter().flatten();
        let joined = joined.filter(|joint| passed.insert(**joint));
        let joined = joined.flat_map(|joint| &dependencies.joints[*joint].to);
        for &id in direct.chain(joined) {
            let Some(change) = draft.changes.get_mut(id) else {
                continue;
            };
            if matches!(change.action, Action::Blocked | Action::Unchanged) {
                continue;
            }
            change.action = Action::Blocked;
            change.stage = None;
            change.cause = None;
            change.reason = format!("it needs {cause}, which is blocked");
            draft.done_by.remove(id);
            draft.dropped.extend(steps.get(id).into_iter().flatten());
            open.push_back(id.clone());
        }
    }
}
