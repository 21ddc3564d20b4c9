//! Drops waits without `--wait`, unless another step needs the readiness.

use std::collections::BTreeSet;

use super::draft::Ctx;
use super::model::{Need, Op, StepId, Until};
use super::phases::Bracketed;

/// Removes the readiness condition of steps that no other step needs ready.
/// Deletions are always awaited, because their end confirms them.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Bracketed) {
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
