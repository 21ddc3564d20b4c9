//! Many releases of one controller share requests to the cluster.

use std::fmt::Write as _;

use pleach_testkit::audit::Events;

use crate::fleet::{Fleet, Requests};
use crate::loop_run::{Loop, fleet};
use crate::shared;

/// Runs the controller as its own user. Returns its start time.
#[track_caller]
fn runs_as(fleet: &mut Fleet, user: &str) -> (Loop, Requests) {
    let since = Requests::from_now(shared());
    let kubeconfig = shared().kubeconfig_for_user(user, &["system:masters"]);
    fleet.through(kubeconfig.unwrap());
    (fleet.runs(), since)
}

/// Returns the requests of a user except watches, which stay open.
fn asked_by(user: &str, since: &Requests) -> Events {
    since
        .events()
        .filter(|event| event.user.username == user && event.verb != "watch")
}

fn synced(running: &Loop, environment: &str) -> usize {
    let (_, text) = running.get("/metrics");
    let start = format!("pleach_release_synced{{environment=\"{environment}\"");
    let lines = text.lines().filter(|line| line.starts_with(&start));
    lines.filter(|line| line.ends_with(" 1")).count()
}

#[test]
fn after_a_restart_each_kind_is_listed_once_for_all_releases() {
    const RELEASES: usize = 12;
    let mut fleet = fleet("many-again", "{interval: 1h}");
    fleet.remove("manifests/web/web.yaml");
    fleet.write(
        "manifests/web/web.yaml.j2",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ release.name }}}\ndata: {k: first}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: {{ release.name }}}\nspec: {ports: [{port: 80}]}\n",
    );
    let mut releases = String::new();
    for number in 1..RELEASES {
        writeln!(
            releases,
            "  - {{name: web-{number}, bundle: web, namespace: many-again}}"
        )
        .unwrap();
    }
    fleet.edit_environment("releases:\n", &format!("releases:\n{releases}"));
    fleet.push("many");
    let (running, _) = runs_as(&mut fleet, "many-first-loop");
    fleet.until("all releases", |_| {
        (synced(&running, "many-again") == RELEASES).then_some(())
    });
    running.stopped();

    let (running, since) = runs_as(&mut fleet, "many-again-loop");
    fleet.until("all releases", |_| {
        (synced(&running, "many-again") == RELEASES).then_some(())
    });
    running.stopped();
    let asked = asked_by("many-again-loop", &since);
    // Work that the first controller had no time for is done now.
    assert_eq!(crate::fleet::object_writes(&asked), [""; 0]);
    assert_eq!(asked.dry_runs().to_string(), "");
    for kind in ["configmaps", "services", "releases"] {
        let lists = asked.filter(|event| {
            let object = event.object_ref.as_ref();
            let of_kind =
                object.is_some_and(|object| object.resource == kind && object.namespace.is_empty());
            event.verb == "list" && of_kind
        });
        // Each watch starts with its own list: one of user requests, one of drift.
        let wanted = if kind == "releases" { 1..=3 } else { 1..=2 };
        assert!(wanted.contains(&lists.0.len()), "{kind}: {asked}");
    }
    let namespaces = asked.filter(|event| {
        let object = event.object_ref.as_ref();
        event.verb == "get" && object.is_some_and(|object| object.resource == "namespaces")
    });
    // Namespaces of the releases, of their records, and of the cluster id.
    assert!(namespaces.0.len() <= 3, "{namespaces}");
    // The remaining work per release, and the cost of one reconcile.
    assert!(asked.0.len() <= 2 * RELEASES + 24, "{asked}");

    // A lost object is detected, and only that one is written.
    let (running, since) = runs_as(&mut fleet, "many-drift-loop");
    fleet.until("all releases", |_| {
        (synced(&running, "many-again") == RELEASES).then_some(())
    });
    fleet.kubectl(&["delete", "configmap", "web-3", "-n", "many-again"]);
    fleet.run(&["sync", "many-again/web-3"]).ended_with(0);
    fleet.until("the correction", |fleet| {
        let there = fleet.exists(&["configmap", "web-3", "-n", "many-again"]);
        there.then_some(())
    });
    running.stopped();
    let written = crate::fleet::object_writes(&asked_by("many-drift-loop", &since));
    assert_eq!(written, ["patch configmaps many-again/web-3 201"]);
}
