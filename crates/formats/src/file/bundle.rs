//! `bundle.yaml` and `version.yaml`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{AnyMap, Range, Timeout};
use crate::policy::RuntimeObject;
use pleach_model::object::Selector;
use pleach_model::order::Direction;

/// What a bundle is, or what is special about a version of it.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Bundle {
    /// The format: `pleach.dev/v1alpha1`.
    pub api_version: String,
    /// `Bundle` or `BundleVersion`.
    pub kind: String,
    /// One line for people.
    pub description: Option<String>,
    /// Default values.
    pub values: Option<AnyMap>,
    /// Versions of Kubernetes it is for.
    pub kubernetes: Option<Range>,
    /// Versions it can be upgraded from.
    pub upgrades_from: Option<Range>,
    /// Which way a change goes, where versions cannot be compared.
    pub direction: Option<Direction>,
    /// Stages of its own.
    pub stages: Option<Vec<Stage>>,
    /// What nobody else may create or change for a while.
    pub gates: Option<Vec<Gate>>,
    /// Temporary changes.
    pub overlays: Option<Vec<Overlay>>,
    /// What must hold before each stage.
    pub checks: Option<Vec<Check>>,
    /// What "ready" means, by kind.
    pub readiness: Option<Vec<ReadinessRule>>,
    /// Objects that the workloads make.
    pub runtime_objects: Option<Vec<RuntimeObject>>,
    /// Moves between namespaces.
    pub moves: Option<Vec<Move>>,
    /// Stored objects that are rewritten.
    pub migrate: Option<Vec<Migration>>,
    /// Changes to rendered objects.
    pub patches: Option<Vec<Patch>>,
    /// What forbids an uninstall.
    pub block_uninstall: Option<Vec<BlockUninstall>>,
    /// Fields beside Secrets that are never shown.
    pub secret_fields: Option<Vec<SecretFields>>,
}

/// A stage of a bundle's own.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Stage {
    /// Its name.
    pub name: String,
    /// The objects that are applied in it.
    pub select: Option<Vec<Selector>>,
    /// How a DaemonSet is rolled out.
    pub rollout: Option<Rollout>,
    /// Deadline of its waits.
    pub timeout: Option<Timeout>,
    /// What must succeed at its end.
    pub verify: Option<Vec<Verify>>,
    /// Workloads that are restarted.
    pub restart: Option<Vec<Selector>>,
    /// Workloads that are scaled.
    pub scale: Option<Vec<Scale>>,
    /// `applied`: nothing is waited for.
    pub ready: Option<StageReady>,
    /// Stages before it.
    pub after: Option<Vec<String>>,
    /// Stages after it.
    pub before: Option<Vec<String>>,
}

/// How far a stage goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StageReady {
    /// Until the server took everything.
    Applied,
    /// Until everything is ready.
    Ready,
}

/// How a DaemonSet is rolled out.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rollout {
    /// How many nodes first: a number or a percentage.
    pub first: Option<Value>,
    /// How many then.
    pub then: Option<Value>,
    /// Whether a restart of a pod stops it.
    pub abort_on_restart: Option<bool>,
}

/// What must succeed at the end of a stage.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Verify {
    /// File of a Job.
    pub job: Option<String>,
    /// Name of a check.
    pub check: Option<String>,
}

/// A workload that is scaled.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Scale {
    /// Kind.
    pub kind: String,
    /// API group.
    pub group: Option<String>,
    /// Name.
    pub name: Option<String>,
    /// Namespace.
    pub namespace: Option<String>,
    /// Labels.
    pub labels: Option<BTreeMap<String, String>>,
    /// How many.
    pub replicas: u32,
}

/// What nobody else may create or change for a while.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Gate {
    /// Its name.
    pub name: String,
    /// API groups.
    pub groups: Vec<String>,
    /// Resources, `*` for all (the default).
    pub resources: Option<Vec<String>>,
    /// What is closed; `[CREATE, UPDATE]` by default.
    pub operations: Option<Vec<Operation>>,
    /// Stage it begins with.
    pub from: Option<String>,
    /// Stage it ends with.
    pub until: Option<String>,
    /// Who is not stopped.
    pub exempt: Option<Vec<Exempt>>,
    /// How long it may stay.
    pub max_duration: Option<Timeout>,
}

/// What a gate closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
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

/// Who is not stopped by a gate.
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

/// What must hold before each stage.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Check {
    /// Its name.
    pub name: String,
    /// The objects it looks at.
    pub for_each: Selector,
    /// CEL: which of them.
    #[serde(rename = "where")]
    pub condition: Option<String>,
    /// CEL: what must hold.
    pub require: String,
    /// What is said otherwise.
    pub message: Option<String>,
}

/// What "ready" means for a kind.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
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
    /// CEL: it will not get ready.
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
    /// The new one.
    pub to: String,
    /// What users keep there that comes along.
    pub copy: Option<Vec<Selector>>,
}

/// Stored objects that are rewritten.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Migration {
    /// Name of the definition.
    pub crd: String,
    /// The stored version that goes.
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

/// Its fields: the patch crate takes unknown ones for comments.
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
            return Err("`path` is a JSON pointer: it starts with `/`".to_owned());
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

/// What forbids an uninstall.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BlockUninstall {
    /// While one of these exists.
    pub for_each: Selector,
    /// CEL: which of them.
    #[serde(rename = "where", default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// What is said then.
    pub message: String,
}

/// Fields beside Secrets that are never shown.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretFields {
    /// Kind.
    pub kind: String,
    /// API group.
    pub group: Option<String>,
    /// Name.
    pub name: Option<String>,
    /// Namespace.
    pub namespace: Option<String>,
    /// Labels.
    pub labels: Option<BTreeMap<String, String>>,
    /// Paths such as `data.password`.
    pub fields: Vec<String>,
}
