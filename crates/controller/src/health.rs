//! Reads for readiness checks.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use pleach_cluster::{Cluster, ResourcePath, Retry};
use pleach_formats::readiness::Rules;
use pleach_model::object::ObjectId;
use pleach_reconciler::health::Checked;
use tokio::time::Instant;

/// Time limit of a readiness check.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of concurrent reads.
const CONCURRENCY: usize = 4;

/// Reads objects and assesses them by the readiness rules of runs.
pub(super) async fn check(
    cluster: &Cluster,
    rules: &Rules,
    objects: BTreeSet<ObjectId>,
    path: impl Fn(&ObjectId) -> Option<ResourcePath>,
) -> Vec<(ObjectId, Checked)> {
    let retry = Retry::until(Instant::now() + PATIENCE);
    let cluster = &cluster.clone().with_retry(retry);
    let places = objects.into_iter().map(|id| (path(&id), id));
    let read = stream::iter(places).map(|(path, id)| async move {
        let Some(path) = path else {
            return (id, Checked::Unreadable);
        };
        let checked = match cluster.get_id(&path, &id).await {
            Ok(Some(value)) => Checked::Assessed(rules.assess(&value)),
            Ok(None) => Checked::Missing,
            Err(_) => Checked::Unread,
        };
        (id, checked)
    });
    read.buffer_unordered(CONCURRENCY).collect().await
}
