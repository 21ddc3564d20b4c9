//! Remains of a damaged or lost record.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pleach_model::discovery::Discovery;
use pleach_model::object::ReleaseName;
use pleach_planner::observe::ClusterId;
use pleach_state::inventory::{Installed, Inventory, Journal, Scope, Store, read_shards};

use super::{State, config_maps};
use crate::sync::error::SyncError;
use pleach_cluster::Cluster;

/// Readable parts of a record.
#[derive(Debug)]
pub struct Salvaged {
    /// State to write the rebuilt record with.
    pub state: State,
    /// The record; `None` if it is gone.
    pub installed: Option<Installed>,
    /// Members in the readable shards.
    pub inventory: Inventory,
    /// Missing parts, as text; empty if the record is complete.
    pub lost: Vec<String>,
    /// Whether the record exists but does not verify as written by pleach.
    pub is_unverified: bool,
}

impl State {
    /// Reads the remains of a record. Missing parts are reported and are no error, but a record of
    /// a newer pleach is.
    pub async fn salvage(
        cluster: &Cluster,
        (name, store): (&ReleaseName, &Store),
        id: &ClusterId,
        discovery: &Discovery,
    ) -> Result<Salvaged, SyncError> {
        let lost_key = "the digest key: objects with secrets are applied again".to_owned();
        match Self::read(cluster, (name, store), id, discovery).await {
            Ok((mut state, recorded)) => {
                // If only the CRD is gone, the key was not read yet.
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
                    is_unverified: false,
                })
            }
            Err(SyncError::Inventory { source, what, .. })
                if !matches!(
                    source,
                    Some(pleach_state::inventory::ShardError::Newer { .. })
                ) && discovery
                    .preferred(&store.parent(name).group_kind())
                    .is_some() =>
            {
                let mut salvaged = Self::salvage_shards(cluster, (name, store), id).await?;
                if salvaged.lost.is_empty() {
                    salvaged.lost.push(what);
                }
                if salvaged.state.key().is_none() {
                    salvaged.lost.push(lost_key);
                }
                Ok(salvaged)
            }
            Err(SyncError::Unverified { .. }) => {
                let mut salvaged = Self::salvage_shards(cluster, (name, store), id).await?;
                if salvaged.state.key().is_none() {
                    salvaged.lost.push(lost_key);
                }
                Ok(salvaged)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads the shards one by one, and keeps those that match their committed digest.
    async fn salvage_shards(
        cluster: &Cluster,
        (name, store): (&ReleaseName, &Store),
        id: &ClusterId,
    ) -> Result<Salvaged, SyncError> {
        let mut state = Self::unread(cluster, name, store);
        state.scope = Scope::of(&id.0, store, name);
        state.key = state.read_key().await?;
        let mut salvaged = Salvaged {
            state,
            installed: None,
            inventory: Inventory::default(),
            lost: Vec::new(),
            is_unverified: false,
        };
        salvaged.salvage_journal().await?;
        let Some((mut installed, live)) = salvaged.state.read_record().await? else {
            return Ok(salvaged);
        };
        if let Err(error) = salvaged.state.verify(&installed) {
            salvaged.is_unverified = true;
            let why = crate::words(&error);
            salvaged.lost.push(match store {
                // Tenants cannot write there, so the content is kept and sealed again.
                Store::Release => format!("the seal of the record: {why}"),
                Store::ConfigMap { .. } => {
                    installed = Installed {
                        uid: installed.uid,
                        resource_version: installed.resource_version,
                        tooling: installed.tooling,
                        repository: installed.repository,
                        ..Installed::default()
                    };
                    format!("the record and its inventory: {why}")
                }
            });
        }
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
                    "ConfigMap {}/{}: another client changed it",
                    store.namespace(),
                    shard.name
                )),
            }
        }
        // All shards are written again. Intact ones keep their names.
        salvaged.state.record = installed.clone();
        let shards = salvaged.state.record.shards.drain(..);
        let names = shards.map(|shard| shard.name);
        salvaged.state.unlisted.extend(names);
        salvaged.state.live = Some(live);
        salvaged.installed = Some(installed);
        Ok(salvaged)
    }
}

impl Salvaged {
    /// Ignores a journal that does not verify. It is deleted with the next write of the record,
    /// without effect.
    async fn salvage_journal(&mut self) -> Result<(), SyncError> {
        let name = Journal::name(&self.state.name);
        let namespace = self.state.store.namespace().to_owned();
        let cluster = &self.state.cluster;
        let found = cluster.get(&config_maps(), Some(&namespace), &name).await?;
        let verified = found.map(|journal| self.state.verify_journal(&journal));
        if let Some(Err(error)) = verified {
            self.state.unlisted.insert(name);
            let why = crate::words(&error);
            self.lost.push(format!(
                "the journal, so its temporary changes are not reverted: {why}"
            ));
        }
        Ok(())
    }
}
