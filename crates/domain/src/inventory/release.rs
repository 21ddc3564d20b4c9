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

use super::{Correction, Inventory, Memory, Store};
use crate::object::{Digest, labels, managers};

/// Version of the status format. Format 1 had neither `removed` nor `memory`,
/// format 2 no `oldestWriter`, format 3 no `memory.readiness`, format 4 no
/// `memory.stages` and no `memory.dependsOn`.
pub const RECORD_FORMAT: u32 = 5;

/// The oldest format whose pleach may write a record of this one: what it does
/// not know it leaves as it is, and what it writes means the same.
const OLDEST_WRITER: u32 = 5;

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
    /// What a newer pleach keeps here, and lets us write around.
    #[serde(flatten)]
    pub unknown: BTreeMap<String, Value>,
}

/// A branch of a repository that is elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

    /// Whether it says nothing: its object was only just made, by a first run that
    /// may have been killed, or somebody emptied it since.
    pub fn is_blank(&self) -> bool {
        self.format == 0 && self.installed.is_none() && self.applying.is_none()
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
            "version": shown.map(|attempt| &attempt.version),
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
mod tests {
    use super::*;
    use crate::inventory::Entry;
    use crate::object::ObjectId;

    #[test]
    fn the_record_round_trips_through_the_status() {
        let attempt = Attempt {
            version: "v1".to_owned(),
            revision: "abc".to_owned(),
            digest: Digest::of(b"x"),
            at: Timestamp::UNIX_EPOCH,
        };
        let mut record = Installed {
            uid: "u".to_owned(),
            resource_version: "7".to_owned(),
            tooling: "pleach/0.1.0".to_owned(),
            format: RECORD_FORMAT,
            oldest_writer: OLDEST_WRITER,
            repository: "fleet".to_owned(),
            installed: Some(attempt),
            ready: true,
            shards: vec![ShardRef {
                name: "s".to_owned(),
                digest: Digest::of(b"y"),
            }],
            entries: 3,
            ..Installed::default()
        };
        for number in 0..12 {
            record.push(AttemptResult {
                version: format!("v{number}"),
                revision: "abc".to_owned(),
                result: "deployed".to_owned(),
                at: Timestamp::UNIX_EPOCH,
                message: String::new(),
                local: String::new(),
                overridden: Vec::new(),
            });
        }
        let object = json!({
            "metadata": {"name": "e.r", "uid": "u", "resourceVersion": "7",
                         "annotations": {"applyset.kubernetes.io/tooling": "pleach/0.1.0"}},
            "status": record.status("Deployed", "", Timestamp::UNIX_EPOCH),
        });
        assert_eq!(object["status"]["conditions"][0]["status"], "True");
        let read = Installed::from_object(&object).unwrap();
        assert_eq!(read, record);
        assert_eq!(
            (read.history.len(), read.history[0].version.as_str()),
            (10, "v11")
        );
    }

    #[test]
    fn a_failure_that_is_only_repeated_takes_one_place() {
        let mut record = Installed::default();
        let mut push = |result: &str, revision: &str, message: &str, second| {
            record.push(AttemptResult {
                version: "v1".to_owned(),
                revision: revision.to_owned(),
                result: result.to_owned(),
                at: Timestamp::from_second(second).unwrap(),
                message: message.to_owned(),
                local: String::new(),
                overridden: Vec::new(),
            });
            record.history.len()
        };
        assert_eq!(push("deployed", "abc", "", 1), 1);
        assert_eq!(push("failed", "def", "no", 2), 2);
        for second in 3..20 {
            assert_eq!(push("failed", "def", "no", second), 2);
        }
        assert_eq!(push("failed", "def", "still not", 20), 3);
        assert_eq!(push("failed", "012", "still not", 21), 4);
        assert_eq!(push("deployed", "012", "", 22), 5);
        assert_eq!(push("deployed", "012", "", 23), 6);
        assert_eq!(record.history[4].at, Timestamp::from_second(19).unwrap());
    }

    /// What pleach wrote in format 1, byte for byte.
    const FORMER: &str = r#"{"metadata":{"name":"e.r","uid":"u","resourceVersion":"7"},"status":{"record":{"applying":null,"bundle":"web","entries":2,"format":1,"history":[{"at":"1970-01-01T00:00:00Z","result":"deployed","revision":"abc","version":"v1"}],"installed":{"at":"1970-01-01T00:00:00Z","digest":"sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881","revision":"abc","version":"v1"},"ready":true,"repository":"fleet","shards":[],"stage":"verify"}}}"#;

    #[test]
    fn a_record_of_the_former_format_is_read() {
        let object: Value = serde_json::from_str(FORMER).unwrap();
        let record = Installed::from_object(&object).unwrap();
        assert_eq!((record.format, record.entries), (1, 2));
        assert_eq!(record.installed.as_ref().unwrap().version, "v1");
        assert!(record.ready && !record.removed);
        assert_eq!(record.memory, None);
        // What is written next is of this format.
        let status = record.status("Deployed", "", Timestamp::UNIX_EPOCH);
        assert_eq!(status["record"]["format"], RECORD_FORMAT);
        assert_eq!(status["record"]["memory"], Value::Null);
    }

    /// A newer pleach says who may still write; what it added survives that.
    #[test]
    fn a_newer_record_is_written_around_or_refused() {
        let newer = |oldest: u32| {
            json!({
                "metadata": {"name": "e.r", "uid": "u", "resourceVersion": "7"},
                "status": {"record": {"format": RECORD_FORMAT + 1, "oldestWriter": oldest,
                                      "repository": "fleet", "later": {"a": [1]}}},
            })
        };
        let record = Installed::from_object(&newer(RECORD_FORMAT)).unwrap();
        let status = record.status("Deployed", "", Timestamp::UNIX_EPOCH);
        assert_eq!(status["record"]["format"], RECORD_FORMAT + 1);
        assert_eq!(status["record"]["oldestWriter"], RECORD_FORMAT);
        assert_eq!(status["record"]["later"], json!({"a": [1]}));
        let error = Installed::from_object(&newer(RECORD_FORMAT + 1)).unwrap_err();
        assert!(matches!(error, RecordError::Newer { format, .. } if format == RECORD_FORMAT + 1));
    }

    #[test]
    fn what_a_release_remembers_for_its_end_round_trips() {
        let memory = json!({
            "namespace": null,
            "stages": [{"name": "agents", "after": "workloads", "timeout": 1200}, {"name": "api", "after": "workloads"}],
            "runtimeObjects": [{"kind": "APIService", "service": "api"}],
            "blockUninstall": [{"forEach": {"kind": "V", "group": "g"}, "where": "item.a", "message": "m"}],
            "readiness": [{"kind": "V", "group": "g", "current": "status.a", "stableFor": "PT10S"}],
            "dependsOn": ["base"],
            "protect": [{"kind": "*", "group": "g"}],
            "timeout": 90,
        });
        let read: Memory = serde_json::from_value(memory.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), memory);
        // Every field is written, or a merge patch would keep what is over.
        let empty = serde_json::to_value(Memory::default()).unwrap();
        assert_eq!(empty.as_object().unwrap().len(), 8);
    }

    #[test]
    fn a_record_of_a_newer_pleach_is_refused() {
        let object = json!({"metadata": {"name": "e.r"}, "status": {"record": {"format": RECORD_FORMAT + 1}}});
        assert!(matches!(
            Installed::from_object(&object),
            Err(RecordError::Newer { .. })
        ));
        assert_eq!(
            Installed::from_object(&json!({})).unwrap(),
            Installed::default()
        );
    }

    /// A backup that is restored without status leaves metadata alone.
    #[test]
    fn a_record_that_was_emptied_says_nothing() {
        let release = json!({"metadata": {"name": "e.r", "uid": "u", "resourceVersion": "7"}});
        let map = json!({"kind": "ConfigMap", "metadata": {"name": "e.r", "uid": "u"}});
        for object in [release, map] {
            let record = Installed::from_object(&object).unwrap();
            assert!(record.is_blank());
            assert_eq!(record.uid, "u");
            let status = record.status("Reconciling", "", Timestamp::UNIX_EPOCH);
            let written = json!({"metadata": {"name": "e.r"}, "status": status});
            assert!(!Installed::from_object(&written).unwrap().is_blank());
        }
        let former: Value = serde_json::from_str(FORMER).unwrap();
        assert!(!Installed::from_object(&former).unwrap().is_blank());
    }

    #[test]
    fn the_parent_names_kinds_and_namespaces_of_its_members() {
        let ids = [
            ("apps", "Deployment", Some("b")),
            ("", "ConfigMap", Some("a")),
            ("", "Namespace", None),
        ];
        let inventory = Inventory {
            entries: ids
                .map(|(g, k, n)| (ObjectId::new(g, k, n, "x"), Entry::default()))
                .into(),
        };
        let name = ReleaseName {
            environment: "e".to_owned(),
            release: "r".to_owned(),
        };
        let parent = parent_object(&Store::Release, &name, &inventory, "0.1.0");
        let annotations = &parent["metadata"]["annotations"];
        assert_eq!(
            annotations["applyset.kubernetes.io/contains-group-kinds"],
            "ConfigMap,Deployment.apps,Namespace"
        );
        assert_eq!(
            annotations["applyset.kubernetes.io/additional-namespaces"],
            "a,b"
        );
        assert_eq!(
            parent["metadata"]["labels"]["applyset.kubernetes.io/id"],
            Store::Release.apply_set(&name)
        );
        // A parent in a namespace does not name that one among the additional ones.
        let store = Store::ConfigMap {
            namespace: "a".to_owned(),
        };
        let parent = parent_object(&store, &name, &inventory, "0.1.0");
        assert_eq!(
            parent["metadata"]["annotations"]["applyset.kubernetes.io/additional-namespaces"],
            "b"
        );
        assert_eq!(
            (&parent["kind"], &parent["metadata"]["namespace"]),
            (&json!("ConfigMap"), &json!("a"))
        );
    }

    #[test]
    fn a_config_map_holds_the_same_record() {
        let record = Installed {
            format: RECORD_FORMAT,
            oldest_writer: OLDEST_WRITER,
            repository: "fleet".to_owned(),
            ready: true,
            ..Installed::default()
        };
        let status = record.status("Deployed", "", Timestamp::UNIX_EPOCH);
        let data = config_map_data(&status);
        assert_eq!(
            (&data["ready"], &data["reason"]),
            (&json!("True"), &json!("Deployed"))
        );
        let object = json!({"kind": "ConfigMap", "metadata": {"name": "e.r"}, "data": data});
        assert_eq!(Installed::from_object(&object).unwrap(), record);
        let broken =
            json!({"kind": "ConfigMap", "metadata": {"name": "e.r"}, "data": {"status": "{"}});
        assert!(matches!(
            Installed::from_object(&broken),
            Err(RecordError::Parse { .. })
        ));
        // One that somebody else made says nothing.
        let other = json!({"kind": "ConfigMap", "metadata": {"name": "e.r"}, "status": status});
        assert_eq!(
            Installed::from_object(&other).unwrap(),
            Installed::default()
        );
    }
}
