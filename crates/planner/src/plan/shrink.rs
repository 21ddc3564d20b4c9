//! Cleanup at the end of a change, for objects that only the previous version
//! needed.

use super::draft::{Ctx, Draft};
use super::model::{EdgeReason, Need, Op, StepId};
use pleach_model::order::StageName;

/// Orders steps after the `verified` barrier and after all pruning.
pub(super) fn after_everything(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    verified: StepId,
    steps: &[StepId],
    reason: &str,
) {
    let removals: Vec<(StepId, Need)> = draft
        .steps
        .iter()
        .filter(|step| step.stage == StageName::Prune && matches!(step.op, Op::Delete(_)))
        .map(|step| (step.id, Need::Absent))
        .collect();
    let why = EdgeReason::Barrier;
    for &step in steps {
        draft.edge(verified, Need::Applied, step, why.clone());
    }
    draft.all_before(ctx, StageName::Shrink, &removals, steps, &why, reason);
}
