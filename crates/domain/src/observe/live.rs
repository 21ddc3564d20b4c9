//! Live objects, and what their metadata tells.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::TextMap;
use crate::deployer::Marked;
use crate::diff::masking::Masker;
use crate::diff::ownership;
use crate::object::{Digest, DigestKey, ObjectId, Secrecy, annotations, labels};

/// What the metadata of a live object tells without its body.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveMeta {
    /// Unique id of this incarnation of the object.
    pub uid: String,
    /// Changes with every write.
    pub resource_version: String,
    /// Changes with every write to the spec; absent for many kinds.
    pub generation: Option<i64>,
    /// Digest of our own managedFields entry; none when we own nothing of it.
    pub fingerprint: Option<Digest>,
    /// Whether a deletion waits for finalizers.
    pub deleting: bool,
    /// What a deletion waits for.
    pub finalizers: Vec<String>,
    /// All labels.
    pub labels: TextMap,
    /// All annotations; the value of last-applied-configuration is emptied, it
    /// may hold secrets.
    pub annotations: TextMap,
    /// Managers of main-resource fields, ours too, without doubles.
    pub managers: Vec<String>,
    /// Whether somebody else made it, and we applied it later.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub made_by_others: bool,
    /// Whether the server keeps track of owners at all (aggregated servers may not).
    pub has_managed_fields: bool,
    /// uids of its owners.
    pub owners: Vec<String>,
}

impl LiveMeta {
    /// Reads the `metadata` of an object; `manager` is our field manager.
    pub fn read(metadata: &Value, manager: &str) -> Self {
        let text = |key: &str| metadata[key].as_str().unwrap_or_default().to_owned();
        let map = |key: &str| -> TextMap {
            metadata[key]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
                .collect()
        };
        let texts = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut annotations = map("annotations");
        if let Some(value) = annotations.get_mut(annotations::LAST_APPLIED) {
            value.clear();
        }
        let entries = ownership::entries(metadata);
        Self {
            uid: text("uid"),
            resource_version: text("resourceVersion"),
            generation: metadata["generation"].as_i64(),
            fingerprint: ownership::fingerprint(metadata, manager),
            deleting: metadata["deletionTimestamp"].is_string(),
            finalizers: metadata["finalizers"]
                .as_array()
                .into_iter()
                .flatten()
                .map(texts)
                .collect(),
            labels: map("labels"),
            annotations,
            managers: ownership::managers(metadata),
            made_by_others: ownership::made_by_others(metadata, manager),
            has_managed_fields: !entries.is_empty(),
            owners: metadata["ownerReferences"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|owner| texts(&owner["uid"]))
                .collect(),
        }
    }

    /// The ApplySet the object says it belongs to.
    pub fn part_of(&self) -> Option<&str> {
        self.labels.get(labels::PART_OF).map(String::as_str)
    }

    /// Whether it was applied as a member of an ApplySet, and is not on its way
    /// out: controllers copy the label alone.
    pub fn is_applied_to(&self, apply_set: &str) -> bool {
        self.part_of() == Some(apply_set) && self.fingerprint.is_some() && !self.deleting
    }

    /// The digest annotation of the last apply.
    pub fn desired(&self) -> Option<Digest> {
        self.annotations.get(annotations::DESIRED)?.parse().ok()
    }
}

impl Marked for LiveMeta {
    fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str)
    }
}

/// A live object in full.
#[derive(Clone, PartialEq)]
pub struct Live {
    meta: LiveMeta,
    value: Value,
    secrecy: Secrecy,
}

impl Live {
    /// Takes an answer of the server; `manager` is our field manager.
    pub fn new(value: Value, manager: &str) -> Self {
        let mut live = Self {
            meta: LiveMeta::read(&value["metadata"], manager),
            value,
            secrecy: Secrecy::default(),
        };
        live.secrecy = Secrecy::of(&live.id(), &[]);
        live
    }

    /// The same object, of which more is secret than its kind says.
    #[must_use]
    pub fn hiding(mut self, secrecy: &Secrecy) -> Self {
        self.secrecy = self.secrecy.and(secrecy);
        self
    }

    /// Which of its values may not be shown.
    pub fn secrecy(&self) -> Secrecy {
        self.secrecy.clone()
    }

    /// Its metadata.
    pub fn meta(&self) -> &LiveMeta {
        &self.meta
    }

    /// The object as the server sent it.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// The id under which the server filed it.
    pub fn id(&self) -> ObjectId {
        let api_version = self.value["apiVersion"].as_str().unwrap_or_default();
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        ObjectId::new(
            group,
            self.value["kind"].as_str().unwrap_or_default(),
            self.value["metadata"]["namespace"].as_str(),
            self.value["metadata"]["name"].as_str().unwrap_or_default(),
        )
    }

    fn masked(&self) -> Value {
        // The key lives as long as this one object: only its numbers get out.
        Masker::new(DigestKey::new(Vec::new())).object(self.value.clone(), &self.secrecy)
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the body: it may be a Secret.
        f.debug_struct("Live")
            .field("id", &self.id())
            .field("meta", &self.meta)
            .finish_non_exhaustive()
    }
}

#[derive(Serialize, Deserialize)]
struct LiveFile {
    meta: LiveMeta,
    value: Value,
}

impl Serialize for Live {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        LiveFile {
            meta: self.meta.clone(),
            value: self.masked(),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Live {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let LiveFile { meta, value } = LiveFile::deserialize(deserializer)?;
        let mut live = Self {
            meta,
            value,
            secrecy: Secrecy::default(),
        };
        live.secrecy = Secrecy::of(&live.id(), &[]);
        Ok(live)
    }
}
