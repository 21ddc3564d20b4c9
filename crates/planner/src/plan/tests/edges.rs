//! Dependencies between steps.

mod growth;

use rstest::rstest;

use super::scene::Scene;
use super::{WIDGETS, changes, edges};
use crate::plan::{Action, Plan, Until};
use pleach_model::finding::Finding;
use pleach_model::order::StageName;

const HOOK: &str = "ValidatingWebhookConfiguration.admissionregistration.k8s.io/h: {webhooks: [{clientConfig: {service: {namespace: web, name: api}}, rules: [{apiGroups: [example.org], resources: [widgets]}]}]}";
const API: &str = "Deployment.apps/web/api: {spec: {replicas: 2, template: {metadata: {labels: {app: api}}}}}\nService/web/api: {spec: {selector: {app: api}}}";

const POLICY: &str = "ValidatingAdmissionPolicy.admissionregistration.k8s.io/p: {spec: {paramKind: {apiVersion: example.org/v1, kind: Widget}}}";
const BINDING: &str = "ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io/b: {spec: {policyName: p, paramRef: {name: w, namespace: web}}}";

/// Returns the edges of a plan without those of barriers.
fn edges_of(plan: &Plan) -> Vec<String> {
    edges(plan)
        .into_iter()
        .filter(|edge| !edge.ends_with("Barrier"))
        .collect()
}

#[rstest]
#[case::crd(&format!("{WIDGETS}\nWidget.example.org/web/w: {{}}"),
    &["CustomResourceDefinition.apiextensions.k8s.io/widgets.example.org -> Widget.example.org/web/w: Ready Crd"])]
#[case::namespace("Namespace/a: {}\nConfigMap/a/c: {}", &["Namespace/a -> ConfigMap/a/c: Applied Namespace"])]
#[case::role("Role.rbac.authorization.k8s.io/web/r: {}\nRoleBinding.rbac.authorization.k8s.io/web/b: {roleRef: {kind: Role, name: r}}",
    &["Role.rbac.authorization.k8s.io/web/r -> RoleBinding.rbac.authorization.k8s.io/web/b: Applied Role"])]
#[case::permissions("ServiceAccount/web/s: {}\nClusterRoleBinding.rbac.authorization.k8s.io/b: {subjects: [{kind: ServiceAccount, name: s, namespace: web}]}\nDeployment.apps/web/api: {spec: {template: {spec: {serviceAccountName: s}}}}",
    &["ServiceAccount/web/s -> Deployment.apps/web/api: Applied Permissions",
      "ClusterRoleBinding.rbac.authorization.k8s.io/b -> Deployment.apps/web/api: Applied Permissions"])]
#[case::aggregated_permissions("ServiceAccount/web/s: {}\nClusterRole.rbac.authorization.k8s.io/all: {aggregationRule: {clusterRoleSelectors: [{matchLabels: {part: one}}]}}\nClusterRole.rbac.authorization.k8s.io/part: {metadata: {labels: {part: one}}}\nClusterRole.rbac.authorization.k8s.io/other: {metadata: {labels: {part: two}}}\nClusterRoleBinding.rbac.authorization.k8s.io/b: {roleRef: {kind: ClusterRole, name: all}, subjects: [{kind: ServiceAccount, name: s, namespace: web}]}\nDeployment.apps/web/api: {spec: {template: {spec: {serviceAccountName: s}}}}",
    &["ServiceAccount/web/s -> Deployment.apps/web/api: Applied Permissions",
      "ClusterRole.rbac.authorization.k8s.io/all -> ClusterRoleBinding.rbac.authorization.k8s.io/b: Applied Role",
      "ClusterRole.rbac.authorization.k8s.io/all -> Deployment.apps/web/api: Applied Permissions",
      "ClusterRole.rbac.authorization.k8s.io/part -> Deployment.apps/web/api: Applied Permissions",
      "ClusterRoleBinding.rbac.authorization.k8s.io/b -> Deployment.apps/web/api: Applied Permissions"])]
#[case::token("ServiceAccount/web/s: {}\nSecret/web/t: {type: kubernetes.io/service-account-token, metadata: {annotations: {kubernetes.io/service-account.name: s}}}\nSecret/web/other: {type: Opaque, metadata: {annotations: {kubernetes.io/service-account.name: s}}}",
    &["ServiceAccount/web/s -> Secret/web/t: Applied Token"])]
#[case::reference("ConfigMap/web/c: {}\nConfigMap/web/other: {}\nPod/web/p: {spec: {volumes: [{configMap: {name: c}}]}}",
    &["ConfigMap/web/c -> Pod/web/p: Applied Reference"])]
#[case::backend(&format!("{API}\n{HOOK}"), &[
    "Deployment.apps/web/api -> Service/web/api (wait): Ready Backend",
    "Service/web/api -> Service/web/api (wait): Applied Backend",
    "Deployment.apps/web/api -> ValidatingWebhookConfiguration.admissionregistration.k8s.io/h: Ready Backend",
    "Service/web/api -> ValidatingWebhookConfiguration.admissionregistration.k8s.io/h: Applied Backend",
    "Service/web/api (wait) -> ValidatingWebhookConfiguration.admissionregistration.k8s.io/h: Ready Backend"])]
#[case::parameters(&format!("{WIDGETS}\n{POLICY}\n{BINDING}\nWidget.example.org/web/w: {{}}\nWidget.example.org/web/other: {{}}"), &[
    "CustomResourceDefinition.apiextensions.k8s.io/widgets.example.org -> Widget.example.org/web/w: Ready Crd",
    "CustomResourceDefinition.apiextensions.k8s.io/widgets.example.org -> Widget.example.org/web/other: Ready Crd",
    "CustomResourceDefinition.apiextensions.k8s.io/widgets.example.org -> ValidatingAdmissionPolicy.admissionregistration.k8s.io/p: Ready Crd",
    "Widget.example.org/web/w -> ValidatingAdmissionPolicy.admissionregistration.k8s.io/p: Applied Policy",
    "Widget.example.org/web/w -> ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io/b: Applied Policy",
    "ValidatingAdmissionPolicy.admissionregistration.k8s.io/p -> ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io/b: Applied Policy"])]
#[case::parameters_that_a_selector_finds(&format!("{}\n{}\nConfigMap/web/one: {{}}\nConfigMap/web/two: {{}}\nConfigMap/other/c: {{}}",
    POLICY.replace("example.org/v1, kind: Widget", "v1, kind: ConfigMap"), BINDING.replace("name: w, ", "selector: {}, ")), &[
    "ConfigMap/web/one -> ValidatingAdmissionPolicy.admissionregistration.k8s.io/p: Applied Policy",
    "ConfigMap/web/one -> ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io/b: Applied Policy",
    "ConfigMap/web/two -> ValidatingAdmissionPolicy.admissionregistration.k8s.io/p: Applied Policy",
    "ConfigMap/web/two -> ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io/b: Applied Policy",
    "ValidatingAdmissionPolicy.admissionregistration.k8s.io/p -> ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io/b: Applied Policy"])]
#[case::a_policy_without_parameters("ValidatingAdmissionPolicy.admissionregistration.k8s.io/p: {}\nValidatingAdmissionPolicyBinding.admissionregistration.k8s.io/b: {spec: {policyName: p}}\nConfigMap/web/w: {}",
    &["ValidatingAdmissionPolicy.admissionregistration.k8s.io/p -> ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io/b: Applied Policy"])]
#[case::a_policy_of_others(BINDING, &[])]
#[case::after("ConfigMap/web/a: {metadata: {annotations: {pleach.dev/after: Job/migrate}}}\nJob.batch/web/migrate: {}",
    &["Job.batch/web/migrate -> ConfigMap/web/a: Ready After"])]
#[case::after_in_the_same_namespace_first("ConfigMap/web/a: {metadata: {annotations: {pleach.dev/after: \"Job/m, Secret/s\"}}}\nJob.batch/a/m: {}\nJob.batch/web/m: {}\nSecret/other/s: {}",
    &["Secret/other/s -> ConfigMap/web/a: Ready After", "Job.batch/web/m -> ConfigMap/web/a: Ready After"])]
#[case::none("ConfigMap/web/c: {}\nDeployment.apps/web/api: {spec: {template: {spec: {serviceAccountName: not-ours, volumes: [{configMap: {name: c, optional: true}}]}}}}", &[])]
fn an_edge_has_a_reason(#[case] git: &str, #[case] expected: &[&str]) {
    let mut scene = Scene::new().unserved("Widget.example.org").git(git);
    for namespace in ["a", "other"] {
        if !git.contains("Namespace/a") {
            scene = scene.live(&format!("Namespace/{namespace}: {{}}"));
        }
    }
    let mut found = edges_of(&scene.plan());
    let mut expected = expected.to_vec();
    found.sort();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

#[rstest]
#[case::as_without_it("require", Some(false))]
#[case::only_reported("warn", Some(true))]
#[case::not_at_all("none", None)]
fn an_annotation_decides_whether_readiness_is_required(
    #[case] how: &str,
    #[case] expected: Option<bool>,
) {
    let annotated = format!("api: {{metadata: {{annotations: {{pleach.dev/ready: {how}}}}}, spec");
    let git = API.replacen("api: {spec", &annotated, 1);
    let new = Scene::new().git(&git).plan();
    // Unchanged, but its readiness is unknown.
    let left = Scene::new().installed(&git).unfinished("v2.0.0").git(&git);
    for plan in [new, left.plan()] {
        let mut steps = plan.steps.iter();
        let step = steps.find(|step| step.object.kind == "Deployment");
        let found = step.and_then(|step| match &step.until {
            Some(Until::Ready { optional, .. }) => Some(*optional),
            None => None,
            other => panic!("{other:?}"),
        });
        assert_eq!(found, expected);
    }
}

/// Only workloads that must be ready count.
#[rstest]
#[case::all_of_them("require", 4)]
#[case::one_of_them("none", 2)]
#[case::one_of_them_is_reported("warn", 2)]
fn endpoints_are_required_only_of_workloads_that_must_be_ready(
    #[case] how: &str,
    #[case] expected: usize,
) {
    let canary = API.lines().next().unwrap().replace("web/api", "web/canary");
    let annotated =
        format!("canary: {{metadata: {{annotations: {{pleach.dev/ready: {how}}}}}, spec");
    let canary = canary.replacen("canary: {spec", &annotated, 1);
    let plan = Scene::new().git(&format!("{API}\n{canary}\n{HOOK}")).plan();
    let mut untils = plan.steps.iter().filter_map(|step| step.until.as_ref());
    let found = untils.find_map(|until| match until {
        Until::Endpoints { ready, .. } => Some(*ready),
        _ => None,
    });
    assert_eq!(found, Some(expected));
}

const WRITTEN: &str = "CustomResourceDefinition.apiextensions.k8s.io/widgets.example.org -> Deployment.apps/web/api: Applied Operator";

/// Any workload of the release may serve the kind.
#[rstest]
#[case::it_comes(Scene::new().unserved("Widget.example.org").git(&format!("{WIDGETS}\n{API}")), true)]
#[case::it_changes(
    Scene::new().installed(WIDGETS).git(&WIDGETS.replace("versions", "note: x, versions")).git(API),
    true
)]
#[case::it_stays(Scene::new().installed(WIDGETS).git(&format!("{WIDGETS}\n{API}")), false)]
#[case::it_stays_and_is_not_served_yet(
    Scene::new().installed(WIDGETS).unfinished("v2.0.0").unserved("Widget.example.org").git(&format!("{WIDGETS}\n{API}")),
    false
)]
#[case::it_needs_the_workload(
    Scene::new().unserved("Widget.example.org").git(&format!(
        "{}\n{API}",
        WIDGETS.replace("{spec", "{metadata: {annotations: {pleach.dev/after: Deployment/api}}, spec")
    )),
    false
)]
#[case::it_comes_in_a_later_stage(
    Scene::new().unserved("Widget.example.org").git(&format!("{WIDGETS}\n{API}"))
        .applies_in("late", &["{kind: CustomResourceDefinition}"], |_| ()),
    false
)]
fn a_workload_is_applied_after_the_crds_of_its_release(
    #[case] scene: Scene,
    #[case] expected: bool,
) {
    let plan = scene.plan();
    assert!(!plan.findings.iter().any(Finding::is_error));
    let edges = edges_of(&plan);
    let found = edges.iter().any(|edge| edge == WRITTEN);
    assert_eq!(found, expected, "{edges:#?}");
}

/// The pods would request fields that the CRD lacks.
#[test]
fn a_workload_is_unchanged_while_a_crd_is_blocked() {
    let api = |image: &str| API.replace("{replicas", &format!("{{image: {image}, replicas"));
    let plan = Scene::new()
        .live(&WIDGETS.replace("{spec", "{managers: [x], spec"))
        .installed(&api("a"))
        .git(&format!("{WIDGETS}\n{}", api("b")))
        .plan();
    let changes = changes(&plan);
    let blocked = "blocked Deployment.apps/web/api: it needs CustomResourceDefinition.apiextensions.k8s.io/widgets.example.org, which is blocked";
    assert!(changes.iter().any(|line| line == blocked), "{changes:#?}");
    assert!(!plan.steps.iter().any(|step| step.op.applies()));
}

const AGGREGATED: &str = "APIService.apiregistration.k8s.io/v1.sub.example.org: {spec: {group: sub.example.org, version: v1, service: {namespace: web, name: api}}}";

/// Objects of an API whose server is part of the release wait for it, whether
/// it is not registered or does not answer yet. They are not refused.
#[rstest]
#[case::not_registered_yet(Scene::new().unserved("Thing.sub.example.org"))]
#[case::not_answering_yet(Scene::new().stale("sub.example.org"))]
fn objects_of_an_api_of_the_release_wait_for_it(#[case] scene: Scene) {
    let git = format!("{API}\n{AGGREGATED}\nThing.sub.example.org/web/first: {{}}");
    let plan = scene.git(&git).plan();
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);
    let edge = "APIService.apiregistration.k8s.io/v1.sub.example.org -> Thing.sub.example.org/web/first: Ready Api";
    let edges = edges_of(&plan);
    assert!(edges.iter().any(|found| found == edge), "{edges:?}");
    let thing = plan.steps.iter().find(|step| step.object.kind == "Thing");
    assert_eq!(thing.unwrap().stage, StageName::Resources);
}

/// After an interrupted run, the APIService is unchanged.
#[test]
fn an_api_that_does_not_answer_yet_is_waited_for() {
    let git = format!("{API}\n{AGGREGATED}");
    let plan = Scene::new()
        .stale("sub.example.org")
        .installed(&git)
        .git(&git)
        .git("Thing.sub.example.org/web/first: {}")
        .plan();
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);
    let edges = edges_of(&plan);
    let edge = "APIService.apiregistration.k8s.io/v1.sub.example.org (wait) -> Thing.sub.example.org/web/first: Ready Api";
    assert!(edges.iter().any(|found| found == edge), "{edges:?}");
}

/// After an interrupted run, the CRD is unchanged but its kind is not served
/// yet.
#[test]
fn a_policy_waits_for_an_unserved_crd() {
    let plan = Scene::new()
        .installed(WIDGETS)
        .unfinished("v2.0.0")
        .unserved("Widget.example.org")
        .git(&format!("{WIDGETS}\n{POLICY}\n{BINDING}"))
        .plan();
    let expected = [
        "CustomResourceDefinition.apiextensions.k8s.io/widgets.example.org (wait) -> ValidatingAdmissionPolicy.admissionregistration.k8s.io/p: Ready Crd",
        "ValidatingAdmissionPolicy.admissionregistration.k8s.io/p -> ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io/b: Applied Policy",
    ];
    assert_eq!(edges_of(&plan), expected);
}

#[test]
fn a_policy_and_its_binding_follow_their_parameters_in_any_stage() {
    let git = format!("{WIDGETS}\n{POLICY}\n{BINDING}\nWidget.example.org/web/w: {{}}");
    let scene = Scene::new().unserved("Widget.example.org").git(&git);
    let late = scene
        .clone()
        .applies_in("late", &["{group: example.org, kind: Widget}"], |rule| {
            rule.stage = StageName::declared("late", &StageName::Resources, 0);
        });
    for (scene, stage) in [(scene, "resources"), (late, "late")] {
        let plan = scene.plan();
        let last = plan.steps.iter().rfind(|step| step.op.applies());
        assert_eq!(last.unwrap().stage.as_str(), stage);
        assert!(!plan.findings.iter().any(Finding::is_error));
        let order: Vec<&str> = plan
            .steps
            .iter()
            .filter(|step| step.op.applies())
            .map(|step| step.object.kind.as_str())
            .collect();
        let expected = [
            "CustomResourceDefinition",
            "Widget",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
        ];
        assert_eq!(order, expected);
    }
}

/// An object seen before does not count as absent, and waiting does not create
/// a kind that the API lacks.
#[rstest]
#[case::seen_before(
    Scene::new().stale("sub.example.org").entry("Thing.sub.example.org/web/first", |entry| {
        entry.state = pleach_state::inventory::EntryState::Applied;
        entry.uid = Some("u".to_owned());
    }),
    "api-stale"
)]
#[case::unknown_kind(
    Scene::new().unserved("Thing.sub.example.org").live("Other.sub.example.org/web/x: {}"),
    "kind-not-served"
)]
fn an_api_of_the_release_is_no_excuse(#[case] scene: Scene, #[case] code: &str) {
    let git = format!("{API}\n{AGGREGATED}\nThing.sub.example.org/web/first: {{}}");
    let plan = scene.git(&git).plan();
    let codes: Vec<&str> = plan
        .findings
        .iter()
        .map(|finding| finding.code.as_str())
        .collect();
    assert!(codes.contains(&code), "{codes:?}");
}

#[test]
fn custom_resources_follow_their_webhooks() {
    let git = format!(
        "{WIDGETS}\n{API}\n{HOOK}\nWidget.example.org/web/w: {{}}\nCertificate.cert-manager.io/web/c: {{}}"
    );
    let scene = Scene::new().unserved("Widget.example.org").git(&git);
    let intercepts = |scene: &Scene| -> Vec<String> {
        let mut edges = edges_of(&scene.plan());
        edges.retain(|edge| edge.ends_with("Intercepts"));
        edges.sort();
        edges
    };
    let hook = "ValidatingWebhookConfiguration.admissionregistration.k8s.io/h";
    let expected = [
        "Deployment.apps/web/api -> Widget.example.org/web/w: Ready Intercepts".to_owned(),
        format!("{hook} -> Widget.example.org/web/w: Applied Intercepts"),
    ];
    assert_eq!(intercepts(&scene), expected);
    // Wildcard rules do not delay custom resources of other CRDs, because pods
    // may need them.
    let any = HOOK
        .replace("[example.org]", "['*']")
        .replace("[widgets]", "['*']");
    assert_eq!(intercepts(&scene.clone().git(&any)), expected);
    let other = HOOK.replace("[widgets]", "[gadgets]");
    assert!(intercepts(&scene.clone().git(&other)).is_empty());
    // A registration does not delay a custom resource that it needs itself.
    let needs = HOOK.replace(
        "{webhooks",
        "{metadata: {annotations: {pleach.dev/after: Widget/w}}, webhooks",
    );
    let plan = scene.clone().git(&needs).plan();
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);
    assert!(intercepts(&scene.git(&needs)).is_empty());
}

#[test]
fn custom_resources_follow_a_new_version_of_their_webhook_backend() {
    let git = |image: &str, size: u8| {
        let api = API.replace(
            "spec: {replicas: 2, template: {",
            &format!("spec: {{image: {image}, replicas: 2, template: {{"),
        );
        format!("{WIDGETS}\n{api}\n{HOOK}\nWidget.example.org/web/w: {{spec: {{size: {size}}}}}")
    };
    // The registration itself is unchanged.
    let scene = Scene::new().installed(&git("a", 1)).git(&git("b", 2));
    let expected = "Deployment.apps/web/api -> Widget.example.org/web/w: Ready Intercepts";
    assert_eq!(edges_of(&scene.plan()), [expected]);
    // A stage that does not wait for its backend adds no such wait here either.
    let scene = scene.applies_in(
        "hooks",
        &["{kind: ValidatingWebhookConfiguration}"],
        |stage| {
            stage.applied_only = true;
        },
    );
    let edges = edges_of(&scene.plan());
    assert!(
        edges.iter().all(|edge| !edge.ends_with("Intercepts")),
        "{edges:?}"
    );
}

#[test]
fn two_registrations_close_no_circle() {
    // h needs w2 and would delay w1; g needs w1 and would delay w2.
    let hook = |name: &str, needs: &str| {
        HOOK.replace("/h:", &format!("/{name}:")).replace(
            "{webhooks",
            &format!("{{metadata: {{annotations: {{pleach.dev/after: Widget/{needs}}}}}, webhooks"),
        )
    };
    let git = format!(
        "{WIDGETS}\n{API}\n{}\n{}\nWidget.example.org/web/w1: {{}}\nWidget.example.org/web/w2: {{}}",
        hook("h", "w2"),
        hook("g", "w1")
    );
    let plan = Scene::new().unserved("Widget.example.org").git(&git).plan();
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);
}

#[test]
fn endpoints_are_required_of_retained_pods() {
    let git = format!(
        "{API}\n{HOOK}\nJob.batch/web/migrate: {{spec: {{template: {{metadata: {{labels: {{app: api}}}}}}}}}}"
    );
    let plan = Scene::new().git(&git).plan();
    let ready: Vec<usize> = plan
        .steps
        .iter()
        .filter_map(|step| match step.until {
            Some(Until::Endpoints { ready, .. }) => Some(ready),
            _ => None,
        })
        .collect();
    assert_eq!(ready, [2]);
}

#[test]
fn an_unchanged_backend_is_waited_for_too() {
    let later = HOOK.replace("[widgets]", "[gadgets]");
    let plan = Scene::new()
        .installed(&format!("{API}\n{HOOK}"))
        .git(&format!("{API}\n{later}"))
        .plan();
    let hook = "ValidatingWebhookConfiguration.admissionregistration.k8s.io/h";
    assert_eq!(
        edges_of(&plan),
        [format!("Service/web/api (wait) -> {hook}: Ready Backend")]
    );
}

#[test]
fn objects_left_unready_by_an_interrupted_run_are_awaited() {
    let git = format!(
        "{WIDGETS}\nWidget.example.org/web/w: {{}}\nJob.batch/web/migrate: {{}}\nConfigMap/web/c: {{metadata: {{annotations: {{pleach.dev/after: Job/migrate}}}}}}"
    );
    let plan = Scene::new()
        .installed(&format!("{WIDGETS}\nJob.batch/web/migrate: {{}}"))
        .unfinished("v2.0.0")
        .unserved("Widget.example.org")
        .git(&git)
        .plan();
    let crd = "CustomResourceDefinition.apiextensions.k8s.io/widgets.example.org";
    assert_eq!(
        edges_of(&plan),
        [
            "Job.batch/web/migrate (wait) -> ConfigMap/web/c: Ready After".to_owned(),
            format!("{crd} (wait) -> Widget.example.org/web/w: Ready Crd"),
        ]
    );
    // Each is awaited once, including in verify.
    let waits = |object: &str| {
        plan.steps
            .iter()
            .filter(|step| step.object.to_string() == object)
            .count()
    };
    assert_eq!((waits(crd), waits("Job.batch/web/migrate")), (1, 1));
}

#[test]
fn a_blocked_object_blocks_only_its_dependents() {
    let git = "ServiceAccount/web/s: {}\nConfigMap/web/free: {}\nService/web/api: {spec: {selector: {app: api}}}\n\
        Deployment.apps/web/api: {spec: {template: {metadata: {labels: {app: api}}, spec: {serviceAccountName: s}}}}";
    let scene = Scene::new()
        .live("ServiceAccount/web/s: {managers: [x]}")
        .git(&format!("{git}\n{HOOK}"));
    let plan = scene.plan();
    assert_eq!(
        changes(&plan),
        [
            "create ConfigMap/web/free: it does not exist yet",
            "create Service/web/api: it does not exist yet",
            "blocked ServiceAccount/web/s: it already exists and is not part of this release; its fields are owned by x",
            "blocked ValidatingWebhookConfiguration.admissionregistration.k8s.io/h: it needs Deployment.apps/web/api, which is blocked",
            "blocked Deployment.apps/web/api: it needs ServiceAccount/web/s, which is blocked",
        ]
    );
    let objects: Vec<String> = plan
        .steps
        .iter()
        .map(|step| step.object.to_string())
        .collect();
    assert_eq!(objects, ["ConfigMap/web/free", "Service/web/api"]);
    assert!(plan.steps.iter().all(|step| step.needs.is_empty()));
    assert_eq!(
        plan.findings
            .iter()
            .filter(|finding| finding.is_error())
            .count(),
        1
    );
}

#[test]
fn an_unchanged_object_is_not_blocked() {
    let workload = "Deployment.apps/web/api: {spec: {template: {spec: {serviceAccountName: s}}}}";
    let plan = Scene::new()
        .installed(workload)
        .live("ServiceAccount/web/s: {managers: [x]}")
        .git(&format!("{workload}\nServiceAccount/web/s: {{}}"))
        .plan();
    assert_eq!(
        (plan.count(Action::Blocked), plan.count(Action::Unchanged)),
        (1, 1)
    );
}

#[test]
fn a_cycle_prints_its_path() {
    let after = |name: &str, other: &str| {
        format!(
            "ConfigMap/web/{name}: {{metadata: {{annotations: {{pleach.dev/after: ConfigMap/{other}}}}}}}"
        )
    };
    let git = [
        after("a", "b"),
        after("b", "c"),
        after("c", "a"),
        after("d", "a"),
        after("self", "self"),
    ]
    .join("\n");
    let plan = Scene::new().git(&git).plan();
    let finding = &plan.findings[0];
    assert_eq!(finding.code, "dependency-cycle");
    assert_eq!(
        finding.message,
        "these objects wait for each other: ConfigMap/web/c -> ConfigMap/web/b -> ConfigMap/web/a -> ConfigMap/web/c"
    );
    assert_eq!(plan.findings.len(), 1);
}

#[rstest]
#[case(
    "Job/typo",
    "annotation pleach.dev/after names Job/typo, which is not part of the release"
)]
#[case(
    "typo",
    "annotation pleach.dev/after contains `typo`, expected Kind/name"
)]
fn an_annotation_that_names_nothing_is_an_error(#[case] after: &str, #[case] message: &str) {
    let git =
        format!("ConfigMap/web/a: {{metadata: {{annotations: {{pleach.dev/after: {after}}}}}}}");
    let plan = Scene::new().git(&git).plan();
    let finding = &plan.findings[0];
    assert_eq!(
        (finding.code.as_str(), &*finding.message),
        ("after-nothing", message)
    );
    assert!(finding.is_error() && finding.place.is_some());
    let unchanged = Scene::new().installed(&git).git(&git).plan();
    assert!(unchanged.findings.contains(finding));
}
