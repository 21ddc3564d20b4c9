//! Cluster adapter with a real API server: verifies the texts in the classification table.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests; clippy only knows the tests themselves"
)]

mod failures;
mod objects;
mod registrations;

use std::time::Duration;

use bytes::Bytes;
use pleach_cluster::{
    Applied, ApplyOptions, Class, Cluster, ClusterError, Connection, ResourcePath, Retry,
};
use pleach_model::object::{Gvk, ObjectId};
use pleach_testkit::throwaway::ControlPlane;
use serde_json::{Value, json};

const MANAGER: &str = "pleach/test.adapter";

/// Connects as administrator.
async fn connect(control_plane: &ControlPlane) -> Cluster {
    let connection = Connection {
        kubeconfig: Some(control_plane.kubeconfig().to_owned()),
        ..Connection::new("pleach/0.0.0 test.adapter")
    };
    let cluster = Cluster::connect(&connection).await.unwrap();
    cluster.with_retry(Retry::never())
}

fn namespaces() -> ResourcePath {
    ResourcePath::cluster_scoped("v1", "Namespace", "namespaces")
}

fn config_maps() -> ResourcePath {
    ResourcePath::namespaced("v1", "ConfigMap", "configmaps")
}

/// Connects to the shared control plane and creates a namespace for the test.
async fn with_namespace(name: &str) -> Cluster {
    let cluster = connect(crate::shared()).await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    apply(&cluster, &namespace).await.unwrap();
    cluster
}

fn id(value: &Value) -> ObjectId {
    let gvk = gvk(value);
    ObjectId::new(
        &gvk.api_version.group,
        &gvk.kind,
        value["metadata"]["namespace"].as_str(),
        value["metadata"]["name"].as_str().unwrap(),
    )
}

fn gvk(value: &Value) -> Gvk {
    Gvk::new(
        value["apiVersion"].as_str().unwrap(),
        value["kind"].as_str().unwrap(),
    )
}

/// Returns the path of an object from discovery.
async fn path(cluster: &Cluster, value: &Value) -> ResourcePath {
    let discovery = cluster.discover().await.unwrap();
    ResourcePath::of(&discovery, &gvk(value)).unwrap()
}

async fn apply_as(
    cluster: &Cluster,
    value: &Value,
    options: &ApplyOptions<'_>,
) -> Result<Applied, ClusterError> {
    let path = path(cluster, value).await;
    let body = Bytes::from(value.to_string());
    cluster.apply(&path, &id(value), body, options).await
}

async fn apply(cluster: &Cluster, value: &Value) -> Result<Applied, ClusterError> {
    apply_as(cluster, value, &ApplyOptions::new(MANAGER)).await
}

async fn dry_run(cluster: &Cluster, value: &Value) -> Result<Applied, ClusterError> {
    let options = ApplyOptions {
        dry_run: true,
        ..ApplyOptions::new(MANAGER)
    };
    apply_as(cluster, value, &options).await
}

/// Returns the class of a failure.
fn class<T: std::fmt::Debug>(result: Result<T, ClusterError>) -> Class {
    let error = result.unwrap_err();
    error.class().cloned().unwrap_or_else(|| panic!("{error}"))
}

fn config_map(namespace: &str, name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": value},
        "metadata": {"name": name, "namespace": namespace}})
}

fn deployment(namespace: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
}

/// Polls until the condition holds, because the server updates asynchronously.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let mut tick = tokio::time::interval(Duration::from_millis(50));
    let waiting = async {
        while !holds().await {
            tick.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting)
        .await
        .unwrap_or_else(|_| panic!("{what}"));
}
