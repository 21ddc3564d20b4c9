//! The world simulates its product correctly: users and pods observe the same as with the real one.

#![expect(
    clippy::disallowed_methods,
    reason = "what tests write is in folders of their own"
)]

use std::path::Path;
use std::time::Duration;

use pleach_testkit::control_plane::binaries;
use pleach_testkit::isolated;
use pleach_testkit::kubectl::Kubectl;
use pleach_testkit::proof;
use pleach_testkit::throwaway::{ControlPlane, Network, Options};
use pleach_testkit::world::{DENY, MUTATED, Product, USERS, World};

const PATIENCE: Duration = Duration::from_mins(1);
const SERVICE: &str = "apiservice/v1alpha2.subresources.kubevirt.io";
const REGISTRATIONS: &str = "apiservice/v1alpha2.subresources.kubevirt.io \
    validatingwebhookconfiguration/virt-api-validator \
    mutatingwebhookconfiguration/virt-api-mutator";
const CRASHES: &str = "--timeout=60s \
    --for=jsonpath={.status.containerStatuses[0].state.waiting.reason}=CrashLoopBackOff";

/// Runs kubectl with the words of a line.
fn run(kubectl: &Kubectl, line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    kubectl.run(&words).unwrap()
}

async fn control_plane() -> ControlPlane {
    ControlPlane::start(Options {
        binaries: binaries(),
        controllers: true,
        scheduler: true,
        nodes: 2,
        network: Network::Namespace,
    })
    .await
    .unwrap()
}

/// Returns the two Deployments of a version, with the fields that the world uses.
fn workloads(namespace: &str) -> String {
    ["api", "controller"]
        .map(|component| {
            let account = if component == "api" {
                "apiserver"
            } else {
                component
            };
            format!(
                "apiVersion: apps/v1
kind: Deployment
metadata: {{name: virt-{component}, namespace: {namespace}}}
spec:
  replicas: 2
  selector: {{matchLabels: {{kubevirt.io: virt-{component}}}}}
  template:
    metadata: {{labels: {{kubevirt.io: virt-{component}}}}}
    spec:
      serviceAccountName: kubevirt-{account}
      containers: [{{name: app, image: app, ports: [{{containerPort: 8443}}]}}]
"
            )
        })
        .join("---\n")
}

/// Applies the plain files of the example's bundle and the workloads.
fn install(kubectl: &Kubectl, version: &str, namespace: &str) {
    let bundle = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/kubevirt");
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("workloads.yaml");
    std::fs::write(&own, workloads(namespace)).unwrap();
    let file = |name: &str| bundle.join(version).join(name);
    kubectl
        .apply(&[
            &file("access.yaml"),
            &file("crds.yaml"),
            &file("services.yaml"),
            &own,
        ])
        .unwrap();
}

fn registered(kubectl: &Kubectl) {
    // kubectl can wait for the creation of only one object at a time.
    for name in REGISTRATIONS.split_whitespace() {
        run(kubectl, &format!("wait --for=create {name} --timeout=60s"));
    }
    run(
        kubectl,
        &format!("wait --for=condition=Available {SERVICE} --timeout=60s"),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_register_and_answer_and_their_loss_is_noticed() {
    let name = "world::pods_register_and_answer_and_their_loss_is_noticed";
    if !isolated::inside(name).unwrap() {
        return;
    }
    let control_plane = control_plane().await;
    let kubectl = Kubectl::new(control_plane.kubectl(), control_plane.kubeconfig());
    let mut world = World::start(control_plane.kubeconfig(), Product::kubevirt())
        .await
        .unwrap();
    install(&kubectl, "v0.11.0", "kube-system");
    registered(&kubectl);
    run(
        &kubectl,
        "rollout status -n=kube-system deployment/virt-api --timeout=60s",
    );
    assert_eq!(
        run(
            &kubectl,
            "get --raw /apis/subresources.kubevirt.io/v1alpha2/version"
        ),
        r#"{"gitVersion":"testkit"}"#
    );

    // Both webhooks see every write of the user.
    world.start_user().await.unwrap();
    world.more_writes(30, PATIENCE).await.unwrap();
    let report = world.report();
    assert!(report.is_clean(), "{report}");

    // The validator denies, and the mutator adds its annotation.
    let folder = tempfile::tempdir().unwrap();
    let object = folder.path().join("vm.yaml");
    let instance = |annotation: &str| {
        format!(
            "{{apiVersion: kubevirt.io/v1alpha2, kind: VirtualMachineInstance, \
             metadata: {{name: mine, namespace: {USERS}, annotations: {{{annotation}}}}}}}"
        )
    };
    std::fs::write(&object, instance(&format!("{DENY}: too big"))).unwrap();
    let refused = kubectl.apply(&[&object]).unwrap_err().to_string();
    assert!(
        refused.contains(r#"admission webhook "virtualmachineinstances-create-validator.kubevirt.io" denied the request: too big"#),
        "{refused}"
    );
    std::fs::write(&object, instance("a: b")).unwrap();
    kubectl.apply(&[&object]).unwrap();
    let mine = kubectl.json(&["get", "vmi", "mine", "-n", USERS]).unwrap();
    assert_eq!(mine["metadata"]["annotations"][MUTATED], "kube-system");

    // Without the backend but with the registrations, all writes fail.
    run(
        &kubectl,
        "delete -n=kube-system deployment/virt-api service/virt-api",
    );
    run(
        &kubectl,
        "wait -n=kube-system --for=delete pod -l=kubevirt.io=virt-api --timeout=60s",
    );
    world.more_writes(10, PATIENCE).await.unwrap();
    let report = world.report();
    assert!(
        report.failed > 0 && report.first_failure.is_some(),
        "{report}"
    );
    assert!(
        report.messages.keys().any(|message| message.contains(
            r#"failed calling webhook "virtualmachineinstances-create-validator.kubevirt.io""#
        )),
        "{report}"
    );

    // Without registrations, writes succeed without validation.
    run(&kubectl, &format!("delete {REGISTRATIONS}"));
    let before = world.report();
    world.more_writes(30, PATIENCE).await.unwrap();
    let report = world.report();
    assert!(report.unvalidated > before.unvalidated, "{report}");
    assert!(report.longest_gap > before.longest_gap, "{report}");
    assert_eq!(world.crashes(), []);
    println!("{}", world.stop().await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_in_another_namespace_crash_until_the_registrations_are_gone() {
    let name = "world::pods_in_another_namespace_crash_until_the_registrations_are_gone";
    if !isolated::inside(name).unwrap() {
        return;
    }
    let control_plane = control_plane().await;
    let kubectl = Kubectl::new(control_plane.kubectl(), control_plane.kubeconfig());
    let mut world = World::start(control_plane.kubeconfig(), Product::kubevirt())
        .await
        .unwrap();
    install(&kubectl, "v0.11.0", "kube-system");
    registered(&kubectl);

    run(&kubectl, "create namespace kubevirt");
    install(&kubectl, "v0.12.0", "kubevirt");
    run(
        &kubectl,
        &format!("wait -n=kubevirt pod -l=kubevirt.io=virt-api {CRASHES}"),
    );
    let pods = kubectl
        .list(&["get", "pods", "-n=kubevirt", "-l=kubevirt.io=virt-api"])
        .unwrap();
    assert_eq!(pods.len(), 2);
    let deployment = kubectl
        .json(&["get", "-n=kubevirt", "deployment/virt-api"])
        .unwrap();
    assert_eq!(
        deployment["status"]["readyReplicas"],
        serde_json::Value::Null
    );
    let crashes = world.crashes();
    assert!(
        crashes.iter().any(|crash| crash.namespace == "kubevirt"
            && crash.reason.starts_with(
                "APIService v1alpha2.subresources.kubevirt.io is already registered in a \
                 different namespace (kube-system)."
            )),
        "{crashes:?}"
    );
    // The new bindings removed the permissions of the old controller. It can no longer renew its
    // lock, while the new one has its own.
    run(
        &kubectl,
        &format!("wait -n=kube-system pod -l=kubevirt.io=virt-controller {CRASHES}"),
    );
    let crashes = world.crashes();
    assert!(
        crashes
            .iter()
            .any(|crash| crash.pod.starts_with("virt-controller")
                && crash.namespace == "kube-system"
                && crash
                    .reason
                    .contains("endpoints \"virt-controller\" is forbidden")),
        "{crashes:?}"
    );
    run(
        &kubectl,
        "wait -n=kubevirt --for=create endpoints/virt-controller --timeout=60s",
    );

    run(&kubectl, &format!("delete {REGISTRATIONS}"));
    registered(&kubectl);
    run(
        &kubectl,
        "rollout status -n=kubevirt deployment/virt-api --timeout=60s",
    );
    let service = kubectl.json(&["get", SERVICE]).unwrap();
    assert_eq!(service["spec"]["service"]["namespace"], "kubevirt");

    // A pod of the new namespace answers now, with its own CA.
    world.start_user().await.unwrap();
    world.more_writes(10, PATIENCE).await.unwrap();
    assert!(world.report().is_clean(), "{}", world.report());
    world.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn proofs_tell_what_an_upgrade_left_behind() {
    let name = "world::proofs_tell_what_an_upgrade_left_behind";
    if !isolated::inside(name).unwrap() {
        return;
    }
    let control_plane = control_plane().await;
    let kubeconfig = control_plane.kubeconfig();
    let kubectl = Kubectl::new(control_plane.kubectl(), kubeconfig);
    let product = Product::kubevirt();
    let mut world = World::start(kubeconfig, product.clone()).await.unwrap();
    let broken = |result: anyhow::Result<String>| result.unwrap_err().to_string();
    proof::finished(&kubectl).unwrap();
    let before = proof::contents(&kubectl, "kube-system").unwrap();

    install(&kubectl, "v0.11.0", "kube-system");
    registered(&kubectl);
    world.start_user().await.unwrap();
    proof::registrations_point_at(&kubectl, &product, "kube-system").unwrap();
    proof::no_dead_registration(&kubectl).unwrap();
    proof::discovery_is_fresh(&kubectl, kubeconfig)
        .await
        .unwrap();
    proof::webhook_denies(&kubectl, &product).unwrap();
    let old = broken(proof::subjects_moved(&kubectl, "kube-system", "kubevirt"));
    assert!(
        old.contains("still names kube-system/kubevirt-apiserver"),
        "{old}"
    );

    run(
        &kubectl,
        "delete -n=kube-system deployment/virt-api service/virt-api",
    );
    run(
        &kubectl,
        &format!("wait --for=condition=Available=False {SERVICE} --timeout=60s"),
    );
    let dead = broken(proof::no_dead_registration(&kubectl));
    assert!(
        dead.contains(
            "APIService.apiregistration.k8s.io/v1alpha2.subresources.kubevirt.io points at \
             kube-system/virt-api"
        ),
        "{dead}"
    );
    let stale = broken(proof::discovery_is_fresh(&kubectl, kubeconfig).await);
    assert!(stale.contains("is not available"), "{stale}");
    let failing = broken(proof::webhook_denies(&kubectl, &product));
    assert!(failing.contains("failed calling webhook"), "{failing}");

    run(&kubectl, &format!("delete {REGISTRATIONS}"));
    run(&kubectl, "create namespace kubevirt");
    install(&kubectl, "v0.12.0", "kubevirt");
    registered(&kubectl);
    let left = broken(proof::nothing_left(&kubectl, "kube-system", &before, &[]));
    for id in [
        "Deployment.apps/virt-controller",
        "Secret/kubevirt-virt-api-certs",
        "ServiceAccount/kubevirt-apiserver",
    ] {
        assert!(left.contains(id), "{left}");
    }
    run(
        &kubectl,
        "delete -n=kube-system --cascade=foreground deployment/virt-controller",
    );
    run(
        &kubectl,
        "delete -n=kube-system serviceaccounts,roles,rolebindings,services,secrets -l=kubevirt.io",
    );
    run(&kubectl, "delete -n=kube-system endpoints/virt-controller");
    proof::nothing_left(&kubectl, "kube-system", &before, &[]).unwrap();
    proof::registrations_point_at(&kubectl, &product, "kubevirt").unwrap();
    proof::no_dead_registration(&kubectl).unwrap();
    proof::subjects_moved(&kubectl, "kube-system", "kubevirt").unwrap();
    proof::discovery_is_fresh(&kubectl, kubeconfig)
        .await
        .unwrap();
    run(
        &kubectl,
        "rollout status -n=kubevirt deployment/virt-api --timeout=60s",
    );
    proof::webhook_denies(&kubectl, &product).unwrap();
    proof::namespace_is_created_and_deleted(&kubectl).unwrap();
    world.stop().await.unwrap();
}
