//! Conditions that the controller writes beside the record of a release.

use jiff::Timestamp;
use pleach_model::object::{ReleaseName, managers};
use pleach_state::inventory::{Condition, Installed, Store, changed_status, config_map_data};
use serde_json::json;

use super::is_contended;
use super::parent::path;
use crate::sync::error::SyncError;
use pleach_cluster::{Cluster, ClusterError, Patch, PatchOptions};

/// Number of write races after which a write fails.
const ATTEMPTS: usize = 5;

/// Returns whether a release has a readable record of this repository.
pub async fn is_of(
    cluster: &Cluster,
    name: &ReleaseName,
    store: &Store,
    repository: &str,
) -> Result<bool, ClusterError> {
    let live = cluster.get_id(&path(store), &store.parent(name)).await?;
    let record = live.and_then(|live| Installed::from_object(&live).ok());
    Ok(record.is_some_and(|record| {
        // `tooling` names another tool that has taken over the ApplySet.
        record.repository == repository && record.tooling.starts_with("pleach/")
    }))
}

/// Writes exactly these conditions of a release, and removes other conditions of the controller.
/// Writes nothing if they are unchanged, or if there is no such release.
pub async fn report(
    cluster: &Cluster,
    name: &ReleaseName,
    store: &Store,
    conditions: &[Condition],
) -> Result<(), SyncError> {
    let (path, id) = (path(store), store.parent(name));
    let subresource = match store {
        Store::Release => Some("status"),
        Store::ConfigMap { .. } => None,
    };
    let options = PatchOptions {
        subresource,
        ..PatchOptions::new(managers::STATE)
    };
    for attempt in 1.. {
        let Some(live) = cluster.get_id(&path, &id).await? else {
            return Ok(());
        };
        let Some(status) = changed_status(&live, conditions, Timestamp::now()) else {
            return Ok(());
        };
        let mut change = json!({
            "metadata": { "resourceVersion": live["metadata"]["resourceVersion"] },
        });
        match store {
            Store::Release => {
                // The record itself must not change here.
                change["status"] = status;
                if let Some(status) = change["status"].as_object_mut() {
                    status.remove("record");
                }
            }
            Store::ConfigMap { .. } => change["data"] = config_map_data(&status),
        }
        match cluster
            .patch(&path, &id, &Patch::Merge(change), &options)
            .await
        {
            Ok(_) => return Ok(()),
            Err(error) if is_contended(&error) && attempt < ATTEMPTS => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
