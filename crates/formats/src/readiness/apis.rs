//! Rules for CRDs, APIServices, certificate requests, storage migrations and
//! flow schemas.

use serde_json::Value;

use super::Assessment;
use super::conditions::{Condition, condition};

/// Assesses a CRD, which is served when Established. Its conditions are null in
/// the response to its creation.
pub(super) fn crd(value: &Value) -> Assessment {
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

fn first_true<'a>(value: &'a Value, names: &[&str]) -> Option<Condition<'a>> {
    let mut conditions = names.iter().filter_map(|name| condition(value, name));
    conditions.find(|condition| condition.is_true())
}

/// Assesses a certificate request, which is complete when its signer has issued
/// the certificate.
pub(super) fn signing_request(value: &Value) -> Assessment {
    if let Some(refused) = first_true(value, &["Denied", "Failed"]) {
        return Assessment::failed(refused.line());
    }
    if value["status"]["certificate"].is_string() {
        return Assessment::current();
    }
    let is_approved = first_true(value, &["Approved"]).is_some();
    Assessment::in_progress(if is_approved {
        "its signer has not issued the certificate yet"
    } else {
        "it is not approved yet"
    })
}

pub(super) fn migration(value: &Value) -> Assessment {
    if let Some(failed) = first_true(value, &["Failed"]) {
        return Assessment::failed(failed.line());
    }
    if first_true(value, &["Succeeded"]).is_some() {
        return Assessment::current();
    }
    Assessment::in_progress("the stored objects are not migrated yet")
}

/// Assesses a flow schema, which needs its priority level.
pub(super) fn flow_schema(value: &Value) -> Assessment {
    first_true(value, &["Dangling"]).map_or_else(Assessment::current, |dangling| {
        Assessment::in_progress(dangling.line())
    })
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
    fn a_crd_is_ready_once_it_is_established(
        #[case] rest: Value,
        #[case] readiness: Readiness,
        #[case] message: &str,
    ) {
        assert_eq!(
            check("apiextensions.k8s.io/v1", "CustomResourceDefinition", rest),
            (readiness, message.to_owned())
        );
    }

    #[test]
    fn certificates_migrations_and_schemas() {
        const REQUEST: (&str, &str) = ("certificates.k8s.io/v1", "CertificateSigningRequest");
        const MIGRATION: (&str, &str) = (
            "storagemigration.k8s.io/v1alpha1",
            "StorageVersionMigration",
        );
        const SCHEMA: (&str, &str) = ("flowcontrol.apiserver.k8s.io/v1", "FlowSchema");
        let one = |name: &str| json!({"conditions": [{"type": name, "status": "True"}]});
        let issued =
            json!({"conditions": [{"type": "Approved", "status": "True"}], "certificate": "YQ=="});
        for ((api_version, kind), status, readiness, message) in [
            (REQUEST, json!({}), InProgress, "it is not approved yet"),
            (
                REQUEST,
                one("Approved"),
                InProgress,
                "its signer has not issued the certificate yet",
            ),
            (REQUEST, issued, Current, ""),
            (REQUEST, one("Denied"), Failed, "Denied=True"),
            (REQUEST, one("Failed"), Failed, "Failed=True"),
            (
                MIGRATION,
                one("Running"),
                InProgress,
                "the stored objects are not migrated yet",
            ),
            (MIGRATION, one("Succeeded"), Current, ""),
            (MIGRATION, one("Failed"), Failed, "Failed=True"),
            (SCHEMA, json!({}), Current, ""),
            (SCHEMA, one("Dangling"), InProgress, "Dangling=True"),
        ] {
            assert_eq!(
                check(api_version, kind, json!({"status": status})),
                (readiness, message.to_owned()),
                "{kind}"
            );
        }
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
