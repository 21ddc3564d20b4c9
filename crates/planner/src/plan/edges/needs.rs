//! Dependencies between objects: pairs, or each of many on all of many.

use std::collections::{BTreeMap, BTreeSet};

use crate::plan::{
    budget::Budget,
    model::{EdgeReason, Need},
};
use pleach_model::object::ObjectId;

/// Number of pairs up to which direct edges are used. A joining step would make
/// a small plan harder to read.
const FEW: usize = 64;

/// `to` needs `from`; both are desired.
pub(super) struct Dependency<'a> {
    pub(super) from: &'a ObjectId,
    pub(super) to: &'a ObjectId,
    pub(super) need: Need,
    pub(super) why: EdgeReason,
}

/// Each of `to` needs each of `from` applied. All are desired, and no object is
/// in both.
pub(super) struct Joint<'a> {
    pub(super) from: Vec<&'a ObjectId>,
    pub(super) to: Vec<&'a ObjectId>,
    pub(super) why: EdgeReason,
    /// Reason shown for the joining step.
    pub(super) reason: String,
}

/// Returns whether the pairs are few enough for direct edges.
pub(super) fn are_few(from: usize, to: usize) -> bool {
    from <= 1 || to <= 1 || from.saturating_mul(to) <= FEW
}

/// All dependencies between objects.
pub(super) struct Dependencies<'a> {
    pub(super) single: Vec<Dependency<'a>>,
    pub(super) joints: Vec<Joint<'a>>,
    budget: Budget,
}

impl<'a> Dependencies<'a> {
    pub(super) fn within(budget: &Budget) -> Self {
        Self {
            single: Vec::new(),
            joints: Vec::new(),
            budget: budget.clone(),
        }
    }

    /// Adds a dependency within the budget.
    pub(super) fn add(
        &mut self,
        from: &'a ObjectId,
        to: &'a ObjectId,
        need: Need,
        why: EdgeReason,
    ) {
        if self.budget.pair() {
            self.single.push(Dependency {
                from,
                to,
                need,
                why,
            });
        }
    }

    /// Adds a joint, or direct dependencies if there are few pairs.
    pub(super) fn join(&mut self, joint: Joint<'a>) {
        if !are_few(joint.from.len(), joint.to.len()) {
            self.joints.push(joint);
            return;
        }
        for &to in &joint.to {
            for &from in &joint.from {
                self.add(from, to, Need::Applied, joint.why.clone());
            }
        }
    }
}

/// Dependency graph for traversal.
pub(super) struct Needs<'a> {
    of: BTreeMap<&'a ObjectId, Vec<&'a ObjectId>>,
    /// Positions of the joints that an object depends on.
    joined: BTreeMap<&'a ObjectId, Vec<usize>>,
    joints: Vec<Vec<&'a ObjectId>>,
    budget: Budget,
}

impl<'a> Needs<'a> {
    pub(super) fn of(all: &Dependencies<'a>) -> Self {
        let mut needs = Self {
            of: BTreeMap::new(),
            joined: BTreeMap::new(),
            joints: Vec::new(),
            budget: all.budget.clone(),
        };
        for Dependency { from, to, .. } in &all.single {
            needs.add(from, to);
        }
        for Joint { from, to, .. } in &all.joints {
            let joint = needs.joint(to);
            needs.joints[joint].clone_from(from);
        }
        needs
    }

    pub(super) fn add(&mut self, from: &'a ObjectId, to: &'a ObjectId) {
        self.of.entry(to).or_default().push(from);
    }

    /// Adds an empty joint that these objects depend on, and returns its
    /// position.
    pub(super) fn joint(&mut self, to: &[&'a ObjectId]) -> usize {
        let joint = self.joints.len();
        self.joints.push(Vec::new());
        for &to in to {
            self.joined.entry(to).or_default().push(joint);
        }
        joint
    }

    pub(super) fn add_to_joint(&mut self, joint: usize, from: &'a ObjectId) {
        self.joints[joint].push(from);
    }

    /// Returns all direct and indirect dependencies of an object.
    pub(super) fn ancestors(&self, of: &'a ObjectId) -> BTreeSet<&'a ObjectId> {
        let mut found = BTreeSet::new();
        let mut passed = BTreeSet::new();
        let mut open = vec![of];
        while let Some(next) = open.pop() {
            let direct = self.of.get(next).into_iter().flatten();
            let joints = self.joined.get(next).into_iter().flatten();
            let joints = joints.filter(|joint| passed.insert(**joint));
            let joined = joints.flat_map(|joint| &self.joints[*joint]);
            let mut followed = 0;
            for &need in direct.chain(joined) {
                followed += 1;
                if found.insert(need) {
                    open.push(need);
                }
            }
            if !self.budget.work(followed) {
                break;
            }
        }
        found
    }
}
