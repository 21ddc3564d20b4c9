//! Shared fields, invented owners, and repair of entries.

use rstest::rstest;

use super::*;

const MADE_UP: &str = "before-first-apply";

#[rstest]
#[case::empty("facts-wiped-empty", json!([]))]
#[case::one_empty_entry("facts-wiped-entry", json!([{}]))]
#[tokio::test]
async fn without_entries_the_server_makes_an_owner_up(
    #[case] namespace: &'static str,
    #[case] nothing: Value,
) {
    let server = Server::with(namespace).await;
    let path = server.config_map_path();
    server
        .apply(&path, &config_map(json!({"a": "1", "b": "1"})))
        .await
        .ok();
    let wipe = json!([{"op": "replace", "path": "/metadata/managedFields", "value": nothing}]);
    let wiped = server.json_patch(&path, wipe).await.ok();
    assert_eq!(owners(&wiped), [""; 0]);

    // It shares every live field with us.
    let again = server
        .apply(&path, &config_map(json!({"a": "1", "b": "1"})))
        .await
        .ok();
    assert_eq!(
        owners(&again),
        [format!("{MADE_UP} Update"), format!("{OURS} Apply")]
    );
    assert_eq!(fields_of(&again, MADE_UP), [".data.a", ".data.b"]);
    let changed = config_map(json!({"a": "2", "b": "1"}));
    let (code, message) = server.apply(&path, &changed).await.refused();
    assert_eq!(code, 409);
    assert!(
        message.contains(r#"conflict with "before-first-apply" using v1: .data.a"#),
        "{message}"
    );
    // Fields that git lacks remain forever.
    let less = server
        .apply(&path, &config_map(json!({"a": "1"})))
        .await
        .ok();
    assert_eq!(less["data"]["b"], "1");

    // Its entry becomes ours, and the field is removed.
    let (version, fields) = ("v1", entries(&less["metadata"]));
    let made_up = fields
        .iter()
        .find(|entry| entry["manager"] == MADE_UP)
        .unwrap();
    let ours = json!([{"manager": OURS, "operation": "Apply", "apiVersion": version,
        "fieldsType": "FieldsV1", "fieldsV1": made_up["fieldsV1"]}]);
    let repair = json!([
        {"op": "test", "path": "/metadata/resourceVersion", "value": less["metadata"]["resourceVersion"]},
        {"op": "replace", "path": "/metadata/managedFields", "value": ours},
    ]);
    server.json_patch(&path, repair).await.ok();
    let repaired = server
        .apply(&path, &config_map(json!({"a": "2"})))
        .await
        .ok();
    assert_eq!(repaired["data"], json!({"a": "2"}));
    assert_eq!(owners(&repaired), [format!("{OURS} Apply")]);
}

#[tokio::test]
async fn a_field_with_two_owners_is_removed_by_neither() {
    let server = Server::with("facts-two").await;
    let path = server.config_map_path();
    server
        .apply_as("other", &path, &config_map(json!({"k": "1"})))
        .await
        .ok();
    server
        .apply(&path, &config_map(json!({"k": "1", "l": "1"})))
        .await
        .ok();
    let less = server
        .apply(&path, &config_map(json!({"l": "1"})))
        .await
        .ok();
    assert_eq!(less["data"]["k"], "1");
    assert_eq!(fields_of(&less, "other"), [".data.k"]);
}

#[tokio::test]
async fn a_field_that_is_left_out_goes_unless_it_is_given_up_first() {
    let server = Server::with("facts-giveup").await;
    let path = server.deployment_path();
    let mut five = deployment();
    five["spec"]["replicas"] = json!(5);
    let mut none = deployment();
    none["spec"]
        .as_object_mut()
        .unwrap()
        .shift_remove("replicas");

    server.apply(&path, &five).await.ok();
    let left_out = server.dry_run(&path, &none).await.ok();
    assert_eq!(left_out["spec"]["replicas"], 1);

    let live = server.get(&path).await.ok();
    let position = entries(&live["metadata"])
        .iter()
        .position(|entry| entry["manager"] == OURS);
    let field = format!(
        "/metadata/managedFields/{}/fieldsV1/f:spec/f:replicas",
        position.unwrap()
    );
    server
        .json_patch(&path, json!([{"op": "remove", "path": field}]))
        .await
        .ok();
    let given_up = server.apply(&path, &none).await.ok();
    assert_eq!(given_up["spec"]["replicas"], 5);
    assert_eq!(owners(&given_up), [format!("{OURS} Apply")]);
}

#[tokio::test]
async fn a_create_under_our_name_is_another_owner() {
    let server = Server::with("facts-post").await;
    let all = server.path("/api/v1", "configmaps");
    server
        .create(OURS, &all, &config_map(json!({"a": "1", "b": "1"})))
        .await
        .ok();
    let path = server.config_map_path();
    let applied = server
        .apply(&path, &config_map(json!({"a": "1"})))
        .await
        .ok();
    assert_eq!(
        owners(&applied),
        [format!("{OURS} Apply"), format!("{OURS} Update")]
    );
    assert_eq!(applied["data"]["b"], "1");
    let (code, message) = server
        .apply(&path, &config_map(json!({"a": "2"})))
        .await
        .refused();
    assert_eq!(code, 409, "{message}");
}

#[tokio::test]
async fn a_conflict_names_manager_and_field_in_its_causes() {
    let server = Server::with("facts-clash").await;
    let path = server.config_map_path();
    server
        .apply_as("other", &path, &config_map(json!({"k": "1"})))
        .await
        .ok();
    server.merge(&path, json!({"data": {"l": "1"}})).await.ok();
    let answer = server
        .apply(&path, &config_map(json!({"k": "2", "l": "2"})))
        .await;
    assert_eq!(
        (answer.code, answer.body["reason"].as_str()),
        (409, Some("Conflict"))
    );
    let message = answer.body["message"].as_str().unwrap();
    assert!(
        message.starts_with("Apply failed with 2 conflicts: "),
        "{message}"
    );
    let mut causes: Vec<&Value> = answer.body["details"]["causes"]
        .as_array()
        .unwrap()
        .iter()
        .collect();
    causes.sort_by_key(|cause| cause["field"].as_str());
    assert_eq!(
        json!(causes),
        json!([
            {"reason": "FieldManagerConflict", "message": "conflict with \"other\"", "field": ".data.k"},
            {"reason": "FieldManagerConflict", "message": "conflict with \"someone\" using v1", "field": ".data.l"},
        ])
    );
    assert!(answer.body["details"]["name"].is_null() && answer.body["details"]["kind"].is_null());
    // With force, we own it alone.
    let forced = server
        .force(&path, &config_map(json!({"k": "2", "l": "2"})))
        .await
        .ok();
    assert_eq!(owners(&forced), [format!("{OURS} Apply")]);
}

#[tokio::test]
async fn a_doubled_env_variable_belongs_to_who_added_it() {
    let server = Server::with("facts-env").await;
    let path = server.deployment_path();
    let before = server.apply(&path, &deployment()).await.ok();
    let add = json!([{"op": "add", "path": "/spec/template/spec/containers/0/env/-",
        "value": {"name": "A", "value": "3"}}]);
    let after = server.json_patch(&path, add).await.ok();
    assert_ne!(our_entry(&after), our_entry(&before));
    let answer = server.apply(&path, &deployment()).await;
    assert_eq!(answer.code, 409, "{answer:?}");
    let cause = &answer.body["details"]["causes"][0];
    assert!(
        cause["message"].as_str().unwrap().contains("\"someone\""),
        "{cause}"
    );
    assert!(
        cause["field"]
            .as_str()
            .unwrap()
            .contains(r#"env[name="A"]"#),
        "{cause}"
    );
    let forced = server.force(&path, &deployment()).await.ok();
    let env = &forced["spec"]["template"]["spec"]["containers"][0]["env"];
    assert_eq!(
        env,
        &json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2"}])
    );
    assert_eq!(owners(&forced), [format!("{OURS} Apply")]);
}

#[tokio::test]
async fn a_manager_has_one_entry_whatever_the_version() {
    let server = Server::with("facts-version").await;
    let path = |version: &str| {
        server.path(
            &format!("/apis/autoscaling/{version}"),
            "horizontalpodautoscalers/a",
        )
    };
    let scaler = |version: &str| {
        json!({"apiVersion": format!("autoscaling/{version}"), "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "a"}, "spec": {"maxReplicas": 3,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}})
    };
    server.apply(&path("v1"), &scaler("v1")).await.ok();
    let at_two = server.apply(&path("v2"), &scaler("v2")).await.ok();
    assert_eq!(owners(&at_two), [format!("{OURS} Apply")]);
    assert_eq!(our_entry(&at_two).0, r#""autoscaling/v2""#);
    // A write of another manager at another version does not change our entry.
    let patched = server
        .merge(&path("v1"), json!({"spec": {"minReplicas": 2}}))
        .await
        .ok();
    assert_eq!(our_entry(&patched), our_entry(&at_two));
    // A second entry of ours is not preserved.
    let live = server.get(&path("v2")).await.ok();
    let mut all = entries(&live["metadata"]).to_vec();
    let mut second = apply_entry(&live["metadata"], OURS).unwrap().clone();
    second["apiVersion"] = json!("autoscaling/v1");
    all.push(second);
    let plant = json!([{"op": "replace", "path": "/metadata/managedFields", "value": all}]);
    server.json_patch(&path("v2"), plant).await.ok();
    let live = server.get(&path("v2")).await.ok();
    let ours = owners(&live)
        .into_iter()
        .filter(|owner| owner.starts_with(OURS));
    assert_eq!(ours.count(), 1, "{live}");
}
