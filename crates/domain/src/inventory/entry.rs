//! Members of a release.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::OwnedFields;
use crate::object::{Digest, ObjectId, ServiceRef};
use crate::observe::LiveMeta;

/// The members of a release.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// By id.
    pub entries: BTreeMap<ObjectId, Entry>,
}

impl Inventory {
    /// Settles what a former run intended and did not confirm: an intended
    /// entry becomes applied when the live object carries our label and our
    /// Apply entry. Returns the ids that could not be confirmed; they stay
    /// intended, and an intended entry is never deleted.
    pub fn settle(
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
                    // Nothing else is recorded: somebody may have written since,
                    // so the object is read in full before it counts as unchanged.
                    entry.desired = live.desired();
                    entry.fields = OwnedFields::default();
                }
                _ => unconfirmed.push(id.clone()),
            }
        }
        unconfirmed
    }

    /// How many members were applied.
    pub fn applied(&self) -> usize {
        self.entries
            .values()
            .filter(|entry| entry.state == EntryState::Applied)
            .count()
    }
}

/// What is recorded of a member.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// How sure we are that it is ours.
    pub state: EntryState,
    /// API version it was last applied with, such as `apps/v1`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// uid of the object that we applied or saw; none while intended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// resourceVersion of our last answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    /// generation of our last answer, where the kind has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Digest of the body sent, without the annotation that carries it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<Digest>,
    /// Digest of our managedFields entry after the last apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Digest>,
    /// The fields that were ours alone after the last apply. Empty in shards of
    /// format 1: then a change in git counts for the whole object.
    #[serde(default, skip_serializing_if = "OwnedFields::is_empty")]
    pub fields: OwnedFields,
    /// The stage it was applied in.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stage: String,
    /// Never deleted without consent, whatever the environment file says today.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub protected: bool,
    /// The namespace was there before us, or was adopted: never deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopted: bool,
    /// The Service by which a run-time registration was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceRef>,
}

/// How sure we are that a member is ours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryState {
    /// About to be applied; has no uid and is never deleted.
    #[default]
    Intended,
    /// We applied it and saw the answer.
    Applied,
    /// Made by the workloads, not by us; recorded with its uid.
    Observed,
    /// No longer wanted, and left in place on purpose.
    Kept,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::labels;

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
            inventory.settle(&meta, "set"),
            [id("absent"), id("entry"), id("label")]
        );
        assert_eq!(inventory.entries[&id("both")].state, EntryState::Applied);
        assert_eq!(inventory.applied(), 1);
    }
}
