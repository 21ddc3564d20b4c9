//! Workloads come after the definitions of their release: which of them serves a
//! kind is in no manifest, and one that asks for what its definition does not have
//! yet goes wrong. It is enough that a definition is written: it may be accepted
//! only when the workload that converts its objects answers.

use std::collections::BTreeMap;

use super::dependencies::{Dependency, ancestors};
use super::reverse::{is_served, is_workload};
use crate::definition::is_definition;
use crate::object::ObjectId;
use crate::plan::draft::{Ctx, Draft};
use crate::plan::model::{Direction, EdgeReason, Need, StepId};

/// Adds what workloads need of definitions, except of one that itself needs the
/// workload, or that the bundle wants in a later stage. On the way back the present
/// definitions serve both versions and go last; only one that serves more comes first.
pub(super) fn before_workloads<'a>(
    ctx: &Ctx<'a>,
    direction: Direction,
    found: &mut Vec<Dependency<'a>>,
) {
    let all = ctx.manifests.keys().copied();
    let (definitions, others): (Vec<&'a ObjectId>, Vec<&'a ObjectId>) =
        all.partition(|id| is_definition(id));
    let mut needs: BTreeMap<&ObjectId, Vec<&ObjectId>> = BTreeMap::new();
    for Dependency { from, to, .. } in found.iter() {
        needs.entry(to).or_default().push(from);
    }
    for from in definitions {
        if direction == Direction::Reverse && is_served(ctx, from) {
            continue;
        }
        let before = ancestors(from, &needs);
        let stage = ctx.stage_of(from);
        for &to in &others {
            if !is_workload(ctx, to) || before.contains(to) || ctx.stage_of(to) < stage {
                continue;
            }
            // Known to the next definition too, or two could close a circle.
            needs.entry(to).or_default().push(from);
            found.push(Dependency {
                from,
                to,
                need: Need::Applied,
                why: EdgeReason::Operator,
            });
        }
    }
}

/// The first step that applies a definition: what its webhook has to convert comes
/// in a later one, when the workload answers.
pub(super) fn written_by(draft: &Draft, step: StepId) -> StepId {
    let (mut first, mut at) = (step, step);
    loop {
        let current = &draft.steps[at.0];
        if current.op.applies() {
            first = at;
        }
        let mut needs = current.needs.iter();
        match needs.find(|edge| edge.why == EdgeReason::SameObject) {
            Some(edge) => at = edge.from,
            None => return first,
        }
    }
}
