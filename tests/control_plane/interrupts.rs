//! Runs stopped by a signal: the report matches the cluster, and the next run finishes.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use http::{Method, StatusCode};
use pleach_testkit::faults::{Answer, Fault, FaultProxy, Kind, Rule, Seen};
use rstest::rstest;
use serde_json::Value;

use crate::fleet::{Fleet, Run};
use crate::samples::{BUNDLE, config_map, deployment, gear, gears};
use crate::shared;

/// Versions of [`fleet`].
const FIRST: &str = "v1.0.0";
const SECOND: &str = "v1.1.0";

/// Returns a version. Those with even numbers have one more object.
fn version(number: usize) -> String {
    format!("v1.{number}.0")
}

/// Returns whether a version has the object that not every version has.
fn has_old(version: &str) -> bool {
    let minor = version.split('.').nth(1).unwrap();
    minor.parse::<usize>().unwrap().is_multiple_of(2)
}

/// Returns the version of an object once a version of the bundle is applied. Empty if it is deleted.
fn wanted<'v>(id: &str, version: &'v str) -> &'v str {
    if id.ends_with("/old") && !has_old(version) {
        ""
    } else {
        version
    }
}

/// Returns an object for every standard stage with steps, labeled with the version of the bundle.
/// One exists only in some versions.
fn manifests(environment: &str, version: &str) -> String {
    let group = format!("{environment}.example.org");
    let label = |text: String| {
        let labels = format!("metadata: {{labels: {{of: {version}}}, name: ");
        text.replacen("metadata: {name: ", &labels, 1)
    };
    let mut all = vec![
        label(gears(&group)),
        label("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: app}\n".to_owned()),
        label(config_map("settings", "v")),
        label(
            "apiVersion: v1\nkind: Service\nmetadata: {name: app}\n\
             spec: {selector: {app: app}, ports: [{port: 80}]}\n"
                .to_owned(),
        ),
        label(deployment("app")),
        label(format!(
            "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\n\
             metadata: {{name: {environment}}}\nwebhooks: []\n"
        )),
        label(gear(&group)),
    ];
    if has_old(version) {
        all.push(label(config_map("old", "v")));
    }
    all.join("---\n")
}

/// Returns a fleet with the first version installed and the second one in git.
fn fleet(environment: &'static str) -> Fleet {
    let release =
        format!("  - {{name: web, bundle: web, version: v1.0.0, namespace: {environment}}}\n");
    let first = manifests(environment, FIRST);
    let second = manifests(environment, SECOND);
    let fleet = Fleet::new(
        environment,
        &release,
        &[
            ("manifests/web/bundle.yaml", BUNDLE),
            ("manifests/web/v1.0.0/all.yaml", first.as_str()),
            ("manifests/web/v1.1.0/all.yaml", second.as_str()),
        ],
    );
    fleet.create_namespace(environment);
    fleet.applied();
    fleet.edit_environment(FIRST, SECOND);
    fleet.commit();
    fleet
}

/// Returns the version of each object. Empty for a deleted object.
fn versions(fleet: &Fleet) -> BTreeMap<String, String> {
    let environment = fleet.environment;
    let objects = [
        (
            "CustomResourceDefinition.apiextensions.k8s.io/gears.",
            "crd",
        ),
        ("ServiceAccount/", "serviceaccount/app"),
        ("ConfigMap/", "configmap/settings"),
        ("Service/", "service/app"),
        ("Deployment.apps/", "deployment/app"),
        (
            "ValidatingWebhookConfiguration.admissionregistration.k8s.io/",
            "validatingwebhookconfiguration",
        ),
        ("Gear.", "gear"),
        ("ConfigMap/", "configmap/old"),
    ];
    objects
        .into_iter()
        .map(|(kind, address)| {
            let (id, address) = match address {
                "crd" => (
                    format!("{kind}{environment}.example.org"),
                    format!("crd/gears.{environment}.example.org"),
                ),
                "validatingwebhookconfiguration" => (
                    format!("{kind}{environment}"),
                    format!("{address}/{environment}"),
                ),
                "gear" => (
                    format!("{kind}{environment}.example.org/{environment}/first"),
                    format!("gears.{environment}.example.org/first"),
                ),
                address => {
                    let name = address.split_once('/').unwrap().1;
                    (format!("{kind}{environment}/{name}"), address.to_owned())
                }
            };
            let live = fleet.get(&[&address, "-n", environment]);
            let version = live.map_or_else(String::new, |live| {
                live["metadata"]["labels"]["of"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            });
            (id, version)
        })
        .collect()
}

/// Returns the names in a list of the report.
fn names(list: &Value) -> Vec<String> {
    let list = list.as_array().unwrap();
    list.iter()
        .map(|one| {
            let id = if one["object"].is_null() {
                one
            } else {
                &one["object"]
            };
            id.as_str().unwrap().to_owned()
        })
        .collect()
}

/// Delays a request, sends a signal meanwhile, and waits for the exit.
fn stopped_at(
    fleet: &mut Fleet,
    signal: &str,
    args: &[&str],
    is_held: impl Fn(&Seen) -> bool + Send + Sync + 'static,
) -> Run {
    let is_held = move |seen: &Seen| seen.kind == Kind::Write && is_held(seen);
    stopped_by(fleet, signal, args, |held| Rule::on(is_held, held).nth(1))
}

/// Stops the program at the request that a rule selects.
pub(crate) fn stopped_by(
    fleet: &mut Fleet,
    signal: &str,
    args: &[&str],
    rule: impl FnOnce(Fault) -> Rule,
) -> Run {
    let server = fleet.server();
    let proxy = FaultProxy::start(&server).unwrap();
    proxy.add(rule(Fault::Delay(Duration::from_millis(1500))));
    fleet.through(proxy.kubeconfig());
    let run = fleet.start(args);
    fleet.until("the request", |_| {
        let log = proxy.log();
        log.requests
            .iter()
            .any(|seen| seen.fault.is_some())
            .then_some(())
    });
    run.signal(signal);
    let run = run.ended();
    fleet.through(server);
    run
}

/// Verifies that the report of a stopped run matches the cluster and the record, and that the next
/// run finishes.
fn check(fleet: &Fleet, run: Run, from: &str, to: &str) -> Value {
    let run = run.ended_with(130);
    let report = run.json()["releases"][0].clone();
    assert_eq!(report["result"], "interrupted", "{report}");
    let stopped = &report["stopped"];
    assert_eq!(stopped["cause"], "interrupted");
    let release = format!("{}/web", fleet.environment);
    assert_eq!(stopped["goOn"], format!("pleach apply {release}"));
    let changed = [names(&stopped["made"]), names(&stopped["unsettled"])].concat();
    let left = names(&stopped["left"]);
    let live = versions(fleet);
    for (id, version) in &live {
        let (expected, list) = if version == wanted(id, to) {
            ("changed", &changed)
        } else {
            ("left", &left)
        };
        assert!(list.contains(id), "{id} is {expected}: {stopped}");
    }
    assert_eq!(changed.len() + left.len(), live.len(), "{stopped}");

    let name = format!("{}.web", fleet.environment);
    let record = fleet.get(&["release", &name]).unwrap();
    let condition = &record["status"]["conditions"][0];
    assert_eq!(condition["status"], "False");
    assert_eq!(condition["reason"], "Interrupted");
    let said = condition["message"].as_str().unwrap();
    let count = format!("{} of {} changes", changed.len(), live.len());
    assert!(said.starts_with(&count), "{said}: {stopped}");
    let record = &record["status"]["record"];
    assert_eq!(record["history"][0]["result"], "interrupted");
    // The installed version is the last verified one.
    assert_eq!(record["installed"]["version"], from);
    assert_eq!(record["applying"]["version"], to);
    assert!(!fleet.exists(&["lease", "-n", "pleach-system", &name]));
    fleet
        .run(&["status", fleet.environment])
        .ended_with(0)
        .says(&format!("{from} -> {to}"))
        .says("Interrupted: ");
    stopped.clone()
}

fn finishes(fleet: &Fleet, to: &str) {
    fleet.applied();
    for (id, version) in versions(fleet) {
        assert_eq!(version, wanted(&id, to), "{id}");
    }
    fleet.diff().ended_with(0);
    let name = format!("{}.web", fleet.environment);
    let record = fleet.get(&["release", &name]).unwrap();
    let record = &record["status"]["record"];
    assert_eq!(record["installed"]["version"], to);
    assert_eq!(record["applying"], Value::Null);
}

/// Requests of an upgrade in every stage, with the signal. An upgrade from a version with an even
/// number prunes.
const STAGES: [(&str, Method, &str); 8] = [
    (
        "INT",
        Method::PATCH,
        "/customresourcedefinitions/gears.stop-stages.example.org",
    ),
    ("TERM", Method::PATCH, "/serviceaccounts/app"),
    ("INT", Method::PATCH, "/configmaps/settings"),
    ("TERM", Method::PATCH, "/services/app"),
    ("TERM", Method::DELETE, "/configmaps/old"),
    ("INT", Method::PATCH, "/deployments/app"),
    (
        "TERM",
        Method::PATCH,
        "/validatingwebhookconfigurations/stop-stages",
    ),
    ("INT", Method::PATCH, "/gears/first"),
];

#[test]
fn a_signal_in_any_stage_leaves_what_the_report_says() {
    let environment = "stop-stages";
    let mut fleet = fleet(environment);
    let args = ["apply", environment, "--yes", "-o", "json"];
    for (number, (signal, method, path)) in STAGES.into_iter().enumerate() {
        let (from, to) = (version(number), version(number + 1));
        if number > 0 {
            let file = format!("manifests/web/{to}/all.yaml");
            fleet.write(&file, &manifests(environment, &to));
            fleet.edit_environment(&from, &to);
            fleet.commit();
        }
        let run = stopped_at(&mut fleet, signal, &args, move |seen| {
            seen.method == method && seen.path.ends_with(path)
        });
        let run = run.says("stopping at the next safe point; interrupt again to stop immediately");
        let stopped = check(&fleet, run, &from, &to);
        // The running request completed. Only steps that had not started remain.
        let (kind, name) = path[1..].split_once("s/").unwrap();
        let left = names(&stopped["left"]);
        let is_held = |id: &String| id.to_lowercase().starts_with(kind) && id.ends_with(name);
        assert!(!left.iter().any(is_held), "{path}: {stopped}");
        finishes(&fleet, &to);
    }
}

#[rstest]
#[case::resources("gone-resources", "INT", "/gears/first")]
#[case::registrations(
    "gone-registrations",
    "TERM",
    "/validatingwebhookconfigurations/gone-registrations"
)]
#[case::workloads("gone-workloads", "INT", "/deployments/app")]
#[case::services("gone-services", "TERM", "/services/app")]
#[case::config("gone-config", "INT", "/configmaps/settings")]
#[case::access("gone-access", "TERM", "/serviceaccounts/app")]
fn a_signal_while_everything_goes_leaves_what_the_report_says(
    #[case] environment: &'static str,
    #[case] signal: &str,
    #[case] path: &'static str,
) {
    let mut fleet = fleet(environment);
    let release = format!("{environment}/web");
    let uninstall = ["uninstall", release.as_str(), "--yes", "-o", "json"];
    let run = stopped_at(&mut fleet, signal, &uninstall, move |seen| {
        seen.method == Method::DELETE && seen.path.ends_with(path)
    });
    let run = run
        .ended_with(130)
        .says("stopping at the next safe point; interrupt again to stop immediately");
    let report = run.json();
    let report = report["releases"].as_array().unwrap().last().unwrap();
    assert_eq!(report["result"], "interrupted", "{report}");
    let stopped = &report["stopped"];
    assert_eq!(stopped["goOn"], format!("pleach uninstall {release}"));
    let unsettled = names(&stopped["unsettled"]);
    let went = [names(&stopped["made"]), unsettled.clone()].concat();
    let left = names(&stopped["left"]);
    for (id, version) in versions(&fleet) {
        // The deletion of the CRD has no consent.
        if id.starts_with("CustomResourceDefinition.") {
            assert!(!version.is_empty(), "{stopped}");
            assert!(!went.contains(&id), "{id}: {stopped}");
        } else if version.is_empty() {
            assert!(went.contains(&id), "{id} is gone: {stopped}");
        } else {
            // The run possibly did not wait for the deletion.
            let is_told = left.contains(&id) || unsettled.contains(&id);
            assert!(is_told, "{id} is there: {stopped}");
        }
    }
    fleet.run(&["status", environment]).says("Interrupted: ");
    fleet.run(&uninstall[..3]).says("uninstalled");
    let left = versions(&fleet).into_iter();
    let left: Vec<String> = left
        .filter(|(_, version)| !version.is_empty())
        .map(|(id, _)| id)
        .collect();
    let kept =
        format!("CustomResourceDefinition.apiextensions.k8s.io/gears.{environment}.example.org");
    assert_eq!(left, [kept]);
}

#[test]
fn a_signal_before_anything_is_begun_changes_nothing() {
    let mut fleet = fleet("stop-look");
    let before = (versions(&fleet), fleet.get(&["release", "stop-look.web"]));
    let args = ["apply", "stop-look", "--yes"];
    let is_list = |seen: &Seen| seen.kind == Kind::Read && seen.path.ends_with("/configmaps");
    let run = stopped_by(&mut fleet, "INT", &args, |held| Rule::on(is_list, held));
    run.ended_with(130).says("interrupted");
    let after = (versions(&fleet), fleet.get(&["release", "stop-look.web"]));
    assert_eq!(before, after);
    finishes(&fleet, SECOND);
}

#[test]
fn a_signal_while_readiness_is_waited_for_leaves_everything_but_the_prune() {
    let environment = "stop-verify";
    let fleet = fleet(environment);
    // Pods that are never scheduled.
    fleet.edit(
        "manifests/web/v1.1.0/all.yaml",
        "replicas: 0",
        "replicas: 1",
    );
    fleet.commit();
    let run = fleet.start(&["apply", environment, "--yes", "-o", "json"]);
    fleet.until("the last object", |fleet| {
        let versions = versions(fleet);
        let done = versions.values().filter(|version| *version == "v1.1.0");
        (done.count() == 7).then_some(())
    });
    run.signal("INT");
    let stopped = check(&fleet, run.ended(), FIRST, SECOND);
    assert!(
        names(&stopped["unsettled"]).contains(&format!("Deployment.apps/{environment}/app")),
        "{stopped}"
    );
    assert_eq!(
        names(&stopped["left"]),
        [format!("ConfigMap/{environment}/old")]
    );
    fleet.edit(
        "manifests/web/v1.1.0/all.yaml",
        "replicas: 1",
        "replicas: 0",
    );
    fleet.commit();
    finishes(&fleet, SECOND);
}

#[test]
fn people_are_told_what_is_left_and_how_to_go_on() {
    let mut fleet = fleet("stop-words");
    let args = ["apply", "stop-words/web", "--yes"];
    stopped_at(&mut fleet, "INT", &args, |seen| {
        seen.method == Method::DELETE && seen.path.ends_with("/configmaps/old")
    })
    .ended_with(130)
    .says("interrupted: 8 of 8 changes applied, the wait for 1 of them did not finish\n")
    .says("not waited for: ConfigMap/stop-words/old\n")
    .says("`pleach apply stop-words/web` continues from there");
    finishes(&fleet, SECOND);

    // An uninstall names its own command.
    let args = ["uninstall", "stop-words/web", "--yes"];
    let run = stopped_at(&mut fleet, "INT", &args, |seen| {
        seen.method == Method::DELETE && seen.path.ends_with("/deployments/app")
    });
    run.ended_with(130)
        .says("remaining: delete ConfigMap/stop-words/settings")
        .says("`pleach uninstall stop-words/web` continues from there");
    assert!(fleet.exists(&["configmap/settings", "-n", "stop-words"]));
    assert!(!fleet.exists(&["deployment/app", "-n", "stop-words"]));
    fleet.run(&args).says("uninstalled");
    assert!(!fleet.exists(&["configmap/settings", "-n", "stop-words"]));
}

#[test]
fn what_fails_again_and_again_is_not_tried_again_after_a_signal() {
    let mut fleet = fleet("stop-retry");
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    let busy = Answer::plain(StatusCode::SERVICE_UNAVAILABLE, "busy").retry_after(60);
    let is_change = |seen: &Seen| seen.kind == Kind::Write && seen.path.ends_with("/settings");
    proxy.add(Rule::on(is_change, Fault::Answer(busy)));
    fleet.through(proxy.kubeconfig());
    let mut run = fleet.start(&["apply", "stop-retry", "--yes"]);
    run.until_says("retrying ConfigMap/stop-retry/settings: busy");
    run.signal("INT");
    let run = run.ended().ended_with(130);
    assert!(run.took < Duration::from_secs(20), "{:?}", run.took);
    run.says("failed ConfigMap/stop-retry/settings: busy")
        .says("remaining: update ConfigMap/stop-retry/settings");
    fleet.through(shared().kubeconfig().to_owned());
    finishes(&fleet, SECOND);
}

#[test]
fn the_second_signal_stops_at_once() {
    let mut fleet = fleet("stop-twice");
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    let is_change = |seen: &Seen| seen.kind == Kind::Write && seen.path.ends_with("/settings");
    proxy.add(Rule::on(is_change, Fault::Delay(Duration::from_secs(20))).nth(1));
    fleet.through(proxy.kubeconfig());
    let mut run = fleet.start(&["apply", "stop-twice", "--yes"]);
    fleet.until("the request", |_| {
        let log = proxy.log();
        log.requests
            .iter()
            .any(|seen| seen.fault.is_some())
            .then_some(())
    });
    run.signal("INT");
    run.until_says("stopping at the next safe point");
    run.signal("INT");
    let run = run.ended().ended_with(130);
    assert!(run.took < Duration::from_secs(15), "{:?}", run.took);
    run.says("interrupted without waiting for requests in flight")
        .says("the next run checks the cluster");
    // Its Lease expires, and the next run waits for that.
    drop(proxy);
    fleet.through(shared().kubeconfig().to_owned());
    fleet.forget_killed_runs();
    finishes(&fleet, SECOND);
}

#[test]
fn a_reader_that_goes_away_is_no_reason_to_stop() {
    let fleet = fleet("stop-pipe");
    let mut command = fleet.command(&["apply", "stop-pipe", "--yes"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    drop(child.stderr.take());
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(0));
    finishes(&fleet, SECOND);
}

#[test]
fn another_revision_takes_over_from_what_is_live() {
    let mut fleet = fleet("stop-newer");
    let args = ["apply", "stop-newer", "--yes", "-o", "json"];
    let run = stopped_at(&mut fleet, "INT", &args, |seen| {
        seen.method == Method::PATCH && seen.path.ends_with("/configmaps/settings")
    });
    check(&fleet, run, FIRST, SECOND);
    fleet.write(
        "manifests/web/v1.1.1/all.yaml",
        &manifests("stop-newer", "v1.1.1"),
    );
    fleet.edit_environment("v1.1.0", "v1.1.1");
    fleet.commit();
    let record = || {
        let record = fleet.get(&["release", "stop-newer.web"]).unwrap();
        record["status"]["record"].clone()
    };
    // The newer version is being applied. The installed version is the verified one, and not the
    // one started in between.
    fleet
        .run(&["apply", "stop-newer", "--yes", "--wait=none"])
        .ended_with(0);
    assert_eq!(record()["installed"]["version"], "v1.0.0");
    assert_eq!(record()["applying"]["version"], "v1.1.1");
    fleet
        .run(&["status", "stop-newer"])
        .says("v1.0.0 -> v1.1.1");
    fleet.applied();
    assert_eq!(record()["installed"]["version"], "v1.1.1");
    assert_eq!(record()["applying"], Value::Null);
    let results: Vec<String> = record()["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| format!("{} {}", text(&one["version"]), text(&one["result"])))
        .collect();
    assert_eq!(
        results,
        [
            "v1.1.1 deployed",
            "v1.1.1 unverified",
            "v1.1.0 interrupted",
            "v1.0.0 deployed"
        ]
    );
    for (id, version) in versions(&fleet) {
        let expected = if id.ends_with("/old") { "" } else { "v1.1.1" };
        assert_eq!(version, expected, "{id}");
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
