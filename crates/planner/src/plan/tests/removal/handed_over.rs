//! Objects that move to another release.

use rstest::rstest;
use serde_json::json;

use super::*;

#[test]
fn objects_a_successor_desires_are_handed_over_and_the_rest_is_deleted() {
    let taken = set("new");
    let scene = Scene::new()
        .installed("ConfigMap/web/taken: {}\nConfigMap/web/to-hand-over: {}\nConfigMap/web/neither: {}\nSecret/web/gone: {}")
        .gone("Secret/web/gone")
        .run_time("Secret/web/made: {}", None)
        .with_live("ConfigMap/web/taken", |live| {
            live["metadata"]["labels"] = json!({labels::PART_OF: taken});
        });
    let removal = successor(&[
        "ConfigMap/web/taken",
        "ConfigMap/web/to-hand-over",
        "Secret/web/gone",
    ]);
    let plan = scene.end(&removal);
    assert_eq!(deleted(&plan), ["ConfigMap/web/neither"]);
    assert_eq!(
        changes(&plan),
        [
            "delete ConfigMap/web/neither: its release is uninstalled",
            "unchanged ConfigMap/web/taken: it was handed over to release e.new",
            "skip ConfigMap/web/to-hand-over: it is handed over to release e.new",
            "unchanged Secret/web/gone: gone already",
            "skip Secret/web/made: stays because its creator stays",
        ]
    );
    assert_eq!(released(&plan), ["ConfigMap/web/taken", "Secret/web/made"]);
    // Without consent to the uninstall, taken objects leave the record too.
    let plan = scene.end(&Removal {
        consented: None,
        ..removal
    });
    assert!(plan.steps.is_empty());
    assert_eq!(released(&plan), ["ConfigMap/web/taken"]);
    assert!(plan.removal.unwrap().ends);
}

/// Builds an object of release `e.old`, as seen by release `e.r`.
fn handed_over() -> Scene {
    Scene::new()
        .live("ConfigMap/web/c: {managers: [pleach/e.old]}")
        .with_live("ConfigMap/web/c", |live| {
            live["metadata"]["labels"] = json!({labels::PART_OF: set("old")});
            live["metadata"]["managedFields"][0]["operation"] = json!("Apply");
        })
        .git("ConfigMap/web/c: {}")
}

#[rstest]
#[case::named(Some("old"), Action::Adopt)]
#[case::another(Some("older"), Action::Blocked)]
#[case::no_consent(None, Action::Blocked)]
fn objects_of_the_previous_release_are_adopted(
    #[case] moved_from: Option<&str>,
    #[case] action: Action,
) {
    let plan = handed_over()
        .with_desired(|desired| {
            desired.terms = Terms {
                moved_from: moved_from.map(name),
                previous_set: moved_from.map(set),
                ..Terms::default()
            };
        })
        .plan();
    assert_eq!(plan.changes[0].action, action, "{:?}", changes(&plan));
    if action == Action::Adopt {
        assert_eq!(
            lines(&plan)[..2],
            [
                "config: patch ConfigMap/web/c",
                "config: apply ConfigMap/web/c"
            ]
        );
    }
}

#[rstest]
#[case::the_same("e.r", Action::Adopt)]
#[case::another("e.other", Action::Blocked)]
fn a_release_of_the_same_name_adopts_objects_an_uninstall_left(
    #[case] released: &str,
    #[case] action: Action,
) {
    // A retained namespace has no field of ours, and a controller wrote it.
    let plan = Scene::new()
        .live("Namespace/kept: {managers: [kube-controller-manager]}")
        .with_live("Namespace/kept", |live| {
            live["metadata"]["annotations"] = json!({annotations::RELEASED: released});
        })
        .git("Namespace/kept: {}")
        .plan();
    assert_eq!(plan.changes[0].action, action, "{:?}", changes(&plan));
}
