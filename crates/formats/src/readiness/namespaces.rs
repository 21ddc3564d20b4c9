//! Rule for namespaces, and obstacles to their deletion.

use serde_json::Value;

use super::conditions::condition;
use super::{Assessment, Readiness};

pub(super) fn namespace(value: &Value) -> Assessment {
    match value["status"]["phase"].as_str() {
        Some("Active") => Assessment::current(),
        Some("Terminating") => Assessment::new(
            Readiness::Terminating,
            deletion_blocker(value).unwrap_or_else(|| "is being deleted".to_owned()),
        ),
        Some(phase) => Assessment::in_progress(format!("phase {phase}")),
        None => Assessment::in_progress("no status yet"),
    }
}

/// Returns the condition that explains a blocked deletion; causes come before
/// consequences.
pub(super) fn deletion_blocker(value: &Value) -> Option<String> {
    [
        "NamespaceDeletionDiscoveryFailure",
        "NamespaceDeletionGroupVersionParsingFailure",
        "NamespaceDeletionContentFailure",
        "NamespaceFinalizersRemaining",
        "NamespaceContentRemaining",
    ]
    .into_iter()
    .find_map(|name| condition(value, name).filter(|condition| condition.is_true()))
    .map(super::conditions::Condition::line)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::super::Readiness::{Current, InProgress, Terminating};
    use super::super::tests::check;
    use super::*;

    #[rstest]
    #[case(json!({"status": {"phase": "Active"}}), Current, "")]
    #[case(json!({}), InProgress, "no status yet")]
    #[case::stuck(json!({"metadata": {"deletionTimestamp": "2026-07-01T10:00:00Z"}, "status": {"phase": "Terminating", "conditions": [
            {"type": "NamespaceDeletionDiscoveryFailure", "status": "True", "reason": "DiscoveryFailed",
             "message": "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs"},
            {"type": "NamespaceContentRemaining", "status": "False", "reason": "ContentRemoved", "message": "All content successfully removed"}]}}),
        Terminating, "is being deleted; NamespaceDeletionDiscoveryFailure=True (DiscoveryFailed): Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs")]
    fn by_phase(#[case] rest: Value, #[case] readiness: Readiness, #[case] message: &str) {
        assert_eq!(
            check("v1", "Namespace", rest),
            (readiness, message.to_owned())
        );
    }
}
