//! Reads what the planner needs to know, and nothing more.
//!
//! One metadata LIST per kind; what it settles costs nothing further (triage).
//! What is left is read in full and asked for with a dry run. A LIST that fails
//! is recorded and costs only what depends on it (I1, I10).

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use pleach_domain::inventory::EntryState;
use pleach_domain::object::{GroupKind, Manifest, ObjectId, ServiceRef, labels};
use pleach_domain::observe::{
    Backend, DesiredDigest, Discovery, Grants, Known, Listing, ListingKey, Live, LiveMeta,
    Observed, Prediction, Reading, Served, Unverified, triage,
};
use pleach_domain::plan::Desired;

use super::body::{self, Require};
use super::error::SyncError;
use super::paths::Paths;
use super::state::State;
use crate::io::cluster::{ApplyOptions, Class, Cluster, ClusterError, ResourcePath, Selector};

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
    let mut observed = Observed {
        at: Timestamp::now(),
        cluster: id,
        server_version,
        discovery,
        listings: BTreeMap::new(),
        meta: BTreeMap::new(),
        full: BTreeMap::new(),
        predicted: BTreeMap::new(),
        registrations: Vec::new(),
        backends: BTreeMap::new(),
        access: Grants::default(),
        installed: recorded.installed,
        inventory: recorded.inventory,
        journal: recorded.journal,
    };
    for list in registrations {
        let listing = match list.found {
            Ok(found) => {
                observed.registrations.extend(found);
                Listing::Complete
            }
            Err(error) => failed_listing(error)?,
        };
        // The same kind is listed again where it is wanted: both must be complete.
        observed.listings.insert(
            ListingKey {
                kind: list.kind,
                namespace: None,
            },
            listing,
        );
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
    tracing::debug!(
        count = unconfirmed.len(),
        "entries that a former run intended and did not confirm"
    );
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

/// What came of asking about one object.
struct Asked {
    id: ObjectId,
    live: Option<Live>,
    prediction: Option<Prediction>,
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
            if kinds.contains_key(&kind) {
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
            observed.listings.insert(
                ListingKey {
                    kind,
                    namespace: None,
                },
                listing,
            );
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
            let key = ListingKey {
                kind,
                namespace: None,
            };
            // Registrations were listed before: what failed then stays unseen.
            let known = observed.listings.entry(key).or_insert(Listing::Complete);
            if *known == Listing::Complete {
                *known = listing;
            }
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
    /// label: it is read by name before it is called absent. So is the
    /// release's namespace, which may be nobody's member.
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
        if let Some(name) = &desired.namespace {
            let id = ObjectId::new("", "Namespace", None, name);
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
                    observed.listings.insert(
                        ListingKey {
                            kind: id.group_kind(),
                            namespace: None,
                        },
                        listing,
                    );
                }
            }
        }
        Ok(())
    }

    /// Reads in full and asks for what triage could not settle.
    async fn predict(
        &self,
        desired: &Desired,
        readings: &BTreeMap<ObjectId, Reading>,
        observed: &mut Observed,
    ) -> Result<(), SyncError> {
        let missing = missing_namespaces(desired, observed);
        let mut questions = Vec::new();
        for manifest in &desired.manifests {
            let reading = readings
                .get(manifest.id())
                .copied()
                .unwrap_or(Reading::Predict);
            match self.cannot_ask(manifest, &missing, &observed.discovery) {
                Some(why) if reading != Reading::Nothing => {
                    observed
                        .predicted
                        .insert(manifest.id().clone(), Prediction::Unverified(why));
                }
                None if reading != Reading::Nothing => questions.push((manifest, reading)),
                _ => {}
            }
        }
        let answers: Vec<Asked> = stream::iter(questions)
            .map(|(manifest, reading)| {
                self.ask(manifest, reading, desired.digests.get(manifest.id()))
            })
            .buffer_unordered(CONCURRENCY)
            .try_collect()
            .await?;
        for Asked {
            id,
            live,
            prediction,
        } in answers
        {
            if let Some(live) = live {
                observed.meta.insert(id.clone(), live.meta().clone());
                observed.full.insert(id.clone(), live);
            }
            if let Some(prediction) = prediction {
                observed.predicted.insert(id, prediction);
            }
        }
        Ok(())
    }

    /// Why the server cannot check an object yet.
    fn cannot_ask(
        &self,
        manifest: &Manifest,
        missing: &BTreeSet<String>,
        discovery: &Discovery,
    ) -> Option<Unverified> {
        match discovery.served(&manifest.gvk()) {
            Served::Stale => Some(Unverified::ApiStale),
            Served::Absent => Some(Unverified::KindMissing),
            Served::Current(_) => manifest
                .id()
                .namespace
                .as_ref()
                .filter(|namespace| missing.contains(*namespace))
                .map(|namespace| Unverified::NamespaceMissing(namespace.clone())),
        }
    }

    async fn ask(
        &self,
        manifest: &Manifest,
        reading: Reading,
        digest: Option<&DesiredDigest>,
    ) -> Result<Asked, SyncError> {
        let id = manifest.id();
        let Some(path) = self.paths.of(&manifest.gvk()) else {
            return Ok(Asked {
                id: id.clone(),
                live: None,
                prediction: Some(Prediction::Unverified(Unverified::KindMissing)),
            });
        };
        let digest = digest.copied().unwrap_or(DesiredDigest::Unkeyed);
        let body = body::compose(manifest, digest, Require::default());
        let mut live = if reading == Reading::Full {
            self.read(&path, id).await?
        } else {
            None
        };
        let options = ApplyOptions {
            dry_run: true,
            secret: manifest.is_secret(),
            ..ApplyOptions::new(&self.manager)
        };
        let prediction = match self.cluster.apply(&path, id, body.clone(), &options).await {
            Ok(applied) if applied.created => Some(Prediction::Creates),
            Ok(applied) => Some(Prediction::Answer(Live::new(applied.value, &self.manager))),
            Err(error) => match error
                .api()
                .and_then(crate::io::cluster::ApiError::prediction)
            {
                None => return Err(error.into()),
                Some(Prediction::Conflict { fields, .. }) => {
                    let options = ApplyOptions {
                        force: true,
                        ..options
                    };
                    let forced = self.cluster.apply(&path, id, body, &options).await.ok();
                    let forced = forced.map(|applied| Live::new(applied.value, &self.manager));
                    Some(Prediction::Conflict { fields, forced })
                }
                other => other,
            },
        };
        let may_exist = !matches!(
            prediction,
            Some(
                Prediction::Creates
                    | Prediction::Unverified(
                        Unverified::NamespaceMissing(_)
                            | Unverified::KindMissing
                            | Unverified::ApiStale
                    )
            )
        );
        if live.is_none() && may_exist {
            // No label and no record, but it is there: existence decides adoption.
            live = self.read(&path, id).await?;
        }
        Ok(Asked {
            id: id.clone(),
            live,
            prediction,
        })
    }

    async fn read(&self, path: &ResourcePath, id: &ObjectId) -> Result<Option<Live>, SyncError> {
        let value = self.cluster.get_id(path, id).await?;
        Ok(value.map(|value| Live::new(value, &self.manager)))
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
            if let Some(live) = self.read(&path, id).await? {
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
            .map(|service| async move {
                let backend = self.cluster.backend(&service).await?;
                Ok::<_, ClusterError>((service, backend))
            })
            .buffer_unordered(CONCURRENCY)
            .try_collect()
            .await?;
        observed.backends.extend(backends);
        Ok(())
    }
}

/// Namespaces that objects lie in and that an earlier stage makes.
fn missing_namespaces(desired: &Desired, observed: &Observed) -> BTreeSet<String> {
    desired
        .manifests
        .iter()
        .map(Manifest::id)
        .filter(|id| id.is("", "Namespace"))
        .map(|id| id.name.clone())
        .chain(desired.namespace.clone())
        .filter(|name| {
            !observed
                .meta
                .contains_key(&ObjectId::new("", "Namespace", None, name))
        })
        .collect()
}

/// What a failed LIST means; a cluster that cannot be reached at all, or does
/// not know us, ends the observation.
fn failed_listing(error: ClusterError) -> Result<Listing, SyncError> {
    match error.api() {
        Some(api)
            if !matches!(
                api.class,
                Class::Unreachable
                    | Class::Tls
                    | Class::Credentials
                    | Class::Unauthorized
                    | Class::NotKubernetes
            ) =>
        {
            Ok(api.listing())
        }
        _ => Err(error.into()),
    }
}
