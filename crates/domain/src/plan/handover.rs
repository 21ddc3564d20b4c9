//! A product that moves to another namespace: who runs until when.
//!
//! What runs in the former place is emptied before what takes over from it
//! starts, in the stage of its successor: a Deployment gets no replicas, a DaemonSet
//! a node selector that no node has. That is a temporary change until it is deleted, and taken back
//! when the change fails before the successor is ready. A product moves where
//! its bundle says so, and where its pods registered themselves, as they would
//! stand in the way of their successors; a move that a former run began goes on.
//! What answers behind a registration of the release itself goes on until that
//! points elsewhere. What another release hands over is emptied in the same way
//! where it runs in another namespace.

mod copies;
mod former;
mod stopped;
mod undeclared;

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::Grant;
use super::changes::ready;
use super::draft::{Ctx, Draft};
use super::leftover::needs_of;
use super::model::{
    Action, Desired, EdgeReason, Need, NonSecret, Op, Precondition, Step, StepId, Until,
};
use super::overlays::{Begin, End, Progress, Wanted};
use crate::finding::{Finding, Kind};
use crate::inventory::{EntryState, Installed};
use crate::object::{Manifest, ObjectId, ServiceRef, annotations};
use crate::observe::{Former, Live, LiveMeta, Observed};
use crate::order::StageName;
use crate::overlay::{OnFailure, OverlayId};
use former::is_of_former;
pub(super) use former::succeed;
pub(super) use undeclared::waits as undeclared_waits;

/// What the temporary changes of a handover are called, and its gate.
pub(super) const NAME: &str = "handover";

/// Workloads whose pods stay until somebody takes them away.
const WORKLOADS: [&str; 3] = ["Deployment", "StatefulSet", "DaemonSet"];

/// A label that no node has.
const NOWHERE: &str = "pleach.dev/emptied";

/// How long what a registration pointed at goes on when it points elsewhere:
/// other API servers hear of it later.
const LINGER: SignedDuration = SignedDuration::from_secs(2);

impl Desired {
    /// Whether the members have to be read of the release whose objects are
    /// handed over.
    pub fn needs_former(&self, record: Option<&Installed>) -> bool {
        self.terms.former_is_given_up && Progress::of(self, record).unfinished
    }

    /// Workloads of a former place that have to be read: members that something
    /// takes over from; where that is so of a release that hands its objects over,
    /// everything that it runs there, and its Services; and, where nothing is
    /// recorded, what runs in a namespace that the bundle says it comes from.
    pub fn counterparts(&self, observed: &Observed) -> BTreeSet<ObjectId> {
        if !Progress::of(self, observed.installed.as_ref()).unfinished {
            return BTreeSet::new();
        }
        let inventory = &observed.inventory;
        let wanted: BTreeSet<&ObjectId> = self
            .manifests
            .iter()
            .map(Manifest::id)
            .filter(|id| has_pods(id))
            .collect();
        let names: BTreeSet<(&str, &str)> = wanted
            .iter()
            .map(|id| (id.kind.as_str(), id.name.as_str()))
            .collect();
        let comes = |id: &ObjectId| names.contains(&(id.kind.as_str(), id.name.as_str()));
        let former = observed.former.iter().flat_map(Former::applied);
        let former: Vec<&ObjectId> = former.map(|(id, _)| id).collect();
        let places: BTreeSet<&Option<String>> = former
            .iter()
            .filter(|id| has_pods(id) && comes(id) && !wanted.contains(*id))
            .map(|id| &id.namespace)
            .collect();
        let former = former
            .into_iter()
            .filter(|id| places.contains(&id.namespace) && (has_pods(id) || id.is("", "Service")));
        let leaving = inventory.entries.iter();
        let leaving = leaving
            .filter(|(id, entry)| entry.state == EntryState::Applied && has_pods(id))
            .filter(|(id, _)| comes(id))
            .map(|(id, _)| id.clone());
        let unknown = self
            .sequence
            .moves
            .iter()
            .filter(|_| inventory.entries.is_empty());
        let unknown = unknown.flat_map(|rule| {
            let to = Some(rule.to.as_str());
            let come = wanted
                .iter()
                .filter(move |id| id.namespace.as_deref() == to);
            come.map(|id| id.in_namespace(&rule.from))
        });
        leaving
            .chain(unknown)
            .chain(former.cloned())
            .filter(|id| !wanted.contains(id))
            .collect()
    }
}

/// Whether it is a workload that can be left without pods, and started again.
fn has_pods(id: &ObjectId) -> bool {
    id.group == "apps" && WORKLOADS.contains(&id.kind.as_str()) && id.namespace.is_some()
}

/// Refuses a move of what nobody recorded, copies what users keep, and lets a
/// registration settle that gets another backend. Says what nobody waits for, or not long.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Draft) {
    refuse_unrecorded(ctx, draft);
    copies::run(ctx, draft);
    undeclared::say(ctx, draft);
    stopped::say_unknown(ctx, draft);
    for id in retargeted(ctx, draft) {
        if let Some(step) = draft.done_by.get(&id).copied().filter(|_| ctx.policy.wait) {
            draft.at(step).until = Some(Until::Ready {
                stable_for: LINGER,
                optional: false,
            });
        }
    }
}

/// What runs in the former place would be neither stopped nor removed.
fn refuse_unrecorded(ctx: &Ctx<'_>, draft: &mut Draft) {
    let observed = ctx.observed;
    if !observed.inventory.entries.is_empty() || ctx.desired.terms.moved_from.is_some() {
        return;
    }
    for rule in &ctx.desired.sequence.moves {
        let from = Some(rule.from.as_str());
        let comes = |id: &ObjectId| {
            let mut named = ctx.named(&id.kind, &id.name).iter();
            named.any(|new| new.group == id.group && new.namespace.as_ref() == Some(&rule.to))
        };
        let there = |id: &&ObjectId| has_pods(id) && id.namespace.as_deref() == from && comes(id);
        if let Some(id) = observed.targets.keys().find(there) {
            let message = format!(
                "the bundle moves from {} to {}, and {id} runs there, but nothing of it is recorded",
                rule.from, rule.to
            );
            let finding = Finding::error(Kind::Policy, "unrecorded-move", message)
                .at(rule.origin.clone())
                .on(id.clone())
                .hint("adopt the version that is installed first: pin it, with `adopt` of who applied it; then pin this one");
            draft.findings.push(finding);
        }
    }
}

/// Registrations of the release that point at a Service which goes.
fn retargeted(ctx: &Ctx<'_>, draft: &Draft) -> Vec<ObjectId> {
    let registrations = ctx.observed.registrations.iter();
    registrations
        .filter(|one| ctx.is_desired(&one.id))
        .filter(|one| {
            let action = draft.action(&one.id);
            let mut services = one.services.iter();
            match action {
                Some(Action::Update) => services.any(|it| draft.leaving.contains(it)),
                Some(Action::Adopt) => services.any(|it| is_of_former(ctx, it)),
                _ => false,
            }
        })
        .map(|one| one.id.clone())
        .collect()
}

/// A registration that goes because its Service does.
pub(super) struct Unregistered {
    pub(super) step: StepId,
    object: ObjectId,
    uid: String,
    service: ServiceRef,
}

/// The registrations that this plan removes before the workloads come.
pub(super) fn unregistered(draft: &Draft) -> Vec<Unregistered> {
    let registered = |step: &Step| match &step.op {
        Op::Delete(deletion) => match deletion.because() {
            Grant::Registration { service } => Some(Unregistered {
                step: step.id,
                object: step.object.clone(),
                uid: deletion.uid().to_owned(),
                service: service.clone(),
            }),
            _ => None,
        },
        _ => None,
    };
    draft.steps.iter().filter_map(registered).collect()
}

/// The workloads that are emptied, each in the stage of its successor, as temporary
/// changes until they are deleted.
pub(super) fn wanted<'a>(ctx: &Ctx<'a>, draft: &Draft) -> Vec<Wanted<'a>> {
    let unregistered = unregistered(draft);
    let mut all = Vec::new();
    for (old, new) in passing(ctx, draft, &unregistered) {
        let Some(live) = ctx.observed.targets.get(&old) else {
            continue;
        };
        let patch = emptied(&old);
        let own: Vec<StepId> = draft
            .steps
            .iter()
            .filter(|step| step.object == new && !matches!(step.op, Op::Wait))
            .map(|step| step.id)
            .collect();
        let stages = own.iter().map(|step| draft.steps[step.0].stage.clone());
        let stage = stages.min().unwrap_or_else(|| ctx.stage_of(&new));
        // A registration that is removed in a later stage is answered until then.
        let before = unregistered
            .iter()
            .filter(|one| draft.steps[one.step.0].stage <= stage);
        let mut after = needs_of(draft, &own);
        after.extend(before.map(|one| (one.step, Need::Absent)));
        all.push(Wanted {
            id: OverlayId::new(NAME, &old, &patch),
            live,
            patch: NonSecret(patch),
            from: stage,
            begin: Begin::Steps { after, before: own },
            end: End::Stage(StageName::Ungate),
            on_failure: OnFailure::UndoUnless { ready: new.clone() },
            reason: format!("it is emptied before {new} takes over"),
            ready: Some(Until::Emptied { pods: pods(live) }),
            deadline: None,
            object: old,
        });
    }
    all
}

fn emptied(workload: &ObjectId) -> Value {
    if workload.kind == "DaemonSet" {
        json!({"spec": {"template": {"spec": {"nodeSelector": {NOWHERE: "true"}}}}})
    } else {
        json!({"spec": {"replicas": 0}})
    }
}

/// The labels of a workload's pods, by its selector.
pub(super) fn pods(live: &Live) -> BTreeMap<String, String> {
    texts(&live.value()["spec"]["selector"]["matchLabels"])
}

pub(super) fn texts(map: &Value) -> BTreeMap<String, String> {
    let map = map.as_object().into_iter().flatten();
    map.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// Workloads that go, each with what takes over from it.
fn passing(
    ctx: &Ctx<'_>,
    draft: &Draft,
    unregistered: &[Unregistered],
) -> Vec<(ObjectId, ObjectId)> {
    let there = moves(ctx, draft, unregistered);
    let back: BTreeSet<(Place, Place)> = declared(ctx).map(|(from, to)| (to, from)).collect();
    let asked: Vec<&ServiceRef> = ctx
        .observed
        .registrations
        .iter()
        .filter(|one| ctx.is_desired(&one.id))
        .flat_map(|one| &one.services)
        .filter(|service| draft.leaving.contains(service) || is_of_former(ctx, service))
        .collect();
    let former = ctx.observed.former.as_ref();
    let is_handed_over = |old: &ObjectId| {
        let members = &ctx.observed.inventory.entries;
        former.is_some_and(|former| former.inventory.entries.contains_key(old))
            && !members.contains_key(old)
    };
    let pruned = draft.pruned.iter().map(|one| &one.id);
    pruned
        .filter(|old| has_pods(old))
        .filter_map(|old| {
            let moved_by = |moves: &BTreeSet<(Place, Place)>| {
                let mut named = ctx.named(&old.kind, &old.name).iter();
                named.find(|new| {
                    let pair = (old.namespace.clone(), new.namespace.clone());
                    new.group == old.group && (moves.contains(&pair) || is_handed_over(old))
                })
            };
            let new = moved_by(&there).or_else(|| moved_by(&back))?;
            Some((old.clone(), (*new).clone()))
        })
        // What is not known to be of no use to them goes on for them.
        .filter(|(old, _)| {
            let mut asked = asked.iter();
            !asked.any(|service| is_behind(ctx, service, old).unwrap_or(true))
        })
        .collect()
}

/// A namespace.
type Place = Option<String>;

/// From which namespace to which the product moves: by its bundle, with the
/// Services that its pods registered themselves with, or as a former run began it.
fn moves(ctx: &Ctx<'_>, draft: &Draft, unregistered: &[Unregistered]) -> BTreeSet<(Place, Place)> {
    let found = unregistered
        .iter()
        .flat_map(|one| taken_over(ctx, &one.service));
    let begun = stopped::begun(ctx, draft);
    declared(ctx).chain(found).chain(begun).collect()
}

/// The moves that the bundle declares.
fn declared(ctx: &Ctx<'_>) -> impl Iterator<Item = (Place, Place)> {
    let moves = ctx.desired.sequence.moves.iter();
    moves.map(|rule| (Some(rule.from.clone()), Some(rule.to.clone())))
}

/// The namespaces in which a Service comes that goes in another one, each with
/// that one before it.
fn taken_over(ctx: &Ctx<'_>, service: &ServiceRef) -> Vec<(Place, Place)> {
    let come = ctx.named("Service", &service.name).iter();
    come.filter(|new| new.group.is_empty())
        .map(|new| (Some(service.namespace.clone()), new.namespace.clone()))
        .collect()
}

/// The workloads that take over from the pods behind a Service that is removed: those
/// behind a Service of the same name, and those with the names of the workloads that
/// are deleted and may be behind it.
pub(super) fn successors<'a>(
    ctx: &Ctx<'a>,
    draft: &Draft,
    service: &ServiceRef,
) -> BTreeSet<&'a ObjectId> {
    let come = ctx.named("Service", &service.name).iter();
    let come = come.filter_map(|service| super::prune::service_ref(service));
    let backends = come.flat_map(|service| ctx.backends(&service));
    let leaving = draft.pruned.iter().map(|one| &one.id);
    let leaving =
        leaving.filter(|old| has_pods(old) && is_behind(ctx, service, old) != Some(false));
    let named = leaving.flat_map(|old| {
        let named = ctx.named(&old.kind, &old.name).iter().copied();
        named.filter(|new| new.group == old.group)
    });
    backends.chain(named).collect()
}

/// Whether the pods of a workload of the former place are behind a Service of
/// it; none where that is not known.
fn is_behind(ctx: &Ctx<'_>, service: &ServiceRef, workload: &ObjectId) -> Option<bool> {
    if workload.namespace.as_ref() != Some(&service.namespace) {
        return Some(false);
    }
    let observed = ctx.observed;
    let id = service.id();
    let live = observed
        .full
        .get(&id)
        .or_else(|| observed.targets.get(&id))?;
    let selector = texts(&live.value()["spec"]["selector"]);
    let workload = ctx.observed.targets.get(workload)?;
    let labels = texts(&workload.value()["spec"]["template"]["metadata"]["labels"]);
    let selects = |(key, value): (&String, &String)| labels.get(key) == Some(value);
    Some(!selector.is_empty() && selector.iter().all(selects))
}

/// What takes over and is there already, after a run that did not get to its
/// end, crashed on the registrations that only now go: its pods would be tried
/// again later and later. What stays after all registers only when it starts.
pub(super) fn restart(ctx: &Ctx<'_>, draft: &mut Draft, emptied: &[(ObjectId, StepId)]) {
    for one in unregistered(draft) {
        let come = ctx.named("Service", &one.service.name).iter();
        let come = come.filter_map(|service| super::prune::service_ref(service));
        let waiting: BTreeSet<&ObjectId> = come
            .flat_map(|service| ctx.backends(&service))
            .filter(|id| has_pods(id))
            .filter(|id| draft.action(id) == Some(Action::Unchanged))
            .collect();
        for id in waiting {
            let Some(live) = ctx.observed.live_meta(id) else {
                continue;
            };
            let reason = "its pods may be crashing on the registrations that go";
            let step = start_again(ctx, draft, (id, live), one.uid.clone(), reason);
            let stage = draft.steps[step.0].stage.clone();
            draft.edge(one.step, Need::Absent, step, EdgeReason::Leftover);
            for (old, set) in emptied {
                let is_in_time = draft.steps[set.0].stage <= stage;
                if is_in_time && is_behind(ctx, &one.service, old) == Some(true) {
                    draft.edge(*set, Need::Ready, step, EdgeReason::Leftover);
                }
            }
        }
    }
    stopped::restart(ctx, draft, emptied);
}

/// Replaces the pods of a workload that runs already.
fn start_again(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    (id, live): (&ObjectId, &LiveMeta),
    mark: String,
    reason: &str,
) -> StepId {
    let key = annotations::restarted(NAME);
    let op = Op::Restart { key, mark };
    let step = draft.step(ctx, ctx.stage_of(id), id.clone(), op, reason);
    draft.at(step).require = vec![Precondition::Uid(live.uid.clone())];
    draft.at(step).until = ready(ctx, id, SignedDuration::ZERO);
    step
}

/// Whether a step replaces the pods of a successor, so that they register again.
pub(super) fn registers_again(step: &Step) -> bool {
    matches!(&step.op, Op::Restart { key, .. } if *key == annotations::restarted(NAME))
}

/// Once the pods that registered are gone, nothing of what they registered may
/// be there again when their successors start.
pub(super) fn look_again(ctx: &Ctx<'_>, draft: &mut Draft, emptied: &[(ObjectId, StepId)]) {
    for one in unregistered(draft) {
        let behind: Vec<&(ObjectId, StepId)> = emptied
            .iter()
            .filter(|(old, _)| is_behind(ctx, &one.service, old) == Some(true))
            .collect();
        let come: Vec<StepId> = draft
            .steps
            .iter()
            .filter(|step| {
                step.op.applies() && step.object.namespace != Some(one.service.namespace.clone())
            })
            .filter(|step| draft.action(&step.object) == Some(Action::Create))
            .filter(|step| {
                let same = |old: &ObjectId| {
                    old.group_kind() == step.object.group_kind() && old.name == step.object.name
                };
                behind.iter().any(|(old, _)| same(old))
            })
            .map(|step| step.id)
            .collect();
        // The pods that registered it are all gone in the last of the stages.
        let stages = behind
            .iter()
            .map(|(_, set)| draft.steps[set.0].stage.clone());
        let Some(stage) = stages.max() else {
            continue;
        };
        let is_in_time = |step: &StepId| draft.steps[step.0].stage >= stage;
        let come: Vec<StepId> = come.into_iter().filter(is_in_time).collect();
        if come.is_empty() {
            continue;
        }
        let until = Some(Until::Absent { pods: None });
        let reason = "the pods that registered it are gone: it must not have come back";
        let wait = draft.wait(ctx, stage, one.object.clone(), until, reason);
        draft.edge(one.step, Need::Absent, wait, EdgeReason::SameObject);
        for (_, set) in behind {
            draft.edge(*set, Need::Ready, wait, EdgeReason::Leftover);
        }
        for step in come {
            draft.edge(wait, Need::Ready, step, EdgeReason::Leftover);
        }
    }
}
