//! The record of a release in the cluster: its object, inventory shards and digest key.
//!
//! The record is in a Release object, or in a ConfigMap if that CRD cannot be installed
//! ([`Store`]). In both cases, the superset of the inventory is written before the first change.
//! Changed shards get new names, then one write of the record with optimistic locking commits them,
//! then old shards are deleted. A crash at any point leaves a complete record.

mod all;
mod announce;
mod conditions;
mod crd;
mod end;
mod journals;
mod keys;
mod nodes;
mod parent;
mod plans;
mod rehearsals;
mod salvage;
mod setup;
mod shards;
mod user_requests;

use std::collections::BTreeSet;

use bytes::Bytes;
use jiff::Timestamp;
use pleach_model::discovery::{Discovery, Served};
use pleach_model::object::{
    Digest, DigestKey, GroupKind, Gvk, ObjectId, ReleaseName, annotations, canonical_json, managers,
};
use pleach_planner::observe::ClusterId;
use pleach_state::inventory::{
    Attempt, Condition, Following, Installed, Inventory, Journal, NodesReport, Scope, StateKey,
    Store, UserRequests, changed_status, degraded, followed,
};
use serde_json::Value;

use super::absent::has_crd;
use super::error::SyncError;
use super::journal_writer::JournalWriter;
use crate::lease::NodesInChange;
use pleach_cluster::{Applied, ApplyOptions, Class, Cluster, ClusterError, ResourcePath};

pub use all::{
    Inventories, Records, Search, follow_changes, follow_releases, inventories, inventories_of,
    namesakes, release, releases,
};
pub use announce::{Announcement, announce};
pub use conditions::{is_of, report};
pub use journals::read_journals;
pub use keys::is_genuine;
pub use plans::last_plan;
pub use rehearsals::attach;
pub use salvage::Salvaged;
pub(super) use shards::members;
pub use user_requests::{Approval, approve, order};

pub use pleach_state::state_objects::KEY_SECRET;

/// The record of one release, with its writer.
#[derive(Debug)]
pub struct State {
    cluster: Cluster,
    name: ReleaseName,
    store: Store,
    key: Option<StateKey>,
    /// Scope that the seals of record and journal are bound to.
    scope: Scope,
    record: Installed,
    /// The object of the record, as last read or written.
    live: Option<Value>,
    /// The object of the journal, as read.
    journal: Option<Value>,
    /// The object with the report of a rehearsal, as read. It is not authenticated.
    rehearsal: Option<Value>,
    /// Nodes that the present run changes. `None`: those of the live status stay.
    nodes: Option<NodesReport>,
    /// Shards of a previous run that were not committed or not deleted.
    unlisted: BTreeSet<String>,
    /// Nodes that a run is changing, for its Lease.
    nodes_in_change: NodesInChange,
}

/// Possible locations of members of a release with an empty record: kinds and namespaces that its
/// object still names.
#[derive(Debug, Default)]
pub(super) struct Named {
    pub(super) kinds: Vec<GroupKind>,
    pub(super) namespaces: Vec<String>,
}

/// Content of the record.
#[derive(Debug)]
pub struct Recorded {
    /// The record; `None` on first use.
    pub installed: Option<Installed>,
    /// The members.
    pub inventory: Inventory,
    /// Open entries of a previous run.
    pub journal: Journal,
}

pub(super) fn config_maps() -> ResourcePath {
    ResourcePath::namespaced("v1", "ConfigMap", "configmaps")
}

impl Recorded {
    fn nothing() -> Self {
        Self {
            installed: None,
            inventory: Inventory::default(),
            journal: Journal::default(),
        }
    }
}

impl State {
    /// Creates an empty state without a read. With an empty cluster id, its seals are valid for no
    /// cluster.
    pub(super) fn unread(cluster: &Cluster, name: &ReleaseName, store: &Store) -> Self {
        Self {
            cluster: cluster.clone(),
            name: name.clone(),
            store: store.clone(),
            key: None,
            scope: Scope::of("", store, name),
            record: Installed::default(),
            live: None,
            journal: None,
            rehearsal: None,
            nodes: None,
            unlisted: BTreeSet::new(),
            nodes_in_change: NodesInChange::default(),
        }
    }

    /// Returns the counter of the nodes that a run is changing.
    pub(super) fn nodes_in_change(&self) -> &NodesInChange {
        &self.nodes_in_change
    }

    /// Reads the record of a release in the cluster with this id. Reads nothing on first use, when
    /// Release is neither served nor defined. State that was not written by pleach is an error
    /// (I14).
    pub async fn read(
        cluster: &Cluster,
        (name, store): (&ReleaseName, &Store),
        id: &ClusterId,
        discovery: &Discovery,
    ) -> Result<(Self, Recorded), SyncError> {
        let mut state = Self::unread(cluster, name, store);
        state.scope = Scope::of(&id.0, store, name);
        let recorded = Box::pin(state.read_all(discovery)).await?;
        // It can be written from here on, so do not share answers.
        state.cluster = cluster.clone().alone();
        Ok((state, recorded))
    }

    async fn read_all(&mut self, discovery: &Discovery) -> Result<Recorded, SyncError> {
        let served = match &self.store {
            Store::Release => discovery.served(&Gvk::new("pleach.dev/v1alpha1", "Release")),
            Store::ConfigMap { .. } => discovery.served(&Gvk::new("v1", "ConfigMap")),
        };
        if served == Served::Stale {
            // Not first use: the record exists and cannot be read.
            let what = "the server behind releases.pleach.dev does not answer".to_owned();
            return Err(self.incomplete(what));
        }
        // Discovery of an API server that was just started can be incomplete. If the CRD exists,
        // the read itself decides.
        if served == Served::Absent && !has_crd(&self.cluster, crd::NAME).await? {
            return Ok(Recorded::nothing());
        }
        let (key, read) = futures::join!(self.read_key(), self.read_record());
        self.key = key?;
        let Some((mut installed, mut live)) = read? else {
            return Ok(Recorded::nothing());
        };
        self.verify(&installed)?;
        let inventory = match self.read_inventory(&installed).await {
            Ok(inventory) => inventory,
            // Another client can have committed new shards between the two reads. Shared answers
            // can also be out of order.
            Err(error) => {
                self.cluster = self.cluster.clone().alone();
                let Some(again) = self.read_record().await? else {
                    return Err(error);
                };
                (installed, live) = again;
                self.verify(&installed)?;
                self.read_inventory(&installed).await?
            }
        };
        self.record = installed.clone();
        self.live = Some(live);
        let journal = match &self.journal {
            Some(value) => {
                self.verify_journal(value)?;
                Journal::from_object(value, &self.name)?
            }
            None => Journal::default(),
        };
        Ok(Recorded {
            installed: Some(installed),
            inventory,
            journal,
        })
    }

    /// Returns the journal writer for an attempt whose plan has these effects. `journal` is the
    /// content as read. Writes nothing.
    pub(super) fn journal_writer(
        &self,
        journal: Journal,
        attempt: Attempt,
        plan: Digest,
    ) -> JournalWriter {
        let live = self.journal.clone();
        let of = (&self.name, &self.store);
        let seals = self.key.clone().map(|key| (self.scope.clone(), key));
        JournalWriter::new(&self.cluster, (of, seals), (journal, live), (attempt, plan))
    }

    /// Returns the key of digests; `None` before the first apply in this cluster.
    pub fn key(&self) -> Option<&DigestKey> {
        self.key.as_ref().map(StateKey::digests)
    }

    /// Returns the key of digests and seals; `None` before the first apply in this cluster.
    pub fn state_key(&self) -> Option<&StateKey> {
        self.key.as_ref()
    }

    /// Returns the record as last read or written.
    pub fn record(&self) -> &Installed {
        &self.record
    }

    /// Returns the heartbeat of the controller that follows the release, as last read. `None`
    /// without a controller.
    pub fn followed(&self) -> Option<Following> {
        self.live.as_ref().and_then(followed)
    }

    /// Returns whether the controller already reported exactly these conditions, as last read.
    pub fn has_conditions(&self, conditions: &[Condition]) -> bool {
        let live = self.live.as_ref();
        live.is_some_and(|live| changed_status(live, conditions, Timestamp::now()).is_none())
    }

    /// Returns the message of the controller about lost readiness, as last read.
    pub fn degraded(&self) -> Option<String> {
        self.live.as_ref().and_then(degraded)
    }

    /// Returns possible locations of members beyond the record; empty if the record is complete.
    pub(super) fn named(&self) -> Named {
        let Some(live) = self.live.as_ref().filter(|_| self.record.is_blank()) else {
            return Named::default();
        };
        let texts = |key: &str| -> Vec<String> {
            let text = live["metadata"]["annotations"][key].as_str();
            let parts = text.unwrap_or_default().split(',');
            parts
                .filter(|part| !part.is_empty())
                .map(str::to_owned)
                .collect()
        };
        let kinds = texts("applyset.kubernetes.io/contains-group-kinds");
        let kind = |text: &String| {
            let (kind, group) = text.split_once('.').unwrap_or((text, ""));
            GroupKind::new(group, kind)
        };
        let mut namespaces = texts("applyset.kubernetes.io/additional-namespaces");
        // An ApplySet parent does not name its own namespace.
        if let Store::ConfigMap { namespace } = &self.store {
            namespaces.push(namespace.clone());
        }
        Named {
            kinds: kinds.iter().map(kind).collect(),
            namespaces,
        }
    }

    /// Returns the user requests, as last read.
    pub fn user_requests(&self) -> UserRequests {
        self.live
            .as_ref()
            .map(UserRequests::read)
            .unwrap_or_default()
    }

    /// Returns the ConfigMap with the report of a rehearsal, as read with the inventory. Any client
    /// with write access to the namespace can have written it.
    pub fn rehearsal(&self) -> Option<&Value> {
        self.rehearsal.as_ref()
    }

    /// Returns the store of the record.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the cluster of the record.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns environment and release.
    pub fn name(&self) -> &ReleaseName {
        &self.name
    }

    /// Returns the label value of the release members.
    pub(super) fn apply_set(&self) -> String {
        self.store.apply_set(&self.name)
    }

    /// Returns the namespace of the inventory.
    pub fn namespace(&self) -> &str {
        self.store.namespace()
    }

    /// Reads the record again, and fails if it changed since the plan was made. Names of shards are
    /// content digests, so this covers the inventory too.
    pub async fn ensure_unmoved(&mut self) -> Result<(), SyncError> {
        let now = self.read_record().await?;
        let was = self.live.as_ref().map(Installed::from_object).transpose();
        let was = was.map_err(|source| self.unreadable(source))?;
        let same = match (&was, &now) {
            (None, None) => true,
            (Some(was), Some((now, _))) => {
                comparable(was) == comparable(now)
                    && (was.uid == now.uid && was.tooling == now.tooling)
            }
            (None, Some(_)) | (Some(_), None) => false,
        };
        if !same {
            return Err(self.contended(None));
        }
        self.live = now.map(|(_, live)| live);
        if let Some(live) = &self.live {
            fence(&mut self.record, live);
        }
        Ok(())
    }

    /// Writes the record: changed metadata of the parent, new shards, the record that commits them,
    /// then the deletion of old shards.
    ///
    /// Every write to the parent uses optimistic locking. If another client only changed an
    /// annotation or a label, the write is retried once.
    pub async fn commit(
        &mut self,
        inventory: &Inventory,
        change: impl FnOnce(&mut Installed),
        reason: &str,
        message: &str,
    ) -> Result<(), SyncError> {
        self.ensure_key().await?;
        let mut next = self.record.clone();
        change(&mut next);
        match self.write(inventory, &mut next, reason, message).await {
            Err(SyncError::Contended { .. }) if self.is_record_untouched().await? => {
                self.write(inventory, &mut next, reason, message).await?;
            }
            other => other?,
        }
        self.record = next;
        // The record is complete without it, and the next run tries again.
        if let Err(error) = self.remove_unlisted().await {
            tracing::warn!(
                release = %self.name,
                error = %crate::words(&error),
                "failed to remove an old inventory shard"
            );
        }
        Ok(())
    }

    async fn write(
        &mut self,
        inventory: &Inventory,
        next: &mut Installed,
        reason: &str,
        message: &str,
    ) -> Result<(), SyncError> {
        // A Release exists before its shards, with the kinds and namespaces of all members. A
        // ConfigMap gets everything in the final write.
        if self.store == Store::Release {
            let live = self.write_metadata(inventory).await?;
            fence(next, &live);
        }
        let old: BTreeSet<String> = self
            .record
            .shards
            .iter()
            .map(|shard| shard.name.clone())
            .collect();
        next.shards = self.write_shards(inventory, &old).await?;
        next.entries = inventory.entries.len();
        let live = match self.store {
            Store::Release => self.write_status(next, reason, message).await?,
            Store::ConfigMap { .. } => self.write_all(next, inventory, reason, message).await?,
        };
        fence(next, &live);
        self.unlisted.extend(old);
        for shard in &next.shards {
            self.unlisted.remove(&shard.name);
        }
        self.live = Some(live);
        Ok(())
    }

    /// Reads the record again after a failed write, and returns whether it is still the known one.
    /// The next write uses the version that was read.
    async fn is_record_untouched(&mut self) -> Result<bool, SyncError> {
        let Some((installed, live)) = self.read_record().await? else {
            return Ok(false);
        };
        let untouched = installed.tooling.starts_with("pleach/")
            && comparable(&installed) == comparable(&self.record);
        if untouched {
            self.live = Some(live);
        }
        Ok(untouched)
    }

    fn contended(&self, source: Option<Box<ClusterError>>) -> SyncError {
        SyncError::Contended {
            release: self.name.to_string(),
            source,
        }
    }

    pub(super) fn incomplete(&self, what: String) -> SyncError {
        SyncError::Inventory {
            release: self.name.to_string(),
            namespace: self.store.namespace().to_owned(),
            what,
            source: None,
        }
    }

    async fn apply(
        &self,
        path: &ResourcePath,
        id: &ObjectId,
        object: &Value,
    ) -> Result<Applied, SyncError> {
        debug_assert!(
            object["metadata"]["annotations"][annotations::DESIRED].is_null(),
            "state objects are no members"
        );
        let options = ApplyOptions {
            force: true,
            ..ApplyOptions::new(managers::STATE)
        };
        let body = Bytes::from(canonical_json(object));
        Ok(self.cluster.apply(path, id, body, &options).await?)
    }
}

/// Returns a record without the fields that every write of its object changes.
fn comparable(record: &Installed) -> Installed {
    Installed {
        // Derived from the compared fields.
        seal: None,
        content: None,
        ..record.as_written()
    }
}

/// Adopts the resource version and uid that guard the next write.
fn fence(record: &mut Installed, live: &Value) {
    let metadata = &live["metadata"];
    record.resource_version = text(&metadata["resourceVersion"]);
    record.uid = text(&metadata["uid"]);
    record.tooling = text(&metadata["annotations"]["applyset.kubernetes.io/tooling"]);
}

fn is_contended(error: &ClusterError) -> bool {
    matches!(
        error.class(),
        Some(Class::StaleResourceVersion | Class::Conflict | Class::PreconditionFailed(_))
    )
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
