//! Fields of ours that another manager took while git changed the object.

use serde_json::{Value, json};

use super::changes::{change, codes, operations};
use super::scene::{MANAGER, Scene};
use super::server::entry;
use crate::observe::Prediction;
use crate::plan::{Action, Op, Plan};
use pleach_fields::diff::Cause;
use pleach_model::object::FieldPath;
use pleach_state::inventory::OwnedFields;
use pleach_state::live::Live;

const WEB: &str = "Deployment.apps/web/d";

/// Builds a Deployment whose replicas, image and log level git sets.
fn web(replicas: u32, image: &str, level: &str) -> String {
    format!("{WEB}: {{spec: {{replicas: {replicas}, image: {image}, level: {level}}}}}")
}

/// Builds a Deployment that was applied, edited by hand, and then changed in
/// git.
fn edited_and_changed(edited: &str, git: &str) -> Scene {
    Scene::new()
        .installed(&web(3, "a", "info"))
        .edited("kubectl", edited)
        .git(git)
}

/// A change in git is known per field.
#[test]
fn drift_of_one_field_does_not_block_a_change_of_another() {
    let scaled = format!("{WEB}: {{spec: {{replicas: 1}}}}");
    let both = format!("{WEB}: {{spec: {{replicas: 1, level: debug}}}}");
    let owns = |fields: &str| Some(fields.to_owned());
    let cases = [
        ("another field", &scaled, web(3, "b", "info"), None),
        ("two others", &both, web(3, "b", "info"), None),
        (
            "the same field",
            &scaled,
            web(5, "a", "info"),
            owns("kubectl owns .spec.replicas"),
        ),
        (
            "both of them",
            &both,
            web(3, "b", "warn"),
            owns("kubectl owns .spec.level"),
        ),
    ];
    for (name, edited, git, conflict) in cases {
        let plan = edited_and_changed(edited, &git).plan();
        let change = change(&plan, WEB);
        if let Some(conflict) = conflict {
            assert_eq!(change.action, Action::Blocked, "{name}");
            assert_eq!(change.reason, conflict, "{name}");
            continue;
        }
        assert_eq!(change.action, Action::Update, "{name}: {}", change.reason);
        let managers = vec!["kubectl".to_owned()];
        assert_eq!(change.cause, Some(Cause::Both { managers }), "{name}");
        assert_eq!(operations(&plan, WEB), ["apply forced"], "{name}");
        assert!(
            change.corrects.iter().all(|one| one.manager == "kubectl"),
            "{name}"
        );
    }
    // Without a record of fields, a change in git counts for the whole object.
    let scene = edited_and_changed(&scaled, &web(3, "b", "info"));
    let scene = scene.entry(WEB, |entry| entry.fields = OwnedFields::default());
    assert_eq!(change(&scene.plan(), WEB).action, Action::Blocked);
}

/// A field that was never exclusively ours keeps its owner.
#[test]
fn a_field_that_another_manager_had_first_is_a_conflict() {
    let shared = Scene::new()
        .installed(&web(3, "a", "info"))
        .with_live(WEB, |live| {
            let fields = json!({"f:spec": {"f:replicas": {}}});
            let entries = live["metadata"]["managedFields"].as_array_mut().unwrap();
            entries.push(entry("scaler", "Update", &fields));
        })
        .recorded(WEB)
        .edited("scaler", &format!("{WEB}: {{spec: {{replicas: 1}}}}"))
        .git(&web(3, "b", "info"));
    let plan = shared.plan();
    assert_eq!(change(&plan, WEB).reason, "scaler owns .spec.replicas");
}

/// Returns the fields that a plan restores from other managers.
fn taken(plan: &Plan) -> Option<Value> {
    let mut steps = plan.steps.iter();
    steps.find_map(|step| match &step.op {
        Op::Own(own) => Some(own.reclaim.to_json()),
        _ => None,
    })
}

/// A field that was ours, was taken, and is desired again becomes ours alone.
#[test]
fn a_hot_fix_that_git_adopts_is_removed_from_its_manager() {
    let debug = format!("{WEB}: {{spec: {{level: debug}}}}");
    let scene = edited_and_changed(&debug, &web(3, "a", "debug"));
    let plan = scene.plan();
    assert_eq!(taken(&plan), Some(json!({"f:spec": {"f:level": {}}})));
    assert_eq!(operations(&plan, WEB), ["patch", "apply"]);
    // A field that another manager had first stays shared.
    let added = format!("{WEB}: {{spec: {{paused: true}}}}");
    let git = web(3, "a", "info").replace("level", "paused: true, level");
    let plan = edited_and_changed(&added, &git).plan();
    assert_eq!(taken(&plan), None);
}

/// The server keeps one owner for an atomic list, and one per field for the
/// items of an associative list.
#[test]
fn a_hot_fix_of_a_list_that_git_adopts_is_removed_from_its_manager() {
    const LEVEL: &str = r#"k:{"name":"LEVEL"}"#;
    const MODE: &str = r#"k:{"name":"MODE"}"#;

    let args = |level: &str| format!("{WEB}: {{spec: {{args: [run, {level}]}}}}");
    let plan = Scene::new()
        .installed(&args("info"))
        .edited("kubectl", &args("debug"))
        .git(&args("debug"))
        .plan();
    assert_eq!(taken(&plan), Some(json!({"f:spec": {"f:args": {}}})));
    assert_eq!(operations(&plan, WEB), ["patch", "apply"]);

    let env = |level: &str| {
        format!(
            "{WEB}: {{spec: {{env: [{{name: LEVEL, value: {level}}}, {{name: MODE, value: a}}]}}}}"
        )
    };
    let item = || json!({".": {}, "f:name": {}, "f:value": {}});
    let ours = |level: Value| {
        let fields = json!({"f:spec": {"f:env": {LEVEL: level, MODE: item()}}});
        entry(MANAGER, "Apply", &fields)
    };
    let fix = json!({"f:spec": {"f:env": {LEVEL: {"f:value": {}}}}});
    let theirs = entry("kubectl", "Update", &fix);
    let scene = Scene::new()
        .installed(&env("info"))
        .with_live(WEB, |live| {
            live["metadata"]["managedFields"] = json!([ours(item())]);
        })
        .recorded(WEB)
        .with_live(WEB, |live| {
            live["spec"]["env"][0]["value"] = json!("debug");
            live["metadata"]["resourceVersion"] = json!("2");
            let rest = json!({".": {}, "f:name": {}});
            live["metadata"]["managedFields"] = json!([ours(rest), theirs]);
        })
        .git(&env("debug"));
    let mut after = scene.inspect(WEB).clone();
    after["metadata"]["managedFields"] = json!([ours(item()), theirs]);
    let answer = Prediction::Answer(Live::new(after, MANAGER));
    let plan = scene.predict(WEB, answer).plan();
    assert_eq!(taken(&plan), Some(fix));
    assert_eq!(operations(&plan, WEB), ["patch", "apply"]);
}

/// A contended field is left alone, even while git changes another one.
#[test]
fn a_contended_field_stays_contended_while_git_changes_another_one() {
    let scaled = format!("{WEB}: {{spec: {{replicas: 1}}}}");
    let contended = |git: &str| {
        let scene = edited_and_changed(&scaled, git);
        let seconds = [10, 20, 30].into_iter();
        seconds.fold(scene, |scene, at| {
            scene.corrected(WEB, ".spec.replicas", "kubectl", at)
        })
    };
    let plan = contended(&web(3, "b", "info")).plan();
    assert!(codes(&plan).contains(&"contended"));
    let left = plan.steps.iter().find_map(|step| match &step.op {
        Op::Apply { leave, .. } => Some(leave.clone()),
        _ => None,
    });
    let replicas = FieldPath::default().key("spec").key("replicas");
    assert_eq!(left, Some(vec![replicas]));
}
