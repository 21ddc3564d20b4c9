//! Readiness of all objects, and the verify barrier.

use rstest::rstest;

use super::scene::Scene;
use super::{edges, lines};
use crate::plan::Plan;

const DEPLOYMENT: &str = "Deployment.apps/web/api: {spec: {template: {}}}";

fn verify(plan: &Plan) -> Vec<String> {
    let lines = lines(plan).into_iter();
    lines.filter(|line| line.starts_with("verify: ")).collect()
}

const BARRIER: &str = "verify: wait Release.pleach.dev/e.r";

#[rstest]
#[case::nothing_to_do(Scene::new().installed(DEPLOYMENT).git(DEPLOYMENT), &[])]
#[case::after_an_unfinished_run(Scene::new().installed(DEPLOYMENT).unfinished("v2.0.0").git(DEPLOYMENT),
    &["verify: wait Deployment.apps/web/api until ready", BARRIER])]
#[case::first(Scene::new().git(DEPLOYMENT), &[BARRIER])]
#[case::unchanged_with_readiness(Scene::new().installed(&format!("{DEPLOYMENT}\nConfigMap/web/c: {{}}")).git(&format!("{DEPLOYMENT}\nConfigMap/web/c: {{}}\nConfigMap/web/new: {{}}")),
    &["verify: wait Deployment.apps/web/api until ready", BARRIER])]
#[case::only_prune(Scene::new().installed(&format!("{DEPLOYMENT}\nConfigMap/web/c: {{}}")).git(DEPLOYMENT),
    &["verify: wait Deployment.apps/web/api until ready", BARRIER])]
#[case::not_waiting(Scene::new().git(DEPLOYMENT).policy(|policy| policy.wait = false), &[])]
#[case::blocked(Scene::new().git(DEPLOYMENT).live("ConfigMap/web/c: {managers: [x]}").git("ConfigMap/web/c: {}"), &[])]
#[case::registered(Scene::new().git(&format!("{DEPLOYMENT}\nService/web/api: {{}}")).declares("{kind: APIService, group: apiregistration.k8s.io, service: api}"),
    &["verify: wait Service/web/api until APIService.apiregistration.k8s.io points at web/api", BARRIER])]
#[case::by_name(Scene::new().git(DEPLOYMENT).git("ConfigMap/other/c: {}").live("Namespace/other: {}").declares("{kind: Secret, group: '', name: made}"),
    &["verify: wait Secret/other/made until Secret/other/made or Secret/web/made exists", BARRIER])]
#[case::by_name_without_namespace(Scene::new().git(DEPLOYMENT).cluster_scoped("PriorityClass.scheduling.k8s.io").declares("{kind: PriorityClass, group: scheduling.k8s.io, name: made}"),
    &["verify: wait PriorityClass.scheduling.k8s.io/made until PriorityClass.scheduling.k8s.io/made exists", BARRIER])]
#[case::of_what_was_checked(Scene::new().installed(&format!("{DEPLOYMENT}\nConfigMap/web/c: {{}}")).git(&format!("{DEPLOYMENT}\nConfigMap/web/c: {{}}\nConfigMap/web/new: {{}}"))
    .declares("{kind: Secret, group: '', name: made}").cluster(|observed| observed.focus = Some(["ConfigMap/web/new".parse().unwrap()].into())), &[BARRIER])]
#[case::optional(Scene::new().git(DEPLOYMENT).declares("{kind: Secret, group: '', name: made, optional: true}"), &[BARRIER])]
fn is_waited_for(#[case] scene: Scene, #[case] expected: &[&str]) {
    assert_eq!(verify(&scene.plan()), expected);
}

#[test]
fn the_barrier_needs_everything_before_it() {
    let plan = Scene::new()
        .installed("ConfigMap/web/old: {}")
        .git(&format!(
            "{DEPLOYMENT}\nConfigMap/web/c: {{}}\nService/web/api: {{}}"
        ))
        .declares("{kind: APIService, group: apiregistration.k8s.io, service: api}")
        .plan();
    let mut edges: Vec<String> = edges(&plan)
        .into_iter()
        .filter(|edge| edge.contains("-> Release.pleach.dev"))
        .collect();
    edges.sort();
    assert_eq!(
        edges,
        [
            "ConfigMap/web/c -> Release.pleach.dev/e.r (wait): Applied Barrier",
            "Deployment.apps/web/api -> Release.pleach.dev/e.r (wait): Ready Barrier",
            "Service/web/api (wait) -> Release.pleach.dev/e.r (wait): Ready Barrier",
            "Service/web/api -> Release.pleach.dev/e.r (wait): Ready Barrier",
        ]
    );
}

#[test]
fn run_time_objects_are_waited_for_from_when_the_workloads_are_ready() {
    let plan = Scene::new()
        .git(&format!("{DEPLOYMENT}\nDeployment.apps/web/b: {{spec: {{template: {{}}}}}}\nService/web/api: {{}}"))
        .declares("{kind: APIService, group: apiregistration.k8s.io, service: api}")
        .plan();
    let edges = edges(&plan);
    for workload in ["api", "b"] {
        let edge =
            format!("Deployment.apps/web/{workload} -> Service/web/api (wait): Ready Reference");
        assert!(edges.contains(&edge), "{edges:#?}");
    }
}

#[rstest]
#[case(
    "{kind: APIService, group: apiregistration.k8s.io, service: typo}",
    "ConfigMap/web/c: {}",
    "run-time-object-without-service"
)]
#[case(
    "{kind: Secret, group: '', name: made}",
    "ClusterRole.rbac.authorization.k8s.io/r: {}",
    "run-time-object-without-namespace"
)]
fn missing_verification_targets_are_reported(
    #[case] declared: &str,
    #[case] git: &str,
    #[case] code: &str,
) {
    let plan = Scene::new().git(git).declares(declared).plan();
    assert_eq!(plan.findings[0].code, code);
}

/// A new version of an operator may break its operands, even if git does not
/// change them.
#[test]
fn unchanged_objects_are_rechecked_after_their_dependencies_change() {
    let stays = "CustomResourceDefinition.apiextensions.k8s.io/widgets.example.org: {spec: {group: example.org, names: {kind: Widget, plural: widgets}, versions: [{name: v1, served: true}]}}\n\
        Service/web/api: {spec: {selector: {app: api}}}\n\
        ValidatingWebhookConfiguration.admissionregistration.k8s.io/h: {webhooks: [{clientConfig: {service: {namespace: web, name: api}}, rules: [{apiGroups: [example.org], resources: [widgets]}]}]}\n\
        Deployment.apps/web/other: {spec: {template: {spec: {volumes: [{configMap: {name: c}}]}}}}\n\
        Widget.example.org/web/w: {spec: {a: b}}\n";
    let changes = "Deployment.apps/web/api: {spec: {image: OLD, template: {metadata: {labels: {app: api}}}}}\nConfigMap/web/c: {data: {k: OLD}}";
    let plan = Scene::new()
        .installed(&format!("{stays}{changes}"))
        .git(&format!("{stays}{}", changes.replace("OLD", "NEW")))
        .plan();
    let edges: Vec<String> = edges(&plan)
        .into_iter()
        .filter(|edge| edge.contains("(wait):") && !edge.contains("Release"))
        .collect();
    assert_eq!(
        edges,
        [
            "ConfigMap/web/c -> Deployment.apps/web/other (wait): Applied Reference",
            "Deployment.apps/web/api -> Widget.example.org/web/w (wait): Ready Intercepts",
        ]
    );
}

const GUARDED: &str = "Deployment.apps/web/api: {spec: {template: {metadata: {labels: {app: api}}}}}\nService/web/api: {spec: {selector: {app: api}}}\n\
    ValidatingWebhookConfiguration.admissionregistration.k8s.io/h: {webhooks: [{clientConfig: {service: {namespace: web, name: api}}, rules: [{apiGroups: [x.org], resources: [widgets]}]}]}";
const ANSWERS: &str = "verify: wait Service/web/api until web/api has 1";

/// Every part is ready, but all intercepted requests are refused.
#[rstest]
#[case::other_pods(GUARDED.replace("labels: {app: api}", "labels: {app: other}"), true)]
#[case::another_selector(GUARDED.replace("selector: {app: api}", "selector: {app: other}"), true)]
#[case::both(GUARDED.replace("app: api", "app: other"), false)]
#[case::one_more_label(GUARDED.replace("labels: {app: api}", "labels: {app: api, b: c}"), false)]
#[case::no_registration(GUARDED.replace("labels: {app: api}", "labels: {app: other}").split_once("\nV").unwrap().0.to_owned(), false)]
fn a_service_that_a_registration_names_keeps_an_endpoint(#[case] git: String, #[case] waits: bool) {
    let scene = Scene::new().installed(GUARDED).git(&git);
    let plan = scene.plan();
    let found = verify(&plan).contains(&ANSWERS.to_owned());
    assert_eq!(found, waits, "{:#?}", verify(&plan));
    if waits {
        // The wait comes after the steps that remove the endpoints.
        let is_wait = |edge: &String| edge.ends_with("-> Service/web/api (wait): Ready Backend");
        assert!(edges(&plan).iter().any(is_wait), "{:#?}", edges(&plan));
    }
}

/// The run after one that ended without endpoints changes nothing.
#[rstest]
#[case::an_upgrade(|scene: Scene| scene.unfinished("v2.0.0"), true)]
#[case::verified(|scene| scene, false)]
#[case::a_first_installation(|mut scene: Scene| {
    scene.observed.installed = None;
    scene.unfinished("v2.0.0")
}, false)]
fn it_is_waited_for_again(#[case] after: impl Fn(Scene) -> Scene, #[case] waits: bool) {
    let git = GUARDED.replace("labels: {app: api}", "labels: {app: other}");
    let more = format!("{git}\nConfigMap/web/new: {{}}");
    let plan = after(Scene::new().installed(&git)).git(&more).plan();
    let found = verify(&plan).contains(&ANSWERS.to_owned());
    assert_eq!(found, waits, "{:#?}", verify(&plan));
}
