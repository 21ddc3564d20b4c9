//! What one step needs of another, each edge with its reason.

use std::collections::{BTreeMap, BTreeSet};

use super::changes;
use super::draft::{Ctx, Draft};
use super::model::{Action, EdgeReason, Need, Op, StepId, Until};
use crate::finding::{Finding, Kind};
use crate::object::{GroupKind, ObjectId, ServiceRef};
use crate::order::{Facts, StageName, is_builtin_group};

/// `to` needs `from`.
struct Dependency {
    from: ObjectId,
    to: ObjectId,
    need: Need,
    why: EdgeReason,
}

/// Turns what objects say about each other into edges, and blocks what needs a
/// blocked object (I10: and nothing else).
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Draft) {
    let mut dependencies = dependencies(ctx, draft);
    dependencies.extend(interceptions(ctx, &dependencies));
    block_descendants(draft, &dependencies);
    for Dependency {
        from,
        to,
        need,
        why,
    } in dependencies
    {
        if let (Some(&from), Some(&to)) = (draft.done_by.get(&from), draft.done_by.get(&to)) {
            let first = first_step_of(draft, to);
            draft.edge(from, need, first, why);
        }
    }
    wait_for_endpoints(ctx, draft);
}

/// An object may have steps before its apply (a patch, a wait); what it needs,
/// the first of them needs.
fn first_step_of(draft: &Draft, step: StepId) -> StepId {
    draft.steps[step.0]
        .needs
        .iter()
        .find(|edge| edge.why == EdgeReason::SameObject)
        .map_or(step, |edge| edge.from)
}

fn dependencies(ctx: &Ctx<'_>, draft: &mut Draft) -> Vec<Dependency> {
    let definitions: BTreeMap<GroupKind, &ObjectId> = ctx
        .facts
        .iter()
        .filter_map(|(id, facts)| Some((facts.defines.as_ref()?.0.group_kind(), *id)))
        .collect();
    let mut bindings: BTreeMap<&ObjectId, Vec<&ObjectId>> = BTreeMap::new();
    for (id, facts) in &ctx.facts {
        for subject in &facts.subjects {
            bindings.entry(subject).or_default().push(id);
        }
    }
    let mut found = Vec::new();
    for (&id, facts) in &ctx.facts {
        let mut need = |from: &ObjectId, need: Need, why: EdgeReason| {
            if ctx.is_desired(from) && from != id {
                found.push(Dependency {
                    from: from.clone(),
                    to: id.clone(),
                    need,
                    why,
                });
            }
        };
        if let Some(definition) = definitions.get(&id.group_kind()) {
            need(definition, Need::Ready, EdgeReason::Definition);
        }
        if let Some(namespace) = &id.namespace {
            need(
                &ObjectId::new("", "Namespace", None, namespace),
                Need::Applied,
                EdgeReason::Namespace,
            );
        }
        if let Some(role) = &facts.role {
            need(role, Need::Applied, EdgeReason::Role);
        }
        if let Some(account) = &facts.service_account {
            need(account, Need::Applied, EdgeReason::Rights);
            for binding in bindings.get(account).into_iter().flatten() {
                need(binding, Need::Applied, EdgeReason::Rights);
            }
        }
        for reference in &facts.pod_references {
            need(reference, Need::Applied, EdgeReason::Reference);
        }
        if !facts.services.is_empty() && facts.defines.is_none() {
            for service in &facts.services {
                need(&service.id(), Need::Applied, EdgeReason::Backend);
                for workload in backends(ctx, service) {
                    need(workload, Need::Ready, EdgeReason::Backend);
                }
            }
        }
        for (kind, name) in &facts.after {
            match named(ctx, kind, name, id.namespace.as_deref()) {
                Some(before) => need(before, Need::Ready, EdgeReason::After),
                None => draft.findings.push(
                    Finding::error(
                        Kind::Repository,
                        "after-nothing",
                        format!("annotation pleach.dev/after names {kind}/{name}, which is not part of the release"),
                    )
                    .on(id.clone()),
                ),
            }
        }
    }
    found
}

/// The object of the release that `pleach.dev/after: Kind/name` means: in the
/// same namespace first, then cluster-scoped, then anywhere.
fn named<'a>(
    ctx: &'a Ctx<'_>,
    kind: &str,
    name: &str,
    namespace: Option<&str>,
) -> Option<&'a ObjectId> {
    let candidates = || {
        ctx.manifests
            .keys()
            .copied()
            .filter(|id| id.kind == kind && id.name == name)
    };
    candidates()
        .find(|id| id.namespace.as_deref() == namespace)
        .or_else(|| candidates().find(|id| id.namespace.is_none()))
        .or_else(|| candidates().next())
}

/// The workloads of the release whose pods a Service selects.
fn backends<'a>(ctx: &'a Ctx<'_>, service: &ServiceRef) -> Vec<&'a ObjectId> {
    let Some(selector) = ctx
        .facts
        .get(&service.id())
        .and_then(|facts| facts.selector.as_ref())
    else {
        return Vec::new();
    };
    ctx.facts
        .iter()
        .filter(|(id, facts)| {
            id.namespace.as_deref() == Some(&service.namespace) && facts.is_selected_by(selector)
        })
        .map(|(id, _)| *id)
        .collect()
}

/// Custom resources come after the registrations that intercept them, except
/// where the registration itself needs them.
fn interceptions(ctx: &Ctx<'_>, known: &[Dependency]) -> Vec<Dependency> {
    let plurals: BTreeMap<GroupKind, &str> = ctx
        .facts
        .values()
        .filter_map(|facts| {
            facts
                .defines
                .as_ref()
                .map(|(gvk, plural)| (gvk.group_kind(), plural.as_str()))
        })
        .collect();
    let mut found = Vec::new();
    for (&registration, facts) in &ctx.facts {
        if facts.intercepts.is_empty() {
            continue;
        }
        let ancestors = ancestors(registration, known);
        for &id in ctx.facts.keys() {
            if !is_builtin_group(&id.group)
                && !ancestors.contains(id)
                && intercepts(facts, id, plurals.get(&id.group_kind()).copied())
            {
                found.push(Dependency {
                    from: registration.clone(),
                    to: id.clone(),
                    need: Need::Applied,
                    why: EdgeReason::Intercepts,
                });
            }
        }
    }
    found
}

fn intercepts(facts: &Facts, id: &ObjectId, plural: Option<&str>) -> bool {
    facts.intercepts.iter().any(|rule| {
        (rule.group == "*" || rule.group == id.group)
            && (rule.resource == "*" || plural.is_none_or(|plural| plural == rule.resource))
    })
}

fn ancestors<'a>(of: &'a ObjectId, known: &'a [Dependency]) -> BTreeSet<&'a ObjectId> {
    let mut found = BTreeSet::new();
    let mut open = vec![of];
    while let Some(next) = open.pop() {
        for dependency in known.iter().filter(|dependency| dependency.to == *next) {
            if found.insert(&dependency.from) {
                open.push(&dependency.from);
            }
        }
    }
    found
}

fn block_descendants(draft: &mut Draft, dependencies: &[Dependency]) {
    loop {
        let action =
            |draft: &Draft, id: &ObjectId| draft.changes.get(id).map(|change| change.action);
        let blocked = |draft: &Draft, id: &ObjectId| action(draft, id) == Some(Action::Blocked);
        // What is as wanted already waits for nothing.
        let waits = |draft: &Draft, id: &ObjectId| {
            !matches!(action(draft, id), Some(Action::Blocked | Action::Unchanged))
        };
        let next: Vec<(ObjectId, ObjectId)> = dependencies
            .iter()
            .filter(|dependency| blocked(draft, &dependency.from) && waits(draft, &dependency.to))
            .map(|dependency| (dependency.to.clone(), dependency.from.clone()))
            .collect();
        if next.is_empty() {
            return;
        }
        for (id, cause) in next {
            if let Some(change) = draft
                .changes
                .get_mut(&id)
                .filter(|change| change.action != Action::Blocked)
            {
                change.action = Action::Blocked;
                change.stage = None;
                change.reason = format!("it needs {cause}, which is blocked");
            }
            draft.done_by.remove(&id);
            let steps: Vec<StepId> = draft
                .steps
                .iter()
                .filter(|step| step.object == id)
                .map(|step| step.id)
                .collect();
            draft.dropped.extend(steps);
        }
    }
}

/// A registration is written only once its Service has as many ready endpoints
/// as the workload has replicas: a Deployment is ready before they are published.
fn wait_for_endpoints(ctx: &Ctx<'_>, draft: &mut Draft) {
    let mut waits: BTreeMap<ServiceRef, StepId> = BTreeMap::new();
    let registrations: Vec<(ObjectId, StepId)> = draft
        .done_by
        .iter()
        .filter(|(id, _)| {
            ctx.facts
                .get(id)
                .is_some_and(|facts| facts.defines.is_none())
        })
        .map(|(id, step)| (id.clone(), *step))
        .collect();
    for (registration, step) in registrations {
        let Some(facts) = ctx.facts.get(&registration) else {
            continue;
        };
        for service in facts
            .services
            .iter()
            .filter(|service| ctx.is_desired(&service.id()))
        {
            let workloads = backends(ctx, service);
            if workloads.is_empty() {
                continue;
            }
            let wait = *waits.entry(service.clone()).or_insert_with(|| {
                let ready = workloads.iter().map(|id| replicas(ctx, id)).sum();
                let until = Until::Endpoints {
                    service: service.clone(),
                    ready,
                };
                let reason = "registrations that point at it are written once it has a backend";
                let wait = draft.wait(
                    ctx,
                    StageName::Registrations,
                    service.id(),
                    Some(until),
                    reason,
                );
                for (from, need) in workloads
                    .iter()
                    .map(|id| ((*id).clone(), Need::Ready))
                    .chain([(service.id(), Need::Applied)])
                {
                    if let Some(&from) = draft.done_by.get(&from) {
                        draft.edge(from, need, wait, EdgeReason::Backend);
                    }
                }
                wait
            });
            let first = first_step_of(draft, step);
            draft.edge(wait, Need::Ready, first, EdgeReason::Backend);
        }
    }
}

/// How many endpoints a workload is expected to have; a DaemonSet's number is
/// the cluster's, so one is enough to know that the backend answers.
fn replicas(ctx: &Ctx<'_>, id: &ObjectId) -> usize {
    let replicas = ctx
        .manifests
        .get(id)
        .and_then(|manifest| manifest.value()["spec"]["replicas"].as_u64())
        .and_then(|replicas| usize::try_from(replicas).ok());
    replicas.unwrap_or(1)
}

/// Whether the step of an object is one that changes it.
pub(super) fn applies(op: &Op) -> bool {
    matches!(op, Op::Apply { .. } | Op::Create { .. })
}

/// What completes an object, for passes that wait for unchanged ones.
pub(super) fn until(ctx: &Ctx<'_>, id: &ObjectId) -> Option<Until> {
    changes::until(ctx, id)
}
