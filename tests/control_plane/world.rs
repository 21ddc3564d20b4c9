//! The world behaves like the product it plays: its users and its pods notice
//! the same things as in life.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "helpers of tests fail as tests do"
)]

use std::path::Path;
use std::time::Duration;

use pleach::io::throwaway::{ControlPlane, Network, Options};
use pleach_testkit::control_plane::binaries;
use pleach_testkit::isolated;
use pleach_testkit::kubectl::Kubectl;
use pleach_testkit::world::{DENY, MUTATED, Product, USERS, World};

const PATIENCE: Duration = Duration::from_mins(1);
const REGISTRATIONS: [&str; 3] = [
    "apiservice/v1alpha2.subresources.kubevirt.io",
    "validatingwebhookconfiguration/virt-api-validator",
    "mutatingwebhookconfiguration/virt-api-mutator",
];

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

/// The two deployments of a version, as far as the world looks at them.
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

/// Applies what the example's bundle has in plain files, and the workloads.
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
    for name in REGISTRATIONS {
        kubectl
            .run(&["wait", "--for=create", name, "--timeout=60s"])
            .unwrap();
    }
    kubectl
        .run(&[
            "wait",
            "--for=condition=Available",
            REGISTRATIONS[0],
            "--timeout=60s",
        ])
        .unwrap();
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
    kubectl
        .run(&[
            "rollout",
            "status",
            "-n=kube-system",
            "deployment/virt-api",
            "--timeout=60s",
        ])
        .unwrap();
    assert_eq!(
        kubectl
            .run(&[
                "get",
                "--raw",
                "/apis/subresources.kubevirt.io/v1alpha2/version"
            ])
            .unwrap(),
        r#"{"gitVersion":"testkit"}"#
    );

    // Every write of the user is seen by both webhooks.
    world.start_user().await.unwrap();
    world.more_writes(30, PATIENCE).await.unwrap();
    let report = world.report();
    assert!(report.is_clean(), "{report}");

    // The validator says no, and the mutator leaves its mark.
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

    // The backend goes, the registrations stay: nobody can write any more.
    kubectl
        .run(&[
            "delete",
            "-n=kube-system",
            "deployment/virt-api",
            "service/virt-api",
        ])
        .unwrap();
    kubectl
        .run(&[
            "wait",
            "-n=kube-system",
            "--for=delete",
            "pod",
            "-l=kubevirt.io=virt-api",
            "--timeout=60s",
        ])
        .unwrap();
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

    // Without registrations they can, but nothing validates.
    let mut delete = vec!["delete"];
    delete.extend(REGISTRATIONS);
    kubectl.run(&delete).unwrap();
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

    kubectl.run(&["create", "namespace", "kubevirt"]).unwrap();
    install(&kubectl, "v0.12.0", "kubevirt");
    kubectl
        .run(&[
            "wait",
            "-n=kubevirt",
            "pod",
            "-l=kubevirt.io=virt-api",
            "--timeout=60s",
            "--for=jsonpath={.status.containerStatuses[0].state.waiting.reason}=CrashLoopBackOff",
        ])
        .unwrap();
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
    // The new bindings took the rights of the old controller away: it cannot
    // renew its lock any more, while the new one has a lock of its own.
    kubectl
        .run(&[
            "wait",
            "-n=kube-system",
            "pod",
            "-l=kubevirt.io=virt-controller",
            "--timeout=60s",
            "--for=jsonpath={.status.containerStatuses[0].state.waiting.reason}=CrashLoopBackOff",
        ])
        .unwrap();
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
    kubectl
        .run(&[
            "wait",
            "-n=kubevirt",
            "--for=create",
            "endpoints/virt-controller",
            "--timeout=60s",
        ])
        .unwrap();

    let mut delete = vec!["delete"];
    delete.extend(REGISTRATIONS);
    kubectl.run(&delete).unwrap();
    registered(&kubectl);
    kubectl
        .run(&[
            "rollout",
            "status",
            "-n=kubevirt",
            "deployment/virt-api",
            "--timeout=60s",
        ])
        .unwrap();
    let service = kubectl.json(&["get", REGISTRATIONS[0]]).unwrap();
    assert_eq!(service["spec"]["service"]["namespace"], "kubevirt");

    // What answers now is a pod of the new namespace, with its own authority.
    world.start_user().await.unwrap();
    world.more_writes(10, PATIENCE).await.unwrap();
    assert!(world.report().is_clean(), "{}", world.report());
    world.stop().await.unwrap();
}
