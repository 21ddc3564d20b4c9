//! Readiness of everything, and the barrier after which things may go.

use std::collections::BTreeSet;

use super::draft::{Ctx, Draft};
use super::edges;
use super::model::{Action, EdgeReason, Need, Op, StepId, Until};
use crate::finding::{Finding, Kind};
use crate::object::{GroupKind, ObjectId, ServiceRef};
use crate::order::StageName;
use crate::repo::RuntimeObject;

/// Adds waits for what has no step of its own and the barrier behind all of it.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Draft) {
    let ready = ctx
        .observed
        .installed
        .as_ref()
        .is_some_and(|installed| installed.ready);
    if !ctx.policy.wait || (ready && !draft.has_effects() && draft.pruned.is_empty()) {
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
    wait_for_unchanged(ctx, draft);
    for object in ctx
        .desired
        .runtime_objects
        .iter()
        .filter(|object| !object.optional)
    {
        wait_for_run_time(ctx, draft, object);
    }
    let earlier: Vec<(StepId, Need)> = draft
        .steps
        .iter()
        .map(|step| {
            (
                step.id,
                if step.until.is_none() {
                    Need::Applied
                } else {
                    reached(&step.op)
                },
            )
        })
        .collect();
    let reason = "everything is ready before anything is pruned";
    let barrier = draft.wait(ctx, StageName::Verify, ctx.release(), None, reason);
    for (step, need) in earlier {
        draft.edge(step, need, barrier, EdgeReason::Barrier);
    }
    draft.verified = Some(barrier);
}

/// What a step with a condition reaches.
fn reached(op: &Op) -> Need {
    if matches!(op, Op::Delete(_)) {
        Need::Absent
    } else {
        Need::Ready
    }
}

fn wait_for_unchanged(ctx: &Ctx<'_>, draft: &mut Draft) {
    let unchanged: Vec<ObjectId> = draft
        .changes
        .values()
        .filter(|change| change.action == Action::Unchanged && ctx.is_desired(&change.object))
        .map(|change| change.object.clone())
        .collect();
    for id in unchanged {
        if let Some(until) = edges::until(ctx, &id) {
            draft.wait(
                ctx,
                StageName::Verify,
                id,
                Some(until),
                "it must still be ready",
            );
        }
    }
}

fn wait_for_run_time(ctx: &Ctx<'_>, draft: &mut Draft, object: &RuntimeObject) {
    // A kind without a group was refused when the bundle was read.
    let Some(kind) = object.group_kind() else {
        return;
    };
    let workloads: Vec<StepId> = draft
        .steps
        .iter()
        .filter(|step| step.stage == StageName::Workloads && edges::applies(&step.op))
        .map(|step| step.id)
        .collect();
    let mut waits = Vec::new();
    if let Some(name) = &object.service {
        let services: Vec<ServiceRef> = ctx
            .manifests
            .keys()
            .filter(|id| id.is("", "Service") && id.name == *name)
            .filter_map(|id| {
                Some(ServiceRef {
                    namespace: id.namespace.clone()?,
                    name: id.name.clone(),
                })
            })
            .collect();
        if services.is_empty() {
            draft.findings.push(Finding::warning(
                Kind::Repository,
                "run-time-object-without-service",
                format!("runtimeObjects names Service {name}, which is not part of the release"),
            ));
        }
        for service in services {
            let id = service.id();
            let until = Until::Registered {
                kind: kind.clone(),
                service,
            };
            let reason = format!("its workload registers {kind} at run time");
            waits.push(draft.wait(ctx, StageName::Verify, id, Some(until), &reason));
        }
    } else if let Some(name) = &object.name {
        let any_of = candidates(ctx, &kind, name);
        if let Some(first) = any_of.first().cloned() {
            let reason = "the workloads make it at run time";
            waits.push(draft.wait(
                ctx,
                StageName::Verify,
                first,
                Some(Until::Exists { any_of }),
                reason,
            ));
        }
    }
    for wait in waits {
        for &workload in &workloads {
            draft.edge(workload, Need::Ready, wait, EdgeReason::Reference);
        }
    }
}

/// Where a run-time object with this name may be: in each namespace that holds
/// workloads of the release, or without one.
fn candidates(ctx: &Ctx<'_>, kind: &GroupKind, name: &str) -> Vec<ObjectId> {
    let namespaced = ctx
        .observed
        .discovery
        .preferred(kind)
        .is_none_or(|(_, resource)| resource.namespaced);
    if !namespaced {
        return vec![ObjectId::new(&kind.group, &kind.kind, None, name)];
    }
    let namespaces: BTreeSet<&str> = ctx
        .manifests
        .keys()
        .filter_map(|id| id.namespace.as_deref())
        .collect();
    namespaces
        .into_iter()
        .map(|namespace| ObjectId::new(&kind.group, &kind.kind, Some(namespace), name))
        .collect()
}
