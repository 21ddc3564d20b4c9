//! Sent writes, and the meaning of their answers.

use pleach_cluster::{
    Applied, ApplyOptions, Class, Cluster, ClusterError, DeleteOptions, Deleted, Failed, Patch,
    PatchOptions, Propagation, ResourcePath,
};
use pleach_model::finding::Kind;
use pleach_model::object::ObjectId;
use rstest::rstest;
use serde_json::{Value, json};

use super::scripted::{Answer, Scripted, Seen, config_map, config_maps};

/// Order, whitespace and unknown fields must be preserved.
const BODY: &str = r#"{"kind":"ConfigMap", "apiVersion":"v1","metadata":{"name":"a","lables":{}},"data":{"k":"n"}}"#;

async fn apply(cluster: &Cluster, options: &ApplyOptions<'_>) -> Result<Applied, ClusterError> {
    cluster
        .apply(&config_maps(), &config_map("a"), BODY.into(), options)
        .await
}

async fn apply_secret(server: &Scripted, body: &Value) -> Result<Applied, ClusterError> {
    let id = ObjectId::new("", "Secret", Some("web"), "db");
    let (cluster, options) = (server.cluster().await, ApplyOptions::new("m"));
    cluster
        .apply(&secrets(), &id, body.to_string().into(), &options)
        .await
}

fn created() -> Answer {
    Answer::Json(201, json!({"kind": "ConfigMap", "metadata": {"uid": "u"}}))
}

#[tokio::test]
async fn the_bytes_of_a_manifest_are_sent_as_they_are() {
    let server = Scripted::start(|_| created()).await;
    let options = ApplyOptions::new("pleach/e.r");
    let applied = apply(&server.cluster().await, &options).await.unwrap();
    assert!(applied.created);
    assert!(!applied.repeated);
    assert_eq!(applied.value["metadata"]["uid"], "u");
    let seen = &server.seen()[0];
    assert_eq!(seen.method, "PATCH");
    assert_eq!(seen.path, "/api/v1/namespaces/web/configmaps/a");
    assert_eq!(seen.query, "fieldManager=pleach/e.r&fieldValidation=Strict");
    assert_eq!(seen.headers["content-type"], "application/apply-patch+yaml");
    assert_eq!(seen.body, BODY);
}

#[tokio::test]
async fn force_dry_run_and_subresource_are_said() {
    let server = Scripted::start(|_| Answer::ok(json!({}))).await;
    let options = ApplyOptions {
        force: true,
        dry_run: true,
        subresource: Some("status"),
        ..ApplyOptions::new("m")
    };
    let applied = apply(&server.cluster().await, &options).await.unwrap();
    assert!(!applied.created);
    let seen = &server.seen()[0];
    assert!(seen.path.ends_with("/configmaps/a/status"));
    assert_eq!(
        seen.query,
        "fieldManager=m&fieldValidation=Strict&force=true&dryRun=All"
    );
}

/// The plan only needs to know that the object would be created.
#[tokio::test]
async fn the_answer_to_a_dry_run_that_creates_is_not_parsed() {
    let server = Scripted::start(|seen| {
        if seen.path.ends_with("/new") {
            Answer::Text(201, "{")
        } else {
            Answer::ok(json!({"kind": "ConfigMap", "data": {"k": "n"}}))
        }
    })
    .await;
    let (cluster, options) = (server.cluster().await, ApplyOptions::new("m"));
    let dry_run = async |name: &str| {
        let id = config_map(name);
        let kind = config_maps();
        let asked = cluster.dry_run(&kind, &id, BODY.into(), &options);
        asked.await.unwrap()
    };
    assert_eq!(dry_run("new").await, None);
    assert_eq!(dry_run("old").await.unwrap()["data"]["k"], "n");
    let seen = &server.seen()[0];
    assert_eq!(
        seen.query,
        "fieldManager=m&fieldValidation=Strict&dryRun=All"
    );
}

#[tokio::test]
async fn warnings_are_kept() {
    let server = Scripted::start(|_| {
        let warning = |text: &str, answer| {
            Answer::Header("warning", format!("299 - \"{text}\""), Box::new(answer))
        };
        warning("two", warning("one \\\"quoted\\\"", created()))
    })
    .await;
    let options = ApplyOptions::new("m");
    let applied = apply(&server.cluster().await, &options).await.unwrap();
    assert_eq!(applied.warnings, ["one \"quoted\"", "two"]);
}

#[tokio::test]
async fn a_conflict_names_managers_and_fields_and_is_not_repeated() {
    let server = Scripted::start(|_| {
        Answer::Json(
            409,
            json!({"kind": "Status", "code": 409, "reason": "Conflict",
                "message": "Apply failed with 1 conflict: conflict with \"other\" using v1: .data.k",
                "details": {"causes": [{"reason": "FieldManagerConflict", "field": ".data.k",
                    "message": "conflict with \"other\" using v1"}]}}),
        )
    })
    .await;
    let options = ApplyOptions::new("m");
    let error = apply(&server.patient().await, &options).await.unwrap_err();
    let Some(Class::FieldConflict(fields)) = error.class() else {
        panic!("{error:?}");
    };
    assert_eq!(fields[0].manager, "other");
    assert_eq!(fields[0].api_version.as_deref(), Some("v1"));
    assert_eq!(fields[0].field, ".data.k");
    assert_eq!(error.kind(), Kind::Conflict);
    assert_eq!(error.to_string(), "failed to apply ConfigMap/web/a");
    assert_eq!(server.seen().len(), 1);
}

#[rstest]
#[case(Answer::Text(503, "service unavailable\n"))]
#[case(Answer::status(
    500,
    "InternalError",
    "Internal error occurred: failed calling webhook \"w.x.io\": failed to call webhook: Post \"https://s.n.svc:443/?timeout=10s\": no endpoints available for service \"s\""
))]
#[case(Answer::status(
    409,
    "Conflict",
    "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again"
))]
#[case(Answer::status(
    504,
    "Timeout",
    "Timeout: request did not complete within requested timeout"
))]
#[case(Answer::Cut)]
#[tokio::test]
async fn what_passes_is_repeated(#[case] failure: Answer) {
    let unclear = matches!(failure, Answer::Cut | Answer::Json(504, _));
    let server = Scripted::start(move |seen: &Seen| {
        if seen.before < 2 {
            failure.clone()
        } else {
            Answer::ok(json!({"kind": "ConfigMap"}))
        }
    })
    .await;
    let options = ApplyOptions::new("m");
    let applied = apply(&server.patient().await, &options).await.unwrap();
    assert_eq!(applied.repeated, unclear);
    let seen = server.seen();
    assert_eq!(seen.len(), 3);
    assert!(seen.iter().all(|seen| seen.body == BODY));
}

#[tokio::test]
async fn a_condition_that_no_longer_holds_is_not_repeated() {
    let server = Scripted::start(|_| {
        Answer::status(
            409,
            "Conflict",
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    })
    .await;
    let body = json!({"metadata": {"name": "a", "resourceVersion": "1"}}).to_string();
    let options = ApplyOptions::new("m");
    let error = server
        .patient()
        .await
        .apply(&config_maps(), &config_map("a"), body.into(), &options)
        .await
        .unwrap_err();
    assert_eq!(error.class(), Some(&Class::StaleResourceVersion));
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_create_that_may_have_happened_says_so() {
    let server = Scripted::start(|seen: &Seen| match seen.before {
        0 => Answer::Cut,
        _ => Answer::status(409, "AlreadyExists", "configmaps \"a\" already exists"),
    })
    .await;
    let options = ApplyOptions::new("pleach-state");
    let error = server
        .patient()
        .await
        .create(&config_maps(), &config_map("a"), BODY.into(), &options)
        .await
        .unwrap_err();
    assert_eq!(
        error.class(),
        Some(&Class::AlreadyExists { terminating: false })
    );
    assert!(error.api().unwrap().unclear);
    let seen = server.seen();
    assert_eq!(seen[1].method, "POST");
    assert_eq!(seen[1].path, "/api/v1/namespaces/web/configmaps");
}

#[tokio::test]
async fn a_patch_that_may_have_happened_is_not_repeated() {
    let server = Scripted::start(|_| Answer::Cut).await;
    let patch =
        Patch::Json(json!([{"op": "test", "path": "/metadata/resourceVersion", "value": "1"}]));
    let options = PatchOptions {
        subresource: Some("scale"),
        ..PatchOptions::new("pleach-overlay")
    };
    let error = server
        .patient()
        .await
        .patch(&config_maps(), &config_map("a"), &patch, &options)
        .await
        .unwrap_err();
    assert_eq!(error.class(), Some(&Class::Interrupted));
    assert!(error.api().unwrap().unclear);
    let seen = server.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(
        seen[0].headers["content-type"],
        "application/json-patch+json"
    );
    assert!(seen[0].path.ends_with("/a/scale"));
}

fn delete_options() -> DeleteOptions<'static> {
    DeleteOptions {
        uid: Some("u"),
        resource_version: Some("7"),
        propagation: Propagation::Foreground,
        dry_run: false,
    }
}

#[rstest]
#[case(Answer::ok(json!({"kind": "Status", "status": "Success", "details": {"uid": "u"}})), Deleted::Gone)]
#[case(Answer::ok(json!({"kind": "ServiceAccount", "metadata": {"name": "a"}})), Deleted::Gone)]
#[case(
    Answer::ok(json!({"kind": "ConfigMap", "metadata": {"name": "a",
        "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x.io/wait"]}})),
    Deleted::Accepted { finalizers: vec!["x.io/wait".to_owned()] }
)]
#[case(
    Answer::status(404, "NotFound", "configmaps \"a\" not found"),
    Deleted::Absent
)]
#[tokio::test]
async fn deletions_end_in_three_ways(#[case] answer: Answer, #[case] expected: Deleted) {
    let server = Scripted::start(move |_| answer.clone()).await;
    let deleted = server
        .cluster()
        .await
        .delete(&config_maps(), &config_map("a"), &delete_options())
        .await
        .unwrap();
    assert_eq!(deleted, expected);
    let seen = &server.seen()[0];
    assert_eq!(seen.method, "DELETE");
    assert_eq!(
        seen.json(),
        json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground",
            "preconditions": {"uid": "u", "resourceVersion": "7"}})
    );
}

#[rstest]
#[case(
    Answer::status(
        409,
        "Conflict",
        "Operation cannot be fulfilled on configmaps \"a\": the UID in the precondition (u) does not match the UID in record (v). The object might have been deleted and then recreated"
    ),
    Class::PreconditionFailed(Failed::Uid),
    Kind::Conflict
)]
#[case(
    Answer::Text(404, "404 page not found"),
    Class::KindNotServed,
    Kind::Cluster
)]
#[case(
    Answer::status(
        403,
        "Forbidden",
        "configmaps \"a\" is forbidden: User \"bob\" cannot delete resource \"configmaps\""
    ),
    Class::Forbidden,
    Kind::Cluster
)]
#[case(
    Answer::status(
        403,
        "Forbidden",
        "admission webhook \"w.x.io\" denied the request: it is in use"
    ),
    Class::WebhookDenied("w.x.io".to_owned()),
    Kind::Policy
)]
#[tokio::test]
async fn deletions_are_refused(#[case] answer: Answer, #[case] class: Class, #[case] kind: Kind) {
    let server = Scripted::start(move |_| answer.clone()).await;
    let error = server
        .patient()
        .await
        .delete(&config_maps(), &config_map("a"), &delete_options())
        .await
        .unwrap_err();
    assert_eq!(error.class(), Some(&class));
    assert_eq!(error.kind(), kind);
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn an_empty_name_never_deletes_a_collection() {
    let server = Scripted::start(|_| Answer::ok(json!({"kind": "Status"}))).await;
    let error = server
        .cluster()
        .await
        .delete(&config_maps(), &config_map(""), &delete_options())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("whole collection"), "{error}");
    assert_eq!(server.seen().len(), 0);
}

#[rstest]
#[case(
    Answer::Json(422, json!({"kind": "Status", "code": 422, "reason": "Invalid",
        "message": "Secret \"db\" is invalid: data[k]: Invalid value: \"hunter2\": too short",
        "details": {"causes": [{"field": "data[k]", "reason": "FieldValueInvalid",
            "message": "Invalid value: \"hunter2\": too short"}]}})),
    "too short"
)]
// A webhook can return any message.
#[case(
    Answer::status(
        403,
        "Forbidden",
        "admission webhook \"w.x.io\" denied the request: hunter2 or aHVudGVyMg== is weak"
    ),
    "admission webhook \"w.x.io\" denied the request: <masked> or <masked> is weak"
)]
#[case(
    Answer::Text(502, "<html>cannot forward {k: hunter2}</html>"),
    "cannot forward {k: <masked>}"
)]
#[tokio::test]
async fn no_secret_value_gets_into_an_error(#[case] answer: Answer, #[case] words: &str) {
    let server = Scripted::start(move |_| answer.clone()).await;
    let object = json!({"data": {"k": "aHVudGVyMg=="}});
    let applied = apply_secret(&server, &object).await.unwrap_err();
    // A patch contains the object that it changes, which can be of any kind.
    let patch = Patch::Json(json!([{"op": "remove", "path": "/metadata/labels/a"}]));
    let options = PatchOptions {
        hides: Some(&object),
        ..PatchOptions::new("m")
    };
    let cluster = server.cluster().await;
    let patched = cluster
        .patch(&config_maps(), &config_map("a"), &patch, &options)
        .await;
    for error in [applied, patched.unwrap_err()] {
        let text = format!("{error:?} {}", error.api().unwrap());
        assert!(!text.contains("hunter2"), "{text}");
        assert!(!text.contains("aHVudGVyMg"), "{text}");
        assert!(text.contains(words), "{text}");
    }
}

#[tokio::test]
async fn no_secret_value_gets_into_warnings_or_debug_output() {
    let server = Scripted::start(|_| {
        let answer = Answer::ok(json!({"kind": "Secret", "data": {"k": "aHVudGVyMg=="}}));
        let warning = "299 - \"value hunter2 is weak\"".to_owned();
        Answer::Header("warning", warning, Box::new(answer))
    })
    .await;
    let applied = apply_secret(&server, &json!({"stringData": {"k": "hunter2"}}))
        .await
        .unwrap();
    assert_eq!(applied.warnings, ["value <masked> is weak"]);
    let text = format!("{applied:?}");
    assert!(!text.contains("aHVudGVyMg"), "{text}");
}

fn secrets() -> ResourcePath {
    ResourcePath::namespaced("v1", "Secret", "secrets")
}

#[tokio::test]
async fn reviews_are_asked() {
    let server = Scripted::start(|seen: &Seen| {
        if seen.path.ends_with("/selfsubjectreviews") {
            Answer::Json(201, json!({"status": {"userInfo": {"username": "bob", "groups": ["g"]}}}))
        } else {
            Answer::Json(201, json!({"status": {"allowed": seen.json()["spec"]["resourceAttributes"]["verb"] == "get"}}))
        }
    })
    .await;
    let cluster = server.cluster().await;
    let user = cluster.whoami().await.unwrap();
    assert_eq!((user.username.as_str(), user.groups.len()), ("bob", 1));
    let access = |verb| pleach_cluster::Access {
        verb,
        group: "apps",
        resource: "deployments",
        subresource: None,
        namespace: Some("web"),
        name: None,
    };
    assert!(cluster.can_i(&access("get")).await.unwrap());
    assert!(!cluster.can_i(&access("delete")).await.unwrap());
}
