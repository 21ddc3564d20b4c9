//! Dry-run refusals caused by objects that the plan replaces.

use rstest::rstest;

use super::edges;
use super::scene::Scene;
use crate::observe::{ApiRefusal, Prediction};
use crate::plan::{Action, Change, Plan};
use pleach_model::object::DesiredDigest;

const KEY: &str = "Widget.example.org/web/w";
const DENIED: &str = "admission webhook \"w.example.org\" denied the request: too new";
const UNKNOWN: &str = "failed to create typed patch object (web/w; example.org/v1, Kind=Widget): .spec.keep: field not declared in schema";

fn change(plan: &Plan) -> &Change {
    let mut changes = plan.changes.iter();
    let found = changes.find(|change| change.object.to_string() == KEY);
    found.unwrap()
}

fn refused(code: u16, message: &str) -> Prediction {
    Prediction::Refused(ApiRefusal {
        code,
        reason: String::new(),
        message: message.to_owned(),
    })
}

/// Builds an operator and its custom resource, each with a version.
fn git(crd: u8, operator: u8, size: u8) -> String {
    format!(
        "\
CustomResourceDefinition.apiextensions.k8s.io/widgets.example.org: {{spec: {{group: example.org, about: {crd}, names: {{kind: Widget, plural: widgets}}, versions: [{{name: v1, served: true}}]}}}}
ValidatingWebhookConfiguration.admissionregistration.k8s.io/h: {{webhooks: [{{name: w.example.org, clientConfig: {{service: {{namespace: web, name: api}}}}, rules: [{{apiGroups: [example.org], resources: [widgets]}}]}}]}}
Deployment.apps/web/api: {{spec: {{image: {operator}, replicas: 2, template: {{metadata: {{labels: {{app: api}}}}}}}}}}
Service/web/api: {{spec: {{selector: {{app: api}}}}}}
{KEY}: {{spec: {{size: {size}}}}}
"
    )
}

fn upgrade(crd: u8, operator: u8) -> Scene {
    Scene::new()
        .installed(&git(1, 1, 1))
        .git(&git(crd, operator, 2))
}

/// Marks the desired state as started and not finished.
fn begun(mut scene: Scene) -> Scene {
    for manifest in &scene.desired.manifests {
        let digest = DesiredDigest::Known(manifest.digest());
        let digests = &mut scene.desired.digests;
        digests.insert(manifest.id().clone(), digest);
    }
    let digest = scene.desired.digest();
    scene = scene.unfinished("v2.0.0");
    let applying = scene.observed.installed.as_mut().unwrap();
    applying.applying.as_mut().unwrap().digest = digest;
    scene
}

#[rstest]
#[case::another_operator(upgrade(1, 2), refused(422, DENIED), Action::Update)]
#[case::the_same_operator(upgrade(2, 1), refused(422, DENIED), Action::Blocked)]
#[case::an_operator_that_came_before(begun(upgrade(1, 1)), refused(403, DENIED), Action::Update)]
#[case::another_crd(upgrade(2, 1), refused(500, UNKNOWN), Action::Update)]
#[case::values_of_another_crd(
    upgrade(2, 1),
    refused(422, "spec.size: Invalid value"),
    Action::Update
)]
#[case::the_same_crd(upgrade(1, 2), refused(500, UNKNOWN), Action::Blocked)]
#[case::a_webhook_of_others(
    upgrade(2, 2),
    refused(422, "admission webhook \"other.example.org\" denied the request: no"),
    Action::Blocked
)]
#[case::a_broken_server(upgrade(2, 2), refused(500, "no"), Action::Blocked)]
#[case::no_right(upgrade(2, 2), refused(403, "forbidden"), Action::Blocked)]
fn a_refusal_by_a_replaced_version_does_not_block(
    #[case] scene: Scene,
    #[case] prediction: Prediction,
    #[case] expected: Action,
) {
    let plan = scene.predict(KEY, prediction).plan();
    let change = change(&plan);
    assert_eq!(change.action, expected, "{:#?}", plan.findings);
    let why = change.unverified.as_deref().unwrap_or_default();
    let is_update = expected == Action::Update;
    assert_eq!(
        why.starts_with("refused by the previous version, which is replaced first: "),
        is_update,
        "{why}"
    );
}

/// The operator registers its webhook at run time, and belongs to another
/// version.
#[rstest]
#[case::another_operator(2, Action::Update)]
#[case::the_same_operator(1, Action::Blocked)]
fn a_webhook_registered_by_pods_belongs_to_the_previous_version(
    #[case] version: u8,
    #[case] expected: Action,
) {
    let hook = git(1, 1, 1);
    let hook = hook.lines().find(|line| line.starts_with("Validating"));
    let hook = hook.unwrap();
    let parts = |operator: u8, size: u8| git(1, operator, size).replace(&format!("{hook}\n"), "");
    let plan = Scene::new()
        .installed(&parts(1, 1))
        .run_time(hook, Some("web/api"))
        .git(&parts(version, 2))
        .predict(KEY, refused(422, DENIED))
        .plan();
    assert_eq!(change(&plan).action, expected, "{:#?}", plan.findings);
    let first = format!("Deployment.apps/web/api -> {KEY}: Ready Intercepts");
    let edges = edges(&plan);
    assert_eq!(
        edges.contains(&first),
        expected == Action::Update,
        "{edges:#?}"
    );
}

#[test]
fn the_previous_version_does_not_judge_new_objects() {
    let without = git(1, 1, 1).replace(&format!("{KEY}: {{spec: {{size: 1}}}}\n"), "");
    let scene = Scene::new().installed(&without).git(&git(1, 2, 2));
    let plan = scene.predict(KEY, refused(422, DENIED)).plan();
    let change = change(&plan);
    assert_eq!(change.action, Action::Create);
    assert!(change.unverified.is_some());
}
