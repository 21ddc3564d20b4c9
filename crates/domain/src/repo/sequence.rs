//! What a bundle says about the course of a change: what is different while it
//! lasts, steps of its own between the standard ones, what must hold before
//! them, and what is waited for.

use std::collections::BTreeMap;
use std::fmt;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use super::policy::Selector;
use super::selector::Pattern;
use crate::check::Check;
use crate::gate::{Closed, Operation};
use crate::object::{GroupKind, ObjectId, Origin};
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
    /// Namespaces that the product moves between.
    pub moves: Vec<MoveRule>,
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

    /// The stage that a file is verified with.
    pub fn verified_with(&self, file: &str) -> Option<&StageRule> {
        let mut stages = self.stages.iter();
        stages.find(|stage| stage.verify.iter().any(|one| one == file))
    }

    /// Whether a check is for the end of a stage, and for nothing else.
    pub fn is_of_a_stage(&self, check: &str) -> bool {
        let mut named = self.stages.iter().flat_map(|stage| &stage.checks);
        named.any(|name| name == check)
    }

    /// The stage with a name, where objects can be applied.
    pub fn stage(&self, name: &str) -> Option<StageName> {
        let mut own = self.stages.iter().map(|rule| &rule.stage);
        let own = own.find(|stage| stage.as_str() == name).cloned();
        own.or_else(|| {
            let applied = StageName::Definitions..=StageName::Resources;
            StageName::standard(name).filter(|stage| applied.contains(stage))
        })
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

/// A move from one namespace to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoveRule {
    /// The former namespace.
    pub from: String,
    /// The new one.
    pub to: String,
    /// What users keep there that comes along.
    pub copy: Vec<CopyRule>,
    /// Where it is written.
    pub origin: Origin,
}

/// Objects that come along.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyRule {
    /// Their kind.
    pub kind: GroupKind,
    /// Their name, exact or with `*` and `?`.
    pub name: String,
    /// Labels that they have.
    pub labels: BTreeMap<String, String>,
}

impl CopyRule {
    /// Whether it says itself which object it is.
    pub fn is_one(&self) -> bool {
        self.labels.is_empty() && !self.name.contains(['*', '?'])
    }

    /// Whether an object, or the copy of it, has such a kind and name.
    pub fn names(&self, id: &ObjectId) -> bool {
        self.kind == id.group_kind() && Pattern::new(Some(&self.name)).matches(Some(&id.name))
    }
}

/// A stage of a bundle's own.
#[derive(Debug, Clone, PartialEq)]
pub struct StageRule {
    /// Its name, and where it stands.
    pub stage: StageName,
    /// The objects that are applied in it.
    pub select: Vec<Selector>,
    /// What comes after it waits until these are applied, and not until they
    /// are ready.
    pub applied_only: bool,
    /// How the `DaemonSets` among them are rolled out.
    pub rollout: Option<RolloutRule>,
    /// Files of the Jobs that must succeed at its end.
    pub verify: Vec<String>,
    /// Names of the checks that must hold at its end.
    pub checks: Vec<String>,
    /// Workloads that are scaled, until they are applied.
    pub scale: Vec<ScaleRule>,
    /// Workloads whose pods are replaced.
    pub restart: Vec<Selector>,
    /// Deadline of its waits.
    pub timeout: Option<SignedDuration>,
    /// Where it is written.
    pub origin: Origin,
}

/// How a `DaemonSet` is rolled out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutRule {
    /// The pods that are replaced and watched before all others.
    pub first: Option<Count>,
    /// How many may be replaced at a time then; else as its manifest says.
    pub then: Option<Count>,
    /// Whether a restart of one of the first stops it.
    pub abort_on_restart: bool,
}

/// A number of pods, or a percentage of all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Count {
    /// So many.
    Pods(u32),
    /// So many of a hundred.
    Percent(u32),
}

impl Count {
    /// Of `all` pods at least one, if there is any.
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
