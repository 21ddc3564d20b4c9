//! Stages of a plan.

use std::fmt;

use serde::{Serialize, Serializer};

/// A stage: one of the standard ones, or one that a bundle declares.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
        }
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
