//! Deletion steps. Classes are deleted one after the other, each after the
//! previous one is gone. A CRD is deleted before the Service that converts its
//! objects. An aggregated role is deleted before the roles that its rules come
//! from. Within a class, declared stages are reversed.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::plan::{
    changes::lost_claims,
    draft::{Ctx, Draft, Pruned},
    model::{Action, EdgeReason, Need, Op, Precondition, StepId, Until},
    phases::Bracketed,
};
use pleach_model::object::ObjectId;
use pleach_model::order::{DeletionClass, StageName, deletion_class};
use pleach_state::inventory::{Memory, RememberedStage};

/// Field manager of the cluster controller that writes aggregated rules.
const AGGREGATION: &str = "clusterrole-aggregation-controller";

/// Adds the steps for the selected deletions.
pub(in crate::plan) fn run(ctx: &Ctx<'_>, draft: &mut Bracketed) {
    let pruned = draft.take_pruned();
    let verified = draft.verified;
    if verified.is_none() && ctx.removal.is_none() {
        return;
    }
    let others: Vec<StepId> = draft.steps.iter().map(|step| step.id).collect();
    // Temporary changes may start before stage `gates`; dead registrations are
    // deleted before them.
    let stages = draft.steps.iter().map(|step| &step.stage);
    let first = stages.fold(&StageName::Gates, Ord::min).clone();
    let mut dead = Vec::new();
    let remembered = remembered(ctx);
    let mut by_rank: BTreeMap<(DeletionClass, Reverse<StageName>), Vec<StepId>> = BTreeMap::new();
    for one in pruned {
        if one.dead {
            let step = delete(ctx, draft, first.clone(), one);
            dead.push((step, Need::Absent));
        } else {
            let class = class_of(ctx, draft, &one.id);
            let stage = stage_of(ctx, &remembered, &one.id);
            let step = delete(ctx, draft, StageName::Prune, one);
            if let Some(timeout) = stage.and_then(|(_, stage)| stage.timeout()) {
                draft.at(step).deadline = timeout;
            }
            let stage = stage.map_or_else(|| class.stage(), |(stage, _)| stage.clone());
            if let Some(verified) = verified {
                draft.edge(verified, Need::Applied, step, EdgeReason::Barrier);
            }
            by_rank
                .entry((class, Reverse(stage)))
                .or_default()
                .push(step);
        }
    }
    let reason = "no backend answers behind these registrations: they are deleted first";
    let why = EdgeReason::Leftover;
    draft.all_before(ctx, first.clone(), &dead, &others, &why, reason);
    if let Some(next) = by_rank.values().next().filter(|_| ctx.removal.is_some()) {
        // No other step orders the dead registrations before the deletions that
        // they would break.
        let next = next.clone();
        draft.all_before(ctx, first, &dead, &next, &why, reason);
    }
    let ranks: Vec<Vec<StepId>> = by_rank.into_values().collect();
    for pair in ranks.windows(2) {
        let previous: Vec<(StepId, Need)> = pair[0].iter().map(|id| (*id, Need::Absent)).collect();
        let reason = "these objects need the ones that are deleted next";
        let why = EdgeReason::Reverse;
        draft.all_before(ctx, StageName::Prune, &previous, &pair[1], &why, reason);
    }
}

/// Returns the class in which a member is deleted. A CRD is deleted before the
/// conversion Service and its pods. Without them no client could read its
/// custom resources, so none could be deleted.
fn class_of(ctx: &Ctx<'_>, draft: &Bracketed, id: &ObjectId) -> DeletionClass {
    let services = ctx.observed.conversions.get(id);
    let mut services = services.into_iter().flatten();
    if services.any(|service| draft.ordered().decided().leaving.contains(service)) {
        return DeletionClass::ConvertedDefinitions;
    }
    if is_aggregated(ctx, id) {
        return DeletionClass::AggregatedRoles;
    }
    deletion_class(&id.group_kind())
}

/// Returns whether the cluster writes the rules of a role. Only metadata of
/// undesired objects is known, so the field manager decides. A role without
/// aggregated rules is not written.
fn is_aggregated(ctx: &Ctx<'_>, id: &ObjectId) -> bool {
    id.is("rbac.authorization.k8s.io", "ClusterRole")
        && ctx.observed.live_meta(id).is_some_and(|live| {
            let mut managers = live.managers.iter();
            managers.any(|manager| manager == AGGREGATION)
        })
}

/// Returns the recorded stages of the release by name, in the order of their
/// execution.
fn remembered<'a>(ctx: &Ctx<'a>) -> BTreeMap<&'a str, (StageName, &'a RememberedStage)> {
    let record = ctx.observed.installed.as_ref();
    let memory = record.and_then(|record| record.memory.as_ref());
    let placed = memory.map(Memory::placed).into_iter().flatten();
    placed
        .map(|(place, stage)| (stage.name.as_str(), (place, stage)))
        .collect()
}

/// Returns the declared stage in which a member was applied.
fn stage_of<'r, 'a>(
    ctx: &Ctx<'_>,
    remembered: &'r BTreeMap<&'a str, (StageName, &'a RememberedStage)>,
    id: &ObjectId,
) -> Option<&'r (StageName, &'a RememberedStage)> {
    let entry = ctx.observed.inventory.entries.get(id)?;
    remembered.get(entry.stage.as_str())
}

fn delete(ctx: &Ctx<'_>, draft: &mut Draft, stage: StageName, one: Pruned) -> StepId {
    let Pruned { id, deletion, .. } = one;
    let why = deletion.explain();
    let reason = match lost_claims(ctx, &id, deletion.propagation()) {
        Some(besides) => format!("{why}; {besides}"),
        None => why,
    };
    let mut require = vec![Precondition::Uid(deletion.uid().to_owned())];
    require.extend(
        deletion
            .resource_version()
            .map(|version| Precondition::ResourceVersion(version.to_owned())),
    );
    draft.change(&id, Action::Delete, stage.clone(), &reason, require.clone());
    let step = draft.step(ctx, stage, id, Op::Delete(deletion), &reason);
    draft.at(step).require = require;
    draft.at(step).until = Some(Until::Absent { pods: None });
    step
}
