//! The way back goes in reverse, as far as it can.

use rstest::rstest;

use super::edges;
use super::scene::Scene;
use crate::plan::{Action, Plan, StepId};
use crate::repo::format::Rollback;

const CRD: &str = "CustomResourceDefinition.apiextensions.k8s.io/widgets.example.org: {spec: {group: example.org, names: {kind: Widget, plural: widgets}, versions: [{name: v1, served: true}], note: OLD}}";
const HOOK: &str = "ValidatingWebhookConfiguration.admissionregistration.k8s.io/h: {webhooks: [{name: OLD, clientConfig: {service: {namespace: web, name: api}}, rules: [{apiGroups: [example.org], resources: [widgets]}]}]}";
const API: &str = "Deployment.apps/web/api: {spec: {replicas: 2, template: {metadata: {labels: {app: api}}, spec: {volumes: [{configMap: {name: c}}], image: OLD}}}}";
const SERVICE: &str = "Service/web/api: {spec: {selector: {app: api}, note: OLD}}";
const CONFIG: &str = "ConfigMap/web/c: {data: {k: OLD}}";
const RESOURCE: &str = "Widget.example.org/web/w: {spec: OLD}";

fn id_of(text: &str) -> &str {
    text.split_once(": ").unwrap().0
}

/// Goes from v3.0.0, which has `new`, back to v2.0.0, which has `old`.
fn back(old: &[&str], new: &[&str]) -> Plan {
    let newer = new.join("\n").replace("OLD", "NEW");
    let plan = Scene::new()
        .installed(&newer)
        .version("v3.0.0")
        .git(&old.join("\n"))
        .policy(|policy| {
            policy.versions.rollback = Some(Rollback {
                from: "v3.0.0".to_owned(),
                to: "v2.0.0".to_owned(),
            });
        })
        .plan();
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);
    plan
}

/// Position of the step that applies an object.
fn at(plan: &Plan, object: &str) -> StepId {
    let mut steps = plan.steps.iter();
    steps
        .find(|step| step.op.applies() && step.object.to_string() == id_of(object))
        .unwrap()
        .id
}

fn before(plan: &Plan, first: &str, second: &str) -> bool {
    let mut open = vec![at(plan, second)];
    while let Some(step) = open.pop() {
        if step == at(plan, first) {
            return true;
        }
        open.extend(plan.steps[step.0].needs.iter().map(|edge| edge.from));
    }
    false
}

const ALL: &[&str] = &[CRD, CONFIG, SERVICE, API, HOOK, RESOURCE];

#[test]
fn what_came_first_goes_back_last() {
    let plan = back(ALL, ALL);
    assert_eq!(plan.count(Action::Update), ALL.len());
    for (first, second) in [
        (RESOURCE, HOOK),
        (HOOK, SERVICE),
        (HOOK, API),
        (API, CRD),
        (RESOURCE, CRD),
        // Pods cannot start without it, whichever way it goes.
        (CONFIG, API),
    ] {
        assert!(before(&plan, first, second), "{:?}", edges(&plan));
        assert!(at(&plan, first) < at(&plan, second));
    }
    let stages: Vec<&str> = plan
        .stages
        .iter()
        .map(|stage| stage.name.as_str())
        .collect();
    assert_eq!(
        stages,
        [
            "config",
            "resources",
            "registrations",
            "services",
            "workloads",
            "definitions",
            "verify"
        ]
    );
}

#[test]
fn on_the_way_up_the_same_objects_go_the_other_way() {
    let newer = ALL.join("\n");
    let plan = Scene::new()
        .installed(&newer.replace("OLD", "older"))
        .git(&newer)
        .plan();
    for (first, second) in [(CRD, RESOURCE), (API, HOOK), (HOOK, RESOURCE)] {
        assert!(before(&plan, first, second), "{:?}", edges(&plan));
    }
}

/// What is not there yet is needed by the rest.
#[rstest]
#[case::registration(&[HOOK], API, HOOK)]
#[case::backend(&[API], API, HOOK)]
#[case::definition(&[CRD, RESOURCE], CRD, RESOURCE)]
fn what_is_created_is_created_first(
    #[case] missing: &[&str],
    #[case] first: &str,
    #[case] second: &str,
) {
    let there: Vec<&str> = ALL
        .iter()
        .copied()
        .filter(|object| !missing.contains(object))
        .collect();
    let plan = back(ALL, &there);
    assert_eq!(plan.count(Action::Create), missing.len());
    assert!(before(&plan, first, second), "{:?}", edges(&plan));
}

/// An older controller that needs a version which only its own definition
/// serves would never be ready.
#[test]
fn a_definition_that_serves_what_the_present_one_does_not_goes_first() {
    let older = CRD.replace(
        "{name: v1, served: true}",
        "{name: v1, served: true}, {name: v0, served: true}",
    );
    let plan = back(
        &[&older, CONFIG, API, RESOURCE],
        &[CRD, CONFIG, API, RESOURCE],
    );
    assert!(before(&plan, CRD, RESOURCE), "{:?}", edges(&plan));
    assert!(!before(&plan, API, CRD), "{:?}", edges(&plan));
}

/// `pleach.dev/after` is turned round too, and never into a circle.
#[test]
fn annotations_are_turned_round_but_never_into_a_circle() {
    let first = "ConfigMap/web/first: {data: {k: OLD}}";
    let second = "ConfigMap/web/second: {metadata: {annotations: {pleach.dev/after: ConfigMap/first}}, data: {k: OLD}}";
    let plan = back(&[first, second], &[first, second]);
    assert!(before(&plan, second, first), "{:?}", edges(&plan));
    // A third one that is created between them keeps them in their order.
    let first = "ConfigMap/web/first: {data: {k: OLD}}";
    let third =
        "ConfigMap/web/third: {metadata: {annotations: {pleach.dev/after: ConfigMap/first}}}";
    let second = "ConfigMap/web/second: {metadata: {annotations: {pleach.dev/after: 'ConfigMap/first, ConfigMap/third'}}, data: {k: OLD}}";
    let plan = back(&[first, second, third], &[first, second]);
    assert!(before(&plan, first, third) && before(&plan, third, second));
    assert!(!before(&plan, second, first));
}
