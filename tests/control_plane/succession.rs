//! A release takes over from another one in another namespace (`movedFrom`): no two of a kind run
//! at the same time.

use crate::fleet::{Fleet, object_writes};
use crate::samples::{BUNDLE, config_map, deployment};
use crate::stages::nodes;

/// Returns the namespaces of the old and the new release.
pub(crate) fn places(environment: &str) -> [String; 2] {
    [format!("{environment}-a"), format!("{environment}-b")]
}

/// Returns the old release for the environment file.
pub(crate) fn old(environment: &str) -> String {
    let [place, _] = places(environment);
    format!("  - {{name: old, bundle: shop, namespace: {place}, timeout: 40s}}\n")
}

/// Returns the new release, which takes over.
pub(crate) fn new(environment: &str, timeout: &str) -> String {
    let [_, place] = places(environment);
    let from = format!("{{environment: {environment}, release: old}}");
    format!(
        "  - {{name: new, bundle: shop, namespace: {place}, movedFrom: {from}, timeout: {timeout}}}\n"
    )
}

/// Returns a controller that must not run twice. `crash` is the annotation for its pods.
fn controller(image: &str, crash: &str) -> String {
    let labels = "metadata: {labels: {app: controller}}";
    let crashing = format!(
        "metadata: {{labels: {{app: controller}}, annotations: {{testkit.pleach.dev/crash: \"{crash}\"}}}}"
    );
    let workload = deployment("controller")
        .replace("replicas: 0", "replicas: 1")
        .replace(labels, &crashing)
        .replace("controller:1", image);
    [workload, config_map("settings", "v")].join("---\n")
}

/// Returns a fleet with the old release running.
pub(crate) fn fleet(environment: &'static str) -> Fleet {
    let files = [
        ("manifests/shop/bundle.yaml", BUNDLE.to_owned()),
        (
            "manifests/shop/app.yaml",
            controller("controller:1", "false"),
        ),
    ];
    let fleet = Fleet::on(nodes(), environment, &old(environment), &files);
    for place in places(environment) {
        fleet.create_namespace(&place);
    }
    fleet.applied();
    fleet
}

/// Returns the number of pods of a controller in a namespace, except terminating ones.
fn running(fleet: &Fleet, place: &str) -> usize {
    let Some(pods) = fleet.get(&["pods", "-l", "app=controller", "-n", place]) else {
        return 0;
    };
    let pods = pods["items"].as_array().unwrap().iter();
    pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
        .count()
}

#[test]
fn what_hands_over_stops_before_its_successor_starts() {
    let fleet = fleet("succeed");
    let [a, b] = places("succeed");
    fleet.edit_environment(&old("succeed"), &new("succeed", "40s"));
    fleet.commit();
    fleet
        .run(&["plan", "succeed"])
        .ended_with(0)
        .says(&format!(
            "its pods are removed before Deployment.apps/{b}/controller replaces it"
        ))
        .says("of release succeed.old; its successor is in another namespace");
    let (_, events) = fleet.watched(Fleet::applied);
    let writes = object_writes(&events);
    let at = |start: &str| {
        let position = writes.iter().position(|line| line.starts_with(start));
        position.unwrap_or_else(|| panic!("no {start}: {writes:#?}"))
    };
    let emptied = at(&format!("patch apps deployments {a}/controller"));
    let started = at(&format!("patch apps deployments {b}/controller"));
    let deleted = at(&format!("delete apps deployments {a}/controller"));
    assert!(emptied < started && started < deleted, "{writes:#?}");
    assert_eq!((running(&fleet, &a), running(&fleet, &b)), (0, 1));
    assert!(!fleet.exists(&["deployment", "controller", "-n", &a]));
    // The rest of the old release waits for consent to its removal.
    assert!(fleet.exists(&["cm", "settings", "-n", &a]));
    assert!(fleet.exists(&["release", "succeed.old"]));
    fleet.applied();
    fleet.writes_nothing(Fleet::applied);
    fleet.extend_environment("consent: [{action: uninstall, release: old}]\n");
    fleet.commit();
    fleet.applied();
    assert!(!fleet.exists(&["release", "succeed.old"]));
    assert_eq!(running(&fleet, &b), 1);
}

#[test]
fn what_hands_over_runs_again_when_its_successor_does_not() {
    let fleet = fleet("fallback");
    let [a, b] = places("fallback");
    fleet.edit_environment(&old("fallback"), &new("fallback", "6s"));
    fleet.write(
        "manifests/shop/app.yaml",
        &controller("controller:2", "true"),
    );
    fleet.commit();
    fleet
        .apply()
        .ended_with(6)
        .says(&format!("Deployment.apps/{b}/controller"));
    let replicas = |place: &str| {
        let controller = ["deployment", "controller", "-n", place];
        fleet.field(&controller, "{.spec.replicas}")
    };
    assert_eq!(replicas(&a), "1");
    // The next run takes over and starts with the unfinished step.
    fleet.edit_environment(&new("fallback", "6s"), &new("fallback", "40s"));
    fleet.write(
        "manifests/shop/app.yaml",
        &controller("controller:3", "false"),
    );
    fleet.commit();
    fleet.applied();
    assert!(!fleet.exists(&["deployment", "controller", "-n", &a]));
    assert_eq!(running(&fleet, &b), 1);
    let journal = "configmap/fallback.new.journal";
    assert!(!fleet.exists(&[journal, "-n", "pleach-system"]));
}

const SERVICE: &str = "---
apiVersion: v1
kind: Service
metadata: {name: controller}
spec: {selector: {app: controller}, ports: [{port: 443}]}
";

#[test]
fn what_hands_over_stays_while_its_successor_is_not_ready_also_with_consent() {
    let fleet = fleet("inherit");
    let [a, b] = places("inherit");
    fleet.edit_environment(&old("inherit"), &new("inherit", "6s"));
    fleet.extend_environment("consent: [{action: uninstall, release: old}]\n");
    fleet.write(
        "manifests/shop/app.yaml",
        &controller("controller:2", "true"),
    );
    fleet.commit();
    fleet.apply().ended_with(6).says(
        "release inherit.old was not removed: its successor, release inherit.new, is not ready",
    );
    assert!(fleet.exists(&["deployment", "controller", "-n", &a]));
    assert!(fleet.exists(&["cm", "settings", "-n", &a]));
    assert!(fleet.exists(&["release", "inherit.old"]));
    fleet.write(
        "manifests/shop/app.yaml",
        &controller("controller:3", "false"),
    );
    fleet.commit();
    fleet.applied();
    assert!(!fleet.exists(&["release", "inherit.old"]));
    assert!(!fleet.exists(&["deployment", "controller", "-n", &a]));
    assert_eq!(running(&fleet, &b), 1);
}

#[test]
fn what_the_former_pods_registered_goes_before_their_successors_start() {
    let fleet = fleet("unregister");
    let [a, b] = places("unregister");
    let app = controller("controller:1", "false");
    fleet.write("manifests/shop/app.yaml", &format!("{app}{SERVICE}"));
    fleet.commit();
    fleet.applied();
    // Deregister as the pods would.
    let hook = format!(
        "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\nmetadata: {{name: unregister}}\nwebhooks:\n\
         - name: unregister.example.org\n  admissionReviewVersions: [v1]\n  sideEffects: None\n\
         \x20 clientConfig: {{service: {{name: controller, namespace: {a}}}}}\n\
         \x20 rules: [{{apiGroups: [unregister.example.org], apiVersions: [\"*\"], resources: [\"*\"], operations: [CREATE]}}]\n"
    );
    let hook = fleet.file("hook.yaml", &hook);
    fleet.kubectl(&["apply", "-f", &hook]);

    fleet.edit_environment(&old("unregister"), &new("unregister", "40s"));
    fleet.commit();
    fleet
        .run(&["plan", "unregister"])
        .ended_with(0)
        .says(&format!(
            "points at Service {a}/controller of release unregister.old, whose pods are deleted"
        ))
        .says("gate handover until ungate: CREATE and UPDATE of *.unregister.example.org")
        .says("after 10 s the run continues without it");
    // Its pods are simulated and register nothing.
    let (run, events) = fleet.watched(Fleet::applied);
    run.says(&format!(
        "no ValidatingWebhookConfiguration points at Service {b}/controller yet; the change continues without it"
    ));
    let writes = object_writes(&events);
    let at = |words: &str| {
        let position = writes.iter().position(|line| line.contains(words));
        position.unwrap_or_else(|| panic!("no {words}: {writes:#?}"))
    };
    let gone =
        at("delete admissionregistration.k8s.io validatingwebhookconfigurations unregister ");
    let emptied = at(&format!("patch apps deployments {a}/controller"));
    let started = at(&format!("patch apps deployments {b}/controller"));
    assert!(gone < emptied && emptied < started, "{writes:#?}");
    assert!(!fleet.exists(&["validatingwebhookconfiguration", "unregister"]));
    assert!(fleet.exists(&["service", "controller", "-n", &a]));
    fleet.applied();
    fleet.writes_nothing(Fleet::applied);
}
