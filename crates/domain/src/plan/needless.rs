//! Without `--wait`, nothing is waited for that no other step needs ready.

use std::collections::BTreeSet;

use super::draft::{Ctx, Draft};
use super::model::{Need, Op, StepId, Until};

/// Takes the wait for readiness off the steps whose readiness nobody needs.
/// The end of a deletion is awaited always: it is what confirms it.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Draft) {
    if ctx.policy.wait {
        return;
    }
    let needed: BTreeSet<StepId> = draft
        .steps
        .iter()
        .flat_map(|step| &step.needs)
        .filter(|edge| edge.state == Need::Ready)
        .map(|edge| edge.from)
        .collect();
    for step in &mut draft.steps {
        let applies = matches!(step.op, Op::Apply { .. });
        let awaited = matches!(step.until, Some(Until::Ready { .. }));
        if applies && awaited && !needed.contains(&step.id) {
            step.until = None;
        }
    }
}
