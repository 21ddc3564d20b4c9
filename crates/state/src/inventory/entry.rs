//! Members of a release.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::OwnedFields;
use crate::live::LiveMeta;
use pleach_model::object::{Digest, ObjectId, ServiceRef};

/// The members of a release.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// Entries by object id.
    pub entries: BTreeMap<ObjectId, Entry>,
}

impl Inventory {
    /// Confirms what a previous run intended: an intended entry becomes applied if the live object
    /// has our label and our Apply entry. Returns the ids that could not be confirmed. They stay
    /// intended, and pleach never deletes an intended entry.
    pub fn confirm(
        &mut self,
        meta: &BTreeMap<ObjectId, LiveMeta>,
        apply_set: &str,
    ) -> Vec<ObjectId> {
        let mut unconfirmed = Vec::new();
        for (id, entry) in &mut self.entries {
            if entry.state != EntryState::Intended {
                continue;
            }
            match meta.get(id) {
                Some(live) if live.part_of() == Some(apply_set) && live.fingerprint.is_some() => {
                    entry.state = EntryState::Applied;
                    entry.uid = Some(live.uid.clone());
                    // Record nothing else. Another client can have written since, so the object
                    // must be read in full before it counts as unchanged.
                    entry.desired = live.desired();
                    entry.fields = OwnedFields::default();
                }
                _ => unconfirmed.push(id.clone()),
            }
        }
        unconfirmed
    }

    /// Returns the number of applied members.
    pub fn applied(&self) -> usize {
        self.entries
            .values()
            .filter(|entry| entry.state == EntryState::Applied)
            .count()
    }
}

/// Record of a member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Certainty that the object belongs to the release.
    pub state: EntryState,
    /// API version it was last applied with, such as `apps/v1`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// uid of the object that pleach applied or observed. `None` while intended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// resourceVersion in the response to the last apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    /// generation in the response to the last apply, if the kind has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Digest of the request body, without the annotation that contains the digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<Digest>,
    /// Digest of pleach's `managedFields` entry after the last apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Digest>,
    /// Fields that only pleach owned after the last apply. Empty in shards of format 1: a change in
    /// git then counts for the whole object.
    #[serde(default, skip_serializing_if = "OwnedFields::is_empty")]
    pub fields: OwnedFields,
    /// Stage in which it was applied.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stage: String,
    /// Whether its deletion needs consent, even if the current environment file no longer protects
    /// it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub protected: bool,
    /// Whether a namespace existed before the release or was adopted. It is never deleted then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopted: bool,
    /// Service through which a runtime registration was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceRef>,
}

/// Certainty that a member belongs to the release.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryState {
    /// About to be applied. It has no uid and is never deleted.
    #[default]
    Intended,
    /// Applied, with a successful response.
    Applied,
    /// Runtime object: created by the workloads, recorded with its uid.
    Observed,
    /// No longer desired, and left in the cluster on purpose.
    Kept,
}

#[cfg(test)]
mod tests {
    use super::*;
    use pleach_model::object::labels;

    #[test]
    fn an_intended_entry_is_ours_only_with_label_and_apply_entry() {
        let id = |name: &str| ObjectId::new("", "ConfigMap", Some("web"), name);
        let label = BTreeMap::from([(labels::PART_OF.to_owned(), "set".to_owned())]);
        let live = |labels: &BTreeMap<String, String>, fingerprint: Option<Digest>| LiveMeta {
            uid: "u".to_owned(),
            labels: labels.clone().into_iter().collect(),
            fingerprint,
            ..LiveMeta::default()
        };
        let ours = Some(Digest::of(b"entry"));
        let meta = BTreeMap::from([
            (id("both"), live(&label, ours)),
            (id("label"), live(&label, None)),
            (id("entry"), live(&BTreeMap::new(), ours)),
        ]);
        let mut inventory = Inventory {
            entries: ["both", "label", "entry", "absent"]
                .map(|name| (id(name), Entry::default()))
                .into(),
        };
        assert_eq!(
            inventory.confirm(&meta, "set"),
            [id("absent"), id("entry"), id("label")]
        );
        assert_eq!(inventory.entries[&id("both")].state, EntryState::Applied);
        assert_eq!(inventory.applied(), 1);
    }
}
