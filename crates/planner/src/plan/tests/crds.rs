//! CRD changes that are refused, or applied in parts.

mod conversion;

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::scene::{MANAGER, Scene};
use super::server::entry;
use super::{edges, lines};
use crate::crd::{Instances, Misfit, Sighting};
use crate::observe::Prediction;
use crate::plan::{Action, Body, Op, Plan};
use pleach_formats::sequence::MigrationRule;
use pleach_model::object::{FieldPath, ObjectId, Origin};
use pleach_state::live::Live;

const CRD: &str = "CustomResourceDefinition.apiextensions.k8s.io/things.example.org";

/// Builds a CRD with these versions. The first is the storage version, and
/// versions with `!` are not served.
fn crd(versions: &[&str], more: &str) -> String {
    let versions: Vec<String> = versions
        .iter()
        .enumerate()
        .map(|(index, text)| {
            let name = text.trim_end_matches('!');
            format!(
                "{{name: {name}, served: {}, storage: {}}}",
                name == *text,
                index == 0
            )
        })
        .collect();
    format!(
        "{CRD}: {{spec: {{group: example.org, scope: Namespaced, names: {{kind: Thing, plural: things}}, versions: [{}]{more}}}}}\n",
        versions.join(", ")
    )
}

fn id() -> ObjectId {
    CRD.parse().unwrap()
}

/// Builds custom resources with their names, recorded versions, and dropped
/// fields.
pub(super) fn things(all: &[(&str, &[&str], &[&str])]) -> Instances {
    Instances::of(all.iter().map(|(name, recorded, fields)| {
        Sighting {
            id: format!("Thing.example.org/web/{name}").parse().unwrap(),
            recorded: recorded.iter().map(|text| (*text).to_owned()).collect(),
            misfits: fields
                .iter()
                .map(|field| Misfit {
                    field: (*field).to_owned(),
                    why: None,
                })
                .collect(),
        }
    }))
}

/// Builds an update of a CRD's versions, with objects stored in some of them.
pub(super) fn from_to(before: &[&str], stored: &[&str], after: &[&str]) -> Scene {
    Scene::new()
        .installed(&crd(before, ""))
        .with_live(CRD, |live| live["status"]["storedVersions"] = json!(stored))
        .git(&crd(after, ""))
        .cluster_scoped("CustomResourceDefinition.apiextensions.k8s.io")
}

pub(super) fn seen(scene: Scene, instances: Instances) -> Scene {
    scene.cluster(|observed| drop(observed.instances.insert(id(), instances)))
}

fn migrated(mut scene: Scene, from: &str, to: &str) -> Scene {
    scene.desired.sequence.migrations.push(MigrationRule {
        crd: "things.example.org".to_owned(),
        from: from.to_owned(),
        to: to.to_owned(),
        origin: Origin::new("bundle.yaml", 1),
    });
    scene
}

fn refusals(plan: &Plan) -> Vec<String> {
    let errors = plan.findings.iter().filter(|finding| finding.is_error());
    errors
        .map(|finding| format!("{}: {}", finding.code, finding.message))
        .collect()
}

#[rstest]
#[case::replaced_in_place(
    seen(from_to(&["v1"], &["v1"], &["v2"]), things(&[("a", &["v1"], &[]), ("b", &[], &[])])),
    &["version-stored: version v1 is removed, but objects may be stored in it (status.storedVersions); 2 objects are lost with it: Thing.example.org/web/a, Thing.example.org/web/b"])]
#[case::nothing_is_stored(
    seen(from_to(&["v2", "v1"], &["v2"], &["v2"]), things(&[("a", &[], &[])])), &[])]
#[case::stored_long_ago(
    seen(from_to(&["v2", "v1"], &["v1", "v2"], &["v2"]), things(&[])),
    &["version-stored: version v1 is removed, but objects may be stored in it (status.storedVersions); it has no objects"])]
#[case::offline(
    from_to(&["v1"], &["v1"], &["v2"]).with_live(CRD, |live| live["status"] = Value::Null),
    &["version-stored: version v1 is removed, but objects may be stored in it (status.storedVersions); its objects are lost with it"])]
#[case::recorded(
    seen(from_to(&["v2", "v1"], &["v2"], &["v2"]), things(&[("a", &["v1"], &[]), ("b", &[], &[])])),
    &["version-recorded: version v1 is removed, but managedFields of objects still refer to it, so no client could apply them: Thing.example.org/web/a"])]
#[case::a_field_in_use(
    seen(from_to(&["v1", "v2"], &["v1"], &["v1"]), things(&[("a", &[], &["spec.a"])])),
    &["field-in-use: objects do not fit the new schema: spec.a is dropped: Thing.example.org/web/a"])]
#[case::not_all_could_be_read(
    seen(from_to(&["v1", "v2"], &["v1"], &["v1"]), Instances::Unknown("time-out".to_owned())),
    &["objects-unread: the effect on its objects is unknown, because they cannot all be read: time-out"])]
#[case::a_version_more(from_to(&["v1"], &["v1"], &["v2", "v1"]), &[])]
fn a_crd_that_loses_objects_is_refused(#[case] scene: Scene, #[case] expected: &[&str]) {
    let plan = scene.plan();
    assert_eq!(refusals(&plan), expected);
    assert_eq!(
        plan.count(Action::Blocked),
        usize::from(!expected.is_empty())
    );
    assert_eq!(plan.has_steps(), expected.is_empty());
    for finding in plan.findings.iter().filter(|finding| finding.is_error()) {
        assert_eq!(finding.kind, pleach_model::finding::Kind::Policy);
        assert_eq!(finding.object, Some(id()));
        assert!(finding.hint.is_some());
    }
}

#[rstest]
#[case(
    "scope: Namespaced",
    "scope: Cluster",
    "its scope is Namespaced and cannot change to Cluster while the CRD exists; 1 object is lost with it: Thing.example.org/web/a"
)]
#[case(
    "kind: Thing",
    "kind: Item",
    "its kind is Thing and cannot change to Item while the CRD exists; 1 object is lost with it: Thing.example.org/web/a"
)]
fn scope_and_kind_stay_as_they_are(#[case] from: &str, #[case] to: &str, #[case] expected: &str) {
    let before = crd(&["v1"], "");
    let after = before.replace(from, to);
    let scene = Scene::new().installed(&before).git(&after);
    let plan = seen(scene, things(&[("a", &[], &[])])).plan();
    assert_eq!(
        refusals(&plan),
        [format!("definition-identity: {expected}")]
    );
}

#[test]
fn a_consent_permits_the_loss_of_objects() {
    let scene = || {
        seen(
            from_to(&["v1"], &["v1"], &["v2"]),
            things(&[("a", &[], &[])]),
        )
    };
    let consent = |from: &str| {
        format!(
            "{{action: recreate, kind: CustomResourceDefinition, name: things.example.org, release: r, from: {from}, to: v2.0.0}}"
        )
    };
    let plan = scene().consent(&consent("v1.0.0")).plan();
    assert_eq!(refusals(&plan), [""; 0]);
    assert_eq!(plan.count(Action::Recreate), 1);
    // The consent is for another version change.
    let plan = scene().consent(&consent("v0.9.0")).plan();
    assert_eq!(plan.count(Action::Blocked), 1);
}

/// Custom resources of the release are recreated in the same run, not only in
/// the next one.
#[rstest]
#[case::as_it_was("{a: b}", "{a: b}")]
#[case::changed("{a: b}", "{a: c}")]
fn objects_deleted_with_a_crd_are_recreated(#[case] before: &str, #[case] after: &str) {
    const THING: &str = "Thing.example.org/web/ours";
    let consent = "{action: recreate, kind: CustomResourceDefinition, name: things.example.org, release: r, from: v1.0.0, to: v2.0.0}";
    let scene = Scene::new()
        .installed(&format!("{}{THING}: {{spec: {before}}}", crd(&["v0"], "")))
        .git(&format!("{}{THING}: {{spec: {after}}}", crd(&["v1"], "")))
        .with_live(CRD, |live| {
            live["status"] = json!({"storedVersions": ["v0"]});
        })
        .consent(consent);
    let plan = seen(scene, things(&[("ours", &[], &[])])).plan();
    assert_eq!(refusals(&plan), [""; 0]);
    let mut changes = plan.changes.iter();
    let ours = changes.find(|one| one.object.to_string() == THING).unwrap();
    assert_eq!(ours.action, Action::Create);
    assert_eq!(
        ours.reason,
        "it is deleted with its CRD, which is recreated"
    );
    let of_thing = format!("{CRD} -> {THING}: Ready Crd");
    assert!(edges(&plan).contains(&of_thing), "{:#?}", edges(&plan));
    let mut steps = plan.steps.iter();
    let step = steps.find(|step| step.object.to_string() == THING).unwrap();
    assert_eq!(step.require, [crate::plan::Precondition::Absent]);
}

/// The custom resources in git have another scope afterwards, and the recorded
/// ones are deleted with the previous CRD.
#[test]
fn a_changed_scope_of_a_crd_recreates_its_objects() {
    const BEFORE: &str = "Thing.example.org/web/ours";
    const AFTER: &str = "Thing.example.org/ours";
    let before = crd(&["v1"], "");
    let after = before.replace("scope: Namespaced", "scope: Cluster");
    let scope = FieldPath::default().key("spec").key("scope");
    let scene = Scene::new()
        .installed(&format!("{before}{BEFORE}: {{spec: {{}}}}"))
        .git(&format!("{after}{AFTER}: {{spec: {{}}}}"))
        .with_live(CRD, |live| live["status"]["storedVersions"] = json!(["v1"]))
        .predict(
            CRD,
            Prediction::Immutable {
                fields: vec![scope],
                refused: None,
            },
        );
    let scene = seen(scene, things(&[("ours", &[], &[])]));
    let plan = scene.plan();
    assert_eq!(
        refusals(&plan),
        [
            "definition-identity: its scope is Namespaced and cannot change to Cluster while the CRD exists; 1 object is lost with it: Thing.example.org/web/ours"
        ]
    );
    assert!(!plan.has_steps());

    let consent = "{action: recreate, kind: CustomResourceDefinition, name: things.example.org, release: r, from: v1.0.0, to: v2.0.0}";
    let plan = scene.consent(consent).plan();
    assert_eq!(refusals(&plan), [""; 0]);
    let of_thing = format!("{CRD} -> {AFTER}: Ready Crd");
    assert!(edges(&plan).contains(&of_thing), "{:#?}", edges(&plan));
    let mut steps = plan.steps.iter();
    assert!(!steps.any(|step| step.object.to_string() == BEFORE));
}

/// The CRD changed in an earlier version; the dry run shows the remaining item.
#[test]
fn an_item_without_owner_is_reported() {
    const THING: &str = "Thing.example.org/web/t";
    let scene = Scene::new()
        .installed(&format!(
            "{THING}: {{spec: {{groups: [{{name: a}}, {{name: b}}]}}}}"
        ))
        .git(&format!("{THING}: {{spec: {{groups: [{{name: a}}]}}}}"));
    let mut after = scene.inspect(THING).clone();
    let owned = json!({"f:spec": {"f:groups": {"k:{\"name\":\"a\"}": {".": {}, "f:name": {}}}}});
    after["metadata"]["managedFields"] = json!([entry(MANAGER, "Apply", &owned)]);
    let answer = Prediction::Answer(Live::new(after, MANAGER));
    let plan = scene.predict(THING, answer).plan();
    let mut findings = plan.findings.iter();
    let finding = findings.find(|one| one.code == "unowned-item").unwrap();
    assert_eq!(
        finding.message,
        "git no longer has /spec/groups/1, but it stays: it has no owner since its list is keyed"
    );
}

#[test]
fn a_field_in_use_is_removed_with_consent() {
    let scene = seen(
        from_to(&["v1", "v2"], &["v1"], &["v1"]),
        things(&[("a", &[], &["spec.a"])]),
    );
    let consent = "{action: override, check: field-in-use, kind: CustomResourceDefinition, name: things.example.org, release: r, from: v1.0.0, to: v2.0.0, reason: x}";
    let plan = scene.consent(consent).plan();
    assert_eq!(refusals(&plan), [""; 0]);
    assert_eq!(plan.count(Action::Update), 1);
}

/// Returns the versions in every sent CRD: `*` marks the storage version, `!`
/// an unserved one, and `git` the body in git.
fn sent(plan: &Plan) -> Vec<String> {
    plan.steps
        .iter()
        .filter(|step| step.object == id())
        .map(|step| match &step.op {
            Op::Apply {
                body: Body::Inline(body),
                ..
            } => {
                let versions = body.0["spec"]["versions"].as_array().unwrap();
                let names: Vec<String> = versions
                    .iter()
                    .map(|version| {
                        let mark = |is: bool, text: &'static str| if is { text } else { "" };
                        format!(
                            "{}{}{}",
                            mark(version["storage"] == true, "*"),
                            version["name"].as_str().unwrap(),
                            mark(version["served"] == false, "!")
                        )
                    })
                    .collect();
                format!("{}: {}", step.stage, names.join(" "))
            }
            Op::Apply { .. } => format!("{}: git", step.stage),
            Op::Migrate { from, to, .. } => {
                format!("{}: {} to {to}", step.stage, from.join(", "))
            }
            op => format!("{}: {}", step.stage, op.verb()),
        })
        .collect()
}

#[rstest]
#[case::replaced_in_place(migrated(from_to(&["v1"], &["v1"], &["v2"]), "v1", "v2"),
    &["definitions: *v2 v1", "shrink: *v2 v1!", "shrink: v1 to v2", "shrink: git"])]
#[case::it_stays_served(migrated(from_to(&["v1", "v2"], &["v1"], &["v2", "v1"]), "v1", "v2"),
    &["definitions: git", "shrink: v1 to v2"])]
#[case::it_is_not_stored_but_may_be_recorded(migrated(from_to(&["v2", "v1"], &["v2"], &["v2"]), "v1", "v2"),
    &["definitions: *v2 v1", "shrink: *v2 v1!", "shrink: v1 to v2", "shrink: git"])]
#[case::a_previous_run_was_killed(migrated(from_to(&["v2", "v1!"], &["v1", "v2"], &["v2"]), "v1", "v2").unfinished("v2.0.0"),
    &["definitions: *v2 v1!", "shrink: *v2 v1!", "shrink: v1 to v2", "shrink: git"])]
#[case::it_is_done(migrated(from_to(&["v2"], &["v2"], &["v2"]), "v1", "v2"), &[])]
fn a_version_is_removed_after_its_objects_are_rewritten(
    #[case] scene: Scene,
    #[case] expected: &[&str],
) {
    let plan = scene.plan();
    assert_eq!(refusals(&plan), [""; 0]);
    assert_eq!(sent(&plan), expected);
}

#[test]
fn objects_are_rewritten_after_everything_else() {
    let workload = "Deployment.apps/web/api: {spec: {template: {}}}";
    let scene = migrated(from_to(&["v1"], &["v1"], &["v2"]), "v1", "v2")
        .installed(&format!("{workload}\nService/web/old: {{}}"))
        .git(&workload.replace("{}}", "{spec: {}}}"));
    let plan = scene.plan();
    let last = &lines(&plan)[plan.steps.len() - 4..];
    assert_eq!(
        last,
        [
            "prune: delete Service/web/old until gone".to_owned(),
            format!("shrink: apply {CRD} until example.org/v2, Kind=Thing is served"),
            format!("shrink: migrate {CRD}"),
            format!("shrink: apply {CRD} until example.org/v2, Kind=Thing is served"),
        ]
    );
    let edges = edges(&plan);
    for expected in [
        format!("Release.pleach.dev/e.r (wait) -> {CRD}: Applied Barrier"),
        format!("Service/web/old -> {CRD}: Absent Barrier"),
        format!("{CRD} -> {CRD}: Ready SameObject"),
        format!("{CRD} -> {CRD}: Applied SameObject"),
    ] {
        assert!(edges.contains(&expected), "{expected}\n{edges:#?}");
    }
}

#[test]
fn nothing_is_rewritten_without_waiting() {
    let scene = migrated(from_to(&["v1"], &["v1"], &["v2"]), "v1", "v2");
    let plan = scene.policy(|policy| policy.wait = false).plan();
    assert_eq!(sent(&plan), ["definitions: *v2 v1"]);
    assert!(plan.findings.iter().any(|one| one.code == "not-migrated"));
}

#[rstest]
#[case::to_a_version_that_is_not_stored(migrated(from_to(&["v1"], &["v1"], &["v1", "v2"]), "v1", "v2"), "migration-to-another-version")]
#[case::of_another_crd(migrated(Scene::new().git("ConfigMap/web/c: {}"), "v1", "v2"), "migration-of-nothing")]
fn a_migration_without_effect_is_reported(#[case] scene: Scene, #[case] expected: &str) {
    let plan = scene.plan();
    assert!(
        plan.findings.iter().any(|one| one.code == expected),
        "{:#?}",
        plan.findings
    );
}

const NAMES: [&str; 4] = ["v1", "v2", "v3", "v4"];

fn some_versions() -> impl Strategy<Value = Vec<&'static str>> {
    let some = proptest::sample::subsequence(NAMES.to_vec(), 1..=NAMES.len());
    some.prop_shuffle()
}

proptest! {
    #[test]
    fn a_stored_version_is_removed_after_its_objects_are_rewritten(
        before in some_versions(),
        after in some_versions(),
        stored in proptest::sample::subsequence(NAMES.to_vec(), 0..=NAMES.len()),
        migrates in proptest::sample::subsequence(NAMES.to_vec(), 0..=NAMES.len()),
        finished in any::<bool>(),
        wait in any::<bool>(),
    ) {
        // Stored versions exist in the CRD, and include the present storage
        // version.
        let mut stored: Vec<&str> = stored.into_iter().filter(|name| before.contains(name)).collect();
        if !stored.contains(&before[0]) {
            stored.push(before[0]);
        }
        let mut scene = from_to(&before, &stored, &after).policy(|policy| policy.wait = wait);
        for from in migrates.into_iter().filter(|from| *from != after[0]) {
            scene = migrated(scene, from, after[0]);
        }
        if !finished {
            scene = scene.unfinished("v2.0.0");
        }
        let plan = scene.plan();
        let gone = stored.iter().filter(|name| !after.contains(name));
        let steps: Vec<&Op> = plan.steps.iter().filter(|step| step.object == id()).map(|step| &step.op).collect();
        for name in gone {
            let rewritten = steps.iter().position(|op| {
                matches!(op, Op::Migrate { from, to, .. } if from.iter().any(|from| from == name) && to == after[0])
            });
            for (position, op) in steps.iter().enumerate() {
                let has_it = match op {
                    Op::Apply { body: Body::Inline(body), .. } => {
                        let mut versions = body.0["spec"]["versions"].as_array().unwrap().iter();
                        versions.any(|version| version["name"] == *name)
                    }
                    Op::Apply { .. } => false,
                    _ => continue,
                };
                prop_assert!(has_it || rewritten.is_some_and(|rewritten| rewritten < position), "{name}: {steps:#?}");
            }
        }
        // Every sent CRD has exactly one storage version.
        for op in steps {
            if let Op::Apply { body: Body::Inline(body), .. } = op {
                let versions = body.0["spec"]["versions"].as_array().unwrap();
                let stored = versions.iter().filter(|version| version["storage"] == true);
                prop_assert_eq!(stored.count(), 1);
            }
        }
    }
}
