//! Tests of field conflicts, immutable fields and preconditions.

use rstest::rstest;

use super::*;

#[test]
fn field_conflicts_name_managers_and_fields() {
    let status = from(&json!({"kind": "Status", "code": 409, "reason": "Conflict",
    "message": "Apply failed with 2 conflicts: conflicts with \"other\":\n- .data.k\nconflicts with \"kubectl-client-side-apply\" using rbac.authorization.k8s.io/v1:\n- .subjects",
    "details": {"causes": [
        {"reason": "FieldManagerConflict", "message": "conflict with \"other\"", "field": ".data.k"},
        {"reason": "FieldManagerConflict", "field": ".subjects",
            "message": "conflict with \"kubectl-client-side-apply\" using rbac.authorization.k8s.io/v1"},
    ]}}));
    let class = of(Verb::Apply, "ClusterRoleBinding", 409, &status);
    let conflict = |manager: &str, api_version: Option<&str>, field: &str| FieldConflict {
        manager: manager.to_owned(),
        api_version: api_version.map(str::to_owned),
        field: field.to_owned(),
    };
    assert_eq!(
        class,
        Class::FieldConflict(vec![
            conflict("other", None, ".data.k"),
            conflict(
                "kubectl-client-side-apply",
                Some("rbac.authorization.k8s.io/v1"),
                ".subjects"
            ),
        ])
    );
    assert!(!class.is_retryable());
    assert_eq!(class.finding_kind(), Kind::Conflict);
}

fn invalid(causes: &[(&str, &str)]) -> Status {
    let causes: Vec<Value> = causes
        .iter()
        .map(|(field, message)| {
            json!({"reason": "FieldValueInvalid", "field": field, "message": message})
        })
        .collect();
    from(&json!({"kind": "Status", "code": 422, "reason": "Invalid",
        "message": "Deployment.apps \"a\" is invalid", "details": {"causes": causes}}))
}

#[rstest]
#[case(&[("spec.selector", "Invalid value: {\"matchLabels\":{\"a\":\"b\"}}: field is immutable")], ".spec.selector")]
#[case(&[("roleRef", "Invalid value: {\"kind\":\"ClusterRole\"}: cannot change roleRef")], ".roleRef")]
#[case(&[("spec", "Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden")], ".spec")]
#[case(&[("spec", "Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims")], ".spec")]
#[case(&[("spec", "Forbidden: pod updates may not change fields other than `spec.containers[*].image`")], ".spec")]
#[case(&[("spec.clusterIPs[0]", "Invalid value: [\"10.0.0.9\"]: may not change once set")], ".spec.clusterIPs[0]")]
#[case(&[("value", "Forbidden: may not be changed in an update.")], ".value")]
#[case(&[("parameters", "Forbidden: updates to parameters are forbidden.")], ".parameters")]
fn immutable_fields(#[case] causes: &[(&str, &str)], #[case] field: &str) {
    let Class::Immutable(fields) = of(Verb::DryRun, "Deployment", 422, &invalid(causes)) else {
        panic!("not immutable");
    };
    assert_eq!(fields.len(), 1);
    assert_eq!(fields[0].to_string(), field);
}

#[test]
fn a_recreation_does_not_fix_other_errors() {
    let causes = [
        ("spec.selector", "Invalid value: {}: field is immutable"),
        (
            "spec.replicas",
            "Invalid value: -1: must be greater than or equal to 0",
        ),
    ];
    let class = of(Verb::Apply, "Deployment", 422, &invalid(&causes));
    assert_eq!(class, Class::Invalid);
}

#[test]
fn a_uid_in_the_body_is_a_precondition() {
    let causes = [("metadata.uid", "Invalid value: \"0\": field is immutable")];
    let class = of(Verb::Apply, "ConfigMap", 422, &invalid(&causes));
    assert_eq!(class, Class::PreconditionFailed(Failed::Uid));
}

#[test]
fn a_failed_test_of_a_patch_is_a_precondition() {
    let text = "the server rejected our request due to an error in our request";
    let status = status(422, "Invalid", text);
    assert_eq!(
        of(Verb::Patch, "ConfigMap", 422, &status),
        Class::PreconditionFailed(Failed::Test)
    );
    assert_eq!(of(Verb::Apply, "ConfigMap", 422, &status), Class::Invalid);
}
