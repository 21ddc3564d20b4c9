//! Failures in the words of the server.

use pleach_cluster::{ApplyOptions, Class, Failed, Selector};
use pleach_planner::observe::{Prediction, Unverified};
use serde_json::json;

use super::*;

#[tokio::test]
async fn a_missing_namespace_is_told_from_a_missing_object() {
    let cluster = connect(crate::shared()).await;
    let result = dry_run(&cluster, &config_map("adapter-nowhere", "a", "1")).await;
    let error = result.unwrap_err();
    assert_eq!(
        error.class(),
        Some(&Class::NamespaceMissing("adapter-nowhere".to_owned()))
    );
    let Some(Prediction::Unverified(why)) = error.api().unwrap().prediction() else {
        panic!("{error:?}");
    };
    assert_eq!(
        why,
        Unverified::NamespaceMissing("adapter-nowhere".to_owned())
    );
    let found = cluster
        .get(&config_maps(), Some("adapter-nowhere"), "a")
        .await
        .unwrap();
    assert_eq!(found, None);
    let found = cluster.get(&namespaces(), None, "adapter-nowhere").await;
    assert_eq!(found.unwrap(), None);
}

#[tokio::test]
async fn a_kind_that_is_not_served_is_no_empty_list() {
    let cluster = connect(crate::shared()).await;
    let things = ResourcePath::namespaced("x.io/v1", "Thing", "things");
    assert_eq!(
        class(cluster.list(&things, &Selector::default()).await),
        Class::KindNotServed
    );
    assert_eq!(
        class(cluster.get(&things, Some("default"), "a").await),
        Class::KindNotServed
    );
    let body = Bytes::from_static(b"{}");
    let thing = things.id(Some("default"), "a");
    let options = ApplyOptions::new(MANAGER);
    assert_eq!(
        class(cluster.apply(&things, &thing, body, &options).await),
        Class::KindNotServed
    );
    // An unknown kind of a served group.
    let things = ResourcePath::namespaced("apps/v1", "Thing", "things");
    assert_eq!(
        class(cluster.list(&things, &Selector::default()).await),
        Class::KindNotServed
    );
}

#[tokio::test]
async fn a_manifest_that_does_not_fit_is_the_manifests_fault() {
    let cluster = with_namespace("adapter-manifest").await;
    let mut unknown = deployment("adapter-manifest");
    unknown["spec"]["foo"] = json!(1);
    assert_eq!(
        class(dry_run(&cluster, &unknown).await),
        Class::InvalidManifest
    );
    let mut double = deployment("adapter-manifest");
    double["spec"]["template"]["spec"]["containers"][0]["ports"] =
        json!([{"containerPort": 1}, {"containerPort": 1}]);
    assert_eq!(
        class(dry_run(&cluster, &double).await),
        Class::InvalidManifest
    );
    let mut invalid = deployment("adapter-manifest");
    invalid["spec"]["replicas"] = json!(-1);
    assert_eq!(class(dry_run(&cluster, &invalid).await), Class::Invalid);
    let body = Bytes::from(unknown.to_string());
    let path = path(&cluster, &unknown).await;
    let options = ApplyOptions::new(MANAGER);
    assert_eq!(
        class(cluster.create(&path, &id(&unknown), body, &options).await),
        Class::InvalidManifest
    );
    let mut generated = config_map("adapter-manifest", "a", "1");
    generated["metadata"]["managedFields"] = json!([{"manager": "x"}]);
    assert_eq!(
        class(dry_run(&cluster, &generated).await),
        Class::BadRequest
    );
}

#[tokio::test]
async fn fields_that_cannot_change_are_named() {
    let cluster = with_namespace("adapter-immutable").await;
    apply(&cluster, &deployment("adapter-immutable"))
        .await
        .unwrap();
    let mut changed = deployment("adapter-immutable");
    changed["spec"]["selector"] = json!({"matchLabels": {"app": "web", "more": "yes"}});
    changed["spec"]["template"]["metadata"]["labels"]["more"] = json!("yes");
    let Class::Immutable(fields) = class(dry_run(&cluster, &changed).await) else {
        panic!("not immutable");
    };
    assert_eq!(fields.len(), 1);
    assert_eq!(fields[0].to_string(), ".spec.selector");

    let binding = |role: &str| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "b", "namespace": "adapter-immutable"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": []})
    };
    apply(&cluster, &binding("view")).await.unwrap();
    let Class::Immutable(fields) = class(dry_run(&cluster, &binding("edit")).await) else {
        panic!("not immutable");
    };
    assert_eq!(fields[0].to_string(), ".roleRef");
}

#[tokio::test]
async fn a_secret_is_refused_without_its_value() {
    let cluster = with_namespace("adapter-secret").await;
    let secret = |value: &str| {
        json!({"apiVersion": "v1", "kind": "Secret", "immutable": true, "stringData": {"k": value},
            "metadata": {"name": "s", "namespace": "adapter-secret"}})
    };
    apply(&cluster, &secret("hunter2")).await.unwrap();
    let broken = json!({"apiVersion": "v1", "kind": "Secret", "data": {"k": "hunter2!"},
        "metadata": {"name": "t", "namespace": "adapter-secret"}});
    let badly_typed = json!({"apiVersion": "v1", "kind": "Secret", "data": {"k": 1_234_567},
        "metadata": {"name": "t", "namespace": "adapter-secret"}});
    let bad_key = json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"k/hunter2": "x"},
        "metadata": {"name": "t", "namespace": "adapter-secret"}});
    for object in [secret("hunter3"), broken, badly_typed, bad_key] {
        let error = dry_run(&cluster, &object).await.unwrap_err();
        let text = format!("{error:?} {}", error.api().unwrap());
        for value in ["hunter3", "hunter2!", "1234567", "aHVudGVy"] {
            assert!(!text.contains(value), "{text}");
        }
    }
}

#[tokio::test]
async fn preconditions_in_a_body_are_told_apart() {
    let cluster = with_namespace("adapter-body").await;
    let mut object = config_map("adapter-body", "a", "1");
    object["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000000");
    assert_eq!(
        class(apply(&cluster, &object).await),
        Class::PreconditionFailed(Failed::Uid)
    );
    apply(&cluster, &config_map("adapter-body", "a", "1"))
        .await
        .unwrap();
    object["data"]["k"] = json!("2");
    assert_eq!(
        class(apply(&cluster, &object).await),
        Class::PreconditionFailed(Failed::Uid)
    );
    let mut object = config_map("adapter-body", "a", "2");
    object["metadata"]["resourceVersion"] = json!("1");
    assert_eq!(
        class(apply(&cluster, &object).await),
        Class::StaleResourceVersion
    );
    let body = Bytes::from(config_map("adapter-body", "a", "3").to_string());
    let options = ApplyOptions::new(MANAGER);
    let id = config_maps().id(Some("adapter-body"), "a");
    assert_eq!(
        class(cluster.create(&config_maps(), &id, body, &options).await),
        Class::AlreadyExists { terminating: false }
    );
}

#[tokio::test]
async fn rights_that_are_missing_are_named() {
    let control_plane = crate::shared();
    let admin = with_namespace("adapter-rights").await;
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "roles", "namespace": "adapter-rights"},
        "rules": [{"apiGroups": ["rbac.authorization.k8s.io"], "verbs": ["get", "patch", "create"],
            "resources": ["roles", "rolebindings"]}]});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "bob", "namespace": "adapter-rights"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "roles"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "adapter-bob"}]});
    apply(&admin, &role).await.unwrap();
    apply(&admin, &binding).await.unwrap();
    let connection = Connection {
        kubeconfig: Some(
            control_plane
                .kubeconfig_for_user("adapter-bob", &[])
                .unwrap(),
        ),
        ..Connection::new("pleach/0.0.0 test.adapter")
    };
    let bob = Cluster::connect(&connection).await.unwrap();
    let selector = Selector::default();
    let refused = bob.list(&config_maps(), &selector).await;
    assert_eq!(class(refused), Class::Forbidden);
    let refused = apply(&bob, &config_map("adapter-rights", "a", "1")).await;
    assert_eq!(class(refused), Class::Forbidden);

    let mut more = role.clone();
    more["metadata"]["name"] = json!("more");
    more["rules"] =
        json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list"]}]);
    // The authorizer needs a moment to observe the binding.
    let retry = Retry::within(Duration::from_secs(10)).also(|class| *class == Class::Forbidden);
    let Class::RbacEscalation { missing } = class(dry_run(&bob.with_retry(retry), &more).await)
    else {
        panic!("not an escalation");
    };
    assert_eq!(
        missing,
        [r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get" "list"]}"#]
    );
}

#[tokio::test]
async fn a_binding_to_a_missing_role_names_the_role() {
    let control_plane = crate::shared();
    let admin = with_namespace("adapter-binding").await;
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "roles", "namespace": "adapter-binding"},
        "rules": [{"apiGroups": ["rbac.authorization.k8s.io"], "verbs": ["get", "patch", "create"],
            "resources": ["roles", "rolebindings"]}]});
    let binding = |name: &str, role: &str| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": name, "namespace": "adapter-binding"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User",
                "name": "adapter-eve"}]})
    };
    apply(&admin, &role).await.unwrap();
    apply(&admin, &binding("eve", "roles")).await.unwrap();
    let connection = Connection {
        kubeconfig: Some(
            control_plane
                .kubeconfig_for_user("adapter-eve", &[])
                .unwrap(),
        ),
        ..Connection::new("pleach/0.0.0 test.adapter")
    };
    let retry = Retry::within(Duration::from_secs(10)).also(|class| *class == Class::Forbidden);
    let eve = Cluster::connect(&connection)
        .await
        .unwrap()
        .with_retry(retry);
    assert_eq!(
        class(dry_run(&eve, &binding("other", "missing")).await),
        Class::RoleMissing("missing".to_owned())
    );
}

#[tokio::test]
async fn a_namespace_that_goes_takes_nothing_new() {
    use pleach_cluster::{DeleteOptions, Deleted, Propagation};

    let cluster = with_namespace("adapter-going").await;
    // The finalizer delays the deletion of the namespace.
    let mut object = config_map("adapter-going", "a", "1");
    object["metadata"]["finalizers"] = json!(["x.io/wait"]);
    apply(&cluster, &object).await.unwrap();
    let options = DeleteOptions {
        uid: None,
        resource_version: None,
        propagation: Propagation::Background,
        dry_run: false,
    };
    let namespace = namespaces().id(None, "adapter-going");
    let deleted = cluster
        .delete(&namespaces(), &namespace, &options)
        .await
        .unwrap();
    assert!(matches!(deleted, Deleted::Accepted { .. }), "{deleted:?}");
    assert_eq!(
        class(dry_run(&cluster, &config_map("adapter-going", "b", "1")).await),
        Class::NamespaceTerminating("adapter-going".to_owned())
    );
}

#[tokio::test]
async fn a_policy_is_named() {
    let cluster = with_namespace("adapter-policy").await;
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "adapter-gate"},
        "spec": {"matchConstraints": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "adapter-policy"}},
            "resourceRules": [{"apiGroups": [""], "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}]},
            "validations": [{"expression": "false", "message": "closed", "reason": "Forbidden"}]}});
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "adapter-gate"},
        "spec": {"policyName": "adapter-gate", "validationActions": ["Deny"]}});
    apply(&cluster, &policy).await.unwrap();
    apply(&cluster, &binding).await.unwrap();
    let object = config_map("adapter-policy", "a", "1");
    until("the policy is in force", async || {
        dry_run(&cluster, &object).await.is_err()
    })
    .await;
    let expected = Class::PolicyDenied {
        policy: "adapter-gate".to_owned(),
        binding: "adapter-gate".to_owned(),
    };
    assert_eq!(class(dry_run(&cluster, &object).await), expected);
}

#[tokio::test]
async fn credentials_of_another_cluster_are_not_accepted() {
    let control_plane = crate::shared();
    let config = tempfile::NamedTempFile::new().unwrap();
    let ca = control_plane.ca_pem();
    let text = json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": control_plane.server_url(),
            "certificate-authority-data": base64(ca)}}],
        "users": [{"name": "a", "user": {"token": "hunter2"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]});
    std::io::Write::write_all(&mut config.as_file(), text.to_string().as_bytes()).unwrap();
    let connection = Connection {
        kubeconfig: Some(config.path().to_owned()),
        ..Connection::new("pleach/0.0.0")
    };
    let error = Cluster::connect(&connection).await.unwrap_err();
    assert_eq!(error.class(), Some(&Class::Unauthorized));
    assert!(!format!("{error:?}").contains("hunter2"));

    // A server with an untrusted certificate.
    let text = text.to_string().replace(&base64(ca), "");
    let config = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut config.as_file(), text.as_bytes()).unwrap();
    let connection = Connection {
        kubeconfig: Some(config.path().to_owned()),
        ..Connection::new("pleach/0.0.0")
    };
    let error = Cluster::connect(&connection).await.unwrap_err();
    assert_eq!(error.class(), Some(&Class::Tls), "{error:?}");
}

fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}
