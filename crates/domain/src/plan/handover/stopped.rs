//! A move that a former run did not bring to its end: what is known of it,
//! whatever that run deleted already.

use std::collections::BTreeSet;

use super::{NAME, Place};
use crate::gate::is_policy;
use crate::object::ServiceRef;
use crate::overlay::OnFailure;
use crate::plan::draft::{Ctx, Draft};

/// From which namespace to which a former run moved, and back: what it emptied
/// names both places. Where it emptied nothing yet, or what it emptied runs again,
/// its gate still says that the pods behind Services that go registered
/// themselves; so does the bundle, where there is nothing that a gate may close.
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
    let is_closed = is_closed(ctx);
    for service in &draft.leaving {
        if is_closed || (is_unfinished(ctx) && registers(ctx, service)) {
            found.extend(super::taken_over(ctx, service));
        }
    }
    found
}

/// Whether a former run closed the gate of a move and did not lift it. One that
/// the bundle declares says nothing about moves.
fn is_closed(ctx: &Ctx<'_>) -> bool {
    let mut rules = ctx.sequence.gates.iter();
    let mut left = ctx.observed.journal.overlays.iter();
    rules.all(|rule| rule.name != NAME)
        && left.any(|(id, journaled)| id.name() == NAME && is_policy(&journaled.object))
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
