//! Number of edges for many objects, and its limit.

use std::collections::BTreeSet;

use rstest::rstest;

use super::super::scene::Scene;
use super::edges_of;
use crate::plan::{
    Action, Plan,
    draft::{Ctx, Draft},
    plan_offline, stages,
};
use pleach_model::order::StageName;

/// Builds this many bindings of one account, and this many workloads that use
/// it.
fn shared_account(number: usize) -> String {
    let bound = "roleRef: {kind: Role, name: r}, subjects: [{kind: ServiceAccount, name: s}]";
    let shared = "ServiceAccount/web/s: {}\nRole.rbac.authorization.k8s.io/web/r: {}";
    let each = (0..number).map(|number| {
        format!(
            "\nRoleBinding.rbac.authorization.k8s.io/web/b{number}: {{{bound}}}\nDeployment.apps/web/d{number}: {{spec: {{template: {{spec: {{serviceAccountName: s}}}}}}}}"
        )
    });
    std::iter::once(shared.to_owned()).chain(each).collect()
}

/// Builds this many CRDs and workloads.
fn many_crds(number: usize) -> String {
    let each = (0..number).map(|number| {
        format!(
            "CustomResourceDefinition.apiextensions.k8s.io/k{number}.example.org: {{spec: {{group: example.org, names: {{kind: K{number}, plural: k{number}}}, versions: [{{name: v1, served: true}}]}}}}\nDeployment.apps/web/d{number}: {{}}\n"
        )
    });
    each.collect()
}

#[rstest]
#[case::permissions(shared_account)]
#[case::crds(many_crds)]
fn edges_grow_linearly(#[case] git: fn(usize) -> String) {
    let count = |plan: &Plan| -> usize { plan.steps.iter().map(|step| step.needs.len()).sum() };
    // Either everything is new, or everything exists and a part changes.
    let new = |number| Scene::new().git(&git(number)).plan();
    let half = |number: usize| {
        let (desired, marked) = (git(number), "metadata: {labels: {at: new}}, ");
        let changed = desired.replace(": {roleRef", &format!(": {{{marked}roleRef"));
        let changed = changed.replace(
            "example.org: {spec",
            &format!("example.org: {{{marked}spec"),
        );
        Scene::new().installed(&desired).git(&changed).plan()
    };
    let plans: [&dyn Fn(usize) -> Plan; 2] = [&new, &half];
    for plan in plans {
        let (small, large) = (plan(30), plan(120));
        assert!(small.has_steps() && large.has_steps());
        assert!(
            count(&large) <= 5 * count(&small),
            "{} and {}",
            count(&small),
            count(&large)
        );
    }
}

/// Few pairs have direct edges instead of a joining step.
#[test]
fn many_workloads_wait_for_their_permissions_in_one_step() {
    let plan = Scene::new().git(&shared_account(9)).plan();
    let mut steps = plan.steps.iter();
    let joined = steps.find(|step| step.reason == "ServiceAccount/web/s has its permissions");
    let joined = joined.expect("there is a step between them");
    assert_eq!(joined.stage, StageName::Access);
    // The account, its role, and nine bindings.
    assert_eq!(joined.needs.len(), 11);
    for number in 0..9 {
        let workload = super::super::step_of(&plan, &format!("Deployment.apps/web/d{number}"));
        assert!(workload.needs.iter().any(|edge| edge.from == joined.id));
    }
    let plan = Scene::new().git(&shared_account(3)).plan();
    assert_eq!(edges_of(&plan).len(), 3 + 3 * 5);
}

/// A blocked object also blocks the objects behind a joining step.
#[test]
fn a_blocked_binding_blocks_all_workloads_of_its_account() {
    let git = shared_account(9);
    let plan = Scene::new()
        .git(&git)
        .unserved("RoleBinding.rbac.authorization.k8s.io")
        .plan();
    let blocked = |kind: &str| {
        let changes = plan.changes.iter();
        let blocked = changes.filter(|change| change.action == Action::Blocked);
        blocked.filter(|change| change.object.kind == kind).count()
    };
    assert_eq!((blocked("RoleBinding"), blocked("Deployment")), (9, 9));
}

/// Builds this many registrations, each with its own Service and workload.
fn many_registrations(number: usize) -> String {
    let each = (0..number).map(|number| {
        let labels = format!("{{app: all, name: n{number}}}");
        format!(
            "ValidatingWebhookConfiguration.admissionregistration.k8s.io/h{number}: {{webhooks: [{{clientConfig: {{service: {{namespace: web, name: s{number}}}}}}}]}}\nService/web/s{number}: {{spec: {{selector: {labels}}}}}\nDeployment.apps/web/d{number}: {{spec: {{template: {{metadata: {{labels: {labels}}}}}}}}}\n"
        )
    });
    each.collect()
}

#[test]
fn a_service_is_compared_with_workloads_of_its_rarest_label() {
    let compared = |number: usize| {
        let Scene {
            desired,
            observed,
            policy,
            ..
        } = Scene::new().git(&many_registrations(number));
        Ctx::new(&desired, &observed, &policy).budget.spent()
    };
    assert_eq!((compared(30), compared(120)), (30, 120));
}

#[test]
fn selectors_of_stages_count_for_the_budget() {
    let maps = (0..30).map(|number| format!("ConfigMap/web/c{number}: {{}}\n"));
    let scene = Scene::new().git(&maps.collect::<String>()).applies_in(
        "maps",
        &[
            "{kind: ConfigMap, name: none}",
            "{kind: Secret}",
            "{kind: ConfigMap, name: c0}",
        ],
        |_| {},
    );
    let ctx = Ctx::new(&scene.desired, &scene.observed, &scene.policy);
    let mut draft = Draft::within(&ctx.budget);
    stages::run(&ctx, &mut draft, &BTreeSet::new(), false);
    // The first object matches the last selector, and no object matches the
    // others.
    assert_eq!(ctx.budget.spent(), 3 + 29 * 2);
    assert_eq!(draft.findings.len(), 2);
}

#[test]
fn a_plan_beyond_the_budget_is_refused_as_a_whole() {
    // Each registration needs every workload behind its Service.
    let service = "Service/web/s: {spec: {selector: {app: a}}}".to_owned();
    let each = (0..1001).map(|number| {
        format!(
            "\nValidatingWebhookConfiguration.admissionregistration.k8s.io/h{number}: {{webhooks: [{{clientConfig: {{service: {{namespace: web, name: s}}}}}}]}}\nDeployment.apps/web/d{number}: {{spec: {{template: {{metadata: {{labels: {{app: a}}}}}}}}}}"
        )
    });
    let git: String = std::iter::once(service).chain(each).collect();
    let plan = Scene::new().git(&git).plan();
    let refusals: Vec<&str> = plan
        .refusals()
        .map(|finding| finding.code.as_str())
        .collect();
    assert_eq!(refusals, ["plan-too-large"]);
    assert!(plan.steps.is_empty() && plan.changes.is_empty());
}

#[test]
fn a_release_with_too_many_objects_is_refused_before_they_are_read() {
    let mut scene = Scene::new().git("ConfigMap/web/c: {}");
    let limit = 100_000;
    scene.desired.manifests = vec![scene.desired.manifests[0].clone(); limit];
    assert_eq!(scene.desired.refuse_size(), None);
    let one = scene.desired.manifests[0].clone();
    scene.desired.manifests.push(one);
    let refusal = scene.desired.refuse_size().unwrap();
    assert_eq!(refusal.code, "plan-too-large");
    assert!(refusal.message.contains("100001 objects"), "{refusal}");
    // No object is planned.
    let plan = plan_offline(&scene.desired, &scene.observed, &scene.policy);
    let refusals: Vec<&str> = plan.refusals().map(|one| one.code.as_str()).collect();
    assert_eq!(refusals, ["plan-too-large"]);
    assert!(plan.steps.is_empty() && plan.changes.is_empty());
}
