//! Context of the workloads of a release.

use rstest::rstest;
use serde_json::json;

use super::scene::Scene;
use crate::observe::{Budget, Node, WorkloadContext};

const API: &str = "Deployment.apps/web/api: {spec: {replicas: 2, selector: {matchLabels: {app: api}}, template: {metadata: {labels: {app: api, tier: front}}, spec: {}}}}";

fn budget(name: &str, spec: &str) -> String {
    format!("PodDisruptionBudget.policy/web/{name}: {{spec: {spec}}}")
}

fn workload_context() -> WorkloadContext {
    let mut workload_context = WorkloadContext::default();
    let node = |name: &str, ready: &str, unschedulable: bool| {
        Node::of(&json!({
            "metadata": {"name": name}, "spec": {"unschedulable": unschedulable},
            "status": {"conditions": [{"type": "MemoryPressure", "status": "True"}, {"type": "Ready", "status": ready}]},
        }))
    };
    workload_context.count(vec![
        node("c", "True", true),
        node("b", "Unknown", false),
        node("a", "True", false),
    ]);
    workload_context
}

fn messages(git: &str, workload_context: Option<WorkloadContext>) -> Vec<String> {
    let plan = Scene::new()
        .git(git)
        .cluster(|observed| observed.workload_context = workload_context)
        .plan();
    let findings = plan.findings.iter();
    findings
        .map(|finding| format!("{}: {}", finding.code, finding.message))
        .collect()
}

#[test]
fn nodes_that_take_no_pods_are_named() {
    assert_eq!(
        messages(API, Some(workload_context())),
        [
            "nodes-cordoned: 1 of 3 nodes is cordoned: c",
            "nodes-not-ready: 1 of 3 nodes is not ready: b",
        ]
    );
    // A plan without workload changes reports nothing.
    assert_eq!(
        messages("ConfigMap/web/c: {}", Some(workload_context())),
        [""; 0]
    );
    assert_eq!(messages(API, None), [""; 0]);
}

#[test]
fn many_names_are_cut() {
    let mut many = WorkloadContext {
        nodes: Some(20),
        ..WorkloadContext::default()
    };
    many.not_ready = (0..7).map(|n| format!("n{n}")).collect();
    assert_eq!(
        messages(API, Some(many)),
        ["nodes-not-ready: 7 of 20 nodes are not ready: n0, n1, n2, n3, n4 and 2 more"]
    );
}

#[rstest]
#[case::room("{minAvailable: 1, selector: {matchLabels: {app: api}}}", None)]
#[case::all(
    "{minAvailable: 2, selector: {matchLabels: {app: api}}}",
    Some("minAvailable: 2")
)]
#[case::all_in_percent(
    "{minAvailable: 51%, selector: {matchLabels: {app: api}}}",
    Some("minAvailable: 51%")
)]
#[case::half("{minAvailable: 50%, selector: {matchLabels: {app: api}}}", None)]
#[case::none(
    "{maxUnavailable: 0, selector: {matchLabels: {app: api}}}",
    Some("maxUnavailable: 0")
)]
#[case::none_in_percent(
    "{maxUnavailable: 0%, selector: {matchLabels: {app: api}}}",
    Some("maxUnavailable: 0%")
)]
#[case::one_rounded_up("{maxUnavailable: 1%, selector: {matchLabels: {app: api}}}", None)]
#[case::of_others("{maxUnavailable: 0, selector: {matchLabels: {app: web}}}", None)]
#[case::everything("{maxUnavailable: 0, selector: {}}", Some("maxUnavailable: 0"))]
#[case::nothing("{maxUnavailable: 0}", None)]
#[case::by_terms(
    "{maxUnavailable: 0, selector: {matchExpressions: [{key: tier, operator: In, values: [front]}, {key: x, operator: DoesNotExist}, {key: app, operator: Exists}, {key: app, operator: NotIn, values: [web]}]}}",
    Some("maxUnavailable: 0")
)]
#[case::by_terms_of_others(
    "{maxUnavailable: 0, selector: {matchExpressions: [{key: tier, operator: NotIn, values: [front]}]}}",
    None
)]
fn a_budget_that_permits_no_eviction_is_named(#[case] spec: &str, #[case] bound: Option<&str>) {
    let git = format!("{API}\n{}", budget("b", spec));
    let expected: Vec<String> = bound
        .map(|bound| {
            format!(
                "budget-allows-nothing: PodDisruptionBudget b allows no eviction of its 2 pods ({bound})"
            )
        })
        .into_iter()
        .collect();
    assert_eq!(messages(&git, Some(WorkloadContext::default())), expected);
}

#[test]
fn a_workload_context_without_obstacles_changes_no_plan() {
    let spec = "{maxUnavailable: 0, selector: {matchLabels: {app: api}}}";
    let git = format!("{API}\n{}", budget("b", spec));
    let counted = WorkloadContext {
        nodes: Some(3),
        ..WorkloadContext::default()
    };
    assert!(counted.is_clear() && !workload_context().is_clear());
    let assumed = messages(&git, Some(WorkloadContext::default()));
    assert_eq!(assumed.len(), 1);
    assert_eq!(messages(&git, Some(counted)), assumed);
}

#[test]
fn two_budgets_for_a_pod_are_one_too_many() {
    let mut workload_context = WorkloadContext::default();
    workload_context.budgets.push(Budget {
        id: "PodDisruptionBudget.policy/web/theirs".parse().unwrap(),
        spec: json!({"minAvailable": 1, "selector": {}}),
    });
    workload_context.budgets.push(Budget {
        id: "PodDisruptionBudget.policy/other/theirs".parse().unwrap(),
        spec: json!({"minAvailable": 1, "selector": {}}),
    });
    let git = format!(
        "{API}\n{}",
        budget(
            "ours",
            "{minAvailable: 1, selector: {matchLabels: {app: api}}}"
        )
    );
    assert_eq!(
        messages(&git, Some(workload_context)),
        ["budgets-overlap: its pods have 2 PodDisruptionBudgets: ours, theirs"]
    );
}

/// The previous budget is deleted by the plan, unless pruning is off.
#[rstest]
#[case::it_is_removed(true)]
#[case::it_stays(false)]
fn a_budget_under_another_name_is_no_second_one(#[case] prunes: bool) {
    let spec = "{minAvailable: 1, selector: {matchLabels: {app: api}}}";
    let previous = Budget {
        id: "PodDisruptionBudget.policy/web/previous".parse().unwrap(),
        spec: json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "api"}}}),
    };
    let newer = API.replace("replicas: 2", "replicas: 3");
    let plan = Scene::new()
        .installed(&format!("{API}\n{}", budget("previous", spec)))
        .git(&format!("{newer}\n{}", budget("ours", spec)))
        .policy(|policy| policy.prune.enabled = prunes)
        .cluster(|observed| {
            observed
                .workload_context
                .get_or_insert_default()
                .budgets
                .push(previous);
        })
        .plan();
    let mut findings = plan.findings.iter();
    let warns = findings.any(|finding| finding.code == "budgets-overlap");
    assert_eq!(warns, !prunes, "{:#?}", plan.findings);
}

#[test]
fn a_workload_without_pods_has_nothing_to_lose() {
    let git = format!(
        "{}\n{}",
        API.replace("replicas: 2", "replicas: 0"),
        budget("b", "{maxUnavailable: 0, selector: {}}")
    );
    assert_eq!(messages(&git, Some(WorkloadContext::default())), [""; 0]);
}
