//! Observation of the cluster facts that the planner needs.
//!
//! Sends one metadata LIST per kind or, with restricted permissions, per kind and namespace. Most
//! objects are decided by that. The others are read in full and sent through a dry run. A failed
//! LIST is recorded, and only affects plans that depend on it (I1, I10).

mod adoption;
mod autoscalers;
mod copies;
mod crds;
mod dry_run;
mod identity;
mod members;
mod partial;
mod previous;
mod quota;
mod record;
mod run_time;
mod targets;

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::stream::{self, StreamExt as _};
use jiff::Timestamp;
use pleach_model::discovery::Served;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Gvk, Manifest, ObjectId, ReleaseName, ServiceRef, annotations, labels};
use pleach_model::order::registered_services;
use pleach_planner::observe::{Backend, Known, Listing, Observed, Reading, triage};
use pleach_planner::plan::{Desired, Policy};
use pleach_planner::renames;
use pleach_state::inventory::{EntryState, Store};
use pleach_state::live::{Live, LiveMeta};

use super::absent::until_discovered;
use super::error::SyncError;
use super::paths::Paths;
use super::state::State;
use members::{Listed, note_listing, unseen};
use pleach_cluster::{Class, Cluster, ClusterError, RegistrationList, ResourcePath};

pub use identity::{cluster_id, is_cluster, recognize};
pub use partial::observe_some;
pub use record::observe_record;
pub use run_time::expected_objects;

/// Groups of the kinds that refer to Services.
const REGISTRATIONS: [&str; 2] = ["apiregistration.k8s.io", "admissionregistration.k8s.io"];
/// Number of concurrent requests.
const CONCURRENCY: usize = 32;
/// Number of consecutive time-outs that end the observation.
const UNANSWERED: usize = 8;

/// Observed facts, with the record that the run continues.
#[derive(Debug)]
pub struct Observation {
    /// Facts for the planner.
    pub observed: Observed,
    /// The record of the release.
    pub state: State,
}

/// Facts about a release that do not depend on its manifests, read by [`observe_early`].
#[derive(Debug)]
pub struct Early {
    observed: Observed,
    state: State,
    /// Metadata lists of the recorded kinds.
    lists: Vec<Listed>,
}

impl Early {
    fn is_of(&self, name: &ReleaseName, store: &Store) -> bool {
        self.state.name() == name && self.state.store() == store
    }
}

/// Reads the facts about a release that do not depend on its manifests, while those are rendered.
/// Writes nothing.
///
/// The facts are older than those of [`observe`] alone, by the time of the rendering. A plan that
/// waits for its consent is older still. The same checks protect both. A run reads the record again
/// before its first write, and its writes have the preconditions of the plan (uid, resourceVersion).
pub async fn observe_early(
    cluster: &Cluster,
    name: &ReleaseName,
    store: &Store,
) -> Result<Early, SyncError> {
    let mut early = Box::pin(read_facts(cluster, name, store)).await?;
    let reader = Reader {
        cluster,
        silence: Silence::default(),
        paths: Paths::new(&early.observed.discovery, &[]),
        manager: name.field_manager(),
        part_of: format!("{}={}", labels::PART_OF, store.apply_set(name)),
    };
    early.lists = reader.list_recorded(&early.observed).await;
    Ok(early)
}

/// Reads the facts about a release that do not depend on its manifests, without lists of members.
async fn read_facts(
    cluster: &Cluster,
    name: &ReleaseName,
    store: &Store,
) -> Result<Early, SyncError> {
    let manager = name.field_manager();
    let common = cluster.common();
    let (server_version, identity, discovery) = futures::try_join!(
        async { Ok(common.server_version().await?) },
        identity::identify(&common, store, &manager),
        async { Ok(cluster.discover().await?) }
    )?;
    let (read, registrations) = futures::join!(
        State::read(cluster, (name, store), &identity.cluster, &discovery),
        cluster.registrations(&manager)
    );
    let (state, recorded) = read?;
    let mut observed = Observed::of(
        identity.cluster,
        server_version,
        discovery,
        Timestamp::now(),
    );
    observed.meta = identity.namespace.into_iter().collect();
    observed.installed = recorded.installed;
    observed.inventory = recorded.inventory;
    observed.journal = recorded.journal;
    note_registrations(&mut observed, registrations)?;
    Ok(Early {
        observed,
        state,
        lists: Vec::new(),
    })
}

/// Observes the cluster for one release. Does not repeat the reads of `early`, if it is of this
/// release. Fills in `desired.digests`, which need the key in the cluster. Also adds the scale
/// targets of live autoscalers to `desired.ignored`.
pub async fn observe(
    cluster: &Cluster,
    desired: &mut Desired,
    policy: &Policy,
    early: Option<Early>,
) -> Result<Observation, SyncError> {
    let Early {
        mut observed,
        state,
        lists,
    } = match early.filter(|early| early.is_of(&desired.name, &desired.store)) {
        Some(early) => early,
        None => Box::pin(read_facts(cluster, &desired.name, &desired.store)).await?,
    };
    let manager = desired.name.field_manager();
    let common = cluster.common();
    until_discovered(cluster, desired, &mut observed.discovery).await?;
    let autoscalers = autoscalers::list(&common, desired, &observed.discovery).await?;
    if observed.installed.is_none() {
        let release = Gvk::new("pleach.dev/v1alpha1", "Release");
        let is_defined = matches!(observed.discovery.served(&release), Served::Current(_));
        let planted = state.ensure_only_record(&desired.repository, is_defined);
        desired.findings.extend(Box::pin(planted).await?);
    }
    autoscalers::leave(desired, &autoscalers, &observed.inventory);
    let previous = previous::find(cluster, desired).await?;
    desired.digest_with(state.key());
    let reader = Reader {
        cluster,
        silence: Silence::default(),
        paths: Paths::new(&observed.discovery, &desired.manifests),
        manager: desired.name.field_manager(),
        part_of: format!("{}={}", labels::PART_OF, desired.apply_set()),
    };
    let named = state.named();
    let listing = reader.list_members(desired, &named, lists, &mut observed);
    listing.await?;
    if let Some(kind) = unseen(&named, &observed) {
        let what = "the record is empty, and objects of kind";
        return Err(state.incomplete(format!("{what} {kind} could not be listed")));
    }
    reader.read_missing_members(desired, &mut observed).await?;
    reader.find_run_time_objects(desired, &mut observed).await?;
    desired.terms.base_secrets.learn(&observed);
    drop_unconfirmed(desired, &mut observed);
    let readings = readings(desired, policy, &observed);
    let terms = (&*desired, policy);
    reader.predict(terms, &readings, &mut observed).await?;
    observed.recognize_fields(&manager, state.key());
    reader.read_crds(desired, &mut observed).await?;
    reader.read_foreign(desired, policy, &mut observed).await?;
    reader.read_leaving(desired, &mut observed).await?;
    previous::inherit(cluster, desired, previous.as_ref(), &mut observed).await;
    previous::read(cluster, desired, previous, &mut observed).await?;
    reader.read_targets(desired, &mut observed).await?;
    reader.find_copies(desired, &mut observed).await?;
    // Objects that were read by name can belong to other releases.
    desired.terms.base_secrets.learn(&observed);
    observed.hide(&desired.terms.base_secrets);
    Ok(Observation { observed, state })
}

/// Stores the registrations of the cluster. They were read in full, so registrations that are
/// members need no further request.
fn note_registrations(
    observed: &mut Observed,
    lists: Vec<RegistrationList>,
) -> Result<(), SyncError> {
    for list in lists {
        let listing = match list.found {
            Ok(found) => {
                observed.registrations.extend(found);
                Listing::Complete
            }
            Err(error) => failed_listing(error)?,
        };
        note_listing(observed, list.kind, None, listing);
    }
    for registration in &observed.registrations {
        if observed.inventory.entries.contains_key(&registration.id) {
            let meta = registration.meta.clone();
            observed.meta.insert(registration.id.clone(), meta);
        }
    }
    Ok(())
}

/// Drops inventory entries that a previous run intended to apply but never confirmed.
fn drop_unconfirmed(desired: &mut Desired, observed: &mut Observed) {
    let apply_set = desired.apply_set();
    let unconfirmed = observed.inventory.confirm(&observed.meta, &apply_set);
    let desired_ids: HashSet<&ObjectId> = desired.manifests.iter().map(Manifest::id).collect();
    let dropped: Vec<Finding> = unconfirmed
        .into_iter()
        .filter(|id| !desired_ids.contains(id))
        .map(|id| {
            let message =
                "a previous run planned to apply it but did not confirm it; it is not a member";
            Finding::note(Kind::Cluster, "unconfirmed-entry", message).on(id)
        })
        .collect();
    desired.findings.extend(dropped);
}

/// Returns the depth of the read that each manifest needs.
fn readings(desired: &Desired, policy: &Policy, observed: &Observed) -> Vec<Reading> {
    let mut readings = triage(Known {
        manifests: &desired.manifests,
        digests: &desired.digests,
        ignored: &desired.ignored,
        inventory: &observed.inventory,
        meta: &observed.meta,
        verify: policy.verify,
    });
    for (reading, manifest) in readings.iter_mut().zip(&desired.manifests) {
        if manifest.runs_once() {
            // A run-once job counts by whether it ran, not by its content.
            *reading = if desired.has_run(manifest.id(), &observed.journal) {
                Reading::Nothing
            } else if observed.meta.contains_key(manifest.id()) {
                Reading::Full
            } else {
                Reading::Predict
            };
        }
    }
    readings
}

struct Reader<'a> {
    cluster: &'a Cluster,
    silence: Silence,
    paths: Paths,
    manager: String,
    part_of: String,
}

impl Reader<'_> {
    /// Reads members that git no longer contains, if the planner needs details. A Service can be a
    /// load balancer, a `StatefulSet` can have claims, and a CRD can lose its conversion webhook. A
    /// registration needs the state of its backend.
    async fn read_leaving(
        &self,
        desired: &Desired,
        observed: &mut Observed,
    ) -> Result<(), SyncError> {
        let desired_ids: HashSet<&ObjectId> = desired.manifests.iter().map(Manifest::id).collect();
        let leaving: Vec<ObjectId> = observed
            .inventory
            .entries
            .iter()
            .filter(|(id, entry)| entry.state == EntryState::Applied && !desired_ids.contains(id))
            .map(|(id, _)| id.clone())
            .collect();
        let paths = leaving.iter().filter_map(|id| {
            let meta = observed.meta.get(id)?;
            Some((id.clone(), path_of_leaving(id, meta)?))
        });
        let read = self.read_those_there(paths.collect(), CONCURRENCY).await?;
        observed.full.extend(read);
        self.read_possible_renames(&desired_ids, &leaving, observed)
            .await?;
        self.read_undesired_crds(desired, observed).await?;
        // Deleted pods of an uninstalled release can leave stale registrations behind.
        let is_uninstalled = desired.manifests.is_empty();
        let services: BTreeSet<ServiceRef> = observed
            .registrations
            .iter()
            .filter(|registration| is_uninstalled || leaving.contains(&registration.id))
            .filter(|registration| {
                leaving.contains(&registration.id)
                    || registration
                        .services
                        .iter()
                        .any(|service| is_of(desired, &leaving, service))
            })
            .flat_map(|registration| registration.services.clone())
            .chain(lost(observed, &desired_ids))
            .chain(crds::converters(desired, observed))
            .chain(elsewhere(desired, &desired_ids))
            .collect();
        let backends: Vec<Option<(ServiceRef, Backend)>> = stream::iter(services)
            .map(|service| async move {
                // A backend that cannot be read does not count as dead.
                let backend = self.cluster.backend(&service).await.ok()?;
                Some((service, backend))
            })
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
        observed.backends.extend(backends.into_iter().flatten());
        Ok(())
    }
}

impl Reader<'_> {
    /// Reads objects that could be renamed in full, so that the diff shows their other changes.
    async fn read_possible_renames(
        &self,
        desired_ids: &HashSet<&ObjectId>,
        leaving: &[ObjectId],
        observed: &mut Observed,
    ) -> Result<(), SyncError> {
        let come: Vec<&ObjectId> = desired_ids
            .iter()
            .copied()
            .filter(|id| !observed.meta.contains_key(id))
            .collect();
        let gone: Vec<&ObjectId> = leaving
            .iter()
            .filter(|id| observed.meta.contains_key(id) && !observed.full.contains_key(id))
            .collect();
        let paths: Vec<(ObjectId, ResourcePath)> = renames::candidates(&gone, &come)
            .into_iter()
            .filter_map(|id| {
                let entry = observed.inventory.entries.get(id)?;
                Some((id.clone(), self.paths.of_member(id, &entry.api_version)?))
            })
            .collect();
        // An unreadable object is deleted as planned, and only not shown as renamed.
        let found = self.read_those_there(paths, CONCURRENCY).await?;
        observed.full.extend(found);
        Ok(())
    }

    /// Reads objects in full, with the given concurrency. Skips missing and forbidden objects.
    async fn read_those_there(
        &self,
        paths: Vec<(ObjectId, ResourcePath)>,
        at_a_time: usize,
    ) -> Result<Vec<(ObjectId, Live)>, SyncError> {
        let read: Vec<_> = stream::iter(paths)
            .map(|(id, path)| async move {
                let read = self.read(&path, &id).await;
                (id, read)
            })
            .buffer_unordered(at_a_time)
            .collect()
            .await;
        let mut found = Vec::new();
        for (id, read) in read {
            if let Ok(Some(live)) = read? {
                found.push((id, live));
            }
        }
        Ok(found)
    }
}

/// Returns the path for a full read of an object before its deletion. `None` if no details are
/// needed.
fn path_of_leaving(id: &ObjectId, meta: &LiveMeta) -> Option<ResourcePath> {
    let once = meta.annotations.contains_key(annotations::RUN);
    match (id.group.as_str(), id.kind.as_str()) {
        ("", "Service") => Some(ResourcePath::namespaced("v1", "Service", "services")),
        ("apps", "StatefulSet") => {
            let plural = "statefulsets";
            Some(ResourcePath::namespaced("apps/v1", "StatefulSet", plural))
        }
        // A running run-once job is not deleted.
        ("batch", "Job") if once => Some(ResourcePath::namespaced("batch/v1", "Job", "jobs")),
        _ => None,
    }
}

/// Returns Services of recorded, still existing registrations that are neither in git nor in the
/// record. A previous run can have deleted them.
fn lost(observed: &Observed, desired_ids: &HashSet<&ObjectId>) -> BTreeSet<ServiceRef> {
    let entries = &observed.inventory.entries;
    let there = observed.registrations.iter();
    let recorded = there.filter_map(|registration| entries.get(&registration.id));
    let recorded = recorded.filter(|entry| entry.state == EntryState::Observed);
    recorded
        .filter_map(|entry| entry.service.clone())
        .filter(|service| !desired_ids.contains(&service.id()))
        .filter(|service| !entries.contains_key(&service.id()))
        .collect()
}

/// Returns Services outside of the release that its registrations refer to.
fn elsewhere(desired: &Desired, desired_ids: &HashSet<&ObjectId>) -> BTreeSet<ServiceRef> {
    let manifests = desired.manifests.iter();
    let registrations = manifests.filter(|one| REGISTRATIONS.contains(&one.id().group.as_str()));
    registrations
        .flat_map(|one| registered_services(&one.id().group_kind(), &one.value()))
        .filter(|service| !desired_ids.contains(&service.id()))
        .collect()
}

/// Returns whether a Service belongs or belonged to a release that is uninstalled.
fn is_of(desired: &Desired, leaving: &[ObjectId], service: &ServiceRef) -> bool {
    let declared = desired.runtime_objects.iter();
    leaving.contains(&service.id())
        || declared
            .filter_map(|object| object.service.as_ref())
            .any(|name| {
                *name == service.name && desired.namespace.as_ref() == Some(&service.namespace)
            })
}

/// Returns the namespaces that the release contains or implies, and the namespace of its state if
/// that is not the default.
fn namespaces(desired: &Desired) -> impl Iterator<Item = ObjectId> {
    desired
        .manifests
        .iter()
        .map(Manifest::id)
        .filter(|id| id.is("", "Namespace"))
        .map(|id| id.name.as_str())
        .chain(desired.namespace.as_deref())
        .chain(match &desired.store {
            Store::ConfigMap { namespace } => Some(namespace.as_str()),
            Store::Release => None,
        })
        .map(|name| ObjectId::new("", "Namespace", None, name))
}

/// Returns namespaces of objects that do not exist yet and that an earlier stage creates.
fn missing_namespaces(desired: &Desired, observed: &Observed) -> BTreeSet<String> {
    namespaces(desired)
        .filter(|id| !observed.meta.contains_key(id) && !observed.hides_namespace(&id.name))
        .map(|id| id.name.clone())
        .collect()
}

/// Returns whether an error concerns the connection or our identity, so that no other request can
/// succeed. Other errors only affect plans that depend on the answer (I10).
pub(super) fn ends_observation(error: &ClusterError) -> bool {
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

/// Counter of consecutive time-outs, so that a hanging server is not queried for every object.
#[derive(Debug, Default)]
struct Silence(AtomicUsize);

impl Silence {
    fn is_broken(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Counts a time-out. Returns whether the limit is reached.
    fn persists(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) + 1 >= UNANSWERED
    }

    /// Records a failure. Returns whether it ends the observation.
    fn ends(&self, error: &ClusterError) -> bool {
        if error.class() == Some(&Class::Timeout) {
            return self.persists();
        }
        self.is_broken();
        ends_observation(error)
    }
}

/// Classifies a failed LIST. Fails if the cluster is unreachable or rejects our credentials.
fn failed_listing(error: ClusterError) -> Result<Listing, SyncError> {
    match error.api() {
        Some(api) if !ends_observation(&error) => Ok(api.listing()),
        _ => Err(error.into()),
    }
}

#[cfg(test)]
pub(super) mod tests;
