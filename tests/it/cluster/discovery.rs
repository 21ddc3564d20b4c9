//! Served kinds, and registered APIs without an answer.

use pleach_cluster::{Class, ResourcePath};
use pleach_model::discovery::{Discovery, Served};
use pleach_model::object::{GroupKind, Gvk};
use serde_json::{Value, json};

use super::scripted::{Answer, Scripted, Seen};

fn resource(plural: &str, kind: &str, scope: &str) -> Value {
    json!({"resource": plural, "scope": scope, "verbs": ["get", "list", "patch"],
        "responseKind": {"group": "", "version": "", "kind": kind},
        "subresources": [{"subresource": "status", "responseKind": {"kind": kind}, "verbs": ["get"]}]})
}

fn document(groups: &Value) -> Answer {
    Answer::ok(
        json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {}, "items": groups}),
    )
}

fn aggregated(seen: &Seen) -> Answer {
    assert!(
        seen.headers["accept"].contains("as=APIGroupDiscoveryList"),
        "{:?}",
        seen.headers
    );
    match seen.path.as_str() {
        "/api" => document(
            &json!([{"versions": [{"version": "v1", "freshness": "Current",
            "resources": [resource("configmaps", "ConfigMap", "Namespaced"),
                resource("namespaces", "Namespace", "Cluster")]}]}]),
        ),
        "/apis" => document(&json!([
            {"metadata": {"name": "apps"}, "versions": [
                {"version": "v1", "freshness": "Current",
                    "resources": [resource("deployments", "Deployment", "Namespaced")]},
                {"version": "v1beta1", "resources": [resource("deployments", "Deployment", "Namespaced")]}]},
            {"metadata": {"name": "subresources.kubevirt.io"}, "versions": [
                {"version": "v1alpha2", "freshness": "Stale"}]},
            {"metadata": {"name": "empty.io"}, "versions": []},
        ])),
        path => panic!("{path}"),
    }
}

#[tokio::test]
async fn two_requests_tell_everything() {
    let server = Scripted::start(aggregated).await;
    let discovery = server.cluster().await.discover().await.unwrap();
    assert_eq!(server.seen().len(), 2);
    let namespace = ResourcePath::of(&discovery, &Gvk::new("v1", "Namespace")).unwrap();
    assert_eq!(
        namespace,
        ResourcePath::cluster_scoped("v1", "Namespace", "namespaces")
    );
    let deployment =
        ResourcePath::preferred(&discovery, &GroupKind::new("apps", "Deployment")).unwrap();
    assert_eq!(
        deployment,
        ResourcePath::namespaced("apps/v1", "Deployment", "deployments")
    );
    assert_eq!(
        discovery.served(&Gvk::new("subresources.kubevirt.io/v1alpha2", "Any")),
        Served::Stale
    );
    assert_eq!(
        discovery.served(&Gvk::new("apps/v1", "None")),
        Served::Absent
    );
    let stale: Vec<String> = discovery.stale().iter().map(ToString::to_string).collect();
    assert_eq!(stale, ["subresources.kubevirt.io/v1alpha2"]);
    // Subresources are not separate kinds.
    assert_eq!(discovery.groups[""].versions[0].resources.len(), 2);
}

fn legacy(seen: &Seen) -> Answer {
    match seen.path.as_str() {
        "/api" => Answer::ok(json!({"kind": "APIVersions", "versions": ["v1"]})),
        "/apis" => Answer::ok(json!({"kind": "APIGroupList", "groups": [
            {"name": "apps", "versions": [{"groupVersion": "apps/v1beta1", "version": "v1beta1"},
                {"groupVersion": "apps/v1", "version": "v1"}], "preferredVersion": {"version": "v1"}},
            {"name": "x.io", "versions": [{"version": "v1"}]}]})),
        "/api/v1" => Answer::ok(json!({"kind": "APIResourceList", "resources": [
            {"name": "configmaps", "namespaced": true, "kind": "ConfigMap", "verbs": ["get"]}]})),
        "/apis/apps/v1" | "/apis/apps/v1beta1" => {
            Answer::ok(json!({"kind": "APIResourceList", "resources": [
            {"name": "deployments", "namespaced": true, "kind": "Deployment", "verbs": ["get"]},
            {"name": "deployments/status", "namespaced": true, "kind": "Deployment", "verbs": ["get"]}]}))
        }
        "/apis/x.io/v1" => Answer::Text(503, "service unavailable\n"),
        path => panic!("{path}"),
    }
}

#[tokio::test]
async fn a_server_without_aggregation_is_asked_group_by_group() {
    let server = Scripted::start(legacy).await;
    let discovery: Discovery = server.cluster().await.discover().await.unwrap();
    let (preferred, resource) = discovery
        .preferred(&GroupKind::new("apps", "Deployment"))
        .unwrap();
    assert_eq!(preferred.to_string(), "apps/v1");
    assert_eq!(resource.plural, "deployments");
    assert_eq!(discovery.groups["apps"].versions[0].resources.len(), 1);
    assert_eq!(
        discovery.served(&Gvk::new("x.io/v1", "Thing")),
        Served::Stale
    );
}

#[tokio::test]
async fn what_is_no_discovery_is_not_an_empty_cluster() {
    let server = Scripted::start(|_| Answer::ok(json!({"kind": "Odd"}))).await;
    let error = server.cluster().await.discover().await.unwrap_err();
    assert_eq!(error.class(), Some(&Class::NotKubernetes));
}

#[tokio::test]
async fn a_server_in_trouble_is_not_a_stale_api() {
    let server = Scripted::start(|seen: &Seen| {
        if seen.path == "/apis/apps/v1" {
            Answer::status(401, "Unauthorized", "Unauthorized")
        } else {
            legacy(seen)
        }
    })
    .await;
    let error = server.cluster().await.discover().await.unwrap_err();
    assert_eq!(error.class(), Some(&Class::Unauthorized));
}
