//! The last applied revision is maintained while a newer one waits.

use crate::fleet::Fleet;
use crate::loop_run::{Loop, fleet};
use crate::samples::{BUNDLE, config_map};

/// Windows that are never open.
const CLOSED: &str = "windows: [{deny: \"00:00-24:00\"}]";

/// Starts the controller with a periodic fetch.
fn follows(fleet: &Fleet) -> Loop {
    let repo = fleet.repo.path().to_str().unwrap();
    fleet.runs_with(&["--repo", repo, fleet.environment])
}

/// Adds a release with a `ConfigMap`, both with this name.
fn add(fleet: &Fleet, name: &str) {
    let namespace = fleet.environment;
    fleet.write(&format!("manifests/{name}/bundle.yaml"), BUNDLE);
    fleet.write(&file(name), &config_map(name, "first"));
    let release = format!("  - {{name: {name}, bundle: {name}, namespace: {namespace}}}\n");
    fleet.edit_environment("releases:\n", &format!("releases:\n{release}"));
}

fn file(name: &str) -> String {
    format!("manifests/{name}/{name}.yaml")
}

/// Waits until the `ConfigMap` of a release has a value.
#[track_caller]
fn until_has(fleet: &Fleet, name: &str, value: &str) {
    fleet.until(&format!("{value} of {name}"), |fleet| {
        let live = fleet.get(&["configmap", name, "-n", fleet.environment])?;
        (live["data"]["k"] == value).then_some(())
    });
}

#[test]
fn each_release_is_kept_at_the_commit_that_it_was_brought_to() {
    let fleet = fleet("loop-each", "{interval: 1s}");
    let names = ["one", "two", "three"];
    for name in names {
        add(&fleet, name);
    }
    fleet.push("three more");
    let running = follows(&fleet);
    for (count, name) in names.iter().enumerate() {
        until_has(&fleet, name, "first");
        fleet.edit(&file(name), "k: first", &format!("k: own-{count}"));
        fleet.push(name);
        until_has(&fleet, name, &format!("own-{count}"));
    }
    let ready = |fleet: &Fleet, name: &str| {
        let release = fleet.get(&[&format!("release.pleach.dev/{}.{name}", fleet.environment)])?;
        (release["status"]["record"]["ready"] == true).then_some(())
    };
    for name in names {
        fleet.until("the record", |fleet| ready(fleet, name));
    }
    running.stopped();

    fleet.edit_environment("{interval: 1s}", &format!("{{interval: 1s, {CLOSED}}}"));
    for (count, name) in names.iter().enumerate() {
        fleet.edit(&file(name), &format!("k: own-{count}"), "k: newer");
    }
    fleet.push("all of them");
    let by_hand = |name: &str, who: &str| {
        let patch = format!(r#"{{"data":{{"k":"{who}"}}}}"#);
        fleet.kubectl(&["patch", "cm", name, "-n", fleet.environment, "-p", &patch]);
    };
    for name in names {
        by_hand(name, "ann");
    }
    let running = follows(&fleet);
    for (count, name) in names.iter().enumerate() {
        until_has(&fleet, name, &format!("own-{count}"));
    }
    // Repeat it, without further lookups.
    for (count, name) in names.iter().enumerate() {
        by_hand(name, "bob");
        until_has(&fleet, name, &format!("own-{count}"));
    }
    running.stopped();
}
