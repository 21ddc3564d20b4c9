//! Runs stopped by a signal during temporary changes: the report lists exactly the remaining
//! changes, and the next run reverts all of them.

use std::collections::BTreeSet;

use http::Method;
use pleach_testkit::faults::{Kind, Rule, Seen};
use rstest::rstest;
use serde_json::Value;

use crate::fleet::{Fleet, Run};
use crate::gates::{define_gears, is_closed, journal};
use crate::interrupts::stopped_by;
use crate::samples::{BUNDLE, config_map, deployment};
use crate::stages::nodes;
use crate::succession;

/// Temporary changes of every kind.
const TEMPORARY: &str = "\
overlays:
  - {name: slow, target: {kind: ConfigMap, name: theirs}, patch: {data: {mode: slow}}, from: preflight, until: verify}
gates:
  - {name: hold, groups: [GROUP], maxDuration: 30m}
stages:
  - {name: stop, scale: [{kind: Deployment, name: app, replicas: 0}], before: [config]}
  - {name: again, restart: [{kind: Deployment, name: app}], after: [workloads]}
";

/// Returns a fleet with the first version running.
fn fleet(environment: &'static str) -> Fleet {
    let release =
        format!("  - {{name: web, bundle: web, namespace: {environment}, timeout: 40s}}\n");
    let temporary = TEMPORARY.replace("GROUP", &format!("{environment}.example.org"));
    let bundle = format!("{BUNDLE}{temporary}");
    let files = [("manifests/web/bundle.yaml", bundle.as_str())];
    let fleet = Fleet::on(nodes(), environment, &release, &files);
    fleet.create_namespace(environment);
    let theirs = ["create", "configmap", "theirs", "-n", environment];
    fleet.kubectl(&[&theirs[..], &["--from-literal=mode=fast"]].concat());
    define_gears(&fleet);
    deploy(&fleet, "first");
    fleet.applied();
    fleet
}

fn deploy(fleet: &Fleet, version: &str) {
    let app = deployment("app")
        .replace("replicas: 0", "replicas: 1")
        .replace("app:1", &format!("app:{version}"));
    let files = [config_map("settings", version), app];
    fleet.write("manifests/web/web.yaml", &files.join("---\n"));
    fleet.commit();
}

/// Returns the current temporary changes.
fn different(fleet: &Fleet) -> BTreeSet<String> {
    let environment = fleet.environment;
    let theirs = ["configmap", "theirs", "-n", environment];
    let mut all = BTreeSet::new();
    if fleet.field(&theirs, "{.data.mode}") == "slow" {
        all.insert(format!("ConfigMap/{environment}/theirs"));
    }
    if is_closed(fleet, "hold") {
        all.insert(format!(
            "ValidatingAdmissionPolicy.admissionregistration.k8s.io/{environment}.web.hold"
        ));
    }
    all
}

/// Returns the image of the application, and the mark of its last restart.
fn app(fleet: &Fleet) -> (String, Value) {
    let app = fleet
        .get(&["deployment", "app", "-n", fleet.environment])
        .unwrap();
    assert_eq!(app["spec"]["replicas"], 1, "it was stopped, and runs again");
    let template = &app["spec"]["template"];
    let image = template["spec"]["containers"][0]["image"].as_str().unwrap();
    let mark = &template["metadata"]["annotations"]["restarted.pleach.dev/again"];
    (image.to_owned(), mark.clone())
}

/// Returns the remaining work for an object in the report: none, some or all.
fn said_of(stopped: &Value, id: &str) -> &'static str {
    let has = |list: &str| {
        let mut items = stopped[list].as_array().unwrap().iter();
        items.any(|one| *one == id)
    };
    let mut left = stopped["left"].as_array().unwrap().iter();
    match left.find(|one| one["object"] == id) {
        Some(one) if one["begun"] == true => "begun",
        Some(_) => "left",
        None if has("made") || has("unsettled") => "changed",
        None => "nothing",
    }
}

/// Request of the next version that is delayed for the signal.
#[derive(Debug, Clone, Copy)]
enum Held {
    Overlay,
    Gate,
    Scale,
    Config,
    Apply,
    Restart,
    Lift,
    Ungate,
}

impl Held {
    fn matches(self, seen: &Seen) -> bool {
        let ends = |end: &str| seen.path.ends_with(end);
        let by = |manager: &str| {
            seen.query
                .contains(&format!("fieldManager=pleach{manager}"))
        };
        seen.kind == Kind::Write
            && match self {
                Self::Overlay | Self::Lift => ends("/configmaps/theirs"),
                Self::Gate => seen.path.contains("/validatingadmissionpolicies"),
                Self::Scale => ends("/deployments/app") && by("-overlay"),
                Self::Config => ends("/configmaps/settings"),
                Self::Apply => ends("/deployments/app") && !by("-"),
                Self::Restart => ends("/deployments/app") && by("-restart"),
                Self::Ungate => {
                    seen.method == Method::DELETE && seen.path.contains("/validatingadmission")
                }
            }
    }

    /// Returns the index of the request. A revert follows the change.
    fn nth(self) -> usize {
        if matches!(self, Self::Lift) { 2 } else { 1 }
    }
}

#[rstest]
#[case::at_first("halt-first", [
    ("overlay", "INT", Held::Overlay),
    ("gate", "TERM", Held::Gate),
    ("scale", "INT", Held::Scale),
    ("config", "TERM", Held::Config),
])]
#[case::later("halt-later", [
    ("apply", "INT", Held::Apply),
    ("restart", "TERM", Held::Restart),
    ("lift", "INT", Held::Lift),
    ("ungate", "TERM", Held::Ungate),
])]
fn a_signal_while_things_are_different_leaves_what_the_report_says(
    #[case] environment: &'static str,
    #[case] versions: [(&str, &str, Held); 4],
) {
    let mut fleet = fleet(environment);
    assert_eq!(app(&fleet).1, Value::Null, "the first version is new");
    let mut former = "first";
    for (version, signal, held) in versions {
        deploy(&fleet, version);
        is_stopped(&mut fleet, former, version, |fleet, args| {
            stopped_by(fleet, signal, args, |fault| {
                Rule::on(move |seen| held.matches(seen), fault).nth(held.nth())
            })
        });
        former = version;
    }
}

/// Stops the upgrade to a version, compares the report with the cluster, and finishes the upgrade.
fn is_stopped(
    fleet: &mut Fleet,
    former: &str,
    version: &str,
    stop: impl FnOnce(&mut Fleet, &[&str]) -> Run,
) {
    let environment = fleet.environment;
    let images = [former, version].map(|version| format!("app:{version}"));
    let (_, before) = app(fleet);
    let run = stop(fleet, &["apply", environment, "--yes", "-o", "json"]);
    let run = run.ended_with(130);
    let report = run.json()["releases"][0].clone();
    assert_eq!(report["result"], "interrupted", "{version}: {report:#}");

    // The reported remaining changes match the live objects.
    let standing = report["standing"].as_array().unwrap().iter();
    let standing: BTreeSet<String> = standing
        .map(|one| one["object"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(standing, different(fleet), "{version}: {report:#}");
    let status = fleet.run(&["status", environment]);
    assert_eq!(
        status.stdout.matches(" continues, or ").count(),
        standing.len(),
        "{version}: {}",
        status.shown()
    );

    // So does the report about the objects of the release.
    let stopped = &report["stopped"];
    let (image, mark) = app(fleet);
    let expected = match (image == images[0], image == images[1], mark == before) {
        (true, false, true) => "left",
        (false, true, true) => "begun",
        (false, true, false) => "changed",
        other => panic!("{version}: {image} was never wanted: {other:?}"),
    };
    let id = format!("Deployment.apps/{environment}/app");
    assert_eq!(said_of(stopped, &id), expected, "{version}: {report:#}");
    let settings = ["configmap", "settings", "-n", environment];
    let expected = if fleet.field(&settings, "{.data.k}") == former {
        "left"
    } else {
        "changed"
    };
    let id = format!("ConfigMap/{environment}/settings");
    assert_eq!(said_of(stopped, &id), expected, "{version}: {report:#}");

    fleet.applied();
    assert_eq!(different(fleet), BTreeSet::new());
    let (image, mark) = app(fleet);
    assert_eq!(image, images[1]);
    assert!(mark.is_string() && mark != before, "{version}: {mark}");
    assert_eq!(journal(fleet), None);
    fleet.writes_nothing(Fleet::applied);
}

#[test]
fn what_was_emptied_for_its_successor_runs_again_after_a_signal() {
    let environment = "halt-move";
    let mut fleet = succession::fleet(environment);
    let [a, b] = succession::places(environment);
    let new = succession::new(environment, "40s");
    fleet.edit_environment(&succession::old(environment), &new);
    fleet.commit();
    let emptied = format!("/namespaces/{a}/deployments/controller");
    let is_emptied = move |seen: &Seen| seen.kind == Kind::Write && seen.path.ends_with(&emptied);
    let args = ["apply", environment, "--yes", "-o", "json"];
    let run = stopped_by(&mut fleet, "INT", &args, |fault| {
        Rule::on(is_emptied, fault).nth(1)
    });
    let report = run.ended_with(130).json();
    let mut releases = report["releases"].as_array().unwrap().iter();
    let report = releases.find(|one| one["release"] == "halt-move.new");
    let report = report.unwrap();
    assert_eq!(report["standing"], serde_json::json!([]), "{report:#}");
    let stopped = &report["stopped"];
    for place in [&a, &b] {
        let id = format!("Deployment.apps/{place}/controller");
        assert_eq!(said_of(stopped, &id), "left", "{report:#}");
    }
    let old = ["deployment", "controller", "-n", &a];
    assert_eq!(fleet.field(&old, "{.spec.replicas}"), "1");
    assert!(!fleet.exists(&["deployment", "controller", "-n", &b]));
    let journal = ["configmap", "halt-move.new.journal", "-n=pleach-system"];
    assert!(!fleet.exists(&journal));

    fleet.applied();
    assert!(!fleet.exists(&old));
    assert!(fleet.exists(&["deployment", "controller", "-n", &b]));
}
