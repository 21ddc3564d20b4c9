//! What the passes read and what they write.

use std::collections::{BTreeMap, BTreeSet};

use super::Deletion;
use super::model::{
    Action, Change, Desired, Edge, EdgeReason, Need, Op, Policy, Step, StepId, Until,
};
use crate::finding::Finding;
use crate::object::{GroupKind, Manifest, ObjectId};
use crate::observe::Observed;
use crate::order::{Facts, StageName, defined_kinds, stage_of};

/// What every pass may read.
pub(super) struct Ctx<'a> {
    pub(super) desired: &'a Desired,
    pub(super) observed: &'a Observed,
    pub(super) policy: &'a Policy,
    /// Label value of the release's members.
    pub(super) apply_set: String,
    /// Our field manager.
    pub(super) manager: String,
    pub(super) manifests: BTreeMap<&'a ObjectId, &'a Manifest>,
    pub(super) facts: BTreeMap<&'a ObjectId, Facts>,
    /// Kinds whose CRD is part of the release.
    pub(super) defined: BTreeSet<GroupKind>,
}

impl<'a> Ctx<'a> {
    pub(super) fn new(desired: &'a Desired, observed: &'a Observed, policy: &'a Policy) -> Self {
        Self {
            desired,
            observed,
            policy,
            apply_set: desired.name.apply_set(),
            manager: desired.name.field_manager(),
            manifests: desired
                .manifests
                .iter()
                .map(|manifest| (manifest.id(), manifest))
                .collect(),
            facts: desired
                .manifests
                .iter()
                .map(|manifest| (manifest.id(), Facts::of(manifest)))
                .collect(),
            defined: defined_kinds(&desired.manifests),
        }
    }

    /// The stage in which an object of this kind is applied.
    pub(super) fn stage_of(&self, id: &ObjectId) -> StageName {
        stage_of(&id.group_kind(), &self.defined)
    }

    /// Whether an object is wanted.
    pub(super) fn is_desired(&self, id: &ObjectId) -> bool {
        self.manifests.contains_key(id)
    }

    /// The Release object: what barriers act on.
    pub(super) fn release(&self) -> ObjectId {
        ObjectId::new(
            "pleach.dev",
            "Release",
            None,
            &self.desired.name.to_string(),
        )
    }
}

/// What the passes have come up with so far. Step ids are positions in
/// `steps`; `arrange` gives the final ones.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) changes: BTreeMap<ObjectId, Change>,
    pub(super) steps: Vec<Step>,
    pub(super) findings: Vec<Finding>,
    /// The step after which a desired object is as wanted.
    pub(super) done_by: BTreeMap<ObjectId, StepId>,
    /// Steps of objects that turned out to be blocked.
    pub(super) dropped: BTreeSet<StepId>,
    /// What goes.
    pub(super) pruned: Vec<Pruned>,
    /// The barrier after which things may be pruned.
    pub(super) verified: Option<StepId>,
}

/// An object that goes.
pub(super) struct Pruned {
    pub(super) id: ObjectId,
    pub(super) deletion: Deletion,
    /// A registration without a backend: it breaks others and goes first.
    pub(super) dead: bool,
}

impl Draft {
    /// Adds a step and returns its provisional id.
    pub(super) fn step(
        &mut self,
        ctx: &Ctx<'_>,
        stage: StageName,
        object: ObjectId,
        op: Op,
        reason: &str,
    ) -> StepId {
        let id = StepId(self.steps.len());
        self.steps.push(Step {
            id,
            stage,
            object,
            op,
            needs: Vec::new(),
            require: Vec::new(),
            until: None,
            deadline: ctx.policy.timeout,
            overlay: None,
            reason: reason.to_owned(),
        });
        id
    }

    /// The step with a provisional id.
    pub(super) fn at(&mut self, id: StepId) -> &mut Step {
        &mut self.steps[id.0]
    }

    /// Makes one step wait for another, once.
    pub(super) fn edge(&mut self, from: StepId, state: Need, to: StepId, why: EdgeReason) {
        if from == to {
            return;
        }
        let needs = &mut self.steps[to.0].needs;
        match needs.iter_mut().find(|edge| edge.from == from) {
            // Ready and Absent both include Applied.
            Some(edge) if edge.state == Need::Applied && state != Need::Applied => {
                *edge = Edge { from, state, why }
            }
            Some(_) => {}
            None => needs.push(Edge { from, state, why }),
        }
    }

    /// Adds a step that does nothing but wait.
    pub(super) fn wait(
        &mut self,
        ctx: &Ctx<'_>,
        stage: StageName,
        object: ObjectId,
        until: Option<Until>,
        reason: &str,
    ) -> StepId {
        let id = self.step(ctx, stage, object, Op::Wait, reason);
        self.at(id).until = until;
        id
    }

    /// Whether any object cannot be brought about.
    pub(super) fn is_blocked(&self) -> bool {
        self.changes
            .values()
            .any(|change| change.action == Action::Blocked)
    }

    /// Whether any step changes something.
    pub(super) fn has_effects(&self) -> bool {
        self.steps.iter().any(|step| !matches!(step.op, Op::Wait))
    }
}
