//! Rebuilds the record of a release from labels and fields of its objects.
//!
//! Searches all kinds that the server lists. Deletes nothing, and writes only the record. Kinds
//! that cannot be listed are reported as gaps, and a later run finds their objects.

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, StreamExt as _};
use jiff::Timestamp;
use pleach_model::discovery::Discovery;
use pleach_model::object::{GroupKind, Manifest, ObjectId, ReleaseName, labels};
use pleach_planner::plan::Desired;
use pleach_state::inventory::{Found, Installed, Rebuilt, Store, rebuild};
use pleach_state::live::LiveMeta;

use crate::stop::Cause;
use crate::{
    lease::Holder,
    stop::Stop,
    sync::{
        Claim, SyncError, cluster_id,
        state::{Salvaged, State},
        with_lease,
    },
};
use pleach_cluster::{Class, Cluster, ClusterError, ResourcePath, Selector};

/// Number of concurrent requests.
const CONCURRENCY: usize = 16;

/// Findings about one release.
#[derive(Debug)]
pub struct Examined {
    /// Environment and release.
    pub name: ReleaseName,
    /// The present record; `None` if it is missing.
    pub installed: Option<Installed>,
    /// Missing parts of the record, as text.
    pub lost: Vec<String>,
    /// The rebuilt inventory.
    pub rebuilt: Rebuilt,
    /// Kinds that could not be read.
    pub gaps: Vec<String>,
    /// Whether the record exists but does not verify as written by pleach.
    is_unverified: bool,
    state: State,
}

impl Examined {
    /// Returns whether the record lists an installed release.
    pub fn is_installed(&self) -> bool {
        self.installed
            .as_ref()
            .is_some_and(|record| !record.is_blank())
    }

    /// Returns whether the record must be rewritten.
    pub fn is_needed(&self) -> bool {
        let Rebuilt {
            inventory,
            found,
            retained,
            unlabelled,
            ..
        } = &self.rebuilt;
        let is_whole = self.lost.is_empty()
            && found.is_empty()
            && retained.is_empty()
            && unlabelled.is_empty();
        let is_there = self.is_installed() || self.is_unverified || !inventory.entries.is_empty();
        is_there && !is_whole
    }

    /// Writes the record and its dependencies, under the Lease of the release. The release is not
    /// ready afterwards: the next apply compares and verifies all objects. The inner error is the
    /// reason of a stop before anything was written.
    pub async fn write(
        &mut self,
        desired: Option<&Desired>,
        claim: &Claim,
        stop: &Stop,
        waiting: impl FnMut(&Holder),
    ) -> Result<Result<(), Cause>, SyncError> {
        self.state.prepare().await?;
        let inventory = &self.rebuilt.inventory;
        let message = format!(
            "the record was rebuilt with {} objects",
            inventory.entries.len()
        );
        let change = |record: &mut Installed| {
            record.ready = false;
            if let Some(desired) = desired {
                record.repository.clone_from(&desired.repository);
                record.bundle.clone_from(&desired.bundle);
                let previous = record.memory.take();
                let memory = desired.memory();
                let memory = memory.with_previous_stages(previous.as_ref(), inventory);
                record.memory = Some(memory.under_policy_of(previous.as_ref(), Timestamp::now()));
            }
        };
        let work =
            async |state: &mut State| state.commit(inventory, change, "Recovered", &message).await;
        with_lease(claim, &mut self.state, stop, waiting, work).await
    }
}

/// Searches for all objects of a release. `desired` is its desired state, or `None` if git no
/// longer contains the release.
pub async fn examine(
    cluster: &Cluster,
    name: &ReleaseName,
    store: &Store,
    desired: Option<&Desired>,
) -> Result<Examined, SyncError> {
    let discovery = cluster.discover().await?;
    let id = cluster_id(cluster, store).await?;
    let Salvaged {
        state,
        installed,
        inventory,
        lost,
        is_unverified,
    } = State::salvage(cluster, (name, store), &id, &discovery).await?;
    let manager = name.field_manager();
    let manifests = desired.map_or(&[][..], |desired| &desired.manifests);
    let desired_ids: BTreeSet<ObjectId> = manifests.iter().map(|one| one.id().clone()).collect();
    let mut gaps: Vec<String> = discovery
        .stale()
        .iter()
        .map(|version| format!("the server behind {version} does not answer"))
        .collect();
    // A kind that cannot be listed cluster-wide can often be listed in the release namespaces.
    let namespaces: BTreeSet<&str> = manifests
        .iter()
        .filter_map(|manifest| manifest.id().namespace.as_deref())
        .chain(
            inventory
                .entries
                .keys()
                .filter_map(|id| id.namespace.as_deref()),
        )
        .collect();
    let label = format!("{}={}", labels::PART_OF, store.apply_set(name));
    let search = Sweep {
        cluster,
        manager: &manager,
        label: &label,
        namespaces: &namespaces,
    };
    let mut found = search.all(&discovery, &mut gaps).await?;
    let unseen = manifests
        .iter()
        .filter(|manifest| !found.contains_key(manifest.id()));
    let by_name = by_name(cluster, &discovery, unseen, &manager, &mut gaps).await?;
    found.extend(by_name);
    gaps.sort();
    gaps.dedup();
    let rebuilt = rebuild(inventory, &found, &desired_ids, &store.apply_set(name));
    Ok(Examined {
        name: name.clone(),
        installed,
        lost,
        rebuilt,
        gaps,
        is_unverified,
        state,
    })
}

/// Search for objects with the label of a release, over all kinds.
struct Sweep<'a> {
    cluster: &'a Cluster,
    manager: &'a str,
    label: &'a str,
    /// Namespaces to list if listing cluster-wide is forbidden.
    namespaces: &'a BTreeSet<&'a str>,
}

impl Sweep<'_> {
    async fn all(
        &self,
        discovery: &Discovery,
        gaps: &mut Vec<String>,
    ) -> Result<BTreeMap<ObjectId, Found>, SyncError> {
        let lists: Vec<_> = stream::iter(kinds(discovery))
            .map(|path| async move {
                let list = self.kind(&path).await;
                (path, list)
            })
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
        let mut found = BTreeMap::new();
        for (path, list) in lists {
            match list {
                Ok(list) => found.extend(list.into_iter().map(|(id, meta)| {
                    let api_version = path.api_version.to_string();
                    (id, Found { api_version, meta })
                })),
                Err(error) => gaps.push(gap(&path, error)?),
            }
        }
        Ok(found)
    }

    async fn kind(&self, path: &ResourcePath) -> Result<Vec<(ObjectId, LiveMeta)>, ClusterError> {
        let everywhere = match self.list(path, None).await {
            Err(error) if error.class() == Some(&Class::Forbidden) && path.namespaced => error,
            other => return other,
        };
        if self.namespaces.is_empty() {
            return Err(everywhere);
        }
        let mut found = Vec::new();
        for namespace in self.namespaces {
            found.extend(self.list(path, Some(namespace)).await?);
        }
        Ok(found)
    }

    async fn list(
        &self,
        path: &ResourcePath,
        namespace: Option<&str>,
    ) -> Result<Vec<(ObjectId, LiveMeta)>, ClusterError> {
        let selector = Selector {
            namespace,
            labels: Some(self.label),
            ..Selector::default()
        };
        let list = self
            .cluster
            .list_metadata(path, &selector, self.manager)
            .await?;
        Ok(list.items)
    }
}

/// Finds desired objects that lost their label.
async fn by_name<'a>(
    cluster: &Cluster,
    discovery: &Discovery,
    manifests: impl Iterator<Item = &'a Manifest>,
    manager: &str,
    gaps: &mut Vec<String>,
) -> Result<BTreeMap<ObjectId, Found>, SyncError> {
    let questions: Vec<(ObjectId, ResourcePath)> = manifests
        .filter_map(|manifest| {
            let path = ResourcePath::of(discovery, &manifest.gvk())?;
            Some((manifest.id().clone(), path))
        })
        .collect();
    let answers: Vec<_> = stream::iter(questions)
        .map(|(id, path)| async move {
            let read = cluster.get_id(&path, &id).await;
            (id, path, read)
        })
        .buffer_unordered(CONCURRENCY)
        .collect()
        .await;
    let mut found = BTreeMap::new();
    for (id, path, read) in answers {
        match read {
            Ok(Some(value)) => {
                let meta = LiveMeta::read(&value["metadata"], manager);
                let api_version = path.api_version.to_string();
                found.insert(id, Found { api_version, meta });
            }
            Ok(None) => {}
            Err(error) => gaps.push(gap(&path, error)?),
        }
    }
    Ok(found)
}

/// Describes a kind that could not be read. Fails if the cluster does not answer at all.
fn gap(path: &ResourcePath, error: ClusterError) -> Result<String, SyncError> {
    let Some(api) = error.api() else {
        return Err(error.into());
    };
    if matches!(
        api.class,
        Class::Unreachable
            | Class::Tls
            | Class::Credentials
            | Class::Unauthorized
            | Class::NotKubernetes
    ) {
        return Err(error.into());
    }
    let kind = path.group_kind();
    Ok(format!(
        "objects of kind {kind} cannot be listed: {}",
        api.message
    ))
}

/// Returns each persisted kind once, in the version that the server prefers.
fn kinds(discovery: &Discovery) -> Vec<ResourcePath> {
    let mut kinds = BTreeMap::new();
    for (group, served) in &*discovery.groups {
        let resources = served
            .versions
            .iter()
            .flat_map(|version| &version.resources);
        for resource in resources {
            // Kinds without deletion are computed and not persisted.
            if !resource.verbs.contains("list") || !resource.verbs.contains("delete") {
                continue;
            }
            let kind = GroupKind::new(group.clone(), resource.kind.clone());
            if let Some(path) = ResourcePath::preferred(discovery, &kind) {
                kinds.insert(kind, path);
            }
        }
    }
    kinds.into_values().collect()
}
