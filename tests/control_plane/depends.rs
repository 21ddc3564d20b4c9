//! Releases that depend on other releases and on arbitrary objects.

use pleach_state::inventory::RECORD_FORMAT;
use pleach_testkit::audit::Events;
use serde_json::json;

use crate::fleet::Fleet;
use crate::samples::{BUNDLE, config_map, deployment};

const CONSENT: &str =
    "consent: [{action: uninstall, release: web}, {action: uninstall, release: base}]\n";

/// Returns a fleet in which release `web`, with these dependencies, is listed before release
/// `base`.
pub(crate) fn fleet(environment: &'static str, needs: &str, base: &str) -> Fleet {
    Fleet::new(
        environment,
        &format!(
            "  - {{name: web, bundle: web, namespace: {environment}, dependsOn: {needs}}}\n  - {{name: base, bundle: base, namespace: {environment}, createNamespace: true, timeout: 3s}}\n"
        ),
        &[
            ("manifests/web/bundle.yaml", BUNDLE),
            ("manifests/web/web.yaml", &config_map("web", "first")),
            ("manifests/base/bundle.yaml", BUNDLE),
            ("manifests/base/base.yaml", base),
        ],
    )
}

/// Creates an object outside of all releases, with a negative value.
pub(crate) fn make_flag(fleet: &Fleet) {
    let flag = ["create", "configmap", "flag", "-n", fleet.environment];
    fleet.kubectl(&[&flag[..], &["--from-literal=on=no"]].concat());
}

/// Changes the value of the object.
pub(crate) fn set_flag(fleet: &Fleet, on: &str) {
    let patch = format!(r#"{{"data":{{"on":"{on}"}}}}"#);
    let flag = ["patch", "configmap", "flag", "-n", fleet.environment];
    fleet.kubectl(&[&flag[..], &["-p", &patch]].concat());
}

/// Returns the names of the namespace's ConfigMaps that were written with a verb, in order.
fn written(events: &Events, verb: &str, namespace: &str) -> Vec<String> {
    let events = events.filter(|event| {
        let object = event.object_ref.as_ref();
        event.verb == verb
            && !event.is_dry_run()
            && event.code() < 300
            && object.is_some_and(|object| {
                object.namespace == namespace && object.resource == "configmaps"
            })
    });
    let names = events
        .0
        .iter()
        .filter_map(|event| event.object_ref.as_ref());
    names.map(|object| object.name.clone()).collect()
}

#[test]
fn a_release_is_applied_after_what_it_depends_on_and_goes_before_it() {
    let fleet = fleet("depends", "[base]", &config_map("base", "first"));
    let apply = |fleet: &Fleet| {
        let run = fleet.run(&["apply", "depends", "--yes", "--verbose"]);
        run.ended_with(0)
    };
    let (run, events) = fleet.watched(apply);
    run.says("release base is applied and ready first");
    assert_eq!(written(&events, "patch", "depends"), ["base", "web"]);
    // Both exist, so there is no message.
    let run = apply(&fleet);
    assert!(!run.stderr.contains("ready first"), "{}", run.shown());

    // A required release cannot be uninstalled.
    fleet
        .run(&["uninstall", "depends/base", "--yes"])
        .ended_with(7)
        .says("release depends.web depends on it: uninstall that release first");
    // A release whose dependents have records of a newer pleach cannot be uninstalled either.
    let record = |oldest: u32| {
        let patch = json!({"status": {"record": {"oldestWriter": oldest}}}).to_string();
        let patch = ["--subresource=status", "--type=merge", "-p", &patch];
        fleet.kubectl(&[&["patch", "releases.pleach.dev/depends.web"], &patch[..]].concat());
    };
    record(RECORD_FORMAT + 1);
    fleet
        .run(&["uninstall", "depends/base", "--yes"])
        .ended_with(7)
        .says("cannot determine whether release depends.web depends on it: ")
        .says("newer pleach");
    record(RECORD_FORMAT);
    assert!(fleet.exists(&["configmap", "base", "-n", "depends"]));

    fleet.set_environment(&format!(
        "cluster: {{id: {}}}\nreleases: []\n{CONSENT}",
        fleet.cluster_id()
    ));
    fleet.commit();
    let (run, events) = fleet.watched(apply);
    run.says("release depends.web depends on it and is uninstalled first");
    assert_eq!(written(&events, "delete", "depends"), ["web", "base"]);
}

#[test]
fn nothing_is_begun_behind_a_release_that_is_not_ready() {
    // No pod is ever scheduled on this control plane.
    let never = deployment("base").replace("replicas: 0", "replicas: 1");
    let fleet = fleet("depends-late", "[base]", &never);
    fleet
        .apply()
        .ended_with(6)
        .says("release depends-late.web was not started: it depends on release base");
    let web = || fleet.exists(&["configmap", "web", "-n", "depends-late"]);
    assert!(!web());
    fleet.writes_nothing(|fleet| {
        for command in ["plan", "apply"] {
            let mut args = vec![command, "depends-late/web"];
            args.extend((command == "apply").then_some("--yes"));
            fleet
                .run(&args)
                .ended_with(7)
                .says("it depends on release base, which is not at ")
                .says("environments/depends-late.yaml:5");
        }
    });
    fleet.edit("manifests/base/base.yaml", "replicas: 1", "replicas: 0");
    fleet.commit();
    fleet.applied();
    assert!(web());
}

#[test]
fn what_was_reached_is_kept_while_a_dependency_is_not_ready() {
    let fleet = fleet("depends-kept", "[base]", &deployment("base"));
    fleet.applied();
    fleet.edit("manifests/base/base.yaml", "replicas: 0", "replicas: 1");
    fleet.commit();
    fleet
        .run(&["apply", "depends-kept/base", "--yes"])
        .ended_with(6);
    let drifts = || {
        let patch = r#"{"data":{"k":"mine"}}"#;
        fleet.kubectl(&[
            "patch",
            "configmap",
            "web",
            "-n",
            "depends-kept",
            "-p",
            patch,
        ]);
    };
    let value = || fleet.field(&["configmap", "web", "-n", "depends-kept"], "{.data.k}");
    drifts();
    fleet
        .run(&["apply", "depends-kept/web", "--yes"])
        .ended_with(0);
    assert_eq!(value(), "first");
    // The result is the same when all releases are applied.
    let result = || {
        let run = fleet.run(&["apply", "depends-kept", "--yes", "-o", "json"]);
        let said = run.ended_with(6).json();
        let releases = said["releases"].as_array().unwrap();
        let web = releases
            .iter()
            .find(|one| one["release"] == "depends-kept.web");
        web.unwrap()["result"].clone()
    };
    drifts();
    assert_eq!(result(), "deployed");
    assert_eq!(value(), "first");
    assert_eq!(result(), "unchanged");
    // A change waits for the dependency.
    fleet.edit("manifests/web/web.yaml", "k: first", "k: second");
    fleet.commit();
    assert_eq!(result(), "failed");
    assert_eq!(value(), "first");
    fleet
        .run(&["apply", "depends-kept/web", "--yes"])
        .ended_with(7);
}

#[test]
fn an_object_of_anybody_is_ready_when_its_expression_holds() {
    let needs = "[{kind: ConfigMap, name: flag, ready: \"data.on == 'yes'\"}]";
    let fleet = fleet("depends-flag", needs, &config_map("base", "first"));
    fleet.create_namespace("depends-flag");
    let apply = || fleet.run(&["apply", "depends-flag", "--yes"]);
    apply()
        .ended_with(7)
        .says("it depends on ConfigMap/depends-flag/flag, which does not exist");
    make_flag(&fleet);
    apply()
        .ended_with(7)
        .says("which is not ready: `data.on == 'yes'` does not hold");
    assert!(!fleet.exists(&["configmap", "web", "-n", "depends-flag"]));
    set_flag(&fleet, "yes");
    apply().ended_with(0);
    assert!(fleet.exists(&["configmap", "web", "-n", "depends-flag"]));
}
