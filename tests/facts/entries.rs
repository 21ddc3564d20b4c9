//! Changes of our managedFields entry.

use rstest::rstest;

use super::*;

#[tokio::test]
async fn the_same_apply_writes_nothing_and_gives_back_the_same_entry() {
    let server = Server::with("facts-same").await;
    let path = server.deployment_path();
    let mut object = deployment();
    object["spec"]["template"]["spec"]["containers"][0]["resources"] =
        json!({"limits": {"cpu": "1000m", "memory": "1024Mi"}});
    let first = server.apply(&path, &object).await.ok();
    let again = server.apply(&path, &object).await.ok();
    let limits = &again["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"];
    assert_eq!(limits, &json!({"cpu": "1", "memory": "1Gi"}));
    assert_eq!(
        again["metadata"]["generation"],
        first["metadata"]["generation"]
    );
    assert_eq!(our_entry(&again), our_entry(&first));
    assert_eq!(owners(&again), [format!("{OURS} Apply")]);

    // Without controllers that write to it, nothing changes. The same values from another manager
    // are a write.
    let path = server.config_map_path();
    let first = server
        .apply(&path, &config_map(json!({"k": "1"})))
        .await
        .ok();
    let again = server
        .apply(&path, &config_map(json!({"k": "1"})))
        .await
        .ok();
    assert_eq!(
        again["metadata"]["resourceVersion"],
        first["metadata"]["resourceVersion"]
    );
    let theirs = server
        .apply_as("other", &path, &config_map(json!({"k": "1"})))
        .await
        .ok();
    assert_ne!(
        theirs["metadata"]["resourceVersion"],
        first["metadata"]["resourceVersion"]
    );
    assert_eq!(our_entry(&theirs), our_entry(&first));
    assert_eq!(
        owners(&theirs),
        ["other Apply".to_owned(), format!("{OURS} Apply")]
    );
}

#[rstest]
#[case::edit("facts-edit", "merge-patch+json", json!({"data": {"k": "2"}}), true)]
#[case::removal("facts-removal", "json-patch+json", json!([{"op": "remove", "path": "/data/k"}]), true)]
#[case::the_same_value("facts-equal", "merge-patch+json", json!({"data": {"k": "1"}}), false)]
#[case::a_field_of_their_own("facts-add", "merge-patch+json", json!({"data": {"more": "1"}}), false)]
#[tokio::test]
async fn our_entry_moves_with_our_fields_only(
    #[case] namespace: &'static str,
    #[case] how: &str,
    #[case] patch: Value,
    #[case] moves: bool,
) {
    let server = Server::with(namespace).await;
    let path = server.config_map_path();
    let object = config_map(json!({"k": "1", "l": "1"}));
    let before = server.apply(&path, &object).await.ok();
    let uri = format!("{path}?fieldManager=someone");
    let content_type = format!("application/{how}");
    let after = server.send("PATCH", &uri, &content_type, &patch).await.ok();
    assert_eq!(our_entry(&after) != our_entry(&before), moves, "{after}");
}

#[tokio::test]
async fn the_scale_subresource_takes_the_field_from_us() {
    let server = Server::with("facts-scale").await;
    let path = server.deployment_path();
    let before = server.apply(&path, &deployment()).await.ok();
    let scale = format!("{path}/scale");
    server
        .merge(&scale, json!({"spec": {"replicas": 3}}))
        .await
        .ok();
    let after = server.get(&path).await.ok();
    assert_ne!(our_entry(&after), our_entry(&before));
    assert_eq!(fields_of(&after, "someone"), [".spec.replicas"]);
    assert_eq!(
        owners(&after),
        [format!("{OURS} Apply"), "someone Update scale".to_owned()]
    );

    // A zero has no owner, so a later apply has no conflict.
    server
        .merge(&scale, json!({"spec": {"replicas": 0}}))
        .await
        .ok();
    let after = server.get(&path).await.ok();
    assert_eq!(fields_of(&after, "someone"), [""; 0], "{after}");
    server.apply(&path, &deployment()).await.ok();
}

#[tokio::test]
async fn an_entry_holds_paths_and_not_the_order_of_lists() {
    let server = Server::with("facts-order").await;
    let path = server.deployment_path();
    let before = server.apply(&path, &deployment()).await.ok();
    let spec = "/spec/template/spec";
    let moved = [
        format!("{spec}/initContainers"),
        format!("{spec}/containers/0/env"),
    ];
    for list in moved {
        let patch =
            json!([{"op": "move", "from": format!("{list}/0"), "path": format!("{list}/1")}]);
        let after = server.json_patch(&path, patch).await.ok();
        assert_eq!(our_entry(&after), our_entry(&before), "{list}");
        assert!(
            after["metadata"]["generation"].as_i64() > before["metadata"]["generation"].as_i64()
        );
        let name = after.pointer(&list).unwrap()[0]["name"].clone();
        let restored = server.apply(&path, &deployment()).await.ok();
        assert_ne!(restored.pointer(&list).unwrap()[0]["name"], name, "{list}");
        assert_eq!(owners(&restored), [format!("{OURS} Apply")]);
    }
}

#[tokio::test]
async fn a_role_with_more_rules_has_the_same_entry() {
    let server = Server::with("facts-rules").await;
    let path = server.path("/apis/rbac.authorization.k8s.io/v1", "roles/a");
    let rule =
        |verb: &str| json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": [verb]});
    let role = |rules: Value| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": "a"}, "rules": rules})
    };
    let wide = server
        .apply(&path, &role(json!([rule("get"), rule("list")])))
        .await
        .ok();
    let narrow = server.apply(&path, &role(json!([rule("get")]))).await.ok();
    assert_eq!(our_entry(&narrow), our_entry(&wide));
    // The list is atomic: a manager that reorders it owns all of it.
    server
        .apply(&path, &role(json!([rule("get"), rule("list")])))
        .await
        .ok();
    let patch = json!([{"op": "move", "from": "/rules/0", "path": "/rules/1"}]);
    let after = server.json_patch(&path, patch).await.ok();
    assert!(apply_entry(&after["metadata"], OURS).is_none(), "{after}");
    assert_eq!(fields_of(&after, "someone"), [".rules"]);
}

#[tokio::test]
async fn a_label_that_was_removed_and_added_is_only_in_the_entry() {
    let server = Server::with("facts-flip").await;
    let path = server.config_map_path();
    let mut object = config_map(json!({"k": "1"}));
    object["metadata"]["labels"] = json!({"tier": "front"});
    let before = server.apply(&path, &object).await.ok();
    server
        .merge(&path, json!({"metadata": {"labels": {"tier": null}}}))
        .await
        .ok();
    let after = server
        .merge(&path, json!({"metadata": {"labels": {"tier": "front"}}}))
        .await
        .ok();
    assert_eq!(after["metadata"]["labels"], before["metadata"]["labels"]);
    assert_ne!(our_entry(&after), our_entry(&before));
    let predicted = server.dry_run(&path, &object).await.ok();
    assert_eq!(our_entry(&predicted), our_entry(&before));
    // An apply of the same value has no conflict and shares the ownership.
    let applied = server.apply(&path, &object).await.ok();
    assert_eq!(fields_of(&applied, "someone"), [".metadata.labels.tier"]);
}

#[tokio::test]
async fn string_data_is_owned_apart_from_data() {
    let server = Server::with("facts-strings").await;
    let path = server.path("/api/v1", "secrets/a");
    let secret = |strings: Value| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "stringData": strings});
    let before = server
        .apply(&path, &secret(json!({"k": "1", "l": "1"})))
        .await
        .ok();
    assert!(our_entry(&before).1["f:stringData"].is_object(), "{before}");
    let after = server
        .merge(&path, json!({"data": {"k": "Mg=="}}))
        .await
        .ok();
    assert_eq!(our_entry(&after), our_entry(&before));
    let dropped = server.apply(&path, &secret(json!({"l": "1"}))).await.ok();
    assert_eq!(dropped["data"]["k"], "Mg==");
}

#[tokio::test]
async fn an_object_that_is_being_deleted_has_the_same_entry_and_can_be_applied() {
    let server = Server::with("facts-ending").await;
    let path = server.config_map_path();
    let mut object = config_map(json!({"k": "1"}));
    object["metadata"]["finalizers"] = json!(["example.org/hold"]);
    let before = server.apply(&path, &object).await.ok();
    server.delete(&path, Value::Null).await.ok();
    let ending = server.get(&path).await.ok();
    assert!(ending["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(our_entry(&ending), our_entry(&before));
    let applied = server.apply(&path, &object).await;
    assert_eq!(applied.code, 200, "{applied:?}");
}

#[tokio::test]
async fn some_kinds_have_a_generation_and_some_have_none() {
    let server = Server::with("facts-counted").await;
    let meta = |kind: &str, version: &str| json!({"apiVersion": version, "kind": kind, "metadata": {"name": "facts-counted"}});
    let with = |mut object: Value, key: &str, value: Value| {
        object[key] = value;
        object
    };
    let selector = json!({"matchLabels": {"a": "b"}});
    let path = json!({"path": "/", "pathType": "Prefix",
        "backend": {"service": {"name": "a", "port": {"number": 80}}}});
    let counted = [
        (
            server.path("/apis/networking.k8s.io/v1", "ingresses/facts-counted"),
            with(
                meta("Ingress", "networking.k8s.io/v1"),
                "spec",
                json!({"rules": [{"http": {"paths": [path]}}]}),
            ),
        ),
        (
            server.path("/apis/policy/v1", "poddisruptionbudgets/facts-counted"),
            with(
                meta("PodDisruptionBudget", "policy/v1"),
                "spec",
                json!({"minAvailable": 1, "selector": selector}),
            ),
        ),
        (
            "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/facts-counted"
                .to_owned(),
            meta(
                "ValidatingWebhookConfiguration",
                "admissionregistration.k8s.io/v1",
            ),
        ),
    ];
    for (path, object) in counted {
        let live = server.apply(&path, &object).await.ok();
        assert!(live["metadata"]["generation"].is_i64(), "{live}");
    }
    let uncounted = [
        (
            server.path("/api/v1", "configmaps/facts-counted"),
            meta("ConfigMap", "v1"),
        ),
        (
            server.path("/api/v1", "secrets/facts-counted"),
            meta("Secret", "v1"),
        ),
        (
            server.path("/api/v1", "serviceaccounts/facts-counted"),
            meta("ServiceAccount", "v1"),
        ),
        (
            server.path("/api/v1", "services/facts-counted"),
            with(
                meta("Service", "v1"),
                "spec",
                json!({"ports": [{"port": 80}]}),
            ),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/facts-counted".to_owned(),
            meta("ClusterRole", "rbac.authorization.k8s.io/v1"),
        ),
        (
            "/api/v1/namespaces/facts-counted".to_owned(),
            meta("Namespace", "v1"),
        ),
    ];
    for (path, object) in uncounted {
        let live = server.apply(&path, &object).await.ok();
        assert!(live["metadata"]["generation"].is_null(), "{live}");
    }
    let api = server
        .get("/apis/apiregistration.k8s.io/v1/apiservices/v1.apps")
        .await
        .ok();
    assert!(api["metadata"]["generation"].is_null(), "{api}");
}
