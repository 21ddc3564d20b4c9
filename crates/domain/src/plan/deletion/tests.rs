//! Who may be deleted, and who not.

use jiff::Timestamp;
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::object::managers;
use crate::overlay::OnFailure;
use crate::plan::NonSecret;

/// A binding that was made, or was to be made (without `uid`), and a live one.
#[rstest]
#[case::the_one_that_was_made("u", "u", managers::OVERLAY, "view", Some("u"))]
#[case::another_incarnation("u", "v", managers::OVERLAY, "view", None)]
#[case::changed_by_somebody("u", "u", "kubectl", "view", Some("u"))]
#[case::nobody_saw_it_made("", "u", managers::OVERLAY, "view", Some("u"))]
#[case::somebody_elses("", "u", "kubectl", "view", None)]
#[case::with_another_content("", "u", managers::OVERLAY, "edit", None)]
fn what_stands_in_is_deleted_by_its_incarnation(
    #[case] made: &str,
    #[case] live: &str,
    #[case] manager: &str,
    #[case] role: &str,
    #[case] expected: Option<&str>,
) {
    let object = ObjectId::new("rbac.authorization.k8s.io", "RoleBinding", Some("web"), "b");
    let body = |role: &str| json!({"roleRef": {"name": role}});
    let mut journaled = Journaled {
        object: object.clone(),
        uid: made.to_owned(),
        state: State::On,
        set: NonSecret(body("view")),
        original: NonSecret(Value::Null),
        owners: Vec::new(),
        on_failure: OnFailure::Undo,
        until: "shrink".to_owned(),
        since: Timestamp::UNIX_EPOCH,
        attempt: "v2".to_owned(),
    };
    let id = OverlayId::new("stand-in", &object, &journaled.set.0);
    let mut there = body(role);
    there["metadata"] = json!({"uid": live, "managedFields": [
        {"manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsV1": {"f:roleRef": {}}},
    ]});
    let deletion = Deletion::of_stand_in((&id, &journaled), &there);
    assert_eq!(deletion.as_ref().map(Deletion::uid), expected);
    // What was there before is put back and not deleted.
    journaled.original = NonSecret(body("edit"));
    assert_eq!(Deletion::of_stand_in((&id, &journaled), &there), None);
}

/// A `DaemonSet` with uid `d`, and a pod with an owner.
#[rstest]
#[case::held("OnDelete", State::On, json!({"controller": true, "uid": "d"}), true)]
#[case::not_yet("OnDelete", State::Intended, json!({"controller": true, "uid": "d"}), false)]
#[case::not_held("RollingUpdate", State::On, json!({"controller": true, "uid": "d"}), false)]
#[case::of_another_one("OnDelete", State::On, json!({"controller": true, "uid": "e"}), false)]
#[case::not_controlled("OnDelete", State::On, json!({"uid": "d"}), false)]
fn a_pod_is_exchanged_while_its_roll_out_is_held(
    #[case] strategy: &str,
    #[case] state: State,
    #[case] owner: Value,
    #[case] expected: bool,
) {
    let object = ObjectId::new("apps", "DaemonSet", Some("web"), "agent");
    let set = json!({"spec": {"updateStrategy": {"type": strategy}}});
    let id = OverlayId::new("agents", &object, &set);
    let journaled = Journaled {
        object,
        uid: "d".to_owned(),
        state,
        set: NonSecret(set),
        original: NonSecret(json!({"spec": {"updateStrategy": {"type": "RollingUpdate"}}})),
        owners: Vec::new(),
        on_failure: OnFailure::Keep { max_age: None },
        until: "agents".to_owned(),
        since: Timestamp::UNIX_EPOCH,
        attempt: "v2".to_owned(),
    };
    let pod = json!({"uid": "p", "ownerReferences": [owner]});
    let deletion = Deletion::of_exchanged_pod((&id, &journaled), &pod);
    assert_eq!(deletion.is_some(), expected);
    assert!(deletion.is_none_or(|deletion| deletion.uid() == "p"
        && deletion.because()
            == &Grant::Exchange {
                overlay: id.clone()
            }));
}
