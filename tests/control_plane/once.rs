//! One-time Jobs with the controllers of a real control plane. A Job without pods is complete at
//! once; one with pods never completes without nodes.

use pleach_testkit::faults::{Kind, Moment, Seen};
use serde_json::Value;

use crate::fleet::{Fleet, PLANTED};
use crate::kill;
use crate::samples::{BUNDLE, config_map};

fn fleet(environment: &'static str, timeout: &str) -> Fleet {
    let release =
        format!("  - {{name: web, bundle: web, namespace: {environment}, timeout: {timeout}}}\n");
    let fleet = Fleet::new(
        environment,
        &release,
        &[("manifests/web/bundle.yaml", BUNDLE)],
    );
    fleet.create_namespace(environment);
    fleet
}

/// Returns a one-time Job that reads the ConfigMap `settings`.
fn job(spec: &str) -> String {
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: migrate, annotations: {{pleach.dev/run: once}}}}\nspec:\n  {spec}\n  template:\n    spec:\n      restartPolicy: Never\n      containers: [{{name: c, image: none, envFrom: [{{configMapRef: {{name: settings}}}}]}}]\n"
    )
}

const AT_ONCE: &str = "completions: 0";

/// Spec of a Job that runs until [`goes_on`] ends it.
const LASTS: &str = "completionMode: Indexed\n  completions: 1\n  parallelism: 1";

fn deploy(fleet: &Fleet, value: &str, spec: &str) {
    let later = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: later}\nspec: {defaultBackend: {service: {name: a, port: {number: 80}}}}\n";
    let files = [config_map("settings", value), job(spec), later.to_owned()];
    fleet.write("manifests/web/web.yaml", &files.join("---\n"));
    fleet.commit();
}

fn uid(fleet: &Fleet) -> Option<String> {
    let job = fleet.get(&["job", "migrate", "-n", fleet.environment])?;
    Some(job["metadata"]["uid"].as_str().unwrap().to_owned())
}

fn outcome(fleet: &Fleet) -> Value {
    let name = format!("{}.web.journal", fleet.environment);
    let object = fleet
        .get(&["configmap", &name, "-n", "pleach-system"])
        .unwrap();
    let journal: Value = serde_json::from_str(object["data"]["journal"].as_str().unwrap()).unwrap();
    let runs = journal["runs"].as_object().unwrap();
    assert_eq!(runs.len(), 1);
    runs.values().next().unwrap()["outcome"].clone()
}

/// Ends the started Job between two runs. The next run detects it.
fn goes_on(fleet: &Fleet, running: &str) {
    let end = r#"{"spec": {"completions": 0, "parallelism": 0}}"#;
    let job = ["patch", "job", "migrate", "-n", fleet.environment];
    fleet.kubectl(&[&job[..], &["-p", end]].concat());
    fleet.applied();
    assert_eq!(uid(fleet).unwrap(), running);
    assert_eq!(outcome(fleet), "succeeded");
    assert!(fleet.exists(&["ingress", "later", "-n", fleet.environment]));
    fleet.writes_nothing(Fleet::applied);
}

#[test]
fn a_job_runs_once_for_its_content_and_what_it_reads() {
    let fleet = fleet("once-runs", "1m");
    deploy(&fleet, "a", AT_ONCE);
    fleet.applied();
    let first = uid(&fleet).unwrap();
    assert_eq!(outcome(&fleet), "succeeded");
    fleet.writes_nothing(Fleet::applied);
    // A Job removed by its TTL is done: no drift and no second run.
    fleet.kubectl(&["delete", "job", "migrate", "-n", fleet.environment]);
    fleet.diff().ended_with(0);
    fleet.applied();
    assert_eq!(uid(&fleet), None);
    fleet.writes_nothing(Fleet::applied);
    // Changed input or content makes the Job run again.
    deploy(&fleet, "b", AT_ONCE);
    fleet.applied();
    let second = uid(&fleet).unwrap();
    assert_ne!(second, first);
    deploy(&fleet, "b", "completions: 0\n  backoffLimit: 1");
    fleet.applied().says("recreated");
    assert_ne!(uid(&fleet).unwrap(), second);
    fleet.writes_nothing(Fleet::applied);
    // Removing the Job removes its history.
    fleet.write("manifests/web/web.yaml", &config_map("settings", "b"));
    fleet.commit();
    fleet.applied();
    assert_eq!(uid(&fleet), None);
    let name = format!("{}.web.journal", fleet.environment);
    assert!(!fleet.exists(&["configmap", &name, "-n", "pleach-system"]));
}

#[test]
fn a_job_that_does_not_end_holds_what_comes_after_and_goes_with_its_release_only() {
    let fleet = fleet("once-waits", "2s");
    deploy(&fleet, "a", "completions: 1");
    fleet.apply().ended_with(6);
    let running = uid(&fleet).unwrap();
    assert!(!fleet.exists(&["ingress", "later", "-n", fleet.environment]));
    assert_eq!(outcome(&fleet), "begun");
    // The next run waits for the same Job.
    fleet.apply().ended_with(6);
    assert_eq!(uid(&fleet).unwrap(), running);
    // A changed Job waits for the end of the running one, and removal from git does not end it.
    deploy(&fleet, "b", "completions: 1");
    fleet
        .apply()
        .ended_with(6)
        .says("a Job is never deleted while it runs");
    assert_eq!(uid(&fleet).unwrap(), running);
    fleet.write("manifests/web/web.yaml", &config_map("settings", "b"));
    fleet.commit();
    fleet.applied().says("it is still running");
    assert_eq!(uid(&fleet).unwrap(), running);
    // An uninstall ends it and reports this.
    fleet
        .run(&["uninstall", "once-waits/web", "--yes", "--timeout", "30s"])
        .ended_with(0)
        .says("still runs and is stopped");
    assert_eq!(uid(&fleet), None);
}

#[test]
fn a_job_that_runs_when_the_program_is_killed_is_not_run_again() {
    let mut fleet = fleet("once-killed", "30s");
    deploy(&fleet, "a", LASTS);
    let args = ["apply", "once-killed", "--yes"];
    // The Job was created. The run is killed after that answer.
    let is_job = |seen: &Seen| seen.kind == Kind::Write && seen.path.ends_with("/jobs/migrate");
    assert!(kill::at(&mut fleet, &args, Moment::AfterAnswer, is_job));
    fleet.forget_killed_runs();
    let running = uid(&fleet).unwrap();
    assert_eq!(outcome(&fleet), "begun");
    goes_on(&fleet, &running);
}

#[test]
fn a_job_that_runs_when_the_program_is_interrupted_is_waited_for_by_the_next() {
    let fleet = fleet("once-stopped", "30s");
    deploy(&fleet, "a", LASTS);
    let run = fleet.start(&["apply", "once-stopped", "--yes"]);
    let running = fleet.until("the Job", uid);
    fleet.until("the record of it", |fleet| {
        fleet
            .exists(&["configmap", "once-stopped.web.journal", "-n=pleach-system"])
            .then_some(())
    });
    run.signal("INT");
    run.ended()
        .ended_with(130)
        .says("not waited for: Job.batch/once-stopped/migrate\n")
        .says("remaining: create Ingress.networking.k8s.io/once-stopped/later\n");
    assert_eq!(uid(&fleet).unwrap(), running);
    assert_eq!(outcome(&fleet), "begun");
    goes_on(&fleet, &running);
}

#[test]
fn a_job_that_fails_says_so_and_runs_again() {
    let fleet = fleet("once-fails", "30s");
    deploy(&fleet, "a", "completions: 1\n  activeDeadlineSeconds: 1");
    let failed = fleet.apply().ended_with(6);
    assert!(!failed.stderr.contains(PLANTED));
    failed
        .says("DeadlineExceeded")
        .says("kubectl -n once-fails logs job/migrate");
    let first = uid(&fleet).unwrap();
    assert_eq!(outcome(&fleet), "failed");
    fleet.apply().ended_with(6);
    assert_ne!(uid(&fleet).unwrap(), first);
}

#[test]
fn a_job_that_is_named_by_its_content_makes_way_for_its_successor() {
    let fleet = fleet("once-named", "1m");
    let named = |limit: u32| {
        let spec = format!("{AT_ONCE}\n  backoffLimit: {limit}");
        let job = job(&spec).replace("name: migrate", "generateName: migrate-");
        fleet.write("manifests/web/web.yaml", &job);
        fleet.commit();
        fleet.applied();
        let list = fleet.get(&["jobs", "-n", fleet.environment]).unwrap();
        let mut names = list["items"].as_array().unwrap().iter();
        let name = names.next().unwrap()["metadata"]["name"].clone();
        assert!(names.next().is_none());
        name.as_str().unwrap().to_owned()
    };
    let first = named(1);
    assert!(first.starts_with("migrate-"));
    fleet.writes_nothing(Fleet::applied);
    assert_ne!(named(2), first);
    fleet.writes_nothing(Fleet::applied);
}
