//! Declared stages: their objects, deadlines, verification, and order in a
//! downgrade.

use std::collections::{BTreeMap, BTreeSet};

use super::checks;
use super::draft::{Ctx, Draft};
use super::model::{EdgeReason, Need, Op, Step, StepId, Until};
use super::verify::completion;
use pleach_formats::sequence::{RolloutRule, StageRule};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Matcher, ObjectId, Selector};
use pleach_model::order::{Direction, StageName, is_builtin_group};

impl Ctx<'_> {
    /// Returns the rule of a declared stage.
    pub(super) fn declared(&self, stage: &StageName) -> Option<&StageRule> {
        let mut rules = self.sequence.stages.iter();
        rules.find(|rule| rule.stage == *stage)
    }

    /// Returns whether later stages do not wait for readiness of a stage.
    pub(super) fn is_applied_only(&self, stage: &StageName) -> bool {
        self.declared(stage).is_some_and(|rule| rule.applied_only)
    }

    /// Returns the rollout rule of a `DaemonSet`, with its stage.
    pub(super) fn rollout_of(&self, id: &ObjectId) -> Option<(&StageRule, &RolloutRule)> {
        if !id.is("apps", "DaemonSet") {
            return None;
        }
        let rule = self.declared(self.assigned.get(id)?)?;
        Some((rule, rule.rollout.as_ref()?))
    }
}

/// Assigns objects to declared stages: by the annotation of the object or the
/// file that verifies a stage, otherwise by the first stage that selects the
/// object.
pub(super) fn assign<'a>(ctx: &Ctx<'a>) -> BTreeMap<&'a ObjectId, StageName> {
    let rules = &ctx.sequence.stages;
    let selectors: Vec<_> = rules
        .iter()
        .map(|rule| {
            let matchers = rule.select.iter().map(Selector::matcher);
            (rule, matchers.collect::<Vec<_>>())
        })
        .filter(|(_, matchers)| !matchers.is_empty())
        .collect();
    let mut assigned = BTreeMap::new();
    for (&id, manifest) in &ctx.manifests {
        let declared = manifest.facts().stage.as_deref();
        if let Some(stage) = declared.and_then(|name| ctx.sequence.stage(name)) {
            assigned.insert(id, stage);
            continue;
        }
        let mut matchers = selectors.iter().flat_map(|(_, matchers)| matchers);
        if !matchers.any(|one| one.may_be_about(id)) {
            continue;
        }
        let object = manifest.value();
        let selects = |(_, matchers): &&(&StageRule, Vec<Matcher>)| {
            matchers.iter().any(|one| one.is_about(id, &object))
        };
        if let Some((rule, _)) = selectors.iter().find(selects) {
            assigned.insert(id, rule.stage.clone());
        }
    }
    assigned
}

/// Reverses the order of stages that apply objects, for a downgrade. A stage
/// that stops workloads before their apply must still come first, so the two
/// stages swap places.
pub(super) fn reverse(ctx: &mut Ctx<'_>, direction: Direction) {
    if direction == Direction::Forward {
        return;
    }
    let places: Vec<StageName> = ctx
        .sequence
        .stages
        .iter()
        .map(|rule| rule.stage.clone())
        .collect();
    let applied: Vec<bool> = places
        .iter()
        .map(|stage| ctx.assigned.values().any(|assigned| assigned == stage))
        .collect();
    let stopped: Vec<Option<usize>> = ctx
        .sequence
        .stages
        .iter()
        .map(|rule| applied_after(ctx, rule, &places))
        .collect();
    let positions: Vec<usize> = (0..places.len())
        .filter(|&one| applied[one] || stopped[one].is_some())
        .collect();
    let mut order: Vec<usize> = positions.iter().rev().copied().collect();
    for (stop, apply) in stopped.iter().enumerate() {
        let at = |one: usize| order.iter().position(|&other| other == one);
        // A stage that also applies objects moves with them.
        if let Some(apply) = apply.filter(|_| !applied[stop])
            && let (Some(stop), Some(apply)) = (at(stop), at(apply))
        {
            order.swap(stop, apply);
        }
    }
    let mut moved: BTreeMap<StageName, StageName> = BTreeMap::new();
    for (place, one) in positions.into_iter().zip(order) {
        let (from, to) = (&places[one], &places[place]);
        moved.insert(from.clone(), from.moved_to(to));
    }
    let rename = |stage: &mut StageName| {
        if let Some(to) = moved.get(stage) {
            stage.clone_from(to);
        }
    };
    for rule in &mut ctx.sequence.stages {
        rename(&mut rule.stage);
    }
    ctx.sequence.stages.sort_by(|a, b| a.stage.cmp(&b.stage));
    let overlays = ctx.sequence.overlays.iter_mut();
    let overlays = overlays.map(|overlay| (&mut overlay.from, &mut overlay.until));
    let gates = ctx.sequence.gates.iter_mut();
    let gates = gates.map(|gate| (&mut gate.from, &mut gate.until));
    for (from, until) in overlays.chain(gates) {
        rename(from);
        rename(until);
        if from > until {
            std::mem::swap(from, until);
        }
    }
    ctx.assigned.values_mut().for_each(rename);
}

/// Returns the position of the first stage that applies a workload which `rule`
/// scales.
fn applied_after(ctx: &Ctx<'_>, rule: &StageRule, places: &[StageName]) -> Option<usize> {
    let targets: Vec<_> = rule
        .scale
        .iter()
        .map(|scale| {
            let target = &scale.target;
            target.within(ctx.desired.namespace.as_deref()).matcher()
        })
        .collect();
    let stages = ctx.assigned.iter().filter(|(id, _)| {
        let none = BTreeMap::new();
        targets.iter().any(|target| target.matches(id, &none))
    });
    let found = stages.filter_map(|(_, stage)| places.iter().position(|place| place == stage));
    found.min()
}

/// Moves dependents of a declared stage into it, if their own stage is earlier.
/// Otherwise the stages would wait for each other, and a temporary change could
/// end too soon. In a downgrade dependencies change last, so nothing moves.
pub(super) fn join(draft: &mut Draft, direction: Direction) {
    if direction == Direction::Reverse {
        return;
    }
    let is_declared = |step: &&Step| matches!(step.stage, StageName::Declared(_));
    let declared = draft.steps.iter().filter(is_declared).map(|step| step.id);
    let mut open: Vec<StepId> = declared.filter(|id| !draft.dropped.contains(id)).collect();
    if open.is_empty() {
        return;
    }
    let mut dependents: BTreeMap<StepId, Vec<StepId>> = BTreeMap::new();
    for step in &draft.steps {
        for edge in &step.needs {
            dependents.entry(edge.from).or_default().push(step.id);
        }
    }
    while let Some(needed) = open.pop() {
        let stage = draft.steps[needed.0].stage.clone();
        let object = draft.steps[needed.0].object.clone();
        for &id in dependents.get(&needed).into_iter().flatten() {
            if draft.steps[id.0].stage >= stage || draft.dropped.contains(&id) {
                continue;
            }
            let step = draft.at(id);
            step.stage = stage.clone();
            open.push(id);
            let joined = step.object.clone();
            let own = draft.changes.get_mut(&joined);
            if let Some(own) = own.filter(|own| own.stage.as_ref().is_some_and(|own| *own < stage))
            {
                own.stage = Some(stage.clone());
                let message = format!("it is applied in stage {stage}, as it needs {object}");
                let finding = Finding::note(Kind::Repository, "stage-joined", message);
                draft.findings.push(finding.on(joined));
            }
        }
    }
}

/// Sets the deadlines of declared stages and makes their verification come
/// last. `around` are steps before or after the stage. Checks are only added
/// while a change is `unfinished`.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Draft, around: &BTreeSet<StepId>, unfinished: bool) {
    point_out_unused(ctx, draft);
    for rule in &ctx.sequence.stages {
        let steps: Vec<StepId> = draft
            .steps
            .iter()
            .filter(|step| step.stage == rule.stage)
            .map(|step| step.id)
            .filter(|id| !draft.dropped.contains(id) && !around.contains(id))
            .collect();
        let (mut verifying, others): (Vec<StepId>, Vec<StepId>) = steps
            .iter()
            .partition(|id| is_verified_by(ctx, rule, &draft.steps[id.0].object));
        if unfinished {
            verifying.extend(checks::of_stage(ctx, draft, rule));
        }
        if let Some(timeout) = rule.timeout {
            for id in verifying.iter().chain(&others) {
                draft.at(*id).deadline = timeout;
            }
        }
        let done: Vec<(StepId, Need)> = others
            .iter()
            .map(|id| at_barrier(ctx, &draft.steps[id.0]))
            .collect();
        let reason = format!("stage {} is verified when it is complete", rule.stage);
        let why = EdgeReason::Stage;
        draft.all_before(ctx, rule.stage.clone(), &done, &verifying, &why, &reason);
    }
}

/// Returns whether an object is a verification Job of a stage.
fn is_verified_by(ctx: &Ctx<'_>, rule: &StageRule, id: &ObjectId) -> bool {
    ctx.manifests
        .get(id)
        .is_some_and(|manifest| rule.verify.contains(&manifest.origin().file))
}

/// Warns about stage selectors that match no object.
fn point_out_unused(ctx: &Ctx<'_>, draft: &mut Draft) {
    let mut unused: Vec<(&StageRule, &Selector, Matcher)> = Vec::new();
    for rule in &ctx.sequence.stages {
        for selector in &rule.select {
            unused.push((rule, selector, selector.matcher()));
        }
    }
    for (id, manifest) in &ctx.manifests {
        if !draft.budget.work(unused.len()) {
            return;
        }
        if unused
            .iter()
            .any(|(_, _, matcher)| matcher.may_be_about(id))
        {
            let object = manifest.value();
            unused.retain(|(_, _, matcher)| !matcher.is_about(id, &object));
        }
    }
    for (rule, selector, _) in unused {
        let message = format!(
            "stage {} selects a {} that is not part of the release",
            rule.stage, selector.kind
        );
        let finding = Finding::warning(Kind::Repository, "stage-without-object", message);
        draft.findings.push(finding.at(rule.origin.clone()));
    }
}

/// Returns the state that a step must reach before a barrier. Objects of a
/// declared stage must be ready, unless the stage is applied only. Elsewhere
/// custom resources may need later objects, and a claim may need its pod, so
/// they only must be applied.
pub(super) fn at_barrier(ctx: &Ctx<'_>, step: &Step) -> (StepId, Need) {
    let (id, need) = completion(step);
    let runs_once = matches!(step.op, Op::Create { once: true, .. });
    // An object that joined a stage as a dependent may need later objects.
    let assigned = ctx.assigned.get(&step.object) == Some(&step.stage);
    let is_awaited = match ctx.declared(&step.stage).filter(|_| assigned) {
        Some(rule) => !rule.applied_only,
        None => {
            is_builtin_group(&step.object.group) && !step.object.is("", "PersistentVolumeClaim")
        }
    };
    let is_readiness = matches!(step.until, Some(Until::Ready { .. }));
    if need == Need::Ready && is_readiness && !is_awaited && !runs_once {
        return (id, Need::Applied);
    }
    (id, need)
}
