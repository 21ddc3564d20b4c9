//! The record of a release in the cluster: the object that holds it, inventory
//! shards, digest key.
//!
//! What holds the record is a Release object, or a ConfigMap where that kind may
//! not be defined ([`Store`]). Either way the superset of the inventory is
//! written before the first change it describes: changed shards under new names,
//! then one fenced write of the record that commits them, then shards that are
//! no longer named go. A crash between any two of these leaves a complete record.

mod all;
mod announce;
mod conditions;
mod crd;
mod end;
mod journals;
mod keys;
mod orders;
mod parent;
mod plans;
mod salvage;
mod setup;
mod shards;

use std::collections::BTreeSet;

use bytes::Bytes;
use jiff::Timestamp;
use pleach_domain::inventory::{
    Attempt, Condition, Following, Installed, Inventory, Journal, Orders, ReleaseName, Scope,
    StateKey, Store, degraded, followed, telling,
};
use pleach_domain::object::{
    Digest, DigestKey, GroupKind, Gvk, ObjectId, annotations, canonical_json, managers,
};
use pleach_domain::observe::{ClusterId, Discovery, Served};
use serde_json::Value;

use super::absent::has_definition;
use super::error::SyncError;
use super::ledger::Ledger;
use crate::io::cluster::{Applied, ApplyOptions, Class, Cluster, ClusterError, ResourcePath};

pub use all::{
    Inventories, Records, Search, follow_changes, follow_releases, inventories, inventories_of,
    namesakes, release, releases,
};
pub use announce::{Announcement, announce};
pub use conditions::{is_of, tell};
pub use journals::read_journals;
pub use keys::is_genuine;
pub use orders::order;
pub use plans::last_plan;
pub use salvage::Salvaged;
pub(super) use shards::members;

pub(in crate::engine) use pleach_domain::state_objects::KEY_SECRET;

/// The record of one release, and how it is written.
#[derive(Debug)]
pub struct State {
    cluster: Cluster,
    name: ReleaseName,
    store: Store,
    key: Option<StateKey>,
    /// What the seals of record and journal are bound to.
    scope: Scope,
    record: Installed,
    /// The object that holds the record, as it was last read or written.
    live: Option<Value>,
    /// The object that holds the journal, as it was read.
    journal: Option<Value>,
    /// Shards that a former run wrote and did not commit, or did not remove.
    unlisted: BTreeSet<String>,
}

/// Where members may be of a release whose record says nothing: kinds and
/// namespaces that the object which holds it still names.
#[derive(Debug, Default)]
pub(super) struct Named {
    pub(super) kinds: Vec<GroupKind>,
    pub(super) namespaces: Vec<String>,
}

/// What the record says.
#[derive(Debug)]
pub struct Recorded {
    /// The record itself; none on first use.
    pub installed: Option<Installed>,
    /// The members.
    pub inventory: Inventory,
    /// What a former run left to do.
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
    /// A record that was not read, or is not there. Nothing is written of it where
    /// the cluster is not named.
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
            unlisted: BTreeSet::new(),
        }
    }

    /// Reads the record of a release, in the cluster with an id. Reads nothing where
    /// Release is neither served nor defined: first use. What pleach did not write is
    /// an error (I14).
    pub async fn read(
        cluster: &Cluster,
        (name, store): (&ReleaseName, &Store),
        id: &ClusterId,
        discovery: &Discovery,
    ) -> Result<(Self, Recorded), SyncError> {
        let mut state = Self::unread(cluster, name, store);
        state.scope = Scope::of(&id.0, store, name);
        let recorded = Box::pin(state.read_all(discovery)).await?;
        // From here on it may be written, and is asked for by us alone.
        state.cluster = cluster.clone().alone();
        Ok((state, recorded))
    }

    async fn read_all(&mut self, discovery: &Discovery) -> Result<Recorded, SyncError> {
        let served = match &self.store {
            Store::Release => discovery.served(&Gvk::new("pleach.dev/v1alpha1", "Release")),
            Store::ConfigMap { .. } => discovery.served(&Gvk::new("v1", "ConfigMap")),
        };
        if served == Served::Stale {
            // Not first use: the record is there and cannot be read.
            let what = "the server behind releases.pleach.dev does not answer".to_owned();
            return Err(self.incomplete(what));
        }
        // An API server that was just started does not say yet what it serves of
        // what is defined: whether there is a record says the read itself.
        if served == Served::Absent && !has_definition(&self.cluster, crd::NAME).await? {
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
            // Somebody may have committed new shards between the two reads. And answers
            // that others asked for may be of two moments, the second one before the first.
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

    /// The journal, for an attempt whose plan has these effects; `journal` is
    /// what was read of it. Writes nothing.
    pub(super) fn ledger(&self, journal: Journal, attempt: Attempt, plan: Digest) -> Ledger {
        let live = self.journal.clone();
        let of = (&self.name, &self.store);
        let seals = self.key.clone().map(|key| (self.scope.clone(), key));
        Ledger::new(&self.cluster, (of, seals), (journal, live), (attempt, plan))
    }

    /// The key of digests; none before the first apply in this cluster.
    pub fn key(&self) -> Option<&DigestKey> {
        self.key.as_ref().map(StateKey::digests)
    }

    /// The record as it was last read or written.
    pub fn record(&self) -> &Installed {
        &self.record
    }

    /// What the loop that follows the release says of itself, as it was last
    /// read; none where no loop does.
    pub fn followed(&self) -> Option<Following> {
        self.live.as_ref().and_then(followed)
    }

    /// Whether the loop has said exactly this of the release, as it was last read.
    pub fn says(&self, said: &[Condition]) -> bool {
        let live = self.live.as_ref();
        live.is_some_and(|live| telling(live, said, Timestamp::now()).is_none())
    }

    /// What the loop said of what was ready and is not any more, as it was last read.
    pub fn degraded(&self) -> Option<String> {
        self.live.as_ref().and_then(degraded)
    }

    /// Where members may be that the record does not say; nothing where it says all.
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
        // A parent does not name the namespace that it is in.
        if let Store::ConfigMap { namespace } = &self.store {
            namespaces.push(namespace.clone());
        }
        Named {
            kinds: kinds.iter().map(kind).collect(),
            namespaces,
        }
    }

    /// What people say of the release without git, as it was last read.
    pub fn orders(&self) -> Orders {
        self.live.as_ref().map(Orders::read).unwrap_or_default()
    }

    /// Where the record is kept.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Where it is written.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Environment and release.
    pub fn name(&self) -> &ReleaseName {
        &self.name
    }

    /// What members of the release carry as label.
    pub(super) fn apply_set(&self) -> String {
        self.store.apply_set(&self.name)
    }

    /// The namespace that the inventory lies in.
    pub fn namespace(&self) -> &str {
        self.store.namespace()
    }

    /// Reads the record once more: a plan that was made from another one is
    /// not carried out. The names of its shards are those of their contents, so
    /// this is about the inventory too.
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

    /// Writes the record: the parent's metadata where it changed, new shards,
    /// then the record that commits them, then the removal of old shards.
    ///
    /// Every write to the parent is fenced by the version that was read. A
    /// write of somebody else that left the record as it was (an annotation, a
    /// label) is no reason to lose a result: then it is tried once more.
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
        // The record is complete without that, and the next run tries again.
        if let Err(error) = self.remove_unlisted().await {
            tracing::warn!(
                release = %self.name,
                error = %crate::engine::words(&error),
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
        // A Release is there before its shards, with the kinds and namespaces
        // of all members; a ConfigMap says all of it at once, at the end.
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

    /// Reads the record again after a failed write: whether its record is still
    /// the one that we know. The fence moves to what was read.
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

/// A record without what every write of its object changes.
fn comparable(record: &Installed) -> Installed {
    Installed {
        resource_version: String::new(),
        tooling: String::new(),
        uid: String::new(),
        // It is about what is compared.
        seal: None,
        content: None,
        ..record.clone()
    }
}

/// Takes over what the next write is fenced by.
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
