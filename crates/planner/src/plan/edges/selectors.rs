//! Services whose selector changes, and the workloads that they select.
//!
//! A ready pod should be behind the Service at all times. If the new selector
//! also matches the existing pods, the Service changes first. Otherwise it
//! waits for ready pods; if they never become ready, it keeps the previous
//! pods. If neither selector matches the other pods, no order avoids a gap, and
//! a warning reports it.

use std::collections::{BTreeMap, BTreeSet};

use super::needs::{Dependencies, Needs};
use crate::plan::{
    draft::{Ctx, Draft},
    handover::texts,
    model::{Action, EdgeReason, Need, StepId},
    prune::service_ref,
};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::ObjectId;
use pleach_model::order::StageName;

type Labels = BTreeMap<String, String>;

/// Object of a Service and a workload that is written first.
enum First {
    Service,
    Workload,
}

/// Order between a Service and a workload.
struct Course {
    first: Option<First>,
    /// True if the Service has no endpoints while only one of the two is
    /// written.
    gap: bool,
}

/// A Service whose selector changes.
struct Reselected {
    before: Labels,
    after: Labels,
    /// True for a headless Service, through which unready pods may discover
    /// each other.
    is_headless: bool,
    /// True if the new selector matches existing pods that stay.
    finds_pods: bool,
    /// True if the previous selector also matches pods of this version.
    keeps_pods: bool,
}

/// Adds dependencies between Services whose selector changes and the selected
/// workloads. Omits a dependency that would form a cycle or contradict a
/// declared stage.
pub(super) fn run<'a>(ctx: &Ctx<'a>, draft: &mut Draft, found: &mut Dependencies<'a>) {
    let mut reselected: Vec<(&'a ObjectId, &'a str, Reselected)> = Vec::new();
    for &service in ctx.manifests.keys() {
        if let Some(namespace) = service.namespace.as_deref()
            && let Some(changed) = Reselected::of(ctx, draft, service, namespace)
        {
            reselected.push((service, namespace, changed));
        }
    }
    if reselected.is_empty() {
        return;
    }
    let mut needs = Needs::of(found);
    for (service, namespace, changed) in reselected {
        let mut gap = Vec::new();
        let workloads = ctx.workloads_in(namespace);
        // Each workload is compared and its steps are searched.
        if !draft.budget.work(workloads.len()) {
            return;
        }
        for &workload in workloads {
            let course = changed.course(ctx, draft, service, workload);
            if course.gap {
                gap.push(workload);
            }
            let (from, to, need) = match course.first {
                Some(First::Workload) => (workload, service, Need::Ready),
                Some(First::Service) => (service, workload, Need::Applied),
                None => continue,
            };
            let (stage, later) = (ctx.stage_of(from), ctx.stage_of(to));
            let is_declared = matches!(later, StageName::Declared(_)) && stage > later;
            if is_declared || needs.ancestors(from).contains(to) {
                continue;
            }
            // The next Service must see this edge too, or two could form a
            // cycle.
            needs.add(from, to);
            found.add(from, to, need, EdgeReason::Selects);
        }
        if !gap.is_empty() {
            let finding = no_endpoints(ctx, service, &gap);
            draft.findings.push(finding);
        }
    }
}

/// Moves a Service to the stage of the pods it waits for, so that the end of an
/// earlier stage does not wait for it. Declared stages are exempt, because they
/// already include all dependents.
pub(super) fn join(draft: &mut Draft, from: StepId, to: &ObjectId) {
    let stage = draft.steps[from.0].stage.clone();
    if matches!(stage, StageName::Declared(_)) {
        return;
    }
    if !draft.budget.work(draft.steps.len()) {
        return;
    }
    let own = draft.steps.iter_mut().filter(|step| step.object == *to);
    for step in own.filter(|step| step.stage < stage) {
        step.stage = stage.clone();
    }
    if let Some(change) = draft.changes.get_mut(to)
        && change.stage.as_ref().is_some_and(|own| *own < stage)
    {
        change.stage = Some(stage);
    }
}

impl Reselected {
    fn of(ctx: &Ctx<'_>, draft: &Draft, service: &ObjectId, namespace: &str) -> Option<Self> {
        if !service.is("", "Service") {
            return None;
        }
        let is_there = matches!(
            draft.action(service),
            Some(Action::Update | Action::Adopt | Action::Blocked)
        );
        if !is_there {
            return None;
        }
        let live = ctx.observed.full.get(service)?;
        let spec = &live.value()["spec"];
        let before = texts(&spec["selector"]);
        let after = ctx.facts.get(service)?.selector.clone()?;
        if before == after {
            return None;
        }
        let workloads = ctx.workloads_in(namespace);
        let desired = |id: &ObjectId| {
            ctx.facts
                .get(id)
                .and_then(|facts| facts.pod_labels.as_ref())
        };
        let finds = |id: &ObjectId| {
            let stays = matches!(
                draft.action(id),
                Some(Action::Unchanged | Action::Update | Action::Adopt)
            );
            let now = labels_until_now(ctx, id).filter(|_| stays);
            now.is_some_and(|now| selects(&after, &now))
                && desired(id).is_some_and(|labels| selects(&after, labels))
        };
        let keeps = |id: &ObjectId| desired(id).is_some_and(|labels| selects(&before, labels));
        Some(Self {
            is_headless: spec["clusterIP"] == "None",
            finds_pods: workloads.iter().any(|id| finds(id)),
            keeps_pods: workloads.iter().any(|id| keeps(id)),
            before,
            after,
        })
    }

    /// Returns which of the Service and the workload changes first, and whether
    /// that leaves a gap.
    fn course(
        &self,
        ctx: &Ctx<'_>,
        draft: &Draft,
        service: &ObjectId,
        workload: &ObjectId,
    ) -> Course {
        let nothing = Course {
            first: None,
            gap: false,
        };
        let facts = ctx.facts.get(workload);
        let Some(labels) = facts.and_then(|facts| facts.pod_labels.as_ref()) else {
            return nothing;
        };
        // Recreated workloads lose their pods before the new ones start in any
        // order.
        let action = draft.action(workload);
        let comes = !matches!(action, None | Some(Action::Recreate | Action::Skip));
        if !comes || !selects(&self.after, labels) {
            return nothing;
        }
        let now = labels_until_now(ctx, workload);
        let was = |selector: &Labels| now.as_ref().is_some_and(|now| selects(selector, now));
        let (is_found, is_behind) = (was(&self.after), was(&self.before));
        let is_kept = selects(&self.before, labels);
        if draft.action(service) == Some(Action::Blocked) {
            // The blocked Service keeps its selector, so the selected workload
            // must keep its pods.
            let first = (is_behind && !is_kept).then_some(First::Service);
            return Course { first, ..nothing };
        }
        let ready = (!self.is_headless).then_some(First::Workload);
        let first = match (is_kept, is_found) {
            (true, true) => None,
            (true, false) => Some(First::Workload),
            (false, true) if is_behind => Some(First::Service),
            // Pods from an interrupted run may not be ready yet.
            (false, true) => ready.filter(|_| is_interrupted(ctx)),
            (false, false) if self.finds_pods => is_behind.then_some(First::Service),
            (false, false) => ready,
        };
        let changes = matches!(action, Some(Action::Update | Action::Adopt));
        let is_between = is_behind && !is_found && !self.finds_pods && !self.keeps_pods;
        Course {
            first,
            gap: changes && is_between && has_pods(ctx, workload),
        }
    }
}

/// Returns whether a selector matches labels; an empty selector matches
/// nothing.
pub(in crate::plan) fn selects(selector: &Labels, labels: &Labels) -> bool {
    let mut all = selector.iter();
    !selector.is_empty() && all.all(|(key, value)| labels.get(key) == Some(value))
}

/// Returns whether the last run did not finish.
pub(in crate::plan) fn is_interrupted(ctx: &Ctx<'_>) -> bool {
    let record = ctx.observed.installed.as_ref();
    record.is_some_and(|record| !record.ready && record.installed.is_some())
}

/// Returns whether a workload has pods now, judged by `spec.replicas`.
fn has_pods(ctx: &Ctx<'_>, workload: &ObjectId) -> bool {
    let live = ctx.observed.full.get(workload);
    live.is_none_or(|live| live.value()["spec"]["replicas"] != 0)
}

/// Returns the labels of a workload's present pods. `None` if it does not
/// exist; for a workload that was not read, the labels in git.
pub(in crate::plan) fn labels_until_now(ctx: &Ctx<'_>, id: &ObjectId) -> Option<Labels> {
    let Some(live) = ctx.observed.full.get(id) else {
        ctx.observed.live_meta(id)?;
        return ctx.facts.get(id)?.pod_labels.clone();
    };
    let live = live.value();
    Some(texts(if id.is("", "Pod") {
        &live["metadata"]["labels"]
    } else {
        &live["spec"]["template"]["metadata"]["labels"]
    }))
}

fn no_endpoints(ctx: &Ctx<'_>, service: &ObjectId, workloads: &[&ObjectId]) -> Finding {
    let named: Vec<String> = workloads.iter().map(ToString::to_string).collect();
    let mut message = format!(
        "its selector and the pod labels of {} change together: the Service has no endpoints while only one of them is applied",
        named.join(", ")
    );
    let intercepting = registrations(ctx, service);
    if !intercepting.is_empty() {
        let intercepting: Vec<String> = intercepting.into_iter().map(ToString::to_string).collect();
        message = format!(
            "{message}, and requests through {} are refused or fail",
            intercepting.join(", ")
        );
    }
    let finding = Finding::warning(Kind::Repository, "no-endpoints-between", message);
    let finding = match ctx.manifests.get(service) {
        Some(manifest) => finding.at(manifest.origin().clone()),
        None => finding,
    };
    finding.on(service.clone()).hint(
        "change it in two versions: first give the pods the labels of both selectors, then change the selector and remove the previous labels",
    )
}

/// Returns the registrations that point at a Service, both shipped ones and
/// those that pods made.
fn registrations<'c>(ctx: &'c Ctx<'_>, service: &ObjectId) -> BTreeSet<&'c ObjectId> {
    let Some(service) = service_ref(service) else {
        return BTreeSet::new();
    };
    let shipped = ctx.facts.iter();
    let shipped = shipped
        .filter(|(_, facts)| facts.services.contains(&service))
        .map(|(id, _)| *id);
    let made = ctx.observed.registrations.iter();
    let made = made
        .filter(|one| one.services.contains(&service))
        .map(|one| &one.id);
    shipped.chain(made).collect()
}
