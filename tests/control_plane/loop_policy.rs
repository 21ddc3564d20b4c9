//! Effects of policies in git besides the content of a release, and of another environment's
//! cluster.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use pleach_testkit::faults::{Fault, FaultProxy, Rule};

use crate::loop_run::fleet;
use crate::samples::{BUNDLE, config_map};
use crate::{kubectl, shared};

#[test]
fn what_depends_on_a_release_whose_drift_is_only_reported_goes_on() {
    let fleet = fleet("loop-adrift", "{interval: 1s, drift: report}");
    fleet.write("manifests/other/bundle.yaml", BUNDLE);
    fleet.write("manifests/other/other.yaml", &config_map("other", "first"));
    let other =
        "releases:\n  - {name: other, bundle: other, namespace: loop-adrift, dependsOn: [web]}\n";
    fleet.edit_environment("releases:\n", other);
    fleet.push("one more");
    let running = fleet.runs();
    let until_other = |value: &str| {
        fleet.until(value, |fleet| {
            let live = fleet.get(&["configmap", "other", "-n", "loop-adrift"])?;
            (live["data"]["k"] == value).then_some(())
        });
    };
    until_other("first");
    fleet.edit_by_hand("ann");
    fleet.until_condition("Drifted", "ChangedByOthers");
    fleet.edit("manifests/other/other.yaml", "k: first", "k: second");
    fleet.push("the other one");
    until_other("second");
    // Later reconciles correct nothing either, and still report the drift.
    fleet.until_reconciled_twice(&running);
    assert_eq!(fleet.value().as_deref(), Some("ann"));
    fleet.until_condition("Drifted", "ChangedByOthers");
    running.stopped();
}

#[test]
fn what_is_in_the_way_of_an_end_is_told() {
    let fleet = fleet("loop-stuck", "{interval: 1s}");
    let file = fleet.environment_file();
    let text = fleet.read(&file);
    let block =
        "blockUninstall: [{forEach: {kind: ConfigMap, name: machine}, message: machines run}]\n";
    fleet.write("manifests/extra/bundle.yaml", &format!("{BUNDLE}{block}"));
    fleet.write("manifests/extra/extra.yaml", &config_map("extra", "here"));
    let release = "releases:\n  - {name: extra, bundle: extra, namespace: loop-stuck}\n";
    fleet.write(&file, &text.replace("releases:\n", release));
    fleet.push("two releases");
    let machine = ["configmap", "machine", "-n", "loop-stuck"];
    fleet.kubectl(&[&["create"], &machine[..]].concat());
    let running = fleet.runs();
    let extra = || fleet.exists(&["configmap", "extra", "-n", "loop-stuck"]);
    fleet.until("extra", |_| extra().then_some(()));
    fleet.until_ready();
    fleet.write(&file, &text);
    fleet.extend_environment("consent: [{action: uninstall, release: extra}]\n");
    fleet.push("one release");
    let stalled = "{.status.conditions[?(@.type==\"Stalled\")].message}";
    fleet.until("the reason", |fleet| {
        let said = fleet.field(&["release.pleach.dev/loop-stuck.extra"], stalled);
        said.contains("machines run").then_some(())
    });
    let events = ["events", "-A", "--field-selector=reason=Refused"];
    fleet.until("the event", |fleet| {
        let said = fleet.field(&events, "{.items[*].message}");
        said.contains("machines run").then_some(())
    });
    assert!(extra());
    fleet.kubectl(&[&["delete"], &machine[..]].concat());
    fleet.until("the end", |_| (!extra()).then_some(()));
    running.stopped();
}

/// Number of environments of another cluster: enough to use all permits.
const OTHERS: usize = 7;

#[test]
fn a_cluster_that_does_not_answer_holds_up_its_own_releases_only() {
    let fleet = fleet("loop-swift", "{interval: 1s}");
    let proxy = FaultProxy::start(shared().kubeconfig()).unwrap();
    let id = fleet.cluster_id();
    let mut grants = String::new();
    let names: Vec<String> = (0..OTHERS)
        .map(|one| format!("loop-silent-{one}"))
        .collect();
    for name in &names {
        kubectl::admin(&["create", "namespace", name]);
        let mut text = format!(
            "apiVersion: pleach.dev/v1alpha1\nkind: Environment\ncluster: {{id: {id}}}\nsync: {{interval: 3s}}\nreleases:\n"
        );
        for release in ["a", "b", "c"] {
            writeln!(
                text,
                "  - {{name: {release}, bundle: {release}, namespace: {name}}}"
            )
            .unwrap();
        }
        fleet.write(&format!("environments/{name}.yaml"), &text);
        writeln!(
            grants,
            "      - name: {name}\n        branch: env/{name}\n        cluster: {{id: {id}, kubeconfigFile: {}}}\n        allow: all",
            proxy.kubeconfig().display()
        )
        .unwrap();
    }
    for release in ["a", "b", "c"] {
        fleet.write(&format!("manifests/{release}/bundle.yaml"), BUNDLE);
        let map = config_map(release, "first");
        fleet.write(&format!("manifests/{release}/map.yaml"), &map);
    }
    fleet.push("many");
    for name in &names {
        fleet.repo.git(&["branch", &format!("env/{name}")]).unwrap();
    }
    let url = fleet.repo.path().display().to_string();
    let file = fleet.configuration(&url, &grants);
    let running = fleet.runs_with(&["--config", &file]);
    fleet.until_value("first");
    for name in &names {
        fleet.until(name, |fleet| {
            let is_there = |one: &str| fleet.exists(&["configmap", one, "-n", name]);
            ["a", "b", "c"].into_iter().all(is_there).then_some(())
        });
    }

    // From now on, it accepts requests and does not answer.
    proxy.add(Rule::on(|_| true, Fault::Delay(Duration::from_secs(90))));
    std::thread::sleep(Duration::from_secs(5));
    let since = Instant::now();
    fleet.push_value("first", "second");
    fleet.until_value("second");
    let took = since.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    // It is retried, and followed once it answers.
    proxy.reset();
    running.stopped();
}

#[test]
fn a_pattern_does_not_contest_a_named_environment() {
    let fleet = fleet("loop-named", "{interval: 1s}");
    let folder = tempfile::tempdir().unwrap();
    let theirs = folder.path().to_str().unwrap();
    fleet.edit("manifests/web/web.yaml", "k: first", "k: theirs");
    let commit = fleet.commit();
    let git = |args: &[&str]| drop(fleet.repo.git(args).unwrap());
    git(&["clone", "--quiet", "--bare", ".", theirs]);
    git(&["-C", theirs, "branch", "--force", "env/loop-named", &commit]);
    git(&["reset", "--quiet", "--hard", "env/loop-named"]);

    let url = fleet.repo.path().to_str().unwrap();
    let text = fleet.configuration_text(url, "");
    let named = "      - name: loop-named\n        branch: env/loop-named\n";
    let pattern = "      - match: env/*\n";
    let (head, own) = text.split_once("repositories:\n").unwrap();
    let other = own.replace("name: fleet", "name: other");
    let other = other.replace(url, theirs).replace(named, pattern);
    let runs = |own: &str| {
        let text = format!("{head}repositories:\n{other}{own}");
        let config = fleet.file("two.yaml", &text);
        let running = fleet.runs_with(&["--config", &config]);
        fleet.until("all repositories", |_| {
            (running.get("/readyz").0 == 200).then_some(())
        });
        running
    };
    let running = runs(own);
    fleet.until_value("first");
    fleet.push_value("first", "second");
    fleet.until_value("second");
    running.stopped();

    // With equal patterns, the environment stays with the repository in the record.
    let running = runs(&own.replace(named, pattern));
    fleet.push_value("second", "third");
    fleet.until_value("third");
    fleet.until_not("Stalled");
    let run = running.stopped();
    let warning = "several patterns can match one environment";
    assert!(run.stderr.contains(warning), "{}", run.stderr);
}
