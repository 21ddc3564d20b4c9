//! Batches of the steps of nodes: nodes in work, then the nodes of `first` one at a time, then the
//! others. Each batch waits for the one before.

use super::draft::{Ctx, Draft};
use super::model::{EdgeReason, Need, Op, StepId};
use pleach_formats::nodes::NodesRule;
use pleach_model::order::StageName;

/// The step of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NodeStep {
    /// Whether it is one of `first`.
    pub(super) is_first: bool,
    /// Whether the node is in work already.
    pub(super) is_resumed: bool,
    pub(super) step: StepId,
}

impl NodeStep {
    /// Returns a step without a special position.
    pub(super) fn plain(step: StepId) -> Self {
        Self {
            is_first: false,
            is_resumed: false,
            step,
        }
    }
}

/// Pause of a change of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pause {
    /// There is none.
    Never,
    /// The run ends after this many nodes.
    After(usize),
    /// Enough nodes are changed already.
    Over,
}

impl Pause {
    pub(super) fn of(rule: &NodesRule, changed: usize, open: usize) -> Self {
        let Some(after) = rule.pause_after else {
            return Self::Never;
        };
        let after = usize::try_from(after).unwrap_or(usize::MAX);
        match after.saturating_sub(changed) {
            0 => Self::Over,
            missing if missing < open => Self::After(missing),
            _ => Self::Never,
        }
    }
}

/// Orders the nodes: each batch waits for the one before. A node of `first` is a batch of its own.
pub(super) fn in_batches(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    stage: &StageName,
    steps: &[NodeStep],
    at_once: usize,
    pause: Pause,
) {
    let before = match pause {
        Pause::After(count) => count,
        Pause::Never | Pause::Over => steps.len(),
    };
    let (before, after) = steps.split_at(before.min(steps.len()));
    let mut batches = batches_of(before, at_once);
    if let (Pause::After(_), Some(last)) = (pause, before.last()) {
        let node = draft.at(last.step).object.clone();
        let reason = "a person checks it; the next run changes the rest";
        batches.push(vec![draft.step(
            ctx,
            stage.clone(),
            node,
            Op::Pause,
            reason,
        )]);
    }
    batches.extend(batches_of(after, at_once));
    for pair in batches.windows(2) {
        let earlier: Vec<(StepId, Need)> = pair[0].iter().map(|&id| (id, Need::Applied)).collect();
        let why = EdgeReason::Node;
        let reason = "the nodes before are changed";
        draft.all_before(ctx, stage.clone(), &earlier, &pair[1], &why, reason);
    }
}

fn batches_of(steps: &[NodeStep], at_once: usize) -> Vec<Vec<StepId>> {
    let resumed = steps.iter().take_while(|one| one.is_resumed).count();
    let (resumed, others) = steps.split_at(resumed);
    let ids = |steps: &[NodeStep]| steps.iter().map(|one| one.step).collect::<Vec<_>>();
    let parts = [resumed, others].into_iter();
    let batches = parts.flat_map(move |steps| {
        let first = steps.iter().take_while(|one| one.is_first).count();
        let (first, others) = steps.split_at(first);
        first.chunks(1).chain(others.chunks(at_once))
    });
    batches.map(ids).collect()
}
