//! Temporary changes in the journals of releases, and whether a run still holds the Leases of those
//! releases.

use pleach_model::object::labels;
use pleach_report::doctor::{Gap, Observations, Standing};
use serde_json::Value;

use super::Take as _;
use super::gates::lease_state;
use pleach_cluster::{Cluster, Depth, ResourcePath, Selector};

/// Reads all journals, or those of one namespace.
pub(super) async fn all(
    cluster: &Cluster,
    namespace: Option<&str>,
    observations: &mut Observations,
) {
    let path = ResourcePath::namespaced("v1", "ConfigMap", "configmaps");
    let selector = Selector {
        namespace,
        labels: Some(labels::JOURNAL),
        ..Selector::default()
    };
    let read = |value: Value| Standing::read(&value);
    let listed = cluster.pick(&path, &selector, Depth::Full, read).await;
    let listed = observations.take("the journals of releases", listed);
    let mut all = Vec::new();
    for read in listed.unwrap_or_default() {
        match read {
            Ok(standing) => all.push(standing),
            Err(error) => observations.gaps.push(Gap {
                what: "the temporary changes of a release".to_owned(),
                why: crate::words(&error),
                forbidden: false,
            }),
        }
    }
    let lease_states = all.iter().map(|standing| async {
        // The Lease is in the namespace of the journal.
        let namespace = standing.record.namespace.as_deref().unwrap_or_default();
        lease_state(cluster, namespace, &standing.owner).await
    });
    let lease_states = futures::future::join_all(lease_states).await;
    for (standing, lease_state) in all.iter_mut().zip(lease_states) {
        let what = format!("the Lease of {}", standing.owner);
        standing.lease_state = observations.take(&what, lease_state).unwrap_or_default();
    }
    observations.standing = all;
}
