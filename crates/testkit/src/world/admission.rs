//! Answers of the api pods' webhooks. Pure, except for the validation log.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// Annotation that makes the webhook deny an object, with the reason as its value.
pub const DENY: &str = "testkit.pleach.dev/deny";
/// Annotation that identifies a write in the validation log.
pub const REQUEST: &str = "testkit.pleach.dev/request";
/// Annotation that the mutating webhook adds, with the namespace of the answering pod.
pub const MUTATED: &str = "testkit.pleach.dev/mutated";

/// Identifiers of all writes that a validating webhook allowed.
#[derive(Debug, Clone, Default)]
pub(crate) struct ValidationLog(Arc<Mutex<HashSet<String>>>);

impl ValidationLog {
    /// Returns whether a write was validated.
    pub(crate) fn contains(&self, mark: &str) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(mark)
    }

    fn insert(&self, mark: &str) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(mark.to_owned());
    }
}

/// Answers a review of a validating webhook.
pub(crate) fn validate(review: &Value, log: &ValidationLog) -> Value {
    let annotations = &review["request"]["object"]["metadata"]["annotations"];
    let response = if let Some(reason) = annotations[DENY].as_str() {
        json!({
            "uid": review["request"]["uid"],
            "allowed": false,
            "status": {"code": 422, "reason": "Invalid", "message": reason},
        })
    } else {
        if let Some(mark) = annotations[REQUEST].as_str() {
            log.insert(mark);
        }
        json!({"uid": review["request"]["uid"], "allowed": true})
    };
    answer(&response)
}

/// Answers a review of a mutating webhook.
pub(crate) fn mutate(review: &Value, namespace: &str) -> Value {
    let metadata = &review["request"]["object"]["metadata"];
    let patch = if metadata["annotations"].is_object() {
        json!([{
            "op": "add",
            "path": format!("/metadata/annotations/{}", MUTATED.replace('/', "~1")),
            "value": namespace,
        }])
    } else {
        json!([{"op": "add", "path": "/metadata/annotations", "value": {MUTATED: namespace}}])
    };
    answer(&json!({
        "uid": review["request"]["uid"],
        "allowed": true,
        "patchType": "JSONPatch",
        "patch": STANDARD.encode(patch.to_string()),
    }))
}

/// Wraps a response in a review.
pub(crate) fn answer(response: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": response,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(annotations: &Value) -> Value {
        json!({"request": {"uid": "1", "object": {"metadata": {"annotations": annotations}}}})
    }

    #[test]
    fn the_marker_denies() {
        let log = ValidationLog::default();
        let answer = validate(&review(&json!({DENY: "too big", REQUEST: "7"})), &log);
        assert_eq!(answer["response"]["allowed"], false);
        assert_eq!(answer["response"]["status"]["message"], "too big");
        assert!(!log.contains("7"), "a denied write was not let pass");
    }

    #[test]
    fn passing_requests_are_logged() {
        let log = ValidationLog::default();
        let answer = validate(&review(&json!({REQUEST: "7"})), &log);
        assert_eq!(answer["response"]["uid"], "1");
        assert!(log.contains("7"));
    }

    #[test]
    fn the_mutator_adds_with_and_without_annotations() {
        for annotations in [json!({"a": "b"}), Value::Null] {
            let mut object = json!({"metadata": {"annotations": annotations}});
            if annotations.is_null() {
                object = json!({"metadata": {}});
            }
            let answer = mutate(&json!({"request": {"uid": "1", "object": object}}), "a");
            let patch = STANDARD
                .decode(answer["response"]["patch"].as_str().unwrap())
                .unwrap();
            let patch: Value = serde_json::from_slice(&patch).unwrap();
            let text = patch[0]["path"].as_str().unwrap();
            assert!(text.starts_with("/metadata/annotations"), "{text}");
        }
    }
}
