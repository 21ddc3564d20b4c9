//! One writer per release at a time: the Lease with a busy, dead or changed holder, verified with
//! the audit log.

use std::time::Duration;

use pleach_testkit::audit::Events;
use pleach_testkit::faults::{Fault, FaultProxy, Kind, Moment, Rule, Seen};
use serde_json::Value;

use crate::fleet::{Fleet, Run, object_writes};
use crate::samples::{BUNDLE, config_map, deployment};
use crate::{kill, shared};

/// Returns a release of ConfigMaps and a Deployment in an existing namespace.
fn fleet(environment: &'static str) -> Fleet {
    let release = format!("  - {{name: web, bundle: web, namespace: {environment}}}\n");
    let files = [config_map("a", "old"), deployment("app")].join("---\n");
    let fleet = Fleet::new(
        environment,
        &release,
        &[
            ("manifests/web/bundle.yaml", BUNDLE),
            ("manifests/web/web.yaml", files.as_str()),
        ],
    );
    fleet.create_namespace(environment);
    fleet
}

/// Sets replicas that are never scheduled, so the apply waits.
fn never_ready(fleet: &Fleet) {
    fleet.edit("manifests/web/web.yaml", "replicas: 0", "replicas: 1");
    fleet.commit();
}

fn apply<'a>(fleet: &Fleet, more: &[&'a str]) -> Vec<&'a str> {
    [&["apply", fleet.environment, "--yes"], more].concat()
}

fn lease(fleet: &Fleet) -> Option<Value> {
    let name = format!("{}.web", fleet.environment);
    fleet.get(&["lease", "-n", "pleach-system", &name])
}

/// Creates a Lease that a client on another machine holds for an hour.
fn held_by_somebody(fleet: &Fleet) {
    let file = fleet.file(
        "lease.yaml",
        &format!(
            "apiVersion: coordination.k8s.io/v1\nkind: Lease\n\
             metadata: {{name: {}.web, namespace: pleach-system}}\n\
             spec:\n  holderIdentity: ann@desk (pid 7)\n  leaseDurationSeconds: 3600\n  \
             acquireTime: 2026-01-02T03:04:05.678901Z\n  renewTime: 2026-01-02T03:04:05.678901Z\n",
            fleet.environment
        ),
    );
    fleet.kubectl(&["apply", "-f", &file]);
}

/// Returns the writes of Leases and objects, in order.
fn turns(events: &Events) -> Vec<String> {
    let done = events.writes().filter(|event| {
        let object = event.object_ref.as_ref();
        let is_renewal = event.verb == "patch" && object.is_some_and(|o| o.resource == "leases");
        event.code() < 400 && !is_renewal
    });
    let about = |line: &&str| line.contains(" leases ") || !line.contains("pleach");
    done.to_string()
        .lines()
        .filter(about)
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_plan_with_steps_has_the_lease_and_gives_it_back() {
    let fleet = fleet("turn-plain");
    let (_, events) = fleet.watched(Fleet::applied);
    let turns = turns(&events);
    let lease_of = |verb: &str| {
        let line = turns.iter().position(|line| {
            line.starts_with(&format!("{verb} coordination.k8s.io leases pleach-system"))
        });
        line.unwrap_or_else(|| panic!("{verb}: {turns:?}"))
    };
    assert_eq!(
        (lease_of("create"), lease_of("delete")),
        (0, turns.len() - 1)
    );
    assert_eq!(turns.len(), 4, "{turns:?}");
    assert_eq!(lease(&fleet), None);

    // Reads and runs that only record another revision acquire no Lease.
    let leases = |events: &Events| {
        let events = events.filter(|event| {
            let object = event.object_ref.as_ref();
            object.is_some_and(|object| object.resource == "leases")
        });
        events.to_string()
    };
    let (_, events) = fleet.watched(|fleet| fleet.diff().ended_with(0));
    assert_eq!(leases(&events), "");
    fleet.write("README.md", "words\n");
    fleet.commit();
    let (_, events) = fleet.watched(Fleet::applied);
    assert_eq!(leases(&events), "");
    assert_eq!(object_writes(&events), [""; 0]);

    // A removal ends with the deletion of its Lease.
    let uninstall = ["uninstall", "turn-plain/web", "--yes"];
    let (_, events) = fleet.watched(|fleet| fleet.run(&uninstall).ended_with(0));
    let last = events.writes().to_string();
    let last = last.lines().last().unwrap_or_default();
    assert_eq!(
        last,
        "delete coordination.k8s.io leases pleach-system/turn-plain.web 200"
    );
    assert_eq!(lease(&fleet), None);

    // So does a failed run.
    fleet.write("manifests/web/web.yaml", &config_map("a", "new"));
    fleet.commit();
    fleet.applied();
    fleet.write(
        "manifests/web/web.yaml",
        &format!("{}---\n{}", config_map("a", "newer"), deployment("app")),
    );
    never_ready(&fleet);
    fleet.edit_environment("namespace:", "timeout: 2s, namespace:");
    fleet.commit();
    fleet.apply().ended_with(6);
    assert_eq!(lease(&fleet), None);
}

#[test]
fn the_second_of_two_waits_and_sees_that_the_first_was_there() {
    let mut fleet = fleet("turn-two");
    fleet.applied();
    fleet.edit("manifests/web/web.yaml", "k: old", "k: new");
    fleet.commit();
    // The first run is slow to change the object.
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    let is_change = |seen: &Seen| seen.kind == Kind::Write && seen.path.ends_with("/configmaps/a");
    proxy.add(Rule::on(is_change, Fault::Delay(Duration::from_secs(5))).nth(1));
    let args = apply(&fleet, &[]);
    let ((first, second), events) = {
        fleet.through(proxy.kubeconfig());
        let first = fleet.start(&args);
        fleet.through(shared().kubeconfig().to_owned());
        fleet.until("the lease of the first", lease);
        fleet.watched(|fleet| {
            let mut second = fleet.start(&args);
            second.until_says("waiting for ");
            (first.ended(), second.ended())
        })
    };
    first.ended_with(0).says("1 updated");
    let second = second.ended_with(5);
    second
        .says(", which applies release turn-two.web")
        .says("another client changed the record of release turn-two.web in the meantime")
        .says("run the command again");
    // The first run writes and ends, then the second one acquires the Lease and does nothing.
    assert_eq!(
        turns(&events),
        [
            "patch configmaps turn-two/a 200",
            "delete coordination.k8s.io leases pleach-system/turn-two.web 200",
            "create coordination.k8s.io leases pleach-system/turn-two.web 201",
            "delete coordination.k8s.io leases pleach-system/turn-two.web 200",
        ]
    );
    let run = fleet.applied();
    run.says("unchanged");
}

#[test]
fn who_is_busy_is_named_and_others_are_not_held_up() {
    let fleet = fleet("turn-busy");
    fleet.applied();
    fleet.edit("manifests/web/web.yaml", "k: old", "k: new");
    fleet.commit();
    held_by_somebody(&fleet);
    let (run, events) = fleet.watched(|fleet| {
        fleet
            .run(&apply(fleet, &["--lock-timeout", "2s"]))
            .ended_with(5)
    });
    assert_eq!(object_writes(&events), [""; 0]);
    let shown = run.shown();
    run.says("waiting for ann@desk (pid 7) since 2026-01-02T03:04:05Z, which applies release turn-busy.web")
        .says("release turn-busy.web is being applied by ann@desk (pid 7) since 2026-01-02T03:04:05Z; waited 2s for it")
        .says("run the command again when that run has finished, or wait longer with --lock-timeout");
    assert_eq!(shown.matches("waiting for ann").count(), 1, "{shown}");
    let record = fleet.field(
        &["release", "turn-busy.web"],
        "{.status.conditions[0].reason}",
    );
    assert_eq!(record, "Deployed");

    // So are recover and uninstall.
    let stopped = |args: &[&str]| -> Run {
        fleet.writes_objects_nowhere(|fleet| {
            fleet
                .run(&[args, &["--yes", "--lock-timeout", "0s"]].concat())
                .ended_with(5)
                .says("is being applied by ann@desk")
        })
    };
    stopped(&["uninstall", "turn-busy/web"]);
    fleet.kubectl(&[
        "label",
        "configmap",
        "a",
        "-n",
        "turn-busy",
        "applyset.kubernetes.io/part-of-",
    ]);
    fleet.kubectl(&[
        "delete",
        "configmaps",
        "-n",
        "pleach-system",
        "-l",
        "pleach.dev/release=turn-busy.web",
    ]);
    stopped(&["recover", "turn-busy"]);

    // Another release of the same environment is not blocked.
    fleet.set_environment(&format!(
        "cluster: {{id: {}}}\nreleases:\n  - {{name: other, bundle: web, namespace: default}}\n",
        fleet.cluster_id()
    ));
    fleet.commit();
    let run = fleet
        .run(&["apply", "turn-busy/other", "--yes"])
        .ended_with(0);
    assert!(!run.stderr.contains("waiting for ann"), "{}", run.shown());
}

#[test]
fn a_killed_run_is_followed_when_its_lease_has_run_out() {
    let mut fleet = fleet("turn-dead");
    fleet.applied();
    fleet.edit("manifests/web/web.yaml", "k: old", "k: new");
    fleet.commit();
    let args = apply(&fleet, &[]);
    // The previous writes are the access review, the Lease and the record.
    assert!(kill::at(
        &mut fleet,
        &args,
        Moment::BeforeForwarding,
        |seen| seen.kind == Kind::Write && seen.path.ends_with("/configmaps/a")
    ));
    let dead = lease(&fleet).unwrap();
    let run = fleet.run(&args).ended_with(0);
    // Measured with our clock since our first read, independent of the holder's clock.
    let took = run.took.as_secs();
    assert!((14..25).contains(&took), "{took} s\n{}", run.shown());
    run.says("waiting for ").says("1 updated");
    assert!(
        dead["spec"]["holderIdentity"]
            .as_str()
            .unwrap()
            .contains("(pid ")
    );
    assert_eq!(lease(&fleet), None);
}

#[test]
fn who_loses_the_lease_writes_nothing_more() {
    let fleet = fleet("turn-lost");
    fleet.applied();
    fleet.edit("manifests/web/web.yaml", "k: old", "k: new");
    never_ready(&fleet);
    let run = fleet.start(&apply(&fleet, &[]));
    fleet.until("the change of the Deployment", |fleet| {
        let app = ["deployment/app", "-n", "turn-lost"];
        (fleet.field(&app, "{.spec.replicas}") == "1").then_some(())
    });
    let stolen = r#"{"spec":{"holderIdentity":"bob@desk"}}"#;
    fleet.kubectl(&[
        "patch",
        "lease",
        "turn-lost.web",
        "-n",
        "pleach-system",
        "--type=merge",
        "-p",
        stolen,
    ]);
    let (run, events) = fleet.watched(|_| run.ended());
    run.ended_with(5)
        .says("was lost: another client could be applying release turn-lost.web")
        .says("so pleach stopped writing")
        .says("it continues from there");
    let written = events.writes().filter(|event| event.code() < 400);
    assert_eq!(written.to_string(), "");
    // The record is that of the start of the run; the Lease belongs to bob.
    let record = fleet.get(&["release", "turn-lost.web"]).unwrap();
    assert_eq!(record["status"]["conditions"][0]["reason"], "Reconciling");
    assert_eq!(lease(&fleet).unwrap()["spec"]["holderIdentity"], "bob@desk");

    // The next run finds the complete state.
    fleet.kubectl(&["delete", "lease", "turn-lost.web", "-n", "pleach-system"]);
    fleet.edit("manifests/web/web.yaml", "replicas: 1", "replicas: 0");
    fleet.commit();
    fleet.applied();
    fleet.diff().ended_with(0);
}

#[test]
fn who_waits_for_their_turn_can_be_interrupted() {
    let fleet = fleet("turn-stop");
    fleet.applied();
    fleet.edit("manifests/web/web.yaml", "k: old", "k: new");
    fleet.commit();
    held_by_somebody(&fleet);
    let (run, events) = fleet.watched(|fleet| {
        let mut run = fleet.start(&apply(fleet, &["--lock-timeout", "10m"]));
        run.until_says("waiting for ann@desk");
        run.signal("INT");
        run.ended()
    });
    run.ended_with(130)
        .says("stopping at the next safe point")
        .says("interrupted: 0 of 1 changes applied")
        .says("remaining: update ConfigMap/turn-stop/a")
        .says("`pleach apply turn-stop/web` continues from there");
    let written = events.writes().filter(|event| event.code() < 400);
    assert_eq!(written.to_string(), "");
    assert_eq!(
        lease(&fleet).unwrap()["spec"]["holderIdentity"],
        "ann@desk (pid 7)"
    );
}
