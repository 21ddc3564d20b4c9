//! Registrations whose Service this plan deletes or leaves without pods.
//!
//! An upgrade that moves a product to another namespace leaves behind the
//! APIServices and webhook configurations that its pods registered at run time,
//! which no manifest contains. They are found by the Service they reference.
//! They are deleted just before the stage of the new workloads, which would
//! crash on them. Until the prerequisites of those workloads exist, the
//! previous workloads keep their registrations. The same applies to
//! registrations of a release that hands its objects over.
//!
//! Pods that run until they are pruned may register again. Such registrations
//! are judged in the same way after the pods are gone, and before their Service
//! is deleted.

use std::collections::{BTreeMap, BTreeSet};

use super::draft::{Ctx, Draft, Pruned};
use super::handover;
use super::model::{Action, EdgeReason, Need, Op, Precondition, Step, StepId, Until};
use super::phases::{Decided, Ordered};
use super::prune::{Judge, service_ref};
use super::{Deletion, Grant};
use crate::observe::Registration;
use pleach_model::finding::{Finding, Kind};
use pleach_model::foreign_tools;
use pleach_model::object::ServiceRef;
use pleach_model::order::StageName;
use pleach_state::inventory::{EntryState, Inventory};
use pleach_state::live::LiveMeta;

/// Plans the deletion of registrations that only reference Services which are
/// deleted or have no pods left. They are deleted just before the stage of
/// their successors.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Ordered) {
    let going = going(draft.decided());
    if going.is_empty() {
        return;
    }
    let mut by_stage: BTreeMap<Option<StageName>, Vec<(&Registration, Deletion)>> = BTreeMap::new();
    for (registration, deletion) in found(ctx, draft, &going) {
        let stage = taken_over_in(ctx, draft, registration, &going);
        by_stage
            .entry(stage)
            .or_default()
            .push((registration, deletion));
    }
    let workloads = draft.workloads(ctx);
    for (stage, found) in by_stage {
        let comes_later = |id: &StepId| {
            let mut stage = stage.iter();
            stage.all(|stage| draft.steps[id.0].stage >= *stage)
        };
        let later: Vec<StepId> = workloads.iter().copied().filter(comes_later).collect();
        let is_first = |id: &&StepId| {
            let mut stage = stage.iter();
            stage.all(|stage| draft.steps[id.0].stage == *stage)
        };
        let first: Vec<StepId> = later.iter().filter(is_first).copied().collect();
        // Prerequisites of later stages are not awaited.
        let first: BTreeSet<_> = needs_of(draft, &first).into_iter().collect();
        let mut needs = needs_of(draft, &later);
        needs.retain(|need| first.contains(need));
        let stage = stage.unwrap_or(StageName::Workloads);
        let mut deletions = Vec::new();
        for (registration, deletion) in found {
            let step = delete(ctx, draft, (stage.clone(), registration), deletion);
            for &(before, need) in &needs {
                draft.edge(before, need, step, EdgeReason::Leftover);
            }
            deletions.push((step, Need::Absent));
        }
        // Recorded registrations are also in the pruned objects.
        let deleted: BTreeSet<_> = deletions
            .iter()
            .map(|(step, _)| draft.steps[step.0].object.clone())
            .collect();
        draft.pruned.retain(|pruned| !deleted.contains(&pruned.id));
        draft.all_before(
            ctx,
            stage,
            &deletions,
            &later,
            &EdgeReason::Leftover,
            "the new workloads would crash because of the registrations of the previous ones",
        );
    }
}

/// Returns the Services of the release that are deleted or have no backend left.
fn going(draft: &Decided) -> BTreeSet<ServiceRef> {
    draft
        .leaving
        .union(&draft.without_backends)
        .cloned()
        .collect()
}

/// Returns the first stage with a successor of the pods behind a registration.
/// Successors are backends of a Service with the same name, and workloads named
/// like the deleted ones. `None` if there are none.
fn taken_over_in(
    ctx: &Ctx<'_>,
    draft: &Ordered,
    registration: &Registration,
    going: &BTreeSet<ServiceRef>,
) -> Option<StageName> {
    let services = registration.services.iter();
    let services = services.filter(|service| going.contains(*service));
    let successors = services.flat_map(|service| handover::successors(ctx, draft, service));
    let stages = successors.map(|id| {
        let done = draft.done_by.get(id);
        done.map_or_else(
            || ctx.stage_of(id),
            |done| draft.steps[done.0].stage.clone(),
        )
    });
    stages.min()
}

/// Returns these registrations for an uninstall. They are deleted with the
/// other registrations, while their Service still exists.
pub(super) fn of_removal(ctx: &Ctx<'_>, draft: &mut Decided) -> Vec<Pruned> {
    let judge = Judge::new(ctx);
    let going = going(draft);
    found(ctx, draft, &going)
        .into_iter()
        .map(|(registration, deletion)| Pruned {
            id: registration.id.clone(),
            deletion,
            dead: judge.dead_service(&registration.id).is_some(),
        })
        .collect()
}

/// Returns the registrations to delete with Services of the release. Findings
/// explain why other ones stay.
fn found<'a>(
    ctx: &Ctx<'a>,
    draft: &mut Draft,
    going: &BTreeSet<ServiceRef>,
) -> Vec<(&'a Registration, Deletion)> {
    let observed = ctx.observed;
    let registrations: BTreeMap<_, &Registration> = observed
        .registrations
        .iter()
        .map(|registration| (&registration.id, registration))
        .collect();
    let previous = observed.previous.iter();
    let inventories: Vec<&Inventory> = previous
        .map(|previous| &previous.inventory)
        .chain([&observed.inventory])
        .collect();
    let mut found = Vec::new();
    let mut left = Vec::new();
    for registration in registrations.into_values() {
        let id = &registration.id;
        let mut entries = inventories.iter().filter_map(|one| one.entries.get(id));
        let shipped = entries.any(|entry| entry.state == EntryState::Applied);
        let mut services = registration.services.iter();
        let service = services.find(|service| going.contains(service));
        let Some(service) = service.filter(|_| !ctx.is_desired(id) && !shipped) else {
            // Desired ones are retargeted by their apply. Shipped ones are
            // pruned before their backend, or are a reason to refuse the plan.
            // The rest is not ours.
            continue;
        };
        let reserved = reservation(registration, going, &ctx.apply_set);
        if let Some(finding) = reserved.or_else(|| unseen(ctx, registration)) {
            left.push(finding.on(id.clone()));
        } else if let Some(deletion) = Deletion::of_registration(registration, service) {
            found.push((registration, deletion));
        }
    }
    draft.findings.extend(left);
    found
}

/// Decides a registration that the plan does not contain and that references a
/// deleted Service. Ending pods may have created it since planning. `None` if
/// it references no deleted Service, a finding if it stays.
pub fn returned(
    registration: &Registration,
    going: &BTreeSet<ServiceRef>,
    apply_set: &str,
) -> Option<Result<Deletion, Box<Finding>>> {
    let mut services = registration.services.iter();
    let service = services.find(|service| going.contains(*service))?;
    if let Some(finding) = reservation(registration, going, apply_set) {
        return Some(Err(Box::new(finding.on(registration.id.clone()))));
    }
    Deletion::of_registration(registration, service).map(Ok)
}

/// Returns the Service that a step deletes permanently.
pub fn leaving_service(step: &Step) -> Option<ServiceRef> {
    let Op::Delete(deletion) = &step.op else {
        return None;
    };
    let is_removed = matches!(deletion.because(), Grant::Inventory | Grant::Uninstall);
    service_ref(&step.object).filter(|_| is_removed)
}

/// Returns the prerequisites of workloads, without steps that depend on one of
/// the workloads.
pub(super) fn needs_of(draft: &Draft, workloads: &[StepId]) -> Vec<(StepId, Need)> {
    let mut dependents: Vec<Vec<StepId>> = vec![Vec::new(); draft.steps.len()];
    for step in &draft.steps {
        for edge in &step.needs {
            dependents[edge.from.0].push(step.id);
        }
    }
    let mut after = BTreeSet::new();
    let mut open = workloads.to_vec();
    while let Some(step) = open.pop() {
        if after.insert(step) {
            open.extend(&dependents[step.0]);
        }
    }
    let needs: BTreeSet<(StepId, Need)> = workloads
        .iter()
        .flat_map(|step| &draft.steps[step.0].needs)
        .filter(|edge| !after.contains(&edge.from))
        .map(|edge| (edge.from, edge.state))
        .collect();
    needs.into_iter().collect()
}

/// Returns the reason why a registration stays although its Service is deleted.
fn reservation(
    registration: &Registration,
    going: &BTreeSet<ServiceRef>,
    apply_set: &str,
) -> Option<Finding> {
    let Registration { meta, services, .. } = registration;
    let (code, why) = if let Some(other) = services.iter().find(|one| !going.contains(*one)) {
        let why = format!("it also points at Service {other}, which stays");
        ("leftover-shared", why)
    } else if registration.asks_url {
        let why = "its Service is deleted, but one of its webhooks is called at a URL".to_owned();
        ("leftover-shared", why)
    } else {
        let (code, why) = made_by_others(meta, apply_set)?;
        (code, format!("its Service is deleted, but {why}"))
    };
    Some(left_in_place(code, why))
}

/// Returns the reason why an unrecorded object was not created by our pods,
/// with the finding code.
pub fn made_by_others(meta: &LiveMeta, apply_set: &str) -> Option<(&'static str, String)> {
    if let Some(set) = meta.part_of().filter(|set| *set != apply_set) {
        let why = format!("it is part of another ApplySet ({set})");
        return Some(("leftover-foreign", why));
    }
    if !meta.owners.is_empty() {
        return Some(("leftover-owned", "another object owns it".to_owned()));
    }
    let foreign_tool = foreign_tools::marked(meta)?;
    let why = format!("it carries the mark `{}` of another tool", foreign_tool.key);
    Some(("leftover-foreign", why))
}

/// Returns a finding if the kind of the registration could not be listed
/// completely.
fn unseen(ctx: &Ctx<'_>, registration: &Registration) -> Option<Finding> {
    let why = "its Service is deleted, but its kind could not be listed completely";
    let is_seen = ctx.observed.is_complete(&registration.id);
    (!is_seen).then(|| left_in_place("incomplete-view", why.to_owned()))
}

fn left_in_place(code: &str, why: String) -> Finding {
    let finding = Finding::warning(Kind::Policy, code, why);
    finding.hint("it is left in place; delete it by hand if it is not needed")
}

fn delete(
    ctx: &Ctx<'_>,
    draft: &mut Ordered,
    (stage, registration): (StageName, &Registration),
    deletion: Deletion,
) -> StepId {
    let id = &registration.id;
    let previous = ctx.observed.previous.as_ref();
    let mut services = registration.services.iter();
    let reason = match (
        services.find(|one| draft.decided().without_backends.contains(*one)),
        previous,
    ) {
        (Some(service), Some(previous)) => format!(
            "points at Service {service} of release {}, whose pods are deleted",
            previous.name
        ),
        _ => deletion.explain(),
    };
    let require = vec![
        Precondition::Uid(registration.meta.uid.clone()),
        Precondition::ResourceVersion(registration.meta.resource_version.clone()),
    ];
    draft.change(id, Action::Delete, stage.clone(), &reason, require.clone());
    let step = draft.step(ctx, stage, id.clone(), Op::Delete(deletion), &reason);
    draft.at(step).require = require;
    draft.at(step).until = Some(Until::Absent { pods: None });
    step
}
