//! Restarts of pods whose configuration changes.

use crate::fleet::{Fleet, WEB, object_writes};
use crate::samples;

const CONFIGURATION: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {mode: fast}
---
apiVersion: v1
kind: Secret
metadata: {name: access}
stringData: {password: first}
";

/// Returns a Deployment that reads its configuration, and one that does not.
fn manifests() -> String {
    let sources = "[{configMapRef: {name: settings}}, {secretRef: {name: access}}]";
    let containers = format!("[{{name: web, image: \"web:1\", envFrom: {sources}}}]");
    let reads = samples::deployment_of("web", &containers);
    [CONFIGURATION, &reads, &samples::deployment("other")].join("---\n")
}

fn stamp(fleet: &Fleet, name: &str) -> String {
    let annotation = r"{.spec.template.metadata.annotations.pleach\.dev/configuration}";
    let name = format!("deployment/{name}");
    fleet.field(&["-n", "restarting", &name], annotation)
}

#[test]
fn pods_are_replaced_when_git_changes_what_they_read() {
    let fleet = Fleet::web("restarting", &manifests());
    fleet.edit_environment("bundle: web,", "bundle: web, restartOnConfigChange: true,");
    // The digest key is in that namespace, created by the first apply.
    fleet.extend_environment("state: {kind: ConfigMap, namespace: restarting}\n");
    fleet.create_namespace("restarting");
    fleet.commit();
    fleet.applied();
    let first = stamp(&fleet, "web");
    assert!(!first.is_empty());
    assert_eq!(stamp(&fleet, "other"), "");
    fleet.diff().ended_with(0);
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(object_writes(&events), Vec::<String>::new());

    for (from, to) in [
        ("password: first", "password: second"),
        ("mode: fast", "mode: slow"),
    ] {
        let before = stamp(&fleet, "web");
        fleet.edit(WEB, from, to);
        fleet.commit();
        let run = fleet.diff().ended_with(10);
        assert!(run.stdout.contains("2 to update"), "{}", run.shown());
        fleet.applied();
        assert_ne!(stamp(&fleet, "web"), before);
        fleet.diff().ended_with(0);
    }

    fleet.edit(
        WEB,
        "metadata: {name: settings}",
        "metadata: {name: settings, labels: {a: b}}",
    );
    fleet.commit();
    let run = fleet.diff().ended_with(10);
    assert!(run.stdout.contains("1 to update"), "{}", run.shown());

    fleet.edit_environment(
        "restartOnConfigChange: true",
        "restartOnConfigChange: false",
    );
    fleet.commit();
    fleet.applied();
    assert_eq!(stamp(&fleet, "web"), "");
}
