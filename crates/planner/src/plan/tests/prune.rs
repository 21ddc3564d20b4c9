//! Objects that git no longer has.

use rstest::rstest;
use serde_json::json;

use super::scene::Scene;
use super::{edges, lines, position};
use crate::observe::Listing;
use crate::plan::{Action, Change, Grant, Op, Plan, Precondition, Propagation};
use pleach_formats::policy::{Protect, PruneMax};
use pleach_model::object::labels;
use pleach_state::inventory::{EntryState, Memory, RememberedStage};

const OLD: &str = "ConfigMap/web/old: {}";
const KEY: &str = "ConfigMap/web/old";

fn change<'a>(plan: &'a Plan, id: &str) -> Option<&'a Change> {
    let mut changes = plan.changes.iter();
    changes.find(|change| change.object.to_string() == id)
}

fn deleted(plan: &Plan) -> Vec<String> {
    plan.steps
        .iter()
        .filter(|step| matches!(step.op, Op::Delete(_)))
        .map(|step| step.object.to_string())
        .collect()
}

/// Returns the pruning steps as lines, in order.
fn pruned(plan: &Plan) -> Vec<String> {
    let mut lines = lines(plan);
    lines.retain(|line| line.starts_with("prune"));
    lines
}

/// Asserts that the plan has these edges.
#[track_caller]
fn check_edges(plan: &Plan, expected: &[&str]) {
    let edges = edges(plan);
    for edge in expected {
        assert!(edges.iter().any(|one| one == edge), "{edge}: {edges:#?}");
    }
}

fn old() -> Scene {
    Scene::new().installed(OLD)
}

#[test]
fn a_member_is_deleted_after_verify_by_uid() {
    let plan = old().git("ConfigMap/web/new: {}").plan();
    let step = &plan.steps[position(&plan, KEY)];
    let Op::Delete(deletion) = &step.op else {
        panic!()
    };
    assert_eq!(
        (deletion.uid(), deletion.resource_version()),
        ("uid of ConfigMap/web/old", None)
    );
    assert_eq!(
        (deletion.because(), deletion.propagation()),
        (&Grant::Inventory, Propagation::Background)
    );
    assert_eq!(
        step.require,
        [Precondition::Uid("uid of ConfigMap/web/old".to_owned())]
    );
    assert!(edges(&plan).contains(
        &"Release.pleach.dev/e.r (wait) -> ConfigMap/web/old: Applied Barrier".to_owned()
    ));
    assert_eq!(change(&plan, KEY).unwrap().reason, "no longer in git");
}

/// Builds an object that only the record lists as a member.
fn unmarked() -> Scene {
    old().with_live(KEY, |live| {
        live["metadata"]["labels"] = json!({});
        live["metadata"]["managedFields"] = json!([]);
    })
}

#[rstest]
#[case::pruning_is_off(old().policy(|policy| policy.prune.enabled = false), "pruning is disabled in the environment file", "")]
#[case::not_waiting(old().policy(|policy| policy.wait = false), "this run does not wait for readiness", "")]
#[case::blocked(old().live("ConfigMap/web/c: {managers: [x]}").git("ConfigMap/web/c: {}"), "objects are blocked", "not-adopted")]
#[case::incomplete(old().incomplete("ConfigMap"), "its kind could not be listed completely", "incomplete-view")]
#[case::incomplete_and_absent(old().gone(KEY).incomplete("ConfigMap"), "its kind could not be listed completely", "incomplete-view")]
#[case::forbidden(old().listing("ConfigMap", Listing::Forbidden("no".to_owned())), "its kind could not be listed completely", "incomplete-view")]
#[case::not_served(old().unserved("ConfigMap"), "its kind could not be listed completely", "incomplete-view")]
#[case::registrations_not_seen(old().incomplete("APIService.apiregistration.k8s.io"),
    "objects of kind APIService.apiregistration.k8s.io could not be listed", "incomplete-view")]
#[case::of_another_set(old().meta(KEY, |meta| drop(meta.labels.insert(labels::PART_OF.into(), "other".into()))),
    "it is part of another ApplySet now", "kept-foreign")]
#[case::without_a_mark(
    unmarked(),
    "it has neither the label of the release nor its entry in managedFields",
    "kept-unmarked"
)]
#[case::annotated(old().meta(KEY, |meta| drop(meta.annotations.insert("pleach.dev/prune".into(), "disabled".into()))),
    "of its annotation pleach.dev/prune", "kept-annotated")]
#[case::protected_when_applied(old().entry(KEY, |entry| entry.protected = true), "objects of kind ConfigMap are protected", "kept-protected")]
#[case::protected_by_policy(old().protect("{group: '', kind: '*'}"), "objects of kind ConfigMap are protected", "kept-protected")]
fn it_stays(#[case] scene: Scene, #[case] why: &str, #[case] code: &str) {
    let plan = scene.plan();
    let change = change(&plan, KEY).unwrap();
    assert_eq!(
        (change.action, &*change.reason),
        (
            Action::Skip,
            &*format!("no longer in git; stays because {why}")
        )
    );
    assert!(deleted(&plan).is_empty());
    assert!(
        code.is_empty() || plan.findings.iter().any(|finding| finding.code == code),
        "{:?}",
        plan.findings
    );
}

#[rstest]
#[case::gone(old().gone(KEY), Action::Unchanged, "no longer in git, and gone already")]
#[case::another_incarnation(old().meta(KEY, |meta| meta.uid = "later".into()), Action::Unchanged, "no longer in git; its name now belongs to another object")]
#[case::intended(old().entry(KEY, |entry| { entry.state = EntryState::Intended; entry.uid = None; }), Action::Skip,
    "no longer in git; its creation was never confirmed, so an existing object is not changed")]
#[case::intended_with_uid(old().entry(KEY, |entry| entry.state = EntryState::Intended), Action::Skip,
    "no longer in git; its creation was never confirmed, so an existing object is not changed")]
#[case::intended_and_not_there(old().entry(KEY, |entry| entry.state = EntryState::Intended).gone(KEY), Action::Unchanged,
    "no longer in git, and does not exist")]
#[case::intended_and_not_seen(old().entry(KEY, |entry| entry.state = EntryState::Intended).gone(KEY).incomplete("ConfigMap"), Action::Skip,
    "no longer in git; its creation was never confirmed, so an existing object is not changed")]
#[case::retained(old().entry(KEY, |entry| entry.state = EntryState::Kept), Action::Skip, "no longer in git; stays because other field managers own fields of it")]
#[case::applied_without_uid(old().entry(KEY, |entry| entry.uid = None), Action::Unchanged, "no longer in git; its name now belongs to another object")]
#[case::run_time_in_use(Scene::new().run_time(OLD, None).git("ConfigMap/web/c: {}"), Action::Unchanged, "the workloads created it")]
fn a_foreign_object_is_not_deleted(
    #[case] scene: Scene,
    #[case] action: Action,
    #[case] reason: &str,
) {
    let plan = scene.plan();
    let change = change(&plan, KEY).unwrap();
    assert_eq!((change.action, &*change.reason), (action, reason));
    assert!(deleted(&plan).is_empty());
}

#[test]
fn a_rename_by_uid_is_no_deletion() {
    let plan = Scene::new()
        .installed("Ingress.extensions/web/i: {}")
        .live("Ingress.networking.k8s.io/web/i: {metadata: {uid: uid of Ingress.extensions/web/i}}")
        .with_live("Ingress.networking.k8s.io/web/i", |live| {
            live["metadata"]["labels"] = json!({labels::PART_OF: Scene::new().desired.apply_set()});
        })
        .git("Ingress.networking.k8s.io/web/i: {}")
        .plan();
    assert!(deleted(&plan).is_empty());
    assert_eq!(
        change(&plan, "Ingress.extensions/web/i").unwrap().action,
        Action::Unchanged
    );
}

#[rstest]
#[case("Namespace/old: {}")]
#[case("CustomResourceDefinition.apiextensions.k8s.io/x: {}")]
#[case("PersistentVolume/p: {}")]
#[case("PersistentVolumeClaim/web/p: {}")]
#[case("Service/web/lb: {spec: {type: LoadBalancer}}")]
fn protected_kinds_need_consent_in_git(#[case] object: &str) {
    let scene = Scene::new().installed(object).git("ConfigMap/web/c: {}");
    let plan = scene.plan();
    assert!(deleted(&plan).is_empty());
    let finding = plan
        .findings
        .iter()
        .find(|finding| finding.code == "kept-protected")
        .unwrap();
    let hint = finding.hint.as_ref().unwrap();
    let consent = hint.split_once("file: ").unwrap().1;
    // The hint contains exactly the required consent.
    let plan = scene.clone().consent(consent).plan();
    assert_eq!(deleted(&plan).len(), 1, "{consent}");
}

#[test]
fn an_adopted_namespace_is_never_deleted() {
    let plan = Scene::new()
        .installed("Namespace/old: {}")
        .entry("Namespace/old", |entry| entry.adopted = true)
        .consent(
            "{action: delete, kind: Namespace, name: old, release: r, from: v1.0.0, to: v2.0.0}",
        )
        .plan();
    assert!(deleted(&plan).is_empty());
    assert_eq!(plan.findings[0].code, "kept-adopted");
}

pub(super) fn many(count: usize) -> Scene {
    let text = |index| format!("ConfigMap/web/c{index:02}: {{}}\n");
    Scene::new().installed(&(0..count).map(text).collect::<String>())
}

/// Builds an object with the same name in each of several namespaces.
fn tenants(count: usize) -> Scene {
    let text = |index| format!("ConfigMap/t{index:02}/c: {{}}\n");
    Scene::new().installed(&(0..count).map(text).collect::<String>())
}

#[rstest]
#[case::five_always(many(5), true)]
#[case::more(many(6), false)]
#[case::by_number(many(6).policy(|policy| policy.prune.max = PruneMax::Count(6)), true)]
#[case::by_percent(many(10).policy(|policy| policy.prune.max = PruneMax::Percent(100)), true)]
#[case::consented(many(6).consent("{action: prune, release: r, from: v1.0.0, to: v2.0.0, count: 6}"), true)]
#[case::consented_for_fewer(many(7).consent("{action: prune, release: r, from: v1.0.0, to: v2.0.0, count: 6}"), false)]
#[case::consented_for_another_way(many(6).consent("{action: prune, release: r, from: v0.9.0, to: v2.0.0, count: 6}"), false)]
#[case::successors_do_not_count(many(6).git("ConfigMap/other/c00: {}"), true)]
#[case::one_successor_is_that_of_one(tenants(7).git("ConfigMap/other/c: {}"), false)]
#[case::with_one_successor_five_are_left(tenants(6).git("ConfigMap/other/c: {}"), true)]
#[case::of_another_kind(many(6).git("Secret/other/c00: {}"), false)]
#[case::run_time_objects_do_not_count(many(5).run_time("Secret/old/s: {}", None), true)]
fn the_cap(#[case] scene: Scene, #[case] allowed: bool) {
    let plan = scene.live("Namespace/other: {}").plan();
    let cap = plan
        .findings
        .iter()
        .find(|finding| finding.code == "prune-cap");
    assert_eq!(cap.is_none(), allowed, "{:?}", plan.findings);
    // The finding has no object, so it stops the whole plan.
    assert!(cap.is_none_or(|finding| finding.is_error() && finding.object.is_none()));
}

#[test]
fn classes_are_deleted_in_order() {
    let plan = Scene::new()
        .installed(
            "ConfigMap/web/c: {}\nSecret/web/s: {}\nService/web/s: {}\nServiceAccount/web/a: {}\nDeployment.apps/web/d: {spec: {template: {}}}\n\
             Widget.example.org/web/w: {}\nValidatingWebhookConfiguration.admissionregistration.k8s.io/h: {webhooks: [{name: a}]}",
        )
        .policy(|policy| policy.prune.max = PruneMax::Percent(100))
        .plan();
    assert_eq!(
        pruned(&plan),
        [
            "prune: delete Widget.example.org/web/w until gone",
            "prune: delete ValidatingWebhookConfiguration.admissionregistration.k8s.io/h until gone",
            "prune: delete Deployment.apps/web/d until gone",
            "prune: delete Service/web/s until gone",
            "prune: delete ConfigMap/web/c until gone",
            "prune: delete Secret/web/s until gone",
            "prune: delete ServiceAccount/web/a until gone",
        ]
    );
    check_edges(
        &plan,
        &[
            "ValidatingWebhookConfiguration.admissionregistration.k8s.io/h -> Deployment.apps/web/d: Absent Reverse",
            "Service/web/s -> ConfigMap/web/c: Absent Reverse",
            "Secret/web/s -> ServiceAccount/web/a: Absent Reverse",
        ],
    );
    let workload = &plan.steps[position(&plan, "Deployment.apps/web/d")];
    let Op::Delete(deletion) = &workload.op else {
        panic!()
    };
    assert_eq!(deletion.propagation(), Propagation::Foreground);
}

#[test]
fn a_binding_is_deleted_before_its_policy_and_parameters() {
    let plan = Scene::new()
        .installed(
            "CustomResourceDefinition.apiextensions.k8s.io/widgets.example.org: {}\nWidget.example.org/web/w: {}\nConfigMap/web/c: {}\n\
             ValidatingAdmissionPolicy.admissionregistration.k8s.io/p: {spec: {paramKind: {apiVersion: example.org/v1, kind: Widget}}}\n\
             ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io/b: {spec: {policyName: p, paramRef: {name: w, namespace: web}}}",
        )
        .consent("{action: delete, kind: CustomResourceDefinition, name: widgets.example.org, release: r, from: v1.0.0, to: v2.0.0}")
        .policy(|policy| policy.prune.max = PruneMax::Percent(100))
        .plan();
    let expected = [
        "ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io/b",
        "ValidatingAdmissionPolicy.admissionregistration.k8s.io/p",
        "Widget.example.org/web/w",
        "ConfigMap/web/c",
        "CustomResourceDefinition.apiextensions.k8s.io/widgets.example.org",
    ];
    assert_eq!(deleted(&plan), expected);
    let edges = edges(&plan);
    for pair in expected.windows(2) {
        let edge = format!("{} -> {}: Absent Reverse", pair[0], pair[1]);
        assert!(edges.contains(&edge), "{edges:#?}");
    }
}

/// The cluster writes an aggregated role whenever one of its sources is
/// deleted.
#[test]
fn an_aggregated_role_is_deleted_before_its_parts() {
    let (whole, part) = (
        "ClusterRole.rbac.authorization.k8s.io/whole",
        "ClusterRole.rbac.authorization.k8s.io/a-part",
    );
    let plan = Scene::new()
        .installed(&format!(
            "{part}: {{rules: [{{verbs: [get]}}]}}\n{whole}: {{aggregationRule: {{clusterRoleSelectors: [{{matchLabels: {{to: whole}}}}]}}}}\nConfigMap/web/c: {{}}",
        ))
        .edited(
            "clusterrole-aggregation-controller",
            &format!("{whole}: {{rules: [{{verbs: [get]}}]}}"),
        )
        .policy(|policy| policy.prune.max = PruneMax::Percent(100))
        .plan();
    assert_eq!(deleted(&plan), ["ConfigMap/web/c", whole, part]);
    check_edges(
        &plan,
        &[
            &format!("ConfigMap/web/c -> {whole}: Absent Reverse"),
            &format!("{whole} -> {part}: Absent Reverse"),
        ],
    );
}

/// Builds a CRD with a conversion Service, and their dependencies.
pub(super) fn converted(service: &str) -> Scene {
    let crd = "CustomResourceDefinition.apiextensions.k8s.io/widgets.example.org: {spec: {conversion: {webhook: {clientConfig: {service: {namespace: web, name: NAME}}}}}}";
    Scene::new().installed(&format!(
        "{}\nWidget.example.org/web/w: {{}}\nService/web/api: {{}}\nConfigMap/web/c: {{}}\n\
         Deployment.apps/web/api: {{spec: {{template: {{}}}}}}",
        crd.replace("NAME", service)
    ))
}

pub(super) const CONVERTED: [&str; 5] = [
    "Widget.example.org/web/w",
    "CustomResourceDefinition.apiextensions.k8s.io/widgets.example.org",
    "Deployment.apps/web/api",
    "Service/web/api",
    "ConfigMap/web/c",
];

#[rstest]
#[case::it_is_removed(converted("api"), true)]
#[case::it_is_gone_already(converted("api").gone("Service/web/api"), true)]
#[case::it_stays(converted("api").git("Service/web/api: {}"), false)]
#[case::it_is_of_others(converted("other"), false)]
fn a_crd_is_deleted_before_its_conversion_service(#[case] scene: Scene, #[case] is_first: bool) {
    let plan = scene
        .consent("{action: delete, kind: CustomResourceDefinition, name: widgets.example.org, release: r, from: v1.0.0, to: v2.0.0}")
        .policy(|policy| policy.prune.max = PruneMax::Percent(100))
        .plan();
    let deleted = deleted(&plan);
    let mut expected = CONVERTED.to_vec();
    if !is_first {
        expected[1..].rotate_left(1);
    }
    expected.retain(|id| deleted.iter().any(|one| one == id));
    assert_eq!(deleted, expected);
    assert!(deleted.contains(&CONVERTED[1].to_owned()));
    let edge = format!("{} -> {}: Absent Reverse", CONVERTED[1], CONVERTED[2]);
    assert_eq!(edges(&plan).contains(&edge), is_first);
}

/// Builds objects that bundles applied in declared stages.
pub(super) fn staged() -> Scene {
    let mut scene = Scene::new().installed(
        "DaemonSet.apps/web/agent: {spec: {template: {}}}\nDeployment.apps/web/api: {spec: {template: {}}}\n\
         Deployment.apps/web/controller: {spec: {template: {}}}\nDeployment.apps/web/first: {spec: {template: {}}}\n\
         ConfigMap/web/early: {}\nConfigMap/web/late: {}\nService/web/s: {}",
    );
    let stages = [
        ("DaemonSet.apps/web/agent", "agents"),
        ("Deployment.apps/web/controller", "controllers"),
        ("Deployment.apps/web/api", "api"),
        ("ConfigMap/web/late", "api"),
    ];
    for (id, stage) in stages {
        scene = scene.entry(id, |entry| entry.stage = stage.to_owned());
    }
    let stages = ["agents", "controllers", "api"].map(|name| RememberedStage {
        name: name.to_owned(),
        after: "workloads".to_owned(),
        timeout: (name == "agents").then_some(1200),
    });
    scene.cluster(|observed| {
        let record = observed.installed.get_or_insert_default();
        record.memory = Some(Memory {
            stages: stages.to_vec(),
            ..Memory::default()
        });
    })
}

/// A commit that stops protecting a kind does not delete its objects.
#[test]
fn a_kind_that_was_protected_is_not_pruned_without_consent() {
    let scene = |protect: Vec<Protect>| {
        let installed = "ConfigMap/web/a: {}\nStatefulSet.apps/web/db: {}";
        Scene::new()
            .installed(installed)
            .git("ConfigMap/web/a: {}")
            .cluster(|observed| {
                let record = observed.installed.get_or_insert_default();
                record.memory = Some(Memory {
                    protect,
                    ..Memory::default()
                });
            })
            .policy(|policy| policy.prune.max = PruneMax::Percent(100))
    };
    let sets = Protect {
        group: Some("apps".to_owned()),
        kind: "StatefulSet".to_owned(),
    };
    // The same applies to a commit that also renames the release.
    let renamed = scene(Vec::new()).cluster(|observed| {
        observed.inherited = Some(Memory {
            protect: vec![sets.clone()],
            ..Memory::default()
        });
    });
    for plan in [scene(vec![sets.clone()]).plan(), renamed.plan()] {
        assert!(pruned(&plan).is_empty(), "{:?}", pruned(&plan));
        assert!(plan.findings.iter().any(|one| one.code == "kept-protected"));
    }
    assert_eq!(pruned(&scene(Vec::new()).plan()).len(), 1);
}

#[test]
fn objects_of_stages_are_deleted_in_reverse_order() {
    let plan = staged()
        .policy(|policy| policy.prune.max = PruneMax::Percent(100))
        .plan();
    assert_eq!(
        pruned(&plan),
        [
            "prune: delete Deployment.apps/web/api until gone",
            "prune: delete Deployment.apps/web/controller until gone",
            "prune: delete DaemonSet.apps/web/agent until gone",
            "prune: delete Deployment.apps/web/first until gone",
            "prune: delete Service/web/s until gone",
            "prune: delete ConfigMap/web/late until gone",
            "prune: delete ConfigMap/web/early until gone",
        ]
    );
    check_edges(
        &plan,
        &[
            "Deployment.apps/web/api -> Deployment.apps/web/controller: Absent Reverse",
            "Deployment.apps/web/controller -> DaemonSet.apps/web/agent: Absent Reverse",
            "DaemonSet.apps/web/agent -> Deployment.apps/web/first: Absent Reverse",
            "ConfigMap/web/late -> ConfigMap/web/early: Absent Reverse",
        ],
    );
    // The recorded timeout of the stage applies.
    let agent = &plan.steps[position(&plan, "DaemonSet.apps/web/agent")];
    assert_eq!(agent.deadline.as_secs(), 1200);
}

#[test]
fn without_recorded_stages_objects_are_deleted_by_class() {
    let plan = staged()
        .policy(|policy| policy.prune.max = PruneMax::Percent(100))
        .cluster(|observed| observed.installed.as_mut().unwrap().memory = None)
        .plan();
    let edges = edges(&plan);
    let within = |edge: &&String| edge.contains("web/api -> Deployment.apps/web/controller");
    assert_eq!(edges.iter().find(within), None);
}

const HOOK: &str = "ValidatingWebhookConfiguration.admissionregistration.k8s.io/h: {webhooks: [{clientConfig: {service: {namespace: web, name: api}}}]}";
const HOOK_KEY: &str = "ValidatingWebhookConfiguration.admissionregistration.k8s.io/h";

#[rstest]
#[case::service_gone(Some((false, 0)), true)]
#[case::nothing_behind_it(Some((true, 0)), true)]
#[case::alive(Some((true, 1)), false)]
#[case::not_looked_up(None, false)]
fn a_dead_registration_is_deleted_first(
    #[case] backend: Option<(bool, usize)>,
    #[case] dead: bool,
) {
    let mut scene = Scene::new()
        .installed(&format!("{HOOK}\n{OLD}"))
        .git("ConfigMap/web/a: {}\nConfigMap/web/b: {}");
    if let Some((exists, endpoints)) = backend {
        scene = scene.backend("web/api", exists, endpoints);
    }
    let plan = scene.plan();
    let step = &plan.steps[position(&plan, HOOK_KEY)];
    let Op::Delete(deletion) = &step.op else {
        panic!()
    };
    assert_eq!(step.stage.as_str(), if dead { "gates" } else { "prune" });
    assert_eq!(deletion.resource_version().is_some(), dead);
    assert_eq!(
        matches!(deletion.because(), Grant::DeadRegistration { .. }),
        dead
    );
    let before: usize = edges(&plan)
        .iter()
        .filter(|edge| edge.starts_with(&format!("{HOOK_KEY} -> ")))
        .count();
    // Two ConfigMaps and the barrier.
    assert_eq!(before, if dead { 3 } else { 1 });
}

#[test]
fn a_registration_that_also_has_a_url_is_not_dead() {
    let hook = format!(
        "{HOOK_KEY}: {{webhooks: [{{clientConfig: {{service: {{namespace: web, name: api}}}}}}, {{clientConfig: {{url: 'https://10.0.0.1/'}}}}]}}"
    );
    let plan = Scene::new()
        .installed(&format!("{hook}\n{OLD}"))
        .git("ConfigMap/web/a: {}")
        .backend("web/api", false, 0)
        .plan();
    let step = &plan.steps[position(&plan, HOOK_KEY)];
    assert_eq!(step.stage.as_str(), "prune");
}

#[rstest]
#[case::with_its_service(Scene::new().installed("Service/old/api: {}").run_time("Secret/old/s: {}", Some("old/api")).git(OLD), true)]
#[case::its_service_stays(Scene::new().installed("Service/web/api: {}").git("Service/web/api: {}").run_time("Secret/old/s: {}", Some("web/api")), false)]
#[case::its_service_is_retained(Scene::new().installed("Service/old/api: {}").entry("Service/old/api", |entry| entry.protected = true)
    .run_time("Secret/old/s: {}", Some("old/api")).git(OLD), false)]
#[case::with_its_namespace(Scene::new().run_time("Secret/old/s: {}", None).git(OLD), true)]
#[case::namespace_in_use(Scene::new().run_time("Secret/old/s: {}", None).git("ConfigMap/old/c: {}").live("Namespace/old: {}"), false)]
#[case::without_namespace(Scene::new().run_time("PriorityClass.scheduling.k8s.io/p: {}", None).git(OLD), false)]
#[case::without_anything_left(Scene::new().run_time("PriorityClass.scheduling.k8s.io/p: {}", None), true)]
#[case::another_incarnation(Scene::new().run_time("Secret/old/s: {}", None).meta("Secret/old/s", |meta| meta.uid = "later".into()), false)]
#[case::incomplete(Scene::new().run_time("Secret/old/s: {}", None).incomplete("Secret"), false)]
#[case::protected(Scene::new().run_time("PersistentVolumeClaim/old/p: {}", None), false)]
#[case::annotated(Scene::new().run_time("Secret/old/s: {metadata: {annotations: {pleach.dev/prune: disabled}}}", None), false)]
fn a_runtime_object_is_deleted(#[case] scene: Scene, #[case] is_removed: bool) {
    let plan = scene.plan();
    let run_time: Vec<&Grant> = plan
        .steps
        .iter()
        .filter_map(|step| match &step.op {
            Op::Delete(deletion) => Some(deletion.because()),
            _ => None,
        })
        .filter(|grant| matches!(grant, Grant::RunTimeObject { .. }))
        .collect();
    assert_eq!(
        run_time.len(),
        usize::from(is_removed),
        "{:?}",
        super::changes(&plan)
    );
}

#[rstest]
#[case::namespaced("ConfigMap/web/c: {}", true)]
#[case::with_cluster_objects("ClusterRole.rbac.authorization.k8s.io/r: {}", false)]
fn unrelated_registrations_do_not_prevent_pruning(#[case] git: &str, #[case] pruned: bool) {
    let forbidden = Listing::Forbidden("no".to_owned());
    let plan = old()
        .git(git)
        .listing("APIService.apiregistration.k8s.io", forbidden)
        .plan();
    assert_eq!(deleted(&plan).len(), usize::from(pruned));
    let code = if pruned {
        "registrations-not-seen"
    } else {
        "incomplete-view"
    };
    assert!(
        plan.findings.iter().any(|finding| finding.code == code),
        "{:?}",
        plan.findings
    );
}

#[rstest]
#[case::nothing_is_removed(Scene::new().installed("ConfigMap/web/c: {}"))]
#[case::something_is_removed(old())]
#[case::it_would_not_anyway(old().policy(|policy| policy.wait = false))]
fn unlisted_registrations_are_reported(#[case] scene: Scene) {
    let plan = scene
        .git("ConfigMap/web/c: {}")
        .incomplete("MutatingWebhookConfiguration.admissionregistration.k8s.io")
        .plan();
    assert_eq!(deleted(&plan), [""; 0]);
    let mut reported = plan.findings.iter().filter(|finding| {
        finding.code == "incomplete-view"
            && finding.message.contains("MutatingWebhookConfiguration")
    });
    assert!(
        reported.next().is_some() && reported.next().is_none(),
        "{:?}",
        plan.findings
    );
}
