//! Kubernetes Events about the record of a release, for `kubectl describe` and `kubectl events`.

use bytes::Bytes;
use jiff::Timestamp;
use pleach_model::object::{Digest, ReleaseName, canonical_json, managers};
use pleach_state::inventory::Store;
use serde_json::json;

use super::parent::path;
use crate::sync::error::SyncError;
use pleach_cluster::{ApplyOptions, Class, Cluster, Patch, PatchOptions, ResourcePath, Retry};

/// An event of a release.
#[derive(Debug, Clone, Copy)]
pub struct Announcement<'a> {
    /// One word.
    pub reason: &'a str,
    /// Whether a user must act.
    pub is_warning: bool,
    /// One line.
    pub message: &'a str,
    /// The commit.
    pub revision: &'a str,
}

/// Writes an Event about a release. A repeated event increments the count of the existing one, even
/// from another process. Does nothing without a record, and does not retry.
pub async fn announce(
    cluster: &Cluster,
    name: &ReleaseName,
    store: &Store,
    announcement: Announcement<'_>,
) -> Result<(), SyncError> {
    let cluster = cluster.clone().with_retry(Retry::never());
    let record = store.parent(name);
    let Some(live) = cluster.get_id(&path(store), &record).await? else {
        return Ok(());
    };
    // Events about cluster-scoped objects belong into this namespace.
    let namespace = record.namespace.as_deref().unwrap_or("default");
    let identity = json!([
        live["metadata"]["uid"],
        announcement.reason,
        announcement.revision,
        announcement.message
    ]);
    let short = Digest::of(&canonical_json(&identity)).short();
    let events = ResourcePath::namespaced("v1", "Event", "events");
    let id = events.id(Some(namespace), &format!("{name}.{short}"));
    let now = format!("{:.0}", Timestamp::now());
    let event = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "name": id.name, "namespace": namespace },
        "involvedObject": {
            "apiVersion": live["apiVersion"],
            "kind": live["kind"],
            "name": live["metadata"]["name"],
            "namespace": record.namespace,
            "uid": live["metadata"]["uid"],
        },
        "type": if announcement.is_warning { "Warning" } else { "Normal" },
        "reason": announcement.reason,
        "message": announcement.message,
        "source": { "component": "pleach" },
        "reportingComponent": "pleach.dev/loop",
        "reportingInstance": name.to_string(),
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    });
    let body = Bytes::from(canonical_json(&event));
    let options = ApplyOptions::new(managers::STATE);
    match cluster.create(&events, &id, body, &options).await {
        Ok(_) => return Ok(()),
        Err(error) if matches!(error.class(), Some(Class::AlreadyExists { .. })) => {}
        Err(error) => return Err(error.into()),
    }
    let Some(known) = cluster.get_id(&events, &id).await? else {
        return Ok(());
    };
    let count = known["count"].as_i64().unwrap_or(1) + 1;
    let again = Patch::Merge(json!({ "count": count, "lastTimestamp": now }));
    let options = PatchOptions::new(managers::STATE);
    cluster.patch(&events, &id, &again, &options).await?;
    Ok(())
}
