//! Live objects and their metadata.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use pleach_fields::diff::{masking::Masker, ownership};
use pleach_model::foreign_tools::Marked;
use pleach_model::object::{Digest, DigestKey, ObjectId, Secrecy, annotations, labels};
use pleach_model::text_map::TextMap;

/// Facts from the metadata of a live object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveMeta {
    /// uid of the object.
    pub uid: String,
    /// Version that changes with every write.
    pub resource_version: String,
    /// Counter of changes to the spec. Absent for many kinds.
    pub generation: Option<i64>,
    /// Digest of pleach's own `managedFields` entry. `None` if pleach owns no field.
    pub fingerprint: Option<Digest>,
    /// Whether the object is being deleted.
    pub deleting: bool,
    /// Finalizers, which delay a deletion.
    pub finalizers: Vec<String>,
    /// All labels.
    pub labels: TextMap,
    /// All annotations. The value of last-applied-configuration is emptied, because it can contain
    /// secrets.
    pub annotations: TextMap,
    /// Managers of fields outside subresources, including pleach, without duplicates.
    pub managers: Vec<String>,
    /// Whether another manager created the object and pleach applied it later.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub made_by_others: bool,
    /// Whether the server maintains `managedFields`. Aggregated servers often do not.
    pub has_managed_fields: bool,
    /// uids of its owner references.
    pub owners: Vec<String>,
}

impl LiveMeta {
    /// Reads the `metadata` of an object. `manager` is pleach's field manager.
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

    /// Returns the ApplySet in the object's label.
    pub fn part_of(&self) -> Option<&str> {
        self.labels.get(labels::PART_OF).map(String::as_str)
    }

    /// Returns whether pleach applied the object as a member of the ApplySet, and it is not being
    /// deleted. The label alone is not enough, because controllers copy labels to other objects.
    pub fn is_applied_to(&self, apply_set: &str) -> bool {
        self.part_of() == Some(apply_set) && self.fingerprint.is_some() && !self.deleting
    }

    /// Parses the digest annotation of the last apply.
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

/// A complete live object.
#[derive(Clone, PartialEq)]
pub struct Live {
    meta: LiveMeta,
    value: Value,
    secrecy: Secrecy,
}

impl Live {
    /// Wraps an object as the server sent it. `manager` is pleach's field manager.
    pub fn new(value: Value, manager: &str) -> Self {
        let mut live = Self {
            meta: LiveMeta::read(&value["metadata"], manager),
            value,
            secrecy: Secrecy::default(),
        };
        live.secrecy = Secrecy::of(&live.id(), &[]);
        live
    }

    /// Adds secret values to those implied by the object's kind.
    #[must_use]
    pub fn hiding(mut self, secrecy: &Secrecy) -> Self {
        self.hide(secrecy);
        self
    }

    /// Adds secret values in place, as [`Self::hiding`].
    pub fn hide(&mut self, secrecy: &Secrecy) {
        self.secrecy = std::mem::take(&mut self.secrecy).and(secrecy);
    }

    /// Returns the values that must be masked.
    pub fn secrecy(&self) -> Secrecy {
        self.secrecy.clone()
    }

    /// Returns the metadata.
    pub fn meta(&self) -> &LiveMeta {
        &self.meta
    }

    /// Returns the object as the server sent it.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Returns the id of the object.
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
        // Use a throwaway key for each object: the output contains only numbered placeholders.
        Masker::new(DigestKey::new(Vec::new())).object(self.value.clone(), &self.secrecy)
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omit the body: it can be a Secret.
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
