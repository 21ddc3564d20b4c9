//! Reads what the planner needs to know, and nothing more.
//!
//! One metadata LIST per kind; what it settles costs nothing further (triage).
//! What is left is read in full and asked for with a dry run. A LIST that fails
//! is recorded and costs only what depends on it (I1, I10).

mod predict;

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, StreamExt as _};
use jiff::Timestamp;
use pleach_domain::finding::{Finding, Kind};
use pleach_domain::inventory::EntryState;
use pleach_domain::object::{GroupKind, Manifest, ObjectId, ServiceRef, labels};
use pleach_domain::observe::{Backend, Known, Listing, ListingKey, LiveMeta, Observed, triage};
use pleach_domain::plan::Desired;

use super::body::{self};
use super::error::SyncError;
use super::paths::Paths;
use super::state::State;
use crate::io::cluster::{Class, Cluster, ClusterError, ResourcePath, Selector};

/// Requests at a time.
const CONCURRENCY: usize = 32;

/// What was observed, and the record through which a sync goes on.
#[derive(Debug)]
pub struct Observation {
    /// What the planner may know.
    pub observed: Observed,
    /// The record of the release.
    pub state: State,
}

/// Reads the cluster for one release. Fills in `desired.digests`, which need
/// the key that the cluster keeps. With `verify` every object is asked for.
pub async fn observe(
    cluster: &Cluster,
    desired: &mut Desired,
    verify: bool,
) -> Result<Observation, SyncError> {
    let (server_version, id, discovery) = futures::try_join!(
        cluster.server_version(),
        cluster.cluster_id(),
        cluster.discover()
    )?;
    let manager = desired.name.field_manager();
    let (read, registrations) = futures::join!(
        State::read(cluster, &desired.name, &discovery),
        cluster.registrations(&manager)
    );
    let (state, recorded) = read?;
    desired.digests = desired
        .manifests
        .iter()
        .map(|manifest| {
            (
                manifest.id().clone(),
                body::desired_digest(manifest, state.key()),
            )
        })
        .collect();
    let mut observed = Observed::of(id, server_version, discovery, Timestamp::now());
    observed.installed = recorded.installed;
    observed.inventory = recorded.inventory;
    observed.journal = recorded.journal;
    for list in registrations {
        let listing = match list.found {
            Ok(found) => {
                observed.registrations.extend(found);
                Listing::Complete
            }
            Err(error) => failed_listing(error)?,
        };
        note_listing(&mut observed, list.kind, listing);
    }
    // Registrations were just read in full: no further request for those that
    // are members.
    for registration in &observed.registrations {
        if observed.inventory.entries.contains_key(&registration.id) {
            observed
                .meta
                .insert(registration.id.clone(), registration.meta.clone());
        }
    }
    let reader = Reader {
        cluster,
        paths: Paths::new(&observed.discovery, &desired.manifests),
        manager: desired.name.field_manager(),
        part_of: format!("{}={}", labels::PART_OF, desired.name.apply_set()),
    };
    reader.list_members(desired, &mut observed).await?;
    reader.read_missing_members(desired, &mut observed).await?;
    let unconfirmed = observed
        .inventory
        .settle(&observed.meta, &desired.name.apply_set());
    let wanted: BTreeSet<&ObjectId> = desired.manifests.iter().map(Manifest::id).collect();
    let dropped: Vec<Finding> = unconfirmed
        .into_iter()
        .filter(|id| !wanted.contains(id))
        .map(|id| {
            let message =
                "a former run meant to apply it and never saw it done; it is not a member";
            Finding::note(Kind::Cluster, "unconfirmed-entry", message).on(id)
        })
        .collect();
    desired.findings.extend(dropped);
    let readings = triage(Known {
        manifests: &desired.manifests,
        digests: &desired.digests,
        inventory: &observed.inventory,
        meta: &observed.meta,
        verify,
    });
    reader.predict(desired, &readings, &mut observed).await?;
    reader.read_leaving(desired, &mut observed).await?;
    Ok(Observation { observed, state })
}

struct Reader<'a> {
    cluster: &'a Cluster,
    paths: Paths,
    manager: String,
    part_of: String,
}

impl Reader<'_> {
    /// One metadata LIST per kind that is wanted or recorded.
    async fn list_members(
        &self,
        desired: &Desired,
        observed: &mut Observed,
    ) -> Result<(), SyncError> {
        let mut kinds: BTreeMap<GroupKind, ResourcePath> = BTreeMap::new();
        let mut unserved: BTreeSet<GroupKind> = BTreeSet::new();
        for manifest in &desired.manifests {
            if let Some(path) = ResourcePath::of(&observed.discovery, &manifest.gvk()) {
                kinds.insert(manifest.id().group_kind(), path);
            }
        }
        for (id, entry) in &observed.inventory.entries {
            let kind = id.group_kind();
            let is_listed = entry.state == EntryState::Observed && observed.meta.contains_key(id);
            if is_listed || kinds.contains_key(&kind) {
                continue;
            }
            match self.paths.of_member(id, &entry.api_version) {
                Some(path) => drop(kinds.insert(kind, path)),
                None => drop(unserved.insert(kind)),
            }
        }
        for kind in unserved {
            let listing = if observed.discovery.is_stale(&kind.group) {
                Listing::Failed(format!(
                    "the server behind the group {} does not answer",
                    kind.group
                ))
            } else {
                Listing::NotServed
            };
            note_listing(observed, kind, listing);
        }
        let lists: Vec<_> = stream::iter(kinds)
            .map(|(kind, path)| async move {
                let selector = Selector {
                    labels: Some(&self.part_of),
                    ..Selector::default()
                };
                (
                    kind,
                    self.cluster
                        .list_metadata(&path, &selector, &self.manager)
                        .await,
                )
            })
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
        for (kind, list) in lists {
            let listing = match list {
                Ok(list) => {
                    observed.meta.extend(list.items);
                    Listing::Complete
                }
                Err(error) => failed_listing(error)?,
            };
            note_listing(observed, kind, listing);
        }
        // Controllers copy our label to objects of theirs: only what is wanted
        // or recorded is looked at.
        let inventory = &observed.inventory;
        let wanted: BTreeSet<&ObjectId> = desired.manifests.iter().map(Manifest::id).collect();
        observed
            .meta
            .retain(|id, _| wanted.contains(id) || inventory.entries.contains_key(id));
        Ok(())
    }

    /// A member that is missing from a complete LIST may only have lost its
    /// label: it is read by name before it is called absent. So are the
    /// namespaces that objects lie in, which may be nobody's members.
    async fn read_missing_members(
        &self,
        desired: &Desired,
        observed: &mut Observed,
    ) -> Result<(), SyncError> {
        let mut missing: BTreeMap<ObjectId, ResourcePath> = BTreeMap::new();
        for (id, entry) in &observed.inventory.entries {
            if !observed.meta.contains_key(id)
                && let Some(path) = self.paths.of_member(id, &entry.api_version)
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
        let read: Vec<_> = stream::iter(missing)
            .map(|(id, path)| async move {
                let value = self.cluster.get_id(&path, &id).await;
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
                Ok(None) => {}
                Err(error) => {
                    let listing = failed_listing(error)?;
                    note_listing(observed, id.group_kind(), listing);
                }
            }
        }
        Ok(())
    }

    /// Members that git no longer has: a Service is read in full, it may be a
    /// load balancer; of a registration it is looked up whether its backend lives.
    async fn read_leaving(
        &self,
        desired: &Desired,
        observed: &mut Observed,
    ) -> Result<(), SyncError> {
        let wanted: BTreeSet<&ObjectId> = desired.manifests.iter().map(Manifest::id).collect();
        let leaving: Vec<ObjectId> = observed
            .inventory
            .entries
            .iter()
            .filter(|(id, entry)| entry.state == EntryState::Applied && !wanted.contains(id))
            .map(|(id, _)| id.clone())
            .collect();
        for id in leaving
            .iter()
            .filter(|id| id.is("", "Service") && observed.meta.contains_key(id))
        {
            let path = ResourcePath::namespaced("v1", "Service", "services");
            if let Ok(Some(live)) = self.read(&path, id).await? {
                observed.full.insert(id.clone(), live);
            }
        }
        let services: BTreeSet<ServiceRef> = observed
            .registrations
            .iter()
            .filter(|registration| leaving.contains(&registration.id))
            .flat_map(|registration| registration.services.clone())
            .collect();
        let backends: Vec<(ServiceRef, Backend)> = stream::iter(services)
            .filter_map(|service| async move {
                // One that cannot be read is not known to be dead.
                let backend = self.cluster.backend(&service).await.ok()?;
                Some((service, backend))
            })
            .collect()
            .await;
        observed.backends.extend(backends);
        Ok(())
    }
}

/// The namespaces that the release ships or implies.
fn namespaces(desired: &Desired) -> impl Iterator<Item = ObjectId> {
    desired
        .manifests
        .iter()
        .map(Manifest::id)
        .filter(|id| id.is("", "Namespace"))
        .map(|id| id.name.as_str())
        .chain(desired.namespace.as_deref())
        .map(|name| ObjectId::new("", "Namespace", None, name))
}

/// Namespaces that objects lie in and that an earlier stage makes.
fn missing_namespaces(desired: &Desired, observed: &Observed) -> BTreeSet<String> {
    namespaces(desired)
        .filter(|id| !observed.meta.contains_key(id))
        .map(|id| id.name)
        .collect()
}

/// Records how a LIST went. A kind that is listed twice must be complete both
/// times (I1).
fn note_listing(observed: &mut Observed, kind: GroupKind, listing: Listing) {
    let key = ListingKey {
        kind,
        namespace: None,
    };
    let known = observed.listings.entry(key).or_insert(Listing::Complete);
    if *known == Listing::Complete {
        *known = listing;
    }
}

/// Whether a failure is of the connection or of who we are: then nothing else
/// can be asked either. Everything else costs only what depends on it (I10).
fn ends_observation(error: &ClusterError) -> bool {
    error.api().is_none_or(|api| {
        matches!(
            api.class,
            Class::Unreachable
                | Class::Tls
                | Class::Credentials
                | Class::Unauthorized
                | Class::NotKubernetes
        )
    })
}

/// What a failed LIST means; a cluster that cannot be reached at all, or does
/// not know us, ends the observation.
fn failed_listing(error: ClusterError) -> Result<Listing, SyncError> {
    match error.api() {
        Some(api) if !ends_observation(&error) => Ok(api.listing()),
        _ => Err(error.into()),
    }
}
