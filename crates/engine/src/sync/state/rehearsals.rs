//! Reports of rehearsals, stored for the web page.

use pleach_cluster::{Class, Cluster};
use pleach_model::object::{ObjectId, ReleaseName};
use pleach_report::attached;
use pleach_state::inventory::Store;
use serde_json::Value;

use super::parent::path;
use super::{State, config_maps};
use crate::planning::agent;
use crate::sync::error::SyncError;

/// Stores the report of a rehearsal beside the record of its release, in place of the previous one.
/// `object` is that of [`attached::to_object`]. Returns `false`, without a write, if the release has
/// no record: its namespace can be missing, and no uninstall would remove the report.
pub async fn attach(
    cluster: &Cluster,
    (name, store): (&ReleaseName, &Store),
    object: &Value,
) -> Result<bool, SyncError> {
    let cluster = cluster.clone().with_user_agent(&agent(Some(name)));
    let record = match cluster.get_id(&path(store), &store.parent(name)).await {
        Err(error) if error.class() == Some(&Class::KindNotServed) => None,
        read => read?,
    };
    if record.is_none() {
        return Ok(false);
    }
    let id = ObjectId::new(
        "",
        "ConfigMap",
        Some(store.namespace()),
        &attached::name(name),
    );
    let state = State::unread(&cluster, name, store);
    state.apply(&config_maps(), &id, object).await?;
    Ok(true)
}
