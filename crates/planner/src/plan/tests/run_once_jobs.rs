//! Run-once Jobs, keyed by their content and the configuration of their pods.

use rstest::rstest;
use serde_json::json;

use super::removal::by_command;
use super::scene::Scene;
use super::{changes, edges, lines};
use crate::plan::{Action, Grant, Op, Plan};
use pleach_model::object::annotations;
use pleach_state::inventory::{Outcome, Run};

const JOB: &str = "Job.batch/web/migrate: {metadata: {annotations: {pleach.dev/run: once}}, spec: {template: {spec: {containers: [{envFrom: [{secretRef: {name: db}}]}]}}}}";
const SECRET: &str = "Secret/web/db: {data: {k: djE=}}";

fn scene() -> Scene {
    Scene::new().git(JOB).git(SECRET)
}

/// Journals an outcome for the present run key.
fn ran(scene: Scene, outcome: Outcome) -> Scene {
    let id = "Job.batch/web/migrate".parse().unwrap();
    let key = scene.run_key("Job.batch/web/migrate");
    scene.cluster(|observed| {
        observed.journal.runs.insert(id, Run { key, outcome });
    })
}

/// Adds the live Job, created for the present key or another one, with this
/// status.
fn there(scene: Scene, is_for_today: bool, status: serde_json::Value) -> Scene {
    let key = scene.run_key("Job.batch/web/migrate").to_string();
    let other = JOB.replace("spec: {template", "spec: {backoffLimit: 3, template");
    let manifests = scene.desired.manifests.clone();
    let mut scene = scene.installed(if is_for_today { JOB } else { &other });
    scene.desired.manifests = manifests;
    scene.with_live("Job.batch/web/migrate", |live| {
        live["status"] = status;
        if is_for_today {
            live["metadata"]["annotations"][annotations::RUN_KEY] = json!(key);
        }
    })
}

fn complete() -> serde_json::Value {
    json!({"startTime": "2026-07-01T10:00:00Z", "conditions": [{"type": "Complete", "status": "True"}]})
}

fn running() -> serde_json::Value {
    json!({"startTime": "2026-07-01T10:00:00Z", "active": 1})
}

fn failed() -> serde_json::Value {
    json!({"startTime": "2026-07-01T10:00:00Z", "conditions": [{"type": "Failed", "status": "True"}]})
}

/// Returns the steps of the Job as lines.
fn of_job(plan: &Plan) -> Vec<String> {
    lines(plan)
        .into_iter()
        .filter(|line| line.contains("migrate"))
        .collect()
}

#[test]
fn a_job_runs_for_its_content_and_before_later_stages() {
    let plan = scene()
        .git("Ingress.networking.k8s.io/web/i: {spec: {a: b}}")
        .plan();
    assert_eq!(
        of_job(&plan),
        ["workloads: create Job.batch/web/migrate until ready"]
    );
    assert!(
        edges(&plan).iter().any(|edge| edge
            .starts_with("Job.batch/web/migrate -> Ingress.networking.k8s.io/web/i: Ready Once")),
        "{:?}",
        edges(&plan)
    );
}

#[test]
fn a_completed_job_does_not_run_again() {
    let plan = ran(scene(), Outcome::Succeeded).plan();
    assert_eq!(of_job(&plan), [""; 0]);
    let over = "unchanged Job.batch/web/migrate: it has run; it runs again when its manifest or an object that its pods read changes";
    assert!(changes(&plan).contains(&over.to_owned()));
    let still = there(ran(scene(), Outcome::Succeeded), true, complete());
    assert_eq!(of_job(&still.plan()), [""; 0]);
}

#[test]
fn a_job_runs_again_if_its_configuration_changes() {
    let before = ran(there(scene(), true, complete()), Outcome::Succeeded);
    let plan = before.git("Secret/web/db: {data: {k: djI=}}").plan();
    assert_eq!(
        of_job(&plan),
        [
            "workloads: delete Job.batch/web/migrate until gone",
            "workloads: create Job.batch/web/migrate until ready"
        ]
    );
    let deletion = plan.steps.iter().find_map(|step| match &step.op {
        Op::Delete(deletion) => Some(deletion),
        _ => None,
    });
    assert_eq!(deletion.unwrap().because(), &Grant::Rerun);
}

#[test]
fn it_is_never_deleted_while_it_runs() {
    let plan = there(scene(), false, running()).plan();
    assert_eq!(
        of_job(&plan),
        [
            "workloads: wait Job.batch/web/migrate until it ended",
            "workloads: delete Job.batch/web/migrate until gone",
            "workloads: create Job.batch/web/migrate until ready"
        ]
    );
}

#[test]
fn a_job_started_by_a_previous_run_is_awaited() {
    for status in [running(), complete()] {
        let plan = ran(there(scene(), true, status), Outcome::Begun).plan();
        assert_eq!(
            of_job(&plan),
            ["workloads: create Job.batch/web/migrate until ready"]
        );
        let change = plan
            .changes
            .iter()
            .find(|one| one.object.kind == "Job")
            .unwrap();
        assert_eq!(change.action, Action::Update);
    }
}

#[test]
fn a_failed_job_runs_again() {
    let plan = ran(there(scene(), true, failed()), Outcome::Failed).plan();
    assert_eq!(
        of_job(&plan),
        [
            "workloads: delete Job.batch/web/migrate until gone",
            "workloads: create Job.batch/web/migrate until ready"
        ]
    );
}

#[test]
fn a_job_of_another_owner_is_not_changed() {
    let plan = scene()
        .live("Job.batch/web/migrate: {managers: [kubectl]}")
        .plan();
    assert_eq!(of_job(&plan), [""; 0]);
    assert_eq!(plan.count(Action::Blocked), 1);
}

#[test]
fn it_is_not_pruned_while_it_runs() {
    let gone = |status| {
        let mut scene = there(scene(), true, status);
        scene
            .desired
            .manifests
            .retain(|manifest| manifest.id().kind != "Job");
        scene.plan()
    };
    assert_eq!(of_job(&gone(running())), [""; 0]);
    assert_eq!(
        of_job(&gone(complete())),
        ["prune: delete Job.batch/web/migrate until gone"]
    );
}

#[rstest]
#[case::that_runs(running(), true)]
#[case::that_succeeded(complete(), false)]
#[case::that_failed(failed(), false)]
fn an_uninstall_warns_of_a_running_job(#[case] status: serde_json::Value, #[case] warns: bool) {
    let plan = there(scene(), true, status).end(&by_command());
    assert_eq!(
        of_job(&plan),
        ["prune: delete Job.batch/web/migrate until gone"]
    );
    let mut findings = plan.findings.iter();
    let finding = findings.find(|one| one.code == "ends-running");
    assert_eq!(finding.is_some(), warns, "{:?}", plan.findings);
    assert!(finding.is_none_or(|one| !one.is_error() && one.hint.is_some()));
}

#[test]
fn a_job_in_an_early_stage_runs_before_the_workloads() {
    let job = JOB.replace(
        "pleach.dev/run: once",
        "pleach.dev/run: once, pleach.dev/stage: config",
    );
    let plan = Scene::new()
        .git(&job)
        .git(SECRET)
        .git("Deployment.apps/web/api: {spec: {template: {}}}")
        .plan();
    assert_eq!(
        of_job(&plan),
        ["config: create Job.batch/web/migrate until ready"]
    );
    let edge = "Job.batch/web/migrate -> Deployment.apps/web/api: Ready Once";
    assert!(
        edges(&plan).contains(&edge.to_owned()),
        "{:?}",
        edges(&plan)
    );
}
