//! Format of `environments/NAME.yaml`. All fields are optional, because the extended file can
//! contain them.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::scalar::TextOrMap;
use super::{AnyMap, FailFast, KubernetesVersion, Patch, Timeout};
use crate::policy::{Consent, Protect, PrunePolicy};
use pleach_model::object::Located;

/// An environment file.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Environment {
    /// The format: `pleach.dev/v1alpha1`.
    pub api_version: String,
    /// `Environment`.
    pub kind: String,
    /// Name of the file that this one is merged over.
    pub extends: Option<String>,
    /// The intended cluster.
    pub cluster: Option<Cluster>,
    /// Values of all releases.
    pub values: Option<AnyMap>,
    /// Files with further values, plain or encrypted with SOPS, from the root of the repository.
    /// Later files take precedence.
    pub values_from: Option<Vec<String>>,
    /// Releases to install.
    pub releases: Option<Vec<Located<Release>>>,
    /// When and how the controller syncs.
    pub sync: Option<Sync>,
    /// Whether and how much is pruned.
    pub prune: Option<PrunePolicy>,
    /// Kinds protected beside the built-in ones.
    pub protect: Option<Vec<Protect>>,
    /// Allowed destructive steps.
    pub consent: Option<Vec<Located<Consent>>>,
    /// Location of the state.
    pub state: Option<Located<State>>,
}

/// The intended cluster.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cluster {
    /// Context of the kubeconfig, for the CLI.
    pub context: Option<String>,
    /// uid of the namespace kube-system.
    pub id: Option<String>,
    /// Version of Kubernetes to check against.
    pub kubernetes: Option<KubernetesVersion>,
}

/// A bundle version installed under a name.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Release {
    /// Name; that of the bundle if omitted.
    pub name: Option<String>,
    /// Folder below `manifests/`.
    pub bundle: Option<String>,
    /// Folder below that of the bundle.
    pub version: Option<String>,
    /// The release whose version it follows.
    pub version_from: Option<String>,
    /// Default namespace.
    pub namespace: Option<String>,
    /// Whether pleach is allowed to create that namespace.
    pub create_namespace: Option<bool>,
    /// Values of this release.
    pub values: Option<AnyMap>,
    /// Files with further values, plain or encrypted with SOPS, from the root of the repository.
    /// Later files take precedence.
    pub values_from: Option<Vec<String>>,
    /// Changes to rendered objects.
    pub patches: Option<Vec<Located<Patch>>>,
    /// Fields that are left to other field managers.
    pub ignore: Option<Vec<Located<Ignore>>>,
    /// Field managers whose objects pleach is allowed to adopt.
    pub adopt: Option<Vec<String>>,
    /// Releases and objects that must be ready before.
    pub depends_on: Option<Vec<Located<Dependency>>>,
    /// The previous release of the objects, which move to this one.
    pub moved_from: Option<MovedFrom>,
    /// An intended rollback, for one change of versions.
    pub rollback: Option<Rollback>,
    /// Deadline of each wait.
    pub timeout: Option<Timeout>,
    /// How long a pod may report that its image cannot be pulled, or that its container cannot
    /// be configured, before the wait for it fails; or `never`.
    pub fail_fast: Option<FailFast>,
    /// Whether pods are replaced when a `ConfigMap` or Secret of the release that
    /// they read changes; without it they are not.
    pub restart_on_config_change: Option<bool>,
}

impl Release {
    /// Returns the name of the release, which defaults to its bundle's name.
    pub fn own_name(&self) -> Option<&str> {
        self.name.as_deref().or(self.bundle.as_deref())
    }
}

selecting! {
    /// Fields of objects that are left to other field managers.
    Ignore {
        /// Paths such as `spec.replicas`.
        pub fields: Vec<Located<String>>,
    }
}

/// A dependency that must be ready before a release starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Dependency {
    /// Another release.
    Release(String),
    /// Any object.
    Object(DependencyObject),
}

/// An object that must be ready.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DependencyObject {
    /// Kind.
    pub kind: String,
    /// API group.
    pub group: Option<String>,
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: Option<String>,
    /// CEL expression.
    pub ready: Option<String>,
}

impl<'de> Deserialize<'de> for Dependency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrMap {
            expected: "the name of a release, or a map with kind and name",
            text: |text| Some(Self::Release(text.to_owned())),
            map: Self::Object,
        })
    }
}

/// The previous release of the objects, which move to this one.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MovedFrom {
    /// Its environment.
    pub environment: String,
    /// Its name.
    pub release: String,
}

/// An intended rollback.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rollback {
    /// Version before the rollback.
    pub from: String,
    /// Version after the rollback.
    pub to: String,
}

/// When and how the controller syncs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Sync {
    /// Interval between two syncs.
    pub interval: Option<Timeout>,
    /// Reaction to drift.
    pub drift: Option<Drift>,
    /// Whether plans wait for approval.
    pub approval: Option<Approval>,
    /// Times at which the controller is allowed to sync.
    pub windows: Option<Vec<Located<Window>>>,
}

/// Reaction to drift.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Drift {
    /// Drift is reverted.
    Correct,
    /// Drift is only reported.
    Report,
}

/// Whether plans wait for approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Approval {
    /// Plans need no approval.
    None,
    /// Only a plan with the approved effects is executed.
    Digest,
}

/// A time in which syncing is allowed, or is not.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Window {
    /// Such as `Mon-Fri 08:00-16:00`.
    pub allow: Option<String>,
    /// Likewise.
    pub deny: Option<String>,
    /// Such as `Europe/Berlin`.
    pub time_zone: Option<String>,
}

/// Location of the state.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct State {
    /// Kind of the objects that contain it.
    pub kind: StateKind,
    /// Namespace of the objects, if the kind has one.
    pub namespace: Option<String>,
}

/// Kind of the objects that contain the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum StateKind {
    /// A custom resource of pleach.
    Release,
    /// ConfigMaps, for clusters without the CRD.
    ConfigMap,
}
