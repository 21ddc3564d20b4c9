//! Orders workloads after the CRDs of their release. No manifest shows which
//! workload serves a kind, and a controller fails if it requests fields that
//! its CRD lacks. A written CRD is sufficient, because it may only be accepted
//! once its conversion workload answers.

use std::collections::BTreeMap;

use super::needs::{Dependencies, Joint, Needs};
use super::reverse::{is_served, is_workload};
use crate::crd::is_crd;
use crate::plan::{
    draft::{Ctx, Draft},
    model::{EdgeReason, StepId},
};
use pleach_model::object::ObjectId;
use pleach_model::order::{Direction, StageName};

/// Makes workloads need CRDs. Exceptions are CRDs that need the workload
/// themselves, and CRDs in a later stage. In a downgrade the present CRDs serve
/// both versions and change last. Only a CRD that serves additional versions
/// comes first.
pub(super) fn before_workloads<'a>(
    ctx: &Ctx<'a>,
    direction: Direction,
    found: &mut Dependencies<'a>,
) {
    let all = ctx.manifests.keys().copied();
    let (crds, others): (Vec<&'a ObjectId>, Vec<&'a ObjectId>) = all.partition(|id| is_crd(id));
    let others = others.into_iter();
    let workloads: Vec<&'a ObjectId> = others.filter(|id| is_workload(ctx, id)).collect();
    if crds.is_empty() || workloads.is_empty() {
        return;
    }
    let mut needs = Needs::of(found);
    // CRDs with the same dependent workloads, grouped by stage and own needs.
    let mut alike: BTreeMap<(StageName, Vec<&'a ObjectId>), (usize, Joint<'a>)> = BTreeMap::new();
    for from in crds {
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
                reason: "CRDs come before the workloads that may serve them".to_owned(),
            };
            (needs.joint(&joint.to), joint)
        });
        // The next CRD must see this edge too, or two CRDs could form a cycle.
        needs.add_to_joint(*position, from);
        joint.from.push(from);
    }
    for (_, joint) in alike.into_values() {
        found.join(joint);
    }
}

/// Returns the first step that applies a CRD. A later one adds the parts that
/// its webhook converts.
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
