//! `bundle.yaml` and `version.yaml`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{AnyMap, Range, Timeout};
use crate::policy::RuntimeObject;
use pleach_model::object::{Located, Selector};
use pleach_model::order::Direction;

/// A bundle, or the differences of one of its versions.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bundle {
    /// The format: `pleach.dev/v1alpha1`.
    pub api_version: String,
    /// `Bundle` or `BundleVersion`.
    pub kind: String,
    /// One-line description.
    pub description: Option<String>,
    /// Default values.
    pub values: Option<AnyMap>,
    /// Files with further values, plain or encrypted with SOPS, below the folder of this file. Later
    /// files take precedence.
    pub values_from: Option<Vec<String>>,
    /// Supported versions of Kubernetes.
    pub kubernetes: Option<Range>,
    /// Versions it can be upgraded from.
    pub upgrades_from: Option<Range>,
    /// Direction of a change whose versions cannot be compared.
    pub direction: Option<Direction>,
    /// Stages that the bundle declares.
    pub stages: Option<Vec<Located<Stage>>>,
    /// Helm charts, in the folder of the bundle or version.
    pub charts: Option<Vec<Located<Chart>>>,
    /// A kustomize overlay, in the folder of the bundle or version.
    pub kustomize: Option<Located<Kustomize>>,
    /// Temporary refusal of writes by other clients.
    pub gates: Option<Vec<Located<Gate>>>,
    /// Temporary changes.
    pub overlays: Option<Vec<Located<Overlay>>>,
    /// Condition that must hold before each stage.
    pub checks: Option<Vec<Located<Check>>>,
    /// Readiness rules, by kind.
    pub readiness: Option<Vec<Located<ReadinessRule>>>,
    /// Objects that the workloads create.
    pub runtime_objects: Option<Vec<Located<RuntimeObject>>>,
    /// Moves between namespaces.
    pub moves: Option<Vec<Located<Move>>>,
    /// Rewrite of stored objects in another version.
    pub migrate: Option<Vec<Located<Migration>>>,
    /// Changes to rendered objects.
    pub patches: Option<Vec<Located<Patch>>>,
    /// Rule that blocks an uninstall.
    pub block_uninstall: Option<Vec<Located<BlockUninstall>>>,
    /// Fields outside of Secrets whose values are masked.
    pub secret_fields: Option<Vec<Located<SecretFields>>>,
    /// Status that custom resources get in a rehearsal, where their operators do not run.
    pub rehearsal: Option<Vec<Located<Becomes>>>,
    /// Artifact whose files `pleach add` unpacked into the folder of the version.
    pub artifact: Option<Located<UnpackedArtifact>>,
}

/// An artifact of a registry, unpacked into a version folder.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UnpackedArtifact {
    /// Repository in the registry (`oci://HOST/REPOSITORY`).
    pub from: String,
    /// Digest of the artifact.
    pub digest: String,
    /// Digest of its files in the folder, without `version.yaml`, as a canonical tar archive.
    /// `pleach vendor --check` compares them.
    pub files: String,
}

/// A Helm chart.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Chart {
    /// Helm's name of the release; by default the name of the release.
    pub name: Option<String>,
    /// Package (`.tgz`) or folder, within the folder of the bundle or version.
    pub path: String,
    /// Digest of the package, or of the folder as a canonical tar archive.
    pub digest: Option<String>,
    /// Chart repository (`https://`), or chart in a registry (`oci://`), from which `pleach vendor`
    /// downloads it.
    pub from: Option<String>,
    /// Keys of which one must have signed the chart. Only for charts in a registry.
    pub verify: Option<ChartKeys>,
    /// Namespace of its objects; by default that of the release.
    pub namespace: Option<String>,
    /// File with the values of the chart; a template if its name ends in `.j2`. By default the chart
    /// gets the values of bundle, version and release, without those of the environment.
    pub values: Option<String>,
    /// `accept`: the function `lookup` finds nothing, and that is no error.
    pub lookups: Option<Lookups>,
}

/// Trusted keys for a chart.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChartKeys {
    /// File with public keys of cosign in PEM, as a path within the repository.
    pub cosign_keys_file: String,
}

/// Treatment of the function `lookup` of a chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Lookups {
    /// It finds nothing.
    Accept,
}

/// A kustomize overlay.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Kustomize {
    /// Folder of the overlay, within the folder of the bundle or version.
    pub path: String,
    /// Further folders that it reads, as paths within the repository.
    pub bases: Option<Vec<String>>,
}

/// Objects that are applied in a stage: those of a chart, or those that match all other fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StageSelector {
    /// Name of a chart of the bundle.
    pub chart: Option<String>,
    /// Kind; `*` for any.
    pub kind: Option<String>,
    /// API group; any if omitted, the core group if empty.
    pub group: Option<String>,
    /// Name, exact or with `*` and `?`.
    pub name: Option<String>,
    /// Namespace, exact or with `*` and `?`.
    pub namespace: Option<String>,
    /// Labels that the object must have.
    pub labels: Option<BTreeMap<String, String>>,
    /// Name of a Service that it points at, for registrations and CRDs.
    pub service: Option<String>,
}

impl StageSelector {
    /// Returns the selector of the objects. `None` without a kind.
    pub fn target(&self) -> Option<Selector> {
        Some(Selector {
            kind: self.kind.clone()?,
            group: self.group.clone(),
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            labels: self.labels.clone().unwrap_or_default(),
            service: self.service.clone(),
        })
    }
}

/// A stage that a bundle declares.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Stage {
    /// Its name.
    pub name: String,
    /// The objects that are applied in it.
    pub select: Option<Vec<StageSelector>>,
    /// Rollout of a DaemonSet.
    pub rollout: Option<Rollout>,
    /// Deadline of its waits.
    pub timeout: Option<Timeout>,
    /// Verifications at its end.
    pub verify: Option<Vec<Verify>>,
    /// Workloads that are restarted.
    pub restart: Option<Vec<Selector>>,
    /// Workloads that are scaled.
    pub scale: Option<Vec<Scale>>,
    /// Change of the nodes of the cluster, one after the other.
    pub nodes: Option<Nodes>,
    /// Preloading of images on the nodes, before other stages.
    pub preload: Option<Preload>,
    /// `applied`: later stages do not wait until its objects are ready.
    pub ready: Option<StageReady>,
    /// Stages before it.
    pub after: Option<Vec<String>>,
    /// Stages after it.
    pub before: Option<Vec<String>>,
}

/// State of a stage's objects that later stages wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StageReady {
    /// The server accepted the objects.
    Applied,
    /// The objects are ready.
    Ready,
}

/// Rollout of a DaemonSet.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rollout {
    /// Nodes of the first step: a number or a percentage.
    pub first: Option<Value>,
    /// Nodes at a time after the first step: a number or a percentage.
    pub then: Option<Value>,
    /// Whether a restart of one of the first pods stops the rollout.
    pub abort_on_restart: Option<bool>,
}

/// Verification at the end of a stage.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Verify {
    /// File of a Job.
    pub job: Option<String>,
    /// Name of a check.
    pub check: Option<String>,
}

/// Change of the nodes of the cluster, one after the other.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Nodes {
    /// Nodes to change; all nodes if omitted.
    pub select: Option<NodeSelector>,
    /// Groups that are changed before the other nodes, one group after the other. Nodes of a group
    /// are changed one at a time.
    pub first: Option<Vec<NodeSelector>>,
    /// Nodes at a time, after those of `first`: a number or a percentage; 1 if omitted.
    pub parallel: Option<Value>,
    /// CEL condition on `node`. A node for which it holds is changed already.
    pub done: String,
    /// Actions before the node is cordoned, in order.
    pub before: Option<Vec<NodeAction>>,
    /// Eviction of pods; without it, pods stay on the node.
    pub drain: Option<Drain>,
    /// Controller that chooses, cordons and drains the nodes, and calls hooks by annotations. It
    /// replaces `first`, `parallel`, `drain` and `pauseAfter`.
    pub driver: Option<NodeDriver>,
    /// File of the Job that changes the node and runs on it.
    pub job: Option<String>,
    /// Actions after the node is uncordoned, in order.
    pub after: Option<Vec<NodeAction>>,
    /// Removal of images at the end of an upgrade, when its version is ready.
    pub cleanup: Option<NodeCleanup>,
    /// Number of changed nodes after which the run ends, so that a person can check them. The
    /// next run changes the rest; in the controller it needs an approval.
    pub pause_after: Option<u32>,
    /// Whether a rollback to this version changes nodes too; `false` if omitted.
    pub reverse: Option<bool>,
    /// Time limit for one node, including its Job; `2h` if omitted.
    pub timeout: Option<Timeout>,
}

/// Removal of images from the nodes. The Job finds their names in `ConfigMap` `former-images` of its
/// namespace.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeCleanup {
    /// File of the Job that removes the images and runs on each node.
    pub job: String,
    /// `former`: the images that only the replaced version used.
    pub images: CleanupImages,
    /// Time limit for one node; `1h` if omitted.
    pub timeout: Option<Timeout>,
}

/// Images to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CleanupImages {
    /// Images that only the replaced version used.
    Former,
}

/// Preloading of images on the nodes: either `images` or `job`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Preload {
    /// `release`: the images of all pod templates of the release, by pods with image volumes.
    pub images: Option<PreloadImages>,
    /// Image of pleach for these pods, and for the pod that measures `space`.
    pub runner: Option<String>,
    /// File of a Job that preloads and runs on each node.
    pub job: Option<String>,
    /// Nodes to preload; all nodes if omitted.
    pub select: Option<NodeSelector>,
    /// Nodes at a time: a number or a percentage; 1 if omitted.
    pub parallel: Option<Value>,
    /// Space that must be free on each node, such as `13Gi`.
    pub space: Option<String>,
    /// Time limit for one node; `1h` if omitted.
    pub timeout: Option<Timeout>,
}

/// Images to preload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PreloadImages {
    /// All images of the release.
    Release,
}

/// Labels that a node must have.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeSelector {
    /// The labels with their values.
    pub labels: BTreeMap<String, String>,
}

/// Action on a node: `taint`, `patch`, `check` or `job`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeAction {
    /// Taint that the node has until it is changed: `key=value:Effect` or `key:Effect`.
    pub taint: Option<String>,
    /// Labels and annotations that the node has until it is changed, as a merge patch.
    pub patch: Option<NodePatch>,
    /// Name of a check that must hold. Its expressions can use `node`.
    pub check: Option<String>,
    /// File of a Job that runs on the node.
    pub job: Option<String>,
    /// Time limit of the check or the Job.
    pub timeout: Option<Timeout>,
    /// Whether a failure of the check or the Job is only reported.
    pub optional: Option<bool>,
}

/// Merge patch of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodePatch {
    /// Its metadata.
    pub metadata: NodePatchMetadata,
}

/// Metadata of a merge patch of a node. A value of null removes the label or annotation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodePatchMetadata {
    /// Labels by key.
    pub labels: Option<BTreeMap<String, Option<String>>>,
    /// Annotations by key.
    pub annotations: Option<BTreeMap<String, Option<String>>>,
}

/// Eviction of the pods of a node. Pods of a DaemonSet and static pods stay.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Drain {
    /// Pods with an `emptyDir` volume, whose data is lost; `refuse` if omitted.
    pub empty_dir: Option<Loss>,
    /// Pods without a controller, which nothing creates again; `refuse` if omitted.
    pub unmanaged: Option<Loss>,
    /// Time limit of the eviction; that of the node if omitted.
    pub timeout: Option<Timeout>,
}

/// Controller that chooses, cordons and drains the nodes, and calls hooks by annotations.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeDriver {
    /// Objects with the annotations. pleach reads their metadata only.
    pub hooks: DriverHooks,
    /// Object that names the node of a hook.
    pub node: DriverNode,
    /// Hook before the drain: the actions of `before` run.
    pub before: DriverHook,
    /// Hook after the drain: the Job, `done` and the actions of `after` follow.
    pub after: DriverHook,
}

/// Objects with the annotations of a driver.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DriverHooks {
    /// Their kind.
    pub kind: String,
    /// Their API group.
    pub group: Option<String>,
    /// Their namespace.
    pub namespace: Option<String>,
    /// Labels of the objects; `*` for any value.
    pub labels: BTreeMap<String, String>,
}

/// Object that names the node of a hook.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DriverNode {
    /// Its kind.
    pub kind: String,
    /// Its API group.
    pub group: Option<String>,
    /// Its namespace.
    pub namespace: Option<String>,
    /// CEL expression that returns its name. `hook` has the metadata of the hook object.
    pub name: String,
    /// CEL expression on the object `item` that returns the name of the node.
    pub is: String,
}

/// Annotations of a hook. It is due while they differ.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DriverHook {
    /// Annotation that the driver writes.
    pub request: String,
    /// Annotation that gets the same value when the actions are complete.
    pub acknowledge: String,
}

/// Handling of pods whose eviction loses something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Loss {
    /// Nothing is changed while there is such a pod.
    #[default]
    Refuse,
    /// The pod is evicted.
    Delete,
}

selecting! {
    /// A workload that is scaled.
    Scale {
        /// Number of replicas.
        pub replicas: u32,
    }
}

/// Temporary refusal of writes by other clients.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Gate {
    /// Its name.
    pub name: String,
    /// API groups.
    pub groups: Vec<String>,
    /// Resources, `*` for all (the default).
    pub resources: Option<Vec<String>>,
    /// Refused operations; `[CREATE, UPDATE]` by default.
    pub operations: Option<Vec<Operation>>,
    /// Stage it begins with.
    pub from: Option<String>,
    /// Stage it ends with.
    pub until: Option<String>,
    /// Service accounts that are exempt.
    pub exempt: Option<Vec<Exempt>>,
    /// Maximum duration.
    pub max_duration: Option<Timeout>,
}

/// An operation that a gate refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    /// Creating.
    Create,
    /// Changing.
    Update,
}

impl Operation {
    /// Returns the operation as written in bundles and by the API server.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
        }
    }
}

/// A service account that is exempt from a gate.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Exempt {
    /// `namespace/name`.
    pub service_account: String,
}

/// A temporary change.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Overlay {
    /// Its name.
    pub name: String,
    /// The object.
    pub target: Selector,
    /// A merge patch.
    #[schemars(with = "AnyMap")]
    pub patch: Value,
    /// Stage it begins with.
    pub from: Option<String>,
    /// Stage it ends with.
    pub until: Option<String>,
}

/// Condition that must hold before each stage.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Check {
    /// Its name.
    pub name: String,
    /// The objects that it checks.
    pub for_each: Selector,
    /// CEL: which of them.
    #[serde(rename = "where")]
    pub condition: Option<String>,
    /// CEL: what must hold.
    pub require: String,
    /// Message if it does not hold.
    pub message: Option<String>,
}

/// Readiness rule for a kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReadinessRule {
    /// API group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Kind.
    pub kind: String,
    /// CEL: it is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// CEL: it will not become ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// How long it must stay ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stable_for: Option<Timeout>,
}

/// A move between namespaces.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Move {
    /// The old namespace.
    pub from: String,
    /// The new namespace.
    pub to: String,
    /// Objects of users to copy to the new namespace.
    pub copy: Option<Vec<Selector>>,
}

/// Rewrite of stored objects in another version.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Migration {
    /// Name of the CRD.
    pub crd: String,
    /// The stored version to remove.
    pub from: String,
    /// The version to store.
    pub to: String,
}

/// A change to rendered objects: exactly one of `json`, `merge`, `patch`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Patch {
    /// The objects.
    pub target: Selector,
    /// RFC 6902 operations.
    pub json: Option<Vec<JsonOperation>>,
    /// An RFC 7386 merge patch.
    pub merge: Option<Value>,
    /// Kustomize's spelling: operations or a strategic merge patch, as text.
    pub patch: Option<String>,
}

/// An RFC 6902 operation.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(try_from = "JsonOperationFields")]
#[schemars(with = "JsonOperationFields")]
pub struct JsonOperation(pub json_patch::PatchOperation);

/// Fields of an operation. The patch crate would ignore unknown ones.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct JsonOperationFields {
    op: String,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    #[serde(
        default,
        deserialize_with = "even_null",
        skip_serializing_if = "Option::is_none"
    )]
    value: Option<Value>,
}

fn even_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl TryFrom<JsonOperationFields> for JsonOperation {
    type Error = String;

    fn try_from(fields: JsonOperationFields) -> Result<Self, String> {
        let known = ["add", "remove", "replace", "move", "copy", "test"];
        if !known.contains(&fields.op.as_str()) {
            return Err(format!(
                "`{}` is not one of {}",
                fields.op,
                known.join(", ")
            ));
        }
        if !fields.path.is_empty() && !fields.path.starts_with('/') {
            return Err("`path` must be a JSON pointer, which starts with `/`".to_owned());
        }
        if matches!(fields.op.as_str(), "move" | "copy") && fields.from.is_none() {
            return Err(format!("`{}` needs `from`", fields.op));
        }
        if matches!(fields.op.as_str(), "add" | "replace" | "test") && fields.value.is_none() {
            return Err(format!("`{}` needs `value`", fields.op));
        }
        serde_json::to_value(fields)
            .and_then(serde_json::from_value)
            .map(Self)
            .map_err(|_| "not an RFC 6902 operation".to_owned())
    }
}

/// Rule that blocks an uninstall.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BlockUninstall {
    /// Objects that block it while one of them exists.
    pub for_each: Selector,
    /// CEL: which of them.
    #[serde(rename = "where", default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// Message of the refusal.
    pub message: String,
}

selecting! {
    /// Fields outside of Secrets whose values are masked.
    SecretFields {
        /// Paths such as `data.password`.
        pub fields: Vec<String>,
    }
}

/// Status that custom resources get in a rehearsal.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Becomes {
    /// Kind.
    pub kind: String,
    /// API group.
    pub group: Option<String>,
    /// Namespace, exact or with `*` and `?`.
    pub namespace: Option<String>,
    /// Name, exact or with `*` and `?`.
    pub name: Option<String>,
    /// Time after the creation, or after a change of the `spec`; by default at once.
    pub after: Option<Timeout>,
    /// Merge patch of the `status`. `{{ … }}` in a text is a CEL expression over the object.
    pub becomes: BTreeMap<String, Value>,
}

impl Becomes {
    /// Returns the selector of the objects.
    pub fn target(&self) -> Selector {
        Selector {
            kind: self.kind.clone(),
            group: self.group.clone(),
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            ..Selector::default()
        }
    }
}
