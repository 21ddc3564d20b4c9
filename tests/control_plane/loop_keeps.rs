//! The last applied revision is maintained while a newer one waits.

use std::time::{Duration, Instant};

use crate::depends::{make_flag, set_flag};
use crate::fleet::Fleet;
use crate::loop_run::{Loop, fleet};
use crate::samples::{BUNDLE, config_map, gear, gears};
use crate::waits::never;

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
fn an_override_of_the_windows_outlasts_a_dependency() {
    let fleet = fleet("loop-outlasts", "{interval: 1h}");
    make_flag(&fleet);
    let running = fleet.runs();
    fleet.until_value("first");
    fleet.until_ready();
    fleet.edit_environment("{interval: 1h}", &format!("{{interval: 1h, {CLOSED}}}"));
    let needs = "dependsOn: [{kind: ConfigMap, name: flag, ready: \"data.on == 'yes'\"}]";
    fleet.edit_environment("bundle: web,", &format!("bundle: web, {needs},"));
    fleet.push_value("first", "second");
    fleet
        .run(&["sync", fleet.environment, "--override-window"])
        .ended_with(0);
    let said = fleet.until_condition("Reconciling", "DependencyNotReady");
    assert!(said.contains("ConfigMap"), "{said}");
    // Meanwhile the previous revision is maintained. It is not the desired one, and previous
    // obstacles are not reported.
    fleet.edit_by_hand("ann");
    fleet.until_value("first");
    fleet.until_condition("Reconciling", "DependencyNotReady");
    set_flag(&fleet, "yes");
    fleet.until_value("second");
    fleet.until("the request", |fleet| {
        let name = format!("release.pleach.dev/{}.web", fleet.environment);
        let release = fleet.get(&[&name])?;
        release["spec"]["sync"].is_null().then_some(())
    });
    running.stopped();
}

/// Patches a field of the Gear.
fn set_gear(fleet: &Fleet, patch: &str) {
    let gear = [
        "patch",
        "gears.loop-slow.example.org",
        "first",
        "-n",
        fleet.environment,
    ];
    let patch = ["--type=merge", "-p", patch];
    fleet.kubectl(&[&gear[..], &patch].concat());
}

#[test]
fn a_correction_that_waits_is_ended_by_who_approves_and_by_nobody_else() {
    let fleet = fleet("loop-slow", "{interval: 1s, approval: digest}");
    let group = "loop-slow.example.org";
    fleet.kubectl(&["apply", "-f", &fleet.file("gears.yaml", &gears(group))]);
    let text = gear(group) + "spec: {teeth: 8}\n";
    fleet.write("manifests/web/gear.yaml", &text);
    add(&fleet, "other");
    fleet.push("a gear, and another release");
    let approve = |release: &str| {
        let name = format!("release.pleach.dev/{}.{release}", fleet.environment);
        let digest = fleet.until("the digest", |fleet| {
            let live = fleet.get(&[&name])?;
            let conditions = live["status"]["conditions"].as_array()?;
            let stalled = conditions.iter().find(|one| one["type"] == "Stalled")?;
            let (_, digest) = stalled["message"].as_str()?.split_once("approval of ")?;
            Some(
                digest
                    .split([':', ' '])
                    .take(2)
                    .collect::<Vec<_>>()
                    .join(":"),
            )
        });
        let approval = format!("pleach.dev/approved={digest}");
        fleet.kubectl(&["annotate", "--overwrite", &name, &approval]);
    };
    let running = follows(&fleet);
    approve("web");
    approve("other");
    fleet.until_ready();
    until_has(&fleet, "other", "first");
    // From now on, readiness requires an observed generation. Each write increments the generation.
    set_gear(&fleet, r#"{"status":{"observedGeneration":2}}"#);
    fleet.push_value("first", "second");
    fleet.until_condition("Stalled", "AwaitingApproval");
    set_gear(&fleet, r#"{"spec":{"teeth":9}}"#);
    let teeth = |fleet: &Fleet| {
        let gear = format!("gears.{group}/first");
        fleet.field(&[&gear, "-n", fleet.environment], "{.spec.teeth}")
    };
    fleet.until("the teeth", |fleet| (teeth(fleet) == "8").then_some(()));

    // The release continues regardless of the desired state of others.
    let looks = |release: &str, end: &str| running.looks(fleet.environment, release, end);
    let unapproved = looks("other", "unapproved");
    fleet.edit(&file("other"), "k: first", "k: second");
    fleet.push("another release");
    let seen = || looks("other", "unapproved") > unapproved;
    fleet.until("the commit", |_| seen().then_some(()));
    assert!(looks("web", "superseded") < 1.0);

    let since = Instant::now();
    approve("web");
    fleet.until_value("second");
    assert!(since.elapsed() < Duration::from_secs(30), "{since:?}");
    assert!(looks("web", "superseded") > 0.0);
    set_gear(&fleet, r#"{"status":{"observedGeneration":5}}"#);
    fleet.until_ready();
    running.stopped();
}

#[test]
fn the_way_back_from_what_failed_is_no_correction() {
    let fleet = fleet("loop-back-down", "{interval: 1s}");
    let mut running = follows(&fleet);
    fleet.until_ready();
    fleet.edit_environment("bundle: web,", "bundle: web, timeout: 3s,");
    fleet.write("manifests/web/never.yaml", &never("never"));
    fleet.push_value("first", "second");
    let failed = |running: &Loop| running.looks(fleet.environment, "web", "failed") > 0.0;
    fleet.until("a failure", |_| failed(&running).then_some(()));
    assert_eq!(fleet.value().as_deref(), Some("second"));
    // The previous state is desired again, while the window is closed.
    fleet.remove("manifests/web/never.yaml");
    fleet.edit_environment("{interval: 1s}", &format!("{{interval: 1s, {CLOSED}}}"));
    fleet.push_value("second", "first");
    for start_anew in [false, true] {
        if start_anew {
            running.stopped();
            running = follows(&fleet);
        }
        fleet.until_condition("Reconciling", "WindowClosed");
        let looks = || running.looks(fleet.environment, "web", "waiting");
        let before = looks();
        fleet.until("looks", |_| (looks() > before + 2.0).then_some(()));
        assert_eq!(fleet.value().as_deref(), Some("second"));
    }
    fleet
        .run(&["sync", fleet.environment, "--override-window"])
        .ended_with(0);
    fleet.until_value("first");
    running.stopped();
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
