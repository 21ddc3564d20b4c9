//! Inventory shards in ConfigMaps.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pleach_model::object::{ObjectId, ReleaseName, labels};
use pleach_report::attached;
use pleach_state::inventory::{
    Installed, Inventory, Journal, ReleaseSummary, ShardRef, Store, read_shards, write_shards,
};
use serde_json::{Value, json};

use super::{State, config_maps};
use crate::sync::{error::SyncError, observe::cluster_id};
use pleach_cluster::{Cluster, DeleteOptions, Propagation, Selector};

impl State {
    pub(super) async fn read_inventory(
        &mut self,
        installed: &Installed,
    ) -> Result<Inventory, SyncError> {
        let label = format!("{}={}", labels::RELEASE, self.name.label());
        let selector = Selector {
            namespace: Some(self.store.namespace()),
            labels: Some(&label),
            ..Selector::default()
        };
        let list = self.cluster.list(&config_maps(), &selector).await?;
        let listed: BTreeSet<&str> = installed
            .shards
            .iter()
            .map(|shard| shard.name.as_str())
            .collect();
        let journal = Journal::name(&self.name);
        self.journal = list
            .items
            .iter()
            .find(|item| item["metadata"]["name"] == journal.as_str())
            .cloned();
        let rehearsal = attached::name(&self.name);
        self.rehearsal = list
            .items
            .iter()
            .find(|item| item["metadata"]["name"] == rehearsal.as_str())
            .cloned();
        self.unlisted = list
            .items
            .iter()
            .filter(|item| item["binaryData"]["entries"].is_string())
            .filter_map(|item| item["metadata"]["name"].as_str())
            .filter(|name| !listed.contains(name) && self.is_shard(name))
            .map(str::to_owned)
            .collect();
        assemble(&self.name, &self.store, installed, &list.items)
    }

    /// Returns whether a ConfigMap has the name of a shard. Others are never deleted.
    fn is_shard(&self, name: &str) -> bool {
        let rest = name.strip_prefix(&self.name.to_string());
        rest.is_some_and(|rest| rest.starts_with(".inventory."))
    }

    pub(super) async fn write_shards(
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
                        "name": name, "namespace": self.store.namespace(),
                        "labels": { labels::RELEASE: self.name.label(), labels::MANAGED_BY: "pleach" },
                    },
                    "binaryData": { "entries": STANDARD.encode(&shard.bytes) },
                });
                let id = ObjectId::new("", "ConfigMap", Some(self.store.namespace()), &name);
                self.apply(&config_maps(), &id, &object).await?;
            }
            written.push(ShardRef {
                name,
                digest: shard.digest,
            });
        }
        Ok(written)
    }

    /// Deletes shards that the record no longer names, and returns the first error. Failed
    /// deletions are retried the next time.
    pub(super) async fn remove_unlisted(&mut self) -> Result<(), SyncError> {
        let mut result = Ok(());
        for name in std::mem::take(&mut self.unlisted) {
            if let Err(error) = self.delete_shard(&name).await {
                self.unlisted.insert(name);
                result = result.and(Err(error));
            }
        }
        result
    }

    async fn delete_shard(&self, name: &str) -> Result<(), SyncError> {
        let id = ObjectId::new("", "ConfigMap", Some(self.store.namespace()), name);
        let options = DeleteOptions {
            uid: None,
            resource_version: None,
            propagation: Propagation::Background,
            dry_run: false,
        };
        self.cluster.delete(&config_maps(), &id, &options).await?;
        Ok(())
    }
}

/// Returns the members of a release for its successor. Fails for a record that does not verify as
/// written by pleach.
pub(in crate::sync) async fn members(
    cluster: &Cluster,
    release: &ReleaseSummary,
    installed: &Installed,
) -> Result<Inventory, SyncError> {
    let id = cluster_id(cluster, &release.store).await?;
    State::verified(cluster, (&release.name, &release.store), &id, installed).await?;
    let label = format!("{}={}", labels::RELEASE, release.name.label());
    let selector = Selector {
        namespace: Some(release.store.namespace()),
        labels: Some(&label),
        ..Selector::default()
    };
    let list = cluster.list(&config_maps(), &selector).await?;
    assemble(&release.name, &release.store, installed, &list.items)
}

/// Assembles the shards that a release has committed. A missing or modified shard makes the view
/// incomplete (I1).
pub(super) fn assemble(
    name: &ReleaseName,
    store: &Store,
    installed: &Installed,
    config_maps: &[Value],
) -> Result<Inventory, SyncError> {
    let namespace = store.namespace();
    let incomplete = |what: String, source| SyncError::Inventory {
        release: name.to_string(),
        namespace: namespace.to_owned(),
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
                    format!("ConfigMap {namespace}/{} is missing", shard.name),
                    None,
                )
            })?;
        shards.push((shard.digest, bytes));
    }
    read_shards(&shards)
        .map_err(|source| incomplete("a shard cannot be read".to_owned(), Some(source)))
}
