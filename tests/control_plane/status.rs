//! Status and history of an applied release.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use pleach_testkit::kubectl::Kubectl;
use pleach_testkit::repository::TestRepo;
use serde_json::{Value, json};

use crate::fleet::Fleet;
use crate::samples::{BUNDLE, config_map, deployment};
use crate::waits::never;

fn repository() -> TestRepo {
    let header = "apiVersion: pleach.dev/v1alpha1\nkind:";
    let object = |value: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: web}}\ndata: {{a: {value}}}\n")
    };
    TestRepo::new([
        ("pleach.yaml", format!("{header} Repository\nid: seen\n")),
        (
            "environments/seen.yaml",
            format!("{header} Environment\nreleases: [{{name: web, bundle: web, version: v1.0.0, namespace: seen}}]\n"),
        ),
        ("manifests/web/bundle.yaml", format!("{header} Bundle\n")),
        ("manifests/web/v1.0.0/web.yaml", object("one")),
        ("manifests/web/v2.0.0/web.yaml", object("two")),
    ])
    .unwrap()
}

fn command(repo: &TestRepo, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pleach"));
    command
        .env_clear()
        .env("NO_COLOR", "1")
        .current_dir(repo.path())
        .args(arguments)
        .arg("--kubeconfig")
        .arg(crate::shared().kubeconfig());
    command
}

/// Runs pleach and returns its output.
fn pleach(repo: &TestRepo, arguments: &[&str]) -> String {
    let output = command(repo, arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn an_applied_release_is_shown_and_followed() {
    let control_plane = crate::shared();
    let kubectl = Kubectl::new(control_plane.kubectl(), control_plane.kubeconfig());
    let repo = repository();
    repo.commit("start").unwrap();
    let before = pleach(&repo, &["status", "seen"]);
    assert!(
        before.contains("git: seen/web (v1.0.0) is not installed"),
        "{before}"
    );

    let id = kubectl
        .run(&[
            "get",
            "namespace",
            "kube-system",
            "-o",
            "jsonpath={.metadata.uid}",
        ])
        .unwrap();
    pleach(&repo, &["apply", "seen", "--yes", "--cluster-id", &id]);
    let value: Value =
        serde_json::from_str(&pleach(&repo, &["status", "seen", "-o", "json"])).unwrap();
    let release = &value["releases"][0];
    assert_eq!(release["ready"], true, "{value:#}");
    assert_eq!(release["installed"]["version"], "v1.0.0");
    assert_eq!(release["applying"], Value::Null);
    assert_eq!(release["last"]["result"], "deployed");
    assert_eq!(release["git"]["version"], "v1.0.0");
    assert_eq!(value["notInstalled"], Value::Array(Vec::new()));

    repo.edit(
        "environments/seen.yaml",
        "version: v1.0.0",
        "version: v2.0.0",
    )
    .unwrap();
    let second = repo.commit("upgrade").unwrap();
    let text = pleach(&repo, &["status", "seen"]);
    assert!(
        text.contains("git: seen/web is pinned to v2.0.0, and v1.0.0 is installed"),
        "{text}"
    );

    // Printed repeatedly during the upgrade, until interrupted.
    let mut watching = command(&repo, &["status", "seen/web", "--watch", "-o", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!(next()["releases"][0]["installed"]["version"], "v1.0.0");
    pleach(&repo, &["apply", "seen", "--yes"]);
    loop {
        let seen = next();
        let release = &seen["releases"][0];
        if release["installed"]["version"] == "v2.0.0" && release["ready"] == true {
            break;
        }
    }
    let process = watching.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &process])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(watching.wait().unwrap().code(), Some(130));

    let history = pleach(&repo, &["history", "seen/web"]);
    let rows: Vec<Vec<&str>> = history
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 3, "{history}");
    assert_eq!(
        rows[1][1..4],
        ["v2.0.0", &second[..7], "deployed"],
        "{history}"
    );
    assert_eq!(rows[2][1], "v1.0.0", "{history}");
}

#[test]
fn a_deleted_object_is_not_ready() {
    let manifests = [config_map("web", "one"), deployment("api")].join("---\n");
    let fleet = Fleet::web("live-now", &manifests);
    fleet.applied();
    let (shown, events) = fleet.watched(|fleet| fleet.run(&["status", "live-now"]).ended_with(0));
    shown
        .says("  ✓ 3 objects ready\nREADY (seen ")
        .says("  deployed ");
    assert_eq!(events.writes().to_string(), "");

    // Both are changed outside of pleach, so the record is outdated.
    fleet.kubectl(&["delete", "deployment", "api", "-n", "live-now"]);
    fleet.edit_by_hand("ann");
    let shown = fleet.run(&["status", "live-now"]).ended_with(0);
    let shown = shown.says("  ✓ 1 object ready\nNOT READY, 2 objects drifted (seen ");
    for line in [
        "✗ Deployment.apps/live-now/api  missing",
        "~ ConfigMap/live-now/web        changed by ann ",
        ": .data.k",
    ] {
        assert!(shown.stdout.contains(line), "{}", shown.stdout);
    }
    let value = fleet.run(&["status", "live-now/web", "-o", "json"]).json();
    let release = &value["releases"][0];
    assert_eq!(release["ready"], false, "{release:#}");
    let objects = release["live"]["objects"].as_array().unwrap();
    let of = |id: &str| objects.iter().find(|one| one["object"] == id).unwrap();
    assert_eq!(of("ConfigMap/live-now/web")["drift"]["manager"], "ann");
    assert_eq!(of("Deployment.apps/live-now/api")["message"], "missing");

    let recorded = fleet
        .run(&["status", "live-now", "--recorded"])
        .ended_with(0);
    assert!(recorded.stdout.contains("  True "), "{}", recorded.stdout);
    assert!(!recorded.stdout.contains("missing"), "{}", recorded.stdout);
}

#[test]
fn the_pod_of_an_object_that_is_not_ready_is_named() {
    let fleet = Fleet::new(
        "pod-reasons",
        "  - {name: web, bundle: web, namespace: pod-reasons, timeout: 20s}\n",
        &[
            ("manifests/web/bundle.yaml", BUNDLE.to_owned()),
            ("manifests/web/web.yaml", never("api")),
        ],
    );
    // Without nodes, the test reports the pod status and the event instead of a kubelet.
    let run = std::thread::scope(|scope| {
        let kubelet = scope.spawn(|| {
            let pod = fleet.until("a pod", |fleet| {
                let pods = fleet.get(&["pods", "-n", "pod-reasons", "-l", "app=api"])?;
                pods["items"][0]["metadata"]["uid"].as_str()?;
                Some(pods["items"][0]["metadata"].clone())
            });
            let name = pod["name"].as_str().unwrap();
            let status = json!({"status": {"phase": "Running",
                "conditions": [{"type": "Ready", "status": "False"}],
                "containerStatuses": [{"name": "api", "image": "api:1", "imageID": "", "ready": false,
                    "restartCount": 0, "state": {"running": {}}}]}});
            let status = status.to_string();
            fleet.kubectl(&[
                "patch", "pod", name, "-n", "pod-reasons", "--subresource=status", "--type=merge", "-p", &status,
            ]);
            let event = json!({"apiVersion": "v1", "kind": "Event",
                "metadata": {"name": "unhealthy", "namespace": "pod-reasons"},
                "involvedObject": {"kind": "Pod", "namespace": "pod-reasons", "name": name, "uid": pod["uid"]},
                "type": "Warning", "reason": "Unhealthy", "lastTimestamp": "2026-01-01T00:00:00Z",
                "message": "Readiness probe failed: HTTP probe failed with statuscode: 503"});
            let file = fleet.file("event.json", &event.to_string());
            fleet.kubectl(&["create", "-f", &file]);
            name.to_owned()
        });
        let run = fleet.apply().ended_with(6);
        (run, kubelet.join().unwrap())
    });
    let (run, pod) = run;
    let reason = format!(
        "pod {pod}: container api: not ready: Readiness probe failed: HTTP probe failed with statuscode: 503"
    );
    run.says(&format!("  {reason}\n"));
    let (shown, events) =
        fleet.watched(|fleet| fleet.run(&["status", "pod-reasons"]).ended_with(0));
    shown.says(&format!(
        "✗ Deployment.apps/pod-reasons/api  0 of 1 replicas ready; {reason}\n"
    ));
    assert_eq!(events.writes().to_string(), "");
}
