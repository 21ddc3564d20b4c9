//! Workloads of a cluster, read only if an object waits for a controller.

use pleach_report::doctor::{Observations, Workload, waits_for_controller};
use serde_json::Value;

use super::Take as _;
use pleach_cluster::{Cluster, ClusterError, Depth, ResourcePath, Selector};

/// Workload kinds that controllers run as.
const KINDS: [(&str, &str); 3] = [
    ("Deployment", "deployments"),
    ("StatefulSet", "statefulsets"),
    ("DaemonSet", "daemonsets"),
];

/// Reads the workloads if the deletion of some object waits for a controller.
pub(super) async fn find(cluster: &Cluster, observations: &mut Observations) {
    if !observations.objects.iter().any(waits_for_controller) {
        return;
    }
    let lists = KINDS.map(|(kind, plural)| of_kind(cluster, kind, plural));
    let mut all = Some(Vec::new());
    for (listed, (_, plural)) in futures::future::join_all(lists)
        .await
        .into_iter()
        .zip(KINDS)
    {
        let found = observations.take(&format!("the {plural}"), listed);
        // An incomplete list cannot prove that a controller is missing.
        all = all.zip(found).map(|(mut all, found)| {
            all.extend(found);
            all
        });
    }
    observations.workloads = all;
}

/// Lists all workloads of the cluster.
pub(crate) async fn workloads(cluster: &Cluster) -> Result<Vec<Workload>, ClusterError> {
    let lists = KINDS.map(|(kind, plural)| of_kind(cluster, kind, plural));
    let all = futures::future::try_join_all(lists).await?;
    Ok(all.into_iter().flatten().collect())
}

async fn of_kind(
    cluster: &Cluster,
    kind: &str,
    plural: &str,
) -> Result<Vec<Workload>, ClusterError> {
    let path = ResourcePath::namespaced("apps/v1", kind, plural);
    let read = |value: Value| Workload::read(kind, &value);
    cluster
        .pick(&path, &Selector::default(), Depth::Full, read)
        .await
}
