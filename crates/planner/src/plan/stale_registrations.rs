//! Registrations that git no longer has and whose pods are replaced by a
//! version without them.
//!
//! A webhook without a backend refuses every intercepted request. Objects it
//! intercepts would never become ready, so its registration cannot be pruned
//! after verify like other objects. In an upgrade, it is deleted once the new
//! pods are ready and its successor is registered. In a downgrade, it is
//! deleted before its pods are replaced, and custom resources are written while
//! it still answers. A registration that another one fully covers is deleted
//! once the other exists, in either direction: the previous pods would validate
//! objects meant for the new ones.

use std::collections::{BTreeMap, BTreeSet};

use super::Deletion;
use super::draft::{Ctx, Draft};
use super::edges::{
    first_step_of, intercepted, is_interrupted, is_let_through, labels_until_now, selects,
};
use super::handover::texts;
use super::model::{Action, EdgeReason, Need, Op, Precondition, StepId, Until};
use super::overlays::{ancestors, descendants};
use super::phases::Ordered;
use super::verify::completion;
use crate::observe::Registration;
use pleach_model::object::{ObjectId, ServiceRef};
use pleach_model::order::{Direction, Facts, Interception, StageName};

/// Moves these registrations from the pruned objects to earlier deletion steps.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Ordered, direction: Direction) {
    let registrations = ctx.observed.registrations.iter();
    let registrations: BTreeMap<&ObjectId, &Registration> =
        registrations.map(|one| (&one.id, one)).collect();
    for one in std::mem::take(&mut draft.pruned) {
        let registration = registrations.get(&one.id).filter(|_| !one.dead);
        let entry = ctx.observed.inventory.entries.get(&one.id);
        let found = registration.copied().zip(entry).and_then(|found| {
            let (registration, entry) = found;
            let live = ctx.observed.live_meta(&one.id)?;
            if let Some((service, pods)) = replaced(ctx, draft, registration) {
                let deletion = Deletion::of_stale(ctx.member(entry, live), &service)?;
                return Some((registration, pods, deletion));
            }
            let by = replacement(ctx, registration)?;
            let deletion = Deletion::of_replaced(ctx.member(entry, live), by)?;
            Some((registration, Vec::new(), deletion))
        });
        match found {
            None => draft.pruned.push(one),
            // A covering registration is applied first in either direction.
            Some((registration, pods, deletion))
                if direction == Direction::Forward || pods.is_empty() =>
            {
                after(ctx, draft, registration, &pods, deletion);
            }
            Some((registration, pods, deletion)) => {
                before(ctx, draft, registration, &pods, deletion);
            }
        }
    }
}

/// Returns a desired webhook configuration that intercepts everything the given
/// one intercepts.
pub(super) fn replacement<'a>(ctx: &Ctx<'a>, registration: &Registration) -> Option<&'a ObjectId> {
    if registration.intercepts.is_empty() {
        return None;
    }
    let meets = |one: &str, other: &str| one == "*" || one == other;
    let covers = |facts: &Facts| {
        registration.intercepts.iter().all(|needed| {
            let mut rules = facts.intercepts.iter();
            rules.any(|rule| {
                meets(&rule.group, &needed.group) && meets(&rule.resource, &needed.resource)
            })
        })
    };
    let mut all = ctx.facts.iter();
    let found = all.find(|(id, facts)| id.kind == registration.id.kind && covers(facts));
    found.map(|(id, _)| *id)
}

/// Returns the Service of a webhook whose pods are all replaced, with the
/// replacing steps. The steps are empty if an interrupted run already replaced
/// them.
fn replaced(
    ctx: &Ctx<'_>,
    draft: &Draft,
    registration: &Registration,
) -> Option<(ServiceRef, Vec<StepId>)> {
    if registration.intercepts.is_empty() {
        return None;
    }
    let mut services = registration.services.iter();
    services.find_map(|service| {
        let behind = behind(ctx, service);
        let steps = behind.iter().filter_map(|id| draft.done_by.get(*id));
        let steps: Vec<StepId> = steps.copied().collect();
        let are_replaced = steps.len() == behind.len() || is_interrupted(ctx);
        (!behind.is_empty() && are_replaced).then(|| (service.clone(), steps))
    })
}

/// Returns the desired workloads whose pods are behind a Service now or after
/// this plan.
pub(super) fn behind<'a>(ctx: &Ctx<'a>, service: &ServiceRef) -> BTreeSet<&'a ObjectId> {
    let id = service.id();
    let facts = ctx.facts.get(&id);
    let now = match ctx.observed.full.get(&id) {
        Some(live) => texts(&live.value()["spec"]["selector"]),
        None => facts
            .and_then(|facts| facts.selector.clone())
            .unwrap_or_default(),
    };
    let workloads = ctx.workloads_in(&service.namespace).iter().copied();
    let are_behind = workloads.filter(|id| {
        let labels = labels_until_now(ctx, id);
        labels.is_some_and(|labels| selects(&now, &labels))
    });
    are_behind.chain(ctx.backends(service)).collect()
}

/// Plans the deletion in an upgrade: after all pods that serve the webhook are
/// replaced, and before the custom resources that it would intercept.
fn after(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    registration: &Registration,
    pods: &[StepId],
    deletion: Deletion,
) {
    let rules = &registration.intercepts;
    let takes_ownership =
        |facts: &Facts| facts.intercepts.iter().any(|rule| is_shared(rules, rule));
    let facts = ctx.facts.iter();
    let successors = facts.filter(|(_, facts)| takes_ownership(facts));
    let successors: Vec<StepId> = successors
        .filter_map(|(id, _)| draft.done_by.get(*id).copied())
        .collect();
    let needed = pods.iter().chain(&successors);
    let stages = needed.map(|step| draft.steps[step.0].stage.clone());
    let stage = stages.fold(StageName::Registrations, Ord::max);
    let step = delete(ctx, draft, registration, stage.clone(), deletion);
    for &pods in pods {
        let (pods, need) = completion(&draft.steps[pods.0]);
        draft.edge(pods, need, step, EdgeReason::Backend);
    }
    for successor in successors {
        draft.edge(successor, Need::Applied, step, EdgeReason::Reverse);
    }
    let above = ancestors(draft, &[step]);
    for id in intercepted(ctx, rules) {
        let Some(written) = draft.done_by.get(id).copied() else {
            continue;
        };
        let own = ctx.stage_of(id);
        let first = first_step_of(draft, written);
        // A declared stage may require it before the new pods.
        let is_declared = ctx.assigned.contains_key(id) && own < stage;
        if !is_declared && !above.contains(&first) {
            draft.edge(step, Need::Absent, first, EdgeReason::Intercepts);
        }
    }
}

/// Plans the deletion in a downgrade: while pods still serve the webhook, and
/// after the custom resources that it accepts.
fn before(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    registration: &Registration,
    pods: &[StepId],
    deletion: Deletion,
) {
    let step = delete(ctx, draft, registration, StageName::Registrations, deletion);
    for &pods in pods {
        let first = first_step_of(draft, pods);
        draft.edge(step, Need::Absent, first, EdgeReason::Reverse);
    }
    for id in intercepted(ctx, &registration.intercepts) {
        let Some(written) = draft.done_by.get(id).copied() else {
            continue;
        };
        let first = first_step_of(draft, written);
        if is_let_through(ctx, id) {
            if !descendants(draft, vec![step]).contains(&written) {
                draft.edge(written, Need::Applied, step, EdgeReason::Reverse);
            }
        } else if !ancestors(draft, &[step]).contains(&first) {
            draft.edge(step, Need::Absent, first, EdgeReason::Intercepts);
        }
    }
}

/// Returns whether two sets of interception rules overlap.
fn is_shared(rules: &[Interception], other: &Interception) -> bool {
    let meets = |one: &str, other: &str| one == "*" || other == "*" || one == other;
    rules
        .iter()
        .any(|rule| meets(&rule.group, &other.group) && meets(&rule.resource, &other.resource))
}

fn delete(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    registration: &Registration,
    stage: StageName,
    deletion: Deletion,
) -> StepId {
    let id = &registration.id;
    let reason = deletion.explain();
    let require = vec![Precondition::Uid(deletion.uid().to_owned())];
    draft.change(id, Action::Delete, stage.clone(), &reason, require.clone());
    let step = draft.step(ctx, stage, id.clone(), Op::Delete(deletion), &reason);
    draft.at(step).require = require;
    draft.at(step).until = Some(Until::Absent { pods: None });
    step
}
