//! Nodes in work are completed first, before checks and waits.
//!
//! A half-changed node is out of service, so a check or the readiness of an object can fail only
//! because of it. A run that waited for them before it continues with the node would never
//! continue. So the steps of nodes in work wait for no condition, and all conditions are waited for
//! afterwards: before the next node, and before everything else that comes after the nodes.
//!
//! This holds only if the plan changes nothing else before the nodes: then the checks held when the
//! work began, and they hold again before something new begins.

use std::collections::{BTreeMap, BTreeSet};

use super::draft::Ctx;
use super::model::{Edge, EdgeReason, Need, Op, StepId, Until};
use super::nodes::named;
use super::overlays::ancestors;
use super::phases::Bracketed;
use crate::observe::ObservedNodes;
use pleach_model::finding::{Finding, Severity};
use pleach_model::order::StageName;

/// Code of the finding about a check that does not hold.
const CHECK_FAILED: &str = "check-failed";

pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Bracketed) {
    let resumed = resumed(ctx, draft);
    let Some(last) = resumed.values().max().cloned() else {
        return;
    };
    let steps: BTreeSet<StepId> = resumed.into_keys().collect();
    let is_before = |stage: &Option<StageName>| stage.as_ref().is_some_and(|stage| *stage <= last);
    if draft
        .changes
        .values()
        .any(|change| is_before(&change.stage))
    {
        return;
    }
    for &step in &steps {
        let needs = operations_before(draft, step);
        draft.at(step).needs = needs;
    }
    let all: Vec<StepId> = steps.iter().copied().collect();
    let before = ancestors(draft, &all);
    let is_condition =
        |until: &Option<Until>| matches!(until, Some(Until::Holds { .. } | Until::Ready { .. }));
    let conditions: Vec<StepId> = draft
        .steps
        .iter()
        .filter(|step| step.stage <= last && step.op == Op::Wait && is_condition(&step.until))
        .map(|step| step.id)
        .filter(|id| !draft.dropped.contains(id) && !before.contains(id))
        .collect();
    let next: Vec<StepId> = draft
        .steps
        .iter()
        .filter(|step| step.needs.iter().any(|edge| steps.contains(&edge.from)))
        .map(|step| step.id)
        .filter(|id| !steps.contains(id) && !before.contains(id))
        .collect();
    let earlier: Vec<(StepId, Need)> = steps.iter().map(|&id| (id, Need::Applied)).collect();
    draft.each_before(&earlier, &conditions, &EdgeReason::Node);
    // They need the conditions already, except for those after the last node.
    let needed = ancestors(draft, &conditions);
    let is_later = |id: &&StepId| !needed.contains(id) && !conditions.contains(id);
    for &to in next.iter().filter(is_later) {
        for &from in &conditions {
            draft.edge(from, Need::Ready, to, EdgeReason::Check);
        }
    }
    forgive(draft, &steps);
}

/// Returns the steps of nodes that are in work of this release, with their stages.
fn resumed(ctx: &Ctx<'_>, draft: &Bracketed) -> BTreeMap<StepId, StageName> {
    let ours = ctx.desired.name.to_string();
    let is_in_work = |stage: &StageName, name: &str| {
        let Some(ObservedNodes::Read { nodes, .. }) = ctx.observed.nodes.get(stage.as_str()) else {
            return false;
        };
        let mut nodes = nodes.iter();
        nodes.any(|node| node.name == name && node.is_in_work_of(&ours))
    };
    let steps = draft.steps.iter();
    steps
        .filter(|step| matches!(step.op, Op::UpgradeNode { .. }))
        .filter(|step| is_in_work(&step.stage, &step.object.name))
        .map(|step| (step.id, step.stage.clone()))
        .collect()
}

/// Returns edges from the operations before a step, without the waits between them.
fn operations_before(draft: &Bracketed, step: StepId) -> Vec<Edge> {
    let mut open = draft.steps[step.0].needs.clone();
    let mut seen = BTreeSet::new();
    let mut edges = Vec::new();
    while let Some(edge) = open.pop() {
        if !seen.insert(edge.from) {
            continue;
        }
        let before = &draft.steps[edge.from.0];
        if before.op == Op::Wait {
            open.extend(before.needs.iter().cloned());
        } else {
            edges.push(edge);
        }
    }
    edges
}

/// Turns failed checks of preflight into warnings: the run waits for them after the nodes in work.
fn forgive(draft: &mut Bracketed, steps: &BTreeSet<StepId>) {
    let names: Vec<&str> = steps
        .iter()
        .map(|id| draft.steps[id.0].object.name.as_str())
        .collect();
    let hint = format!(
        "the plan completes {} first, then it waits for the check",
        named(&names)
    );
    let is_failed = |finding: &&mut Finding| finding.is_error() && finding.code == CHECK_FAILED;
    for finding in draft.findings.iter_mut().filter(is_failed) {
        finding.severity = Severity::Warning;
        finding.hint = Some(hint.clone());
    }
}
