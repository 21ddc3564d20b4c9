//! Tests of the classification, with the exact texts of a 1.36 server.

mod answers;
mod conflicts;

use pleach_model::finding::Kind;
use pleach_planner::observe::{FieldConflict, Listing, Prediction, Unverified};
use rstest::rstest;
use serde_json::{Value, json};

use super::{Class, Failed, Question, Verb};
use crate::{ApiError, mask::Mask, status::Status, transport::classify};

const WEBHOOK_DOWN: &str = "Internal error occurred: failed calling webhook \"widgets-create-validator.example.org\": failed to call webhook: Post \"https://widget-api.kube-system.svc:443/widgets-validate-create?timeout=10s\": service \"widget-api\" not found";
const WEBHOOK_NO_ENDPOINTS: &str = "Internal error occurred: failed calling webhook \"w.x.io\": failed to call webhook: Post \"https://widget-api.kube-system.svc:443/v?timeout=10s\": no endpoints available for service \"widget-api\"";
const WEBHOOK_REFUSED: &str = "Internal error occurred: failed calling webhook \"w.x.io\": failed to call webhook: Post \"https://widget-api.kube-system.svc:443/v?timeout=10s\": dial tcp 10.250.128.7:8443: connect: connection refused";
const GATE: &str = "widgets.example.org \"vm3\" is forbidden: ValidatingAdmissionPolicy 'pleach-gate.example.org' with binding 'pleach-gate.example.org' denied request: closed during an upgrade";
const ESCALATION: &str = "clusterroles.rbac.authorization.k8s.io \"esc\" is forbidden: user \"bob\" (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\"]}\n{APIGroups:[\"example.org\"], Resources:[\"*\"], Verbs:[\"*\"]}";
const TERMINATING: &str = "configmaps \"a\" is forbidden: unable to create new content in namespace term2 because it is being terminated";
const UID: &str = "Operation cannot be fulfilled on APIService.apiregistration.k8s.io \"v1alpha2.sub.example.org\": the UID in the precondition (00000000-0000-0000-0000-000000000000) does not match the UID in record (ea06d9f2-0000-0000-0000-000000000000). The object might have been deleted and then recreated";
const RESOURCE_VERSION: &str = "Operation cannot be fulfilled on APIService.apiregistration.k8s.io \"v1alpha2.sub.example.org\": the ResourceVersion in the precondition (1) does not match the ResourceVersion in record (344). The object might have been modified";
const STORED_UID: &str = "Operation cannot be fulfilled on namespaces \"a\": Precondition failed: UID in precondition: 0, UID in object meta: 1";
const STORED_RESOURCE_VERSION: &str = "Operation cannot be fulfilled on customresourcedefinitions.apiextensions.k8s.io \"things.ex.org\": Precondition failed: ResourceVersion in precondition: 1, ResourceVersion in object meta: 344";
const MODIFIED: &str = "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again";
const UID_ABSENT: &str = "Operation cannot be fulfilled on configmaps \"a\": uid mismatch: the provided object specified uid 0000, and no existing object was found";
const TYPED: &str = "failed to create typed patch object (as1/v; apps/v1, Kind=Deployment): errors:\n  .spec.template.spec.containers[name=\"c\"].imagee: field not declared in schema\n  .spec.template.spec.foo: field not declared in schema";
const PRUNED: &str = "failed to prune fields: failed to convert merged object to last applied version: .spec.b: field not declared in schema";
const ADDED_BACK: &str = "failed to prune fields: failed add back owned items: failed to convert merged object at version pg.example.org/v1beta1: .spec.storage: field not declared in schema";
const OF_ANOTHER_TYPE: &str = "failed to prune fields: failed to convert merged object to last applied version: .spec.size: expected numeric (int or float), got string";
const LIVE: &str = "failed to create typed live object (a/b; ex.org/v1, Kind=Thing): .spec.b: field not declared in schema";
const DUPLICATE_PORT: &str = "failed to create typed patch object (kube-system/widget-api; apps/v1, Kind=Deployment): .spec.template.spec.containers[name=\"widget-api\"].ports: duplicate entries for key [containerPort=8443,protocol=\"TCP\"]";
const YAML_BOOL: &str = "failed to create typed patch object (/; v1, Kind=ConfigMap): .metadata.name: expected string, got &value.valueUnstructured{Value:false}";
const STRICT: &str =
    "strict decoding error: unknown field \"spec.template.spec.containers[0].imagee\"";
const STRICT_YAML: &str = "error strict decoding YAML: error converting YAML to JSON: yaml: key \"image\" already set in map";
const STORED: &str = "CustomResourceDefinition.apiextensions.k8s.io \"datavolumes.cdi.example.org\" is invalid: status.storedVersions[0]: Invalid value: \"v1alpha2\": missing from spec.versions; v1alpha2 was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in v1alpha2 and removes v1alpha2 from status.storedVersions";
const NO_ADDRESS: &str = "Service \"hook\" is invalid: spec.clusterIPs: Invalid value: [\"\"]: failed to allocate IP: rpc error: code = Unavailable desc = error reading from server: EOF";
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
// Section 3.2: admission.
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
    Verb::Delete,
    409,
    "Conflict",
    STORED_UID,
    Class::PreconditionFailed(Failed::Uid),
    false
)]
#[case(
    Verb::Delete,
    409,
    "Conflict",
    STORED_RESOURCE_VERSION,
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
#[case(Verb::Apply, 422, "Invalid", NO_ADDRESS, Class::ApiUnavailable, true)]
// Section 6 (viii): namespaces.
#[case(Verb::Apply, 403, "Forbidden", TERMINATING, Class::NamespaceTerminating("term2".into()), false)]
// Section 6 (xi): permissions.
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
// Section 8: versions that are no longer served.
#[case(Verb::Apply, 500, "", "request to convert CR to an invalid group/version: ex2.org/v1beta1", Class::UnconvertibleVersion("ex2.org/v1beta1".into()), false)]
#[case(Verb::Apply, 500, "", "request to convert CR from an invalid group/version: ex.org/v1beta1", Class::UnconvertibleVersion("ex.org/v1beta1".into()), false)]
#[case(Verb::Apply, 500, "", PRUNED, Class::RecordedVersion, false)]
#[case(Verb::DryRun, 500, "", ADDED_BACK, Class::RecordedVersion, false)]
#[case(Verb::Apply, 500, "", OF_ANOTHER_TYPE, Class::RecordedVersion, false)]
#[case(
    Verb::Apply,
    500,
    "",
    ".spec.b: field not declared in schema",
    Class::RecordedVersion,
    false
)]
#[case(Verb::Apply, 500, "", LIVE, Class::ServerError, true)]
// Webhooks choose the HTTP status themselves.
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
#[case(Verb::Get, 502, "<html>Bad Gateway</html>", Class::Interrupted, true)]
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

/// A load balancer does not report whether the server executed the forwarded request.
#[rstest]
#[case(502, true)]
#[case(503, false)]
fn only_an_ambiguous_gateway_error_is_unclear(#[case] http: u16, #[case] unclear: bool) {
    let question = Question {
        verb: Verb::Create,
        kind: "ConfigMap",
    };
    assert_eq!(Class::of(question, http, None, "").is_unclear(), unclear);
}

/// The details of a 404 show which object is missing.
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
fn a_404_names_the_missing_object(
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
