//! What is recorded of a release, and how it is written.
//!
//! A Release object has it in its status; a ConfigMap has the same status as
//! JSON text under `status`, beside what people look for.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::seal::content_of;
use super::{Correction, Inventory, Memory, Scope, Seal, SealError, StateKey, Store};
use crate::object::{Digest, labels, managers};

/// Version of the status format. Format 1 had neither `removed` nor `memory`,
/// format 2 no `oldestWriter`, format 3 no `memory.readiness`, format 4 no
/// `memory.stages` and no `memory.dependsOn`, format 5 no `seal`.
pub const RECORD_FORMAT: u32 = 6;

/// The first format whose records are sealed.
const SEALED_FORMAT: u32 = 6;

/// The oldest format whose pleach may write a record of this one: what it does
/// not know it leaves as it is, and what it writes means the same.
const OLDEST_WRITER: u32 = 6;

/// Reason of the condition Ready while a plan is carried out.
pub const RECONCILING: &str = "Reconciling";

/// Results that are kept.
const HISTORY: usize = 10;

/// A release within its environment; its text `<environment>.<release>` names
/// everything that is kept for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReleaseName {
    /// Environment, a DNS label.
    pub environment: String,
    /// Release, a DNS label.
    pub release: String,
}

impl ReleaseName {
    /// The only field manager of the release's objects.
    pub fn field_manager(&self) -> String {
        format!("{}{self}", managers::RELEASE)
    }

    /// What state objects carry as label `pleach.dev/release`: the name, or its
    /// digest where it is too long for a label value (63 characters).
    pub fn label(&self) -> String {
        let name = self.to_string();
        if name.len() <= 63 {
            name
        } else {
            Digest::of(name.as_bytes()).short()
        }
    }
}

impl fmt::Display for ReleaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.environment, self.release)
    }
}

/// What the cluster says is installed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Installed {
    /// uid of the object that holds the record.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// resourceVersion of that object: the fence of the next write.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Who prunes the ApplySet, from its annotation: `pleach/<version>`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tooling: String,
    /// Version of this record; none before the first status write.
    pub format: u32,
    /// A pleach that writes this format, or a newer one, may write the record;
    /// any other refuses. None in records before format 3: their own format.
    pub oldest_writer: u32,
    /// Id of the repository that owns the release.
    pub repository: String,
    /// The branch that a loop last followed for it: what a loop that starts while
    /// git is away knows it by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// The bundle.
    pub bundle: String,
    /// The last attempt that converged. Written as null where there is none:
    /// the status is written as a merge patch, which keeps what it does not name.
    pub installed: Option<Attempt>,
    /// An attempt that has not converged.
    pub applying: Option<Attempt>,
    /// Whether the last attempt converged and everything was ready.
    pub ready: bool,
    /// The stage that the last attempt reached.
    pub stage: String,
    /// Whether git no longer has the release: it waits for the consent to its
    /// end. Only kept while that is so.
    pub removed: bool,
    /// What taking it away needs when its bundle is gone from git; none in a
    /// record of format 1.
    pub memory: Option<Memory>,
    /// The inventory shards that belong to this state.
    pub shards: Vec<ShardRef>,
    /// Number of inventory entries over all shards.
    pub entries: usize,
    /// The last results, newest first.
    pub history: Vec<AttemptResult>,
    /// Fields that were taken back lately, so that nobody fights without end.
    pub corrections: Vec<Correction>,
    /// Proof that pleach wrote it, as it was read; written by [`Scope::seal_record`].
    #[serde(skip_serializing)]
    pub seal: Option<Seal>,
    /// Digest of what the seal is about, as it was read; none where the object has
    /// no record.
    #[serde(skip)]
    pub content: Option<Digest>,
    /// What a newer pleach keeps here, and lets us write around.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, Value>,
}

/// A branch of a repository that is elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Source {
    /// URL of the repository. It holds no credentials.
    pub url: String,
    /// The branch.
    pub branch: String,
}

/// A shard that the record commits to.
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
    /// Version of the bundle; the revision for bundles without versions.
    pub version: String,
    /// git commit, `<commit>-dirty` or `none`.
    pub revision: String,
    /// Digest of everything desired.
    pub digest: Digest,
    /// When it began.
    pub at: Timestamp,
}

/// Returns whether a recorded revision is a full commit id, and neither `<commit>-dirty` nor
/// `none`.
pub fn is_commit(revision: &str) -> bool {
    revision.len() >= 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl Attempt {
    /// The version as a column shows it: a commit that stands for one is shortened.
    fn short_version(&self) -> &str {
        let is_commit = self.version == self.revision;
        let short = self.version.get(..7).filter(|_| is_commit);
        short.unwrap_or(&self.version)
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttemptResult {
    /// Version that was wanted.
    pub version: String,
    /// Revision that was wanted.
    pub revision: String,
    /// `deployed`, `failed`, `interrupted`, `superseded` or `unverified`.
    pub result: String,
    /// When it ended.
    pub at: Timestamp,
    /// One line: the first failure.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Who went ahead from the desk although a loop follows the release, and why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub local: String,
    /// Checks that did not hold and were overridden in git.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overridden: Vec<Override>,
}

/// A check that did not hold and was overridden in git.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Override {
    /// The check.
    pub check: String,
    /// Why, in the words of whoever said so.
    pub reason: String,
}

/// A record that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The status is not what we write.
    #[error("failed to parse the status of release {name}")]
    Parse {
        /// Name of the release.
        name: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A newer pleach wrote it.
    #[error(
        "release {name} was written in format {format} by a newer pleach; this one writes format {RECORD_FORMAT}"
    )]
    Newer {
        /// Name of the release.
        name: String,
        /// Its format.
        format: u32,
    },
}

impl Installed {
    /// Reads the object that holds the record.
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
            said => said,
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

    /// Whether pleach wrote it, for this release in this store (I14). A record
    /// from before there were seals is believed in the store of Releases, which no
    /// tenant can write. An object without a record says nothing that could be
    /// believed.
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

    /// Whether it says nothing: its object was only just made, by a first run that
    /// may have been killed, or somebody emptied it since.
    pub fn is_blank(&self) -> bool {
        self.format == 0 && self.installed.is_none() && self.applying.is_none()
    }

    /// Returns whether the installed version is another one than that of `revision`, and a
    /// rollback finds it in git: files that no commit has cannot be restored.
    pub fn can_go_back_from(&self, revision: &str) -> bool {
        self.installed.as_ref().is_some_and(|installed| {
            installed.revision != revision && is_commit(&installed.revision)
        })
    }

    /// Adds a result in front and forgets the oldest. A failure that is only
    /// repeated replaces the one before: what is tried again and again would leave
    /// nothing else to remember.
    pub fn push(&mut self, result: AttemptResult) {
        let is_repeated = self.history.first().is_some_and(|last| {
            let at = result.at;
            result.result == "failed" && AttemptResult { at, ..last.clone() } == result
        });
        if is_repeated {
            self.history.remove(0);
        }
        self.history.insert(0, result);
        self.history.truncate(HISTORY);
    }

    /// The status as it is written: conditions and columns for people and
    /// kstatus, and the record. Its size does not grow with the release.
    pub fn status(&self, reason: &str, message: &str, now: Timestamp) -> Value {
        let record = Self {
            uid: String::new(),
            resource_version: String::new(),
            tooling: String::new(),
            // A newer one stays newer: what it added is still in it.
            format: self.format.max(RECORD_FORMAT),
            oldest_writer: self.oldest_writer.max(OLDEST_WRITER),
            ..self.clone()
        };
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

/// The status that an object holds, whatever its kind.
pub(super) fn status_of(value: &Value) -> Result<Cow<'_, Value>, serde_json::Error> {
    match (value["kind"] == "ConfigMap", &value["data"]["status"]) {
        (true, Value::String(text)) => serde_json::from_str(text).map(Cow::Owned),
        (true, _) => Ok(Cow::Owned(Value::Null)),
        (false, _) => Ok(Cow::Borrowed(&value["status"])),
    }
}

/// The object that holds the record of a release, without the record: what the
/// ApplySet specification (KEP-3659) wants of a parent, the kinds and
/// namespaces of all members. A parent's own namespace is not named again.
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
            // Records are found by both of its labels, and shards have only this one.
            object["metadata"]["labels"][labels::RELEASE] = json!(name.label());
            object["metadata"]["labels"][labels::MANAGED_BY] = json!("pleach");
        }
    }
    object
}

/// The data of a ConfigMap that holds a status: the status, and what people
/// look for in it.
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
