//! Unrecorded runtime objects. Pods create some of them after the apply of the pods has ended. They
//! are found by the names and Services that the bundle declares.

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, StreamExt as _};
use pleach_formats::policy::RuntimeObject;
use pleach_model::discovery::Discovery;
use pleach_model::object::{Manifest, ObjectId};
use pleach_planner::observe::Observed;
use pleach_planner::plan::Desired;
use pleach_state::inventory::{Entry, EntryState};
use pleach_state::live::LiveMeta;

use super::{CONCURRENCY, Reader, ends_observation};
use crate::sync::error::SyncError;
use pleach_cluster::{ClusterError, ResourcePath};

impl Reader<'_> {
    /// Finds declared objects that exist and are neither recorded nor in git. Skips unreadable
    /// objects, because their absence allows no conclusion.
    pub(super) async fn find_run_time_objects(
        &self,
        desired: &Desired,
        observed: &mut Observed,
    ) -> Result<(), SyncError> {
        let declared = declared(desired, observed);
        if declared.is_empty() {
            return Ok(());
        }
        let desired_ids: BTreeSet<&ObjectId> = desired.manifests.iter().map(Manifest::id).collect();
        find_registrations(&declared, &desired_ids, observed);
        let recorded = &observed.inventory.entries;
        let all = desired_ids.iter().copied().chain(recorded.keys());
        let namespaces = all.filter_map(|id| id.namespace.as_deref()).collect();
        let mut missing = named(&declared, &namespaces, &observed.discovery);
        missing.retain(|id, _| !desired_ids.contains(id) && !recorded.contains_key(id));
        let read: Vec<(ObjectId, ResourcePath, Result<_, ClusterError>)> = stream::iter(missing)
            .map(|(id, path)| async move {
                let value = self.cluster.get_id(&path, &id).await;
                (id, path, value)
            })
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
        for (id, path, value) in read {
            match value {
                Ok(Some(value)) => {
                    let live = LiveMeta::read(&value["metadata"], &self.manager);
                    if live.deleting {
                        continue;
                    }
                    let entry = Entry {
                        state: EntryState::Observed,
                        api_version: path.api_version.to_string(),
                        uid: Some(live.uid.clone()),
                        ..Entry::default()
                    };
                    observed.found.insert(id.clone(), entry);
                    observed.meta.insert(id, live);
                }
                Err(error) if ends_observation(&error) => return Err(error.into()),
                Ok(None) | Err(_) => {}
            }
        }
        Ok(())
    }
}

/// Returns the declared objects that are matched by name, in the namespaces of the manifests, with
/// their paths. Excludes objects that are also manifests.
pub fn expected_objects(
    desired: &Desired,
    discovery: &Discovery,
) -> BTreeMap<ObjectId, ResourcePath> {
    let desired_ids: BTreeSet<&ObjectId> = desired.manifests.iter().map(Manifest::id).collect();
    let namespaces = desired_ids.iter().filter_map(|id| id.namespace.as_deref());
    let mut expected = named(&desired.runtime_objects, &namespaces.collect(), discovery);
    expected.retain(|id, _| !desired_ids.contains(id));
    expected
}

/// Returns objects that are matched by name, in each of these namespaces for namespaced kinds.
fn named(
    declared: &[RuntimeObject],
    namespaces: &BTreeSet<&str>,
    discovery: &Discovery,
) -> BTreeMap<ObjectId, ResourcePath> {
    let mut named = BTreeMap::new();
    for object in declared {
        let (Some(kind), Some(name)) = (object.group_kind(), object.name.as_deref()) else {
            continue;
        };
        let Some(path) = ResourcePath::preferred(discovery, &kind) else {
            continue;
        };
        if path.namespaced {
            let ids = namespaces.iter().map(|one| path.id(Some(one), name));
            named.extend(ids.map(|id| (id, path.clone())));
        } else {
            named.insert(path.id(None, name), path);
        }
    }
    named
}

/// Returns the objects that the bundle declares now, and those it declared when last applied.
fn declared(desired: &Desired, observed: &Observed) -> Vec<RuntimeObject> {
    let record = observed.installed.as_ref();
    let memory = record.and_then(|record| record.memory.as_ref());
    let previous = memory.map(|memory| &memory.runtime_objects);
    let mut all = desired.runtime_objects.clone();
    for object in previous.into_iter().flatten() {
        if !all.contains(object) {
            all.push(object.clone());
        }
    }
    all
}

/// Finds registrations, which were already read, that refer to a declared Service of the release.
fn find_registrations(
    declared: &[RuntimeObject],
    desired_ids: &BTreeSet<&ObjectId>,
    observed: &mut Observed,
) {
    let entries = &observed.inventory.entries;
    let mut found = Vec::new();
    for registration in &observed.registrations {
        let id = &registration.id;
        if registration.meta.deleting || desired_ids.contains(id) || entries.contains_key(id) {
            continue;
        }
        let service = registration.services.iter().find(|service| {
            let mut declared = declared.iter();
            desired_ids.contains(&service.id())
                && declared.any(|one| {
                    one.service.as_ref() == Some(&service.name)
                        && one.group_kind().as_ref() == Some(&id.group_kind())
                })
        });
        if let Some(service) = service {
            let entry = Entry {
                state: EntryState::Observed,
                api_version: format!("{}/v1", id.group),
                uid: Some(registration.meta.uid.clone()),
                service: Some(service.clone()),
                ..Entry::default()
            };
            found.push((id.clone(), entry, registration.meta.clone()));
        }
    }
    for (id, entry, meta) in found {
        observed.found.insert(id.clone(), entry);
        observed.meta.insert(id, meta);
    }
}
