//! Which cluster it is.
//!
//! Where the record is a Release, the uid of the namespace kube-system says so.
//! Where it is a ConfigMap, the uid of its namespace does: one Role is enough to
//! read it, and it is the same for everybody, whatever else they may read.

use pleach_domain::inventory::Store;
use pleach_domain::object::ObjectId;
use pleach_domain::observe::{ClusterId, LiveMeta, Observed};

use crate::engine::sync::error::SyncError;
use crate::io::cluster::{Class, Cluster, ClusterError, ResourcePath};

/// The id of a cluster, and the namespace that was read for it.
pub(super) struct Identity {
    pub(super) cluster: ClusterId,
    pub(super) namespace: Option<(ObjectId, LiveMeta)>,
}

/// Reads which cluster this is.
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

/// The id by which a cluster is known where records are kept like this.
pub async fn cluster_id(cluster: &Cluster, store: &Store) -> Result<ClusterId, SyncError> {
    Ok(identify(cluster, store, "").await?.cluster)
}

/// Accepts the uid of kube-system as the id of a cluster whose id is that of a
/// namespace, when somebody names the cluster so. Costs a request only then.
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
        // Then it cannot be the one, as far as we can tell (I11).
        Err(error) if error.class() == Some(&Class::Forbidden) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Whether a cluster is the one that somebody named; none where that cannot be told.
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
