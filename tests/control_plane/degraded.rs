//! Clusters with a missing webhook, conversion, Service or permission. Objects that do not need it
//! are applied, those that do are blocked by name, and nothing is pruned from an incomplete view.

use crate::fleet::{Fleet, object_writes};
use crate::robustness::{broken, fleet};
use crate::samples::config_map;

/// Returns a webhook without a backend that blocks every ConfigMap write in one namespace.
fn dead_webhook(namespace: &str) -> String {
    format!(
        "\
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {{name: {namespace}}}
webhooks:
  - name: dead.{namespace}.example.org
    failurePolicy: Fail
    sideEffects: None
    timeoutSeconds: 2
    admissionReviewVersions: [v1]
    clientConfig: {{service: {{namespace: {namespace}, name: gone}}}}
    namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {namespace}}}}}
    rules: [{{apiGroups: [''], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps]}}]
"
    )
}

const SECRET: &str =
    "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {k: Xq7hush9vB2}\n";

fn secret(value: &str) -> String {
    SECRET.replace("Xq7hush9vB2", &format!("Xq7hush9vB2-{value}"))
}

fn upgrade(fleet: &Fleet) {
    fleet.edit_environment("v1.0.0", "v1.1.0");
    fleet.commit();
}

#[test]
fn a_dead_webhook_stops_what_it_is_asked_about_and_nothing_else() {
    let files = |value: &str| [("a", config_map("a", value)), ("secret", secret(value))];
    let mut old = files("old").to_vec();
    old.push(("gone", SECRET.replace("{name: s}", "{name: gone}")));
    let hooked = fleet("hooked", &old, &files("new"));
    let calm = fleet("unhooked", &files("old"), &files("new"));
    hooked.edit_environment("namespace: hooked", "namespace: hooked, timeout: 4s");
    hooked.commit();
    hooked.applied();
    calm.applied();
    let file = hooked.file("webhook.yaml", &dead_webhook("hooked"));
    hooked.kubectl(&["apply", "-f", &file]);
    upgrade(&hooked);
    upgrade(&calm);

    // Releases that do not use it are unaffected.
    calm.diff().ended_with(10).says("2 to update");
    calm.applied();
    calm.diff().ended_with(0);

    // Affected releases report its name. The rest is applied, and nothing is pruned.
    hooked
        .diff()
        .ended_with(10)
        .says("ConfigMap/hooked/a")
        .says("not verified by the server: a webhook could not be called")
        .says("dead.hooked.example.org");
    let (run, events) = hooked.watched(Fleet::apply);
    let run = run.says("failed ConfigMap/hooked/a: ");
    assert!([4, 6].contains(&run.code), "{}", run.shown());
    run.says("dead.hooked.example.org");
    assert_eq!(object_writes(&events), ["patch secrets hooked/s 200"]);
    assert!(hooked.exists(&["-n", "hooked", "secret/gone"]));

    hooked.kubectl(&["delete", "validatingwebhookconfiguration", "hooked"]);
    let (_, events) = hooked.watched(Fleet::applied);
    assert_eq!(
        object_writes(&events),
        [
            "patch configmaps hooked/a 200",
            "delete secrets hooked/gone 200"
        ]
    );
}

const CONVERTED: &str = "\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: wheels.wheels.example.org}
spec:
  group: wheels.example.org
  scope: Namespaced
  names: {plural: wheels, singular: wheel, kind: Wheel}
  versions:
    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
    - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
";

#[test]
fn a_dead_conversion_costs_only_the_objects_it_converts() {
    let wheel = |value: &str| {
        format!(
            "apiVersion: wheels.example.org/v2\nkind: Wheel\nmetadata: {{name: first}}\nspec: {{k: {value}}}\n"
        )
    };
    let needs = fleet(
        "converted",
        &[("wheel", wheel("old")), ("a", config_map("a", "old"))],
        &[("wheel", wheel("new")), ("a", config_map("a", "new"))],
    );
    let leaves = fleet(
        "unseen",
        &[("wheel", wheel("old")), ("a", config_map("a", "old"))],
        &[("a", config_map("a", "new"))],
    );
    let calm = fleet(
        "unconverted",
        &[("a", config_map("a", "old")), ("b", config_map("b", "old"))],
        &[("a", config_map("a", "new"))],
    );
    let file = needs.file("wheels.yaml", CONVERTED);
    needs.kubectl(&["apply", "-f", &file]);
    let crd = "crd/wheels.wheels.example.org";
    needs.kubectl(&["wait", "--for=condition=Established", crd]);
    for fleet in [&needs, &leaves, &calm] {
        fleet.applied();
    }
    needs.kubectl(&[
        "patch",
        crd,
        "--type=merge",
        "-p",
        r#"{"spec":{"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],
            "clientConfig":{"service":{"namespace":"converted","name":"gone"}}}}}}"#,
    ]);
    // The server uses the previous conversion for a moment.
    let list = ["get", "wheels.v2.wheels.example.org", "-n", "converted"];
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while needs.try_kubectl(&list).status.success() {
        assert!(std::time::Instant::now() < until, "it converts for ever");
    }
    for fleet in [&needs, &leaves, &calm] {
        upgrade(fleet);
    }

    // A release without affected objects works normally, including pruning.
    let (_, events) = calm.watched(Fleet::applied);
    assert_eq!(
        object_writes(&events),
        [
            "patch configmaps unconverted/a 200",
            "delete configmaps unconverted/b 200"
        ]
    );

    // Objects that cannot be read are blocked by name, and all others are applied.
    let (run, events) = needs.watched(Fleet::apply_unblocked);
    run.ended_with(4)
        .says("Wheel.wheels.example.org/converted/first")
        .says("conversion webhook for wheels.example.org/v1, Kind=Wheel failed");
    assert_eq!(object_writes(&events), ["patch configmaps converted/a 200"]);

    // A release that would prune such objects does not.
    let (run, events) = leaves.watched(Fleet::applied);
    run.says("Wheel.wheels.example.org/unseen/first")
        .says("stays because its kind could not be listed completely");
    assert_eq!(object_writes(&events), ["patch configmaps unseen/a 200"]);

    // With a working conversion, all releases complete.
    needs.kubectl(&[
        "patch",
        crd,
        "--type=merge",
        "-p",
        r#"{"spec":{"conversion":{"strategy":"None","webhook":null}}}"#,
    ]);
    while !needs.try_kubectl(&list).status.success() {
        assert!(std::time::Instant::now() < until, "it never converts again");
    }
    needs.applied();
    leaves.applied();
    assert!(!leaves.exists(&["-n", "unseen", "wheels.v1.wheels.example.org/first"]));
    let spec = needs.field(
        &["-n", "converted", "wheels.v1.wheels.example.org/first"],
        "{.spec.k}",
    );
    assert_eq!(spec, "new");
}

#[test]
fn an_api_whose_service_has_no_endpoints_is_as_dead_as_one_without_a_service() {
    let idle = "\
apiVersion: v1
kind: Service
metadata: {name: idle, namespace: default}
spec: {selector: {app: nobody}, ports: [{port: 443}]}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.idle.example.org}
spec:
  group: idle.example.org
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 15
  insecureSkipTLSVerify: true
  service: {namespace: default, name: idle}
";
    let thing = "apiVersion: idle.example.org/v1\nkind: Thing\nmetadata: {name: first}\n";
    let needs = fleet(
        "idle",
        &[("a", config_map("a", "old"))],
        &[("a", config_map("a", "new")), ("thing", thing.to_owned())],
    );
    needs.applied();
    let file = needs.file("idle.yaml", idle);
    needs.kubectl(&["apply", "-f", &file]);
    needs.kubectl(&[
        "wait",
        "--for=condition=Available=false",
        "--timeout=20s",
        "apiservice/v1.idle.example.org",
    ]);
    upgrade(&needs);
    let (run, events) = needs.watched(Fleet::apply_unblocked);
    run.ended_with(4)
        .says("Thing.idle.example.org/idle/first")
        .says("the API idle.example.org/v1 is registered but its server does not answer");
    assert_eq!(object_writes(&events), ["patch configmaps idle/a 200"]);
}

/// Allows everything except custom resources of one group.
const RIGHTS: &str = "\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: partly-blind}
rules:
  - {apiGroups: ['', apps, apiextensions.k8s.io, apiregistration.k8s.io, admissionregistration.k8s.io, pleach.dev, discovery.k8s.io, coordination.k8s.io], resources: ['*'], verbs: ['*']}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: partly-blind}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: partly-blind}
subjects: [{kind: User, name: partly-blind, apiGroup: rbac.authorization.k8s.io}]
";

#[test]
fn a_forbidden_kind_blocks_its_own_objects_only() {
    let role =
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: r}\nrules: []\n";
    let mut leaves = fleet(
        "forbidden",
        &[("role", role.to_owned()), ("a", config_map("a", "old"))],
        &[("a", config_map("a", "new"))],
    );
    let mut calm = fleet(
        "allowed",
        &[("a", config_map("a", "old")), ("b", config_map("b", "old"))],
        &[("a", config_map("a", "new"))],
    );
    leaves.applied();
    calm.applied();
    let file = leaves.file("rights.yaml", RIGHTS);
    leaves.kubectl(&["apply", "-f", &file]);
    for fleet in [&mut leaves, &mut calm] {
        fleet.through(broken().kubeconfig_for_user("partly-blind", &[]).unwrap());
    }
    // Live objects that cannot be compared are reported by name.
    leaves
        .diff()
        .says("Role.rbac.authorization.k8s.io/forbidden/r")
        .says("forbidden");
    upgrade(&leaves);
    upgrade(&calm);
    let (_, events) = calm.watched(Fleet::applied);
    assert_eq!(
        object_writes(&events),
        [
            "patch configmaps allowed/a 200",
            "delete configmaps allowed/b 200"
        ]
    );
    let (run, events) = leaves.watched(Fleet::applied);
    run.says("Role.rbac.authorization.k8s.io/forbidden/r")
        .says("stays because its kind could not be listed completely");
    assert_eq!(object_writes(&events), ["patch configmaps forbidden/a 200"]);
    assert!(leaves.exists(&["-n", "forbidden", "role/r"]));
}
