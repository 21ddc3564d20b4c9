//! A lost inventory from what objects say of themselves.
//!
//! Membership is proved by two marks: the label of the release, which
//! controllers copy and people remove, and the release's own Apply entry, which
//! only the server writes. With both an object is a member. With the entry
//! alone it is one if git wants it. With the label alone it never is. One that
//! somebody else made, and holds fields of, is a member that is kept: it was
//! applied by mistake, and never to be deleted.

use std::collections::{BTreeMap, BTreeSet};

use super::{Entry, EntryState, Inventory};
use crate::object::ObjectId;
use crate::observe::LiveMeta;

/// An object that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// API version at which it was found.
    pub api_version: String,
    /// What it says of itself.
    pub meta: LiveMeta,
}

/// An inventory that was put together anew.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// The inventory.
    pub inventory: Inventory,
    /// Members that the record still had.
    pub known: usize,
    /// Members that were found by their label and their Apply entry.
    pub found: Vec<ObjectId>,
    /// Members of both marks that somebody else made: they are never deleted.
    pub kept: Vec<ObjectId>,
    /// Members that git wants, which lost their label and have the entry.
    pub unlabelled: Vec<ObjectId>,
    /// What has the label and not the entry: copies, and what somebody made.
    pub left_out: Vec<ObjectId>,
}

/// Adds to what is left of an inventory all that can be found. Nothing leaves
/// it: an entry too many is harmless.
pub fn rebuild(
    rest: Inventory,
    found: &BTreeMap<ObjectId, Found>,
    wanted: &BTreeSet<ObjectId>,
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
            (true, true) if meta.made_by_others => rebuilt.kept.push(id.clone()),
            (true, true) => rebuilt.found.push(id.clone()),
            (false, true) if meta.part_of().is_none() && wanted.contains(id) => {
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

/// What can be said of a member without its record. It has no resourceVersion,
/// so it is read in full before it counts as unchanged.
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
        // Whether it was there before the release is not to be seen any more.
        adopted: is_namespace,
        protected: is_namespace,
        ..Entry::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{Digest, labels};

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
                (id("reborn"), recorded("former")),
                (id("absent"), recorded("u")),
            ]
            .into(),
        };
        let wanted = [id("lost-label"), id("copied-label"), id("of-others")].into();
        let rebuilt = rebuild(rest, &objects, &wanted, "set");
        assert_eq!(rebuilt.known, 3);
        assert_eq!(rebuilt.found, [id("both"), id("reborn"), namespace.clone()]);
        assert_eq!(rebuilt.kept, [id("taken")]);
        assert_eq!(rebuilt.unlabelled, [id("lost-label")]);
        assert_eq!(rebuilt.left_out, [id("copied-label")]);
        let entries = &rebuilt.inventory.entries;
        assert_eq!(entries.len(), 7);
        assert_eq!(entries[&id("taken")].state, EntryState::Kept);
        assert_eq!(entries[&id("both")].state, EntryState::Applied);
        // What the record still has is better than what can be seen.
        assert!(entries[&id("recorded")].protected);
        assert!(!entries[&id("both")].protected);
        assert!(entries[&namespace].adopted);
        assert_eq!(entries[&id("both")].resource_version, None);
    }
}
