//! A Service whose selector changes, and the workloads that it selects from then
//! on: somebody ready should be behind it all the time. It goes first where it
//! selects the pods that are there too, and else comes after pods that are ready:
//! should those never be, it stays with the former ones. Where neither the former
//! selector finds the new pods nor the new one the former pods, there is no order
//! without a gap, and a warning says so.

use std::collections::{BTreeMap, BTreeSet};

use super::needs::{Dependencies, Needs};
use crate::finding::{Finding, Kind};
use crate::object::ObjectId;
use crate::order::StageName;
use crate::plan::draft::{Ctx, Draft};
use crate::plan::handover::texts;
use crate::plan::model::{Action, EdgeReason, Need, StepId};
use crate::plan::prune::service_ref;

type Labels = BTreeMap<String, String>;

/// What of a Service and a workload is written first.
enum First {
    Service,
    Workload,
}

/// How a Service and a workload go on together.
struct Course {
    first: Option<First>,
    /// Whether nothing is behind the Service while only one of them is written.
    gap: bool,
}

/// A Service whose selector changes.
struct Reselected {
    before: Labels,
    after: Labels,
    /// Its pods may find each other by it, before they are ready.
    is_headless: bool,
    /// Whether the new selector finds pods right away, and those stay.
    finds_pods: bool,
    /// Whether the former selector finds pods of this version too.
    keeps_pods: bool,
}

/// Adds what Services whose selector changes need of the workloads that they
/// select, or those of them. What itself needs the other, and what the bundle
/// wants in an earlier stage, is left where it is.
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
        // Each is compared, and its steps are looked for.
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
            let is_said = matches!(later, StageName::Declared(_)) && stage > later;
            if is_said || needs.ancestors(from).contains(to) {
                continue;
            }
            // Known to the next one too, or two could close a circle.
            needs.add(from, to);
            found.add(from, to, need, EdgeReason::Selects);
        }
        if !gap.is_empty() {
            let finding = no_endpoints(ctx, service, &gap);
            draft.findings.push(finding);
        }
    }
}

/// A Service that comes after pods belongs to their stage: what ends with an earlier
/// one does not wait for it. With a stage of the bundle's own all goes that needs
/// something of it.
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
        let wanted = |id: &ObjectId| {
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
                && wanted(id).is_some_and(|labels| selects(&after, labels))
        };
        let keeps = |id: &ObjectId| wanted(id).is_some_and(|labels| selects(&before, labels));
        Some(Self {
            is_headless: spec["clusterIP"] == "None",
            finds_pods: workloads.iter().any(|id| finds(id)),
            keeps_pods: workloads.iter().any(|id| keeps(id)),
            before,
            after,
        })
    }

    /// What of the Service and a workload goes first, and whether that leaves a gap.
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
        // The pods of what is created anew go before the new ones come in any case.
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
            // What it selects now goes on as it is, or nothing would be behind it.
            let first = (is_behind && !is_kept).then_some(First::Service);
            return Course { first, ..nothing };
        }
        let ready = (!self.is_headless).then_some(First::Workload);
        let first = match (is_kept, is_found) {
            (true, true) => None,
            (true, false) => Some(First::Workload),
            (false, true) if is_behind => Some(First::Service),
            // What a former run left on its way is waited for.
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

/// Whether a selector of a Service finds pods with these labels; an empty one finds none.
pub(in crate::plan) fn selects(selector: &Labels, labels: &Labels) -> bool {
    let mut all = selector.iter();
    !selector.is_empty() && all.all(|(key, value)| labels.get(key) == Some(value))
}

/// Whether the last run did not get to its end.
pub(in crate::plan) fn is_interrupted(ctx: &Ctx<'_>) -> bool {
    let record = ctx.observed.installed.as_ref();
    record.is_some_and(|record| !record.ready && record.installed.is_some())
}

/// Whether a workload has pods now, as far as it says how many.
fn has_pods(ctx: &Ctx<'_>, workload: &ObjectId) -> bool {
    let live = ctx.observed.full.get(workload);
    live.is_none_or(|live| live.value()["spec"]["replicas"] != 0)
}

/// The labels of the pods that a workload has now; none where it is not there. One
/// that was not read is as git has it.
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
        "its selector and the labels of the pods of {} change at once: nothing is behind it while only one of them is written",
        named.join(", ")
    );
    let asked = registrations(ctx, service);
    if !asked.is_empty() {
        let asked: Vec<String> = asked.into_iter().map(ToString::to_string).collect();
        message = format!(
            "{message}, and what {} needs it for is refused or fails",
            asked.join(", ")
        );
    }
    let finding = Finding::warning(Kind::Repository, "no-endpoints-between", message);
    let finding = match ctx.manifests.get(service) {
        Some(manifest) => finding.at(manifest.origin().clone()),
        None => finding,
    };
    finding.on(service.clone()).hint(
        "go there in two versions: in one the pods get the labels of both selectors, in the next the selector changes and the former labels go",
    )
}

/// What points at a Service: registrations of the release, and those that its pods
/// made.
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
