//! The record of a release in the cluster: Release object, inventory shards,
//! digest key.
//!
//! The superset of the inventory is written before the first change it
//! describes. Changed shards are written under new names, then one status write
//! of the Release commits them, then shards that are no longer named go: a
//! crash between any two of these leaves a complete record.

mod all;
mod crd;

use std::collections::BTreeSet;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use jiff::Timestamp;
use pleach_domain::inventory::{
    Installed, Inventory, Journal, ReleaseName, ShardRef, members, parent_object, read_shards,
    write_shards,
};
use pleach_domain::object::Gvk;
use pleach_domain::object::{DigestKey, ObjectId, annotations, canonical_json, labels};
use pleach_domain::observe::{Discovery, Served};
use serde_json::{Value, json};

use super::error::SyncError;
use crate::io::cluster::{
    ApplyOptions, Class, Cluster, ClusterError, DeleteOptions, Patch, PatchOptions, Propagation,
    ResourcePath, Selector,
};

pub use all::{follow_releases, inventories, release, releases as all_releases};

/// Namespace of everything that pleach keeps for itself.
pub const STATE_NAMESPACE: &str = "pleach-system";
/// The Secret that holds the key of digests.
const KEY_SECRET: &str = "pleach-digest-key";
/// Field manager of state objects.
const MANAGER: &str = "pleach-state";
/// Longest wait for the definition of Release to be served.
const DEFINITION_DEADLINE: Duration = Duration::from_secs(30);

/// The record of one release, and how it is written.
#[derive(Debug)]
pub struct State {
    cluster: Cluster,
    name: ReleaseName,
    key: Option<DigestKey>,
    record: Installed,
    exists: bool,
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
            exists: false,
        };
        let gvk = Gvk::new("pleach.dev/v1alpha1", "Release");
        if !matches!(discovery.served(&gvk), Served::Current(_)) {
            let recorded = Recorded {
                installed: None,
                inventory: Inventory::default(),
                journal: Journal::default(),
            };
            return Ok((state, recorded));
        }
        state.key = state.read_key().await?;
        let Some(mut installed) = state.read_release().await? else {
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
                Some(again) if again.resource_version != installed.resource_version => {
                    installed = again;
                    state.read_inventory(&installed).await?
                }
                _ => return Err(error),
            },
        };
        state.record = installed.clone();
        state.exists = true;
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

    async fn read_release(&self) -> Result<Option<Installed>, SyncError> {
        let Some(value) = self
            .cluster
            .get(&releases(), None, &self.name.to_string())
            .await?
        else {
            return Ok(None);
        };
        Installed::from_object(&value)
            .map(Some)
            .map_err(|source| SyncError::Record {
                release: self.name.to_string(),
                source,
            })
    }

    async fn read_inventory(&self, installed: &Installed) -> Result<Inventory, SyncError> {
        if installed.shards.is_empty() {
            return Ok(Inventory::default());
        }
        let label = format!("{}={}", labels::RELEASE, self.name.label());
        let selector = Selector {
            namespace: Some(STATE_NAMESPACE),
            labels: Some(&label),
            ..Selector::default()
        };
        let list = self.cluster.list(&config_maps(), &selector).await?;
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

    /// Makes what every record needs: the namespace, the definition of Release,
    /// the key. Called after consent, never while planning.
    pub async fn prepare(&mut self) -> Result<(), SyncError> {
        if self.exists && self.key.is_some() {
            return Ok(());
        }
        let namespaces = ResourcePath::cluster_scoped("v1", "Namespace", "namespaces");
        if self
            .cluster
            .get(&namespaces, None, STATE_NAMESPACE)
            .await?
            .is_none()
        {
            let namespace = json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": STATE_NAMESPACE },
            });
            self.apply(
                &namespaces,
                &ObjectId::new("", "Namespace", None, STATE_NAMESPACE),
                &namespace,
            )
            .await?;
        }
        self.ensure_definition().await?;
        if self.key.is_none() {
            self.key = Some(self.ensure_key().await?);
        }
        Ok(())
    }

    /// Installs the definition of Release, or a newer one; never an older.
    async fn ensure_definition(&self) -> Result<(), SyncError> {
        let path = ResourcePath::cluster_scoped(
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            "customresourcedefinitions",
        );
        let id = ObjectId::new(
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            None,
            crd::NAME,
        );
        let live = self.cluster.get_id(&path, &id).await?;
        let definition = crd::definition();
        if live.as_ref().map_or(0, crd::revision) < crd::revision(&definition) {
            self.apply(&path, &id, &definition).await?;
        }
        let started = tokio::time::Instant::now();
        loop {
            match self
                .cluster
                .list_metadata(&releases(), &Selector::default(), MANAGER)
                .await
            {
                Ok(_) => return Ok(()),
                Err(error) if started.elapsed() > DEFINITION_DEADLINE => {
                    return Err(match error.class() {
                        Some(Class::KindNotServed | Class::NotFound) => {
                            SyncError::Definition(DEFINITION_DEADLINE)
                        }
                        _ => error.into(),
                    });
                }
                Err(error)
                    if matches!(error.class(), Some(Class::KindNotServed | Class::NotFound)) =>
                {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Makes the key, or reads the one that somebody else made first.
    async fn ensure_key(&self) -> Result<DigestKey, SyncError> {
        let mut bytes = vec![0; 32];
        rustls::crypto::ring::default_provider()
            .secure_random
            .fill(&mut bytes)
            .map_err(|_| SyncError::Random)?;
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": KEY_SECRET, "namespace": STATE_NAMESPACE },
            "type": "Opaque",
            "data": { "key": STANDARD.encode(&bytes) },
        });
        let id = ObjectId::new("", "Secret", Some(STATE_NAMESPACE), KEY_SECRET);
        let body = Bytes::from(canonical_json(&secret));
        match self
            .cluster
            .create(&secrets(), &id, body, &ApplyOptions::new(MANAGER))
            .await
        {
            Ok(_) => Ok(DigestKey::new(bytes)),
            Err(error) if matches!(error.class(), Some(Class::AlreadyExists { .. })) => {
                let what = format!("Secret {STATE_NAMESPACE}/{KEY_SECRET} holds no key");
                self.read_key().await?.ok_or_else(|| SyncError::Inventory {
                    release: self.name.to_string(),
                    what,
                    source: None,
                })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the record: the parent's metadata where it changed, new shards,
    /// then the status that commits them, then the removal of old shards.
    pub async fn commit(
        &mut self,
        inventory: &Inventory,
        change: impl FnOnce(&mut Installed),
        reason: &str,
        message: &str,
    ) -> Result<(), SyncError> {
        let mut next = self.record.clone();
        change(&mut next);
        let parent = parent_object(&self.name, inventory, env!("CARGO_PKG_VERSION"));
        let id = ObjectId::new("pleach.dev", "Release", None, &self.name.to_string());
        let tooling = text(&parent["metadata"]["annotations"]["applyset.kubernetes.io/tooling"]);
        let is_told = next.tooling == tooling && next.members == members(&parent["metadata"]);
        if !self.exists || !is_told {
            let applied = self.apply(&releases(), &id, &parent).await?;
            let metadata = &applied["metadata"];
            next.resource_version = text(&metadata["resourceVersion"]);
            next.uid = text(&metadata["uid"]);
            next.tooling = tooling;
            next.members = members(metadata);
        }
        let old: BTreeSet<String> = self
            .record
            .shards
            .iter()
            .map(|shard| shard.name.clone())
            .collect();
        next.shards = self.write_shards(inventory, &old).await?;
        next.entries = inventory.entries.len();
        next.resource_version = self.write_status(&id, &next, reason, message).await?;
        let kept: BTreeSet<&str> = next
            .shards
            .iter()
            .map(|shard| shard.name.as_str())
            .collect();
        for name in old.iter().filter(|name| !kept.contains(name.as_str())) {
            self.delete_shard(name).await?;
        }
        self.record = next;
        self.exists = true;
        Ok(())
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
    ) -> Result<String, SyncError> {
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
            Ok(applied) => Ok(text(&applied.value["metadata"]["resourceVersion"])),
            Err(error) if is_contended(&error) => Err(SyncError::Contended {
                release: self.name.to_string(),
                source: Box::new(error),
            }),
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
    ) -> Result<Value, SyncError> {
        debug_assert!(
            object["metadata"]["annotations"][annotations::DESIRED].is_null(),
            "state objects are no members"
        );
        let options = ApplyOptions {
            force: true,
            ..ApplyOptions::new(MANAGER)
        };
        let body = Bytes::from(canonical_json(object));
        Ok(self.cluster.apply(path, id, body, &options).await?.value)
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

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
