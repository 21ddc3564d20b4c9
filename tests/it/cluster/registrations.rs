//! Registrations that refer to Services, and their backends.

use std::collections::BTreeMap;

use pleach_model::object::ServiceRef;
use pleach_planner::observe::{Backend, Listing};
use serde_json::json;

use super::scripted::{Answer, Scripted, Seen};

#[tokio::test]
async fn every_kind_has_its_own_result() {
    let server = Scripted::start(|seen: &Seen| {
        if seen.path.ends_with("/apiservices") {
            Answer::ok(
                json!({"kind": "APIServiceList", "metadata": {}, "items": [
                {"metadata": {"name": "v1.apps"}, "spec": {"service": null}},
                {"metadata": {"name": "v1.x.io", "uid": "u", "resourceVersion": "3"},
                    "spec": {"service": {"namespace": "n", "name": "s"}},
                    "status": {"conditions": [{"type": "Available", "status": "False",
                        "reason": "MissingEndpoints",
                        "message": "endpointslices for service/s in \"n\" have no addresses with port name \"\""}]}}]}),
            )
        } else if seen.path.ends_with("/validatingwebhookconfigurations") {
            Answer::status(
                403,
                "Forbidden",
                "validatingwebhookconfigurations is forbidden: User \"bob\" cannot list resource",
            )
        } else {
            Answer::ok(
                json!({"kind": "MutatingWebhookConfigurationList", "metadata": {}, "items": []}),
            )
        }
    })
    .await;
    let lists = server.cluster().await.registrations("pleach/e.r").await;
    assert_eq!(server.seen().len(), 3);
    let kinds: Vec<&str> = lists.iter().map(|list| list.kind.kind.as_str()).collect();
    assert_eq!(
        kinds,
        [
            "APIService",
            "ValidatingWebhookConfiguration",
            "MutatingWebhookConfiguration"
        ]
    );
    let found = lists[0].found.as_ref().unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(
        found[0].id.to_string(),
        "APIService.apiregistration.k8s.io/v1.x.io"
    );
    assert_eq!(found[0].services[0].to_string(), "n/s");
    assert_eq!(found[0].meta.resource_version, "3");
    let dead = found[0].available.clone().unwrap().unwrap_err();
    assert!(
        dead.starts_with("MissingEndpoints: endpointslices for"),
        "{dead}"
    );
    let error = lists[1].found.as_ref().unwrap_err();
    assert!(matches!(
        error.api().unwrap().listing(),
        Listing::Forbidden(_)
    ));
    assert_eq!(lists[2].found.as_ref().unwrap().len(), 0);
}

#[tokio::test]
async fn a_backend_is_a_service_with_ready_endpoints() {
    let server = Scripted::start(|seen: &Seen| {
        if seen.path == "/api/v1/namespaces/n/services/s" {
            return Answer::ok(json!({"metadata": {"name": "s"}}));
        }
        if seen.path.contains("/services/") {
            return Answer::status(404, "NotFound", "services \"gone\" not found");
        }
        assert_eq!(
            seen.path,
            "/apis/discovery.k8s.io/v1/namespaces/n/endpointslices"
        );
        let endpoints = if seen.query.contains("kubernetes.io/service-name=s&") {
            json!([{"addresses": ["10.0.0.1"], "conditions": {"ready": true}},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": false}}])
        } else {
            json!(null)
        };
        Answer::ok(json!({"kind": "EndpointSliceList", "metadata": {},
            "items": [{"endpoints": endpoints}]}))
    })
    .await;
    let cluster = server.cluster().await;
    let service = |name: &str| ServiceRef {
        namespace: "n".to_owned(),
        name: name.to_owned(),
    };
    assert_eq!(
        cluster.backend(&service("s")).await.unwrap(),
        Backend {
            exists: true,
            is_elsewhere: false,
            ready_endpoints: 1
        }
    );
    assert_eq!(
        cluster.backend(&service("gone")).await.unwrap(),
        Backend::default()
    );
}

#[tokio::test]
async fn endpoints_of_other_pods_are_left_out_where_labels_are_given() {
    let server = Scripted::start(|seen: &Seen| {
        if seen.path.ends_with("/services/s") {
            return Answer::ok(json!({"metadata": {"name": "s"}}));
        }
        if seen.path == "/api/v1/namespaces/n/pods" {
            return if seen.query.contains("secret") {
                Answer::status(
                    403,
                    "Forbidden",
                    "pods is forbidden: User \"bob\" cannot list resource",
                )
            } else {
                Answer::ok(json!({"kind": "PartialObjectMetadataList", "metadata": {},
                    "items": [{"metadata": {"name": "new", "namespace": "n", "uid": "new"}}]}))
            };
        }
        let endpoint = |uid: &str| json!({"addresses": [uid], "targetRef": {"uid": uid}});
        Answer::ok(
            json!({"kind": "EndpointSliceList", "metadata": {}, "items": [
            {"endpoints": [endpoint("old"), endpoint("new")]}, {"endpoints": null}]}),
        )
    })
    .await;
    let cluster = server.cluster().await;
    let service = ServiceRef {
        namespace: "n".to_owned(),
        name: "s".to_owned(),
    };
    for (label, expected) in [("v", 1), ("secret", 2)] {
        let labels = BTreeMap::from([(label.to_owned(), "2".to_owned())]);
        let backend = cluster.backend_among(&service, &labels).await.unwrap();
        assert_eq!(backend.ready_endpoints, expected, "{label}");
    }
}
