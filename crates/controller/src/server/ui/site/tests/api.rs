//! API server with scripted answers.

use std::sync::{Arc, Mutex};

use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use pleach_state::inventory::{AWAITING_APPROVAL, awaiting_approval};
use serde_json::{Value, json};

use super::{RELEASE, TOKEN};

/// State of the scripted API server.
#[derive(Debug)]
pub(super) struct Script {
    /// Verbs of user ann on release prod.web.
    pub(super) verbs: Vec<&'static str>,
    pub(super) release: Value,
    /// Method and path of each request, with its body.
    pub(super) seen: Vec<(String, String, Value)>,
    /// Change of the release that another client makes before the next write.
    pub(super) interference: Option<Value>,
    /// Whether the API server refuses to show the release to the controller.
    pub(super) is_closed: bool,
}

pub(super) fn release(awaited: &str) -> Value {
    json!({
        "apiVersion": "pleach.dev/v1alpha1", "kind": "Release",
        "metadata": {"name": "prod.web", "uid": "u1", "resourceVersion": "1"},
        "spec": {},
        "status": {"conditions": [{"type": "Stalled", "status": "True",
            "reason": AWAITING_APPROVAL, "message": awaiting_approval(awaited, "1 to create")}]},
    })
}

pub(super) async fn answer(script: Arc<Mutex<Script>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let (method, path) = (parts.method.to_string(), parts.uri.path().to_owned());
    let asked = &body["spec"]["resourceAttributes"]["name"];
    let is_slow = body["spec"]["token"] == "slow" || asked == "prod.slow";
    if is_slow {
        std::future::pending::<()>().await;
    }
    let mut script = script.lock().unwrap();
    script
        .seen
        .push((method.clone(), path.clone(), body.clone()));
    let ok = |value: Value| (StatusCode::OK, axum::Json(value)).into_response();
    let status = |code: StatusCode, reason: &str| {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
            "code": code.as_u16(), "reason": reason, "message": reason});
        (code, axum::Json(status)).into_response()
    };
    match (method.as_str(), path.as_str()) {
        ("GET", "/version") => ok(json!({"gitVersion": "v1.36.0"})),
        ("GET", "/api/v1/namespaces/kube-system") => {
            ok(json!({"metadata": {"name": "kube-system", "uid": "c1"}}))
        }
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews") => {
            let is_ann = body["spec"]["token"] == TOKEN;
            let user = json!({"username": "ann", "groups": ["devs"]});
            ok(json!({"status": {"authenticated": is_ann, "user": user}}))
        }
        ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews") => {
            let spec = &body["spec"];
            let asked = &spec["resourceAttributes"];
            assert_eq!(asked["group"], "pleach.dev");
            assert_eq!(asked["resource"], "releases");
            let is_web = asked["name"] == "prod.web" || asked["namespace"] == "team";
            let is_web = is_web && spec["user"] == "ann";
            let verb = asked["verb"].as_str().unwrap();
            ok(json!({"status": {"allowed": is_web && script.verbs.contains(&verb)}}))
        }
        ("GET", RELEASE) if script.is_closed => status(StatusCode::FORBIDDEN, "Forbidden"),
        ("GET", RELEASE) => ok(script.release.clone()),
        ("PATCH", RELEASE) => {
            if let Some(release) = script.interference.take() {
                script.release = release;
            }
            let version = script.release["metadata"]["resourceVersion"].clone();
            if body["metadata"]["resourceVersion"] != version {
                return status(StatusCode::CONFLICT, "Conflict");
            }
            let mut release = script.release.clone();
            json_patch_merge(&mut release, &body);
            release["metadata"]["resourceVersion"] = json!("2");
            script.release = release.clone();
            ok(release)
        }
        ("POST", "/api/v1/namespaces/default/events") => {
            (StatusCode::CREATED, axum::Json(body)).into_response()
        }
        ("GET", "/api/v1/configmaps") => ok(json!({"kind": "ConfigMapList", "apiVersion": "v1",
            "metadata": {"resourceVersion": "1"}, "items": []})),
        _ => status(StatusCode::NOT_FOUND, "NotFound"),
    }
}

/// Applies a merge patch without removals.
fn json_patch_merge(target: &mut Value, patch: &Value) {
    match patch {
        Value::Object(fields) => {
            for (key, value) in fields {
                json_patch_merge(&mut target[key.as_str()], value);
            }
        }
        value => *target = value.clone(),
    }
}
