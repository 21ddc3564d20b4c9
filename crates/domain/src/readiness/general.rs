//! Rules for custom resources without a row in the table.

use serde_json::Value;

use super::Assessment;
use super::conditions::{condition, lagging};

/// Judges an object without stale conditions.
pub(super) fn assess(value: &Value) -> Assessment {
    if let Some(lag) = lagging(value) {
        return lag;
    }
    if let Some(condition) = condition(value, "Stalled").filter(|condition| condition.is_true()) {
        return Assessment::failed(condition.line());
    }
    if let Some(condition) = condition(value, "Reconciling").filter(|condition| condition.is_true())
    {
        return Assessment::in_progress(condition.line());
    }
    match condition(value, "Ready") {
        Some(ready) if !ready.is_true() => Assessment::in_progress(ready.line()),
        _ => Assessment::current(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::super::Readiness::{self, Current, Failed, InProgress};
    use super::super::tests::check;
    use super::*;

    #[rstest]
    #[case::no_status(json!({}), Current, "")]
    #[case::null_conditions(json!({"status": {"conditions": null}}), Current, "")]
    #[case::other_conditions(
        json!({"status": {"conditions": [{"type": "Synced", "status": "False"}]}}), Current, "")]
    #[case::ready(json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}), Current, "")]
    #[case::not_ready(
        json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Issuing",
            "message": "waiting for\n  the order"}]}}),
        InProgress, "Ready=False (Issuing): waiting for the order")]
    #[case::unknown(
        json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}),
        InProgress, "Ready=Unknown")]
    #[case::lag(
        json!({"metadata": {"generation": 3}, "status": {"observedGeneration": 2,
            "conditions": [{"type": "Ready", "status": "True"}]}}),
        InProgress, "its controller has seen generation 2, not 3 yet")]
    #[case::never_written(
        json!({"metadata": {"generation": 3}, "status": {
            "conditions": [{"type": "Ready", "status": "True"}]}}),
        Current, "")]
    #[case::reconciling(
        json!({"status": {"conditions": [{"type": "Ready", "status": "True"},
            {"type": "Reconciling", "status": "True", "reason": "Progressing"}]}}),
        InProgress, "Reconciling=True (Progressing)")]
    #[case::stalled(
        json!({"status": {"conditions": [{"type": "Stalled", "status": "True",
            "reason": "InvalidSpec", "message": "no such chart"}]}}),
        Failed, "Stalled=True (InvalidSpec): no such chart")]
    fn custom_resources(#[case] rest: Value, #[case] readiness: Readiness, #[case] message: &str) {
        assert_eq!(
            check("example.org/v1", "Widget", rest),
            (readiness, message.to_owned())
        );
    }
}
