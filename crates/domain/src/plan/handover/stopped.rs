//! A move that a former run did not bring to its end: what is known of it,
//! whatever that run deleted already.

use std::collections::BTreeSet;

use super::{NAME, Place, has_pods, start_again, unregistered};
use crate::finding::{Finding, Kind};
use crate::inventory::Attempt;
use crate::object::{ObjectId, ServiceRef};
use crate::observe::{Listing, ListingKey};
use crate::overlay::OnFailure;
use crate::plan::draft::{Ctx, Draft};
use crate::plan::model::{Action, EdgeReason, Need, Op, StepId};
use crate::plan::verify::services;

/// From which namespace to which a former run moved, and back: what it emptied
/// names both places. Where it emptied nothing yet, or what it emptied runs again,
/// the journal still has the Services with which pods had registered themselves.
/// Its gate, and what the bundle declares, say that there are such.
pub(super) fn begun(ctx: &Ctx<'_>, draft: &Draft) -> BTreeSet<(Place, Place)> {
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
    for service in &draft.leaving {
        let is_known = unregistered.iter().any(|one| one.name == service.name);
        if is_known || is_closed || (is_unfinished(ctx) && registers(ctx, service)) {
            found.extend(super::taken_over(ctx, service));
        }
    }
    found
}

/// The gate of a move that a former run closed and did not lift. One that the
/// bundle declares says nothing about moves.
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

/// Whether a former run began a change that did not converge.
fn is_unfinished(ctx: &Ctx<'_>) -> bool {
    let record = ctx.observed.installed.as_ref();
    record.is_some_and(|record| record.applying.is_some())
}

/// Whether the bundle says that pods register themselves with a Service of this
/// name.
fn registers(ctx: &Ctx<'_>, service: &ServiceRef) -> bool {
    let mut objects = ctx.desired.runtime_objects.iter();
    objects.any(|one| !one.optional && one.service.as_ref() == Some(&service.name))
}

/// What a former run removed, and is not there to be seen any more, is waited for
/// only where the bundle names it.
pub(super) fn say_unknown(ctx: &Ctx<'_>, draft: &mut Draft) {
    let Some(gate) = closed(ctx) else { return };
    let mut objects = ctx.desired.runtime_objects.iter();
    let is_named = objects.any(|one| one.service.is_some());
    if is_named || !is_unfinished(ctx) || !unregistered(draft).is_empty() {
        return;
    }
    let message = "a former run removed what pods registered, and nothing says what that was: the gate is lifted when everything is ready, whether they registered again or not";
    let hint = "name it in `runtimeObjects` of the bundle; pods that run on as they are register only after a restart";
    let finding = Finding::warning(Kind::Cluster, "successor-undeclared", message);
    draft.findings.push(finding.on(gate.clone()).hint(hint));
}

/// Starts again what is to register itself, has not, and runs on as it is: what
/// its pods registered when they started went with a former run. What comes anew,
/// or was emptied, registers without that.
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
        let reason = "a former run removed what its pods registered when they started";
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

/// The Services that something is to be registered with, and nothing is, when a
/// change was stopped and git turned back from it. On the way on, what registers
/// starts after the end of what was registered before.
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
        // What could not be listed may be there.
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

/// Whether git asks for what is installed, or for something else than was begun.
fn is_turned(ctx: &Ctx<'_>) -> bool {
    let Some(record) = &ctx.observed.installed else {
        return false;
    };
    let is_wanted = |attempt: &Attempt| ctx.desired.is_of(attempt);
    record.installed.as_ref().is_some_and(is_wanted)
        || record.applying.as_ref().is_some_and(|one| !is_wanted(one))
}
