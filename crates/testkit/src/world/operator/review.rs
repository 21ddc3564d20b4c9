//! Validation of the custom resource. Pure.

use serde_json::{Value, json};

use crate::world::admission;

/// Versions of the product, in order.
const VERSIONS: [&str; 2] = ["v1.0.0", "v1.1.0"];

/// Answers a review. An operator refuses versions newer than its own.
pub(super) fn answer(review: &Value, version: &str) -> Value {
    let request = &review["request"];
    let allowed = match request["object"]["spec"]["version"].as_str() {
        None => true,
        Some(desired) => place(desired).is_some_and(|desired| Some(desired) <= place(version)),
    };
    let response = if allowed {
        json!({"uid": request["uid"], "allowed": true})
    } else {
        let desired = &request["object"]["spec"]["version"];
        let message = format!(
            "operator {version} cannot install {}",
            desired.as_str().unwrap_or_default()
        );
        json!({
            "uid": request["uid"],
            "allowed": false,
            "status": {"code": 422, "reason": "Invalid", "message": message},
        })
    };
    admission::answer(&response)
}

fn place(version: &str) -> Option<usize> {
    VERSIONS.iter().position(|known| *known == version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_version_than_its_own_is_denied() {
        let allowed = |desired: Value, version: &str| {
            let review = json!({"request": {"uid": "1", "object": {"spec": {"version": desired}}}});
            answer(&review, version)["response"]["allowed"] == true
        };
        assert!(allowed(Value::Null, "v1.0.0"));
        assert!(allowed(json!("v1.0.0"), "v1.1.0"));
        assert!(allowed(json!("v1.1.0"), "v1.1.0"));
        assert!(!allowed(json!("v1.1.0"), "v1.0.0"));
        assert!(!allowed(json!("v9.0.0"), "v1.1.0"));
    }
}
