//! What is left of a record that is lost in part, or as a whole.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pleach_domain::inventory::{Installed, Inventory, ReleaseName, Store, read_shards};
use pleach_domain::observe::Discovery;

use super::{State, config_maps};
use crate::engine::sync::error::SyncError;
use crate::io::cluster::Cluster;

/// What is left of a record.
#[derive(Debug)]
pub struct Salvaged {
    /// The record with which a rebuilt one is written.
    pub state: State,
    /// The record; none when it is gone.
    pub installed: Option<Installed>,
    /// What the shards that can be read have.
    pub inventory: Inventory,
    /// What is missing, in words; empty when nothing is.
    pub lost: Vec<String>,
}

impl State {
    /// Reads what is left of a record. What is missing is said and is no error;
    /// a record of a newer pleach is one.
    pub async fn salvage(
        cluster: &Cluster,
        name: &ReleaseName,
        store: &Store,
        discovery: &Discovery,
    ) -> Result<Salvaged, SyncError> {
        let lost_key = "the key of digests: objects with secrets are applied once more".to_owned();
        match Self::read(cluster, name, store, discovery).await {
            Ok((mut state, recorded)) => {
                // The definition may be gone alone: then nothing else was read.
                if state.key.is_none() {
                    state.key = state.read_key().await?;
                }
                let mut lost = Vec::new();
                if recorded.installed.as_ref().is_none_or(Installed::is_blank) {
                    lost.push("the record and its inventory".to_owned());
                }
                if state.key().is_none() {
                    lost.push(lost_key);
                }
                Ok(Salvaged {
                    state,
                    installed: recorded.installed,
                    inventory: recorded.inventory,
                    lost,
                })
            }
            Err(SyncError::Inventory { source, what, .. })
                if !matches!(
                    source,
                    Some(pleach_domain::inventory::ShardError::Newer { .. })
                ) && discovery
                    .preferred(&store.parent(name).group_kind())
                    .is_some() =>
            {
                let mut salvaged = Self::salvage_shards(cluster, name, store).await?;
                if salvaged.lost.is_empty() {
                    salvaged.lost.push(what);
                }
                if salvaged.state.key().is_none() {
                    salvaged.lost.push(lost_key);
                }
                Ok(salvaged)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads the shards one by one, and keeps those that are as they were
    /// committed.
    async fn salvage_shards(
        cluster: &Cluster,
        name: &ReleaseName,
        store: &Store,
    ) -> Result<Salvaged, SyncError> {
        let mut state = Self::unread(cluster, name, store);
        state.key = state.read_key().await?;
        let mut salvaged = Salvaged {
            state,
            installed: None,
            inventory: Inventory::default(),
            lost: Vec::new(),
        };
        let Some((installed, live)) = salvaged.state.read_record().await? else {
            return Ok(salvaged);
        };
        for shard in &installed.shards {
            let value = cluster
                .get(&config_maps(), Some(store.namespace()), &shard.name)
                .await?;
            let Some(value) = value else {
                let what = format!("ConfigMap {}/{}", store.namespace(), shard.name);
                salvaged.lost.push(what);
                continue;
            };
            let read = value["binaryData"]["entries"]
                .as_str()
                .and_then(|text| STANDARD.decode(text).ok())
                .and_then(|bytes| read_shards(&[(shard.digest, bytes)]).ok());
            match read {
                Some(part) => salvaged.inventory.entries.extend(part.entries),
                None => salvaged.lost.push(format!(
                    "ConfigMap {}/{}: somebody changed it",
                    store.namespace(),
                    shard.name
                )),
            }
        }
        // Every shard is written anew, under its own name where it is intact.
        salvaged.state.record = installed.clone();
        let shards = salvaged.state.record.shards.drain(..);
        salvaged.state.unlisted = shards.map(|shard| shard.name).collect();
        salvaged.state.live = Some(live);
        salvaged.installed = Some(installed);
        Ok(salvaged)
    }
}
