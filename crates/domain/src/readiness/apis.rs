//! What extends the API: definitions and aggregated APIs.

use serde_json::Value;

use super::Assessment;
use super::conditions::condition;

/// A definition is served when Established; its conditions are null in the
/// answer to its creation.
pub(super) fn definition(value: &Value) -> Assessment {
    if let Some(names) = condition(value, "NamesAccepted").filter(|names| names.is_false()) {
        return Assessment::failed(names.line());
    }
    match condition(value, "Established") {
        Some(established) if established.is_true() => Assessment::current(),
        Some(established) => Assessment::in_progress(established.line()),
        None => Assessment::in_progress("not established yet"),
    }
}

pub(super) fn api_service(value: &Value) -> Assessment {
    match condition(value, "Available") {
        Some(available) if available.is_true() => Assessment::current(),
        Some(available) => Assessment::in_progress(available.line()),
        None => Assessment::in_progress("its availability is not known yet"),
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
    #[case::answer_to_the_creation(json!({"status": {"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": ["v1alpha1"]}}),
        InProgress, "not established yet")]
    #[case::installing(json!({"status": {"conditions": [
            {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found"},
            {"type": "Established", "status": "False", "reason": "Installing", "message": "the initial names have been accepted"}]}}),
        InProgress, "Established=False (Installing): the initial names have been accepted")]
    #[case::established(json!({"status": {"conditions": [
            {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts"},
            {"type": "Established", "status": "True", "reason": "InitialNamesAccepted"}]}}),
        Current, "")]
    #[case::conflict(json!({"status": {"conditions": [
            {"type": "NamesAccepted", "status": "False", "reason": "PluralConflict", "message": "\"foos\" is already in use"},
            {"type": "Established", "status": "False", "reason": "NotAccepted", "message": "not all names are accepted"}]}}),
        Failed, "NamesAccepted=False (PluralConflict): \"foos\" is already in use")]
    fn definitions(#[case] rest: Value, #[case] readiness: Readiness, #[case] message: &str) {
        assert_eq!(
            check("apiextensions.k8s.io/v1", "CustomResourceDefinition", rest),
            (readiness, message.to_owned())
        );
    }

    #[rstest]
    #[case(json!({"status": {}}), InProgress, "its availability is not known yet")]
    #[case(json!({"status": {"conditions": [{"type": "Available", "status": "True", "reason": "Passed", "message": "all checks passed"}]}}), Current, "")]
    #[case(json!({"status": {"conditions": [{"type": "Available", "status": "False", "reason": "ServiceNotFound", "message": "service/api in \"web\" is not present"}]}}),
        InProgress, "Available=False (ServiceNotFound): service/api in \"web\" is not present")]
    fn api_services(#[case] rest: Value, #[case] readiness: Readiness, #[case] message: &str) {
        assert_eq!(
            check("apiregistration.k8s.io/v1", "APIService", rest),
            (readiness, message.to_owned())
        );
    }
}
