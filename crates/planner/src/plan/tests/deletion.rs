//! Objects that changed between the plan and their deletion.

use rstest::rstest;
use serde_json::{Value, json};

use super::scene::{Scene, service_ref};
use super::{position, recreate};
use crate::plan::{Deletion, Grant, Op};
use pleach_model::object::{ObjectId, annotations, labels};

const MEMBER: &str = "ConfigMap/web/old";
const MEMBER_AGAIN: &str = "ConfigMap/web/a";
const MADE: &str = "Secret/web/made";
const HOOK: &str = "ValidatingWebhookConfiguration.admissionregistration.k8s.io/h";

/// Builds a release with an undesired member, a runtime object and a
/// registration of its pods. All are deleted, with the Service `web/api`.
fn scene() -> Scene {
    Scene::new()
        .installed(&format!("{MEMBER}: {{}}\nService/web/api: {{}}"))
        .run_time(&format!("{MADE}: {{}}"), Some("web/api"))
        .live(&format!(
            "{HOOK}: {{webhooks: [{{clientConfig: {{service: {{namespace: web, name: api}}}}}}]}}"
        ))
        .git("ConfigMap/web/new: {}")
}

/// Returns a planned deletion, with the object at that time.
fn decided(key: &str) -> (Deletion, Value) {
    let scene = scene();
    let live = scene.inspect(key).clone();
    let plan = scene.plan();
    let Op::Delete(deletion) = &plan.steps[position(&plan, key)].op else {
        panic!("{key} is not deleted")
    };
    (deletion.clone(), live)
}

fn objection(key: &str, change: impl FnOnce(&mut Value)) -> Option<String> {
    let (deletion, mut now) = decided(key);
    change(&mut now);
    let id: ObjectId = key.parse().unwrap();
    deletion.objection(&id.group_kind(), &now)
}

fn keep(now: &mut Value) {
    now["metadata"]["annotations"][annotations::PRUNE] = json!("disabled");
}

#[rstest]
#[case(MEMBER)]
#[case(MADE)]
#[case(HOOK)]
fn a_status_update_does_not_stop_a_deletion(#[case] key: &str) {
    let (deletion, _) = decided(key);
    assert_eq!(deletion.seen_version(), Some("1"));
    let moved = |now: &mut Value| {
        now["metadata"]["resourceVersion"] = json!("2");
        now["status"] = json!({"replicas": 1});
    };
    assert_eq!(objection(key, moved), None);
}

#[rstest]
#[case(MEMBER)]
#[case(MADE)]
fn an_object_annotated_meanwhile_is_not_deleted(#[case] key: &str) {
    assert_eq!(
        objection(key, keep).as_deref(),
        Some("it now has the annotation pleach.dev/prune: disabled")
    );
}

#[rstest]
#[case::since(false, Some("it now has the annotation pleach.dev/prune: disabled"))]
#[case::before_a_consent(true, None)]
fn an_object_annotated_meanwhile_is_not_recreated(
    #[case] before: bool,
    #[case] expected: Option<&str>,
) {
    let consent = "{action: recreate, kind: ConfigMap, namespace: web, name: a, release: r, from: v1.0.0, to: v2.0.0}";
    let mut scene = recreate::scene(MEMBER_AGAIN).consent(consent);
    if before {
        scene = scene.with_live(MEMBER_AGAIN, keep);
    }
    let mut now = scene.inspect(MEMBER_AGAIN).clone();
    keep(&mut now);
    let plan = scene.plan();
    let Op::Delete(deletion) = &plan.steps[position(&plan, MEMBER_AGAIN)].op else {
        panic!("{:?}", plan.findings)
    };
    let id: ObjectId = MEMBER_AGAIN.parse().unwrap();
    assert_eq!(
        deletion.objection(&id.group_kind(), &now).as_deref(),
        expected
    );
}

#[rstest]
#[case(MEMBER)]
#[case(MADE)]
#[case(HOOK)]
fn an_object_of_another_release_is_not_deleted(#[case] key: &str) {
    let taken = |now: &mut Value| now["metadata"]["labels"][labels::PART_OF] = json!("other");
    assert_eq!(
        objection(key, taken).as_deref(),
        Some("it is part of another ApplySet now (other)")
    );
}

#[test]
fn an_object_released_meanwhile_is_not_deleted() {
    let freed = |now: &mut Value| now["metadata"]["labels"] = json!({});
    assert_eq!(
        objection(MEMBER, freed).as_deref(),
        Some("it is no longer part of an ApplySet")
    );
}

#[rstest]
#[case::elsewhere(json!([{"clientConfig": {"service": {"namespace": "web", "name": "other"}}}]))]
#[case::also_elsewhere(json!([{"clientConfig": {"service": {"namespace": "web", "name": "api"}}},
    {"clientConfig": {"service": {"namespace": "web", "name": "other"}}}]))]
#[case::also_at_a_url(json!([{"clientConfig": {"service": {"namespace": "web", "name": "api"}}},
    {"clientConfig": {"url": "https://10.0.0.1/"}}]))]
fn a_registration_that_points_elsewhere_by_now_stays(#[case] webhooks: Value) {
    let (deletion, _) = decided(HOOK);
    let service = service_ref("web/api");
    assert_eq!(*deletion.because(), Grant::Registration { service });
    assert_eq!(
        objection(HOOK, |now| now["webhooks"] = webhooks).as_deref(),
        Some("it no longer points at Service web/api only")
    );
}

#[test]
fn observed_state_is_not_part_of_the_reviewed_effects() {
    let (deletion, _) = decided(MEMBER);
    assert_eq!(
        serde_json::to_value(&deletion).unwrap(),
        json!({"uid": "uid of ConfigMap/web/old", "propagation": "Background", "because": "inventory"})
    );
}
