//! The controller detects changes by other clients immediately.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pleach_state::inventory::{ShardRef, read_shards};
use pleach_testkit::audit::Events;

use crate::fleet::{Fleet, object_writes};
use crate::loop_run::{Loop, fleet};
use crate::rights::Team;
use crate::samples::{BUNDLE, config_map, deployment};

/// Maximum time from the change to its correction.
const AT_ONCE: Duration = Duration::from_secs(5);

/// At least one try must be immediate, because the machine can be busy.
const TRIES: usize = 3;

/// Returns a release with two `ConfigMap`s and a Deployment, applied by the controller. Periodic
/// reconciles are disabled.
fn deployed(environment: &'static str, more: &str) -> (Fleet, Loop) {
    let fleet = fleet(environment, "{interval: 1h}");
    let other = [
        config_map("other", "first"),
        deployment("idle"),
        more.to_owned(),
    ];
    fleet.write("manifests/web/other.yaml", &other.join("---\n"));
    fleet.push("more");
    let running = fleet.runs();
    fleet.until_ready();
    (fleet, running)
}

fn data(fleet: &Fleet, name: &str) -> String {
    let args = [
        "configmap",
        name,
        "-n",
        fleet.environment,
        "--ignore-not-found",
    ];
    fleet.field(&args, "{.data.k}")
}

/// Returns the names of the release's objects that were read or written. Lists have no name.
fn touched(fleet: &Fleet, events: &Events) -> BTreeSet<String> {
    let objects = events
        .0
        .iter()
        .filter_map(|event| event.object_ref.as_ref());
    objects
        .filter(|object| ["configmaps", "deployments"].contains(&object.resource.as_str()))
        .filter(|object| object.namespace.is_empty() || object.namespace == fleet.environment)
        .map(|object| format!("{}/{}", object.resource, object.name))
        .collect()
}

#[test]
fn drift_of_one_object_is_corrected_at_once_with_requests_for_it_only() {
    let (fleet, running) = deployed("loop-watch", "");
    let namespace = ["-n", fleet.environment];
    let cases: [&[&str]; 4] = [
        &[
            "patch",
            "configmap",
            "web",
            "-p",
            r#"{"data":{"k":"mine"}}"#,
        ],
        &["delete", "configmap", "web"],
        &[
            "label",
            "configmap",
            "web",
            "applyset.kubernetes.io/part-of-",
        ],
        &["annotate", "configmap", "web", "pleach.dev/desired-"],
    ];
    for case in cases {
        let mut tries = (0..TRIES).map(|_| corrected(&fleet, &[case, &namespace].concat()));
        assert!(tries.any(|took| took < AT_ONCE), "{case:?}");
    }
    // Objects outside of all releases are ignored.
    assert_eq!(data(&fleet, "other"), "first");
    running.stopped();
}

/// Changes `web` and returns the time until it was restored, with requests for this object only and
/// one write.
fn corrected(fleet: &Fleet, case: &[&str]) -> Duration {
    let before = uid_and_version(fleet);
    let (took, events) = fleet.watched(|fleet| {
        fleet.kubectl(case);
        let since = Instant::now();
        fleet.until("the correction", |fleet| {
            let live = fleet.get(&["configmap", "web", "-n", fleet.environment])?;
            let metadata = &live["metadata"];
            let is_ours = live["data"]["k"] == "first"
                && metadata["labels"]["applyset.kubernetes.io/part-of"].is_string()
                && metadata["annotations"]["pleach.dev/desired"].is_string();
            (is_ours && uid_and_version(fleet) != before).then_some(())
        });
        let took = since.elapsed();
        fleet.until_ready();
        took
    });
    let touched = touched(fleet, &events);
    let expected = BTreeSet::from(["configmaps/web".to_owned()]);
    assert_eq!(touched, expected, "{case:?}");
    // The only write is the correction.
    let writes = object_writes(&events);
    assert_eq!(writes.len(), 1, "{case:?}: {writes:?}");
    took
}

fn uid_and_version(fleet: &Fleet) -> String {
    let args = [
        "configmap",
        "web",
        "-n",
        fleet.environment,
        "--ignore-not-found",
    ];
    fleet.field(&args, "{.metadata.uid} {.metadata.resourceVersion}")
}

const AUTOSCALER: &str = "\
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: idle}
spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: idle}, maxReplicas: 5}
";

/// Writes the status of the autoscaler, as its controller does repeatedly.
fn move_status(fleet: &Fleet, replicas: u8) {
    let patch = format!(r#"{{"status":{{"desiredReplicas":{replicas}}}}}"#);
    let what = ["patch", "hpa", "idle", "-n", fleet.environment];
    let how = ["--subresource=status", "--type=merge", "-p", &patch];
    fleet.kubectl(&[&what[..], &how].concat());
}

#[test]
fn a_status_that_moves_is_not_written_down() {
    let manifests = [deployment("idle"), AUTOSCALER.to_owned()];
    let fleet = Fleet::web("status-moves", &manifests.join("---\n"));
    fleet.applied();
    // The ignored field is released by now.
    fleet.applied();
    for replicas in [2, 3] {
        move_status(&fleet, replicas);
        fleet.writes_nothing(Fleet::applied).says(": unchanged (");
    }
}

#[test]
fn the_loop_does_not_write_down_a_status_that_moves_either() {
    let (fleet, running) = deployed("loop-status", AUTOSCALER);
    let unchanged = || running.looks("loop-status", "web", "unchanged");
    let move_on = |fleet: &Fleet, replicas| {
        let before = unchanged();
        move_status(fleet, replicas);
        fleet.until("a look", |_| (unchanged() > before).then_some(()));
    };
    // The first run's remaining work is done by then.
    move_on(&fleet, 1);
    for replicas in [2, 3] {
        fleet.writes_nothing(|fleet| move_on(fleet, replicas));
    }
    running.stopped();
}

#[test]
fn an_autoscaler_is_not_fought() {
    let (fleet, running) = deployed("loop-scaled", AUTOSCALER);
    let unchanged = || running.looks("loop-scaled", "web", "unchanged");
    let before = unchanged();
    let ((), events) = fleet.watched(|fleet| {
        fleet.kubectl(&[
            "scale",
            "deployment",
            "idle",
            "--replicas=2",
            "-n",
            "loop-scaled",
        ]);
        fleet.until("a look", |_| (unchanged() > before).then_some(()));
    });
    assert_eq!(object_writes(&events), [""; 0]);
    let replicas = fleet.field(
        &["deployment", "idle", "-n", "loop-scaled"],
        "{.spec.replicas}",
    );
    assert_eq!(replicas, "2");
    let drift = || {
        running.number("pleach_drift_objects_total{environment=\"loop-scaled\",release=\"web\"}")
    };
    assert!(drift() < 1.0, "{}", drift());
    fleet.edit_by_hand("ann");
    fleet.until("the count", |_| (drift() > 0.0).then_some(()));
    running.stopped();
}

#[test]
fn drift_that_is_only_reported_is_told_at_once_and_taken_back_at_once() {
    let fleet = fleet("loop-told", "{interval: 1h, drift: report}");
    let running = fleet.runs();
    fleet.until_ready();
    fleet.edit_by_hand("mine");
    let said = fleet.until_condition("Drifted", "ChangedByOthers");
    assert_eq!(said, "ConfigMap/loop-told/web: .data.k changed by mine");
    assert_eq!(fleet.value().as_deref(), Some("mine"));
    fleet
        .run(&["status", "loop-told"])
        .says("loop-told/web: Drifted: ChangedByOthers: ");
    fleet.edit_by_hand("first");
    fleet.until_not("Drifted");
    running.stopped();
}

#[test]
fn who_has_rights_in_one_namespace_sees_what_changes_there() {
    let team = Team::new("loop-team", "namespaced.yaml", "pleach", &["loop-team"]);
    let fleet = &team.fleet;
    let id = fleet.field(&["namespace", "loop-team"], "{.metadata.uid}");
    fleet.extend_environment(&format!("cluster: {{id: {id}}}\nsync: {{interval: 1h}}\n"));
    fleet.push("start");
    let running = fleet.runs();
    let map = |name: &str, path: &str| {
        let args = ["configmap", name, "-n", "loop-team", "--ignore-not-found"];
        fleet.field(&args, path)
    };
    fleet.until("the record", |_| {
        (map("loop-team.shop", "{.data.ready}") == "True").then_some(())
    });
    let patch = [
        "patch",
        "configmap",
        "settings",
        "-n",
        "loop-team",
        "-p",
        r#"{"data":{"color":"mine"}}"#,
    ];
    let mut tries = (0..TRIES).map(|_| {
        fleet.kubectl(&patch);
        let since = Instant::now();
        fleet.until("the correction", |_| {
            (map("settings", "{.data.color}") == "red").then_some(())
        });
        since.elapsed()
    });
    assert!(tries.any(|took| took < AT_ONCE));
    running.stopped();
}

/// Returns the uid of a `ConfigMap` in the inventory of release web.
fn recorded(fleet: &Fleet, name: &str) -> Option<String> {
    let release = format!("release.pleach.dev/{}.web", fleet.environment);
    let release = fleet.get(&[&release])?;
    let shards = release["status"]["record"]["shards"].clone();
    let shards: Vec<ShardRef> = serde_json::from_value(shards).ok()?;
    shards.iter().find_map(|shard| {
        let live = fleet.get(&["configmap", &shard.name, "-n", "pleach-system"])?;
        let bytes = STANDARD.decode(live["binaryData"]["entries"].as_str()?);
        let inventory = read_shards(&[(shard.digest, bytes.ok()?)]).ok()?;
        let mut entries = inventory.entries.into_iter();
        let (_, entry) = entries.find(|(id, _)| id.is("", "ConfigMap") && id.name == name)?;
        entry.uid
    })
}

#[test]
fn a_run_time_object_is_recorded_when_it_appears() {
    let fleet = fleet("loop-made", "{interval: 1h}");
    let made = "runtimeObjects: [{kind: ConfigMap, group: \"\", name: made, optional: true}]\n";
    fleet.write("manifests/web/bundle.yaml", &format!("{BUNDLE}{made}"));
    fleet.push("an object that pods make");
    let running = fleet.runs();
    fleet.until_ready();
    let made = ["configmap", "made", "-n", fleet.environment];
    // A recreated object of the same name is handled too.
    for _ in 0..2 {
        fleet.kubectl(&[&["create"], &made[..]].concat());
        let uid = fleet.field(&made, "{.metadata.uid}");
        fleet.until("the record", |fleet| {
            (recorded(fleet, "made").as_deref() == Some(&uid)).then_some(())
        });
        fleet.kubectl(&[&["delete"], &made[..]].concat());
    }
    running.stopped();
}
