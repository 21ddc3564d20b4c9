//! The table with the exact texts of a 1.36 server.

use pleach_domain::finding::Kind;
use pleach_domain::observe::{FieldConflict, Listing, Prediction, Unverified};
use rstest::rstest;
use serde_json::{Value, json};

use super::{Class, Failed, Question, Verb};
use crate::io::cluster::ApiError;
use crate::io::cluster::mask::Mask;
use crate::io::cluster::status::Status;
use crate::io::cluster::transport::classify;

const WEBHOOK_DOWN: &str = "Internal error occurred: failed calling webhook \"widgets-create-validator.example.org\": failed to call webhook: Post \"https://widget-api.kube-system.svc:443/widgets-validate-create?timeout=10s\": service \"widget-api\" not found";
const WEBHOOK_NO_ENDPOINTS: &str = "Internal error occurred: failed calling webhook \"w.x.io\": failed to call webhook: Post \"https://widget-api.kube-system.svc:443/v?timeout=10s\": no endpoints available for service \"widget-api\"";
const WEBHOOK_REFUSED: &str = "Internal error occurred: failed calling webhook \"w.x.io\": failed to call webhook: Post \"https://widget-api.kube-system.svc:443/v?timeout=10s\": dial tcp 10.250.128.7:8443: connect: connection refused";
const GATE: &str = "widgets.example.org \"vm3\" is forbidden: ValidatingAdmissionPolicy 'pleach-gate.example.org' with binding 'pleach-gate.example.org' denied request: closed during an upgrade";
const ESCALATION: &str = "clusterroles.rbac.authorization.k8s.io \"esc\" is forbidden: user \"bob\" (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\"]}\n{APIGroups:[\"example.org\"], Resources:[\"*\"], Verbs:[\"*\"]}";
const TERMINATING: &str = "configmaps \"a\" is forbidden: unable to create new content in namespace term2 because it is being terminated";
const UID: &str = "Operation cannot be fulfilled on APIService.apiregistration.k8s.io \"v1alpha2.sub.example.org\": the UID in the precondition (00000000-0000-0000-0000-000000000000) does not match the UID in record (ea06d9f2-0000-0000-0000-000000000000). The object might have been deleted and then recreated";
const RESOURCE_VERSION: &str = "Operation cannot be fulfilled on APIService.apiregistration.k8s.io \"v1alpha2.sub.example.org\": the ResourceVersion in the precondition (1) does not match the ResourceVersion in record (344). The object might have been modified";
const MODIFIED: &str = "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again";
const UID_ABSENT: &str = "Operation cannot be fulfilled on configmaps \"a\": uid mismatch: the provided object specified uid 0000, and no existing object was found";
const TYPED: &str = "failed to create typed patch object (as1/v; apps/v1, Kind=Deployment): errors:\n  .spec.template.spec.containers[name=\"c\"].imagee: field not declared in schema\n  .spec.template.spec.foo: field not declared in schema";
const DUPLICATE_PORT: &str = "failed to create typed patch object (kube-system/widget-api; apps/v1, Kind=Deployment): .spec.template.spec.containers[name=\"widget-api\"].ports: duplicate entries for key [containerPort=8443,protocol=\"TCP\"]";
const YAML_BOOL: &str = "failed to create typed patch object (/; v1, Kind=ConfigMap): .metadata.name: expected string, got &value.valueUnstructured{Value:false}";
const STRICT: &str =
    "strict decoding error: unknown field \"spec.template.spec.containers[0].imagee\"";
const STRICT_YAML: &str = "error strict decoding YAML: error converting YAML to JSON: yaml: key \"image\" already set in map";
const STORED: &str = "CustomResourceDefinition.apiextensions.k8s.io \"datavolumes.cdi.example.org\" is invalid: status.storedVersions[0]: Invalid value: \"v1alpha2\": missing from spec.versions; v1alpha2 was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in v1alpha2 and removes v1alpha2 from status.storedVersions";
const EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";
const BY_USER: &str = "deployments.apps is forbidden: User \"bob\" cannot list resource \"deployments\" in API group \"apps\" at the cluster scope";
const PATCH_BY_USER: &str = "deployments.apps \"a\" is forbidden: User \"bob\" cannot patch resource \"deployments\" in API group \"apps\" in the namespace \"web\"";
const QUOTA: &str =
    "pods \"a\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1";
const POD_SECURITY: &str = "pods \"a\" is forbidden: violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false (container \"c\" must set securityContext.allowPrivilegeEscalation=false)";

fn status(http: u16, reason: &str, message: &str) -> Status {
    from(
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": http}),
    )
}

fn from(value: &Value) -> Status {
    Status::read(value.to_string().as_bytes()).expect("a Status")
}

fn of(verb: Verb, kind: &str, http: u16, status: &Status) -> Class {
    let question = Question { verb, kind };
    Class::of(question, http, Some(status), "")
}

#[rstest]
// Section 2: a dead backend.
#[case(Verb::Apply, 500, "InternalError", WEBHOOK_DOWN, Class::WebhookUnavailable("widgets-create-validator.example.org".into()), true)]
#[case(Verb::Apply, 500, "InternalError", WEBHOOK_NO_ENDPOINTS, Class::WebhookUnavailable("w.x.io".into()), true)]
#[case(Verb::Apply, 500, "InternalError", WEBHOOK_REFUSED, Class::WebhookUnavailable("w.x.io".into()), true)]
#[case(Verb::List, 500, "InternalError", "conversion webhook for ex.org/v1, Kind=Thing failed: Post \"https://s.n.svc:443/c?timeout=30s\": service \"s\" not found", Class::WebhookUnavailable("conversion of ex.org/v1, Kind=Thing".into()), true)]
// Section 3.2: the gate.
#[case(Verb::Create, 403, "Forbidden", GATE, Class::PolicyDenied { policy: "pleach-gate.example.org".into(), binding: "pleach-gate.example.org".into() }, false)]
#[case(Verb::Apply, 422, "Invalid", GATE, Class::PolicyDenied { policy: "pleach-gate.example.org".into(), binding: "pleach-gate.example.org".into() }, false)]
// Section 3.3: preconditions.
#[case(
    Verb::Delete,
    409,
    "Conflict",
    UID,
    Class::PreconditionFailed(Failed::Uid),
    false
)]
#[case(
    Verb::Delete,
    409,
    "Conflict",
    RESOURCE_VERSION,
    Class::PreconditionFailed(Failed::ResourceVersion),
    false
)]
#[case(
    Verb::Apply,
    409,
    "Conflict",
    MODIFIED,
    Class::StaleResourceVersion,
    true
)]
#[case(
    Verb::Apply,
    409,
    "Conflict",
    UID_ABSENT,
    Class::PreconditionFailed(Failed::Uid),
    false
)]
#[case(Verb::Create, 409, "AlreadyExists", "configmaps \"a\" already exists", Class::AlreadyExists { terminating: false }, false)]
#[case(Verb::Create, 409, "AlreadyExists", "object is being deleted: configmaps \"a\" already exists", Class::AlreadyExists { terminating: true }, false)]
#[case(
    Verb::Apply,
    409,
    "Conflict",
    "Operation cannot be fulfilled on namespaces \"a\": something else",
    Class::Conflict,
    true
)]
// Section 6 (v): the manifest.
#[case(Verb::Apply, 500, "", TYPED, Class::InvalidManifest, false)]
#[case(Verb::DryRun, 500, "", TYPED, Class::InvalidManifest, false)]
#[case(Verb::Apply, 500, "", DUPLICATE_PORT, Class::InvalidManifest, false)]
#[case(Verb::Apply, 500, "", YAML_BOOL, Class::InvalidManifest, false)]
#[case(Verb::Create, 400, "BadRequest", STRICT, Class::InvalidManifest, false)]
#[case(
    Verb::Apply,
    400,
    "BadRequest",
    STRICT_YAML,
    Class::InvalidManifest,
    false
)]
#[case(
    Verb::Create,
    400,
    "BadRequest",
    "Secret in version \"v1\" cannot be handled as a Secret: illegal base64 data at input byte 4",
    Class::InvalidManifest,
    false
)]
#[case(
    Verb::Apply,
    400,
    "BadRequest",
    "metadata.managedFields must be nil",
    Class::BadRequest,
    false
)]
#[case(
    Verb::Watch,
    422,
    "Invalid",
    "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
    Class::Invalid,
    false
)]
#[case(
    Verb::Apply,
    422,
    "Invalid",
    "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
    Class::Invalid,
    false
)]
// Section 6 (vi): storage versions.
#[case(Verb::DryRun, 422, "Invalid", STORED, Class::Invalid, false)]
// Section 6 (viii): namespaces.
#[case(Verb::Apply, 403, "Forbidden", TERMINATING, Class::NamespaceTerminating("term2".into()), false)]
// Section 6 (xi): rights.
#[case(Verb::Apply, 403, "Forbidden", ESCALATION, Class::RbacEscalation { missing: vec![
    "{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\"]}".into(),
    "{APIGroups:[\"example.org\"], Resources:[\"*\"], Verbs:[\"*\"]}".into(),
] }, false)]
#[case(Verb::List, 403, "Forbidden", BY_USER, Class::Forbidden, false)]
#[case(Verb::Apply, 403, "Forbidden", PATCH_BY_USER, Class::Forbidden, false)]
#[case(Verb::Apply, 403, "Forbidden", QUOTA, Class::AdmissionDenied, false)]
#[case(
    Verb::Create,
    403,
    "Forbidden",
    POD_SECURITY,
    Class::AdmissionDenied,
    false
)]
#[case(
    Verb::Get,
    401,
    "Unauthorized",
    "Unauthorized",
    Class::Unauthorized,
    false
)]
// Section 8: versions that are gone.
#[case(Verb::Apply, 500, "", "request to convert CR to an invalid group/version: ex2.org/v1beta1", Class::UnconvertibleVersion("ex2.org/v1beta1".into()), false)]
#[case(Verb::Apply, 500, "", "request to convert CR from an invalid group/version: ex.org/v1beta1", Class::UnconvertibleVersion("ex.org/v1beta1".into()), false)]
// Webhooks choose the code themselves.
#[case(Verb::Apply, 403, "Forbidden", "admission webhook \"w.x.io\" denied the request: no", Class::WebhookDenied("w.x.io".into()), false)]
#[case(Verb::Apply, 400, "", "admission webhook \"w.x.io\" denied the request without explanation", Class::WebhookDenied("w.x.io".into()), false)]
#[case(Verb::Apply, 422, "Invalid", "admission webhook \"w.x.io\" denied the request: spec.x: Invalid value: 1: field is immutable", Class::WebhookDenied("w.x.io".into()), false)]
#[case(Verb::DryRun, 400, "BadRequest", "admission webhook \"w.x.io\" does not support dry run", Class::WebhookNoDryRun("w.x.io".into()), false)]
// The server itself.
#[case(Verb::List, 410, "Expired", EXPIRED, Class::Expired { continue_token: None }, false)]
#[case(Verb::Watch, 410, "Expired", "too old resource version: 1 (344)", Class::Expired { continue_token: None }, false)]
#[case(Verb::Watch, 410, "Gone", "too old resource version: 1 (344)", Class::Expired { continue_token: None }, false)]
#[case(
    Verb::Apply,
    429,
    "TooManyRequests",
    "too many requests, please try again later",
    Class::TooManyRequests,
    true
)]
#[case(
    Verb::Apply,
    503,
    "ServiceUnavailable",
    "apiserver is shutting down",
    Class::ApiUnavailable,
    true
)]
#[case(
    Verb::Apply,
    504,
    "Timeout",
    "Timeout: request did not complete within requested timeout - context deadline exceeded",
    Class::ServerTimeout,
    true
)]
#[case(
    Verb::Apply,
    500,
    "ServerTimeout",
    "The POST operation against Pod could not be completed at this time, please try again.",
    Class::ServerTimeout,
    true
)]
#[case(
    Verb::Apply,
    500,
    "InternalError",
    "etcdserver: request timed out",
    Class::ServerError,
    true
)]
#[case(
    Verb::Apply,
    413,
    "RequestEntityTooLarge",
    "Request entity too large: limit is 3145728",
    Class::TooLarge,
    false
)]
#[case(
    Verb::Apply,
    405,
    "MethodNotAllowed",
    "the server does not allow this method on the requested resource",
    Class::Unsupported,
    false
)]
#[case(
    Verb::Apply,
    415,
    "UnsupportedMediaType",
    "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json",
    Class::Unsupported,
    false
)]
fn statuses(
    #[case] verb: Verb,
    #[case] http: u16,
    #[case] reason: &str,
    #[case] message: &str,
    #[case] class: Class,
    #[case] retryable: bool,
) {
    let found = of(verb, "ConfigMap", http, &status(http, reason, message));
    assert_eq!(found, class);
    assert_eq!(found.is_retryable(), retryable);
}

#[rstest]
#[case(Verb::Apply, 404, "404 page not found", Class::KindNotServed, false)]
#[case(Verb::List, 404, "404 page not found", Class::KindNotServed, false)]
#[case(Verb::Get, 503, "service unavailable", Class::ApiUnavailable, true)]
#[case(Verb::Apply, 503, "service unavailable", Class::ApiUnavailable, true)]
#[case(
    Verb::Get,
    502,
    "<html>Bad Gateway</html>",
    Class::ApiUnavailable,
    true
)]
#[case(
    Verb::Get,
    429,
    "Too many requests, please try again later.",
    Class::TooManyRequests,
    true
)]
#[case(
    Verb::Get,
    400,
    "Client sent an HTTP request to an HTTPS server.",
    Class::BadRequest,
    false
)]
#[case(Verb::Get, 302, "moved", Class::Unexpected, false)]
fn plain_text(
    #[case] verb: Verb,
    #[case] http: u16,
    #[case] body: &str,
    #[case] class: Class,
    #[case] retryable: bool,
) {
    let question = Question {
        verb,
        kind: "ConfigMap",
    };
    let found = Class::of(question, http, None, body);
    assert_eq!(found, class);
    assert_eq!(found.is_retryable(), retryable);
}

/// 404 tells by its details what is missing.
#[rstest]
#[case(Verb::DryRun, "ConfigMap", json!({"name": "nonexist", "kind": "namespaces"}),
    "namespaces \"nonexist\" not found", Class::NamespaceMissing("nonexist".into()))]
#[case(Verb::Get, "Namespace", json!({"name": "nonexist", "kind": "namespaces"}),
    "namespaces \"nonexist\" not found", Class::NotFound)]
#[case(Verb::Get, "ConfigMap", json!({"name": "a", "kind": "configmaps"}),
    "configmaps \"a\" not found", Class::NotFound)]
#[case(Verb::Apply, "ClusterRoleBinding",
    json!({"name": "missing", "group": "rbac.authorization.k8s.io", "kind": "clusterrolebindings"}),
    "clusterrolebindings.rbac.authorization.k8s.io \"missing\" not found",
    Class::RoleMissing("missing".into()))]
#[case(Verb::Delete, "ClusterRoleBinding",
    json!({"name": "a", "group": "rbac.authorization.k8s.io", "kind": "clusterrolebindings"}),
    "clusterrolebindings.rbac.authorization.k8s.io \"a\" not found", Class::NotFound)]
#[case(Verb::Get, "Thing", json!({}),
    "the server could not find the requested resource", Class::KindNotServed)]
fn what_is_missing(
    #[case] verb: Verb,
    #[case] kind: &str,
    #[case] details: Value,
    #[case] message: &str,
    #[case] class: Class,
) {
    let status = from(&json!({"kind": "Status", "reason": "NotFound", "code": 404,
        "message": message, "details": details}));
    assert_eq!(of(verb, kind, 404, &status), class);
}

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
fn a_new_object_would_not_help_against_another_mistake() {
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

#[test]
fn an_expired_list_may_bring_a_fresh_token() {
    let status = from(&json!({"kind": "Status", "code": 410, "reason": "Expired",
        "metadata": {"continue": "fresh"}, "message": EXPIRED}));
    assert_eq!(
        of(Verb::List, "Pod", 410, &status),
        Class::Expired {
            continue_token: Some("fresh".to_owned())
        }
    );
}

#[rstest]
// A precondition of ours is not healed by waiting.
#[case(Class::StaleResourceVersion, Verb::Apply, true, false)]
#[case(Class::StaleResourceVersion, Verb::Apply, false, true)]
#[case(Class::Conflict, Verb::Patch, true, false)]
// A patch is not idempotent.
#[case(Class::Timeout, Verb::Patch, false, false)]
#[case(Class::Interrupted, Verb::Patch, false, false)]
#[case(Class::Unreachable, Verb::Patch, false, true)]
#[case(Class::TooManyRequests, Verb::Patch, true, true)]
#[case(Class::Timeout, Verb::Apply, false, true)]
#[case(Class::Timeout, Verb::Create, false, true)]
#[case(Class::Timeout, Verb::Delete, true, true)]
// A diff shows what a dead webhook means.
#[case(Class::WebhookUnavailable(String::new()), Verb::DryRun, false, false)]
#[case(Class::WebhookUnavailable(String::new()), Verb::Apply, false, true)]
#[case(Class::Forbidden, Verb::Get, false, false)]
#[case(Class::PreconditionFailed(Failed::Uid), Verb::Delete, true, false)]
fn repetitions(
    #[case] class: Class,
    #[case] verb: Verb,
    #[case] conditional: bool,
    #[case] expected: bool,
) {
    assert_eq!(class.may_repeat(verb, conditional), expected);
}

fn refused(verb: Verb, http: u16, reason: &str, message: &str) -> ApiError {
    let status = status(http, reason, message);
    let question = Question {
        verb,
        kind: "ConfigMap",
    };
    classify(question, http, Some(status), String::new(), None)
}

fn plain(http: u16, text: &str) -> ApiError {
    let question = Question {
        verb: Verb::DryRun,
        kind: "ConfigMap",
    };
    classify(question, http, None, text.to_owned(), None)
}

#[test]
fn predictions_say_what_could_not_be_verified() {
    let unverified = |error: &ApiError| match error.prediction() {
        Some(Prediction::Unverified(why)) => why,
        other => panic!("{other:?}"),
    };
    let down = refused(Verb::DryRun, 500, "InternalError", WEBHOOK_NO_ENDPOINTS);
    assert_eq!(
        unverified(&down),
        Unverified::Webhook(WEBHOOK_NO_ENDPOINTS.to_owned())
    );
    let missing = plain(404, "404 page not found");
    assert_eq!(unverified(&missing), Unverified::KindMissing);
    assert_eq!(missing.listing(), Listing::NotServed);
    let dead = plain(503, "service unavailable");
    assert_eq!(unverified(&dead), Unverified::ApiStale);
    assert_eq!(
        dead.listing(),
        Listing::Failed("service unavailable".to_owned())
    );
}

#[test]
fn refusals_keep_the_servers_words() {
    let error = refused(Verb::DryRun, 500, "", TYPED);
    let Some(Prediction::Refused(refusal)) = error.prediction() else {
        panic!("not refused");
    };
    assert_eq!((refusal.code, refusal.message.as_str()), (500, TYPED));
    assert_eq!(error.class.finding_kind(), Kind::Repository);
}

#[test]
fn a_failed_observation_predicts_nothing() {
    for (http, reason) in [(401, "Unauthorized"), (429, "TooManyRequests")] {
        let error = refused(Verb::DryRun, http, reason, "no");
        assert!(error.prediction().is_none(), "{http}");
    }
    let error = refused(Verb::List, 403, "Forbidden", BY_USER);
    assert_eq!(error.listing(), Listing::Forbidden(BY_USER.to_owned()));
}

#[test]
fn messages_about_secrets_come_without_values() {
    let status = from(&json!({"kind": "Status", "code": 422, "reason": "Invalid",
        "message": "Secret \"db\" is invalid: data[k]: Invalid value: \"hunter2\": field is immutable",
        "details": {"causes": [{"field": "data", "reason": "FieldValueInvalid",
            "message": "Invalid value: \"hunter2\": field is immutable when `immutable` is set"}]}}));
    let question = Question {
        verb: Verb::Apply,
        kind: "Secret",
    };
    let mask = Mask::default();
    let error = classify(question, 422, Some(status), String::new(), Some(&mask));
    assert!(matches!(error.class, Class::Immutable(_)));
    assert!(!format!("{error:?} {error}").contains("hunter2"), "{error}");
    assert!(error.message.starts_with("Secret \"db\" is invalid"));
}
