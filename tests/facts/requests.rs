//! Accepted and refused requests.

use rstest::rstest;

use super::*;

#[rstest]
#[case::a_generated_name("facts-generate", json!({"generateName": "a-"}), 400)]
#[case::managed_fields("facts-managed", json!({"managedFields": [{"manager": "x", "operation": "Apply"}]}), 400)]
#[tokio::test]
async fn metadata_that_an_apply_may_not_have(
    #[case] namespace: &'static str,
    #[case] metadata: Value,
    #[case] expected: u16,
) {
    let server = Server::with(namespace).await;
    let mut object = config_map(json!({"k": "1"}));
    for (key, value) in metadata.as_object().unwrap() {
        object["metadata"][key] = value.clone();
        if key == "generateName" {
            object["metadata"]
                .as_object_mut()
                .unwrap()
                .shift_remove("name");
        }
    }
    let (code, message) = server
        .apply(&server.config_map_path(), &object)
        .await
        .refused();
    assert_eq!(code, expected, "{message}");
}

#[tokio::test]
async fn an_exported_resource_version_is_refused_by_the_second_apply() {
    let server = Server::with("facts-export").await;
    let path = server.config_map_path();
    let mut object = config_map(json!({"k": "1"}));
    let live = server.apply(&path, &object).await.ok();
    object["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
    object["data"]["k"] = json!("2");
    server.apply(&path, &object).await.ok();
    object["data"]["k"] = json!("3");
    let (code, message) = server.apply(&path, &object).await.refused();
    assert_eq!(code, 409, "{message}");
}

#[tokio::test]
async fn an_apply_must_name_its_manager() {
    let server = Server::with("facts-nameless").await;
    let path = server.config_map_path();
    let answer = server
        .apply_with("force=false", &path, &config_map(json!({})))
        .await;
    let (code, message) = answer.refused();
    assert_eq!(code, 422);
    assert!(
        message.contains("fieldManager: Required value: is required for apply patch"),
        "{message}"
    );
}

#[tokio::test]
async fn only_a_uid_says_that_an_object_must_be_there() {
    let server = Server::with("facts-absent").await;
    let path = server.config_map_path();
    let mut object = config_map(json!({}));
    object["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000000");
    let (code, message) = server.apply(&path, &object).await.refused();
    assert_eq!(code, 409);
    assert!(
        message.contains("and no existing object was found"),
        "{message}"
    );
    // A resourceVersion does not prevent creation.
    let mut object = config_map(json!({}));
    object["metadata"]["resourceVersion"] = json!("1");
    assert_eq!(server.apply(&path, &object).await.code, 201);
}

#[tokio::test]
async fn metadata_lists_and_watches_carry_managed_fields() {
    let server = Server::with("facts-meta").await;
    let path = server.config_map_path();
    server
        .apply(&path, &config_map(json!({"k": "1"})))
        .await
        .ok();
    let all = server.path("/api/v1", "configmaps");
    let request = Request::get(&all)
        .header(
            "accept",
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        )
        .body(Vec::new())
        .unwrap();
    let text = server.client.request_text(request).await.unwrap();
    let list: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    let items = list["items"].as_array().unwrap();
    let item = items
        .iter()
        .find(|item| item["metadata"]["name"] == "a")
        .unwrap();
    assert_eq!(owners(item), [format!("{OURS} Apply")]);
    assert!(item["data"].is_null() && item["status"].is_null());
}

#[rstest]
#[case::with_all(
    "resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
    200,
    true
)]
#[case::without_bookmarks("resourceVersionMatch=NotOlderThan", 200, false)]
#[case::without_match("allowWatchBookmarks=true", 422, false)]
#[tokio::test]
async fn a_watch_tells_the_end_of_what_was_there(
    #[case] query: &str,
    #[case] code: u16,
    #[case] has_end: bool,
) {
    let namespace = match (code, has_end) {
        (200, true) => "facts-watch-end",
        (200, false) => "facts-watch-endless",
        _ => "facts-watch-refused",
    };
    let server = Server::with(namespace).await;
    server
        .apply(&server.config_map_path(), &config_map(json!({})))
        .await
        .ok();
    let all = server.path("/api/v1", "configmaps");
    let path = format!("{all}?watch=true&sendInitialEvents=true&timeoutSeconds=2&{query}");
    let answer = server.get(&path).await;
    assert_eq!(answer.code, code, "{answer:?}");
    if code == 422 {
        let (_, message) = answer.refused();
        let expected = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        assert!(message.contains(expected), "{message}");
        return;
    }
    let events = answer.body.as_str().unwrap();
    assert_eq!(
        events.contains(r#""k8s.io/initial-events-end":"true""#),
        has_end,
        "{events}"
    );
}

#[tokio::test]
async fn a_selector_watch_sends_a_deletion_when_the_label_goes() {
    let server = Server::with("facts-unlabel").await;
    let path = server.config_map_path();
    let mut object = config_map(json!({}));
    object["metadata"]["labels"] = json!({"set": "x"});
    let applied = server.apply(&path, &object).await.ok();
    server
        .merge(&path, json!({"metadata": {"labels": {"set": null}}}))
        .await
        .ok();
    let all = server.path("/api/v1", "configmaps");
    let since = applied["metadata"]["resourceVersion"].as_str().unwrap();
    let watch =
        format!("{all}?watch=true&labelSelector=set%3Dx&resourceVersion={since}&timeoutSeconds=2");
    let event = server.get(&watch).await.ok();
    // A single event is valid JSON.
    assert_eq!(event["type"], "DELETED", "{event}");
    assert_eq!(event["object"]["metadata"]["name"], "a");
    assert!(server.get(&path).await.code == 200);
}

#[rstest]
#[case::strict("Strict", "facts-strict")]
#[case::ignore("Ignore", "facts-ignore")]
#[tokio::test]
async fn an_unknown_field_is_refused_however_lenient_we_ask(
    #[case] validation: &str,
    #[case] namespace: &'static str,
) {
    let server = Server::with(namespace).await;
    let mut object = deployment();
    object["spec"]["foo"] = json!(1);
    let query = format!("fieldManager={OURS}&fieldValidation={validation}");
    let answer = server
        .apply_with(&query, &server.deployment_path(), &object)
        .await;
    assert!(answer.body["reason"].is_null(), "{answer:?}");
    let (code, message) = answer.refused();
    assert_eq!(code, 500);
    assert!(
        message.starts_with("failed to create typed patch object"),
        "{message}"
    );
    assert!(
        message.contains(".spec.foo: field not declared in schema"),
        "{message}"
    );
}

#[tokio::test]
async fn json_under_the_yaml_type_is_read_as_json() {
    let server = Server::with("facts-json").await;
    let path = server.config_map_path();
    let live = server
        .apply(&path, &config_map(json!({"k": "yes", "l": "n"})))
        .await
        .ok();
    assert_eq!(live["data"], json!({"k": "yes", "l": "n"}));
}
