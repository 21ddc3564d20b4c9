//! Records of a newer pleach: unknown fields are preserved if the format allows it, otherwise the
//! record is not written.

use pleach_state::inventory::{RECORD_FORMAT, Store};
use serde_json::{Value, json};

use crate::fleet::Fleet;
use crate::forged::reseal;
use crate::samples;

fn fleet(environment: &'static str) -> Fleet {
    let release =
        format!("  - {{name: shop, bundle: shop, version: v1.0.0, namespace: {environment}}}\n");
    Fleet::new(
        environment,
        &release,
        &[
            ("manifests/shop/bundle.yaml", samples::BUNDLE.to_owned()),
            (
                "manifests/shop/v1.0.0/a.yaml",
                samples::config_map("settings", "first"),
            ),
        ],
    )
}

/// Returns the record with possible additions of the next format version.
fn newer(mut record: Value, oldest: u32) -> Value {
    record["format"] = json!(9);
    record["oldestWriter"] = json!(oldest);
    record["later"] = json!({"k": ["v"]});
    record
}

/// Verifies that a change preserves unknown fields, and that a stricter format prevents writes.
fn check(fleet: &Fleet, read: impl Fn() -> Value, write: impl Fn(Value)) {
    fleet.applied();
    assert_eq!(read()["oldestWriter"], RECORD_FORMAT);
    write(newer(read(), RECORD_FORMAT));
    fleet.edit("manifests/shop/v1.0.0/a.yaml", "first", "second");
    fleet.commit();
    fleet.applied().says("deployed");
    let record = read();
    assert_eq!(record["later"], json!({"k": ["v"]}), "{record}");
    assert_eq!(
        (&record["format"], &record["oldestWriter"]),
        (&json!(9), &json!(RECORD_FORMAT))
    );
    assert_eq!(record["history"][1]["result"], "deployed");

    write(newer(read(), RECORD_FORMAT + 1));
    fleet.edit("manifests/shop/v1.0.0/a.yaml", "second", "third");
    fleet.commit();
    fleet.writes_nothing(|fleet| {
        fleet
            .apply()
            .ended_with(7)
            .says("has format 9, written by a newer pleach")
            .says("use a newer pleach");
    });
    fleet
        .run(&["status", fleet.environment])
        .says("newer pleach");
}

#[test]
fn a_release_of_a_newer_pleach_is_written_around_or_left_alone() {
    let fleet = fleet("skewed");
    let name = "releases.pleach.dev/skewed.shop";
    let read = || fleet.get(&[name]).unwrap()["status"]["record"].clone();
    let write = |record: Value| {
        let mut status = json!({ "record": record });
        reseal(&fleet, &Store::Release, "shop", &mut status);
        let patch = json!({ "status": status }).to_string();
        fleet.kubectl(&[
            "patch",
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ]);
    };
    check(&fleet, read, write);
}

#[test]
fn a_config_map_of_a_newer_pleach_is_written_around_or_left_alone() {
    let fleet = fleet("skewmap");
    fleet.create_namespace("skewmap");
    let id = fleet.field(&["namespace", "skewmap"], "{.metadata.uid}");
    let system = fleet.cluster_id();
    fleet.edit_environment(&system, &id);
    fleet.extend_environment("state: {kind: ConfigMap, namespace: skewmap}\n");
    fleet.commit();
    let status = || -> Value {
        let map = fleet.get(&["-n", "skewmap", "cm/skewmap.shop"]).unwrap();
        serde_json::from_str(map["data"]["status"].as_str().unwrap()).unwrap()
    };
    let write = |record: Value| {
        let mut status = status();
        status["record"] = record;
        let store = Store::ConfigMap {
            namespace: "skewmap".to_owned(),
        };
        reseal(&fleet, &store, "shop", &mut status);
        let patch = json!({"data": {"status": status.to_string()}}).to_string();
        let patch = ["patch", "cm/skewmap.shop", "--type=merge", "-p", &patch];
        fleet.kubectl(&[&["-n", "skewmap"], &patch[..]].concat());
    };
    check(&fleet, || status()["record"].clone(), write);
}
