//! Phases of the draft. Each is a type that only the previous phase becomes,
//! so that passes in the wrong order do not compile.
//!
//! All phases add to the shared [`Draft`]. The other fields belong to the phase
//! that declares them. Later phases can only read them or take them over.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};

use super::access::TemporaryBinding;
use super::draft::{Changed, Draft, Narrowing, Pruned, Rewrite};
use super::model::{EdgeReason, Need, Op, StepId};
use super::overlays::Late;
use pleach_model::object::{ObjectId, ServiceRef};

/// Objects whose dependency changes in this plan. Their readiness is checked
/// again afterwards.
type Rechecked = BTreeMap<ObjectId, Vec<(Changed, Need, EdgeReason)>>;

/// Phase 1: the actions on all objects are decided, and their steps exist.
#[derive(Default)]
pub(super) struct Decided {
    draft: Draft,
    /// Steps that wait for unchanged objects.
    pub(super) awaited: BTreeMap<ObjectId, StepId>,
    pub(super) rechecked: Rechecked,
    /// Objects to delete.
    pub(super) pruned: Vec<Pruned>,
    /// Services of the release that are deleted, or were deleted before.
    pub(super) leaving: BTreeSet<ServiceRef>,
    /// Services of the release that are handed over and have no backend left in
    /// it.
    pub(super) without_backends: BTreeSet<ServiceRef>,
    /// Roles and bindings that are reduced at the end.
    pub(super) narrowings: Vec<Narrowing>,
    /// Temporary bindings, removed at the end.
    pub(super) temporary_bindings: Vec<TemporaryBinding>,
    /// Storage migrations at the end.
    pub(super) rewrites: Vec<Rewrite>,
    /// Storage migrations that run before their conversion webhook is deleted.
    pub(super) rewritten_before: Vec<StepId>,
    /// Steps that apply a CRD once its conversion Service answers.
    pub(super) converting: BTreeMap<StepId, ServiceRef>,
}

/// Phase 2: the steps have their order, except for those that enclose them.
pub(super) struct Ordered {
    decided: Decided,
    /// Objects that are deleted after verify.
    pub(super) pruned: Vec<Pruned>,
}

/// Phase 3: temporary changes, verify and the deletions enclose the steps.
pub(super) struct Bracketed {
    ordered: Ordered,
    pub(super) rechecked: Rechecked,
    /// Roles and bindings that are reduced at the end.
    pub(super) narrowings: Vec<Narrowing>,
    /// Temporary bindings, removed at the end.
    pub(super) temporary_bindings: Vec<TemporaryBinding>,
    /// Storage migrations at the end.
    pub(super) rewrites: Vec<Rewrite>,
    /// Barrier that precedes pruning.
    pub(super) verified: Option<StepId>,
    /// Temporary changes that end after verify.
    pub(super) late: Vec<Late>,
}

impl Decided {
    /// Starts from a draft with the findings of the preconditions.
    pub(super) fn new(draft: Draft) -> Self {
        Self {
            draft,
            ..Self::default()
        }
    }

    /// Begins phase 2.
    pub(super) fn order(mut self) -> Ordered {
        Ordered {
            pruned: std::mem::take(&mut self.pruned),
            decided: self,
        }
    }
}

impl Ordered {
    /// Returns the result of phase 1.
    pub(super) fn decided(&self) -> &Decided {
        &self.decided
    }

    /// Begins phase 3.
    pub(super) fn bracket(mut self) -> Bracketed {
        let decided = &mut self.decided;
        Bracketed {
            rechecked: std::mem::take(&mut decided.rechecked),
            narrowings: std::mem::take(&mut decided.narrowings),
            temporary_bindings: std::mem::take(&mut decided.temporary_bindings),
            rewrites: std::mem::take(&mut decided.rewrites),
            verified: None,
            late: Vec::new(),
            ordered: self,
        }
    }
}

impl Bracketed {
    /// Returns the result of phase 2.
    pub(super) fn ordered(&self) -> &Ordered {
        &self.ordered
    }

    /// Takes the objects to delete, to add their steps.
    pub(super) fn take_pruned(&mut self) -> Vec<Pruned> {
        std::mem::take(&mut self.ordered.pruned)
    }

    /// Returns whether the draft changes anything.
    pub(super) fn has_effects(&self) -> bool {
        !self.rewrites.is_empty() || self.steps.iter().any(|step| !matches!(step.op, Op::Wait))
    }

    /// Returns the shared draft, to be arranged.
    pub(super) fn finish(self) -> Draft {
        self.ordered.decided.draft
    }
}

impl Deref for Decided {
    type Target = Draft;

    fn deref(&self) -> &Draft {
        &self.draft
    }
}

impl DerefMut for Decided {
    fn deref_mut(&mut self) -> &mut Draft {
        &mut self.draft
    }
}

impl Deref for Ordered {
    type Target = Draft;

    fn deref(&self) -> &Draft {
        &self.decided.draft
    }
}

impl DerefMut for Ordered {
    fn deref_mut(&mut self) -> &mut Draft {
        &mut self.decided.draft
    }
}

impl Deref for Bracketed {
    type Target = Draft;

    fn deref(&self) -> &Draft {
        &self.ordered.decided.draft
    }
}

impl DerefMut for Bracketed {
    fn deref_mut(&mut self) -> &mut Draft {
        &mut self.ordered.decided.draft
    }
}
