//! Temporary changes and declared stages: start, end and continuation.

use std::collections::BTreeSet;

use serde_json::json;

use super::removal::by_command;
use super::scene::Scene;
use crate::plan::{Action, Course, Op, Plan, StepId, Until};
use pleach_fields::diff::Cause;
use pleach_model::order::StageName;
use pleach_state::overlay::OnFailure;

const API: &str = "Deployment.apps/web/api: {spec: {replicas: 2, selector: {matchLabels: {app: api}}, template: {metadata: {labels: {app: api}}, image: a}}}";
const NEW_API: &str = "Deployment.apps/web/api: {spec: {replicas: 2, selector: {matchLabels: {app: api}}, template: {metadata: {labels: {app: api}}, image: b}}}";
const GEAR: &str = "Gear.example.org/other/one: {spec: {mode: fast}}";
const HOLD: &str = "{name: hold, target: {kind: Gear, group: example.org, name: one, namespace: other}, patch: {spec: {mode: slow, hold: true}}, from: preflight, until: verify}";

/// Returns the operations of a plan in order, without waits.
fn steps(plan: &Plan) -> Vec<String> {
    plan.steps
        .iter()
        .filter(|step| !matches!(step.op, Op::Wait))
        .map(|step| format!("{}: {} {}", step.stage, step.op.verb(), step.object.name))
        .collect()
}

fn ancestors(plan: &Plan, of: StepId) -> BTreeSet<StepId> {
    let mut found = BTreeSet::new();
    let mut open = vec![of];
    while let Some(step) = open.pop() {
        for edge in &plan.steps[step.0].needs {
            if found.insert(edge.from) {
                open.push(edge.from);
            }
        }
    }
    found
}

fn upgrade() -> Scene {
    Scene::new().installed(API).git(NEW_API).live(GEAR)
}

#[test]
fn state_objects_are_not_changed_temporarily() {
    let record = "ConfigMap/shared/prod.db";
    let overlay =
        "{name: o, target: {kind: ConfigMap, namespace: shared, name: '*'}, patch: {data: {k: x}}}";
    let scene = |label: &str| {
        Scene::new()
            .git("ConfigMap/web/a: {data: {k: v}}")
            .live(&format!(
                "{record}: {{data: {{k: v}}, metadata: {{labels: {{{label}: x}}}}}}"
            ))
            .overlay(overlay)
    };
    let plan = scene(pleach_model::object::labels::RELEASE).plan();
    let refusals: Vec<String> = plan.refusals().map(ToString::to_string).collect();
    assert_eq!(refusals.len(), 1, "{refusals:?}");
    assert!(
        refusals[0].contains("it contains state of pleach"),
        "{refusals:?}"
    );
    assert!(plan.overlays.is_empty());
    assert_eq!(scene("a").plan().overlays.len(), 1);
}

#[test]
fn an_overlay_is_on_from_its_first_stage_to_its_last() {
    let plan = upgrade()
        .installed("ConfigMap/web/old: {}")
        .overlay(HOLD)
        .plan();
    assert_eq!(
        steps(&plan),
        [
            "preflight: set one",
            "workloads: apply api",
            "ungate: lift one",
            "prune: delete old"
        ]
    );
    let [overlay] = plan.overlays.as_slice() else {
        panic!("{:?}", plan.overlays);
    };
    assert_eq!(overlay.course, Course::Made);
    assert_eq!(
        overlay.content.original().0,
        json!({"spec": {"mode": "fast", "hold": null}})
    );
    assert_eq!(overlay.on_failure, OnFailure::Keep { max_age: None });
    assert_eq!(overlay.undo, [Op::Lift]);
    let lift = plan.steps.iter().find(|step| step.op == Op::Lift).unwrap();
    let before = ancestors(&plan, lift.id);
    let is_barrier = |id: &StepId| {
        let step = &plan.steps[id.0];
        step.stage == StageName::Verify && step.object.is("pleach.dev", "Release")
    };
    assert!(before.iter().any(is_barrier));
    let delete = plan.steps.last().unwrap();
    assert!(ancestors(&plan, delete.id).contains(&lift.id));
    assert!(plan.verifies());
}

#[test]
fn without_a_change_of_git_no_overlay_is_applied() {
    let scene = Scene::new()
        .installed(API)
        .git(API)
        .live(GEAR)
        .overlay(HOLD);
    let digest = {
        let observed = scene.clone();
        let mut desired = observed.desired;
        desired.digest_with(None);
        desired.digest()
    };
    let installed = |scene: Scene| {
        scene.cluster(|observed| {
            let record = observed.installed.as_mut().unwrap();
            record.installed.as_mut().unwrap().digest = digest;
        })
    };
    let plan = installed(scene.clone()).plan();
    assert!(plan.steps.is_empty() && plan.overlays.is_empty());
    // Drift is corrected without the temporary change.
    let drifted = scene.edited("kubectl", "Deployment.apps/web/api: {spec: {replicas: 5}}");
    let plan = installed(drifted).plan();
    assert_eq!(steps(&plan), ["workloads: apply api"]);
}

#[test]
fn an_overlay_without_effect_is_omitted() {
    let plan = upgrade()
        .live("Gear.example.org/other/one: {spec: {mode: slow, hold: true}}")
        .overlay(HOLD)
        .plan();
    assert!(plan.overlays.is_empty());
    assert_eq!(steps(&plan), ["workloads: apply api"]);
}

#[test]
fn an_overlay_without_an_object_is_reported() {
    let plan = Scene::new()
        .installed(API)
        .git(NEW_API)
        .overlay(HOLD)
        .plan();
    let codes: Vec<&str> = plan.findings.iter().map(|one| one.code.as_str()).collect();
    assert_eq!(codes, ["overlay-without-object"]);
}

#[test]
fn an_overlay_of_a_previous_run_is_retained_while_desired() {
    let patch = json!({"spec": {"mode": "slow", "hold": true}});
    let plan = upgrade()
        .overlay(HOLD)
        .left_on("hold", "Gear.example.org/other/one", &patch)
        .unfinished("v2.0.0")
        .plan();
    // The change is not made again, and the journal keeps the previous values.
    assert_eq!(steps(&plan), ["workloads: apply api", "ungate: lift one"]);
    assert_eq!(plan.overlays[0].course, Course::Kept);
    assert_eq!(
        plan.overlays[0].content.original().0["spec"]["mode"],
        "fast"
    );
}

#[test]
fn an_empty_release_reverts_its_overlays() {
    let patch = json!({"spec": {"mode": "slow", "hold": true}});
    // The first run of the release stopped here.
    let scene = Scene::new()
        .live("Gear.example.org/other/one: {spec: {mode: fast}}")
        .left_on("hold", "Gear.example.org/other/one", &patch)
        .unfinished("v1.0.0");
    let plan = scene.end(&by_command());
    assert!(plan.removal.as_ref().unwrap().ends);
    assert_eq!(steps(&plan), ["preflight: lift one"]);
    assert_eq!(plan.overlays[0].course, Course::Dropped);
}

#[test]
fn an_undesired_overlay_is_reverted_first() {
    let patch = json!({"spec": {"mode": "slow", "hold": true}});
    let plan = upgrade()
        .left_on("hold", "Gear.example.org/other/one", &patch)
        .unfinished("v2.0.0")
        .plan();
    assert_eq!(
        steps(&plan),
        ["preflight: lift one", "workloads: apply api"]
    );
    assert_eq!(plan.overlays[0].course, Course::Dropped);
    // A different patch is a different overlay, so the old one is reverted
    // first.
    let other = HOLD.replace("mode: slow", "mode: off");
    let plan = upgrade()
        .left_on("hold", "Gear.example.org/other/one", &patch)
        .overlay(&other)
        .unfinished("v2.0.0")
        .plan();
    assert_eq!(
        steps(&plan)[..2],
        ["preflight: lift one", "preflight: set one"]
    );
}

#[test]
fn an_overlay_of_a_deleted_object_is_dropped_with_a_note() {
    let plan = upgrade()
        .left_on(
            "hold",
            "Gear.example.org/other/one",
            &json!({"spec": {"mode": "slow"}}),
        )
        .gone("Gear.example.org/other/one")
        .plan();
    let codes: Vec<&str> = plan.findings.iter().map(|one| one.code.as_str()).collect();
    assert!(codes.contains(&"overlay-gone"));
    assert_eq!(plan.overlays[0].course, Course::Dropped);
}

#[test]
fn a_change_of_ours_that_was_left_on_is_no_drift() {
    let plan = Scene::new()
        .installed(API)
        .git(API)
        .left_on(
            "pause",
            "Deployment.apps/web/api",
            &json!({"spec": {"replicas": 0}}),
        )
        .unfinished("v1.0.0")
        .plan();
    assert_eq!(plan.changes[0].action, Action::Update);
    assert_eq!(plan.changes[0].cause, Some(Cause::Overlay));
    assert!(plan.changes[0].corrects.is_empty());
}

#[test]
fn a_paused_workload_is_awaited_after_it_resumes() {
    let plan = upgrade()
        .overlay("{name: pause, target: {kind: Deployment, name: api}, patch: {spec: {paused: true}}, until: registrations}")
        .plan();
    let until = |verb: &str| {
        let step = plan.steps.iter().find(|step| step.op.verb() == verb);
        step.unwrap().until.clone()
    };
    assert_eq!(until("apply"), None);
    assert!(matches!(until("lift"), Some(Until::Ready { .. })));
    assert_eq!(plan.overlays[0].on_failure, OnFailure::Undo);
    assert_eq!(
        steps(&plan),
        [
            "gates: set api",
            "workloads: apply api",
            "registrations: lift api"
        ]
    );
}

#[test]
fn a_stage_stops_a_workload_until_it_is_applied() {
    let plan = upgrade()
        .git("Service/web/api: {spec: {selector: {app: api}}}")
        .git("APIService.apiregistration.k8s.io/v1.x: {spec: {service: {namespace: web, name: api}}}")
        .stage("stop", &StageName::Access, &[("api", 0)], &[])
        .plan();
    assert_eq!(
        steps(&plan),
        [
            "stop: set api",
            "services: apply api",
            "workloads: apply api",
            "workloads: lift api",
            "registrations: apply v1.x"
        ]
    );
    let set = plan
        .steps
        .iter()
        .find(|step| step.op.verb() == "set")
        .unwrap();
    assert!(matches!(&set.until, Some(Until::Emptied { pods }) if pods["app"] == "api"));
    // The registration needs the workload in its final state.
    let registration = plan
        .steps
        .iter()
        .find(|step| step.object.name == "v1.x")
        .unwrap();
    let lift = plan.steps.iter().find(|step| step.op == Op::Lift).unwrap();
    assert!(ancestors(&plan, registration.id).contains(&lift.id));
}

#[test]
fn a_stopped_workload_runs_again_unless_its_successor_is_ready() {
    let plan = Scene::new()
        .installed("Deployment.apps/web/api: {spec: {replicas: 2}}")
        .live("Namespace/new: {}")
        .git("Deployment.apps/new/api: {spec: {replicas: 2}}")
        .stage("stop", &StageName::Services, &[("api", 0)], &[])
        .plan();
    let successor = "Deployment.apps/new/api".parse().unwrap();
    assert_eq!(
        plan.overlays[0].on_failure,
        OnFailure::UndoUnless { ready: successor }
    );
    // The workload is deleted at the end and not started before.
    assert_eq!(
        steps(&plan),
        ["stop: set api", "workloads: apply api", "prune: delete api"]
    );
}

#[test]
fn a_stage_restarts_existing_workloads_once_per_change() {
    let scene = upgrade()
        .installed("ConfigMap/web/c: {data: {a: b}}")
        .git("ConfigMap/web/c: {data: {a: c}}")
        .git("Deployment.apps/web/new: {spec: {replicas: 1}}")
        .git(API)
        .stage("again", &StageName::Config, &[], &["*"]);
    let plan = scene.plan();
    assert_eq!(
        steps(&plan),
        [
            "config: apply c",
            "again: restart api",
            "workloads: apply new"
        ]
    );
    let restart = plan
        .steps
        .iter()
        .find(|step| step.op.verb() == "restart")
        .unwrap();
    let Op::Restart { key, mark } = &restart.op else {
        panic!("{restart:?}");
    };
    let done = scene.with_live("Deployment.apps/web/api", |live| {
        live["spec"]["template"]["metadata"]["annotations"][key] = json!(mark);
    });
    assert!(!steps(&done.plan()).contains(&"again: restart api".to_owned()));
}

#[test]
fn another_commit_of_a_bundle_without_versions_is_no_change_by_itself() {
    let scene = upgrade()
        .with_desired(|desired| desired.version.clone_from(&desired.revision))
        .stage("again", &StageName::Workloads, &[], &["api"]);
    let digest = {
        let mut desired = scene.desired.clone();
        desired.digest_with(None);
        desired.digest()
    };
    let installed = scene.cluster(|observed| {
        let attempt = observed.installed.as_mut().unwrap().installed.as_mut();
        let attempt = attempt.unwrap();
        (attempt.version, attempt.digest) = ("abc".to_owned(), digest);
    });
    let restarts = |scene: &Scene| steps(&scene.plan()).contains(&"again: restart api".to_owned());
    assert!(!restarts(&installed));
    let committed = installed.with_desired(|desired| {
        desired.version = "def".to_owned();
        desired.revision = "def".to_owned();
    });
    assert!(!restarts(&committed));
    assert!(restarts(&committed.git("ConfigMap/web/c: {}")));
}

#[test]
fn secrets_are_not_changed_temporarily() {
    let hides = |scene: Scene| {
        let plan = scene.plan();
        assert!(plan.overlays.is_empty());
        plan.findings
            .iter()
            .any(|one| one.code == "overlay-of-secret" && one.is_error())
    };
    let secret = upgrade()
        .live("Secret/web/s: {data: {a: b}}")
        .overlay("{name: s, target: {kind: Secret, name: s}, patch: {data: {a: c}}}");
    assert!(hides(secret));
}

#[test]
fn an_uninstall_reverts_temporary_changes_first() {
    let removal = crate::plan::Removal {
        consented: Some(crate::plan::Consented::by_command()),
        ..crate::plan::Removal::default()
    };
    let plan = Scene::new()
        .installed("ConfigMap/web/c: {}")
        .live(GEAR)
        .left_on(
            "hold",
            "Gear.example.org/other/one",
            &json!({"spec": {"mode": "slow"}}),
        )
        .end(&removal);
    assert_eq!(steps(&plan), ["preflight: lift one", "prune: delete c"]);
}
