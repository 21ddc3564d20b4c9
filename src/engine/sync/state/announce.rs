//! Events of Kubernetes about the record of a release: what `kubectl describe`
//! and `kubectl events` show.

use bytes::Bytes;
use jiff::Timestamp;
use pleach_domain::inventory::{ReleaseName, Store};
use pleach_domain::object::{Digest, canonical_json, managers};
use serde_json::json;

use super::parent::path;
use crate::engine::sync::error::SyncError;
use crate::io::cluster::{ApplyOptions, Class, Cluster, Patch, PatchOptions, ResourcePath, Retry};

/// Something that happened to a release.
#[derive(Debug, Clone, Copy)]
pub struct Announcement<'a> {
    /// One word.
    pub reason: &'a str,
    /// Whether somebody has to do something.
    pub is_warning: bool,
    /// One line.
    pub message: &'a str,
    /// The commit that it is about.
    pub revision: &'a str,
}

/// Writes an Event about a release. The same again counts the one that is there,
/// also when another process wrote it. Nothing is written where there is no
/// record; it is tried once.
pub async fn announce(
    cluster: &Cluster,
    name: &ReleaseName,
    store: &Store,
    said: Announcement<'_>,
) -> Result<(), SyncError> {
    let cluster = cluster.clone().with_retry(Retry::never());
    let record = store.parent(name);
    let Some(live) = cluster.get_id(&path(store), &record).await? else {
        return Ok(());
    };
    // Events about what lies in no namespace lie in this one.
    let namespace = record.namespace.as_deref().unwrap_or("default");
    let identity = json!([
        live["metadata"]["uid"],
        said.reason,
        said.revision,
        said.message
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
        "type": if said.is_warning { "Warning" } else { "Normal" },
        "reason": said.reason,
        "message": said.message,
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
