//! Identity of the cluster.
//!
//! With a Release record, the id is the uid of namespace kube-system. With a ConfigMap record, it
//! is the uid of the namespace of the record. A single Role is enough to read that, and it is the
//! same for all clients, whatever their other permissions.

use pleach_model::object::ObjectId;
use pleach_planner::observe::{ClusterId, Observed};
use pleach_state::inventory::Store;
use pleach_state::live::LiveMeta;

use crate::sync::error::SyncError;
use pleach_cluster::{Class, Cluster, ClusterError, ResourcePath};

/// Id of a cluster, with the namespace that was read for it.
pub(super) struct Identity {
    pub(super) cluster: ClusterId,
    pub(super) namespace: Option<(ObjectId, LiveMeta)>,
}

/// Reads the id of the cluster.
pub(super) async fn identify(
    cluster: &Cluster,
    store: &Store,
    manager: &str,
) -> Result<Identity, SyncError> {
    let Store::ConfigMap { namespace } = store else {
        return Ok(Identity {
            cluster: cluster.cluster_id().await?,
            namespace: None,
        });
    };
    let path = namespaces();
    let Some(value) = cluster.get(&path, None, namespace).await? else {
        return Err(SyncError::NoStateNamespace(namespace.clone()));
    };
    let meta = LiveMeta::read(&value["metadata"], manager);
    Ok(Identity {
        cluster: ClusterId(meta.uid.clone()),
        namespace: Some((path.id(None, namespace), meta)),
    })
}

/// Returns the id of a cluster for this store.
pub async fn cluster_id(cluster: &Cluster, store: &Store) -> Result<ClusterId, SyncError> {
    Ok(identify(cluster, store, "").await?.cluster)
}

/// Accepts the uid of kube-system as cluster id of a namespaced store, if the environment declares
/// that. Sends a request only then.
pub async fn recognize(
    cluster: &Cluster,
    store: &Store,
    observed: &mut Observed,
    named: &ClusterId,
) -> Result<(), ClusterError> {
    if *store == Store::Release || observed.cluster == *named {
        return Ok(());
    }
    match cluster.cluster_id().await {
        Ok(id) if id == *named => observed.cluster = id,
        Ok(_) => {}
        // Without permission to read the uid, the cluster does not match (I11).
        Err(error) if error.class() == Some(&Class::Forbidden) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Returns whether a cluster has the declared id; `None` if that is unknown.
pub async fn is_cluster(cluster: &Cluster, store: &Store, named: &str) -> Option<bool> {
    let of_namespace =
        match store {
            Store::Release => None,
            Store::ConfigMap { namespace } => {
                let read = cluster.get(&namespaces(), None, namespace).await;
                Some(read.is_ok_and(|value| {
                    value.is_some_and(|value| value["metadata"]["uid"] == named)
                }))
            }
        };
    match (of_namespace, cluster.cluster_id().await) {
        (Some(true), _) => Some(true),
        (_, Ok(id)) => Some(id.0 == named),
        (_, Err(_)) => None,
    }
}

fn namespaces() -> ResourcePath {
    ResourcePath::cluster_scoped("v1", "Namespace", "namespaces")
}
