//! Access that is reduced.

use rstest::rstest;
use serde_json::{Value, json};

use super::scene::Scene;
use super::{changes, edges};
use crate::plan::{Action, Body, Op, Plan};

const ROLE: &str = "Role.rbac.authorization.k8s.io/web/api";
const BINDING: &str = "RoleBinding.rbac.authorization.k8s.io/web/api";
const DEPLOYMENT: &str = "Deployment.apps/web/api: {spec: {template: {}}}";
const NEWER: &str = "Deployment.apps/web/api: {spec: {template: {spec: {}}}}";

fn role(verbs: &str) -> String {
    format!("{ROLE}: {{rules: [{{apiGroups: [''], resources: [pods], verbs: [{verbs}]}}]}}\n")
}

fn binding(subjects: &str) -> String {
    format!("{BINDING}: {{roleRef: {{name: api}}, subjects: [{subjects}]}}\n")
}

/// Returns the steps of an object: the stage, and the sent list if it differs
/// from git.
fn steps(plan: &Plan, id: &str) -> Vec<String> {
    plan.steps
        .iter()
        .filter(|step| step.object.to_string() == id)
        .map(|step| match &step.op {
            Op::Apply {
                body: Body::Inline(body),
                ..
            } => {
                let texts = |field: &str, of: &str| -> Vec<String> {
                    let items = body.0[field].as_array().into_iter().flatten();
                    items.map(|item| item[of].to_string()).collect()
                };
                let mut all = texts("rules", "verbs");
                all.extend(texts("subjects", "name"));
                format!("{}: {}", step.stage, all.join(" "))
            }
            op => format!("{}: {}", step.stage, op.verb()),
        })
        .collect()
}

/// Builds a release whose workload changes together with its role.
fn rolling(before: &str, after: &str) -> Scene {
    Scene::new()
        .installed(&format!("{DEPLOYMENT}\n{before}"))
        .git(&format!("{NEWER}\n{after}"))
}

#[rstest]
#[case::more(rolling(&role("get"), &role("get, list")), &["access: apply"])]
#[case::less(rolling(&role("get, list"), &role("get")), &["shrink: apply"])]
#[case::other(rolling(&role("get"), &role("list")), &[r#"access: ["list"] ["get"]"#, "shrink: apply"])]
#[case::the_same_in_other_words(rolling(&role("get, list"), &role("list, get")), &["access: apply"])]
#[case::no_pods_are_exchanged(
    Scene::new().installed(&format!("{DEPLOYMENT}\n{}", role("get"))).git(&format!("{DEPLOYMENT}\n{}", role("list"))),
    &["access: apply"])]
#[case::pods_of_a_previous_run_may_be_left(
    Scene::new().installed(&format!("{DEPLOYMENT}\n{}", role("get"))).unfinished("v2.0.0").git(&format!("{DEPLOYMENT}\n{}", role("list"))),
    &[r#"access: ["list"] ["get"]"#, "shrink: apply"])]
#[case::a_workload_is_removed(
    Scene::new().installed(&format!("{DEPLOYMENT}\n{}", role("get"))).git(&role("list")),
    &[r#"access: ["list"] ["get"]"#, "shrink: apply"])]
#[case::drift_is_corrected_at_once(
    rolling(&role("get"), &role("get")).edited("kubectl", &format!("{ROLE}: {{rules: [{{apiGroups: ['*'], resources: ['*'], verbs: ['*']}}]}}")),
    &["access: apply"])]
#[case::aggregated(
    rolling(&role("get").replace("{rules", "{aggregationRule: {}, rules"), &role("list").replace("{rules", "{aggregationRule: {}, rules")),
    &["access: apply"])]
fn removed_rules_stay_until_the_end(#[case] scene: Scene, #[case] expected: &[&str]) {
    assert_eq!(steps(&scene.plan(), ROLE), expected);
}

const OLD: &str = "{kind: ServiceAccount, name: old, namespace: web}";
const NEW: &str = "{kind: ServiceAccount, name: new, namespace: web}";
const PERSON: &str = "{kind: User, name: jane}";

#[rstest]
#[case::another_account(&[OLD], &[NEW], &[r#"access: "new" "old""#, "shrink: apply"])]
#[case::an_account_less(&[OLD, NEW], &[NEW], &["shrink: apply"])]
#[case::a_person_less(&[OLD, PERSON], &[OLD], &["access: apply"])]
#[case::both_less(&[OLD, PERSON], &[], &["shrink: apply"])]
fn removed_accounts_stay_until_the_end(
    #[case] before: &[&str],
    #[case] after: &[&str],
    #[case] expected: &[&str],
) {
    let scene = rolling(&binding(&before.join(", ")), &binding(&after.join(", ")));
    assert_eq!(steps(&scene.plan(), BINDING), expected);
}

#[test]
fn access_is_reduced_after_everything_else() {
    let plan = Scene::new()
        .installed(&format!(
            "{DEPLOYMENT}\nServiceAccount/web/old: {{}}\n{}{}",
            role("get"),
            binding(OLD)
        ))
        .git(&format!("{NEWER}\n{}{}", role("list"), binding(NEW)))
        .plan();
    let last: Vec<String> = plan.steps[plan.steps.len() - 3..]
        .iter()
        .map(|step| format!("{}: {} {}", step.stage, step.op.verb(), step.object))
        .collect();
    assert_eq!(
        last,
        [
            "prune: delete ServiceAccount/web/old".to_owned(),
            format!("shrink: apply {ROLE}"),
            format!("shrink: apply {BINDING}"),
        ]
    );
    let edges = edges(&plan);
    for expected in [
        format!("ServiceAccount/web/old -> {ROLE}: Absent Barrier"),
        format!("Release.pleach.dev/e.r (wait) -> {ROLE}: Applied Barrier"),
        format!("{ROLE} -> {ROLE}: Applied SameObject"),
    ] {
        assert!(edges.contains(&expected), "{expected}\n{edges:#?}");
    }
}

#[test]
fn without_verification_access_is_not_reduced() {
    let scene = rolling(&role("get, list"), &role("get")).policy(|policy| policy.wait = false);
    let plan = scene.plan();
    assert_eq!(steps(&plan, ROLE), [""; 0]);
    assert!(changes(&plan).contains(&format!(
        "skip {ROLE}: access is reduced only after all objects are ready, which this run does not check"
    )));
    assert!(
        plan.findings
            .iter()
            .any(|one| one.code == "access-not-reduced")
    );
    assert_eq!(plan.count(Action::Skip), 1);
    // Added rules take effect immediately.
    let scene = rolling(&role("get"), &role("list")).policy(|policy| policy.wait = false);
    assert_eq!(steps(&scene.plan(), ROLE), [r#"access: ["list"] ["get"]"#]);
}

#[test]
fn the_union_contains_no_other_live_field() {
    // The union contains the live list, but no other live field.
    let scene = rolling(&role("get"), &role("list")).with_live(ROLE, |live: &mut Value| {
        live["metadata"]["annotations"]["note"] = json!("of another manager");
    });
    let plan = scene.plan();
    let sent = plan.steps.iter().find_map(|step| match &step.op {
        Op::Apply {
            body: Body::Inline(body),
            ..
        } => Some(&body.0),
        _ => None,
    });
    assert_eq!(sent.unwrap()["metadata"]["annotations"], Value::Null);
}
