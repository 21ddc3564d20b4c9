//! Facts about the cluster and the permissions of our user.

use std::collections::BTreeSet;

use futures::future::{join_all, try_join};
use pleach_cluster::{Access, Cluster, ClusterError, ResourcePath};
use serde_json::Value;

use super::files::ClusterFacts;
use crate::cli::error::{CliError, Kind};

/// Permissions that bootstrap needs before it writes anything: verb, API group, resource, and
/// whether the namespace of the controller is enough. The plan of the release checks the rest.
const NEEDED: [(&str, &str, &str, bool); 14] = [
    ("get", "", "namespaces", false),
    ("create", "", "namespaces", false),
    ("create", "", "secrets", true),
    ("patch", "", "secrets", true),
    (
        "patch",
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        false,
    ),
    ("create", "pleach.dev", "releases", false),
    ("patch", "pleach.dev", "releases", false),
    ("create", "rbac.authorization.k8s.io", "clusterroles", false),
    (
        "create",
        "rbac.authorization.k8s.io",
        "clusterrolebindings",
        false,
    ),
    ("create", "rbac.authorization.k8s.io", "roles", false),
    ("create", "rbac.authorization.k8s.io", "rolebindings", false),
    ("create", "", "serviceaccounts", true),
    ("create", "", "configmaps", true),
    ("create", "apps", "deployments", true),
];

/// Identity of a cluster.
pub(super) struct Identity {
    pub(super) facts: ClusterFacts,
    /// Version of the API server without the leading `v`.
    pub(super) version: String,
}

/// Reads the identity of the cluster.
pub(super) async fn identify(cluster: &Cluster) -> Result<Identity, CliError> {
    let (id, version) = try_join(cluster.cluster_id(), cluster.server_version()).await?;
    Ok(Identity {
        facts: ClusterFacts {
            id: id.0,
            ports: ports(cluster).await,
        },
        version: version.trim_start_matches('v').to_owned(),
    })
}

/// Returns the ports of the API server behind its Service, for the network policy. Empty if they
/// cannot be read: the bundle has the usual ones.
async fn ports(cluster: &Cluster) -> BTreeSet<u16> {
    let slices = ResourcePath::namespaced("discovery.k8s.io/v1", "EndpointSlice", "endpointslices");
    let slice = cluster.get(&slices, Some("default"), "kubernetes").await;
    let slice = slice.ok().flatten().unwrap_or(Value::Null);
    let ports = slice["ports"].as_array().map_or(&[][..], Vec::as_slice);
    let ports = ports.iter().filter_map(|port| port["port"].as_u64());
    ports.filter_map(|port| port.try_into().ok()).collect()
}

/// Refuses a user without the needed permissions.
pub(super) async fn review(cluster: &Cluster, namespace: &str) -> Result<(), CliError> {
    let everything = Access {
        verb: "*",
        group: "*",
        resource: "*",
        subresource: None,
        namespace: None,
        name: None,
    };
    if cluster.can_i(&everything).await? {
        return Ok(());
    }
    let asked = join_all(NEEDED.map(async |(verb, group, resource, is_namespaced)| {
        let access = Access {
            verb,
            group,
            resource,
            namespace: is_namespaced.then_some(namespace),
            ..everything
        };
        Ok::<_, ClusterError>(
            (!cluster.can_i(&access).await?).then(|| format!("{verb} {resource}")),
        )
    }));
    let missing: Vec<Option<String>> = asked.await.into_iter().collect::<Result<_, _>>()?;
    let missing: Vec<String> = missing.into_iter().flatten().collect();
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!(
        "your account in {} lacks permissions: {}",
        cluster.server(),
        missing.join(", ")
    );
    Err(CliError::new(Kind::Cluster, message).hint(
        "choose the --context of an administrator: an account can only grant permissions that it has",
    ))
}
