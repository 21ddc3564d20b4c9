//! Stages of a plan.

use std::cmp::Ordering;
use std::fmt;

use serde::{Serialize, Serializer};

/// A stage: one of the standard ones, or one that a bundle declares.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StageName {
    /// Checks without steps.
    Preflight,
    /// Closes gates for new APIs and applies overlays.
    Gates,
    /// Namespaces and custom resource definitions.
    Definitions,
    /// Service accounts, roles, bindings.
    Access,
    /// Objects that workloads read, and custom resources of other products.
    Config,
    /// Services.
    Services,
    /// Workloads.
    Workloads,
    /// Webhook configurations and APIServices.
    Registrations,
    /// Custom resources of the release and everything else.
    Resources,
    /// Waits until all objects are ready.
    Verify,
    /// Lifts gates and reverts overlays.
    Ungate,
    /// Deletes objects that git no longer contains.
    Prune,
    /// Reduces access to the needs of the new version.
    Shrink,
    /// A stage that a bundle declares.
    Declared(DeclaredStage),
}

/// Name and position of a declared stage.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DeclaredStage {
    name: String,
    /// Index of the standard stage that precedes it.
    slot: usize,
    /// Rank among the declared stages after the same standard stage.
    order: usize,
}

impl StageName {
    /// The standard stages in their order.
    pub const STANDARD: [Self; 13] = [
        Self::Preflight,
        Self::Gates,
        Self::Definitions,
        Self::Access,
        Self::Config,
        Self::Services,
        Self::Workloads,
        Self::Registrations,
        Self::Resources,
        Self::Verify,
        Self::Ungate,
        Self::Prune,
        Self::Shrink,
    ];

    /// Returns the standard stage with this name.
    pub fn standard(name: &str) -> Option<Self> {
        let mut all = Self::STANDARD.into_iter();
        all.find(|stage| stage.as_str() == name)
    }

    /// Creates a declared stage after a standard one. `order` is its rank among the declared stages
    /// after `after`.
    pub fn declared(name: &str, after: &Self, order: usize) -> Self {
        Self::Declared(DeclaredStage {
            name: name.to_owned(),
            slot: after.position().0,
            order,
        })
    }

    /// Returns the declared stage at the position of `place`. Standard stages do not move.
    #[must_use]
    pub fn moved_to(&self, place: &Self) -> Self {
        match (self, place) {
            (Self::Declared(own), Self::Declared(place)) => Self::Declared(DeclaredStage {
                name: own.name.clone(),
                ..place.clone()
            }),
            _ => self.clone(),
        }
    }

    /// Returns the standard stage that precedes a declared one. `None` for standard stages.
    pub fn behind(&self) -> Option<Self> {
        match self {
            Self::Declared(declared) => Self::STANDARD.get(declared.slot).cloned(),
            _ => None,
        }
    }

    /// Returns the name as used in bundles and reports.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Preflight => "preflight",
            Self::Gates => "gates",
            Self::Definitions => "definitions",
            Self::Access => "access",
            Self::Config => "config",
            Self::Services => "services",
            Self::Workloads => "workloads",
            Self::Registrations => "registrations",
            Self::Resources => "resources",
            Self::Verify => "verify",
            Self::Ungate => "ungate",
            Self::Prune => "prune",
            Self::Shrink => "shrink",
            Self::Declared(declared) => &declared.name,
        }
    }

    /// Returns the sort key. A standard stage sorts before the declared stages that follow it.
    fn position(&self) -> (usize, usize, &str) {
        if let Self::Declared(declared) = self {
            return (declared.slot, declared.order + 1, &declared.name);
        }
        let position = Self::STANDARD.iter().position(|stage| stage == self);
        (position.unwrap_or_default(), 0, "")
    }
}

impl Ord for StageName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.position().cmp(&other.position())
    }
}

impl PartialOrd for StageName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for StageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for StageName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_declared_stage_stands_behind_the_one_it_follows() {
        let first = StageName::declared("stop", &StageName::Services, 0);
        let second = StageName::declared("hold", &StageName::Services, 1);
        let mut stages = vec![second.clone(), StageName::Workloads, first.clone()];
        stages.extend([StageName::Services, StageName::Shrink]);
        stages.sort();
        let names: Vec<&str> = stages.iter().map(StageName::as_str).collect();
        assert_eq!(names, ["services", "stop", "hold", "workloads", "shrink"]);
        assert!(StageName::STANDARD.is_sorted());
        assert_eq!(first.behind(), Some(StageName::Services));
        assert_eq!(StageName::Services.behind(), None);
    }
}
