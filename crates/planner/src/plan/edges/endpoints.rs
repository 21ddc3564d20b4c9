//! Waits for endpoints before a registration is written. A Deployment is ready
//! before its endpoints are published, so the Service must have as many ready
//! endpoints as the workload has replicas.

use std::collections::BTreeMap;

use super::first_step_of;
use super::reverse::Reversed;
use crate::crd::is_crd;
use crate::plan::{
    draft::{Ctx, Draft},
    handover::texts,
    model::{EdgeReason, Need, StepId, Until},
    phases::Decided,
};
use pleach_model::object::{ObjectId, ServiceRef};
use pleach_model::order::{ReadinessDemand, StageName};

/// Makes every registration wait for the endpoints of its Services, as far as
/// they and their workloads are part of the release.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Decided, reversed: &Reversed<'_>) {
    let mut waits: BTreeMap<&ServiceRef, Option<StepId>> = BTreeMap::new();
    let converting = draft.converting.clone();
    for (step, service) in &converting {
        let wait = *waits
            .entry(service)
            .or_insert_with(|| written_after(ctx, draft, service));
        if let Some(wait) = wait {
            draft.edge(wait, Need::Ready, *step, EdgeReason::Backend);
        }
    }
    for (registration, facts) in &ctx.facts {
        if facts.services.is_empty()
            || is_crd(registration)
            || ctx.is_applied_only(&ctx.stage_of(registration))
        {
            continue;
        }
        let Some(step) = draft.done_by.get(*registration).copied() else {
            continue;
        };
        let first = first_step_of(draft, step);
        for service in &facts.services {
            let changes_first = |needed: &ObjectId| reversed.has(needed, registration);
            if changes_first(&service.id()) || ctx.backends(service).into_iter().any(changes_first)
            {
                continue;
            }
            let wait = *waits
                .entry(service)
                .or_insert_with(|| written_after(ctx, draft, service));
            if let Some(wait) = wait {
                draft.edge(wait, Need::Ready, first, EdgeReason::Backend);
            }
        }
    }
}

fn written_after(ctx: &Ctx<'_>, draft: &mut Draft, service: &ServiceRef) -> Option<StepId> {
    let reason = "registrations that point at it are written once it has a backend";
    wait_for(ctx, draft, StageName::Registrations, service, reason)
}

/// Adds a wait for all endpoints of a Service. `None` if no workload of the
/// release is behind it.
pub(in crate::plan) fn wait_for(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    stage: StageName,
    service: &ServiceRef,
    reason: &str,
) -> Option<StepId> {
    let workloads = ctx.backends(service);
    if workloads.is_empty() {
        return None;
    }
    let until = Until::Endpoints {
        service: service.clone(),
        ready: awaited(ctx, &workloads),
        pods: newly_selected(ctx, draft, &service.id()),
    };
    let id = service.id();
    let wait = draft.wait(ctx, stage, id.clone(), Some(until), reason);
    for (from, need) in workloads
        .into_iter()
        .map(|id| (id, Need::Ready))
        .chain([(&id, Need::Applied)])
    {
        if let Some(&from) = draft.done_by.get(from) {
            draft.edge(from, need, wait, EdgeReason::Backend);
        }
    }
    Some(wait)
}

/// Returns the new pod labels of a Service if its selector changes in this
/// plan.
pub(in crate::plan) fn newly_selected(
    ctx: &Ctx<'_>,
    draft: &Draft,
    service: &ObjectId,
) -> Option<BTreeMap<String, String>> {
    draft.done_by.get(service)?;
    let live = ctx.observed.full.get(service)?;
    let before = texts(&live.value()["spec"]["selector"]);
    // Ignored fields do not change.
    let desired = ctx.desired.ignored.lean(ctx.manifests.get(service)?);
    let after = texts(&desired.value()["spec"]["selector"]);
    (!after.is_empty() && after != before).then_some(after)
}

/// Returns the expected number of endpoints: the replicas of workloads that
/// must be ready, and at least one.
fn awaited(ctx: &Ctx<'_>, workloads: &[&ObjectId]) -> usize {
    let is_required = |id: &ObjectId| {
        let facts = ctx.facts.get(id);
        facts.is_none_or(|facts| facts.readiness == ReadinessDemand::Require)
    };
    let required = workloads.iter().filter(|id| is_required(id));
    let expected = required.map(|id| replicas(ctx, id)).sum();
    if workloads.iter().all(|id| is_required(id)) {
        expected
    } else {
        expected.max(1)
    }
}

/// Returns the expected number of endpoints of a workload. The cluster or an
/// autoscaler decides the number for a DaemonSet or a scaled workload. One
/// endpoint then proves that the backend answers.
fn replicas(ctx: &Ctx<'_>, id: &ObjectId) -> usize {
    let replicas = ctx
        .manifests
        .get(id)
        .map(|manifest| ctx.desired.ignored.lean(manifest).value())
        .and_then(|value| value["spec"]["replicas"].as_u64())
        .and_then(|replicas| usize::try_from(replicas).ok());
    replicas.unwrap_or(1)
}
