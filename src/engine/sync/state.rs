//! The record of a release in the cluster: Release object, inventory shards,
//! digest key.
//!
//! The superset of the inventory is written before the first change it
//! describes. Changed shards are written under new names, then one status write
//! of the Release commits them, then shards that are no longer named go: a
//! crash between any two of these leaves a complete record.

mod all;
mod crd;
mod setup;

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use jiff::Timestamp;
use pleach_domain::inventory::{
    Installed, Inventory, Journal, ReleaseName, ShardRef, parent_object, read_shards, write_shards,
};
use pleach_domain::object::Gvk;
use pleach_domain::object::{DigestKey, ObjectId, annotations, canonical_json, labels};
use pleach_domain::observe::{Discovery, Served};
use serde_json::{Value, json};

use super::error::SyncError;
use crate::io::cluster::{
    Applied, ApplyOptions, Class, Cluster, ClusterError, DeleteOptions, Patch, PatchOptions,
    Propagation, ResourcePath, Selector,
};

pub use all::{follow_releases, inventories, release, releases as all_releases};

/// Namespace of everything that pleach keeps for itself.
pub const STATE_NAMESPACE: &str = "pleach-system";
/// The Secret that holds the key of digests.
const KEY_SECRET: &str = "pleach-digest-key";
/// Field manager of state objects.
const MANAGER: &str = "pleach-state";

/// The record of one release, and how it is written.
#[derive(Debug)]
pub struct State {
    cluster: Cluster,
    name: ReleaseName,
    key: Option<DigestKey>,
    record: Installed,
    /// The Release object as it was last read or written.
    live: Option<Value>,
    /// Shards that a former run wrote and did not commit, or did not remove.
    unlisted: BTreeSet<String>,
}

/// What the record says.
#[derive(Debug)]
pub struct Recorded {
    /// The Release object; none on first use.
    pub installed: Option<Installed>,
    /// The members.
    pub inventory: Inventory,
    /// What a former run left to do.
    pub journal: Journal,
}

fn releases() -> ResourcePath {
    ResourcePath::cluster_scoped("pleach.dev/v1alpha1", "Release", "releases")
}

fn config_maps() -> ResourcePath {
    ResourcePath::namespaced("v1", "ConfigMap", "configmaps")
}

fn secrets() -> ResourcePath {
    ResourcePath::namespaced("v1", "Secret", "secrets")
}

impl State {
    /// Reads the record. Reads nothing where Release is not served: first use.
    pub async fn read(
        cluster: &Cluster,
        name: &ReleaseName,
        discovery: &Discovery,
    ) -> Result<(Self, Recorded), SyncError> {
        let mut state = Self {
            cluster: cluster.clone(),
            name: name.clone(),
            key: None,
            record: Installed::default(),
            live: None,
            unlisted: BTreeSet::new(),
        };
        let gvk = Gvk::new("pleach.dev/v1alpha1", "Release");
        let served = discovery.served(&gvk);
        if served == Served::Stale {
            // Not first use: the record is there and cannot be read.
            let what = "the server behind releases.pleach.dev does not answer".to_owned();
            return Err(SyncError::Inventory {
                release: name.to_string(),
                what,
                source: None,
            });
        }
        if served == Served::Absent {
            let recorded = Recorded {
                installed: None,
                inventory: Inventory::default(),
                journal: Journal::default(),
            };
            return Ok((state, recorded));
        }
        state.key = state.read_key().await?;
        let Some((mut installed, mut live)) = state.read_release().await? else {
            let recorded = Recorded {
                installed: None,
                inventory: Inventory::default(),
                journal: Journal::default(),
            };
            return Ok((state, recorded));
        };
        let inventory = match state.read_inventory(&installed).await {
            Ok(inventory) => inventory,
            // Somebody may have committed new shards between the two reads.
            Err(error) => match state.read_release().await? {
                Some((again, value)) if again.resource_version != installed.resource_version => {
                    (installed, live) = (again, value);
                    state.read_inventory(&installed).await?
                }
                _ => return Err(error),
            },
        };
        state.record = installed.clone();
        state.live = Some(live);
        Ok((
            state,
            Recorded {
                installed: Some(installed),
                inventory,
                journal: Journal::default(),
            },
        ))
    }

    /// The key of digests; none before the first apply in this cluster.
    pub fn key(&self) -> Option<&DigestKey> {
        self.key.as_ref()
    }

    /// The record as it was last read or written.
    pub fn record(&self) -> &Installed {
        &self.record
    }

    async fn read_release(&self) -> Result<Option<(Installed, Value)>, SyncError> {
        let Some(value) = self
            .cluster
            .get(&releases(), None, &self.name.to_string())
            .await?
        else {
            return Ok(None);
        };
        match Installed::from_object(&value) {
            Ok(installed) => Ok(Some((installed, value))),
            Err(source) => Err(SyncError::Record {
                release: self.name.to_string(),
                source,
            }),
        }
    }

    async fn read_inventory(&mut self, installed: &Installed) -> Result<Inventory, SyncError> {
        let label = format!("{}={}", labels::RELEASE, self.name.label());
        let selector = Selector {
            namespace: Some(STATE_NAMESPACE),
            labels: Some(&label),
            ..Selector::default()
        };
        let list = self.cluster.list(&config_maps(), &selector).await?;
        let listed: BTreeSet<&str> = installed
            .shards
            .iter()
            .map(|shard| shard.name.as_str())
            .collect();
        self.unlisted = list
            .items
            .iter()
            .filter(|item| item["binaryData"]["entries"].is_string())
            .filter_map(|item| item["metadata"]["name"].as_str())
            .filter(|name| !listed.contains(name))
            .map(str::to_owned)
            .collect();
        assemble(&self.name, installed, &list.items)
    }

    async fn read_key(&self) -> Result<Option<DigestKey>, SyncError> {
        let secret = self
            .cluster
            .get(&secrets(), Some(STATE_NAMESPACE), KEY_SECRET)
            .await?;
        Ok(secret
            .and_then(|secret| STANDARD.decode(secret["data"]["key"].as_str()?).ok())
            .filter(|key| !key.is_empty())
            .map(DigestKey::new))
    }

    /// Writes the record: the parent's metadata where it changed, new shards,
    /// then the status that commits them, then the removal of old shards.
    ///
    /// Every write to the Release is fenced by the version that was read. A
    /// write of somebody else that left the record as it was (an annotation, a
    /// label) is no reason to lose a result: then it is tried once more.
    pub async fn commit(
        &mut self,
        inventory: &Inventory,
        change: impl FnOnce(&mut Installed),
        reason: &str,
        message: &str,
    ) -> Result<(), SyncError> {
        let mut next = self.record.clone();
        change(&mut next);
        match self.write(inventory, &mut next, reason, message).await {
            Err(SyncError::Contended { .. }) if self.is_record_untouched().await? => {
                self.write(inventory, &mut next, reason, message).await?;
            }
            other => other?,
        }
        self.record = next;
        self.remove_unlisted().await;
        Ok(())
    }

    async fn write(
        &mut self,
        inventory: &Inventory,
        next: &mut Installed,
        reason: &str,
        message: &str,
    ) -> Result<(), SyncError> {
        let id = ObjectId::new("pleach.dev", "Release", None, &self.name.to_string());
        let live = self.write_parent(&id, inventory).await?;
        next.resource_version = text(&live["metadata"]["resourceVersion"]);
        next.uid = text(&live["metadata"]["uid"]);
        next.tooling = text(&live["metadata"]["annotations"]["applyset.kubernetes.io/tooling"]);
        let old: BTreeSet<String> = self
            .record
            .shards
            .iter()
            .map(|shard| shard.name.clone())
            .collect();
        next.shards = self.write_shards(inventory, &old).await?;
        next.entries = inventory.entries.len();
        let live = self.write_status(&id, next, reason, message).await?;
        next.resource_version = text(&live["metadata"]["resourceVersion"]);
        self.unlisted.extend(old);
        for shard in &next.shards {
            self.unlisted.remove(&shard.name);
        }
        self.live = Some(live);
        Ok(())
    }

    /// Reads the Release again after a failed write: whether its record is still
    /// the one that we know. The fence moves to what was read.
    async fn is_record_untouched(&mut self) -> Result<bool, SyncError> {
        let Some((installed, live)) = self.read_release().await? else {
            return Ok(false);
        };
        let comparable = |record: &Installed| Installed {
            resource_version: String::new(),
            tooling: String::new(),
            uid: String::new(),
            ..record.clone()
        };
        let untouched = installed.tooling.starts_with("pleach/")
            && comparable(&installed) == comparable(&self.record);
        if untouched {
            self.live = Some(live);
        }
        Ok(untouched)
    }

    /// Removes shards that the record no longer names. The record is complete
    /// without that, so a failure is tried again by the next run.
    async fn remove_unlisted(&mut self) {
        for name in std::mem::take(&mut self.unlisted) {
            if let Err(error) = self.delete_shard(&name).await {
                tracing::warn!(
                    shard = name,
                    "failed to remove an old inventory shard: {error}"
                );
            }
        }
    }

    /// Writes the Release object where it is not as wanted already, and only
    /// if nobody wrote to it since it was read: the status write that follows
    /// is fenced by the version that comes out of this.
    async fn write_parent(&self, id: &ObjectId, inventory: &Inventory) -> Result<Value, SyncError> {
        let mut parent = parent_object(&self.name, inventory, env!("CARGO_PKG_VERSION"));
        if let Some(live) = &self.live {
            if holds(live, &parent) {
                return Ok(live.clone());
            }
            for key in ["uid", "resourceVersion"] {
                parent["metadata"][key] = live["metadata"][key].clone();
            }
        }
        match self.apply(&releases(), id, &parent).await {
            // Somebody else made the release since we looked for it.
            Ok(applied) if self.live.is_none() && !applied.created && !applied.repeated => {
                Err(self.contended(None))
            }
            Ok(applied) => Ok(applied.value),
            Err(SyncError::Cluster(error)) if is_contended(&error) => {
                Err(self.contended(Some(Box::new(error))))
            }
            Err(other) => Err(other),
        }
    }

    fn contended(&self, source: Option<Box<ClusterError>>) -> SyncError {
        SyncError::Contended {
            release: self.name.to_string(),
            source,
        }
    }

    async fn write_shards(
        &self,
        inventory: &Inventory,
        known: &BTreeSet<String>,
    ) -> Result<Vec<ShardRef>, SyncError> {
        let mut written = Vec::new();
        for shard in write_shards(inventory) {
            let name = format!(
                "{}.inventory.{}-{}",
                self.name,
                shard.index,
                shard.digest.short()
            );
            if !known.contains(&name) {
                let object = json!({
                    "apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {
                        "name": name, "namespace": STATE_NAMESPACE,
                        "labels": { labels::RELEASE: self.name.label(), labels::MANAGED_BY: "pleach" },
                    },
                    "binaryData": { "entries": STANDARD.encode(&shard.bytes) },
                });
                let id = ObjectId::new("", "ConfigMap", Some(STATE_NAMESPACE), &name);
                self.apply(&config_maps(), &id, &object).await?;
            }
            written.push(ShardRef {
                name,
                digest: shard.digest,
            });
        }
        Ok(written)
    }

    async fn write_status(
        &self,
        id: &ObjectId,
        next: &Installed,
        reason: &str,
        message: &str,
    ) -> Result<Value, SyncError> {
        let patch = Patch::Merge(json!({
            "metadata": { "resourceVersion": next.resource_version },
            "status": next.status(reason, message, Timestamp::now()),
        }));
        let options = PatchOptions {
            manager: MANAGER,
            dry_run: false,
            subresource: Some("status"),
        };
        match self.cluster.patch(&releases(), id, &patch, &options).await {
            Ok(applied) => Ok(applied.value),
            Err(error) if is_contended(&error) => Err(self.contended(Some(Box::new(error)))),
            Err(error) => Err(error.into()),
        }
    }

    async fn delete_shard(&self, name: &str) -> Result<(), SyncError> {
        let id = ObjectId::new("", "ConfigMap", Some(STATE_NAMESPACE), name);
        let options = DeleteOptions {
            uid: None,
            resource_version: None,
            propagation: Propagation::Background,
            dry_run: false,
        };
        self.cluster.delete(&config_maps(), &id, &options).await?;
        Ok(())
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
            ..ApplyOptions::new(MANAGER)
        };
        let body = Bytes::from(canonical_json(object));
        Ok(self.cluster.apply(path, id, body, &options).await?)
    }
}

/// Puts the shards together that a release commits to. One that is missing or
/// is not what was committed makes the view incomplete (I1).
fn assemble(
    name: &ReleaseName,
    installed: &Installed,
    config_maps: &[Value],
) -> Result<Inventory, SyncError> {
    let incomplete = |what: String, source| SyncError::Inventory {
        release: name.to_string(),
        what,
        source,
    };
    let mut shards = Vec::new();
    for shard in &installed.shards {
        let bytes = config_maps
            .iter()
            .find(|item| item["metadata"]["name"] == shard.name.as_str())
            .and_then(|item| item["binaryData"]["entries"].as_str())
            .and_then(|text| STANDARD.decode(text).ok())
            .ok_or_else(|| {
                incomplete(
                    format!("ConfigMap {STATE_NAMESPACE}/{} is missing", shard.name),
                    None,
                )
            })?;
        shards.push((shard.digest, bytes));
    }
    read_shards(&shards)
        .map_err(|source| incomplete("a shard cannot be read".to_owned(), Some(source)))
}

fn is_contended(error: &ClusterError) -> bool {
    matches!(
        error.class(),
        Some(Class::StaleResourceVersion | Class::Conflict | Class::PreconditionFailed(_))
    )
}

/// Whether a value has everything that another one names.
fn holds(live: &Value, wanted: &Value) -> bool {
    match wanted {
        Value::Object(fields) => fields.iter().all(|(key, value)| holds(&live[key], value)),
        other => live == other,
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
