//! Partial observation of a release: a few objects are read, the others are taken from the record.
//!
//! The watch of members tells which objects changed, so only those are read by name. This requires
//! a reconciled release, and is never sufficient for deletions. Everything else needs a full
//! observation.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use futures::stream::{self, StreamExt as _};
use jiff::Timestamp;
use pleach_model::object::{DesiredDigest, Manifest, ObjectId, annotations, labels};
use pleach_planner::observe::{Known, Listing, ListingKey, Observed, Reading, triage};
use pleach_planner::plan::{Desired, Policy};
use pleach_state::inventory::{Entry, EntryState, Installed, Inventory, Journal};
use pleach_state::live::LiveMeta;

use super::members::note_listing;
use super::{CONCURRENCY, Observation, Reader, Silence, autoscalers, identity, namespaces};
use crate::sync::{error::SyncError, paths::Paths, state::State};
use pleach_cluster::{Cluster, ResourcePath};

/// Observes some objects of a release. Returns `None` if the record does not confirm the rest, so
/// that a full observation is needed.
pub async fn observe_some(
    cluster: &Cluster,
    desired: &mut Desired,
    policy: &Policy,
    some: &BTreeSet<ObjectId>,
) -> Result<Option<Observation>, SyncError> {
    let manager = desired.name.field_manager();
    let (server_version, identity, discovery) = futures::try_join!(
        async { Ok(cluster.server_version().await?) },
        identity::identify(cluster, &desired.store, &manager),
        async { Ok(cluster.discover().await?) }
    )?;
    let (read, autoscalers) = futures::join!(
        State::read(
            cluster,
            (&desired.name, &desired.store),
            &identity.cluster,
            &discovery
        ),
        autoscalers::list(cluster, desired, &discovery)
    );
    let (state, recorded) = read?;
    autoscalers::leave(desired, &autoscalers?, &recorded.inventory);
    desired.digest_with(state.key());
    let Some(installed) = recorded.installed else {
        return Ok(None);
    };
    let desired_ids: HashSet<&ObjectId> = desired.manifests.iter().map(Manifest::id).collect();
    if !some.iter().all(|id| desired_ids.contains(id))
        || !is_finished(
            desired,
            &desired_ids,
            &installed,
            &recorded.inventory,
            &recorded.journal,
        )
    {
        return Ok(None);
    }
    let now = Timestamp::now();
    let mut observed = Observed::of(identity.cluster, server_version, discovery, now);
    observed.meta = as_recorded(desired, &recorded.inventory);
    observed.meta.extend(identity.namespace);
    observed.installed = Some(installed);
    observed.inventory = recorded.inventory;
    observed.journal = recorded.journal;
    observed.focus = Some(some.clone());
    let reader = Reader {
        cluster,
        silence: Silence::default(),
        paths: Paths::new(&observed.discovery, &desired.manifests),
        manager,
        part_of: format!("{}={}", labels::PART_OF, desired.apply_set()),
    };
    if !reader.read_some(desired, some, &mut observed).await {
        return Ok(None);
    }
    let readings = readings(desired, policy, &observed, some);
    let terms = (&*desired, policy);
    reader.predict(terms, &readings, &mut observed).await?;
    reader.read_crds(desired, &mut observed).await?;
    reader.read_foreign(desired, policy, &mut observed).await?;
    Ok(Some(Observation { observed, state }))
}

impl Reader<'_> {
    /// Reads objects by name. A missing object is known to be absent. Returns whether all of them
    /// could be read.
    async fn read_some(
        &self,
        desired: &Desired,
        some: &BTreeSet<ObjectId>,
        observed: &mut Observed,
    ) -> bool {
        let manifests = desired.manifests.iter();
        let questions: Vec<(ObjectId, Option<ResourcePath>)> = manifests
            .filter(|manifest| some.contains(manifest.id()))
            .map(|manifest| (manifest.id().clone(), self.paths.of(&manifest.gvk())))
            .collect();
        let answers: Vec<_> = stream::iter(questions)
            .map(|(id, path)| async move {
                let read = match path {
                    Some(path) => self.cluster.get_id(&path, &id).await.ok(),
                    None => None,
                };
                (id, read)
            })
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
        for (id, read) in answers {
            match read {
                Some(Some(value)) => {
                    let meta = LiveMeta::read(&value["metadata"], &self.manager);
                    observed.meta.insert(id, meta);
                }
                Some(None) => {
                    observed.meta.remove(&id);
                    // Safe: every member is desired, so nothing is deleted.
                    let [_, own] = ListingKey::of(&id);
                    note_listing(observed, own.kind, own.namespace, Listing::Complete);
                }
                None => return false,
            }
        }
        true
    }
}

/// Returns whether the record confirms that everything in git was applied and is ready, and that
/// nothing else requires action.
fn is_finished(
    desired: &Desired,
    desired_ids: &HashSet<&ObjectId>,
    record: &Installed,
    inventory: &Inventory,
    journal: &Journal,
) -> bool {
    let installed = record.installed.as_ref();
    let is_reconciled = record.ready
        && !record.removed
        && record.applying.is_none()
        && record.repository == desired.repository
        && installed.is_some_and(|attempt| desired.is_of(attempt));
    let is_applied = |manifest: &Manifest| {
        let id = manifest.id();
        desired.has_run(id, journal)
            || inventory.entries.get(id).is_some_and(|entry| {
                entry.state == EntryState::Applied
                    && entry.desired.map(DesiredDigest::Known) == desired.digests.get(id).copied()
            })
    };
    let is_known = |(id, entry): (&ObjectId, &Entry)| {
        // The namespace of the release is not always in a manifest.
        let is_own = id.is("", "Namespace") && desired.namespace.as_ref() == Some(&id.name);
        is_own
            || desired_ids.contains(id)
            || matches!(entry.state, EntryState::Observed | EntryState::Kept)
    };
    is_reconciled
        && journal.overlays.is_empty()
        && desired.manifests.iter().all(is_applied)
        && inventory.entries.iter().all(is_known)
}

/// Returns the recorded metadata of the members. Namespaces of objects existed then.
fn as_recorded(desired: &Desired, inventory: &Inventory) -> BTreeMap<ObjectId, LiveMeta> {
    let apply_set = desired.apply_set();
    let of = |entry: &Entry| LiveMeta {
        uid: entry.uid.clone().unwrap_or_default(),
        resource_version: entry.resource_version.clone().unwrap_or_default(),
        generation: entry.generation,
        fingerprint: entry.fingerprint,
        labels: [(labels::PART_OF.to_owned(), apply_set.clone())]
            .into_iter()
            .collect(),
        annotations: entry
            .desired
            .map(|digest| (annotations::DESIRED.to_owned(), digest.to_string()))
            .into_iter()
            .collect(),
        managers: vec![desired.name.field_manager()],
        has_managed_fields: true,
        ..LiveMeta::default()
    };
    let members = inventory.entries.iter();
    let mut recorded: BTreeMap<ObjectId, LiveMeta> = namespaces(desired)
        .map(|id| (id, LiveMeta::default()))
        .collect();
    recorded.extend(members.map(|(id, entry)| (id.clone(), of(entry))));
    recorded
}

fn readings(
    desired: &Desired,
    policy: &Policy,
    observed: &Observed,
    some: &BTreeSet<ObjectId>,
) -> Vec<Reading> {
    let mut readings = triage(Known {
        manifests: &desired.manifests,
        digests: &desired.digests,
        ignored: &desired.ignored,
        inventory: &observed.inventory,
        meta: &observed.meta,
        verify: policy.verify,
    });
    for (reading, manifest) in readings.iter_mut().zip(&desired.manifests) {
        let has_run = manifest.runs_once() && desired.has_run(manifest.id(), &observed.journal);
        if has_run || !some.contains(manifest.id()) {
            *reading = Reading::Nothing;
        }
    }
    readings
}
