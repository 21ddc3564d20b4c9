//! Stages of a plan.

use std::cmp::Ordering;
use std::fmt;

use serde::{Serialize, Serializer};

/// A stage: one of the standard ones, or one that a bundle declares.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StageName {
    /// Checks; no steps.
    Preflight,
    /// New APIs closed, overlays on.
    Gates,
    /// Namespaces and custom resource definitions.
    Definitions,
    /// Service accounts, roles, bindings.
    Access,
    /// What workloads read, and custom resources of others.
    Config,
    /// Services.
    Services,
    /// Workloads.
    Workloads,
    /// Webhook configurations and APIServices.
    Registrations,
    /// Custom resources of the release and everything else.
    Resources,
    /// Readiness of everything.
    Verify,
    /// Gates and overlays off.
    Ungate,
    /// What git no longer has goes.
    Prune,
    /// Access reduced to what the new version needs.
    Shrink,
    /// One that a bundle declares.
    Declared(DeclaredStage),
}

/// Where a stage of a bundle's own stands.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DeclaredStage {
    name: String,
    /// Position of the standard stage that it follows.
    slot: usize,
    /// Its place among those that follow the same one.
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

    /// The standard stage with a name.
    pub fn standard(name: &str) -> Option<Self> {
        let mut all = Self::STANDARD.into_iter();
        all.find(|stage| stage.as_str() == name)
    }

    /// A stage of a bundle's own that follows a standard one; `order` is its
    /// place among those that follow the same.
    pub fn declared(name: &str, after: &Self, order: usize) -> Self {
        Self::Declared(DeclaredStage {
            name: name.to_owned(),
            slot: after.position().0,
            order,
        })
    }

    /// A declared stage at the place of another one.
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

    /// The standard stage behind which a declared one stands.
    pub fn behind(&self) -> Option<Self> {
        match self {
            Self::Declared(declared) => Self::STANDARD.get(declared.slot).cloned(),
            _ => None,
        }
    }

    /// The name as bundles and reports write it.
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

    /// A standard stage comes before those that follow it.
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
