//! Workloads come after the definitions of their release: which of them serves a
//! kind is in no manifest, and one that asks for what its definition does not have
//! yet goes wrong. It is enough that a definition is written: it may be accepted
//! only when the workload that converts its objects answers.

use std::collections::BTreeMap;

use super::needs::{Dependencies, Joint, Needs};
use super::reverse::{is_served, is_workload};
use crate::definition::is_definition;
use crate::object::ObjectId;
use crate::order::StageName;
use crate::plan::draft::{Ctx, Draft};
use crate::plan::model::{Direction, EdgeReason, StepId};

/// Adds what workloads need of definitions, except of one that itself needs the
/// workload, or that the bundle wants in a later stage. On the way back the present
/// definitions serve both versions and go last; only one that serves more comes first.
pub(super) fn before_workloads<'a>(
    ctx: &Ctx<'a>,
    direction: Direction,
    found: &mut Dependencies<'a>,
) {
    let all = ctx.manifests.keys().copied();
    let (definitions, others): (Vec<&'a ObjectId>, Vec<&'a ObjectId>) =
        all.partition(|id| is_definition(id));
    let others = others.into_iter();
    let workloads: Vec<&'a ObjectId> = others.filter(|id| is_workload(ctx, id)).collect();
    if definitions.is_empty() || workloads.is_empty() {
        return;
    }
    let mut needs = Needs::of(found);
    // Definitions that the same workloads come after, by what says so.
    let mut alike: BTreeMap<(StageName, Vec<&'a ObjectId>), (usize, Joint<'a>)> = BTreeMap::new();
    for from in definitions {
        if direction == Direction::Reverse && is_served(ctx, from) {
            continue;
        }
        let before = needs.ancestors(from);
        let stage = ctx.stage_of(from);
        let needed = before.iter().copied().filter(|id| is_workload(ctx, id));
        let key = (stage.clone(), needed.collect::<Vec<_>>());
        let (position, joint) = alike.entry(key).or_insert_with(|| {
            let later = workloads.iter().copied();
            let to: Vec<&ObjectId> = later
                .filter(|id| !before.contains(id) && ctx.stage_of(id) >= stage)
                .collect();
            let joint = Joint {
                from: Vec::new(),
                to,
                why: EdgeReason::Operator,
                reason: "definitions come before the workloads that may serve them".to_owned(),
            };
            (needs.joint(&joint.to), joint)
        });
        // Known to the next definition too, or two could close a circle.
        needs.add_to_joint(*position, from);
        joint.from.push(from);
    }
    for (_, joint) in alike.into_values() {
        found.join(joint);
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
