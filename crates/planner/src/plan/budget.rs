//! Size limits of a plan: one release must not exhaust the shared resources.
//!
//! The planner counts the edges it creates and the work of following them.
//! Beyond the budget it stops, and the plan is refused as a whole with
//! `plan-too-large`. The counts depend only on the input, so a release is
//! refused everywhere or nowhere.

use std::cell::Cell;
use std::rc::Rc;

use super::model::Desired;
use pleach_model::finding::{Finding, Kind};

/// Maximum number of objects in a release.
const OBJECTS: usize = 100_000;
/// Maximum number of edges between the steps of a plan.
const EDGES: usize = 1_000_000;
/// Maximum number of followed edges and compared objects in a plan; a few
/// seconds.
const WORK: usize = 50_000_000;

/// Code of the refusal.
const CODE: &str = "plan-too-large";

/// Remaining budget of a plan. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Budget(Rc<Left>);

#[derive(Debug)]
struct Left {
    pairs: Cell<usize>,
    edges: Cell<usize>,
    work: Cell<usize>,
    beyond: Cell<Option<Beyond>>,
}

/// Exhausted part of the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beyond {
    Edges,
    Work,
}

impl Default for Budget {
    fn default() -> Self {
        Self(Rc::new(Left {
            pairs: Cell::new(EDGES),
            edges: Cell::new(EDGES),
            work: Cell::new(WORK),
            beyond: Cell::new(None),
        }))
    }
}

impl Budget {
    /// Counts a pair of dependent objects. Returns false beyond the budget.
    pub(super) fn pair(&self) -> bool {
        self.take(&self.0.pairs, 1, Beyond::Edges)
    }

    /// Counts an edge between two steps. Returns false beyond the budget.
    pub(super) fn edge(&self) -> bool {
        self.take(&self.0.edges, 1, Beyond::Edges)
    }

    /// Counts followed edges or compared objects. Returns false beyond the
    /// budget.
    pub(super) fn work(&self, steps: usize) -> bool {
        self.take(&self.0.work, steps, Beyond::Work)
    }

    /// Returns the number of followed edges and compared objects so far.
    #[cfg(test)]
    pub(super) fn spent(&self) -> usize {
        WORK - self.0.work.get()
    }

    fn take(&self, left: &Cell<usize>, amount: usize, beyond: Beyond) -> bool {
        if self.0.beyond.get().is_some() {
            return false;
        }
        let Some(rest) = left.get().checked_sub(amount) else {
            self.0.beyond.set(Some(beyond));
            return false;
        };
        left.set(rest);
        true
    }

    /// Returns the refusal; `None` within the budget.
    pub(super) fn refusal(&self) -> Option<Finding> {
        let message = match self.0.beyond.get()? {
            Beyond::Edges => format!(
                "the objects have more than {EDGES} dependencies on each other, the limit of a plan"
            ),
            Beyond::Work => {
                "finding the dependencies between the objects exceeds the work limit of a plan"
                    .to_owned()
            }
        };
        Some(refusal(message))
    }
}

fn refusal(message: String) -> Finding {
    Finding::error(Kind::Policy, CODE, message)
        .hint("split the bundle into several, with releases that depend on each other")
}

impl Desired {
    /// Refuses a release with too many objects, before its objects are read.
    pub fn refuse_size(&self) -> Option<Finding> {
        let objects = self.manifests.len();
        (objects > OBJECTS).then(|| {
            refusal(format!(
                "the release has {objects} objects, more than the limit of {OBJECTS} in a plan"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exhausted_part_of_the_budget_is_named() {
        let codes = |budget: &Budget| budget.refusal().map(|finding| finding.code);
        let budget = Budget::default();
        assert!(budget.work(WORK) && budget.edge() && budget.pair());
        assert_eq!(codes(&budget), None);
        assert!(!budget.work(1));
        assert_eq!(codes(&budget).as_deref(), Some(CODE));
        let message = budget.refusal().map(|finding| finding.message);
        assert!(message.is_some_and(|text| text.contains("exceeds the work limit")));
        // Beyond the budget, every further step stops too, and the first reason stays.
        assert!(!budget.edge() && !budget.pair() && !budget.clone().work(0));
        let message = budget.refusal().map(|finding| finding.message);
        assert!(message.is_some_and(|text| text.contains("exceeds the work limit")));
        for part in [Budget::edge, Budget::pair] {
            let budget = Budget::default();
            assert!((0..EDGES).all(|_| part(&budget)));
            assert!(!part(&budget));
            let message = budget.refusal().map(|finding| finding.message);
            assert!(message.is_some_and(|text| text.contains("1000000 dependencies")));
        }
    }
}
