//! Readiness of all objects, and the barrier that precedes pruning.

mod services_without_backends;

use std::collections::BTreeSet;

use super::changes::until;
use super::draft::{Changed, Ctx, Draft};
use super::handover::{registers_again, undeclared_waits};
use super::model::{Action, EdgeReason, Need, Op, Step, StepId, Until};
use super::phases::Bracketed;
use pleach_formats::policy::RuntimeObject;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{GroupKind, ObjectId, ServiceRef};
use pleach_model::order::StageName;

/// Adds waits for objects without steps, and the barrier after all waits.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Bracketed) {
    let installed = ctx.observed.installed.as_ref();
    let ready = installed.is_some_and(|installed| installed.ready);
    if !ctx.policy.wait || (ready && !draft.has_effects() && draft.ordered().pruned.is_empty()) {
        return;
    }
    if draft.is_blocked() {
        draft.findings.push(Finding::note(
            Kind::Policy,
            "not-verified",
            "nothing is verified or pruned while objects are blocked",
        ));
        return;
    }
    wait_for_the_rest(ctx, draft);
    services_without_backends::wait_for_endpoints(ctx, draft);
    if ctx.observed.focus.is_none() {
        wait_for_run_time(ctx, draft);
    }
    let earlier: Vec<(StepId, Need)> = draft.steps.iter().map(completion).collect();
    let reason = "everything is ready before anything is pruned";
    let barrier = draft.wait(ctx, StageName::Verify, ctx.release(), None, reason);
    for (step, need) in earlier {
        draft.edge(step, need, barrier, EdgeReason::Barrier);
    }
    draft.verified = Some(barrier);
}

/// Returns the strongest state that a step reaches.
pub(super) fn completion(step: &Step) -> (StepId, Need) {
    let need = match (&step.op, &step.until) {
        (_, None) => Need::Applied,
        (Op::Delete(_), _) => Need::Absent,
        _ => Need::Ready,
    };
    (step.id, need)
}

/// Adds waits for unchanged objects, and re-checks objects whose dependency
/// changes afterwards.
fn wait_for_the_rest(ctx: &Ctx<'_>, draft: &mut Bracketed) {
    let still: Vec<ObjectId> = draft
        .changes
        .values()
        .filter(|change| ctx.is_desired(&change.object))
        .filter(|change| {
            let again = draft.rechecked.contains_key(&change.object);
            match change.action {
                Action::Unchanged => {
                    again
                        || !draft
                            .ordered()
                            .decided()
                            .awaited
                            .contains_key(&change.object)
                }
                Action::Update => again,
                _ => false,
            }
        })
        .map(|change| change.object.clone())
        // In a partial plan, objects outside of its focus were ready and were
        // not touched.
        .filter(|id| {
            ctx.observed
                .focus
                .as_ref()
                .is_none_or(|some| some.contains(id))
        })
        // A finished Job may be deleted by now.
        .filter(|id| ctx.observed.live_meta(id).is_some())
        .filter(|id| !ctx.desired.has_run(id, &ctx.observed.journal))
        .collect();
    for id in still {
        let Some(until) = until(ctx, &id) else {
            continue;
        };
        let reason = "it must still be ready";
        let wait = draft.wait(ctx, StageName::Verify, id.clone(), Some(until), reason);
        for (from, need, why) in draft.rechecked.remove(&id).into_iter().flatten() {
            let from = match from {
                Changed::Object(from) => draft.done_by.get(&from).copied(),
                Changed::All(step) => Some(step),
            };
            if let Some(from) = from {
                draft.edge(from, need, wait, why);
            }
        }
    }
}

/// Adds waits for runtime objects, after their workloads are ready.
fn wait_for_run_time(ctx: &Ctx<'_>, draft: &mut Draft) {
    let steps = draft.steps.iter();
    let restarted = steps
        .filter(|step| registers_again(step))
        .map(|step| step.id);
    let workloads: Vec<(StepId, Need)> = draft
        .workloads(ctx)
        .into_iter()
        .chain(restarted)
        .map(|step| completion(&draft.steps[step.0]))
        .collect();
    let mut waits = Vec::new();
    for object in &ctx.desired.runtime_objects {
        // A kind without a group was refused when the bundle was read.
        if let Some(kind) = object.group_kind().filter(|_| !object.optional) {
            wait_for_one(ctx, draft, object, &kind, &mut waits);
        }
    }
    waits.extend(undeclared_waits(ctx, draft));
    draft.all_before(
        ctx,
        StageName::Verify,
        &workloads,
        &waits,
        &EdgeReason::Reference,
        "the workloads create the runtime objects",
    );
}

fn wait_for_one(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    object: &RuntimeObject,
    kind: &GroupKind,
    waits: &mut Vec<StepId>,
) {
    let stage = StageName::Verify;
    if let Some(name) = &object.service {
        let services = services(ctx, name);
        if services.is_empty() {
            draft.findings.push(Finding::warning(
                Kind::Repository,
                "run-time-object-without-service",
                format!("runtimeObjects names Service {name}, which is not part of the release"),
            ));
        }
        for service in services {
            let id = service.id();
            let kind = kind.clone();
            let reason = format!("its workload registers {kind} at run time");
            let until = Some(Until::Registered {
                kind,
                service,
                optional: false,
            });
            waits.push(draft.wait(ctx, stage.clone(), id, until, &reason));
        }
    } else if let Some(name) = &object.name {
        let any_of = candidates(ctx, kind, name);
        let Some(first) = any_of.first().cloned() else {
            draft.findings.push(Finding::warning(
                Kind::Repository,
                "run-time-object-without-namespace",
                format!("runtimeObjects names {kind} {name}, but no object of the release is in a namespace"),
            ));
            return;
        };
        let until = Some(Until::Exists { any_of });
        let reason = "the workloads create it at run time";
        waits.push(draft.wait(ctx, stage, first, until, reason));
    }
}

/// Returns the Services of the release with a name, in any namespace.
pub(super) fn services(ctx: &Ctx<'_>, name: &str) -> Vec<ServiceRef> {
    ctx.named("Service", name)
        .iter()
        .filter(|id| id.group.is_empty())
        .filter_map(|id| {
            Some(ServiceRef {
                namespace: id.namespace.clone()?,
                name: id.name.clone(),
            })
        })
        .collect()
}

/// Returns the possible ids of a runtime object: in each namespace with objects
/// of the release, or cluster-scoped.
fn candidates(ctx: &Ctx<'_>, kind: &GroupKind, name: &str) -> Vec<ObjectId> {
    let at = |namespace| ObjectId::new(&kind.group, &kind.kind, namespace, name);
    let served = ctx.observed.discovery.preferred(kind);
    if served.is_some_and(|(_, resource)| !resource.namespaced) {
        return vec![at(None)];
    }
    let namespaces: BTreeSet<&str> = ctx
        .manifests
        .keys()
        .filter_map(|id| id.namespace.as_deref())
        .collect();
    namespaces.into_iter().map(|name| at(Some(name))).collect()
}
