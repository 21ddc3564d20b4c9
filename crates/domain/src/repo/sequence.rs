//! What a bundle says about the course of a change: what is different while it
//! lasts, steps of its own between the standard ones, what must hold before
//! them, and what is waited for.

use jiff::SignedDuration;

use super::policy::Selector;
use crate::check::Check;
use crate::gate::{Closed, Operation};
use crate::object::Origin;
use crate::order::StageName;
use crate::plan::NonSecret;
use crate::readiness::Rules;

/// Temporary changes, declared stages and checks, in the order of the bundle.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sequence {
    /// Temporary changes.
    pub overlays: Vec<OverlayRule>,
    /// Stages of its own.
    pub stages: Vec<StageRule>,
    /// Stored objects that are rewritten.
    pub migrations: Vec<MigrationRule>,
    /// What must hold before a change, and before each declared stage.
    pub checks: Vec<Check>,
    /// What "ready" means for some kinds.
    pub readiness: Rules,
    /// What nobody else may create or change for a while.
    pub gates: Vec<GateRule>,
}

impl Sequence {
    /// Every selector of an object that is changed for a while or restarted.
    pub fn targets(&self) -> impl Iterator<Item = &Selector> {
        let overlays = self.overlays.iter().map(|overlay| &overlay.target);
        overlays.chain(self.stages.iter().flat_map(|stage| {
            let scaled = stage.scale.iter().map(|scale| &scale.target);
            scaled.chain(&stage.restart)
        }))
    }
}

/// A temporary change of the objects that a selector names.
#[derive(Debug, Clone, PartialEq)]
pub struct OverlayRule {
    /// Its name.
    pub name: String,
    /// The objects. Without a namespace those in that of the release.
    pub target: Selector,
    /// A merge patch.
    pub patch: NonSecret,
    /// The stage it begins with.
    pub from: StageName,
    /// The stage it ends with.
    pub until: StageName,
    /// Where it is written.
    pub origin: Origin,
}

/// What nobody else may create or change for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateRule {
    /// Its name.
    pub name: String,
    /// What is closed.
    pub closed: Closed,
    /// Which writes of it.
    pub operations: Vec<Operation>,
    /// User names of those who are not stopped.
    pub exempt: Vec<String>,
    /// The stage it begins with.
    pub from: StageName,
    /// The stage it ends with.
    pub until: StageName,
    /// How long it may stay at most.
    pub max_age: SignedDuration,
    /// Where it is written.
    pub origin: Origin,
}

/// A stage of a bundle's own.
#[derive(Debug, Clone, PartialEq)]
pub struct StageRule {
    /// Its name, and where it stands.
    pub stage: StageName,
    /// Workloads that are scaled, until they are applied.
    pub scale: Vec<ScaleRule>,
    /// Workloads whose pods are replaced.
    pub restart: Vec<Selector>,
    /// Deadline of its waits.
    pub timeout: Option<SignedDuration>,
    /// Where it is written.
    pub origin: Origin,
}

/// Objects that are stored in one version of their definition and are
/// rewritten in another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationRule {
    /// Name of the definition.
    pub crd: String,
    /// The stored version that goes.
    pub from: String,
    /// The version that is stored from then on.
    pub to: String,
    /// Where it is written.
    pub origin: Origin,
}

/// Workloads that are scaled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScaleRule {
    /// The workloads.
    pub target: Selector,
    /// To how many pods.
    pub replicas: u32,
}
