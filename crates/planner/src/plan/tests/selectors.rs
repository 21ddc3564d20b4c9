//! Services whose selector changes, and the pods that they select afterwards.

use std::collections::BTreeMap;

use rstest::rstest;

use super::scene::Scene;
use super::{changes, edges, step_of};
use crate::plan::{Plan, StepId, Until};
use pleach_formats::file::Rollback;
use pleach_model::finding::Finding;
use pleach_model::order::StageName;

const WORKLOAD_FIRST: &str = "Deployment.apps/web/api -> Service/web/api: Ready Selects";
const SERVICE_FIRST: &str = "Service/web/api -> Deployment.apps/web/api: Applied Selects";

/// Builds a Deployment with these pod labels, and a Service with this selector.
fn api((labels, selector): (&str, &str)) -> String {
    format!(
        "Deployment.apps/web/api: {{spec: {{template: {{metadata: {{labels: {{{labels}}}}}}}}}}}\n\
         Service/web/api: {{spec: {{selector: {{{selector}}}}}}}"
    )
}

fn selects(plan: &Plan) -> Vec<String> {
    let mut edges = edges(plan);
    edges.retain(|edge| edge.ends_with(" Selects"));
    edges
}

fn gap(plan: &Plan) -> Option<&Finding> {
    let mut findings = plan.findings.iter();
    findings.find(|one| one.code == "no-endpoints-between")
}

/// Builds a change of labels and selector.
fn scene(before: (&str, &str), after: (&str, &str)) -> Scene {
    Scene::new().installed(&api(before)).git(&api(after))
}

#[rstest]
#[case::the_new_pods_match_both(("a: b", "a: b"), ("a: b, c: d", "c: d"), &[WORKLOAD_FIRST], false)]
#[case::a_narrower_selector(("a: b", "a: b"), ("a: b, c: d", "a: b, c: d"), &[WORKLOAD_FIRST], false)]
#[case::the_previous_pods_match_both(("a: b, c: d", "a: b"), ("c: d", "c: d"), &[SERVICE_FIRST], false)]
#[case::no_pods_match_both(("a: b", "a: b"), ("c: d", "c: d"), &[WORKLOAD_FIRST], true)]
#[case::everybody_matches_both(("a: b, c: d", "a: b"), ("a: b, c: d, e: f", "c: d"), &[], false)]
#[case::the_labels_stay(("a: b, c: d", "a: b"), ("a: b, c: d", "c: d"), &[], false)]
#[case::the_selector_stays(("a: b", "a: b"), ("a: b, c: d", "a: b"), &[], false)]
#[case::no_pods_are_selected(("a: b", "a: b"), ("a: b", "c: d"), &[], false)]
#[case::no_pods_were_selected(("a: b", "x: y"), ("a: b, c: d", "a: b"), &[], false)]
fn a_service_always_has_endpoints(
    #[case] before: (&str, &str),
    #[case] after: (&str, &str),
    #[case] expected: &[&str],
    #[case] warns: bool,
) {
    let plan = scene(before, after).plan();
    assert_eq!(selects(&plan), expected);
    assert_eq!(gap(&plan).is_some(), warns, "{:?}", plan.findings);
}

/// Changes that end before the workloads do not wait for the Service.
#[test]
fn a_service_that_comes_after_pods_belongs_to_their_stage() {
    let stage_of = |after: (&str, &str)| {
        let plan = scene(("a: b", "a: b"), after).plan();
        let service = plan.changes.iter().find(|one| one.object.kind == "Service");
        assert_eq!(
            service.unwrap().stage.as_ref(),
            Some(&step_of(&plan, "Service/web/api").stage)
        );
        step_of(&plan, "Service/web/api").stage.clone()
    };
    assert_eq!(stage_of(("a: b, c: d", "c: d")), StageName::Workloads);
    assert_eq!(stage_of(("a: b", "c: d")), StageName::Services);
}

/// The selectors decide the order, not the direction of the change.
#[rstest]
#[case(("a: b", "a: b"), ("a: b, c: d", "c: d"), WORKLOAD_FIRST)]
#[case(("a: b, c: d", "a: b"), ("c: d", "c: d"), SERVICE_FIRST)]
fn a_downgrade_has_the_same_order(
    #[case] before: (&str, &str),
    #[case] after: (&str, &str),
    #[case] expected: &str,
) {
    let scene = scene(before, after).version("v3.0.0").policy(|policy| {
        policy.versions.rollback = Some(Rollback {
            from: "v3.0.0".to_owned(),
            to: "v2.0.0".to_owned(),
        });
    });
    assert_eq!(selects(&scene.plan()), [expected]);
}

const HOOK: &str = "ValidatingWebhookConfiguration.admissionregistration.k8s.io/h: {webhooks: [{clientConfig: {service: {namespace: web, name: api}}}]}";

#[test]
fn a_gap_names_its_effect_and_an_alternative() {
    let (before, after) = (("a: b", "a: b"), ("c: d", "c: d"));
    let plan = scene(before, after).plan();
    let finding = gap(&plan).unwrap();
    assert!(!finding.is_error() && finding.place.is_some());
    assert_eq!(
        finding.message,
        "its selector and the pod labels of Deployment.apps/web/api change together: the Service has no endpoints while only one of them is applied"
    );
    assert!(finding.hint.as_ref().unwrap().contains("in two versions"));
    // One registration is shipped, and one was made by pods.
    let made = HOOK.replace("/h:", "/made:");
    let plan = Scene::new()
        .installed(&format!("{}\n{HOOK}", api(before)))
        .git(&format!("{}\n{HOOK}", api(after)))
        .live(&made)
        .plan();
    let message = &gap(&plan).unwrap().message;
    let intercepting = "and requests through ValidatingWebhookConfiguration.admissionregistration.k8s.io/h, ValidatingWebhookConfiguration.admissionregistration.k8s.io/made are refused or fail";
    assert!(message.ends_with(intercepting), "{message}");
}

/// The Service has no endpoints now, so none are lost.
#[test]
fn a_workload_without_pods_leaves_no_gap() {
    let stopped = |text: String| text.replace("{spec: {template", "{spec: {replicas: 0, template");
    let plan = Scene::new()
        .installed(&stopped(api(("a: b", "a: b"))))
        .git(&stopped(api(("c: d", "c: d"))))
        .plan();
    assert!(gap(&plan).is_none(), "{:?}", plan.findings);
}

const GREEN: &str =
    "Deployment.apps/web/green: {spec: {template: {metadata: {labels: {v: green}}}}}";

/// The previous workload is deleted in `prune`, when everything is ready.
#[rstest]
#[case::is_removed("")]
#[case::stays("Deployment.apps/web/api: {spec: {template: {metadata: {labels: {v: blue}}}}}\n")]
fn a_service_switches_to_a_ready_workload(#[case] previous: &str) {
    let plan = Scene::new()
        .installed(&api(("v: blue", "v: blue")))
        .git(&format!(
            "{previous}{GREEN}\nService/web/api: {{spec: {{selector: {{v: green}}}}}}"
        ))
        .plan();
    let expected = "Deployment.apps/web/green -> Service/web/api: Ready Selects";
    assert_eq!(selects(&plan), [expected]);
    assert!(gap(&plan).is_none(), "{:?}", plan.findings);
}

/// Pods of the other workload answer immediately.
#[test]
fn a_service_that_selects_more_does_not_wait_for_new_pods() {
    let canary = GREEN.replace("v: green", "a: b, track: canary");
    let plan = scene(
        ("a: b, track: stable", "track: stable"),
        ("a: b, track: stable", "a: b"),
    )
    .git(&canary)
    .plan();
    assert!(selects(&plan).is_empty(), "{:?}", selects(&plan));
}

/// The pods may have to discover each other before they are ready.
#[test]
fn pods_of_a_headless_service_are_not_awaited() {
    let headless = |text: String| text.replace("{selector", "{clusterIP: None, selector");
    let plan = Scene::new()
        .installed(&headless(api(("a: b", "a: b"))))
        .git(&headless(api(("c: d", "c: d"))))
        .plan();
    assert!(selects(&plan).is_empty(), "{:?}", selects(&plan));
    assert!(gap(&plan).is_some());
}

#[test]
fn a_workload_that_needs_the_service_causes_no_cycle() {
    let set = |text: String| {
        let text = text.replace("Deployment", "StatefulSet");
        text.replace("{spec: {template", "{spec: {serviceName: api, template")
    };
    let plan = Scene::new()
        .installed(&set(api(("a: b", "a: b"))))
        .git(&set(api(("c: d", "c: d"))))
        .plan();
    assert!(selects(&plan).is_empty(), "{:?}", selects(&plan));
    assert!(!plan.findings.iter().any(Finding::is_error));
    assert!(gap(&plan).is_some());
}

/// The Service would otherwise select pods that are not created.
#[test]
fn a_service_keeps_the_previous_pods_while_its_workload_is_blocked() {
    let image = |text: String| text.replace("{spec: {template", "{spec: {image: OLD, template");
    let plan = Scene::new()
        .installed(&image(api(("a: b", "a: b"))))
        .git(&image(api(("a: b, c: d", "c: d"))).replace("OLD", "NEW"))
        .edited("x", "Deployment.apps/web/api: {spec: {image: OTHER}}")
        .plan();
    let changes = changes(&plan);
    let blocked =
        "blocked Service/web/api: it needs Deployment.apps/web/api, which is blocked".to_owned();
    assert!(changes.contains(&blocked), "{changes:#?}");
}

/// The workload would otherwise leave a Service that still selects the previous
/// pods.
#[rstest]
#[case::no_pods_match_both(("a: b", "a: b"), ("c: d", "c: d"), true)]
#[case::the_new_pods_match_both(("a: b", "a: b"), ("a: b, c: d", "c: d"), false)]
fn a_workload_stays_as_it_is_while_its_service_is_blocked(
    #[case] before: (&str, &str),
    #[case] after: (&str, &str),
    #[case] blocks: bool,
) {
    let note = |text: String| text.replace("{selector", "{note: OLD, selector");
    let plan = Scene::new()
        .installed(&note(api(before)))
        .git(&note(api(after)).replace("OLD", "NEW"))
        .edited("x", "Service/web/api: {spec: {note: OTHER}}")
        .plan();
    let changes = changes(&plan);
    let blocked =
        "blocked Deployment.apps/web/api: it needs Service/web/api, which is blocked".to_owned();
    assert_eq!(changes.contains(&blocked), blocks, "{changes:#?}");
    assert!(gap(&plan).is_none(), "{:?}", plan.findings);
}

/// An earlier run wrote the workload and did not see it ready.
#[test]
fn workloads_in_progress_from_a_previous_run_are_awaited() {
    let scene = scene(("a: b, c: d", "a: b"), ("a: b, c: d", "c: d"));
    assert!(selects(&scene.plan()).is_empty());
    let scene = Scene::new()
        .installed(&api(("c: d", "a: b")))
        .unfinished("v2.0.0")
        .git(&api(("c: d", "c: d")));
    let expected = "Deployment.apps/web/api (wait) -> Service/web/api: Ready Selects";
    assert_eq!(selects(&scene.plan()), [expected]);
}

/// Declared stages take precedence; otherwise the Service joins the stage of
/// its pods.
#[rstest]
#[case::of_the_service("{kind: Service}", &[])]
#[case::of_the_workload("{kind: Deployment}", &[WORKLOAD_FIRST])]
fn a_declared_stage_is_respected(#[case] select: &str, #[case] expected: &[&str]) {
    let scene = scene(("a: b", "a: b"), ("a: b, c: d", "c: d"));
    let scene = scene.applies_in("own", &[select], |rule| {
        rule.stage = StageName::declared("own", &StageName::Config, 0);
    });
    let plan = scene.plan();
    assert!(!plan.findings.iter().any(Finding::is_error));
    assert_eq!(selects(&plan), expected);
    // No step needs a later one.
    for (place, step) in plan.steps.iter().enumerate() {
        let mut needs = step.needs.iter();
        assert!(needs.all(|edge| edge.from < StepId(place)));
    }
}

/// Endpoints of the previous pods are listed until the controller has observed
/// the change.
#[rstest]
#[case::the_selector_changes(("a: b", "a: b"), ("a: b, c: d", "c: d"), Some("c=d"))]
#[case::it_stays(("a: b", "a: b"), ("a: b, c: d", "a: b"), None)]
fn a_registration_waits_for_endpoints_of_the_pods_that_are_selected_then(
    #[case] before: (&str, &str),
    #[case] after: (&str, &str),
    #[case] expected: Option<&str>,
) {
    let plan = scene(before, after).git(HOOK).plan();
    let waits = plan.steps.iter().filter_map(|step| match &step.until {
        Some(Until::Endpoints { pods, .. }) => Some(pods.clone()),
        _ => None,
    });
    let labels = expected.and_then(|text| text.split_once('='));
    let labels = labels.map(|(key, value)| BTreeMap::from([(key.to_owned(), value.to_owned())]));
    assert_eq!(waits.collect::<Vec<_>>(), [labels]);
}

/// The Service then selects no workload of the release.
#[test]
fn a_service_without_backends_waits_for_endpoints_of_newly_selected_pods() {
    let (before, after) = (("a: b", "a: b"), ("a: b", "x: z"));
    let plan = Scene::new()
        .installed(&format!("{}\n{HOOK}", api(before)))
        .git(&format!("{}\n{HOOK}", api(after)))
        .plan();
    let mut untils = plan.steps.iter().filter_map(|step| step.until.as_ref());
    let pods = untils.find_map(|until| match until {
        Until::Endpoints { pods, .. } => pods.clone(),
        _ => None,
    });
    let labels = BTreeMap::from([("x".to_owned(), "z".to_owned())]);
    assert_eq!(pods, Some(labels));
}
