//! Moves of workloads to another namespace.
//!
//! Old and new workloads must not run at the same time. The old workload is
//! emptied in the stage of its successor, before that starts: a Deployment is
//! scaled to zero, a DaemonSet gets a node selector that matches no node. This
//! is a temporary change until the workload is deleted. It is reverted if the
//! plan fails before the successor is ready.
//!
//! A move is recognized in three cases: the bundle declares it, its pods
//! registered webhooks or APIs that would block their successors, or an earlier
//! run started it. The backend of a registration that the release itself
//! contains keeps running until the registration points elsewhere. Workloads
//! that another release hands over from another namespace are emptied in the
//! same way.

mod copies;
mod previous;
mod stopped;
mod undeclared;

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::Grant;
use super::changes::ready;
use super::draft::{Ctx, Draft};
use super::leftover::needs_of;
use super::model::{Action, Desired, EdgeReason, Need, Op, Precondition, Step, StepId, Until};
use super::overlays::{Begin, DesiredOverlay, End, Progress};
use super::phases::Ordered;
use crate::observe::{Observed, PreviousRelease};
pub use copies::is_copied;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Manifest, NonSecret, ObjectId, ServiceRef, annotations};
use pleach_model::order::StageName;
use pleach_state::inventory::{EntryState, Installed};
use pleach_state::live::{Live, LiveMeta};
use pleach_state::overlay::{OnFailure, OverlayId};
use previous::is_of_previous_release;
pub(super) use previous::succeed;
pub(super) use undeclared::waits as undeclared_waits;

/// Name of the temporary changes of a handover and of its gate.
pub(super) const NAME: &str = "handover";

/// Kinds of workloads with long-running pods.
const WORKLOADS: [&str; 3] = ["Deployment", "StatefulSet", "DaemonSet"];

/// Node label that no node has.
const NOWHERE: &str = "pleach.dev/emptied";

/// Time for which a previous backend keeps running after its registration
/// changed, because other API servers notice the change later.
const LINGER: SignedDuration = SignedDuration::from_secs(2);

impl Desired {
    /// Returns whether the members of the release that hands its objects over
    /// must be read.
    pub fn needs_previous(&self, record: Option<&Installed>) -> bool {
        self.terms.previous_is_given_up && Progress::of(self, record).unfinished
    }

    /// Returns workloads in a previous namespace that must be read. These are
    /// members with a successor; for a release that hands its objects over,
    /// also all its workloads in that namespace and its Services; and without a
    /// record, the workloads in a namespace from which the bundle moves.
    pub fn counterparts(&self, observed: &Observed) -> BTreeSet<ObjectId> {
        if !Progress::of(self, observed.installed.as_ref()).unfinished {
            return BTreeSet::new();
        }
        let inventory = &observed.inventory;
        let desired: BTreeSet<&ObjectId> = self
            .manifests
            .iter()
            .map(Manifest::id)
            .filter(|id| has_pods(id))
            .collect();
        let names: BTreeSet<(&str, &str)> = desired
            .iter()
            .map(|id| (id.kind.as_str(), id.name.as_str()))
            .collect();
        let comes = |id: &ObjectId| names.contains(&(id.kind.as_str(), id.name.as_str()));
        let previous = observed.previous.iter().flat_map(PreviousRelease::applied);
        let previous: Vec<&ObjectId> = previous.map(|(id, _)| id).collect();
        let places: BTreeSet<&Option<String>> = previous
            .iter()
            .filter(|id| has_pods(id) && comes(id) && !desired.contains(*id))
            .map(|id| &id.namespace)
            .collect();
        let previous = previous
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
            let come = desired
                .iter()
                .filter(move |id| id.namespace.as_deref() == to);
            come.map(|id| id.in_namespace(&rule.from))
        });
        leaving
            .chain(unknown)
            .chain(previous.cloned())
            .filter(|id| !desired.contains(id))
            .collect()
    }
}

/// Returns whether the object is a workload that can be emptied and started
/// again.
fn has_pods(id: &ObjectId) -> bool {
    id.group == "apps" && WORKLOADS.contains(&id.kind.as_str()) && id.namespace.is_some()
}

/// Refuses unrecorded moves, copies user objects, and lets retargeted
/// registrations stabilize. Reports registrations that nothing, or only a short
/// wait, waits for.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Ordered) {
    refuse_unrecorded(ctx, draft);
    copies::run(ctx, draft);
    undeclared::report(ctx, draft);
    stopped::report_unknown(ctx, draft);
    for id in retargeted(ctx, draft) {
        if let Some(step) = draft.done_by.get(&id).copied().filter(|_| ctx.policy.wait) {
            draft.at(step).until = Some(Until::Ready {
                stable_for: LINGER,
                optional: false,
            });
        }
    }
}

/// Refuses a move without a record, which would neither stop nor delete the old
/// workloads.
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
                "the bundle moves from namespace {} to {}, and {id} still runs, but the release has no record of it",
                rule.from, rule.to
            );
            let finding = Finding::error(Kind::Policy, "unrecorded-move", message)
                .at(rule.origin.clone())
                .on(id.clone())
                .hint("adopt the installed version first: pin it, with `adopt` naming the tool that applied it; then pin this version");
            draft.findings.push(finding);
        }
    }
}

/// Returns desired registrations that point at a Service which is deleted.
fn retargeted(ctx: &Ctx<'_>, draft: &Ordered) -> Vec<ObjectId> {
    let registrations = ctx.observed.registrations.iter();
    registrations
        .filter(|one| ctx.is_desired(&one.id))
        .filter(|one| {
            let action = draft.action(&one.id);
            let mut services = one.services.iter();
            match action {
                Some(Action::Update) => services.any(|it| draft.decided().leaving.contains(it)),
                Some(Action::Adopt) => services.any(|it| is_of_previous_release(ctx, it)),
                _ => false,
            }
        })
        .map(|one| one.id.clone())
        .collect()
}

/// A registration that is deleted with its Service.
pub(super) struct Unregistered {
    pub(super) step: StepId,
    object: ObjectId,
    uid: String,
    service: ServiceRef,
}

/// Returns the registrations that this plan deletes before workloads start.
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

/// Returns the workloads to empty, each in the stage of its successor, as
/// temporary changes that last until their deletion.
pub(super) fn desired_overlays<'a>(ctx: &Ctx<'a>, draft: &Ordered) -> Vec<DesiredOverlay<'a>> {
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
        // A registration that is deleted in a later stage needs its backend
        // until then.
        let before = unregistered
            .iter()
            .filter(|one| draft.steps[one.step.0].stage <= stage);
        let mut after = needs_of(draft, &own);
        after.extend(before.map(|one| (one.step, Need::Absent)));
        all.push(DesiredOverlay {
            id: OverlayId::new(NAME, &old, &patch),
            live,
            patch: NonSecret(patch),
            from: stage,
            begin: Begin::Steps { after, before: own },
            end: End::Stage(StageName::Ungate),
            on_failure: OnFailure::UndoUnless { ready: new.clone() },
            reason: format!("its pods are removed before {new} replaces it"),
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

/// Returns the pod labels of a workload, from its selector.
pub(super) fn pods(live: &Live) -> BTreeMap<String, String> {
    texts(&live.value()["spec"]["selector"]["matchLabels"])
}

pub(super) fn texts(map: &Value) -> BTreeMap<String, String> {
    let map = map.as_object().into_iter().flatten();
    map.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// Returns deleted workloads with their successors.
fn passing(
    ctx: &Ctx<'_>,
    draft: &Ordered,
    unregistered: &[Unregistered],
) -> Vec<(ObjectId, ObjectId)> {
    let there = moves(ctx, draft, unregistered);
    let back: BTreeSet<(Place, Place)> = declared(ctx).map(|(from, to)| (to, from)).collect();
    let requested: Vec<&ServiceRef> = ctx
        .observed
        .registrations
        .iter()
        .filter(|one| ctx.is_desired(&one.id))
        .flat_map(|one| &one.services)
        .filter(|service| {
            draft.decided().leaving.contains(service) || is_of_previous_release(ctx, service)
        })
        .collect();
    let previous = ctx.observed.previous.as_ref();
    let is_handed_over = |old: &ObjectId| {
        let members = &ctx.observed.inventory.entries;
        previous.is_some_and(|previous| previous.inventory.entries.contains_key(old))
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
        // An old workload that may be behind such a Service keeps running.
        .filter(|(old, _)| {
            let mut requested = requested.iter();
            !requested.any(|service| is_behind(ctx, service, old).unwrap_or(true))
        })
        .collect()
}

/// Namespace of a workload.
type Place = Option<String>;

/// Returns the source and target namespaces of moves: declared by the bundle,
/// implied by Services with which pods registered, or started by an earlier
/// run.
fn moves(
    ctx: &Ctx<'_>,
    draft: &Ordered,
    unregistered: &[Unregistered],
) -> BTreeSet<(Place, Place)> {
    let found = unregistered
        .iter()
        .flat_map(|one| recreated_in(ctx, &one.service));
    let begun = stopped::begun(ctx, draft);
    declared(ctx).chain(found).chain(begun).collect()
}

/// Returns the moves that the bundle declares.
fn declared(ctx: &Ctx<'_>) -> impl Iterator<Item = (Place, Place)> {
    let moves = ctx.desired.sequence.moves.iter();
    moves.map(|rule| (Some(rule.from.clone()), Some(rule.to.clone())))
}

/// Returns the source and target namespaces for a deleted Service that is
/// recreated in other namespaces.
fn recreated_in(ctx: &Ctx<'_>, service: &ServiceRef) -> Vec<(Place, Place)> {
    let come = ctx.named("Service", &service.name).iter();
    come.filter(|new| new.group.is_empty())
        .map(|new| (Some(service.namespace.clone()), new.namespace.clone()))
        .collect()
}

/// Returns the workloads that replace the pods behind a deleted Service. These
/// are backends of a Service of the same name, and workloads with the name of a
/// deleted workload that may be behind it.
pub(super) fn successors<'a>(
    ctx: &Ctx<'a>,
    draft: &Ordered,
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

/// Returns whether the pods of an old workload are behind a Service of its
/// namespace; `None` if unknown.
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

/// Restarts successors that exist after an interrupted run. They may be in a
/// crash backoff because of registrations that are only deleted now. Pods that
/// do not crash register only at start.
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
            let reason = "its pods may be crashing because of the deleted registrations";
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

/// Adds a step that restarts a running workload.
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

/// Returns whether a step restarts the pods of a successor, so that they
/// register again.
pub(super) fn registers_again(step: &Step) -> bool {
    matches!(&step.op, Op::Restart { key, .. } if *key == annotations::restarted(NAME))
}

/// Re-checks that registrations are absent before the successors start, once
/// the pods that made them are gone.
pub(super) fn recheck(ctx: &Ctx<'_>, draft: &mut Draft, emptied: &[(ObjectId, StepId)]) {
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
        // All pods that made the registration are gone at the end of the last
        // stage.
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
        let reason = "the pods that registered it are gone: it must still be absent";
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
