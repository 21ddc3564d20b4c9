//! Reads and writes of objects.

use futures::{StreamExt as _, pin_mut};
use pleach_cluster::{
    Access, ApplyOptions, Class, DeleteOptions, Deleted, Depth, Failed, Followed, Patch,
    PatchOptions, Propagation, Selector,
};
use pleach_model::discovery::Served;
use pleach_model::object::{GroupKind, Gvk};
use pleach_state::live::LiveMeta;
use serde_json::{Value, json};

use super::*;

fn meta(value: &Value) -> LiveMeta {
    LiveMeta::read(&value["metadata"], MANAGER)
}

#[tokio::test]
async fn the_cluster_has_an_identity_and_a_version() {
    let cluster = connect(crate::shared()).await;
    let expected = format!("v{}", pleach_testkit::throwaway::kubernetes_version());
    assert_eq!(cluster.server_version().await.unwrap(), expected);
    let id = cluster.cluster_id().await.unwrap();
    assert_eq!(id.to_string().len(), 36);
    assert_eq!(cluster.cluster_id().await.unwrap(), id);
    let user = cluster.whoami().await.unwrap();
    assert_eq!(user.username, "throwaway-admin");
    assert!(user.groups.contains(&"system:masters".to_owned()));
    let access = Access {
        verb: "patch",
        group: "apps",
        resource: "deployments",
        subresource: None,
        namespace: None,
        name: None,
    };
    assert!(cluster.can_i(&access).await.unwrap());
}

#[tokio::test]
async fn discovery_knows_the_built_in_kinds() {
    let cluster = connect(crate::shared()).await;
    let discovery = cluster.discover().await.unwrap();
    let Served::Current(deployments) = discovery.served(&Gvk::new("apps/v1", "Deployment")) else {
        panic!("no deployments");
    };
    assert_eq!(deployments.plural, "deployments");
    assert!(deployments.namespaced);
    assert!(deployments.verbs.contains("patch"));
    let Served::Current(namespaces) = discovery.served(&Gvk::new("v1", "Namespace")) else {
        panic!("no namespaces");
    };
    assert!(!namespaces.namespaced);
    let (version, _) = discovery
        .preferred(&GroupKind::new("autoscaling", "HorizontalPodAutoscaler"))
        .unwrap();
    assert_eq!(version.to_string(), "autoscaling/v2");
    // The kind of the subresource pods/eviction is not a kind of the core group.
    assert_eq!(discovery.served(&Gvk::new("v1", "Scale")), Served::Absent);
}

#[tokio::test]
async fn an_apply_creates_then_changes_nothing_then_conflicts() {
    let cluster = with_namespace("adapter-apply").await;
    let object = config_map("adapter-apply", "a", "1");
    let first = apply(&cluster, &object).await.unwrap();
    assert!(first.created);
    let again = apply(&cluster, &object).await.unwrap();
    assert!(!again.created);
    let (first, again) = (meta(&first.value), meta(&again.value));
    assert_eq!(first.resource_version, again.resource_version);
    assert!(first.fingerprint.is_some());
    assert_eq!(first.fingerprint, again.fingerprint);

    let other = ApplyOptions::new("other");
    let changed = config_map("adapter-apply", "a", "2");
    let conflict = class(apply_as(&cluster, &changed, &other).await);
    let Class::FieldConflict(fields) = conflict else {
        panic!("{conflict:?}");
    };
    assert_eq!(fields.len(), 1);
    assert_eq!(fields[0].manager, MANAGER);
    assert_eq!(fields[0].field, ".data.k");

    let forced = ApplyOptions {
        force: true,
        ..other
    };
    apply_as(&cluster, &changed, &forced).await.unwrap();
    let live = cluster
        .get(&config_maps(), Some("adapter-apply"), "a")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(live["data"]["k"], "2");
    assert_ne!(meta(&live).fingerprint, first.fingerprint);
}

#[tokio::test]
async fn a_dry_run_writes_nothing() {
    let cluster = with_namespace("adapter-dry").await;
    let predicted = dry_run(&cluster, &deployment("adapter-dry")).await.unwrap();
    // The answer includes defaults.
    assert_eq!(predicted.value["spec"]["replicas"], 1);
    let path = path(&cluster, &predicted.value).await;
    let live = cluster
        .get(&path, Some("adapter-dry"), "web")
        .await
        .unwrap();
    assert_eq!(live, None);
}

#[tokio::test]
async fn a_long_list_comes_in_pages_with_fingerprints() {
    let cluster = with_namespace("adapter-pages").await;
    let options = ApplyOptions::new(MANAGER);
    let bodies: Vec<Value> = (0..501)
        .map(|n| config_map("adapter-pages", &format!("c{n:03}"), "1"))
        .collect();
    let applied: Vec<_> = futures::stream::iter(&bodies)
        .map(|value| {
            let cluster = cluster.clone();
            async move {
                let body = Bytes::from(value.to_string());
                cluster
                    .apply(&config_maps(), &id(value), body, &options)
                    .await
            }
        })
        .buffer_unordered(16)
        .collect()
        .await;
    assert!(applied.iter().all(Result::is_ok));
    let selector = Selector::namespace(Some("adapter-pages"));
    let list = cluster
        .list_metadata(&config_maps(), &selector, MANAGER)
        .await
        .unwrap();
    // kube-root-ca.crt can exist too.
    let ours: Vec<_> = list
        .items
        .iter()
        .filter(|(id, _)| id.name.starts_with('c'))
        .collect();
    assert_eq!(ours.len(), 501);
    assert!(ours.iter().all(|(id, meta)| id.kind == "ConfigMap"
        && meta.fingerprint.is_some()
        && meta.fingerprint == ours[0].1.fingerprint));
    let full = cluster.list(&config_maps(), &selector).await.unwrap();
    assert!(full.items.len() >= 501);
    assert!(full.items.iter().all(|item| item["kind"] == "ConfigMap"));
}

#[tokio::test]
async fn a_deletion_takes_only_what_was_meant() {
    let cluster = with_namespace("adapter-delete").await;
    let object = config_map("adapter-delete", "a", "1");
    let live = meta(&apply(&cluster, &object).await.unwrap().value);
    let options = |uid, resource_version| DeleteOptions {
        uid,
        resource_version,
        propagation: Propagation::Background,
        dry_run: false,
    };
    let delete = async |options: DeleteOptions<'_>| {
        cluster.delete(&config_maps(), &id(&object), &options).await
    };
    let other = "00000000-0000-0000-0000-000000000000";
    assert_eq!(
        class(delete(options(Some(other), None)).await),
        Class::PreconditionFailed(Failed::Uid)
    );
    assert_eq!(
        class(delete(options(Some(&live.uid), Some("1"))).await),
        Class::PreconditionFailed(Failed::ResourceVersion)
    );
    let meant = options(Some(&live.uid), Some(&live.resource_version));
    let dry = DeleteOptions {
        dry_run: true,
        ..meant
    };
    assert_eq!(delete(dry).await.unwrap(), Deleted::Gone);
    assert_eq!(delete(meant).await.unwrap(), Deleted::Gone);
    assert_eq!(delete(meant).await.unwrap(), Deleted::Absent);
}

#[tokio::test]
async fn a_finalizer_makes_a_deletion_wait() {
    let cluster = with_namespace("adapter-finalizer").await;
    let mut object = config_map("adapter-finalizer", "a", "1");
    object["metadata"]["finalizers"] = json!(["x.io/wait"]);
    let live = meta(&apply(&cluster, &object).await.unwrap().value);
    let options = DeleteOptions {
        uid: Some(&live.uid),
        resource_version: None,
        propagation: Propagation::Background,
        dry_run: false,
    };
    let deleted = cluster
        .delete(&config_maps(), &id(&object), &options)
        .await
        .unwrap();
    assert_eq!(
        deleted,
        Deleted::Accepted {
            finalizers: vec!["x.io/wait".to_owned()]
        }
    );
    let body = Bytes::from(config_map("adapter-finalizer", "a", "2").to_string());
    let created = cluster
        .create(
            &config_maps(),
            &id(&object),
            body,
            &ApplyOptions::new(MANAGER),
        )
        .await;
    assert_eq!(class(created), Class::AlreadyExists { terminating: true });
}

#[tokio::test]
async fn a_patch_tests_what_it_was_made_for() {
    let cluster = with_namespace("adapter-patch").await;
    let object = config_map("adapter-patch", "a", "1");
    let live = meta(&apply(&cluster, &object).await.unwrap().value);
    let options = PatchOptions::new("pleach-overlay");
    let patch = |version: &str| {
        Patch::Json(json!([
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "replace", "path": "/data/k", "value": "2"},
        ]))
    };
    let stale = cluster
        .patch(&config_maps(), &id(&object), &patch("1"), &options)
        .await;
    assert_eq!(class(stale), Class::PreconditionFailed(Failed::Test));
    let patched = cluster
        .patch(
            &config_maps(),
            &id(&object),
            &patch(&live.resource_version),
            &options,
        )
        .await
        .unwrap();
    assert_eq!(patched.value["data"]["k"], "2");
    let merge = Patch::Merge(json!({"metadata": {"resourceVersion": "1"}, "data": {"k": "3"}}));
    let stale = cluster
        .patch(&config_maps(), &id(&object), &merge, &options)
        .await;
    assert_eq!(class(stale), Class::StaleResourceVersion);
}

#[tokio::test]
async fn changes_are_followed_in_both_depths() {
    let cluster = with_namespace("adapter-follow").await;
    for depth in [Depth::Full, Depth::Metadata] {
        let object = config_map("adapter-follow", "a", "1");
        let selector = Selector {
            namespace: Some("adapter-follow"),
            labels: None,
            fields: Some("metadata.name=a"),
        };
        let stream = cluster.follow(&config_maps(), &selector, depth);
        pin_mut!(stream);
        assert_eq!(
            stream.next().await.unwrap().unwrap(),
            Followed::Listed(Vec::new())
        );
        apply(&cluster, &object).await.unwrap();
        let Followed::Applied(seen) = stream.next().await.unwrap().unwrap() else {
            panic!("not applied");
        };
        assert_eq!(seen["kind"], "ConfigMap");
        assert_eq!(seen["metadata"]["name"], "a");
        assert_eq!(seen["data"].is_object(), depth == Depth::Full);
        assert!(meta(&seen).fingerprint.is_some());
        let options = DeleteOptions {
            uid: None,
            resource_version: None,
            propagation: Propagation::Background,
            dry_run: false,
        };
        cluster
            .delete(&config_maps(), &id(&object), &options)
            .await
            .unwrap();
        let deleted = stream.next().await.unwrap().unwrap();
        assert!(matches!(deleted, Followed::Deleted(_)), "{deleted:?}");
    }
}

#[tokio::test]
async fn warnings_of_the_server_are_kept() {
    let cluster = with_namespace("adapter-warning").await;
    let mut object = deployment("adapter-warning");
    let container = &mut object["spec"]["template"]["spec"]["containers"][0];
    container["env"] = json!([{"name": "A", "value": "$(B"}, {"name": "C"}]);
    object["spec"]["template"]["metadata"]["annotations"] =
        json!({"container.apparmor.security.beta.kubernetes.io/c": "unconfined"});
    let applied = dry_run(&cluster, &object).await.unwrap();
    assert!(
        applied
            .warnings
            .iter()
            .any(|text| text.contains("deprecated")),
        "{:?}",
        applied.warnings
    );
}
