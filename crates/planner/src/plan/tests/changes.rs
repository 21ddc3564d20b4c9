//! Actions on desired objects.

mod refusals;

use rstest::rstest;
use serde_json::json;

use super::WIDGETS;
use super::scene::{MANAGER, Scene};
use crate::observe::{ApiRefusal, Prediction, Unverified};
use crate::plan::{
    Action, Change, EdgeReason, Need, Op, Plan, Precondition, Until,
    changes::{decide, run, untouched},
    draft::Draft,
    phases::Decided,
};
use pleach_fields::diff::Cause;
use pleach_model::object::{DesiredDigest, FieldPath, labels};

const CONFIG: &str = "ConfigMap/web/c: {data: {k: v}}";
const EDITED: &str = "ConfigMap/web/c: {data: {k: edited}}";
const KEY: &str = "ConfigMap/web/c";

pub(super) fn change<'a>(plan: &'a Plan, id: &str) -> &'a Change {
    let mut changes = plan.changes.iter();
    changes
        .find(|change| change.object.to_string() == id)
        .unwrap()
}

/// Returns the operations on an object, without waits.
pub(super) fn operations(plan: &Plan, id: &str) -> Vec<String> {
    plan.steps
        .iter()
        .filter(|step| step.object.to_string() == id)
        .map(|step| match &step.op {
            Op::Apply { take_over, .. } if !take_over.is_empty() => "apply forced".to_owned(),
            op => op.verb().to_owned(),
        })
        .collect()
}

pub(super) fn codes(plan: &Plan) -> Vec<&str> {
    plan.findings
        .iter()
        .map(|finding| finding.code.as_str())
        .collect()
}

fn immutable() -> Prediction {
    Prediction::Immutable {
        fields: vec![FieldPath::default().key("spec")],
        refused: None,
    }
}

fn refused(code: u16) -> Prediction {
    Prediction::Refused(ApiRefusal {
        code,
        reason: String::new(),
        message: "no".to_owned(),
    })
}

const JOB: &str = "Job.batch/web/j: {spec: {ttlSecondsAfterFinished: 5}}";

fn deleted_job(installed: &str, git: &str) -> Scene {
    Scene::new()
        .installed(&format!("{installed}\n{CONFIG}"))
        .git(&format!("{git}\n{EDITED}"))
        .gone("Job.batch/web/j")
        .version("v1.0.0")
}

#[rstest]
#[case::it_ended(deleted_job(JOB, JOB), Action::Unchanged)]
#[case::completion_not_recorded(deleted_job(JOB, JOB).unfinished("v2.0.0"), Action::Create)]
#[case::it_changed(deleted_job(&JOB.replace('5', "6"), JOB), Action::Create)]
#[case::it_stays_when_it_ends(
    deleted_job("Job.batch/web/j: {spec: {}}", "Job.batch/web/j: {spec: {}}"),
    Action::Create
)]
fn a_completed_and_deleted_job_is_no_drift(#[case] scene: Scene, #[case] expected: Action) {
    let plan = scene.plan();
    let job = change(&plan, "Job.batch/web/j");
    assert_eq!(job.action, expected, "{}", job.reason);
    let steps = operations(&plan, "Job.batch/web/j");
    assert_eq!(steps.is_empty(), expected == Action::Unchanged, "{steps:?}");
}

#[test]
fn a_kind_that_an_earlier_release_brings_need_not_be_served_yet() {
    let git = "Widget.example.org/web/w: {}";
    let scene = || Scene::new().git(git).unserved("Widget.example.org");
    assert_eq!(codes(&scene().plan())[0], "kind-not-served");
    let crd = "CustomResourceDefinition.apiextensions.k8s.io/widgets.example.org: {spec: {group: example.org, scope: Namespaced, \
        names: {kind: Widget, plural: widgets}, versions: [{name: v1, served: true, storage: true}]}}";
    let earlier = Scene::new().git(crd).desired.manifests;
    let scene = scene().with_desired(|desired| desired.terms.prior_releases.add(&earlier, None));
    let plan = scene.plan();
    assert_eq!(codes(&plan), [""; 0]);
    let widget = change(&plan, "Widget.example.org/web/w");
    assert_eq!(widget.action, Action::Create);
    assert_eq!(
        widget.unverified.as_deref(),
        Some("its kind is not served yet")
    );
    // The object exists at the served version.
    let key = "Widget.example.org/web/w";
    let missing = Prediction::Unverified(Unverified::KindMissing);
    let scene = Scene::new()
        .installed("Widget.example.org/web/w: {spec: {a: 1}}")
        .git("Widget.example.org/web/w: {spec: {a: 2}}")
        .unserved("Widget.example.org")
        .with_desired(|desired| desired.terms.prior_releases.add(&earlier, None));
    let plan = scene.predict(key, missing).plan();
    let widget = change(&plan, key);
    assert_eq!(widget.action, Action::Update);
    assert!(widget.unverified.is_some());
    assert_eq!(operations(&plan, key), ["apply"]);
}

#[rstest]
#[case::new(Scene::new().git(CONFIG), Action::Create, "it does not exist yet", &["apply"])]
#[case::deleted(Scene::new().installed(CONFIG).git(CONFIG).gone(KEY), Action::Create, "it was deleted in the cluster", &["apply"])]
#[case::as_desired(Scene::new().installed(CONFIG).git(CONFIG), Action::Unchanged, "in sync", &[])]
#[case::read_for_nothing(Scene::new().installed(CONFIG).git(CONFIG).policy(|policy| policy.verify = true),
    Action::Unchanged, "in sync; the record is updated", &[])]
#[case::foreign_field(Scene::new().installed(CONFIG).git(CONFIG).edited("kubectl-edit", "ConfigMap/web/c: {data: {other: x}}"),
    Action::Unchanged, "in sync; the record is updated", &[])]
#[case::git(Scene::new().installed(CONFIG).git(EDITED), Action::Update, "git changed", &["apply"])]
#[case::drift(Scene::new().installed(CONFIG).git(CONFIG).edited("kubectl-edit", EDITED), Action::Update,
    "the cluster drifted: kubectl-edit wrote to fields of the release", &["apply forced"])]
#[case::both(Scene::new().installed(CONFIG).git("ConfigMap/web/c: {data: {k: v, l: w}}").adopt("kubectl").edited("kubectl-edit", EDITED),
    Action::Update, "git changed and the cluster drifted: kubectl-edit wrote to fields of the release", &["apply forced"])]
#[case::foreign_conflict(Scene::new().installed(CONFIG).git("ConfigMap/web/c: {data: {k: later}}").edited("kubectl-edit", EDITED),
    Action::Blocked, "kubectl-edit owns .data.k", &[])]
#[case::just_deleted(Scene::new().installed(CONFIG).git(EDITED).predict(KEY, Prediction::Creates),
    Action::Create, "it was deleted in the cluster", &["apply"])]
#[case::refused(Scene::new().git(CONFIG).predict(KEY, refused(422)), Action::Blocked, "the server refuses it (422): no", &[])]
#[case::member_refused(Scene::new().installed(CONFIG).git(EDITED).predict(KEY, refused(403)), Action::Blocked,
    "the server refuses it (403): no", &[])]
#[case::immutable(Scene::new().installed(CONFIG).git(EDITED).predict(KEY, immutable()),
    Action::Recreate, "git changed .spec, which cannot change on an existing object", &["delete", "apply"])]
#[case::immutable_and_not_recorded(Scene::new().installed(CONFIG).git(EDITED).predict(KEY, immutable()).cluster(|observed| observed.inventory.entries.clear()),
    Action::Blocked, ".spec cannot be changed on an existing object", &[])]
#[case::api_stale(Scene::new().installed(CONFIG).git(EDITED).predict(KEY, Prediction::Unverified(Unverified::ApiStale)),
    Action::Blocked, "the API v1 is registered but its server does not answer", &[])]
#[case::webhook_down(Scene::new().installed(CONFIG).git(EDITED).predict(KEY, Prediction::Unverified(Unverified::Webhook("down".to_owned()))),
    Action::Update, "it could not be compared", &["apply"])]
fn an_object(
    #[case] scene: Scene,
    #[case] action: Action,
    #[case] reason: &str,
    #[case] expected: &[&str],
) {
    let plan = scene.plan();
    let change = change(&plan, KEY);
    assert_eq!((change.action, change.reason.as_str()), (action, reason));
    assert_eq!(operations(&plan, KEY), expected);
    let blocked = action == Action::Blocked;
    assert_eq!(
        plan.findings
            .iter()
            .any(pleach_model::finding::Finding::is_error),
        blocked,
        "{:?}",
        plan.findings
    );
    assert_eq!(
        change.stage.is_none(),
        blocked || action == Action::Unchanged
    );
    assert_eq!(
        change.digest,
        Some(DesiredDigest::Known(scene.desired.manifests[0].digest()))
    );
}

#[rstest]
#[case::git(Scene::new().installed(CONFIG).git(EDITED), Some(Cause::Git))]
#[case::drift(Scene::new().installed(CONFIG).git(CONFIG).edited("x", EDITED), Some(Cause::Drift { managers: vec!["x".to_owned()] }))]
#[case::both(Scene::new().installed(CONFIG).git("ConfigMap/web/c: {data: {k: v, l: w}}").adopt("x").edited("x", EDITED),
    Some(Cause::Both { managers: vec!["x".to_owned()] }))]
#[case::wiped(Scene::new().installed(CONFIG).git(CONFIG).with_live(KEY, wipe), Some(Cause::Ownership))]
#[case::blind(Scene::new().installed(CONFIG).git(EDITED).predict(KEY, webhook()), Some(Cause::Git))]
#[case::blind_and_as_recorded(Scene::new().installed(CONFIG).git(CONFIG).edited("x", EDITED).predict(KEY, webhook()), None)]
#[case::new(Scene::new().git(CONFIG), None)]
fn a_change_names_its_cause(#[case] scene: Scene, #[case] cause: Option<Cause>) {
    assert_eq!(change(&scene.plan(), KEY).cause, cause);
}

fn webhook() -> Prediction {
    Prediction::Unverified(Unverified::Webhook("down".to_owned()))
}

fn wipe(live: &mut serde_json::Value) {
    live["metadata"]["managedFields"] = json!([]);
    live["metadata"]["resourceVersion"] = json!("2");
}

#[test]
fn a_wiped_record_of_owners_is_repaired_before_the_apply() {
    let plan = Scene::new()
        .installed(CONFIG)
        .git(CONFIG)
        .with_live(KEY, wipe)
        .plan();
    assert_eq!(operations(&plan, KEY), ["patch", "apply"]);
    let apply = &plan.steps[1];
    assert_eq!(apply.needs.len(), 1);
    assert_eq!(
        (apply.needs[0].state, &apply.needs[0].why),
        (Need::Applied, &EdgeReason::SameObject)
    );
    assert_eq!(
        change(&plan, KEY).reason,
        "its managedFields differ from the fields that the release owns"
    );
    let Op::Own(own) = &plan.steps[0].op else {
        panic!("{:?}", plan.steps[0]);
    };
    assert!(own.from.is_empty() && own.strip.is_empty(), "{own:?}");
}

#[test]
fn a_server_without_a_record_of_owners_is_not_repaired_forever() {
    let unowned = Scene::new()
        .installed(CONFIG)
        .git(CONFIG)
        .with_live(KEY, wipe);
    let answer = pleach_state::live::Live::new(unowned.inspect(KEY).clone(), MANAGER);
    let plan = unowned.predict(KEY, Prediction::Answer(answer)).plan();
    assert_eq!(change(&plan, KEY).action, Action::Unchanged);
}

#[rstest]
#[case("pleach-overlay")]
#[case("pleach-copy")]
#[case("pleach-state")]
fn fields_of_our_other_managers_cause_no_conflict(#[case] manager: &str) {
    // No desired value differs, but a plain apply would never remove the field.
    let scene = Scene::new()
        .installed(CONFIG)
        .git(CONFIG)
        .edited(manager, "ConfigMap/web/c: {data: {other: x}}");
    let plan = scene.plan();
    assert_eq!(operations(&plan, KEY), ["patch", "apply"]);
    assert_eq!(change(&plan, KEY).cause, Some(Cause::Ownership));
    // The fields are also taken over in a conflict.
    let scene = Scene::new()
        .installed(CONFIG)
        .git("ConfigMap/web/c: {data: {k: later}}")
        .edited(manager, EDITED);
    assert_eq!(operations(&scene.plan(), KEY), ["patch", "apply forced"]);
}

#[test]
fn a_field_retained_by_another_manager_is_named() {
    let plan = Scene::new()
        .installed("ConfigMap/web/c: {data: {k: v, l: w}}")
        .git(CONFIG)
        .with_live(KEY, |live| {
            let entry = super::server::entry("x", "Update", &json!({"f:data": {"f:l": {}}}));
            live["metadata"]["managedFields"]
                .as_array_mut()
                .unwrap()
                .push(entry);
        })
        .plan();
    let finding = plan
        .findings
        .iter()
        .find(|finding| finding.code == "co-owned-field")
        .unwrap();
    assert_eq!(
        finding.message,
        "git no longer has .data.l, but it stays: x also owns it"
    );
}

#[test]
fn a_terminating_object_is_waited_for_and_created_again() {
    let plan = Scene::new()
        .installed(CONFIG)
        .git(EDITED)
        .meta(KEY, |meta| {
            meta.deleting = true;
            meta.finalizers = vec!["example.org/x".to_owned()];
        })
        .plan();
    assert_eq!(operations(&plan, KEY), ["wait", "apply"]);
    let [wait, apply] = &plan.steps[..2] else {
        panic!()
    };
    assert_eq!(wait.until, Some(Until::Absent { pods: None }));
    assert_eq!(wait.require, [Precondition::Uid(format!("uid of {KEY}"))]);
    assert_eq!(
        (apply.needs[0].from, apply.needs[0].state),
        (wait.id, Need::Absent)
    );
    assert_eq!(apply.require, [Precondition::Absent]);
    assert_eq!(
        change(&plan, KEY).reason,
        "it is being deleted and waits for example.org/x; created again when it is gone"
    );
}

#[test]
fn objects_in_a_terminating_namespace_are_awaited() {
    let plan = Scene::new()
        .installed(&format!(
            "Namespace/a: {{}}\n{}",
            CONFIG.replace("/web/", "/a/")
        ))
        .git(&format!(
            "Namespace/a: {{}}\n{}",
            CONFIG.replace("/web/", "/a/")
        ))
        .meta("Namespace/a", |meta| meta.deleting = true)
        .plan();
    assert_eq!(operations(&plan, "ConfigMap/a/c"), ["wait", "apply"]);
    assert_eq!(operations(&plan, "Namespace/a"), ["wait", "apply"]);
}

#[rstest]
#[case::not_served(Scene::new().git("Widget.example.org/web/w: {}").unserved("Widget.example.org"),
    "kind-not-served", "the cluster serves no Widget at example.org/v1", "the CustomResourceDefinition must be installed first")]
#[case::stale(Scene::new().git("Widget.example.org/web/w: {}").stale("example.org"),
    "api-stale", "the API example.org/v1 is registered but its server does not answer",
    "see the APIService of that group-version: `kubectl get apiservices`")]
#[case::defined_at_another_version(Scene::new().unserved("Widget.example.org").git(
    "Widget.example.org/web/w: {}\nCustomResourceDefinition.apiextensions.k8s.io/widgets.example.org: {spec: {group: example.org, names: {kind: Widget, plural: widgets}, versions: [{name: v2, served: true}, {name: v1, served: false}]}}"),
    "kind-not-served", "the cluster serves no Widget at example.org/v1", "its CRD in this release serves example.org/v2")]
fn a_kind_that_cannot_be_had(
    #[case] scene: Scene,
    #[case] code: &str,
    #[case] message: &str,
    #[case] hint: &str,
) {
    let plan = scene.git(CONFIG).plan();
    let finding = plan
        .findings
        .iter()
        .find(|finding| finding.is_error())
        .unwrap();
    assert_eq!(
        (finding.code.as_str(), finding.message.as_str()),
        (code, message)
    );
    assert_eq!(finding.hint.as_deref(), Some(hint));
    assert_eq!(finding.place.as_ref().unwrap().to_string(), "web.yaml:1");
    assert_eq!(
        change(&plan, "Widget.example.org/web/w").action,
        Action::Blocked
    );
    // I10: no other object is blocked.
    assert_eq!(change(&plan, KEY).action, Action::Create);
}

#[test]
fn a_kind_that_the_release_defines_is_created_unverified() {
    let plan = Scene::new()
        .unserved("Widget.example.org")
        .git(&format!("Widget.example.org/web/w: {{}}\n{WIDGETS}"))
        .plan();
    let change = change(&plan, "Widget.example.org/web/w");
    assert_eq!(change.action, Action::Create);
    assert_eq!(
        change.unverified.as_deref(),
        Some("its kind is not served yet")
    );
    assert!(codes(&plan).is_empty(), "{:?}", plan.findings);
}

#[test]
fn a_change_has_preconditions() {
    let hook =
        "ValidatingWebhookConfiguration.admissionregistration.k8s.io/h: {webhooks: [{name: a}]}";
    let later = hook.replace("name: a", "name: b");
    let plan = Scene::new()
        .installed(&format!("{CONFIG}\n{hook}"))
        .git(&format!("{EDITED}\n{later}\nConfigMap/web/new: {{}}"))
        .plan();
    let config = change(&plan, KEY);
    assert_eq!(
        config.require[0],
        Precondition::Uid(format!("uid of {KEY}"))
    );
    assert!(matches!(config.require[1], Precondition::Fingerprint(_)));
    assert_eq!(
        change(&plan, "ConfigMap/web/new").require,
        [Precondition::Absent]
    );
    // A registration must not have been written at all.
    let hook = change(
        &plan,
        "ValidatingWebhookConfiguration.admissionregistration.k8s.io/h",
    );
    assert_eq!(
        hook.require[1],
        Precondition::ResourceVersion("1".to_owned())
    );
    // The apply may run minutes later, after controllers wrote the object, so
    // only the UID is required.
    for step in plan
        .steps
        .iter()
        .filter(|step| matches!(step.op, Op::Apply { .. }))
    {
        let expected = match change(&plan, &step.object.to_string()).action {
            Action::Create => Precondition::Absent,
            _ => Precondition::Uid(format!("uid of {}", step.object)),
        };
        assert_eq!(step.require, [expected]);
    }
}

#[test]
fn untouched_objects_are_decided_together_as_they_are_one_by_one() {
    const ALL: &str = "ConfigMap/web/a: {data: {k: v}}\nConfigMap/web/b: {data: {k: v}}\nSecret/web/s: {type: Opaque}\nDeployment.apps/web/d: {}\nJob.batch/web/j: {}\nWidget.ex.org/web/w: {}\nValidatingWebhookConfiguration.admissionregistration.k8s.io/h: {}";
    const A: &str = "ConfigMap/web/a";
    let installed = || Scene::new().installed(ALL).git(ALL);
    let labeled = |set: &str| {
        installed().meta(A, |meta| {
            let label = labels::PART_OF.to_owned();
            meta.labels.insert(label, set.to_owned());
        })
    };
    let cases = vec![
        ("nothing changed", installed()),
        (
            "git changed an object",
            installed().git("ConfigMap/web/a: {data: {k: w}}"),
        ),
        (
            "git has a new object",
            installed().git("ConfigMap/web/new: {}"),
        ),
        ("an object is gone", installed().gone(A)),
        ("the label is that of another set", labeled("other")),
        (
            "an object was deleted since",
            installed().predict(A, Prediction::Creates),
        ),
        (
            "an object ends",
            installed().meta(A, |meta| meta.deleting = true),
        ),
        (
            "the namespace ends",
            installed().meta("Namespace/web", |meta| meta.deleting = true),
        ),
        ("an API does not answer", installed().stale("ex.org")),
        (
            "a kind is not served",
            installed().unserved("Widget.ex.org"),
        ),
        ("fields are ignored", installed().ignores(A, &["data.k"])),
    ];
    for (name, scene) in cases {
        scene.with_ctx(|ctx| {
            let (mut together, mut one_by_one) = (Decided::default(), Decided::default());
            run(ctx, &mut together);
            for manifest in ctx.manifests.values() {
                decide(ctx, &mut one_by_one, manifest);
            }
            assert_eq!(together.changes, one_by_one.changes, "{name}");
            assert_eq!(together.steps, one_by_one.steps, "{name}");
            assert_eq!(together.findings, one_by_one.findings, "{name}");
        });
    }
    // Jobs are always decided one by one.
    installed().with_ctx(|ctx| {
        let all = ctx.manifests.values().copied().collect();
        let others = untouched::record(ctx, &mut Draft::default(), all);
        let others: Vec<String> = others.iter().map(|one| one.id().to_string()).collect();
        assert_eq!(others, ["Job.batch/web/j"]);
    });
}
