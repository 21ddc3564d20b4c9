//! Cluster for seeds: its content, and the cleanup between seeds.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use kube::Client;
use serde_json::Value;

use crate::dump::{Found, everything};
use crate::generated::LABEL;

/// Time-out of the control plane's recovery, even on a busy machine. pleach is not responsible for
/// it.
const RETURN: Duration = Duration::from_mins(10);

/// Time-out of one read of the cluster. A request to a server that is being killed can remain
/// unanswered.
const DEADLINE: Duration = Duration::from_mins(1);

/// Maximum number of concurrent deletions.
const CONCURRENCY: usize = 16;

/// Returns the content of the cluster. Retries until the control plane answers.
pub(super) async fn read(client: &Client) -> anyhow::Result<BTreeMap<String, Found>> {
    let started = Instant::now();
    loop {
        let found = tokio::time::timeout(DEADLINE, read_once(client)).await;
        match found.unwrap_or_else(|late| Err(late.into())) {
            Ok(all) => return Ok(all),
            Err(error) if started.elapsed() > RETURN => {
                return Err(error).context("the control plane does not come back");
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn read_once(client: &Client) -> anyhow::Result<BTreeMap<String, Found>> {
    let request = http::Request::get("/readyz").body(Vec::new())?;
    client.request_text(request).await?;
    everything(client).await
}

/// Removes the leftovers of a seed. Does not wait for the deletion of namespaces.
pub(super) async fn clear(client: &Client, name: &str) -> anyhow::Result<()> {
    let all = read(client).await?;
    let release = format!("{name}.app");
    let left = all.into_values().filter(|found| {
        let metadata = &found.object["metadata"];
        let object = metadata["name"].as_str().unwrap_or_default();
        let is_global = metadata["namespace"].is_null();
        let is_state = metadata["namespace"] == "pleach-system" || is_global;
        is_global && metadata["labels"][LABEL] == name
            || is_state && (object == release || object.starts_with(&format!("{release}.")))
    });
    stream::iter(left)
        .map(|found| async move { delete(client, &found.path).await })
        .buffer_unordered(CONCURRENCY)
        .try_collect::<()>()
        .await
}

/// Deletes an object that can already be absent.
pub(super) async fn delete(client: &Client, path: &str) -> anyhow::Result<()> {
    let request = http::Request::delete(path).body(Vec::new())?;
    match client.request::<Value>(request).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error).with_context(|| format!("failed to delete {path}")),
    }
}

/// Returns whether an object of a release is temporary: its journal, its Lease or a gate.
pub(super) fn is_temporary(id: &str, release: &str) -> bool {
    id == format!("ConfigMap/pleach-system/{release}.journal")
        || id == format!("Lease.coordination.k8s.io/pleach-system/{release}")
        || id.contains("AdmissionPolicy") && id.contains(&format!("/{release}."))
}
