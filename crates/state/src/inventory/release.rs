//! Record of a release and its storage format.
//!
//! A Release object contains the record in its status. A ConfigMap contains the same status as JSON
//! text under `status`, beside readable fields.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::seal::content_of;
use super::{Correction, Inventory, Memory, Scope, Seal, SealError, StateKey, Store};
use pleach_model::object::{Digest, ReleaseName, labels};

/// Version of the status format. Format 1 had neither `removed` nor `memory`,
/// format 2 no `oldestWriter`, format 3 no `memory.readiness`, format 4 no
/// `memory.stages` and no `memory.dependsOn`, format 5 no `seal`.
pub const RECORD_FORMAT: u32 = 6;

/// The first format whose records are sealed.
const SEALED_FORMAT: u32 = 6;

/// The oldest format whose writers are allowed to write our records. They preserve unknown fields,
/// and their writes mean the same.
const OLDEST_WRITER: u32 = 6;

/// Reason of condition Ready while a plan is executed.
pub const RECONCILING: &str = "Reconciling";

/// Number of results in the history.
const HISTORY: usize = 10;

/// Recorded state of a release.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Installed {
    /// uid of the object with the record.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// resourceVersion of that object, for optimistic concurrency.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Tool that prunes the ApplySet, from its annotation: `pleach/<version>`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tooling: String,
    /// Version of this record. 0 before the first status write.
    pub format: u32,
    /// Oldest format whose pleach is allowed to write this record. Older versions refuse. Records
    /// before format 3 have no value; their own format is used.
    pub oldest_writer: u32,
    /// Id of the repository that owns the release.
    pub repository: String,
    /// Branch that a controller last followed for the release. It identifies the release to a
    /// controller that starts while git is unreachable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Name of the bundle.
    pub bundle: String,
    /// Last attempt that converged. Serialized as null if absent: the status is a merge patch,
    /// which keeps fields that it does not name.
    pub installed: Option<Attempt>,
    /// Attempt that has not converged.
    pub applying: Option<Attempt>,
    /// Whether the last attempt converged and all objects were ready.
    pub ready: bool,
    /// Last stage that the last attempt reached.
    pub stage: String,
    /// Whether git no longer contains the release, and its removal waits for consent.
    pub removed: bool,
    /// Facts for removal without its bundle. `None` in records of format 1.
    pub memory: Option<Memory>,
    /// Inventory shards of this state.
    pub shards: Vec<ShardRef>,
    /// Number of inventory entries over all shards.
    pub entries: usize,
    /// Last results, newest first.
    pub history: Vec<AttemptResult>,
    /// Course of the last change of nodes. `None` if the release never changed any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodesMemory>,
    /// Recently corrected fields, so that pleach does not fight another writer forever.
    pub corrections: Vec<Correction>,
    /// Proof that pleach wrote the record, as read. [`Scope::seal_record`] writes a new one.
    #[serde(skip_serializing)]
    pub seal: Option<Seal>,
    /// Digest of the sealed content, as read. `None` if the object has no record.
    #[serde(skip)]
    pub content: Option<Digest>,
    /// Fields of a newer pleach, which this version preserves.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, Value>,
}

/// Course of the last change of nodes. Set once, it is never removed, because nodes can bear marks of
/// the release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodesMemory {
    /// Nodes were changed, so all of them should be as the installed version declares.
    Changed,
    /// A rollback left them as they were.
    Left,
}

/// Branch of a remote repository.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Source {
    /// URL of the repository, without credentials.
    pub url: String,
    /// Name of the branch.
    pub branch: String,
}

/// Reference from the record to an inventory shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRef {
    /// Name of its ConfigMap.
    pub name: String,
    /// Digest of its content.
    pub digest: Digest,
}

/// One attempt to install a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// Version of the bundle, or the revision if the bundle has no versions.
    pub version: String,
    /// Git commit, `<commit>-dirty` or `none`.
    pub revision: String,
    /// Digest of the desired state.
    pub digest: Digest,
    /// Start time.
    pub at: Timestamp,
}

/// Returns whether a recorded revision is a full commit id, and neither `<commit>-dirty` nor
/// `none`.
pub fn is_commit(revision: &str) -> bool {
    revision.len() >= 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl Attempt {
    /// Returns the version for display. A commit id is shortened.
    fn short_version(&self) -> &str {
        let is_commit = self.version == self.revision;
        let short = self.version.get(..7).filter(|_| is_commit);
        short.unwrap_or(&self.version)
    }
}

/// Outcome of a run of a release.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunOutcome {
    /// Applied and verified.
    Deployed,
    /// The cluster had the desired state already. Never recorded.
    Unchanged,
    /// A step failed, an object is blocked, or the result could not be recorded.
    #[default]
    Failed,
    /// Stopped by a user or the system.
    Interrupted,
    /// Stopped by a newer revision.
    Superseded,
    /// Applied without waiting for readiness.
    Unverified,
    /// The release and its record are removed. Never recorded.
    Uninstalled,
    /// git no longer contains the release, and some objects are retained.
    Removed,
    /// An outcome that another version of pleach recorded, as it wrote it.
    #[serde(untagged)]
    Unknown(String),
}

impl RunOutcome {
    /// Returns the word for the outcome in records and output.
    pub fn word(&self) -> &str {
        match self {
            Self::Deployed => "deployed",
            Self::Unchanged => "unchanged",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
            Self::Superseded => "superseded",
            Self::Unverified => "unverified",
            Self::Uninstalled => "uninstalled",
            Self::Removed => "removed",
            Self::Unknown(word) => word,
        }
    }
}

/// Outcome of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttemptResult {
    /// Desired version.
    pub version: String,
    /// Desired revision.
    pub revision: String,
    /// Outcome of its run.
    pub result: RunOutcome,
    /// End time.
    pub at: Timestamp,
    /// The first failure, in one line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// User and reason of a local run while a controller follows the release.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub local: String,
    /// Failed checks that git overrides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overridden: Vec<Override>,
    /// Facts of the run. Empty in records of older versions.
    #[serde(default, skip_serializing_if = "RunFacts::is_empty")]
    pub run: RunFacts,
}

/// Author, duration and extent of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunFacts {
    /// User and process that executed it, as in its Lease.
    pub by: String,
    /// User who approved the plan. Empty if the plan needed no approval, or the user is unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub approved_by: String,
    /// Duration in whole seconds. `None` if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<i64>,
    /// Number of changed objects per action, such as `1 created, 2 updated`. Empty without changes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub changes: String,
    /// Categories of its failures, sorted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
}

impl RunFacts {
    /// Returns whether nothing is known.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A failed check that git overrides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Override {
    /// Name of the check.
    pub check: String,
    /// Reason that git gives, verbatim.
    pub reason: String,
}

/// Error from reading a record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The status is not a record.
    #[error("failed to parse the status of release {name}")]
    Parse {
        /// Name of the release.
        name: String,
        /// JSON error.
        #[source]
        source: serde_json::Error,
    },
    /// A newer pleach wrote the record.
    #[error(
        "the record of release {name} has format {format}, written by a newer pleach; this version writes format {RECORD_FORMAT}"
    )]
    Newer {
        /// Name of the release.
        name: String,
        /// Format of the record.
        format: u32,
    },
}

impl Installed {
    /// Reads the record from its object.
    pub fn from_object(value: &Value) -> Result<Self, RecordError> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &value["metadata"];
        let name = text(&metadata["name"]);
        let failed = |source| RecordError::Parse {
            name: name.clone(),
            source,
        };
        let status = status_of(value).map_err(failed)?;
        let mut record = match &status["record"] {
            Value::Null => Self::default(),
            record => serde_json::from_value(record.clone()).map_err(failed)?,
        };
        record.content = content_of(&status["record"]);
        record.oldest_writer = match record.oldest_writer {
            0 => record.format,
            recorded => recorded,
        };
        if record.oldest_writer > RECORD_FORMAT {
            return Err(RecordError::Newer {
                name,
                format: record.format,
            });
        }
        record.uid = text(&metadata["uid"]);
        record.resource_version = text(&metadata["resourceVersion"]);
        record.tooling = text(&metadata["annotations"]["applyset.kubernetes.io/tooling"]);
        Ok(record)
    }

    /// Verifies that pleach wrote the record, for this release in this store (I14). Records from
    /// before seals existed are trusted in the store of Releases, to which tenants cannot write. An
    /// object without a record passes, because it contains nothing to trust.
    pub fn verify(
        &self,
        scope: &Scope,
        store: &Store,
        key: Option<&StateKey>,
    ) -> Result<(), SealError> {
        let Some(content) = self.content else {
            return Ok(());
        };
        let is_older = self.seal.is_none() && self.format < SEALED_FORMAT;
        if is_older && *store == Store::Release {
            return Ok(());
        }
        scope.verify_record(key, (self.seal.as_ref(), content))
    }

    /// Returns whether the record is empty. Either a first run created its object and was killed,
    /// or a user emptied it.
    pub fn is_blank(&self) -> bool {
        self.format == 0 && self.installed.is_none() && self.applying.is_none()
    }

    /// Returns whether a rollback from `revision` is possible. The installed revision must be a
    /// different one, and a commit: files that were never committed cannot be restored.
    pub fn can_roll_back_from(&self, revision: &str) -> bool {
        self.installed.as_ref().is_some_and(|installed| {
            installed.revision != revision && is_commit(&installed.revision)
        })
    }

    /// Adds a result in front and drops the oldest. A repeated failure replaces the previous one,
    /// so that retries do not fill the history.
    pub fn push(&mut self, result: AttemptResult) {
        let is_repeated = self.history.first().is_some_and(|last| {
            let repeated = AttemptResult {
                at: result.at,
                run: result.run.clone(),
                ..last.clone()
            };
            result.result == RunOutcome::Failed && repeated == result
        });
        if is_repeated {
            self.history.remove(0);
        }
        self.history.insert(0, result);
        self.history.truncate(HISTORY);
    }

    /// Returns the content of the record in a status: with the format of this version, and without the
    /// metadata of its object.
    #[must_use]
    pub fn as_written(&self) -> Self {
        Self {
            uid: String::new(),
            resource_version: String::new(),
            tooling: String::new(),
            // Keep a newer format number: the record still contains its fields.
            format: self.format.max(RECORD_FORMAT),
            oldest_writer: self.oldest_writer.max(OLDEST_WRITER),
            ..self.clone()
        }
    }

    /// Builds the status: conditions, columns and the record. Its size does not grow with the
    /// release.
    pub fn status(&self, reason: &str, message: &str, now: Timestamp) -> Value {
        let record = self.as_written();
        let shown = self.applying.as_ref().or(self.installed.as_ref());
        let condition = |kind: &str, status: bool, reason: &str, message: &str| {
            json!({
                "type": kind,
                "status": if status { "True" } else { "False" },
                "reason": reason,
                "message": message,
                "lastTransitionTime": now.to_string(),
            })
        };
        let mut conditions = vec![condition("Ready", self.ready, reason, message)];
        if reason == RECONCILING {
            conditions.push(condition("Reconciling", true, reason, message));
        }
        let contended = self.contended(now);
        if !contended.is_empty() {
            let message = contended.join("; ");
            conditions.push(condition("Contended", true, "FieldsFoughtOver", &message));
        }
        json!({
            "version": shown.map(Attempt::short_version),
            "revision": shown.map(|attempt| &attempt.revision),
            "stage": self.stage,
            "conditions": conditions,
            "record": record,
        })
    }
}

/// Reads the status of an object of either kind.
pub(super) fn status_of(value: &Value) -> Result<Cow<'_, Value>, serde_json::Error> {
    match (value["kind"] == "ConfigMap", &value["data"]["status"]) {
        (true, Value::String(text)) => serde_json::from_str(text).map(Cow::Owned),
        (true, _) => Ok(Cow::Owned(Value::Null)),
        (false, _) => Ok(Cow::Borrowed(&value["status"])),
    }
}

/// Builds the object with the record, without the record itself. The ApplySet specification
/// (KEP-3659) requires a parent to list the kinds and namespaces of all members. The parent's own
/// namespace is omitted.
pub fn parent_object(
    store: &Store,
    name: &ReleaseName,
    inventory: &Inventory,
    pleach_version: &str,
) -> Value {
    let id = store.parent(name);
    let kinds: BTreeSet<String> = inventory
        .entries
        .keys()
        .map(|id| id.group_kind().to_string())
        .collect();
    let namespaces: BTreeSet<&str> = inventory
        .entries
        .keys()
        .filter_map(|member| member.namespace.as_deref())
        .filter(|namespace| id.namespace.as_deref() != Some(namespace))
        .collect();
    let join = |texts: &mut dyn Iterator<Item = &str>| texts.collect::<Vec<_>>().join(",");
    let mut object = json!({
        "kind": id.kind,
        "metadata": {
            "name": id.name,
            "labels": { "applyset.kubernetes.io/id": store.apply_set(name) },
            "annotations": {
                "applyset.kubernetes.io/tooling": format!("pleach/{pleach_version}"),
                "applyset.kubernetes.io/contains-group-kinds": join(&mut kinds.iter().map(String::as_str)),
                "applyset.kubernetes.io/additional-namespaces": join(&mut namespaces.into_iter()),
            },
        },
    });
    match store {
        Store::Release => {
            object["apiVersion"] = json!("pleach.dev/v1alpha1");
            object["spec"] = json!({ "environment": name.environment, "release": name.release });
        }
        Store::ConfigMap { namespace } => {
            object["apiVersion"] = json!("v1");
            object["metadata"]["namespace"] = json!(namespace);
            // Records are found by both labels. Shards have only this one.
            object["metadata"]["labels"][labels::RELEASE] = json!(name.label());
            object["metadata"]["labels"][labels::MANAGED_BY] = json!("pleach");
        }
    }
    object
}

/// Builds the data of a ConfigMap: the status, and readable fields from it.
pub fn config_map_data(status: &Value) -> Value {
    let condition = &status["conditions"][0];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    json!({
        "version": text(&status["version"]),
        "revision": text(&status["revision"]),
        "stage": text(&status["stage"]),
        "ready": text(&condition["status"]),
        "reason": text(&condition["reason"]),
        "message": text(&condition["message"]),
        "status": status.to_string(),
    })
}

#[cfg(test)]
mod tests;
