//! Services that registrations reference and that no longer select a workload
//! of the release. If only the pod labels change and the selector does not,
//! every part becomes ready, but the API server refuses all intercepted
//! requests.

use std::collections::{BTreeMap, BTreeSet};

use super::completion;
use crate::plan::{
    draft::{Ctx, Draft},
    edges::{labels_until_now, newly_selected},
    handover::texts,
    model::{EdgeReason, Until},
};
use pleach_model::object::{ObjectId, ServiceRef};
use pleach_model::order::StageName;

/// Waits until such a Service has an endpoint. Pods of another release or
/// runtime pods may provide it. A Service that never selected a workload of the
/// release is not awaited, because its backend may be installed later.
pub(super) fn wait_for_endpoints(ctx: &Ctx<'_>, draft: &mut Draft) {
    let all = ctx.facts.values();
    let named: BTreeSet<&ServiceRef> = all.flat_map(|facts| &facts.services).collect();
    for service in named {
        let id = service.id();
        if !ctx.backends(service).is_empty() || !is_without_backends(ctx, &id, service) {
            continue;
        }
        let until = Some(Until::Endpoints {
            service: service.clone(),
            ready: 1,
            pods: newly_selected(ctx, draft, &id),
        });
        let reason = "a registration points at it, and it selects no workload of the release";
        let wait = draft.wait(ctx, StageName::Verify, id.clone(), until, reason);
        let workloads = ctx.workloads_in(&service.namespace).iter().copied();
        for before in workloads.chain([&id]) {
            if let Some(&step) = draft.done_by.get(before) {
                let (step, need) = completion(&draft.steps[step.0]);
                draft.edge(step, need, wait, EdgeReason::Backend);
            }
        }
    }
}

/// Returns whether the Service selected a workload before this plan, or
/// possibly before an interrupted run, whose changes now match git.
fn is_without_backends(ctx: &Ctx<'_>, id: &ObjectId, service: &ServiceRef) -> bool {
    let facts = ctx.facts.get(id);
    let Some(desired) = facts.and_then(|facts| facts.selector.as_ref()) else {
        return false;
    };
    let workloads = ctx.workloads_in(&service.namespace);
    let record = ctx.observed.installed.as_ref();
    let interrupted = record.is_some_and(|record| !record.ready && record.installed.is_some());
    if interrupted && !workloads.is_empty() {
        return true;
    }
    let live = ctx.observed.full.get(id);
    let selector = match live {
        Some(live) => texts(&live.value()["spec"]["selector"]),
        None => desired.clone(),
    };
    let selects = |labels: BTreeMap<String, String>| {
        let mut all = selector.iter();
        !selector.is_empty() && all.all(|(key, value)| labels.get(key) == Some(value))
    };
    let mut before = workloads.iter().filter_map(|id| labels_until_now(ctx, id));
    before.any(selects)
}
