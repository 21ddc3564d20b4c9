//! Evidence that allows or forbids a deletion.

use jiff::Timestamp;
use rstest::rstest;
use serde_json::json;

use super::*;
use pleach_model::object::{NonSecret, managers};
use pleach_state::overlay::OnFailure;

/// A binding that was created, or was intended (without `uid`), and a live one.
#[rstest]
#[case::the_one_that_was_made("u", "u", managers::OVERLAY, "view", Some("u"))]
#[case::another_incarnation("u", "v", managers::OVERLAY, "view", None)]
#[case::changed_by_a_user("u", "u", "kubectl", "view", Some("u"))]
#[case::creation_not_recorded("", "u", managers::OVERLAY, "view", Some("u"))]
#[case::of_another_user("", "u", "kubectl", "view", None)]
#[case::with_another_content("", "u", managers::OVERLAY, "edit", None)]
fn a_temporary_binding_is_deleted_by_uid(
    #[case] made: &str,
    #[case] live: &str,
    #[case] manager: &str,
    #[case] role: &str,
    #[case] expected: Option<&str>,
) {
    let object = ObjectId::new("rbac.authorization.k8s.io", "RoleBinding", Some("web"), "b");
    let body = |role: &str| json!({"roleRef": {"name": role}});
    let mut journaled = Journaled {
        kind: None,
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
    let deletion = Deletion::of_temporary_binding((&id, &journaled), &there);
    assert_eq!(deletion.as_ref().map(Deletion::uid), expected);
    // A binding that existed before is restored, not deleted.
    journaled.original = NonSecret(body("edit"));
    assert_eq!(
        Deletion::of_temporary_binding((&id, &journaled), &there),
        None
    );
}

/// A `DaemonSet` with uid `d`, and a pod with an owner.
#[rstest]
#[case::on_delete("OnDelete", State::On, json!({"controller": true, "uid": "d"}), true)]
#[case::not_yet("OnDelete", State::Intended, json!({"controller": true, "uid": "d"}), false)]
#[case::not_on_delete("RollingUpdate", State::On, json!({"controller": true, "uid": "d"}), false)]
#[case::of_another_one("OnDelete", State::On, json!({"controller": true, "uid": "e"}), false)]
#[case::not_controlled("OnDelete", State::On, json!({"uid": "d"}), false)]
fn a_pod_is_replaced_while_its_rollout_is_on_delete(
    #[case] strategy: &str,
    #[case] state: State,
    #[case] owner: Value,
    #[case] expected: bool,
) {
    let object = ObjectId::new("apps", "DaemonSet", Some("web"), "agent");
    let set = json!({"spec": {"updateStrategy": {"type": strategy}}});
    let id = OverlayId::new("agents", &object, &set);
    let journaled = Journaled {
        kind: None,
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

/// The record lists the object as a member; its own marks decide (I15).
#[rstest]
#[case::both_marks(Some("set"), true, true)]
#[case::label(Some("set"), false, true)]
#[case::apply_entry(None, true, true)]
#[case::neither(None, false, false)]
#[case::label_of_another_set(Some("other"), false, false)]
fn a_member_is_deleted_by_a_mark_of_its_own(
    #[case] label: Option<&str>,
    #[case] applied: bool,
    #[case] expected: bool,
) {
    let entry = Entry {
        state: EntryState::Applied,
        uid: Some("u".to_owned()),
        ..Entry::default()
    };
    let manager = "pleach/e.r";
    let metadata = |applied: bool| {
        let entry = json!({"manager": manager, "operation": "Apply", "apiVersion": "v1",
            "fieldsV1": {"f:data": {}}});
        let entries: Vec<&Value> = std::iter::once(&entry).filter(|_| applied).collect();
        let labels: serde_json::Map<String, Value> = label
            .map(|set| (labels::PART_OF.to_owned(), json!(set)))
            .into_iter()
            .collect();
        json!({"uid": "u", "resourceVersion": "7", "labels": labels, "managedFields": entries})
    };
    let live = LiveMeta::read(&metadata(applied), manager);
    let member = Member {
        entry: &entry,
        live: &live,
        apply_set: "set",
        manager,
    };
    let deletion = Deletion::of_member(member, Propagation::Background);
    assert_eq!(deletion.is_some(), expected);
    let Some(deletion) = deletion else { return };
    // The only mark is missing when the object is read again.
    let kind = GroupKind::new("", "ConfigMap");
    let now = |applied| json!({ "metadata": metadata(applied) });
    assert_eq!(deletion.objection(&kind, &now(true)), None);
    let is_kept = deletion.objection(&kind, &now(false)).is_some();
    assert_eq!(is_kept, label.is_none());
}

/// The journal alone only allows deleting temporary bindings.
#[rstest]
#[case::binding("rbac.authorization.k8s.io", "RoleBinding", true)]
#[case::cluster_binding("rbac.authorization.k8s.io", "ClusterRoleBinding", true)]
#[case::role("rbac.authorization.k8s.io", "Role", false)]
#[case::namespace("", "Namespace", false)]
#[case::other_group("example.org", "RoleBinding", false)]
fn only_bindings_are_temporary_bindings(
    #[case] group: &str,
    #[case] kind: &str,
    #[case] expected: bool,
) {
    let object = ObjectId::new(group, kind, Some("web"), "b");
    let journaled = Journaled {
        kind: None,
        object: object.clone(),
        uid: "u".to_owned(),
        state: State::On,
        set: NonSecret(json!({})),
        original: NonSecret(Value::Null),
        owners: Vec::new(),
        on_failure: OnFailure::Undo,
        until: "shrink".to_owned(),
        since: Timestamp::UNIX_EPOCH,
        attempt: "v2".to_owned(),
    };
    let id = OverlayId::new("stand-in", &object, &journaled.set.0);
    let live = json!({"metadata": {"uid": "u"}});
    let deletion = Deletion::of_temporary_binding((&id, &journaled), &live);
    assert_eq!(deletion.is_some(), expected);
}
