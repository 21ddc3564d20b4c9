//! Checks of a bundle: all failures are reported at once, and declared stages
//! wait for them.

use std::collections::BTreeSet;

use rstest::rstest;

use super::scene::Scene;
use crate::plan::{Op, Plan, StepId, Until};
use pleach_formats::check::{CheckOutcome, Objection};
use pleach_model::finding::{Finding, Kind, Severity};
use pleach_model::order::StageName;
use pleach_state::inventory::Override;

const API: &str = "Deployment.apps/web/api: {spec: {replicas: 2, selector: {matchLabels: {app: api}}, template: {metadata: {labels: {app: api}}, image: a}}}";
const NEW_API: &str = "Deployment.apps/web/api: {spec: {replicas: 2, selector: {matchLabels: {app: api}}, template: {metadata: {labels: {app: api}}, image: b}}}";
const VOLUMES: &str = "{name: volumes-healthy, forEach: {group: example.org, kind: Volume}, require: \"item.status.ok\"}";
const NODES: &str = "{name: nodes, forEach: {kind: Node}, require: \"item.status.ok\"}";

fn upgrade() -> Scene {
    Scene::new().installed(API).git(NEW_API)
}

fn objection(id: &str, message: &str) -> Objection {
    Objection {
        object: id.parse().unwrap(),
        message: message.to_owned(),
    }
}

fn degraded() -> CheckOutcome {
    CheckOutcome::seen(vec![
        objection("Volume.example.org/a", "is degraded"),
        objection("Volume.example.org/b", "is gone"),
    ])
}

fn errors(plan: &Plan) -> Vec<(Kind, String, String)> {
    plan.findings
        .iter()
        .filter(|finding| finding.is_error())
        .map(|finding| (finding.kind, finding.code.clone(), finding.message.clone()))
        .collect()
}

#[test]
fn all_failed_checks_are_reported_at_once() {
    let plan = upgrade()
        .check(VOLUMES)
        .check(NODES)
        .outcome("volumes-healthy", degraded())
        .outcome("nodes", CheckOutcome::Unknown("forbidden".to_owned()))
        .plan();
    let error = |kind, code: &str, message: &str| (kind, code.to_owned(), message.to_owned());
    assert_eq!(
        errors(&plan),
        [
            error(
                Kind::Policy,
                "check-failed",
                "check volumes-healthy does not hold: Volume.example.org/a: is degraded"
            ),
            error(
                Kind::Policy,
                "check-failed",
                "check volumes-healthy does not hold: Volume.example.org/b: is gone"
            ),
            error(
                Kind::Cluster,
                "check-unknown",
                "check nodes cannot be evaluated: forbidden"
            ),
        ]
    );
    for finding in plan.findings.iter().filter(|finding| finding.is_error()) {
        // Stops the whole plan; a finding with an object would only block that
        // object.
        assert_eq!(finding.object, None);
        assert!(finding.place.is_some());
        let hint = finding.hint.as_deref().unwrap();
        assert!(
            hint.contains("release: r, from: v1.0.0, to: v2.0.0, reason: …}"),
            "{hint}"
        );
    }
}

#[test]
fn of_many_objects_the_first_are_named() {
    let many = (0..50).map(|n| objection(&format!("Volume.example.org/v{n:02}"), "is gone"));
    let plan = upgrade()
        .check(VOLUMES)
        .outcome("volumes-healthy", CheckOutcome::seen(many.collect()))
        .plan();
    let errors = errors(&plan);
    assert_eq!(errors.len(), 21);
    assert!(errors.iter().any(
        |(_, _, message)| message == "check volumes-healthy does not hold for 30 more objects"
    ));
}

#[rstest]
#[case::it_is_met(upgrade().check(VOLUMES).outcome("volumes-healthy", CheckOutcome::seen(Vec::new())))]
#[case::not_checked(upgrade().check(VOLUMES))]
fn passed_checks_are_not_reported(#[case] scene: Scene) {
    let plan = scene.plan();
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);
    assert!(plan.overrides.is_empty());
}

const OVERRIDE: &str = "{action: override, check: volumes-healthy, release: r, from: v1.0.0, to: v2.0.0, reason: a rebuild is on its way}";

#[test]
fn a_consent_overrides_one_check_and_is_recorded() {
    let plan = upgrade()
        .check(VOLUMES)
        .outcome("volumes-healthy", degraded())
        .consent(OVERRIDE)
        .plan();
    let findings: Vec<(&str, Severity, &str)> = plan
        .findings
        .iter()
        .map(|finding| {
            (
                finding.code.as_str(),
                finding.severity,
                finding.message.as_str(),
            )
        })
        .collect();
    assert_eq!(
        findings,
        [(
            "check-overridden",
            Severity::Warning,
            "check volumes-healthy is overridden (a rebuild is on its way): Volume.example.org/a: is degraded; and 1 more"
        )]
    );
    assert_eq!(
        plan.overrides,
        [Override {
            check: "volumes-healthy".to_owned(),
            reason: "a rebuild is on its way".to_owned()
        }]
    );
}

#[rstest]
#[case::another_check(
    "{action: override, check: nodes, release: r, from: v1.0.0, to: v2.0.0, reason: x}"
)]
#[case::another_release(
    "{action: override, check: volumes-healthy, release: s, from: v1.0.0, to: v2.0.0, reason: x}"
)]
#[case::another_version(
    "{action: override, check: volumes-healthy, release: r, from: v1.0.0, to: v3.0.0, reason: x}"
)]
#[case::from_another_version(
    "{action: override, check: volumes-healthy, release: r, from: v1.1.0, to: v2.0.0, reason: x}"
)]
#[case::another_action("{action: uninstall, check: volumes-healthy, release: r}")]
fn a_consent_covers_only_its_check_and_version(#[case] consent: &str) {
    let plan = upgrade()
        .check(VOLUMES)
        .check(NODES)
        .outcome("volumes-healthy", degraded())
        .consent(consent)
        .plan();
    assert_eq!(errors(&plan).len(), 2);
    assert!(plan.overrides.is_empty());
}

#[test]
fn a_consent_to_a_check_that_there_is_not_is_pointed_out() {
    let plan = upgrade()
        .check(VOLUMES)
        .consent(&OVERRIDE.replace("volumes-healthy", "volume-healthy"))
        .plan();
    let unused: Vec<&Finding> = plan.findings.iter().collect();
    assert_eq!(unused.len(), 1, "{unused:?}");
    assert_eq!(
        (unused[0].code.as_str(), unused[0].hint.as_deref()),
        ("unused-consent", Some("did you mean `volumes-healthy`?"))
    );
}

/// Returns the waits for checks, with their stages.
fn waits(plan: &Plan) -> Vec<(StepId, String, String)> {
    plan.steps
        .iter()
        .filter_map(|step| match &step.until {
            Some(Until::Holds { check }) => Some((step.id, step.stage.to_string(), check.clone())),
            _ => None,
        })
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

#[test]
fn every_check_is_repeated_before_a_declared_stage() {
    let scene = upgrade()
        .git("ConfigMap/web/c: {data: {a: b}}")
        .check(VOLUMES)
        .check(NODES)
        .stage("again", &StageName::Workloads, &[], &["api"]);
    let plan = scene.plan();
    let waits = waits(&plan);
    let names: Vec<(&str, &str)> = waits
        .iter()
        .map(|(_, stage, check)| (stage.as_str(), check.as_str()))
        .collect();
    assert_eq!(names, [("again", "volumes-healthy"), ("again", "nodes")]);
    let restart = plan
        .steps
        .iter()
        .find(|step| matches!(step.op, Op::Restart { .. }))
        .unwrap();
    let apply = |name: &str| {
        let mut steps = plan.steps.iter();
        steps
            .find(|step| step.op.applies() && step.object.name == name)
            .unwrap()
            .id
    };
    for (wait, ..) in &waits {
        assert!(ancestors(&plan, restart.id).contains(wait));
        let before = ancestors(&plan, *wait);
        assert!(before.contains(&apply("api")) && before.contains(&apply("c")));
    }
}

#[test]
fn a_stage_that_does_nothing_and_a_check_that_is_overridden_wait_for_nothing() {
    let scene = upgrade().check(VOLUMES).check(NODES);
    let idle = scene
        .clone()
        .stage("idle", &StageName::Workloads, &[], &["absent"]);
    assert_eq!(waits(&idle.plan()), []);
    let overridden = scene
        .consent(OVERRIDE)
        .stage("again", &StageName::Workloads, &[], &["api"])
        .plan();
    let names: Vec<String> = waits(&overridden)
        .into_iter()
        .map(|(.., check)| check)
        .collect();
    assert_eq!(names, ["nodes"]);
}

#[test]
fn drift_is_corrected_despite_failed_checks() {
    let scene = upgrade().check(VOLUMES);
    assert!(
        scene
            .desired
            .needs_checks(scene.observed.installed.as_ref())
    );
    assert!(scene.desired.needs_checks(None));
    let mut observed = scene.observed();
    let record = observed.installed.as_mut().unwrap();
    let installed = record.installed.as_mut().unwrap();
    let mut desired = scene.desired.clone();
    desired.digest_with(None);
    installed.version = desired.version.clone();
    installed.digest = desired.digest();
    assert!(!desired.needs_checks(observed.installed.as_ref()));
    desired.sequence.checks.clear();
    assert!(!desired.needs_checks(None));
}
