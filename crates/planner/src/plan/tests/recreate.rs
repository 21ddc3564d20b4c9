//! Immutable fields.

use rstest::rstest;

use super::scene::Scene;
use crate::observe::{ApiRefusal, Prediction};
use crate::plan::{Action, EdgeReason, Grant, Need, Op, Plan, Precondition, Propagation, Until};
use pleach_model::object::FieldPath;

fn immutable(refused: Option<ApiRefusal>) -> Prediction {
    Prediction::Immutable {
        fields: vec![FieldPath::default().key("spec").key("selector")],
        refused,
    }
}

/// Builds a member with an immutable field that git changed.
pub(super) fn scene(key: &str) -> Scene {
    Scene::new()
        .installed(&format!("{key}: {{spec: {{selector: a}}}}"))
        .git(&format!("{key}: {{spec: {{selector: b}}}}"))
        .predict(key, immutable(None))
}

fn propagation(plan: &Plan) -> Propagation {
    let mut deletions = plan.steps.iter().filter_map(|step| match &step.op {
        Op::Delete(deletion) => Some(deletion),
        _ => None,
    });
    let deletion = deletions.next().unwrap();
    assert!(matches!(deletion.because(), Grant::Recreate { .. }));
    assert!(deletions.next().is_none());
    deletion.propagation()
}

#[rstest]
#[case::pods_of_both_do_not_run_together("Deployment.apps/web/a", Propagation::Foreground)]
#[case::a_job_too("Job.batch/web/a", Propagation::Foreground)]
#[case::nothing_below_it("RoleBinding.rbac.authorization.k8s.io/web/a", Propagation::Background)]
#[case::a_service("Service/web/a", Propagation::Background)]
fn an_unprotected_object_is_recreated(#[case] key: &str, #[case] expected: Propagation) {
    let plan = scene(key).plan();
    assert_eq!(plan.count(Action::Recreate), 1, "{:?}", plan.findings);
    assert_eq!(propagation(&plan), expected);
    let [delete, create] = &plan.steps[..2] else {
        panic!()
    };
    assert_eq!(delete.require, [Precondition::Uid(format!("uid of {key}"))]);
    assert_eq!(delete.until, Some(Until::Absent { pods: None }));
    assert_eq!(create.require, [Precondition::Absent]);
    assert_eq!(
        (
            create.needs[0].from,
            create.needs[0].state,
            &create.needs[0].why
        ),
        (delete.id, Need::Absent, &EdgeReason::SameObject)
    );
    assert_eq!(
        plan.changes
            .iter()
            .find(|change| change.action == Action::Recreate)
            .unwrap()
            .reason,
        "git changed .spec.selector, which cannot change on an existing object"
    );
}

#[test]
fn dependencies_of_the_new_object_exist_before_the_old_one_is_deleted() {
    let workload = |image: &str| {
        format!(
            "Deployment.apps/web/a: {{spec: {{selector: {image}, template: {{spec: {{containers: [{{name: a, envFrom: [{{configMapRef: {{name: c}}}}]}}]}}}}}}}}"
        )
    };
    let plan = Scene::new()
        .installed(&workload("a"))
        .git(&format!("{}\nConfigMap/web/c: {{}}", workload("b")))
        .predict("Deployment.apps/web/a", immutable(None))
        .plan();
    let delete = plan
        .steps
        .iter()
        .find(|step| matches!(step.op, Op::Delete(_)))
        .unwrap();
    let config = plan
        .steps
        .iter()
        .find(|step| step.object.kind == "ConfigMap")
        .unwrap();
    assert!(delete.needs.iter().any(|edge| edge.from == config.id));
}

#[rstest]
#[case::stateful(
    "StatefulSet.apps/web/db",
    "{action: recreate, kind: StatefulSet, namespace: web, name: db, release: r, from: v1.0.0, to: v2.0.0, propagation: Foreground}"
)]
#[case::claim(
    "PersistentVolumeClaim/web/data",
    "{action: recreate, kind: PersistentVolumeClaim, namespace: web, name: data, release: r, from: v1.0.0, to: v2.0.0}"
)]
#[case::crd(
    "CustomResourceDefinition.apiextensions.k8s.io/foos.example.org",
    "{action: recreate, kind: CustomResourceDefinition, name: foos.example.org, release: r, from: v1.0.0, to: v2.0.0}"
)]
#[case::protected_in_git(
    "Disk.infra.example.org/web/d",
    "{action: recreate, kind: Disk, namespace: web, name: d, release: r, from: v1.0.0, to: v2.0.0}"
)]
fn protected_kinds_need_consent_that_can_be_copied(#[case] key: &str, #[case] line: &str) {
    let scene = scene(key).protect("{group: infra.example.org, kind: '*'}");
    let plan = scene.plan();
    assert_eq!(plan.count(Action::Blocked), 1);
    assert!(!plan.has_steps());
    let finding = &plan.findings[0];
    assert_eq!(
        (finding.code.as_str(), finding.kind),
        ("immutable-field", pleach_model::finding::Kind::Policy)
    );
    assert_eq!(
        finding.hint.as_deref(),
        Some(format!("to recreate it, add to `consent` in environments/e.yaml: {line}").as_str())
    );
    // The consent from the hint.
    let plan = scene.consent(line).plan();
    assert_eq!(plan.count(Action::Recreate), 1, "{:?}", plan.findings);
    let foreground = line.contains("Foreground");
    assert_eq!(propagation(&plan) == Propagation::Foreground, foreground);
}

/// Builds a StatefulSet with a selector, pod labels, and other fields of its
/// `spec`.
fn stateful(selector: &str, labels: &str, more: &str) -> String {
    format!(
        "StatefulSet.apps/web/db: {{spec: {{selector: {selector}, template: {{metadata: {{labels: {labels}}}}}, {more}}}}}"
    )
}

fn consent(propagation: &str) -> String {
    format!(
        "{{action: recreate, kind: StatefulSet, name: db, release: r, from: v1.0.0, to: v2.0.0, propagation: {propagation}}}"
    )
}

#[rstest]
#[case::another_service(
    stateful("{matchLabels: {app: db}}", "{app: db}", "serviceName: a"),
    stateful("{matchLabels: {app: db}}", "{app: db}", "serviceName: b"),
    true
)]
#[case::another_label(
    stateful("{matchLabels: {app: db}}", "{app: db}", "replicas: 1"),
    stateful("{matchLabels: {app: db2}}", "{app: db2}", "replicas: 1"),
    false
)]
#[case::one_label_more(
    stateful("{matchLabels: {app: db}}", "{app: db}", "replicas: 1"),
    stateful(
        "{matchLabels: {app: db, tier: data}}",
        "{app: db, tier: data}",
        "replicas: 1"
    ),
    false
)]
#[case::one_that_its_pods_have(
    stateful("{matchLabels: {app: db}}", "{app: db, tier: data}", "replicas: 1"),
    stateful(
        "{matchLabels: {app: db, tier: data}}",
        "{app: db, tier: data}",
        "replicas: 1"
    ),
    true
)]
#[case::one_label_less(
    stateful(
        "{matchLabels: {app: db, tier: data}}",
        "{app: db, tier: data}",
        "replicas: 1"
    ),
    stateful("{matchLabels: {app: db}}", "{app: db}", "replicas: 1"),
    true
)]
#[case::in_other_words(
    stateful("{matchLabels: {app: db}}", "{app: db}", "replicas: 1"),
    stateful(
        "{matchExpressions: [{key: app, operator: In, values: [db, db2]}]}",
        "{app: db2}",
        "replicas: 1"
    ),
    true
)]
fn pods_stay_where_the_new_selector_finds_them(
    #[case] before: String,
    #[case] after: String,
    #[case] adopts: bool,
) {
    let scene = Scene::new()
        .installed(&before)
        .git(&after)
        .predict("StatefulSet.apps/web/db", immutable(None));
    let advised = if adopts { "Orphan" } else { "Foreground" };
    let plan = scene.plan();
    let hint = plan.findings[0].hint.as_deref().unwrap();
    assert!(
        hint.ends_with(&format!(", propagation: {advised}}}")),
        "{hint}"
    );
    let reviewed = scene.clone().consent(&consent("Orphan")).plan();
    assert_eq!(reviewed.count(Action::Recreate), usize::from(adopts));
    if !adopts {
        assert!(!reviewed.has_steps(), "{:?}", reviewed.steps);
        let finding = &reviewed.findings[0];
        assert_eq!(finding.code, "immutable-field");
        assert!(
            finding
                .message
                .contains("the new selector does not match them"),
            "{finding}"
        );
    }
    // Pods that the consent does not retain are deleted with any selector.
    let plan = scene.consent(&consent("Foreground")).plan();
    assert_eq!(propagation(&plan), Propagation::Foreground);
    // An approval of retained pods does not cover their deletion.
    assert!(!plan.has_effects_of(&reviewed));
    assert_ne!(plan.effects(), reviewed.effects());
}

#[test]
fn claims_that_are_deleted_with_their_set_are_named() {
    let more = |policy: &str| {
        format!(
            "volumeClaimTemplates: [{{metadata: {{name: data}}}}], persistentVolumeClaimRetentionPolicy: {{whenDeleted: {policy}}}"
        )
    };
    let reports_claims = |policy: &str, propagation: Option<&str>| {
        let labels = |app: &str| {
            (
                format!("{{matchLabels: {{app: {app}}}}}"),
                format!("{{app: {app}}}"),
            )
        };
        let ((selector, pods), (other, others)) = (labels("db"), labels("db2"));
        let mut scene = Scene::new()
            .installed(&stateful(&selector, &pods, &more(policy)))
            .git(&stateful(&other, &others, &more(policy)))
            .predict("StatefulSet.apps/web/db", immutable(None));
        if let Some(propagation) = propagation {
            scene = scene.consent(&consent(propagation));
        }
        let plan = scene.plan();
        let mut changes = plan.changes.iter();
        changes.any(|change| {
            change
                .reason
                .contains("its PersistentVolumeClaims are deleted with it")
        })
    };
    assert!(reports_claims("Delete", None));
    assert!(reports_claims("Delete", Some("Foreground")));
    assert!(!reports_claims("Retain", None));
    assert!(!reports_claims("Retain", Some("Foreground")));
}

#[test]
fn a_protected_object_is_recreated_only_with_consent() {
    let key = "ConfigMap/web/a";
    let scene = scene(key).with_live(key, |live| {
        live["metadata"]["annotations"]["pleach.dev/prune"] = "disabled".into();
    });
    let plan = scene.plan();
    assert_eq!(plan.count(Action::Blocked), 1);
    assert!(!plan.has_steps());
    let finding = &plan.findings[0];
    assert_eq!(finding.code, "immutable-field");
    let why = "recreated, but its annotation pleach.dev/prune: disabled forbids that";
    assert!(finding.message.ends_with(why), "{}", finding.message);
    let line = "{action: recreate, kind: ConfigMap, namespace: web, name: a, release: r, from: v1.0.0, to: v2.0.0}";
    let hint = format!(
        "remove the annotation, in the cluster too; or, to recreate it, add to `consent` in environments/e.yaml: {line}"
    );
    assert_eq!(finding.hint.as_deref(), Some(hint.as_str()));
    let plan = scene.consent(line).plan();
    assert_eq!(plan.count(Action::Recreate), 1, "{:?}", plan.findings);
}

#[rstest]
#[case::of_another_object(
    "{action: recreate, kind: StatefulSet, name: other, release: r, from: v1.0.0, to: v2.0.0}"
)]
#[case::of_another_upgrade(
    "{action: recreate, kind: StatefulSet, name: db, release: r, from: v1.0.0, to: v3.0.0}"
)]
#[case::to_delete_it(
    "{action: delete, kind: StatefulSet, name: db, release: r, from: v1.0.0, to: v2.0.0}"
)]
fn another_consent_is_none(#[case] consent: &str) {
    let plan = scene("StatefulSet.apps/web/db").consent(consent).plan();
    assert_eq!(plan.count(Action::Blocked), 1);
}

#[test]
fn nothing_is_deleted_for_an_object_that_the_server_would_refuse() {
    let refusal = ApiRefusal {
        code: 422,
        reason: "Invalid".to_owned(),
        message: "spec.x: Invalid value".to_owned(),
    };
    let key = "Deployment.apps/web/a";
    let plan = Scene::new()
        .installed(&format!("{key}: {{spec: {{selector: a}}}}"))
        .git(&format!("{key}: {{spec: {{selector: b}}}}"))
        .predict(key, immutable(Some(refusal)))
        .plan();
    assert!(!plan.has_steps());
    assert_eq!(
        plan.findings[0].message,
        ".spec.selector cannot be changed on an existing object, and the server would refuse the new object (422): spec.x: Invalid value"
    );
}

#[rstest]
#[case::not_recorded(scene("Deployment.apps/web/a").cluster(|observed| observed.inventory.entries.clear()))]
#[case::another_incarnation(scene("Deployment.apps/web/a").entry("Deployment.apps/web/a", |entry| entry.uid = Some("other".to_owned())))]
#[case::adopted(Scene::new().git("Deployment.apps/web/a: {}").live("Deployment.apps/web/a: {managers: [kubectl]}").adopt("kubectl")
    .predict("Deployment.apps/web/a", immutable(None)))]
fn only_objects_of_this_release_are_recreated(#[case] scene: Scene) {
    let plan = scene.plan();
    assert!(!plan.has_steps(), "{:?}", plan.steps);
    assert_eq!(plan.findings[0].code, "immutable-field");
}

#[test]
fn of_a_stateful_set_the_fields_are_named() {
    let set = |service: &str, image: &str, size: &str| {
        format!(
            "StatefulSet.apps/web/db: {{spec: {{serviceName: {service}, template: {{i: {image}}}, volumeClaimTemplates: [{{size: {size}}}]}}}}"
        )
    };
    let spec = Prediction::Immutable {
        fields: vec![FieldPath::default().key("spec")],
        refused: None,
    };
    let plan = Scene::new()
        .installed(&set("a", "a", "1"))
        .with_live("StatefulSet.apps/web/db", |live| {
            live["spec"]["volumeClaimTemplates"][0]["status"] =
                serde_json::json!({"phase": "Pending"});
        })
        .git(&set("b", "b", "1"))
        .predict("StatefulSet.apps/web/db", spec)
        .plan();
    let message = plan.findings[0].message.as_str();
    assert!(
        message.starts_with(".spec.serviceName cannot be changed on an existing object;"),
        "{message}"
    );
}
