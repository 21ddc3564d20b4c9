//! Changes of controllers to their objects and ours.

use super::*;

#[tokio::test]
async fn labels_of_a_service_are_copied_to_its_endpoints() {
    let server = Server::with("facts-copied").await;
    let labels = json!({"applyset.kubernetes.io/part-of": "applyset-facts-v1", "app.kubernetes.io/managed-by": "pleach"});
    let service = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "a", "labels": labels},
        "spec": {"selector": {"app": "a"}, "ports": [{"port": 80}]}});
    server
        .apply(&server.path("/api/v1", "services/a"), &service)
        .await
        .ok();
    for (api, plural) in [
        ("/api/v1", "endpoints"),
        ("/apis/discovery.k8s.io/v1", "endpointslices"),
    ] {
        let all = server.path(
            api,
            &format!("{plural}?labelSelector=applyset.kubernetes.io/part-of"),
        );
        until(plural, async || {
            let list = server.get(&all).await.ok();
            list["items"]
                .as_array()
                .is_some_and(|items| !items.is_empty())
        })
        .await;
    }
}

#[tokio::test]
async fn an_aggregated_role_belongs_to_its_controller() {
    let server = Server::with("facts-aggregated").await;
    let api = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let rule = |verb: &str| json!([{"apiGroups": ["facts.example.org"], "resources": ["things"], "verbs": [verb]}]);
    let part = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "facts-part", "labels": {"facts": "aggregated"}}, "rules": rule("get")});
    server.apply(&format!("{api}/facts-part"), &part).await.ok();
    let whole = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "facts-whole"}, "rules": rule("list"),
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"facts": "aggregated"}}]}});
    let path = format!("{api}/facts-whole");
    server.apply(&path, &whole).await.ok();
    until("the controller has the rules", async || {
        let live = server.get(&path).await.ok();
        fields_of(&live, "clusterrole-aggregation-controller") == [".rules"]
    })
    .await;
    let (code, message) = server.apply(&path, &whole).await.refused();
    assert_eq!(code, 409);
    assert!(
        message.contains("clusterrole-aggregation-controller"),
        "{message}"
    );
}

#[tokio::test]
async fn a_claim_may_stay_pending_until_a_pod_wants_it() {
    let server = Server::with("facts-claim").await;
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": "facts-claim"}, "provisioner": "example.org/none",
        "volumeBindingMode": "WaitForFirstConsumer"});
    server
        .apply("/apis/storage.k8s.io/v1/storageclasses/facts-claim", &class)
        .await
        .ok();
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "a"}, "spec": {"storageClassName": "facts-claim",
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}});
    let path = server.path("/api/v1", "persistentvolumeclaims/a");
    server.apply(&path, &claim).await.ok();
    let events = server.path("/api/v1", "events?fieldSelector=involvedObject.name%3Da");
    until("the controller says what it waits for", async || {
        let list = server.get(&events).await.ok();
        list.to_string().contains("WaitForFirstConsumer")
    })
    .await;
    assert_eq!(server.get(&path).await.ok()["status"]["phase"], "Pending");
}

#[tokio::test]
async fn a_job_deleted_without_a_word_leaves_its_pods() {
    let server = Server::with("facts-job").await;
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"},
        "spec": {"template": {"spec": {"restartPolicy": "Never",
            "containers": [{"name": "c", "image": "i"}]}}}});
    let path = server.path("/apis/batch/v1", "jobs/a");
    server.apply(&path, &job).await.ok();
    let pods = server.path("/api/v1", "pods");
    let count = async || {
        server.get(&pods).await.ok()["items"]
            .as_array()
            .unwrap()
            .len()
    };
    until("the pod is made", async || count().await == 1).await;
    server.delete(&path, Value::Null).await.ok();
    until("the job is gone", async || {
        server.get(&path).await.code == 404
    })
    .await;
    // A finalizer delays it. The pod loses its owner and remains.
    until("the pod is an orphan", async || {
        let list = server.get(&pods).await.ok();
        list["items"][0]["metadata"]["ownerReferences"].is_null()
    })
    .await;
    assert_eq!(count().await, 1);
}
