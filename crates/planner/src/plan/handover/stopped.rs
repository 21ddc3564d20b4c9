//! Moves that an earlier run did not finish, reconstructed from the journal.

use std::collections::BTreeSet;

use super::{NAME, Place, has_pods, start_again, unregistered};
use crate::observe::{Listing, ListingKey};
use crate::plan::{
    draft::{Ctx, Draft},
    model::{Action, EdgeReason, Need, Op, StepId},
    phases::Ordered,
    verify::services,
};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{ObjectId, ServiceRef};
use pleach_state::inventory::Attempt;
use pleach_state::overlay::OnFailure;

/// Returns the source and target namespaces of unfinished moves, in both
/// directions. Journaled overlays of emptied workloads name both. Otherwise the
/// journal still lists the Services with which pods had registered. The gate of
/// the move and the declared runtime objects confirm such registrations.
pub(super) fn begun(ctx: &Ctx<'_>, draft: &Ordered) -> BTreeSet<(Place, Place)> {
    let mut found = BTreeSet::new();
    for (id, journaled) in &ctx.observed.journal.overlays {
        if let OnFailure::UndoUnless { ready } = &journaled.on_failure
            && id.name() == NAME
        {
            let (old, new) = (&journaled.object.namespace, &ready.namespace);
            found.insert((old.clone(), new.clone()));
            found.insert((new.clone(), old.clone()));
        }
    }
    let is_closed = closed(ctx).is_some();
    let unregistered = &ctx.observed.journal.unregistered;
    for service in &draft.decided().leaving {
        let is_known = unregistered.iter().any(|one| one.name == service.name);
        if is_known || is_closed || (is_unfinished(ctx) && registers(ctx, service)) {
            found.extend(super::recreated_in(ctx, service));
        }
    }
    found
}

/// Returns the gate of a move that an earlier run closed and did not lift. A
/// gate of this name that the bundle declares is unrelated to moves.
fn closed<'a>(ctx: &Ctx<'a>) -> Option<&'a ObjectId> {
    let mut rules = ctx.sequence.gates.iter();
    if rules.any(|rule| rule.name == NAME) {
        return None;
    }
    let observed = ctx.observed;
    let mut left = observed.journal.overlays.iter();
    let gate = left.find(|(id, journaled)| id.name() == NAME && journaled.is_gate());
    gate.map(|(_, journaled)| &journaled.object)
}

/// Returns whether an earlier run started a change that did not finish.
fn is_unfinished(ctx: &Ctx<'_>) -> bool {
    let record = ctx.observed.installed.as_ref();
    record.is_some_and(|record| record.applying.is_some())
}

/// Returns whether the bundle declares that pods register with a Service of
/// this name.
fn registers(ctx: &Ctx<'_>, service: &ServiceRef) -> bool {
    let mut objects = ctx.desired.runtime_objects.iter();
    objects.any(|one| !one.optional && one.service.as_ref() == Some(&service.name))
}

/// Warns about registrations that an earlier run deleted and that the bundle
/// does not declare, because no step can wait for them.
pub(super) fn report_unknown(ctx: &Ctx<'_>, draft: &mut Draft) {
    let Some(gate) = closed(ctx) else { return };
    let mut objects = ctx.desired.runtime_objects.iter();
    let is_named = objects.any(|one| one.service.is_some());
    if is_named || !is_unfinished(ctx) || !unregistered(draft).is_empty() {
        return;
    }
    let message = "a previous run deleted registrations of pods, and the bundle does not declare them: the gate is lifted when all objects are ready, whether the pods registered again or not";
    let hint = "declare them in `runtimeObjects` of the bundle; pods that keep running register only after a restart";
    let finding = Finding::warning(Kind::Cluster, "successor-undeclared", message);
    draft.findings.push(finding.on(gate.clone()).hint(hint));
}

/// Restarts unchanged workloads that should have registered and have not,
/// because an earlier run deleted their registrations. New and emptied
/// workloads register without a restart.
pub(super) fn restart(ctx: &Ctx<'_>, draft: &mut Draft, emptied: &[(ObjectId, StepId)]) {
    let backends: BTreeSet<&ObjectId> = silent(ctx)
        .iter()
        .flat_map(|service| ctx.backends(service))
        .filter(|id| has_pods(id) && draft.action(id) == Some(Action::Unchanged))
        .filter(|id| {
            let mut left = ctx.observed.journal.overlays_of(id);
            left.all(|(overlay, _)| overlay.name() != NAME)
        })
        .filter(|id| {
            let restarts = |op: &Op| matches!(op, Op::Restart { .. });
            let mut steps = draft.steps.iter();
            steps.all(|step| step.object != **id || !restarts(&step.op))
        })
        .collect();
    let gone: Vec<StepId> = unregistered(draft).iter().map(|one| one.step).collect();
    for id in backends {
        let Some(live) = ctx.observed.live_meta(id) else {
            continue;
        };
        let reason = "a previous run deleted the objects that its pods registered at startup";
        let mark = live.resource_version.clone();
        let step = start_again(ctx, draft, (id, live), mark, reason);
        for &gone in &gone {
            draft.edge(gone, Need::Absent, step, EdgeReason::Leftover);
        }
        for (other, set) in emptied {
            if other.group_kind() == id.group_kind() && other.name == id.name {
                draft.edge(*set, Need::Ready, step, EdgeReason::Leftover);
            }
        }
    }
}

/// Returns the Services that should have registrations and have none, after git
/// went back from an unfinished change. If the change continues instead, its
/// workloads start after the old registrations are gone and register then.
fn silent(ctx: &Ctx<'_>) -> BTreeSet<ServiceRef> {
    let observed = ctx.observed;
    let mut found = BTreeSet::new();
    if !is_unfinished(ctx) || !is_turned(ctx) {
        return found;
    }
    let objects = ctx.desired.runtime_objects.iter();
    for object in objects.filter(|one| !one.optional) {
        let (Some(kind), Some(name)) = (object.group_kind(), object.service.as_deref()) else {
            continue;
        };
        let key = ListingKey {
            kind: kind.clone(),
            namespace: None,
        };
        // An unlisted registration may exist.
        if observed.listings.get(&key) != Some(&Listing::Complete) {
            continue;
        }
        let is_there = |service: &ServiceRef| {
            let mut registrations = observed.registrations.iter();
            registrations.any(|one| one.id.group_kind() == kind && one.services.contains(service))
        };
        let services = services(ctx, name).into_iter();
        found.extend(services.filter(|service| !is_there(service)));
    }
    let is_there = |service: &ServiceRef| {
        let mut registrations = observed.registrations.iter();
        registrations.any(|one| one.services.contains(service))
    };
    let removed = observed.journal.unregistered.iter();
    let removed = removed.filter(|service| ctx.is_desired(&service.id()) && !is_there(service));
    found.extend(removed.cloned());
    found
}

/// Returns whether git wants the installed version, or another one than the
/// unfinished change.
fn is_turned(ctx: &Ctx<'_>) -> bool {
    let Some(record) = &ctx.observed.installed else {
        return false;
    };
    let is_desired = |attempt: &Attempt| ctx.desired.is_of(attempt);
    record.installed.as_ref().is_some_and(is_desired)
        || record.applying.as_ref().is_some_and(|one| !is_desired(one))
}
