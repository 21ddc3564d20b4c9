//! Downgrades reverse the order as far as possible.

use rstest::rstest;

use serde_json::json;

use super::scene::Scene;
use super::{NOTED_WIDGETS, edges, lines};
use crate::observe::{ApiRefusal, Prediction, Unverified};
use crate::plan::{Action, Plan, StepId};
use pleach_formats::file::Rollback;
use pleach_model::object::Selector;
use pleach_model::order::StageName;

const HOOK: &str = "ValidatingWebhookConfiguration.admissionregistration.k8s.io/h: {webhooks: [{name: OLD, clientConfig: {service: {namespace: web, name: api}}, rules: [{apiGroups: [example.org], resources: [widgets]}]}]}";
const API: &str = "Deployment.apps/web/api: {spec: {replicas: 2, template: {metadata: {labels: {app: api}}, spec: {volumes: [{configMap: {name: c}}], image: OLD}}}}";
const SERVICE: &str = "Service/web/api: {spec: {selector: {app: api}, note: OLD}}";
const CONFIG: &str = "ConfigMap/web/c: {data: {k: OLD}}";
const RESOURCE: &str = "Widget.example.org/web/w: {spec: OLD}";

fn id_of(text: &str) -> &str {
    text.split_once(": ").unwrap().0
}

/// Builds a downgrade from v3.0.0 with the objects `new` to v2.0.0 with the
/// objects `old`.
fn scene(old: &[&str], new: &[&str]) -> Scene {
    let newer = new.join("\n").replace("OLD", "NEW");
    Scene::new()
        .installed(&newer)
        .version("v3.0.0")
        .git(&old.join("\n"))
        .policy(|policy| {
            policy.versions.rollback = Some(Rollback {
                from: "v3.0.0".to_owned(),
                to: "v2.0.0".to_owned(),
            });
        })
}

fn back(old: &[&str], new: &[&str]) -> Plan {
    let plan = scene(old, new).plan();
    let mut findings = plan.findings.iter();
    // A gate on a new kind exempts our own objects of that kind.
    let is_expected = findings.all(|one| one.code == "gate-exempts-us");
    assert!(is_expected, "{:?}", plan.findings);
    plan
}

/// Returns the step that applies an object.
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

const ALL: &[&str] = &[NOTED_WIDGETS, CONFIG, SERVICE, API, HOOK, RESOURCE];

#[test]
fn a_downgrade_reverses_the_order() {
    let plan = back(ALL, ALL);
    assert_eq!(plan.count(Action::Update), ALL.len());
    for (first, second) in [
        (RESOURCE, HOOK),
        (HOOK, SERVICE),
        (HOOK, API),
        (API, NOTED_WIDGETS),
        (RESOURCE, NOTED_WIDGETS),
        // Pods cannot start without their configuration in either direction.
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
fn an_upgrade_has_the_opposite_order() {
    let newer = ALL.join("\n");
    let plan = Scene::new()
        .installed(&newer.replace("OLD", "older"))
        .git(&newer)
        .plan();
    for (first, second) in [(NOTED_WIDGETS, RESOURCE), (API, HOOK), (HOOK, RESOURCE)] {
        assert!(before(&plan, first, second), "{:?}", edges(&plan));
    }
}

const POLICY: &str = "ValidatingAdmissionPolicy.admissionregistration.k8s.io/p: {spec: {paramKind: {apiVersion: example.org/v1, kind: Widget}, note: OLD}}";
const BINDING: &str = "ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io/b: {spec: {policyName: p, paramRef: {name: w, namespace: web}, note: OLD}}";

#[test]
fn a_binding_is_downgraded_before_its_policy_and_parameters() {
    let all = &[NOTED_WIDGETS, POLICY, BINDING, RESOURCE];
    let pairs = [
        (BINDING, POLICY),
        (BINDING, RESOURCE),
        (POLICY, RESOURCE),
        (POLICY, NOTED_WIDGETS),
        (RESOURCE, NOTED_WIDGETS),
    ];
    let plan = back(all, all);
    assert_eq!(plan.count(Action::Update), all.len());
    for (first, second) in pairs {
        assert!(before(&plan, first, second), "{:?}", edges(&plan));
    }
    let newer = all.join("\n");
    let plan = Scene::new()
        .installed(&newer.replace("OLD", "older"))
        .git(&newer)
        .plan();
    for (second, first) in pairs {
        assert!(before(&plan, first, second), "{:?}", edges(&plan));
    }
}

/// New objects are needed by the others.
#[rstest]
#[case::registration(&[HOOK], API, HOOK)]
#[case::backend(&[API], API, HOOK)]
#[case::crd(&[NOTED_WIDGETS, RESOURCE], NOTED_WIDGETS, RESOURCE)]
fn a_downgrade_creates_objects_first(
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

/// An older controller would never become ready if it needs a version that only
/// its own CRD serves.
#[test]
fn a_crd_that_serves_additional_versions_is_downgraded_first() {
    let older = NOTED_WIDGETS.replace(
        "{name: v1, served: true}",
        "{name: v1, served: true}, {name: v0, served: true}",
    );
    let plan = back(
        &[&older, CONFIG, API, RESOURCE],
        &[NOTED_WIDGETS, CONFIG, API, RESOURCE],
    );
    assert!(before(&plan, NOTED_WIDGETS, RESOURCE), "{:?}", edges(&plan));
    assert!(!before(&plan, API, NOTED_WIDGETS), "{:?}", edges(&plan));
    assert!(before(&plan, NOTED_WIDGETS, API), "{:?}", edges(&plan));
}

/// `pleach.dev/after` is reversed too, but never into a cycle.
#[test]
fn annotations_are_reversed_unless_they_form_a_cycle() {
    let first = "ConfigMap/web/first: {data: {k: OLD}}";
    let second = "ConfigMap/web/second: {metadata: {annotations: {pleach.dev/after: ConfigMap/first}}, data: {k: OLD}}";
    let plan = back(&[first, second], &[first, second]);
    assert!(before(&plan, second, first), "{:?}", edges(&plan));
    // A third object that is created between them preserves the order.
    let first = "ConfigMap/web/first: {data: {k: OLD}}";
    let third =
        "ConfigMap/web/third: {metadata: {annotations: {pleach.dev/after: ConfigMap/first}}}";
    let second = "ConfigMap/web/second: {metadata: {annotations: {pleach.dev/after: 'ConfigMap/first, ConfigMap/third'}}, data: {k: OLD}}";
    let plan = back(&[first, second, third], &[first, second]);
    assert!(before(&plan, first, third) && before(&plan, third, second));
    assert!(!before(&plan, second, first));
}

/// Objects of an operator whose webhook for its custom resource is the same in
/// both versions.
fn operator<'a>(resource: &'a str, hook: &'a str) -> [&'a str; 5] {
    [NOTED_WIDGETS, SERVICE, API, hook, resource]
}

/// Returns the edges between the custom resource and its operator.
fn between(plan: &Plan) -> Vec<String> {
    let all = edges(plan).into_iter();
    all.filter(|edge| edge.contains("Widget") && edge.contains("Deployment"))
        .collect()
}

const AGAIN: &str = "Deployment.apps/web/api -> Widget.example.org/web/w (wait): Ready Intercepts";

/// The unchanged webhook imposes no order. The operator stays until its operand
/// is downgraded, if the operator does that.
#[rstest]
#[case::pinned("{version: v2.0.0, replicas: 2}", "{version: v3.0.0}", "Ready")]
#[case::pinned_within(
    "{parts: [{image: {tag: 2.0.0}}]}",
    "{parts: [{image: {tag: 3.0.0}}]}",
    "Ready"
)]
#[case::pinned_from_now_on("{version: v2.0.0}", "{replicas: 1}", "Ready")]
#[case::locked("{replicas: 1}", "{replicas: 2}", "Applied")]
#[case::locked_from_now_on("{replicas: 1}", "{version: v3.0.0}", "Applied")]
#[case::as_pinned_as_before("{version: v1.0.0, replicas: 1}", "{version: v1.0.0}", "Applied")]
fn an_operator_is_downgraded_after_its_custom_resource(
    #[case] old: &str,
    #[case] new: &str,
    #[case] state: &str,
) {
    let hook = HOOK.replace("OLD", "same");
    let [old, new] = [old, new].map(|spec| RESOURCE.replace("OLD", spec));
    let plan = back(&operator(&old, &hook), &operator(&new, &hook));
    let first = format!("Widget.example.org/web/w -> Deployment.apps/web/api: {state} Reverse");
    assert_eq!(between(&plan), [&first, AGAIN]);
    assert!(before(&plan, RESOURCE, API));
    let again = "verify: wait Widget.example.org/web/w until ready".to_owned();
    assert!(lines(&plan).contains(&again), "{:#?}", lines(&plan));
}

/// `pleach.dev/after` has the same effect without a webhook.
#[rstest]
#[case::pinned("{version: v2.0.0}", "Ready")]
#[case::locked("{replicas: 1}", "Applied")]
fn an_annotation_is_reversed_like_the_webhook(#[case] spec: &str, #[case] state: &str) {
    let resource = format!(
        "Widget.example.org/web/w: {{metadata: {{annotations: {{pleach.dev/after: Deployment/api}}}}, spec: {spec}}}"
    );
    let newer = "Widget.example.org/web/w: {metadata: {annotations: {pleach.dev/after: Deployment/api}}, spec: {replicas: 2}}";
    let plan = back(
        &[NOTED_WIDGETS, API, &resource],
        &[NOTED_WIDGETS, API, newer],
    );
    let first = format!("Widget.example.org/web/w -> Deployment.apps/web/api: {state} Reverse");
    assert_eq!(between(&plan)[0], first);
}

/// A stage can declare that no step waits for its readiness.
#[test]
fn a_stage_that_is_only_applied_is_not_waited_for() {
    let hook = HOOK.replace("OLD", "same");
    let [old, new] = ["v2.0.0", "v3.0.0"]
        .map(|version| RESOURCE.replace("OLD", &format!("{{version: {version}}}")));
    let mut scene = scene(&operator(&old, &hook), &operator(&new, &hook)).stage(
        "products",
        &StageName::Registrations,
        &[],
        &[],
    );
    let rule = scene.desired.sequence.stages.last_mut().unwrap();
    rule.applied_only = true;
    rule.select.push(Selector {
        kind: "Widget".to_owned(),
        group: Some("example.org".to_owned()),
        ..Selector::default()
    });
    let plan = scene.plan();
    let first = "Widget.example.org/web/w -> Deployment.apps/web/api: Applied Reverse".to_owned();
    assert!(between(&plan).contains(&first), "{:#?}", edges(&plan));
}

/// An operator that does not run is the cause of the rollback, and its webhook
/// would accept nothing.
#[rstest]
#[case::runs(json!({"availableReplicas": 1}), true)]
#[case::is_down(json!({"unavailableReplicas": 2}), false)]
#[case::not_seen_yet(json!({}), false)]
fn an_operator_without_ready_pods_is_downgraded_first(
    #[case] status: serde_json::Value,
    #[case] resource_first: bool,
) {
    let hook = HOOK.replace("OLD", "same");
    let [old, new] = ["v2.0.0", "v3.0.0"]
        .map(|version| RESOURCE.replace("OLD", &format!("{{version: {version}}}")));
    let plan = scene(&operator(&old, &hook), &operator(&new, &hook))
        .with_live(id_of(API), |live| live["status"] = status)
        .plan();
    assert_eq!(before(&plan, RESOURCE, API), resource_first);
    assert_eq!(before(&plan, API, RESOURCE), !resource_first);
    // The same applies to a webhook that cannot be called, or that denies the
    // older version.
    let message = "admission webhook \"same\" denied the request: no way back".to_owned();
    let refusal = ApiRefusal {
        code: 422,
        reason: "Invalid".to_owned(),
        message,
    };
    for answer in [
        Prediction::Refused(refusal),
        Prediction::Unverified(Unverified::Webhook("it times out".to_owned())),
    ] {
        let plan = scene(&operator(&old, &hook), &operator(&new, &hook))
            .predict(id_of(RESOURCE), answer)
            .plan();
        assert!(before(&plan, API, RESOURCE), "{:#?}", edges(&plan));
    }
    // The same applies if the webhook changes too.
    let plan = scene(&operator(&old, HOOK), &operator(&new, HOOK))
        .with_live(id_of(API), |live| live["status"] = json!({}))
        .plan();
    assert!(before(&plan, API, RESOURCE), "{:#?}", edges(&plan));
}
