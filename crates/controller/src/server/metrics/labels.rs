//! Labels of the metrics.

use pleach_model::object::ReleaseName;
use prometheus_client::encoding::EncodeLabelSet;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub(super) struct ReleaseLabels {
    pub(super) environment: String,
    pub(super) release: String,
}

impl ReleaseLabels {
    pub(super) fn of(release: &ReleaseName) -> Self {
        Self {
            environment: release.environment.clone(),
            release: release.release.clone(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ReconcileLabels {
    pub(super) environment: String,
    pub(super) release: String,
    pub(super) result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct EnvironmentLabels {
    pub(super) environment: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RepositoryLabels {
    pub(super) repository: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PhaseLabels {
    pub(super) phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ObjectLabels {
    pub(super) environment: String,
    pub(super) release: String,
    pub(super) action: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct HookLabels {
    pub(super) forge: String,
    pub(super) code: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PreviewLabels {
    pub(super) repository: String,
    pub(super) result: &'static str,
}
