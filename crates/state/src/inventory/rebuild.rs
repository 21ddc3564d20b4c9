//! Reconstruction of a lost inventory from the live objects.
//!
//! Two marks prove membership: the release's label, which controllers copy and users remove, and
//! the release's Apply entry in `managedFields`, which only the server writes. An object with both
//! is a member. An object with only the entry is a member if it is desired. An object with only the
//! label is not. A member that another manager created, and whose fields that manager still owns,
//! was applied by mistake. It becomes a retained member, which is never deleted.

use std::collections::{BTreeMap, BTreeSet};

use super::{Entry, EntryState, Inventory};
use crate::live::LiveMeta;
use pleach_model::object::ObjectId;

/// A live object that can be a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// API version that it was read with.
    pub api_version: String,
    /// Its metadata.
    pub meta: LiveMeta,
}

/// Result of a reconstruction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// The inventory.
    pub inventory: Inventory,
    /// Number of members that the record still contained.
    pub known: usize,
    /// Members found by label and Apply entry.
    pub found: Vec<ObjectId>,
    /// Members with both marks that another manager created. They are never deleted.
    pub retained: Vec<ObjectId>,
    /// Desired members with the Apply entry but without the label.
    pub unlabelled: Vec<ObjectId>,
    /// Objects with the label but without the entry: copies and foreign objects.
    pub left_out: Vec<ObjectId>,
}

/// Adds all members that can be found to the rest of an inventory. Removes nothing, because an
/// extra entry is harmless.
pub fn rebuild(
    rest: Inventory,
    found: &BTreeMap<ObjectId, Found>,
    desired: &BTreeSet<ObjectId>,
    apply_set: &str,
) -> Rebuilt {
    let mut rebuilt = Rebuilt {
        known: rest.entries.len(),
        inventory: rest,
        ..Rebuilt::default()
    };
    for (id, Found { api_version, meta }) in found {
        let entries = &mut rebuilt.inventory.entries;
        let recorded = entries.get(id).is_some_and(|entry| {
            entry.state != EntryState::Intended && entry.uid.as_deref() == Some(&meta.uid)
        });
        if recorded {
            continue;
        }
        let has_label = meta.part_of() == Some(apply_set);
        match (has_label, meta.fingerprint.is_some()) {
            (true, true) if meta.made_by_others => rebuilt.retained.push(id.clone()),
            (true, true) => rebuilt.found.push(id.clone()),
            (false, true) if meta.part_of().is_none() && desired.contains(id) => {
                rebuilt.unlabelled.push(id.clone());
            }
            (true, false) => {
                rebuilt.left_out.push(id.clone());
                continue;
            }
            (false, _) => continue,
        }
        entries.insert(id.clone(), member(id, api_version, meta));
    }
    rebuilt
}

/// Builds the entry of a member without a record. It has no resourceVersion, so the object is read
/// in full before it counts as unchanged.
fn member(id: &ObjectId, api_version: &str, meta: &LiveMeta) -> Entry {
    let is_namespace = id.is("", "Namespace");
    Entry {
        state: if meta.made_by_others {
            EntryState::Kept
        } else {
            EntryState::Applied
        },
        api_version: api_version.to_owned(),
        uid: Some(meta.uid.clone()),
        desired: meta.desired(),
        fingerprint: meta.fingerprint,
        // Assume that the namespace existed before the release, because this cannot be determined.
        adopted: is_namespace,
        protected: is_namespace,
        ..Entry::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pleach_model::object::{Digest, labels};

    fn found(part_of: Option<&str>, is_applied: bool) -> Found {
        let labels = part_of.map(|set| (labels::PART_OF.to_owned(), set.to_owned()));
        Found {
            api_version: "v1".to_owned(),
            meta: LiveMeta {
                uid: "u".to_owned(),
                labels: labels.into_iter().collect(),
                fingerprint: is_applied.then(|| Digest::of(b"entry")),
                ..LiveMeta::default()
            },
        }
    }

    fn id(name: &str) -> ObjectId {
        ObjectId::new("", "ConfigMap", Some("web"), name)
    }

    #[test]
    fn members_are_known_by_both_marks_or_by_one_and_git() {
        let namespace = ObjectId::new("", "Namespace", None, "web");
        let mut taken = found(Some("set"), true);
        taken.meta.made_by_others = true;
        let objects = BTreeMap::from([
            (id("both"), found(Some("set"), true)),
            (id("copied-label"), found(Some("set"), false)),
            (id("lost-label"), found(None, true)),
            (id("lost-label-and-unwanted"), found(None, true)),
            (id("of-others"), found(Some("other"), true)),
            (id("recorded"), found(Some("set"), true)),
            (id("reborn"), found(Some("set"), true)),
            (id("taken"), taken),
            (namespace.clone(), found(Some("set"), true)),
        ]);
        let recorded = |uid: &str| Entry {
            state: EntryState::Applied,
            uid: Some(uid.to_owned()),
            protected: true,
            ..Entry::default()
        };
        let rest = Inventory {
            entries: [
                (id("recorded"), recorded("u")),
                (id("reborn"), recorded("previous")),
                (id("absent"), recorded("u")),
            ]
            .into(),
        };
        let desired = [id("lost-label"), id("copied-label"), id("of-others")].into();
        let rebuilt = rebuild(rest, &objects, &desired, "set");
        assert_eq!(rebuilt.known, 3);
        assert_eq!(rebuilt.found, [id("both"), id("reborn"), namespace.clone()]);
        assert_eq!(rebuilt.retained, [id("taken")]);
        assert_eq!(rebuilt.unlabelled, [id("lost-label")]);
        assert_eq!(rebuilt.left_out, [id("copied-label")]);
        let entries = &rebuilt.inventory.entries;
        assert_eq!(entries.len(), 7);
        assert_eq!(entries[&id("taken")].state, EntryState::Kept);
        assert_eq!(entries[&id("both")].state, EntryState::Applied);
        // The record takes precedence over live metadata.
        assert!(entries[&id("recorded")].protected);
        assert!(!entries[&id("both")].protected);
        assert!(entries[&namespace].adopted);
        assert_eq!(entries[&id("both")].resource_version, None);
    }
}
