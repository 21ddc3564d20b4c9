//! Existence of members and desired objects: metadata lists by kind, then reads by name of objects
//! that the lists lack.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use futures::stream::{self, StreamExt as _};
use pleach_model::object::{GroupKind, Manifest, ObjectId};
use pleach_planner::observe::{Listing, ListingKey, Observed};
use pleach_planner::plan::Desired;
use pleach_state::inventory::{Entry, EntryState, Installed};
use pleach_state::live::LiveMeta;

use super::{CONCURRENCY, Reader, failed_listing, namespaces};
use crate::sync::{
    absent::confirmed_absent, error::SyncError, rbac_scope::RbacScope, state::Named,
};
use pleach_cluster::{Class, ClusterError, MetaList, ResourcePath, Selector};

/// A kind, with the namespaces of its objects.
struct MemberQuery {
    path: ResourcePath,
    namespaces: BTreeSet<String>,
}

/// Result of a LIST.
#[derive(Debug)]
pub(super) struct Listed {
    kind: GroupKind,
    namespace: Option<String>,
    path: ResourcePath,
    list: Result<MetaList, ClusterError>,
}

impl Listed {
    fn is_of(&self, kind: &GroupKind, namespace: Option<&String>) -> bool {
        self.kind == *kind && self.namespace.as_ref() == namespace
    }
}

impl Reader<'_> {
    /// Sends one metadata LIST per desired or recorded kind, or one per namespace if the
    /// cluster-wide LIST is forbidden. `named` adds possible locations of members if the record is
    /// empty. Does not repeat the lists of `early`.
    pub(super) async fn list_members(
        &self,
        desired: &Desired,
        named: &Named,
        early: Vec<Listed>,
        observed: &mut Observed,
    ) -> Result<(), SyncError> {
        let mut kinds = self.kinds(desired, observed).await;
        for kind in &named.kinds {
            if let Some(path) = ResourcePath::preferred(&observed.discovery, kind) {
                let namespaces = BTreeSet::new();
                let query = kinds.entry(kind.clone());
                let query = query.or_insert(MemberQuery { path, namespaces });
                query.namespaces.extend(named.namespaces.iter().cloned());
            }
        }
        let mut questions = scoped(&kinds, observed);
        // Another version of the desired manifests is listed again, and so is a kind whose desired
        // objects are in further namespaces.
        let is_requested = |listed: &Listed| {
            let mut requested = questions.iter();
            let query = kinds.get(&listed.kind);
            query.is_some_and(|query| query.path == listed.path)
                && requested.any(|(kind, namespace)| listed.is_of(kind, namespace.as_ref()))
        };
        let mut lists: Vec<Listed> = early.into_iter().filter(is_requested).collect();
        questions.retain(|(kind, namespace)| {
            let mut known = lists.iter();
            !known.any(|listed| listed.is_of(kind, namespace.as_ref()))
        });
        lists.extend(self.send_lists(&kinds, questions).await);
        let closed = note_lists(&kinds, lists, observed)?;
        // A kind that cannot be listed cluster-wide can often be listed in the namespaces of its
        // objects.
        let questions: Vec<(GroupKind, Option<String>)> = closed
            .into_iter()
            .flat_map(|kind| {
                let namespaces = kinds.get(&kind).map(|query| &query.namespaces);
                let namespaces = namespaces.into_iter().flatten().cloned();
                namespaces
                    .map(|namespace| (kind.clone(), Some(namespace)))
                    .collect::<Vec<_>>()
            })
            .collect();
        let lists = self.send_lists(&kinds, questions).await;
        note_lists(&kinds, lists, observed)?;
        // Controllers copy our label to their objects, so keep only desired or recorded ones.
        // Without any record, keep the objects that we applied, so that a lost record is not
        // mistaken for a first installation.
        let inventory = &observed.inventory;
        let record = observed.installed.as_ref();
        let is_unrecorded = record.is_none_or(Installed::is_blank) && inventory.entries.is_empty();
        let apply_set = desired.apply_set();
        let desired_ids: HashSet<&ObjectId> = desired.manifests.iter().map(Manifest::id).collect();
        observed.meta.retain(|id, meta| {
            desired_ids.contains(id)
                || inventory.entries.contains_key(id)
                || is_unrecorded && meta.is_applied_to(&apply_set)
        });
        Ok(())
    }

    /// Lists the recorded kinds, before the desired ones are known.
    pub(super) async fn list_recorded(&self, observed: &Observed) -> Vec<Listed> {
        let mut kinds: BTreeMap<GroupKind, MemberQuery> = BTreeMap::new();
        for (id, entry) in &observed.inventory.entries {
            if !is_listed(observed, id, entry)
                && let Some(path) = self.paths.of_member(id, &entry.api_version)
            {
                add(&mut kinds, id, path);
            }
        }
        let questions = scoped(&kinds, observed);
        self.send_lists(&kinds, questions).await
    }

    /// Returns the desired or recorded kinds. Records the reason for each unserved kind.
    async fn kinds(
        &self,
        desired: &Desired,
        observed: &mut Observed,
    ) -> BTreeMap<GroupKind, MemberQuery> {
        let mut kinds: BTreeMap<GroupKind, MemberQuery> = BTreeMap::new();
        let mut unserved: BTreeSet<GroupKind> = BTreeSet::new();
        for manifest in &desired.manifests {
            if let Some(path) = ResourcePath::of(&observed.discovery, &manifest.gvk()) {
                add(&mut kinds, manifest.id(), path);
            }
        }
        for (id, entry) in &observed.inventory.entries {
            if is_listed(observed, id, entry) {
                continue;
            }
            match self.paths.of_member(id, &entry.api_version) {
                Some(path) => add(&mut kinds, id, path),
                None => drop(unserved.insert(id.group_kind())),
            }
        }
        unserved.retain(|kind| !kinds.contains_key(kind));
        let silent = |kind: &GroupKind| observed.discovery.is_stale(&kind.group);
        let questions = unserved.iter().filter(|kind| !silent(kind)).cloned();
        // An unconfirmed kind does not count as gone.
        let absent = confirmed_absent(self.cluster, questions.collect())
            .await
            .unwrap_or_default();
        for kind in unserved {
            let listing = if absent.contains(&kind) {
                // The kind is no longer defined, so its objects are gone.
                Listing::Complete
            } else if observed.discovery.is_stale(&kind.group) {
                Listing::Failed(format!(
                    "the server behind the group {} does not answer",
                    kind.group
                ))
            } else {
                Listing::NotServed
            };
            note_listing(observed, kind, None, listing);
        }
        kinds
    }

    /// Sends lists.
    async fn send_lists(
        &self,
        kinds: &BTreeMap<GroupKind, MemberQuery>,
        questions: Vec<(GroupKind, Option<String>)>,
    ) -> Vec<Listed> {
        stream::iter(questions)
            .filter_map(|(kind, namespace)| async move {
                let path = &kinds.get(&kind)?.path;
                Some((kind, namespace, path))
            })
            .map(|(kind, namespace, path)| async move {
                let selector = Selector {
                    namespace: namespace.as_deref(),
                    labels: Some(&self.part_of),
                    ..Selector::default()
                };
                let list = self
                    .cluster
                    .list_metadata(path, &selector, &self.manager)
                    .await;
                Listed {
                    kind,
                    namespace,
                    path: path.clone(),
                    list,
                }
            })
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await
    }

    /// Reads members by name that are missing in a complete LIST, because they can have lost their
    /// label. Also reads the namespaces of objects, which are not always members.
    pub(super) async fn read_missing_members(
        &self,
        desired: &Desired,
        observed: &mut Observed,
    ) -> Result<(), SyncError> {
        let mut missing: BTreeMap<ObjectId, ResourcePath> = BTreeMap::new();
        for (id, entry) in &observed.inventory.entries {
            if !observed.meta.contains_key(id)
                && let Some(path) = self.paths.of_member(id, &entry.api_version)
                // Skip an object of a recreated CRD with another scope.
                && path.may_hold(id)
            {
                missing.insert(id.clone(), path);
            }
        }
        for id in namespaces(desired) {
            if !observed.meta.contains_key(&id) {
                missing.insert(
                    id,
                    ResourcePath::cluster_scoped("v1", "Namespace", "namespaces"),
                );
            }
        }
        // Ready releases can share one answer for a namespace. During an installation, the
        // namespace can appear at any moment.
        let was_ready = observed.installed.as_ref().is_some_and(|one| one.ready);
        let common = self.cluster.common();
        let common = if was_ready { &common } else { self.cluster };
        let read: Vec<_> = stream::iter(missing)
            .map(|(id, path)| async move {
                let is_shared = id.is("", "Namespace");
                let cluster = if is_shared { common } else { self.cluster };
                let value = cluster.get_id(&path, &id).await;
                (id, value)
            })
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
        for (id, value) in read {
            match value {
                Ok(Some(value)) => {
                    observed
                        .meta
                        .insert(id, LiveMeta::read(&value["metadata"], &self.manager));
                }
                // A read by name is complete for a namespace.
                Ok(None) if id.is("", "Namespace") => {
                    let [_, own] = ListingKey::of(&id);
                    note_listing(observed, own.kind, own.namespace, Listing::Complete);
                }
                Ok(None) => {}
                Err(error) => {
                    let listing = failed_listing(error)?;
                    for key in ListingKey::of(&id) {
                        note_listing(observed, key.kind, key.namespace, listing.clone());
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns whether a recorded object was already read by another list.
fn is_listed(observed: &Observed, id: &ObjectId, entry: &Entry) -> bool {
    entry.state == EntryState::Observed && observed.meta.contains_key(id)
}

/// Adds the kind and the namespace of an object.
fn add(kinds: &mut BTreeMap<GroupKind, MemberQuery>, id: &ObjectId, path: ResourcePath) {
    let namespaces = BTreeSet::new();
    kinds
        .entry(id.group_kind())
        .or_insert(MemberQuery { path, namespaces })
        .namespaces
        .extend(id.namespace.clone());
}

/// Returns the lists to send: kinds, each with a namespace unless it is listed cluster-wide.
fn scoped(
    kinds: &BTreeMap<GroupKind, MemberQuery>,
    observed: &Observed,
) -> Vec<(GroupKind, Option<String>)> {
    let rbac_scope = RbacScope::of(observed);
    kinds
        .iter()
        .flat_map(|(kind, query)| {
            let scopes = rbac_scope.scopes(&query.path, &query.namespaces);
            scopes.into_iter().map(|scope| (kind.clone(), scope))
        })
        .collect()
}

/// Stores the results of lists. Returns the namespaced kinds whose cluster-wide LIST is forbidden.
fn note_lists(
    kinds: &BTreeMap<GroupKind, MemberQuery>,
    lists: Vec<Listed>,
    observed: &mut Observed,
) -> Result<Vec<GroupKind>, SyncError> {
    let mut closed = Vec::new();
    for Listed {
        kind,
        namespace,
        list,
        ..
    } in lists
    {
        let listing = match list {
            Ok(list) => {
                observed.meta.extend(list.items);
                Listing::Complete
            }
            Err(error) => {
                let is_closed = error.class() == Some(&Class::Forbidden) && namespace.is_none();
                if is_closed && kinds.get(&kind).is_some_and(|query| query.path.namespaced) {
                    closed.push(kind.clone());
                }
                failed_listing(error)?
            }
        };
        note_listing(observed, kind, namespace, listing);
    }
    Ok(closed)
}

/// Returns a kind that can have unseen members, if the record is empty.
pub(super) fn unseen<'n>(named: &'n Named, observed: &Observed) -> Option<&'n GroupKind> {
    let is_listed = |kind: &GroupKind, namespace: Option<&String>| {
        let key = ListingKey {
            kind: kind.clone(),
            namespace: namespace.cloned(),
        };
        observed.listings.get(&key) == Some(&Listing::Complete)
    };
    let is_seen = |kind: &GroupKind| {
        let mut namespaces = named.namespaces.iter();
        match ResourcePath::preferred(&observed.discovery, kind) {
            // Objects of an undefined kind are gone.
            None => !observed.discovery.is_stale(&kind.group),
            Some(path) => {
                is_listed(kind, None)
                    || path.namespaced
                        && !named.namespaces.is_empty()
                        && namespaces.all(|namespace| is_listed(kind, Some(namespace)))
            }
        }
    };
    named.kinds.iter().find(|kind| !is_seen(kind))
}

/// Records the outcome of a LIST. With two lists of a kind, both must be complete (I1).
pub(super) fn note_listing(
    observed: &mut Observed,
    kind: GroupKind,
    namespace: Option<String>,
    listing: Listing,
) {
    let key = ListingKey { kind, namespace };
    let known = observed.listings.entry(key).or_insert(Listing::Complete);
    if *known == Listing::Complete {
        *known = listing;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use jiff::Timestamp;
    use pleach_planner::observe::ClusterId;
    use rstest::rstest;
    use serde_json::json;

    use super::super::tests::{emptied, serving_config_maps};
    use super::super::{Paths, Silence};
    use super::*;
    use crate::sync::serving::serving;

    #[tokio::test]
    async fn early_lists_are_repeated_only_for_further_namespaces() {
        let sent = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&sent);
        let cluster = serving(move |path| {
            counter.fetch_add(1, Ordering::Relaxed);
            assert!(path.ends_with("/configmaps"), "{path}");
            Some(
                json!({"kind": "PartialObjectMetadataList", "metadata": {}, "items": [
                    {"metadata": {"name": "one", "namespace": "web", "uid": "1"}}
                ]}),
            )
        });
        let known = ObjectId::new("", "ConfigMap", Some("web"), "one");
        let further = ObjectId::new("", "ConfigMap", Some("other"), "two");
        for (later, expected) in [(None, 1), (Some(further), 2)] {
            sent.store(0, Ordering::Relaxed);
            let id = ClusterId("c".to_owned());
            let (version, at) = ("v1.36.0".to_owned(), Timestamp::UNIX_EPOCH);
            let mut observed = Observed::of(id, version, serving_config_maps(), at);
            let applied = || Entry {
                state: EntryState::Applied,
                api_version: "v1".to_owned(),
                ..Entry::default()
            };
            let entries = &mut observed.inventory.entries;
            entries.insert(known.clone(), applied());
            let reader = Reader {
                cluster: &cluster,
                silence: Silence::default(),
                paths: Paths::new(&observed.discovery, &[]),
                manager: "pleach".to_owned(),
                part_of: "part-of=web".to_owned(),
            };
            let early = reader.list_recorded(&observed).await;
            assert_eq!(sent.load(Ordering::Relaxed), 1, "{later:?}");
            let later_entries = later.iter().map(|id| (id.clone(), applied()));
            observed.inventory.entries.extend(later_entries);
            let (desired, named) = (emptied(), Named::default());
            let listing = reader.list_members(&desired, &named, early, &mut observed);
            listing.await.unwrap();
            assert_eq!(sent.load(Ordering::Relaxed), expected, "{later:?}");
            assert!(observed.meta.contains_key(&known), "{later:?}");
        }
    }

    #[rstest]
    #[case::everywhere(&[(None, true)], true)]
    #[case::where_it_lies(&[(None, false), (Some("a"), true), (Some("b"), true)], true)]
    #[case::not_in_all_of_it(&[(None, false), (Some("a"), true), (Some("b"), false)], false)]
    #[case::nowhere(&[], false)]
    fn possible_members_of_an_empty_record_are_read(
        #[case] listings: &[(Option<&str>, bool)],
        #[case] is_seen: bool,
    ) {
        let cluster = ClusterId("c".to_owned());
        let (version, at) = ("v1.36.0".to_owned(), Timestamp::UNIX_EPOCH);
        let mut observed = Observed::of(cluster, version, serving_config_maps(), at);
        let maps = GroupKind::new("", "ConfigMap");
        for (namespace, is_complete) in listings {
            let listing = if *is_complete {
                Listing::Complete
            } else {
                Listing::Forbidden("no".to_owned())
            };
            let namespace = namespace.map(str::to_owned);
            note_listing(&mut observed, maps.clone(), namespace, listing);
        }
        let named = Named {
            kinds: vec![GroupKind::new("gone.example.org", "Gone"), maps.clone()],
            namespaces: vec!["a".to_owned(), "b".to_owned()],
        };
        let expected = (!is_seen).then_some(&maps);
        assert_eq!(unseen(&named, &observed), expected);
    }
}
