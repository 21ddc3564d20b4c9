//! Bindings whose role changes.

use rstest::rstest;
use serde_json::json;

use super::lines;
use super::scene::Scene;
use crate::observe::Prediction;
use crate::plan::{Course, Op, Plan};
use pleach_model::object::{FieldPath, NonSecret};
use pleach_state::overlay::{Journaled, OnFailure, OverlayId, OverlayKind, State};

const BINDING: &str = "RoleBinding.rbac.authorization.k8s.io/web/api";
const DEPLOYMENT: &str = "Deployment.apps/web/api: {spec: {template: {}}}";
const NEWER: &str = "Deployment.apps/web/api: {spec: {template: {spec: {}}}}";
const ACCOUNT: &str = "{kind: ServiceAccount, name: api, namespace: web}";
const PERSON: &str = "{kind: User, name: jane}";

fn binding(role: &str, subjects: &str) -> String {
    format!("{BINDING}: {{roleRef: {{kind: Role, name: {role}}}, subjects: [{subjects}]}}\n")
}

fn scene(workload: &str, subjects: &str) -> Scene {
    Scene::new()
        .installed(&format!("{DEPLOYMENT}\n{}", binding("old", subjects)))
        .git(&format!("{workload}\n{}", binding("new", subjects)))
        .predict(
            BINDING,
            Prediction::Immutable {
                fields: vec![FieldPath::default().key("roleRef")],
                refused: None,
            },
        )
}

/// Returns the steps of bindings as lines, in order.
fn steps(plan: &Plan) -> Vec<String> {
    let lines = lines(plan).into_iter();
    let mut lines: Vec<String> = lines.filter(|line| line.contains("Binding")).collect();
    for line in &mut lines {
        if let Some((start, rest)) = line.split_once(".pleach-previous-role.") {
            let rest = rest.split_once(' ').map_or("", |(_, rest)| rest);
            *line = format!("{start}.FORMER{rest}");
        }
    }
    lines
}

#[rstest]
#[case::while_pods_are_exchanged(scene(NEWER, &format!("{ACCOUNT}, {PERSON}")), &[
    "access: set RoleBinding.rbac.authorization.k8s.io/web/api.FORMER",
    "access: delete RoleBinding.rbac.authorization.k8s.io/web/api until gone",
    "access: apply RoleBinding.rbac.authorization.k8s.io/web/api",
    "shrink: lift RoleBinding.rbac.authorization.k8s.io/web/api.FORMER",
])]
#[case::no_pods_are_exchanged(scene(DEPLOYMENT, ACCOUNT), &[
    "access: delete RoleBinding.rbac.authorization.k8s.io/web/api until gone",
    "access: apply RoleBinding.rbac.authorization.k8s.io/web/api",
])]
#[case::it_is_for_people(scene(NEWER, PERSON), &[
    "access: delete RoleBinding.rbac.authorization.k8s.io/web/api until gone",
    "access: apply RoleBinding.rbac.authorization.k8s.io/web/api",
])]
#[case::without_waiting(scene(NEWER, ACCOUNT).policy(|policy| policy.wait = false), &[
    "access: set RoleBinding.rbac.authorization.k8s.io/web/api.FORMER",
    "access: delete RoleBinding.rbac.authorization.k8s.io/web/api until gone",
    "access: apply RoleBinding.rbac.authorization.k8s.io/web/api",
])]
fn a_temporary_binding_replaces_the_previous_one(#[case] scene: Scene, #[case] expected: &[&str]) {
    assert_eq!(steps(&scene.plan()), expected);
}

#[test]
fn a_temporary_binding_grants_the_previous_role_only_to_service_accounts() {
    let plan = scene(NEWER, &format!("{ACCOUNT}, {PERSON}")).plan();
    let made = plan.steps.iter().find_map(|step| match &step.op {
        Op::Set { patch } => Some((step, &patch.0)),
        _ => None,
    });
    let (step, body) = made.unwrap();
    assert_eq!(body["roleRef"], json!({"kind": "Role", "name": "old"}));
    assert_eq!(
        body["subjects"],
        json!([{"kind": "ServiceAccount", "name": "api", "namespace": "web"}])
    );
    assert_eq!(body["metadata"]["name"], step.object.name.as_str());
    assert_eq!(plan.overlays.len(), 1);
    assert_eq!(plan.overlays[0].content.kind(), OverlayKind::Binding);
    assert_eq!(
        plan.overlays[0].on_failure,
        OnFailure::Keep { max_age: None }
    );
}

#[test]
fn a_temporary_binding_of_a_previous_run_stays_until_the_end() {
    let previous = "RoleBinding.rbac.authorization.k8s.io/web/api.former";
    let journaled = Journaled {
        kind: None,
        object: previous.parse().unwrap(),
        uid: format!("uid of {previous}"),
        state: State::On,
        set: NonSecret(json!({"subjects": []})),
        original: NonSecret(json!(null)),
        owners: Vec::new(),
        on_failure: OnFailure::Keep { max_age: None },
        until: "shrink".to_owned(),
        since: jiff::Timestamp::UNIX_EPOCH,
        attempt: "v2.0.0".to_owned(),
    };
    let scene = Scene::new()
        .installed(&format!("{DEPLOYMENT}\n{}", binding("new", ACCOUNT)))
        .live(&format!("{previous}: {{}}"))
        .git(&format!("{DEPLOYMENT}\n{}", binding("new", ACCOUNT)))
        .unfinished("v2.0.0")
        .cluster(|observed| {
            let id = OverlayId("previous-role x y".to_owned());
            observed.journal.overlays.insert(id, journaled);
        });
    let plan = scene.plan();
    assert_eq!(
        steps(&plan),
        ["shrink: lift RoleBinding.rbac.authorization.k8s.io/web/api.former"]
    );
    assert_eq!(plan.overlays[0].course, Course::Kept);
}
