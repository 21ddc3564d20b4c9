//! Sequence of a change, as a bundle declares it: temporary changes, stages between the standard
//! ones, checks, and readiness rules.

use std::collections::BTreeMap;
use std::fmt;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use crate::check::Check;
use crate::gate::{Closed, Operation};
use crate::nodes::NodesRule;
use crate::preload::PreloadRule;
use crate::readiness::Rules;
use pleach_model::object::{GroupKind, NonSecret, ObjectId, Origin, Pattern, Selector};
use pleach_model::order::StageName;

/// Temporary changes, declared stages and checks, in the order of the bundle.
#[derive(Debug, Clone, Default, PartialEq, Hash)]
pub struct Sequence {
    /// Temporary changes.
    pub overlays: Vec<OverlayRule>,
    /// Declared stages.
    pub stages: Vec<StageRule>,
    /// Migrations of stored objects.
    pub migrations: Vec<MigrationRule>,
    /// Checks that must pass before a change and before each declared stage. If a stage names a
    /// check, it must pass at the end of that stage only.
    pub checks: Vec<Check>,
    /// Readiness rules for some kinds.
    pub readiness: Rules,
    /// Gates, which temporarily refuse writes by other clients.
    pub gates: Vec<GateRule>,
    /// Moves between namespaces.
    pub moves: Vec<MoveRule>,
}

impl Sequence {
    /// Returns the selectors of all objects that are temporarily changed, scaled or restarted.
    pub fn targets(&self) -> impl Iterator<Item = &Selector> {
        let overlays = self.overlays.iter().map(|overlay| &overlay.target);
        overlays.chain(self.stages.iter().flat_map(|stage| {
            let scaled = stage.scale.iter().map(|scale| &scale.target);
            scaled.chain(&stage.restart)
        }))
    }

    /// Returns the stage that a Job file verifies.
    pub fn verified_with(&self, file: &str) -> Option<&StageRule> {
        let mut stages = self.stages.iter();
        stages.find(|stage| stage.verify.iter().any(|one| one == file))
    }

    /// Returns whether a check belongs to the end of a stage only, or to single nodes.
    pub fn is_of_a_stage(&self, check: &str) -> bool {
        let mut named = self.stages.iter().flat_map(|stage| &stage.checks);
        let mut checks = self.checks.iter();
        named.any(|name| name == check) || checks.any(|one| one.name == check && one.needs_node())
    }

    /// Returns whether a file has the Job of a change of nodes. Its objects are not applied.
    pub fn is_of_nodes(&self, file: &str) -> bool {
        self.node_files().any(|one| one == file)
    }

    /// Returns the files of the Jobs that run on nodes.
    pub fn node_files(&self) -> impl Iterator<Item = &str> {
        self.stages.iter().flat_map(|stage| {
            let upgrade = stage.nodes.iter().flat_map(NodesRule::jobs);
            let preload = stage.preload.as_ref().and_then(PreloadRule::job);
            let cleanup = stage.nodes.as_ref().and_then(|rule| rule.cleanup.as_ref());
            let cleanup = cleanup.map(|cleanup| cleanup.job.as_str());
            upgrade.chain(cleanup).chain(preload)
        })
    }

    /// Returns the stage with this name, if objects can be applied in it.
    pub fn stage(&self, name: &str) -> Option<StageName> {
        let mut own = self.stages.iter().map(|rule| &rule.stage);
        let own = own.find(|stage| stage.as_str() == name).cloned();
        own.or_else(|| {
            let applied = StageName::Definitions..=StageName::Resources;
            StageName::standard(name).filter(|stage| applied.contains(stage))
        })
    }
}

/// A temporary change of selected objects.
#[derive(Debug, Clone, PartialEq, Hash)]
pub struct OverlayRule {
    /// Name of the overlay.
    pub name: String,
    /// Selected objects. Without a namespace: those in the release's namespace.
    pub target: Selector,
    /// A merge patch.
    pub patch: NonSecret,
    /// Stage in which it starts.
    pub from: StageName,
    /// Stage in which it ends.
    pub until: StageName,
    /// Location of the rule.
    pub origin: Origin,
}

/// A gate, which temporarily refuses writes by other clients.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GateRule {
    /// Name of the gate.
    pub name: String,
    /// Closed API groups and resources.
    pub closed: Closed,
    /// Refused operations.
    pub operations: Vec<Operation>,
    /// Names of users that are exempt.
    pub exempt: Vec<String>,
    /// Stage in which it starts.
    pub from: StageName,
    /// Stage in which it ends.
    pub until: StageName,
    /// Maximum age of the gate.
    pub max_age: SignedDuration,
    /// Location of the rule.
    pub origin: Origin,
}

/// A move from one namespace to another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MoveRule {
    /// Old namespace.
    pub from: String,
    /// New namespace.
    pub to: String,
    /// User resources to copy to the new namespace.
    pub copy: Vec<CopyRule>,
    /// Location of the rule.
    pub origin: Origin,
}

/// Objects to copy in a move.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CopyRule {
    /// Kind of the objects.
    pub kind: GroupKind,
    /// Name, exact or with `*` and `?`.
    pub name: String,
    /// Labels that the objects must have.
    pub labels: BTreeMap<String, String>,
}

impl CopyRule {
    /// Returns whether the rule names exactly one object.
    pub fn is_one(&self) -> bool {
        self.labels.is_empty() && !self.name.contains(['*', '?'])
    }

    /// Returns whether an object or its copy has this kind and name.
    pub fn names(&self, id: &ObjectId) -> bool {
        self.kind == id.group_kind() && Pattern::new(Some(&self.name)).matches(Some(&id.name))
    }
}

/// A stage that a bundle declares.
#[derive(Debug, Clone, PartialEq, Hash)]
pub struct StageRule {
    /// Name and position.
    pub stage: StageName,
    /// Objects that are applied in it.
    pub select: Vec<Selector>,
    /// Whether the next stages wait only until these objects are applied, not until they are ready.
    pub applied_only: bool,
    /// Rollout of the selected `DaemonSets`.
    pub rollout: Option<RolloutRule>,
    /// Change of the nodes of the cluster.
    pub nodes: Option<NodesRule>,
    /// Preloading of images on the nodes.
    pub preload: Option<PreloadRule>,
    /// Files of the Jobs that must succeed at its end.
    pub verify: Vec<String>,
    /// Names of the checks that must pass at its end.
    pub checks: Vec<String>,
    /// Workloads to scale until they are applied.
    pub scale: Vec<ScaleRule>,
    /// Workloads to restart.
    pub restart: Vec<Selector>,
    /// Deadline of each wait.
    pub timeout: Option<SignedDuration>,
    /// Location of the rule.
    pub origin: Origin,
}

/// Rollout of a `DaemonSet`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RolloutRule {
    /// Number of pods to replace and watch before all others.
    pub first: Option<Count>,
    /// Maximum number of unavailable pods afterwards. `None` to use the manifest's value.
    pub then: Option<Count>,
    /// Whether a restart of one of the first pods aborts the rollout.
    pub abort_on_restart: bool,
}

/// A number of pods or nodes, absolute or as a percentage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Count {
    /// Absolute number.
    Pods(u32),
    /// Percentage of all pods.
    Percent(u32),
}

impl Count {
    /// Returns the number out of `all` pods, rounded up. At least one, if there is any.
    pub fn of(self, all: usize) -> usize {
        let part = match self {
            Self::Pods(number) => usize::try_from(number).unwrap_or(usize::MAX),
            Self::Percent(percent) => (all * percent as usize).div_ceil(100),
        };
        part.max(1).min(all)
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pods(number) => write!(f, "{number}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// Rewrite of a CRD's stored objects in another version.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MigrationRule {
    /// Name of the CRD.
    pub crd: String,
    /// Stored version to remove.
    pub from: String,
    /// New storage version.
    pub to: String,
    /// Location of the rule.
    pub origin: Origin,
}

/// Temporary scale of workloads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ScaleRule {
    /// Selected workloads.
    pub target: Selector,
    /// Number of replicas.
    pub replicas: u32,
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(Count::Pods(1), 0, 0)]
    #[case(Count::Pods(1), 5, 1)]
    #[case(Count::Pods(9), 5, 5)]
    #[case(Count::Percent(10), 5, 1)]
    #[case(Count::Percent(10), 25, 3)]
    #[case(Count::Percent(100), 7, 7)]
    fn a_count_is_at_least_one_and_at_most_all(
        #[case] count: Count,
        #[case] all: usize,
        #[case] expected: usize,
    ) {
        assert_eq!(count.of(all), expected);
    }
}
