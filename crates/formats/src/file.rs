//! File formats as strict structs, as documented in `FORMATS`.
//!
//! The structs accept the whole format, including features that are not built yet.
//! [`pleach_config::resolve`] refuses these with a message. Values are only checked to be maps here: they
//! are merged from the tree with positions.

#[macro_use]
mod selecting;

mod bundle;
mod controller;
mod environment;
mod scalar;
mod schema;

pub use bundle::{
    Becomes, BlockUninstall, Bundle, Chart, ChartKeys, Check, CleanupImages, Drain, DriverHook,
    DriverHooks, DriverNode, Exempt, Gate, JsonOperation, Kustomize, Lookups, Loss, Migration,
    Move, NodeAction, NodeCleanup, NodeDriver, NodePatch, NodePatchMetadata, NodeSelector, Nodes,
    Operation, Overlay, Patch, Preload, PreloadImages, ReadinessRule, Rollout, Scale, SecretFields,
    Stage, StageReady, StageSelector, UnpackedArtifact, Verify,
};
pub use controller::{
    Allow, AllowList, Auth, ClusterGrant, ClusterScoped, Controller, Decryption, Disk,
    EnvironmentGrant, Everything, Forge, ForgeKind, GithubApp, KubeconfigSecret, Metrics, Minimum,
    NamedObjects, Notification, NotificationCause, NotificationWebhook, OidcProvider, PageAuth,
    PageTls, RegistryAccess, RequiredSignatures, WatchedRepository, WebPage,
};
pub use environment::{
    Approval, Cluster, Dependency, DependencyObject, Drift, Environment, Ignore, MovedFrom,
    Release, Rollback, State, StateKind, Sync, Window,
};
pub use scalar::{
    AnyMap, FailFast, KubernetesVersion, Programs, Range, Requires, Timeout, remembered,
};
pub use schema::schemas;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `apiVersion` of all our files.
pub const API_VERSION: &str = "pleach.dev/v1alpha1";

/// `pleach.yaml`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Repository {
    /// The format: `pleach.dev/v1alpha1`.
    pub api_version: String,
    /// `Repository`.
    pub kind: String,
    /// Recorded in every Release.
    pub id: String,
    /// Required versions of pleach, or of each program.
    pub requires: Option<Requires>,
}
