//! Contents of a namespace that pleach would delete.
//!
//! A namespace that contains foreign objects is never deleted. The same holds if its contents are
//! not known completely (I1).

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use pleach_model::object::ObjectId;
use pleach_state::inventory::{EntryState, Inventory};

/// Result of listing a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Contents {
    /// All objects. Every kind could be listed.
    Known(Vec<Content>),
    /// The reason why a kind could not be listed. Objects of that kind can exist.
    Unknown(String),
}

/// An object in a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// The object.
    pub id: ObjectId,
    /// Its uid.
    pub uid: String,
    /// uids of its owner references.
    pub owners: Vec<String>,
}

/// Kinds that the cluster creates for other objects and deletes with them.
const BY_THE_CLUSTER: [(&str, &str); 4] = [
    ("", "Event"),
    ("events.k8s.io", "Event"),
    ("", "Endpoints"),
    ("discovery.k8s.io", "EndpointSlice"),
];

impl Content {
    /// Returns whether the cluster creates the object in every namespace, or for other objects.
    fn is_by_the_cluster(&self) -> bool {
        let Self { id, .. } = self;
        BY_THE_CLUSTER
            .iter()
            .any(|(group, kind)| id.is(group, kind))
            || (id.is("", "ConfigMap") && id.name == "kube-root-ca.crt")
            || (id.is("", "ServiceAccount") && id.name == "default")
    }

    /// Returns whether the object has owners, all of which are in `owners`.
    fn is_owned_by(&self, owners: &BTreeSet<&str>) -> bool {
        let mut known = self.owners.iter().map(|uid| owners.contains(uid.as_str()));
        !self.owners.is_empty() && known.all(|is_known| is_known)
    }

    /// Returns whether a workload of the release created the object.
    pub fn is_of_run_time(&self, inventory: &Inventory) -> bool {
        inventory.entries.get(&self.id).is_some_and(|entry| {
            entry.state == EntryState::Observed && entry.uid.as_deref() == Some(&*self.uid)
        })
    }
}

fn uids<'a>(contents: impl Iterator<Item = &'a Content>) -> BTreeSet<&'a str> {
    contents.map(|one| one.uid.as_str()).collect()
}

impl Contents {
    /// Returns the objects that prevent deletion of the namespace, sorted. `is_removed` selects
    /// objects that are deleted before the namespace or with it. Objects owned only by selected
    /// objects count as selected, recursively.
    ///
    /// Fails with the reason if the contents are unknown.
    pub fn others(&self, is_removed: &dyn Fn(&Content) -> bool) -> Result<Vec<&ObjectId>, &str> {
        let contents = match self {
            Self::Known(contents) => contents,
            Self::Unknown(why) => return Err(why),
        };
        let mut going: BTreeSet<&str> = uids(contents.iter().filter(|one| is_removed(one)));
        loop {
            let owned = contents.iter().filter(|one| one.is_owned_by(&going));
            let more = uids(owned.filter(|one| !going.contains(one.uid.as_str())));
            if more.is_empty() {
                break;
            }
            going.extend(more);
        }
        let counts = |one: &&Content| !one.is_by_the_cluster() && !going.contains(one.uid.as_str());
        let counted: Vec<&Content> = contents.iter().filter(counts).collect();
        // Report only the owners, unless objects own each other in a cycle.
        let owners = uids(counted.iter().copied());
        let owned = |one: &&&Content| !one.is_owned_by(&owners);
        let mut others: Vec<&ObjectId> = counted.iter().filter(owned).map(|one| &one.id).collect();
        if others.is_empty() {
            others = counted.iter().map(|one| &one.id).collect();
        }
        others.sort();
        Ok(others)
    }
}

/// Formats the first objects and the number of further ones.
pub(crate) fn named(objects: &[&ObjectId]) -> String {
    const NAMED: usize = 3;
    let mut names: Vec<String> = objects
        .iter()
        .take(NAMED)
        .map(ToString::to_string)
        .collect();
    if objects.len() > NAMED {
        names.push(format!("and {} more", objects.len() - NAMED));
    }
    names.join(", ")
}

impl Contents {
    /// Explains why the namespace cannot be deleted. `None` if it can.
    pub fn objection(&self, is_removed: &dyn Fn(&Content) -> bool) -> Option<String> {
        match self.others(is_removed) {
            Err(why) => Some(format!("its contents are unknown: {why}")),
            Ok(others) if others.is_empty() => None,
            Ok(others) => Some(format!(
                "it contains objects that the release does not own: {}",
                named(&others)
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn content(id: &str, owner: &str) -> Content {
        Content {
            id: id.parse().unwrap(),
            uid: id.to_owned(),
            owners: (!owner.is_empty())
                .then(|| owner.to_owned())
                .into_iter()
                .collect(),
        }
    }

    #[rstest]
    #[case::nothing(&[], None)]
    #[case::default_objects(&[("ConfigMap/a/kube-root-ca.crt", ""), ("ServiceAccount/a/default", "")], None)]
    #[case::beside_objects(&[("Event/a/e", ""), ("Event.events.k8s.io/a/e", ""), ("Endpoints/a/s", ""), ("EndpointSlice.discovery.k8s.io/a/s-1", "")], None)]
    #[case::removed(&[("ConfigMap/a/removed", ""), ("Pod/a/p", "ConfigMap/a/removed")], None)]
    #[case::of_others(&[("Secret/a/s", "")], Some("it contains objects that the release does not own: Secret/a/s"))]
    #[case::another_service_account(&[("ServiceAccount/a/x", "")], Some("it contains objects that the release does not own: ServiceAccount/a/x"))]
    #[case::an_owner_counts_for_its_objects(&[("Pod/a/p", "ConfigMap/a/c"), ("ConfigMap/a/c", "")],
        Some("it contains objects that the release does not own: ConfigMap/a/c"))]
    #[case::owned_by_a_default_object(&[("ServiceAccount/a/default", ""), ("Secret/a/s", "ServiceAccount/a/default")],
        Some("it contains objects that the release does not own: Secret/a/s"))]
    #[case::in_a_circle(&[("Secret/a/1", "Secret/a/2"), ("Secret/a/2", "Secret/a/1")],
        Some("it contains objects that the release does not own: Secret/a/1, Secret/a/2"))]
    #[case::removed_with_the_owner_of_its_owner(&[("Pod/a/p", "ReplicaSet.apps/a/r"), ("ReplicaSet.apps/a/r", "Deployment.apps/a/removed"), ("Deployment.apps/a/removed", "")], None)]
    #[case::owned_from_elsewhere(&[("Pod/a/p", "gone")], Some("it contains objects that the release does not own: Pod/a/p"))]
    #[case::many(&[("Secret/a/1", ""), ("Secret/a/2", ""), ("Secret/a/3", ""), ("Secret/a/4", "")],
        Some("it contains objects that the release does not own: Secret/a/1, Secret/a/2, Secret/a/3, and 1 more"))]
    fn foreign_objects_prevent_deletion_of_a_namespace(
        #[case] objects: &[(&str, &str)],
        #[case] expected: Option<&str>,
    ) {
        let contents = Contents::Known(
            objects
                .iter()
                .map(|(id, owner)| content(id, owner))
                .collect(),
        );
        let is_removed = |one: &Content| one.id.name == "removed";
        assert_eq!(contents.objection(&is_removed).as_deref(), expected);
    }

    #[test]
    fn unlisted_kinds_prevent_deletion_of_a_namespace() {
        let contents = Contents::Unknown("foos cannot be listed".to_owned());
        assert_eq!(
            contents.objection(&|_| true).as_deref(),
            Some("its contents are unknown: foos cannot be listed")
        );
    }
}
