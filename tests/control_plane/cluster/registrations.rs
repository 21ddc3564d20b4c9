//! Dead registrations, on a separate control plane, because they affect all tests.

use std::time::Duration;

use pleach_cluster::{Class, DeleteOptions, Patch, PatchOptions, Propagation, Selector};
use pleach_model::discovery::Served;
use pleach_model::object::{Gvk, ServiceRef};
use pleach_planner::observe::{Backend, Prediction, Unverified};
use pleach_testkit::control_plane::binaries;
use pleach_testkit::throwaway::{Network, Options};
use serde_json::json;

use super::*;

fn start() -> ControlPlane {
    pleach_testkit::control_plane::start(Options {
        binaries: binaries(),
        controllers: false,
        scheduler: false,
        nodes: 0,
        network: Network::Host,
    })
    .unwrap()
}

fn api_service() -> Value {
    json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": "v1alpha2.sub.x.io"},
        "spec": {"group": "sub.x.io", "version": "v1alpha2", "groupPriorityMinimum": 1000,
            "versionPriority": 15, "insecureSkipTLSVerify": true,
            "service": {"namespace": "kube-system", "name": "gone"}}})
}

fn webhook() -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "dead"},
        "webhooks": [{"name": "dead.x.io", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"service": {"namespace": "kube-system", "name": "gone"}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["configmaps"]}]}]})
}

fn crd(versions: &[&str], storage: &str) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| {
            json!({"name": version, "served": true, "storage": *version == storage,
            "schema": {"openAPIV3Schema": {"type": "object",
                "properties": {"spec": {"type": "object",
                    "x-kubernetes-preserve-unknown-fields": true}}}}})
        })
        .collect();
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.ex.org"},
        "spec": {"group": "ex.org", "scope": "Cluster",
            "names": {"plural": "things", "kind": "Thing"}, "versions": versions}})
}

#[tokio::test]
async fn what_points_nowhere_is_found_and_told() {
    let control_plane = start();
    let cluster = connect(&control_plane).await;
    apply(&cluster, &api_service()).await.unwrap();
    let gvk = Gvk::new("sub.x.io/v1alpha2", "Thing");
    until("the group-version is stale", async || {
        cluster.discover().await.unwrap().served(&gvk) == Served::Stale
    })
    .await;

    let things = ResourcePath::cluster_scoped("sub.x.io/v1alpha2", "Thing", "things");
    let error = cluster
        .list(&things, &Selector::default())
        .await
        .unwrap_err();
    assert_eq!(error.class(), Some(&Class::ApiUnavailable), "{error:?}");
    assert!(error.is_retryable());
    let Some(Prediction::Unverified(why)) = error.api().unwrap().prediction() else {
        panic!("{error:?}");
    };
    assert_eq!(why, Unverified::ApiStale);

    apply(&cluster, &webhook()).await.unwrap();
    let lists = cluster.registrations(MANAGER).await;
    let found: Vec<_> = lists
        .iter()
        .flat_map(|list| list.found.as_ref().unwrap())
        .collect();
    let ids: Vec<String> = found.iter().map(|found| found.id.to_string()).collect();
    assert_eq!(
        ids,
        [
            "APIService.apiregistration.k8s.io/v1alpha2.sub.x.io",
            "ValidatingWebhookConfiguration.admissionregistration.k8s.io/dead"
        ]
    );
    let gone = ServiceRef {
        namespace: "kube-system".to_owned(),
        name: "gone".to_owned(),
    };
    assert!(found.iter().all(|found| found.services == [gone.clone()]));
    let words = found[0].available.clone().unwrap().unwrap_err();
    assert_eq!(
        words,
        "ServiceNotFound: service/gone in \"kube-system\" is not present"
    );
    assert_eq!(cluster.backend(&gone).await.unwrap(), Backend::default());

    let object = config_map("default", "a", "1");
    until("the webhook is in force", async || {
        dry_run(&cluster, &object).await.is_err()
    })
    .await;
    let error = dry_run(&cluster, &object).await.unwrap_err();
    assert_eq!(
        error.class(),
        Some(&Class::WebhookUnavailable("dead.x.io".to_owned()))
    );
    let options = DeleteOptions {
        uid: Some(&found[1].meta.uid),
        resource_version: Some(&found[1].meta.resource_version),
        propagation: Propagation::Background,
        dry_run: false,
    };
    let path = path(&cluster, &webhook()).await;
    cluster.delete(&path, &found[1].id, &options).await.unwrap();
    // The obstacle can disappear during the retries.
    let patient = cluster.with_retry(Retry::within(Duration::from_secs(20)));
    let applied = apply(&patient, &object).await.unwrap();
    assert!(applied.created);
}

#[tokio::test]
async fn a_version_that_is_gone_stays_in_managed_fields() {
    let control_plane = start();
    let cluster = connect(&control_plane).await;
    apply(&cluster, &crd(&["v1beta1", "v1"], "v1beta1"))
        .await
        .unwrap();
    let thing = |version: &str, name: &str| {
        json!({"apiVersion": format!("ex.org/{version}"), "kind": "Thing",
            "metadata": {"name": name}, "spec": {"k": version}})
    };
    let old = ResourcePath::cluster_scoped("ex.org/v1beta1", "Thing", "things");
    let new = ResourcePath::cluster_scoped("ex.org/v1", "Thing", "things");
    let options = ApplyOptions::new(MANAGER);
    let retry =
        Retry::within(Duration::from_secs(20)).also(|class| matches!(class, Class::KindNotServed));
    let patient = cluster.clone().with_retry(retry);
    for name in ["migrated", "left"] {
        let value = thing("v1beta1", name);
        let body = Bytes::from(value.to_string());
        patient
            .apply(&old, &id(&value), body, &options)
            .await
            .unwrap();
    }

    // A stored version cannot be removed.
    let refused = class(dry_run(&cluster, &crd(&["v1"], "v1")).await);
    assert_eq!(refused, Class::Invalid);

    apply(&cluster, &crd(&["v1beta1", "v1"], "v1"))
        .await
        .unwrap();
    let other = PatchOptions::new("test");
    // A write of another client updates the storage version of the object but not our entry. The
    // switch of the storage version is not observable, so keep writing for a while.
    let mut writes = 0;
    until("a second of writes", async || {
        writes += 1;
        let label = Patch::Merge(json!({"metadata": {"labels": {"n": writes.to_string()}}}));
        let migrated = id(&thing("v1", "migrated"));
        cluster
            .patch(&new, &migrated, &label, &other)
            .await
            .unwrap();
        writes > 20
    })
    .await;
    let stored = Patch::Merge(json!({"status": {"storedVersions": ["v1"]}}));
    let status = PatchOptions {
        subresource: Some("status"),
        ..other
    };
    let crds = path(&cluster, &crd(&[], "")).await;
    cluster
        .patch(&crds, &id(&crd(&[], "")), &stored, &status)
        .await
        .unwrap();
    apply(&cluster, &crd(&["v1"], "v1")).await.unwrap();
    until("the version is gone", async || {
        let list = cluster.list(&old, &Selector::default()).await;
        list.is_err_and(|error| error.class() == Some(&Class::KindNotServed))
    })
    .await;
    for name in ["migrated", "left"] {
        let value = thing("v1", name);
        let body = Bytes::from(value.to_string());
        // The server can use the previous CRD for a moment. A successful apply would end the tested
        // state, so use a dry run.
        let dry = ApplyOptions {
            dry_run: true,
            ..options
        };
        let mut refused = None;
        until("the version cannot be read", async || {
            let applied = cluster.apply(&new, &id(&value), body.clone(), &dry).await;
            refused = applied.err();
            refused.is_some()
        })
        .await;
        let error = refused.unwrap();
        let expected = Class::UnconvertibleVersion("ex.org/v1beta1".to_owned());
        assert_eq!(error.class(), Some(&expected), "{name}: {error:?}");
        assert!(!error.is_retryable());
    }
}
