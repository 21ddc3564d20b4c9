//! Lifecycle of a release: unchanged, changed, drifted and repaired.

use crate::fleet::{Fleet, object_writes, owners};
use crate::samples;

const BUNDLE: (&str, &str) = ("manifests/shop/bundle.yaml", samples::BUNDLE);

const ACCESS: (&str, &str) = (
    "manifests/shop/v1.0.0/access.yaml",
    "\
apiVersion: v1
kind: ServiceAccount
metadata: {name: shop}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: shop}
rules: [{apiGroups: [\"\"], resources: [configmaps], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: shop}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: shop}
subjects: [{kind: ServiceAccount, name: shop, namespace: life}]
",
);

const CONFIG: (&str, &str) = (
    "manifests/shop/v1.0.0/config.yaml",
    "\
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, labels: {tier: front}}
data: {greeting: hello, color: red}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: flags}
data: {beta: \"off\"}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {session: Xq7hush9vB2}
",
);

const APP: (&str, &str) = (
    "manifests/shop/v1.0.0/app.yaml",
    "\
apiVersion: v1
kind: Service
metadata: {name: shop}
spec: {selector: {app: shop}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop}
spec:
  replicas: 0
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      serviceAccountName: shop
      containers: [{name: shop, image: shop:1, envFrom: [{configMapRef: {name: settings}}]}]
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: shop}
spec: {minAvailable: 1, selector: {matchLabels: {app: shop}}}
",
);

const WIDGETS: (&str, &str) = (
    "manifests/shop/v1.0.0/widgets.yaml",
    "\
apiVersion: life.example.org/v1
kind: Widget
metadata: {name: first}
spec: {size: 1}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.life.example.org}
spec:
  group: life.example.org
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}
",
);

/// Number of kinds in the release.
const KINDS: usize = 11;

fn fleet(environment: &'static str) -> Fleet {
    let releases =
        format!("  - {{name: shop, bundle: shop, version: v1.0.0, namespace: {environment}}}\n");
    let files = [BUNDLE, ACCESS, CONFIG, APP, WIDGETS]
        .map(|(path, text)| (path, text.replace("life", environment)));
    Fleet::new(environment, &releases, &files)
}

#[test]
fn unchanged_releases_cost_nothing_and_changes_only_themselves() {
    let fleet = fleet("life");
    fleet
        .applied()
        .says("release life.shop v1.0.0: deployed")
        .says("12 created");
    for object in [["namespace", "life"], ["crd", "widgets.life.example.org"]] {
        assert!(fleet.exists(&object), "{object:?}");
    }
    for object in [
        "sa/shop",
        "role/shop",
        "rolebinding/shop",
        "cm/settings",
        "secret/keys",
        "service/shop",
        "deployment/shop",
        "pdb/shop",
        "widgets.life.example.org/first",
    ] {
        let live = fleet.get(&["-n", "life", object]).unwrap();
        assert_eq!(owners(&live), ["pleach/life.shop Apply"], "{object}");
    }

    // The same revision again.
    let (_, events) = fleet.watched(Fleet::applied);
    let summary = events.summary();
    assert_eq!((summary.writes, summary.dry_runs), (0, 0), "{events}");
    assert!(
        summary.reads <= KINDS + 12,
        "{} reads:\n{events}",
        summary.reads
    );
    fleet.diff().ended_with(0).says("12 unchanged");

    // Another revision that changes nothing of the release.
    fleet.write("README.md", "words\n");
    fleet.commit();
    fleet.diff().ended_with(0);
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(events.dry_runs().to_string(), "");
    assert_eq!(
        events.writes().to_string(),
        "patch pleach.dev releases/status life.shop 200\n"
    );
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(events.writes().to_string(), "");

    // A change.
    fleet.edit(CONFIG.0, "hello", "welcome");
    fleet.commit();
    fleet
        .diff()
        .ended_with(10)
        .says("git changed")
        .says("+  greeting: welcome")
        .says("1 to update");
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(
        object_writes(&events),
        ["patch configmaps life/settings 200"]
    );
    assert_eq!(
        fleet.field(&["-n", "life", "cm/settings"], "{.data.greeting}"),
        "welcome"
    );
    assert_eq!(
        fleet.field(&["release", "life.shop"], "{.status.conditions[0].reason}"),
        "Deployed"
    );
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(
        (events.writes().to_string(), events.dry_runs().to_string()),
        Default::default()
    );
}

#[test]
fn drift_is_named_with_its_manager_and_repaired() {
    let fleet = fleet("drift");
    fleet.applied();
    let kubectl = |args: &[&str]| fleet.kubectl(&[&["-n", "drift"], args].concat());

    // Changed values, replicas, a removed field, and labels of the set and of ours.
    kubectl(&[
        "patch",
        "cm/settings",
        "--type=merge",
        "-p",
        r#"{"data":{"color":"blue"}}"#,
        "--field-manager=someone",
    ]);
    kubectl(&["scale", "deployment/shop", "--replicas=3"]);
    kubectl(&[
        "patch",
        "service/shop",
        "--type=json",
        "-p",
        r#"[{"op":"remove","path":"/spec/selector"}]"#,
    ]);
    kubectl(&["label", "cm/flags", "applyset.kubernetes.io/part-of-"]);
    kubectl(&[
        "label",
        "pdb/shop",
        "app.kubernetes.io/managed-by=me",
        "--overwrite",
        "--field-manager=labeler",
    ]);
    kubectl(&[
        "patch",
        "secret/keys",
        "--type=merge",
        "-p",
        r#"{"data":{"session":"aGVsbG8="}}"#,
        "--field-manager=rotator",
    ]);
    let run = fleet.writes_nothing(|fleet| fleet.diff().ended_with(10));
    let run = run
        .says("update ConfigMap/drift/settings  (the cluster drifted: someone wrote to fields of the release)")
        .says("-  color: blue\n+  color: red")
        .says("update Deployment.apps/drift/shop  (the cluster drifted: kubectl wrote to fields of the release)")
        .says("-  replicas: 3\n+  replicas: 0")
        .says("update Service/drift/shop  (the cluster drifted")
        .says("update ConfigMap/drift/flags  (the cluster drifted")
        .says("update Secret/drift/keys  (the cluster drifted: rotator wrote to fields of the release)");
    run.says("6 to update");

    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(object_writes(&events).len(), 6, "{}", events.writes());
    assert_eq!(
        fleet.field(&["-n", "drift", "cm/settings"], "{.data.color}"),
        "red"
    );
    assert_eq!(
        fleet.field(&["-n", "drift", "deployment/shop"], "{.spec.replicas}"),
        "0"
    );
    assert_eq!(
        fleet.field(&["-n", "drift", "service/shop"], "{.spec.selector.app}"),
        "shop"
    );
    let live = fleet.get(&["-n", "drift", "cm/flags"]).unwrap();
    assert!(live["metadata"]["labels"]["applyset.kubernetes.io/part-of"].is_string());
    for object in ["cm/settings", "cm/flags", "service/shop", "secret/keys"] {
        let live = fleet.get(&["-n", "drift", object]).unwrap();
        assert_eq!(owners(&live), ["pleach/drift.shop Apply"], "{object}");
    }
    fleet.diff().ended_with(0);
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(events.writes().to_string(), "");
}

#[test]
fn git_and_the_cluster_may_change_at_once() {
    let fleet = fleet("both");
    fleet.applied();
    let kubectl = |args: &[&str]| fleet.kubectl(&[&["-n", "both"], args].concat());

    // A field that git did not change is restored, regardless of other changes in git.
    kubectl(&["label", "cm/settings", "tier-"]);
    fleet.edit(CONFIG.0, "hello", "welcome");
    fleet.commit();
    fleet
        .diff()
        .ended_with(10)
        .says("git changed and the cluster drifted");
    fleet.applied();
    assert_eq!(
        fleet.field(
            &["-n", "both", "cm/settings"],
            "{.metadata.labels.tier} {.data.greeting}"
        ),
        "front welcome"
    );
    kubectl(&[
        "patch",
        "cm/settings",
        "--type=merge",
        "-p",
        r#"{"data":{"color":"green"}}"#,
        "--field-manager=someone",
    ]);
    fleet.edit(CONFIG.0, "welcome", "bye");
    fleet.edit(CONFIG.0, "\"off\"", "\"on\"");
    fleet.commit();
    fleet
        .diff()
        .ended_with(10)
        .says("git changed and the cluster drifted: someone wrote to fields of the release")
        .says("  by git: .data.greeting\n  by someone: .data.color");
    fleet.applied();
    let data = || {
        fleet.field(
            &["-n", "both", "cm/settings"],
            "{.data.color} {.data.greeting}",
        )
    };
    assert_eq!(data(), "red bye");
    let live = fleet.get(&["-n", "both", "cm/settings"]).unwrap();
    assert_eq!(owners(&live), ["pleach/both.shop Apply"]);

    // Additions of other clients are retained.
    kubectl(&["annotate", "cm/settings", "example.org/note=hi"]);
    fleet.diff().ended_with(0);
    fleet.applied();
    assert_eq!(
        fleet.field(
            &["-n", "both", "cm/settings"],
            "{.metadata.annotations.example\\.org/note}"
        ),
        "hi"
    );
}

#[test]
fn objects_deleted_by_hand_come_back() {
    let fleet = fleet("gone");
    fleet.applied();
    fleet.kubectl(&[
        "-n",
        "gone",
        "delete",
        "cm/settings",
        "deployment/shop",
        "widgets.gone.example.org/first",
    ]);
    fleet
        .diff()
        .ended_with(10)
        .says("it was deleted in the cluster")
        .says("3 to create");
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(object_writes(&events).len(), 3, "{}", events.writes());
    for object in [
        "cm/settings",
        "deployment/shop",
        "widgets.gone.example.org/first",
    ] {
        assert!(fleet.exists(&["-n", "gone", object]), "{object}");
    }
    fleet.diff().ended_with(0);

    // The whole namespace is deleted with its content. It is still terminating when the run starts.
    fleet.kubectl(&["delete", "namespace", "gone", "--wait=false"]);
    fleet
        .diff()
        .ended_with(10)
        .says("its namespace is being deleted; created again when it is gone");
    fleet.applied();
    assert!(fleet.exists(&["-n", "gone", "cm/settings"]));
    fleet.diff().ended_with(0);
}

#[test]
fn a_server_of_another_version_is_pointed_out() {
    let fleet = fleet("minor");
    fleet.edit_environment("cluster: {", "cluster: {kubernetes: \"1.35\", ");
    fleet.commit();
    fleet
        .diff()
        .ended_with(10)
        .says("warning: the environment is for Kubernetes 1.35, but the server is v1.36");
}
