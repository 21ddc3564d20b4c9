//! Gates: what is closed while a change lasts, and for whom it is not.
//!
//! A bundle declares gates; and the kinds that an upgrade brings are closed by
//! themselves from before they exist until they are served for good: a webhook
//! that guards them may come later than their definition. When a product moves
//! whose pods register themselves, what their webhooks guard is closed from
//! before those go until their successors are there.

mod exempt;

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;

use super::Grant;
use super::draft::{Ctx, Draft};
use super::edges::wait_for;
use super::handover::{self, unregistered};
use super::model::{Action, Course, EdgeReason, Need, Op, Overlay, Step, StepId, Until};
use super::overlays::stops_pods;
use super::superseded::taken_over;
use super::verify::services;
use crate::finding::{Finding, Kind};
use crate::gate::{Closed, Gate, Operation, account, probe};
use crate::object::{ObjectId, ServiceRef};
use crate::observe::Registration;
use crate::order::StageName;
use crate::overlay::{Journaled, OnFailure, OverlayContent, OverlayId};
use crate::repo::{GateRule, RuntimeObject};
pub(super) use exempt::{before_writes, run as exempt_us};

/// The kinds of what guards objects while no gate does.
const WEBHOOKS: [&str; 2] = [
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
];

/// Name of the gate of what an upgrade brings.
const NEW_KINDS: &str = "new-apis";

/// How long a gate stays at most that nobody declared.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(1);

/// What other API servers are given after one of them answered as wanted.
const SETTLE: SignedDuration = SignedDuration::from_secs(2);

/// One gate of the change.
pub(super) struct Wanted {
    pub(super) id: OverlayId,
    gate: Gate,
    pub(super) from: StageName,
    pub(super) until: StageName,
    max_age: SignedDuration,
    guard: Guard,
}

/// What a gate is closed before.
enum Guard {
    /// Everything of its first stage, and the deletion of the registrations that it
    /// stands in for.
    Stage(Vec<StepId>),
    /// The definitions of what is closed.
    Definitions(Vec<StepId>),
    /// The end of what guarded it so far, and of those who ran.
    Handover {
        /// What has to be there for those who take over: until then it is open.
        after: Vec<(StepId, Need)>,
        before: Vec<StepId>,
    },
}

impl Wanted {
    /// Whether it stands before a stage, and not before single steps.
    pub(super) fn is_of_stage(&self) -> bool {
        matches!(self.guard, Guard::Stage(_))
    }

    /// Guards the emptying of the former place too, if it guards a handover: that of
    /// earlier stages comes before it.
    pub(super) fn guard_also(&mut self, draft: &Draft, steps: impl Iterator<Item = StepId>) {
        let from = &self.from;
        if let Guard::Handover { before, .. } = &mut self.guard {
            before.extend(steps.filter(|step| draft.steps[step.0].stage >= *from));
        }
    }
}

/// Every gate that the change wants.
pub(super) fn wanted(ctx: &Ctx<'_>, draft: &mut Draft) -> Vec<Wanted> {
    let aggregated = aggregated(ctx);
    let mut all = Vec::new();
    for rule in &ctx.sequence.gates {
        let open = rule.closed.groups.iter();
        let open: Vec<Finding> = open
            .filter_map(|group| Some(cannot_be_closed(rule, group, aggregated.get(group)?)))
            .collect();
        if open.is_empty() {
            all.push(declared(ctx, draft, rule));
        }
        draft.findings.extend(open);
    }
    let is_declared = |name: &str| {
        let mut rules = ctx.sequence.gates.iter();
        rules.any(|rule| rule.name == name)
    };
    if !is_declared(NEW_KINDS) {
        all.extend(new_kinds(ctx, draft));
    }
    let replaces_handover = is_declared(handover::NAME);
    let findings = too_late(ctx, draft, replaces_handover);
    draft.findings.extend(findings);
    if !replaces_handover {
        all.extend(moving(ctx, draft, &aggregated));
    }
    all
}

/// The registrations of webhooks that this plan deletes before everything is ready,
/// each with the step that does it.
fn deleted<'a>(ctx: &Ctx<'a>, draft: &Draft) -> Vec<(StepId, &'a Registration)> {
    let registrations = ctx.observed.registrations.iter();
    let registrations: BTreeMap<&ObjectId, &Registration> =
        registrations.map(|one| (&one.id, one)).collect();
    let is_guard = |step: &&Step| match &step.op {
        Op::Delete(deletion) => matches!(
            deletion.because(),
            Grant::Registration { .. } | Grant::Superseded { .. } | Grant::TakenOver { .. }
        ),
        _ => false,
    };
    let steps = draft.steps.iter().filter(is_guard);
    let found = steps.filter_map(|step| Some((step.id, *registrations.get(&step.object)?)));
    found
        .filter(|(_, one)| !one.intercepts.is_empty())
        .collect()
}

/// Reports each interception whose registration is deleted after the declared gates that
/// cover it were lifted. The bundle leaves an interception open that no gate covers.
///
/// The gate `handover` covers what the pods of a move registered, unless the bundle
/// `replaces_handover`. A registration in git with the same interceptions is applied
/// before the previous one is deleted, so no gate is needed.
fn too_late(ctx: &Ctx<'_>, draft: &Draft, replaces_handover: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (step, registration) in deleted(ctx, draft) {
        let step = &draft.steps[step.0];
        let Op::Delete(deletion) = &step.op else {
            continue;
        };
        let grant = deletion.because();
        let is_of_pods = matches!(grant, Grant::Registration { .. });
        let is_superseded = matches!(grant, Grant::Superseded { .. });
        let needs_gate = (is_of_pods && replaces_handover)
            || (is_superseded && taken_over(ctx, registration).is_none());
        if !needs_gate {
            continue;
        }
        for rule in &registration.intercepts {
            let gates = ctx.sequence.gates.iter();
            let gates: Vec<&GateRule> = gates.filter(|gate| gate.closed.covers(rule)).collect();
            let Some(gate) = gates.first() else {
                continue;
            };
            if gates.iter().any(|gate| gate.until >= step.stage) {
                continue;
            }
            let message = format!(
                "gate {} is lifted after stage {}, before {} is deleted in stage {}: nothing validates {} from then on",
                gate.name, gate.until, step.object, step.stage, rule.resource
            );
            let finding = Finding::error(Kind::Repository, "gate-too-late", message)
                .at(gate.origin.clone())
                .hint("let the gate end with `until: ungate`");
            findings.push(finding);
        }
    }
    findings
}

/// A gate of the bundle. It closes before its first stage, and before the first stage in
/// which a registration is deleted that it stands in for.
fn declared(ctx: &Ctx<'_>, draft: &Draft, rule: &GateRule) -> Wanted {
    let stage = |step: &StepId| &draft.steps[step.0].stage;
    let covered = deleted(ctx, draft).into_iter();
    let covered: Vec<StepId> = covered
        .filter(|(_, one)| one.intercepts.iter().any(|it| rule.closed.covers(it)))
        .map(|(step, _)| step)
        .filter(|step| *stage(step) <= rule.until)
        .collect();
    let from = covered.iter().map(stage).fold(&rule.from, Ord::min);
    let mut gate = gate(ctx, &rule.name, vec![rule.closed.clone()]);
    gate.operations.clone_from(&rule.operations);
    gate.exempt.extend(rule.exempt.iter().cloned());
    gate.exempt.sort();
    gate.exempt.dedup();
    Wanted {
        id: OverlayId::of_gate(&rule.name, &gate.id()),
        gate,
        from: from.clone(),
        until: rule.until.clone(),
        max_age: rule.max_age,
        guard: Guard::Stage(covered),
    }
}

fn gate(ctx: &Ctx<'_>, name: &str, closed: Vec<Closed>) -> Gate {
    Gate {
        release: ctx.desired.name.clone(),
        name: name.to_owned(),
        version: ctx.desired.version.clone(),
        closed,
        operations: vec![Operation::Create, Operation::Update],
        exempt: accounts(ctx),
        exempts_us: false,
        state: ctx.desired.store.namespace().to_owned(),
    }
}

/// The accounts of both versions: those that git has, those that are members, also
/// of the release whose objects are handed over, and those that pods run as.
fn accounts(ctx: &Ctx<'_>) -> Vec<String> {
    let members = ctx.observed.inventory.entries.keys();
    let former = ctx.observed.former.iter();
    let former = former.flat_map(|former| former.inventory.entries.keys());
    let used = ctx.facts.values();
    let used = used.filter_map(|facts| facts.service_account.as_ref());
    let accounts: BTreeSet<String> = ctx
        .manifests
        .keys()
        .copied()
        .chain(members)
        .chain(former)
        .chain(used)
        .filter(|id| id.is("", "ServiceAccount"))
        .filter_map(|id| Some(account(id.namespace.as_deref()?, &id.name)))
        .collect();
    accounts.into_iter().collect()
}

/// The definitions that an upgrade creates, or that a former run of it created
/// behind a gate which is still closed.
fn new_kinds(ctx: &Ctx<'_>, draft: &Draft) -> Option<Wanted> {
    let record = ctx.observed.installed.as_ref()?;
    record.installed.as_ref()?;
    let created: Vec<&ObjectId> = ctx
        .facts
        .iter()
        .filter(|(id, facts)| facts.defines.is_some() && draft.action(id) == Some(Action::Create))
        .map(|(id, _)| *id)
        .collect();
    let mut plurals: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for id in &created {
        let Some(defined) = &ctx.facts.get(id)?.defines else {
            continue;
        };
        let of_group = plurals.entry(defined.kind.group.clone()).or_default();
        of_group.insert(defined.plural.clone());
    }
    let mut gate = gate(ctx, NEW_KINDS, Vec::new());
    let id = OverlayId::of_gate(NEW_KINDS, &gate.id());
    let journaled = ctx.observed.journal.overlays.get(&id);
    for closed in journaled.map(still_closed).unwrap_or_default() {
        for group in closed.groups {
            let of_group = plurals.entry(group).or_default();
            of_group.extend(closed.resources.iter().cloned());
        }
    }
    if plurals.is_empty() {
        return None;
    }
    gate.closed = plurals
        .into_iter()
        .map(|(group, plurals)| Closed {
            groups: vec![group],
            resources: plurals.into_iter().collect(),
        })
        .collect();
    let before = draft.steps.iter();
    let before = before
        .filter(|step| created.contains(&&step.object))
        .map(|step| step.id)
        .collect();
    Some(Wanted {
        id,
        gate,
        from: StageName::Gates,
        until: StageName::Ungate,
        max_age: MAX_AGE,
        guard: Guard::Definitions(before),
    })
}

/// What the registrations guarded that go before their successors come. What a
/// former run closed stays closed until one converges.
fn moving(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    aggregated: &BTreeMap<String, ObjectId>,
) -> Option<Wanted> {
    let unregistered: Vec<StepId> = unregistered(draft).iter().map(|one| one.step).collect();
    let mut groups = BTreeSet::new();
    let mut open = BTreeSet::new();
    for step in &unregistered {
        let object = &draft.steps[step.0].object;
        let mut registrations = ctx.observed.registrations.iter();
        let registration = registrations.find(|one| one.id == *object);
        for rule in registration.iter().flat_map(|one| &one.intercepts) {
            if is_custom(&rule.group) && !aggregated.contains_key(&rule.group) {
                groups.insert(rule.group.clone());
            } else {
                open.insert((object.clone(), rule.group.clone()));
            }
        }
    }
    let mut gate = gate(ctx, handover::NAME, Vec::new());
    let id = OverlayId::of_gate(handover::NAME, &gate.id());
    let journaled = ctx.observed.journal.overlays.get(&id);
    let closed = journaled.map(still_closed).unwrap_or_default();
    groups.extend(closed.into_iter().flat_map(|one| one.groups));
    for (object, group) in open {
        let message = format!(
            "what {object} guards in group `{group}` is not guarded from its removal until its successor is there"
        );
        let finding = Finding::note(Kind::Cluster, "not-guarded", message);
        draft.findings.push(finding.on(object));
    }
    if groups.is_empty() {
        return None;
    }
    gate.closed = vec![Closed {
        groups: groups.into_iter().collect(),
        resources: vec!["*".to_owned()],
    }];
    // One that a former run closed is closed again at once: what it stands in for may
    // be gone. Any other one is closed when the first of them is deleted.
    let stages = unregistered.iter().map(|step| &draft.steps[step.0].stage);
    let first = stages.min().filter(|_| journaled.is_none());
    let after = unregistered
        .iter()
        .map(|step| &draft.steps[step.0])
        .filter(|step| Some(&step.stage) == first)
        .flat_map(|step| &step.needs)
        .map(|edge| (edge.from, edge.state))
        .collect();
    Some(Wanted {
        id,
        gate,
        from: first.cloned().unwrap_or(StageName::Workloads),
        until: StageName::Ungate,
        max_age: MAX_AGE,
        guard: Guard::Handover {
            after,
            before: unregistered,
        },
    })
}

/// Whether a group is one of custom resources. To close one of the cluster's
/// own for everybody would harm more than it guards.
fn is_custom(group: &str) -> bool {
    group.contains('.') && !group.contains('*') && !group.ends_with(".k8s.io")
}

/// What a gate of a former run closed.
fn still_closed(journaled: &Journaled) -> Vec<Closed> {
    journaled.gate().map(|gate| gate.closed).unwrap_or_default()
}

/// API groups behind which another server stands, which asks no policy of ours;
/// each with the APIService that says so.
fn aggregated(ctx: &Ctx<'_>) -> BTreeMap<String, ObjectId> {
    let registered = ctx.observed.registrations.iter().map(|one| &one.id);
    let registered = registered
        .filter(|id| id.is("apiregistration.k8s.io", "APIService"))
        // Its name is `<version>.<group>`.
        .filter_map(|id| Some((id.name.split_once('.')?.1.to_owned(), id.clone())));
    let shipped = ctx.facts.iter();
    let shipped = shipped.filter_map(|(id, facts)| {
        let api = facts.registers.as_ref()?;
        Some((api.group.clone(), (*id).clone()))
    });
    registered.chain(shipped).collect()
}

fn cannot_be_closed(rule: &GateRule, group: &str, by: &ObjectId) -> Finding {
    let message = format!(
        "gate {}: group {group} is served behind {by}, and the server there asks no admission policy",
        rule.name
    );
    Finding::error(Kind::Repository, "gate-of-aggregated-api", message)
        .at(rule.origin.clone())
        .hint("close the groups of custom resources; take this one out of the gate")
}

/// Records a gate, with the step that closes it.
pub(super) fn close(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    one: &Wanted,
    journaled: Option<&Journaled>,
) -> (usize, StepId) {
    let policy = one.gate.id();
    draft.overlays.push(Overlay {
        id: one.id.clone(),
        object: policy.clone(),
        content: OverlayContent::Gate(Some(one.gate.clone())),
        course: if journaled.is_some() {
            Course::Kept
        } else {
            Course::Made
        },
        from: journaled.is_none().then(|| one.from.clone()),
        until: one.until.clone(),
        undo: vec![Op::Lift],
        on_failure: OnFailure::Keep {
            max_age: Some(one.max_age),
        },
    });
    let index = draft.overlays.len() - 1;
    let reason = format!(
        "gate {} until {}: {}",
        one.gate.name,
        one.until,
        one.gate.explain()
    );
    let op = Op::Close {
        gate: one.gate.clone(),
    };
    let step = draft.step(ctx, one.from.clone(), policy.clone(), op, &reason);
    draft.at(step).overlay = Some(one.id.clone());
    draft.at(step).until = Some(probed(ctx, &policy, true));
    let (after, before): (&[_], &[_]) = match &one.guard {
        Guard::Stage(before) | Guard::Definitions(before) => (&[], before),
        Guard::Handover { after, before } => (after, before),
    };
    for &(earlier, need) in after {
        draft.edge(earlier, need, step, EdgeReason::Overlay);
    }
    for &later in before {
        draft.edge(step, Need::Ready, later, EdgeReason::Overlay);
    }
    (index, step)
}

/// Makes the steps that lift gates wait until something answers behind the
/// webhooks for which they stood: a webhook may be there before its endpoints
/// are. Only what can be there by then is waited for. `after` is what comes
/// before each such wait.
pub(super) fn answered(ctx: &Ctx<'_>, draft: &mut Draft, lifts: &[StepId], after: Option<StepId>) {
    if !ctx.policy.wait {
        return;
    }
    let mut waits: BTreeMap<(StageName, ServiceRef), Vec<StepId>> = BTreeMap::new();
    for &lift in lifts {
        let stage = draft.steps[lift.0].stage.clone();
        for service in stood_for(ctx, draft, lift) {
            let workloads = ctx.backends(&service);
            let is_stopped = |id: &ObjectId| {
                let mut overlays = draft.overlays.iter();
                overlays.any(|one| {
                    one.object == *id
                        && one.until > stage
                        && one
                            .content
                            .patch()
                            .is_some_and(|patch| stops_pods(id, patch))
                })
            };
            let comes_later = |id: &&ObjectId| ctx.stage_of(id) > stage || is_stopped(id);
            if workloads.iter().any(comes_later) {
                continue;
            }
            let key = (stage.clone(), service.clone());
            let known = waits.entry(key).or_insert_with(|| {
                let reason = "a gate stands for the webhooks behind it until it answers";
                let Some(wait) = wait_for(ctx, draft, stage.clone(), &service, reason) else {
                    return Vec::new();
                };
                let Some(after) = after else {
                    let mut waits = registered(ctx, draft, (&stage, &service), wait);
                    waits.push(wait);
                    return waits;
                };
                draft.edge(after, Need::Applied, wait, EdgeReason::Barrier);
                vec![wait]
            });
            for &wait in known.iter() {
                draft.edge(wait, Need::Ready, lift, EdgeReason::Overlay);
            }
        }
    }
}

/// Waits until the webhooks are registered that pods make for a Service, once it answers.
/// A gate that is lifted after verify needs none of these waits: verify has them.
fn registered(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    (stage, service): (&StageName, &ServiceRef),
    answers: StepId,
) -> Vec<StepId> {
    let objects = ctx.desired.runtime_objects.iter();
    let objects = objects
        .filter(|one| !one.optional && WEBHOOKS.contains(&one.kind.as_str()))
        .filter(|one| one.service.as_ref() == Some(&service.name));
    let kinds: BTreeSet<_> = objects.filter_map(RuntimeObject::group_kind).collect();
    let mut waits = Vec::new();
    for kind in kinds {
        let reason = format!("a gate stands for the {} until it is registered", kind.kind);
        let until = Some(Until::Registered {
            kind,
            service: service.clone(),
            optional: false,
        });
        let wait = draft.wait(ctx, stage.clone(), service.id(), until, &reason);
        draft.edge(answers, Need::Ready, wait, EdgeReason::Overlay);
        waits.push(wait);
    }
    waits
}

/// The Services of webhooks that guard what a gate closed: of those that the
/// release ships by what they intercept, of those that its pods register all.
fn stood_for(ctx: &Ctx<'_>, draft: &Draft, lift: StepId) -> BTreeSet<ServiceRef> {
    let id = draft.steps[lift.0].overlay.as_ref();
    let mut overlays = draft.overlays.iter();
    let overlay = overlays.find(|overlay| Some(&overlay.id) == id);
    let Some(gate) = overlay.and_then(|overlay| overlay.content.gate()) else {
        return BTreeSet::new();
    };
    let groups: BTreeSet<&String> = gate.closed.iter().flat_map(|one| &one.groups).collect();
    let shipped = ctx.facts.values().filter(|facts| {
        let mut rules = facts.intercepts.iter();
        rules.any(|rule| rule.group == "*" || groups.contains(&rule.group))
    });
    let registered = ctx.desired.runtime_objects.iter();
    let registered = registered
        .filter(|object| !object.optional && WEBHOOKS.contains(&object.kind.as_str()))
        .filter_map(|object| object.service.as_deref())
        .flat_map(|name| services(ctx, name));
    shipped
        .flat_map(|facts| facts.services.iter().cloned())
        .chain(registered)
        .collect()
}

/// What tells that a gate is in force, or not any more.
pub(super) fn probed(ctx: &Ctx<'_>, policy: &ObjectId, denied: bool) -> Until {
    Until::Probe {
        object: probe(policy, ctx.desired.store.namespace()),
        denied,
        settle: SETTLE,
    }
}

/// Whether a step is of what is only for a while.
pub(super) fn is_temporary(step: &Step) -> bool {
    matches!(step.op, Op::Set { .. } | Op::Close { .. } | Op::Lift)
}
