//! Gates: resources that are closed to users during a change, with exempt
//! users.
//!
//! Bundles declare gates. In addition, kinds that an upgrade adds are closed
//! before they exist until the change is complete, because their validating
//! webhook may start after their CRD. If a product moves whose pods register
//! webhooks, the resources they guard are closed until the successors have
//! registered.

mod exempt;

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;

use super::Grant;
use super::draft::{Ctx, Draft};
use super::edges::wait_for;
use super::handover::{self, unregistered};
use super::model::{Action, Course, EdgeReason, Need, Op, Overlay, Step, StepId, Until};
use super::overlays::stops_pods;
use super::stale_registrations::replacement;
use super::verify::services;
use crate::observe::Registration;
pub(super) use exempt::{before_writes, run as exempt_us};
use pleach_formats::gate::{Closed, Gate, Operation, account, probe};
use pleach_formats::{policy::RuntimeObject, sequence::GateRule};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{ObjectId, ServiceRef};
use pleach_model::order::StageName;
use pleach_state::overlay::{Journaled, OnFailure, OverlayContent, OverlayId};

/// Registrations that guard objects while no gate is closed.
const WEBHOOKS: [&str; 2] = [
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
];

/// Name of the gate for kinds that an upgrade adds.
const NEW_KINDS: &str = "new-apis";

/// Maximum age of an undeclared gate.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(1);

/// Delay for other API servers after the probed one has the expected state.
const SETTLE: SignedDuration = SignedDuration::from_secs(2);

/// A gate of the change.
pub(super) struct DesiredGate {
    pub(super) id: OverlayId,
    gate: Gate,
    pub(super) from: StageName,
    pub(super) until: StageName,
    max_age: SignedDuration,
    guard: Guard,
}

/// Steps that wait for the gate.
enum Guard {
    /// All steps of the first stage, and the deletions of registrations that
    /// the gate replaces.
    Stage(Vec<StepId>),
    /// The CRDs of the closed kinds.
    Definitions(Vec<StepId>),
    /// The deletion of the previous registrations and workloads.
    Handover {
        /// Prerequisites of the successors; the gate is open until they exist.
        after: Vec<(StepId, Need)>,
        before: Vec<StepId>,
    },
}

impl DesiredGate {
    /// Returns whether the gate precedes a stage instead of single steps.
    pub(super) fn is_of_stage(&self) -> bool {
        matches!(self.guard, Guard::Stage(_))
    }

    /// Makes the emptying of previous workloads wait for the gate, if it guards
    /// a handover. Earlier stages are emptied before.
    pub(super) fn guard_also(&mut self, draft: &Draft, steps: impl Iterator<Item = StepId>) {
        let from = &self.from;
        if let Guard::Handover { before, .. } = &mut self.guard {
            before.extend(steps.filter(|step| draft.steps[step.0].stage >= *from));
        }
    }
}

/// Returns all gates of the change.
pub(super) fn desired_gates(ctx: &Ctx<'_>, draft: &mut Draft) -> Vec<DesiredGate> {
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

/// Returns the webhook registrations that this plan deletes before verify, with
/// their deletion steps.
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

/// Reports interceptions whose registration is deleted after the declared gates
/// that cover them were lifted. Without a covering gate, the bundle leaves an
/// interception open on purpose.
///
/// The gate `handover` covers registrations of moved pods, unless the bundle
/// `replaces_handover`. A registration in git with the same interceptions is
/// applied before the previous one is deleted, so it needs no gate.
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
            || (is_superseded && replacement(ctx, registration).is_none());
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
                "gate {} is lifted after stage {}, before {} is deleted in stage {}: no webhook validates {} from then on",
                gate.name, gate.until, step.object, step.stage, rule.resource
            );
            let finding = Finding::error(Kind::Repository, "gate-too-late", message)
                .at(gate.origin.clone())
                .hint("set `until: ungate` on the gate");
            findings.push(finding);
        }
    }
    findings
}

/// Builds a gate of the bundle. It closes before its first stage, or earlier if
/// a registration that it replaces is deleted earlier.
fn declared(ctx: &Ctx<'_>, draft: &Draft, rule: &GateRule) -> DesiredGate {
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
    DesiredGate {
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

/// Returns the service accounts of both versions: those in git, members (also
/// of the release that hands its objects over), and accounts of pods.
fn accounts(ctx: &Ctx<'_>) -> Vec<String> {
    let members = ctx.observed.inventory.entries.keys();
    let previous = ctx.observed.previous.iter();
    let previous = previous.flat_map(|previous| previous.inventory.entries.keys());
    let used = ctx.facts.values();
    let used = used.filter_map(|facts| facts.service_account.as_ref());
    let accounts: BTreeSet<String> = ctx
        .manifests
        .keys()
        .copied()
        .chain(members)
        .chain(previous)
        .chain(used)
        .filter(|id| id.is("", "ServiceAccount"))
        .filter_map(|id| Some(account(id.namespace.as_deref()?, &id.name)))
        .collect();
    accounts.into_iter().collect()
}

/// Builds the gate for CRDs that an upgrade creates, or that an earlier run
/// created behind a gate which is still closed.
fn new_kinds(ctx: &Ctx<'_>, draft: &Draft) -> Option<DesiredGate> {
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
    Some(DesiredGate {
        id,
        gate,
        from: StageName::Gates,
        until: StageName::Ungate,
        max_age: MAX_AGE,
        guard: Guard::Definitions(before),
    })
}

/// Builds the gate for registrations that are deleted before their successors
/// register. Groups closed by an earlier run stay closed until a run succeeds.
fn moving(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    aggregated: &BTreeMap<String, ObjectId>,
) -> Option<DesiredGate> {
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
            "resources in group `{group}` are not guarded between the removal of {object} and the start of its successor"
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
    // A gate of an earlier run is closed again at once, because the
    // registrations it replaces may be gone. Any other gate is closed before
    // the first deletion.
    let stages = unregistered.iter().map(|step| &draft.steps[step.0].stage);
    let first = stages.min().filter(|_| journaled.is_none());
    let after = unregistered
        .iter()
        .map(|step| &draft.steps[step.0])
        .filter(|step| Some(&step.stage) == first)
        .flat_map(|step| &step.needs)
        .map(|edge| (edge.from, edge.state))
        .collect();
    Some(DesiredGate {
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

/// Returns whether a group contains custom resources. Closing a built-in group
/// to all users would do more harm than good.
fn is_custom(group: &str) -> bool {
    group.contains('.') && !group.contains('*') && !group.ends_with(".k8s.io")
}

/// Returns the resources that a gate of an earlier run closed.
fn still_closed(journaled: &Journaled) -> Vec<Closed> {
    journaled.gate().map(|gate| gate.closed).unwrap_or_default()
}

/// Returns the API groups of aggregated API servers, which evaluate no
/// admission policies, with their APIServices.
fn aggregated(ctx: &Ctx<'_>) -> BTreeMap<String, ObjectId> {
    let registered = ctx.observed.registrations.iter().map(|one| &one.id);
    let registered = registered
        .filter(|id| id.is("apiregistration.k8s.io", "APIService"))
        // The name of an APIService is `<version>.<group>`.
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
        "gate {}: group {group} is served behind {by}, whose server does not evaluate admission policies",
        rule.name
    );
    Finding::error(Kind::Repository, "gate-of-aggregated-api", message)
        .at(rule.origin.clone())
        .hint("a gate can only close groups of custom resources; remove this group from it")
}

/// Records a gate, with the step that closes it.
pub(super) fn close(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    one: &DesiredGate,
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

/// Makes lifts of gates wait for the backends of the webhooks that the gates
/// replaced, because a webhook may exist before its endpoints. Backends of
/// later stages are not awaited. Each wait comes after `after`.
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
                let reason = "a gate replaces the webhooks behind it until it answers";
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

/// Adds waits for the webhooks that pods register for a Service, once it
/// answers. A gate that is lifted after verify does not need them, because
/// verify has the same waits.
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
        let reason = format!("a gate replaces the {} until it is registered", kind.kind);
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

/// Returns the Services of webhooks that guard the closed resources. Shipped
/// webhooks are matched by their rules; those that pods register always count.
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

/// Builds the condition that a gate is in force, or no longer in force.
pub(super) fn probed(ctx: &Ctx<'_>, policy: &ObjectId, denied: bool) -> Until {
    Until::Probe {
        object: probe(policy, ctx.desired.store.namespace()),
        denied,
        settle: SETTLE,
    }
}

/// Returns whether a step makes or reverts a temporary change.
pub(super) fn is_temporary(step: &Step) -> bool {
    matches!(step.op, Op::Set { .. } | Op::Close { .. } | Op::Lift)
}
