//! Orders steps relative to a stage: after all earlier steps and before all
//! later ones.
//!
//! A bundle may assign a prerequisite of an earlier stage to a later one. The
//! start of a temporary change precedes all steps of later stages. A step of an
//! earlier stage that depends on one of those follows the start. The end
//! follows all steps of earlier stages, and their prerequisites in later stages
//! do not wait for it. A gate is thus never lifted too soon.

use std::collections::BTreeSet;

use crate::plan::{
    draft::{Ctx, Draft},
    gate::is_temporary,
    model::{EdgeReason, Need, Op, Step, StepId},
    stages::at_barrier,
    verify::completion,
};
use pleach_model::order::StageName;

/// Place of steps relative to a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// Before all other steps of the stage.
    Before,
    /// The steps of the stage itself.
    In,
    /// After all other steps of the stage.
    After,
}

impl Place {
    fn comes_before(self, step: &StageName, stage: &StageName) -> bool {
        step < stage || self == Self::After && step == stage
    }

    fn comes_after(self, step: &StageName, stage: &StageName) -> bool {
        step > stage || self == Self::Before && step == stage
    }

    fn why(self) -> EdgeReason {
        match self {
            Self::In => EdgeReason::Stage,
            Self::Before | Self::After => EdgeReason::Overlay,
        }
    }
}

/// Adds the edges that put `group` at a place.
pub(super) fn place(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    group: &[StepId],
    stage: &StageName,
    place: Place,
) {
    let own: BTreeSet<StepId> = group.iter().copied().collect();
    let is_other = |id: StepId| !own.contains(&id) && !draft.dropped.contains(&id);
    let later: Vec<StepId> = draft
        .steps
        .iter()
        .filter(|step| is_other(step.id) && place.comes_after(&step.stage, stage))
        // Reverts precede new changes of the same stage, and changes that start
        // with the same stage are unordered.
        .filter(|step| step.stage > *stage || !is_temporary(step))
        .map(|step| step.id)
        .collect();
    let above = ancestors(draft, group);
    let later: Vec<StepId> = later.into_iter().filter(|id| !above.contains(id)).collect();
    let behind = match place {
        Place::After => descendants(draft, group.to_vec()),
        Place::Before | Place::In => {
            descendants(draft, later.iter().chain(group).copied().collect())
        }
    };
    let earlier: Vec<&Step> = draft
        .steps
        .iter()
        .filter(|step| is_other(step.id) && place.comes_before(&step.stage, stage))
        // Lifts are placed after all starts: a step before a lift may depend on
        // steps after this start.
        .filter(|step| place != Place::Before || !matches!(step.op, Op::Lift))
        .filter(|step| !behind.contains(&step.id))
        .collect();
    // Prerequisites in later stages must not wait for the group.
    let needed = ancestors(
        draft,
        &earlier.iter().map(|step| step.id).collect::<Vec<_>>(),
    );
    let later: Vec<StepId> = later
        .into_iter()
        .filter(|id| !needed.contains(id))
        .collect();
    let earlier: Vec<(StepId, Need)> = earlier
        .into_iter()
        .map(|step| at_barrier(ctx, step))
        .collect();
    let why = place.why();
    let reason = match place {
        Place::Before => format!("temporary changes come before stage {stage}"),
        Place::In => format!("stage {stage} is declared by the bundle"),
        Place::After => format!("temporary changes end with stage {stage}"),
    };
    draft.all_before(ctx, stage.clone(), &earlier, group, &why, &reason);
    let done: Vec<(StepId, Need)> = group
        .iter()
        .map(|id| at_barrier(ctx, &draft.steps[id.0]))
        .collect();
    draft.all_before(ctx, stage.clone(), &done, &later, &why, &reason);
}

/// Makes later stages wait for `group`.
pub(in crate::plan) fn before_later(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    group: &[StepId],
    (stage, why, reason): (&StageName, &EdgeReason, &str),
) {
    let above = ancestors(draft, group);
    let later: Vec<StepId> = draft
        .steps
        .iter()
        .filter(|step| step.stage > *stage && !draft.dropped.contains(&step.id))
        .map(|step| step.id)
        .filter(|id| !above.contains(id))
        .collect();
    let done: Vec<(StepId, Need)> = group
        .iter()
        .map(|id| completion(&draft.steps[id.0]))
        .collect();
    draft.all_before(ctx, stage.clone(), &done, &later, why, reason);
}

/// Returns the steps and all their direct and indirect dependents.
pub(in crate::plan) fn descendants(draft: &Draft, of: Vec<StepId>) -> BTreeSet<StepId> {
    let mut dependents: Vec<Vec<StepId>> = vec![Vec::new(); draft.steps.len()];
    for step in &draft.steps {
        for edge in &step.needs {
            dependents[edge.from.0].push(step.id);
        }
    }
    let mut found = BTreeSet::new();
    let mut open = of;
    while let Some(step) = open.pop() {
        if found.insert(step) {
            open.extend(&dependents[step.0]);
            if !draft.budget.work(1 + dependents[step.0].len()) {
                break;
            }
        }
    }
    found
}

/// Returns all direct and indirect dependencies of the steps.
pub(in crate::plan) fn ancestors(draft: &Draft, of: &[StepId]) -> BTreeSet<StepId> {
    let mut found = BTreeSet::new();
    let mut open = of.to_vec();
    while let Some(step) = open.pop() {
        let needs = &draft.steps[step.0].needs;
        if !draft.budget.work(1 + needs.len()) {
            break;
        }
        for edge in needs {
            if found.insert(edge.from) {
                open.push(edge.from);
            }
        }
    }
    found
}
