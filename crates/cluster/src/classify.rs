//! Maps each answer of the API server to a kind of failure.
//!
//! Status and reason are not enough. A 500 can mean a type error in a manifest, an unavailable
//! webhook or a broken server. The exact texts are covered by tests (`classify/tests.rs`).

mod conflict;
mod immutable;
mod meaning;
#[cfg(test)]
mod tests;

use pleach_model::object::FieldPath;
use pleach_planner::observe::FieldConflict;

use super::status::Status;

/// Operation that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Verb {
    /// Read of one object or of a server document.
    Get,
    /// Read of a page of objects.
    List,
    /// Stream of changes.
    Watch,
    /// Server-side apply.
    Apply,
    /// Server-side apply that writes nothing.
    DryRun,
    /// POST that creates an object.
    Create,
    /// JSON patch or merge patch.
    Patch,
    /// Deletion.
    Delete,
    /// POST that creates nothing, such as an access review.
    Review,
}

/// Precondition that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failed {
    /// The object has another uid or does not exist.
    Uid,
    /// Another client wrote to the object.
    ResourceVersion,
    /// A `test` operation of a JSON patch. The server does not name it.
    Test,
}

/// Kind of failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Class {
    /// No connection.
    Unreachable,
    /// TLS failed: a certificate does not match or is not trusted.
    Tls,
    /// The connection broke before the answer was complete. It can also be the connection between a
    /// load balancer and the server.
    Interrupted,
    /// No complete answer within the time-out.
    Timeout,
    /// Our credentials are not available: a plugin or a token file failed.
    Credentials,
    /// The answer does not come from an API server.
    NotKubernetes,
    /// The server rejects our credentials.
    Unauthorized,
    /// The server authenticated us, but denies the request.
    Forbidden,
    /// The object would grant permissions that we do not have.
    RbacEscalation {
        /// Missing rules, as the server writes them.
        missing: Vec<String>,
    },
    /// The namespace is being deleted.
    NamespaceTerminating(String),
    /// The namespace does not exist.
    NamespaceMissing(String),
    /// The role of a binding does not exist.
    RoleMissing(String),
    /// The kind is not served.
    KindNotServed,
    /// The object does not exist.
    NotFound,
    /// The object exists.
    AlreadyExists {
        /// Whether the object is being deleted.
        terminating: bool,
    },
    /// Other field managers own fields that would change.
    FieldConflict(Vec<FieldConflict>),
    /// A precondition of the request failed.
    PreconditionFailed(Failed),
    /// Another client wrote to the object in the meantime.
    StaleResourceVersion,
    /// Another conflict.
    Conflict,
    /// Fields are immutable.
    Immutable(Vec<FieldPath>),
    /// The object is not valid.
    Invalid,
    /// The object does not fit the schema: unknown fields, duplicate keys, wrong types.
    InvalidManifest,
    /// The live object, or a managedFields entry, uses a version that the server no longer serves.
    UnconvertibleVersion(String),
    /// The merged object does not match the schema of a version in its managedFields.
    RecordedVersion,
    /// The server cannot interpret the request.
    BadRequest,
    /// The object is too large.
    TooLarge,
    /// The server of this API does not support the method or the format.
    Unsupported,
    /// An admission webhook could not be called.
    WebhookUnavailable(String),
    /// An admission webhook denied the object.
    WebhookDenied(String),
    /// An admission webhook does not support dry runs.
    WebhookNoDryRun(String),
    /// A `ValidatingAdmissionPolicy` denied the object.
    PolicyDenied {
        /// Name of the policy.
        policy: String,
        /// Name of its binding.
        binding: String,
    },
    /// Another admission check denied the object, such as quota, pod security or a limit range.
    AdmissionDenied,
    /// The API is registered but does not answer, or the server is shutting down.
    ApiUnavailable,
    /// Too many requests.
    TooManyRequests,
    /// A disruption budget does not allow an eviction now. Contains the cause.
    DisruptionBudget(String),
    /// The server evicts no pod with several disruption budgets.
    SeveralBudgets,
    /// The server ran out of time.
    ServerTimeout,
    /// The server no longer stores the list snapshot or the version to start from.
    Expired {
        /// Token that continues the list with an inconsistent snapshot.
        continue_token: Option<String>,
    },
    /// Internal error of the server.
    ServerError,
    /// Status that this table does not cover.
    Unexpected,
}

/// Facts about a request that change the meaning of an answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question<'a> {
    /// Operation of the request.
    pub(super) verb: Verb,
    /// Kind of the object; empty for documents of the server.
    pub(super) kind: &'a str,
}

impl Class {
    /// Classifies an answer by its HTTP status and the Status object of the body. `status` is
    /// `None` if the body is not a Status.
    pub(super) fn of(
        question: Question<'_>,
        http: u16,
        status: Option<&Status>,
        body: &str,
    ) -> Self {
        let message = status.map_or(body, |status| status.message.as_str());
        // Webhooks and policies choose the HTTP status themselves.
        if let Some(class) = admission(message) {
            return class;
        }
        match http {
            400 => bad_request(message),
            401 => Self::Unauthorized,
            403 => forbidden(question, status, message),
            404 => not_found(question, status),
            405 | 406 | 415 => Self::Unsupported,
            409 => conflicting(status, message),
            410 => Self::Expired {
                continue_token: status.and_then(Status::continue_token),
            },
            413 => Self::TooLarge,
            422 => unprocessable(question, status, message),
            429 => too_many(status),
            500 => internal(status, message),
            502 => Self::Interrupted,
            503 => Self::ApiUnavailable,
            504 => Self::ServerTimeout,
            501 | 505..=599 => Self::ServerError,
            _ => Self::Unexpected,
        }
    }
}

/// Returns the text between two markers.
fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(start)?;
    Some(rest.split_once(end)?.0)
}

fn admission(message: &str) -> Option<Class> {
    if let Some(webhook) = between(message, "admission webhook \"", "\" denied the request") {
        return Some(Class::WebhookDenied(webhook.to_owned()));
    }
    if let Some(webhook) = between(
        message,
        "admission webhook \"",
        "\" does not support dry run",
    ) {
        return Some(Class::WebhookNoDryRun(webhook.to_owned()));
    }
    if let Some(webhook) = between(message, "failed calling webhook \"", "\"") {
        return Some(Class::WebhookUnavailable(webhook.to_owned()));
    }
    if let Some(kind) = between(message, "conversion webhook for ", " failed:") {
        return Some(Class::WebhookUnavailable(format!("conversion of {kind}")));
    }
    let policy = between(message, "ValidatingAdmissionPolicy '", "'")?;
    let binding = between(message, "with binding '", "' denied request")?;
    Some(Class::PolicyDenied {
        policy: policy.to_owned(),
        binding: binding.to_owned(),
    })
}

/// Returns the class of a 429: an eviction that a budget refuses, or an overloaded server.
fn too_many(status: Option<&Status>) -> Class {
    let causes = status.into_iter().flat_map(|status| &status.details.causes);
    let mut causes = causes.filter(|cause| cause.reason == "DisruptionBudget");
    causes.next().map_or(Class::TooManyRequests, |cause| {
        Class::DisruptionBudget(cause.message.clone())
    })
}

fn bad_request(message: &str) -> Class {
    const SCHEMA: [&str; 4] = [
        "strict decoding error",
        "error strict decoding YAML",
        "cannot be handled as a",
        "error decoding YAML",
    ];
    if SCHEMA.iter().any(|text| message.contains(text)) {
        Class::InvalidManifest
    } else {
        Class::BadRequest
    }
}

fn forbidden(question: Question<'_>, status: Option<&Status>, message: &str) -> Class {
    const ESCALATION: &str = "is attempting to grant RBAC permissions not currently held:";
    const TERMINATING: &str = "unable to create new content in namespace ";
    if let Some((_, rules)) = message.split_once(ESCALATION) {
        return Class::RbacEscalation {
            missing: rules
                .lines()
                .map(str::trim)
                .filter(|line| line.starts_with('{'))
                .map(str::to_owned)
                .collect(),
        };
    }
    let terminating = status.is_some_and(|s| s.has_cause("NamespaceTerminating"));
    let namespace = between(message, TERMINATING, " because it is being terminated");
    if terminating || namespace.is_some() {
        return Class::NamespaceTerminating(namespace.unwrap_or_default().to_owned());
    }
    // `User "x" cannot list resource "y" …` comes from the authorizer. Any other 403 on a write
    // comes from an admission check of the object.
    let writes = matches!(
        question.verb,
        Verb::Apply | Verb::DryRun | Verb::Create | Verb::Patch
    );
    if writes && status.is_some() && !(message.contains("User \"") && message.contains(" cannot "))
    {
        return Class::AdmissionDenied;
    }
    Class::Forbidden
}

fn not_found(question: Question<'_>, status: Option<&Status>) -> Class {
    // The outermost handler answers with plain text if no API serves the path.
    let Some(status) = status else {
        return Class::KindNotServed;
    };
    let named = status.details.name.as_str();
    if named.is_empty() && status.message == "the server could not find the requested resource" {
        return Class::KindNotServed;
    }
    if status.details.kind == "namespaces" && question.kind != "Namespace" {
        return Class::NamespaceMissing(named.to_owned());
    }
    // An apply creates the object, so the role is missing and not the binding. The Status has the
    // name of the role and the kind of the binding.
    let writes = matches!(question.verb, Verb::Apply | Verb::DryRun | Verb::Create);
    if writes && matches!(question.kind, "RoleBinding" | "ClusterRoleBinding") {
        return Class::RoleMissing(named.to_owned());
    }
    Class::NotFound
}

fn conflicting(status: Option<&Status>, message: &str) -> Class {
    if let Some(status) = status {
        let fields = conflict::fields(status);
        if !fields.is_empty() {
            return Class::FieldConflict(fields);
        }
        if status.reason == "AlreadyExists" {
            return Class::AlreadyExists {
                terminating: message.starts_with("object is being deleted:"),
            };
        }
    }
    // The storage layer reports the failed precondition in two cases: a kind with its own deletion
    // logic (Namespace, CustomResourceDefinition), or a concurrent write.
    let has = |words: &[&str]| words.iter().any(|words| message.contains(words));
    if has(&[
        "the UID in the precondition",
        "Precondition failed: UID in precondition",
        "uid mismatch:",
    ]) {
        Class::PreconditionFailed(Failed::Uid)
    } else if has(&[
        "the ResourceVersion in the precondition",
        "Precondition failed: ResourceVersion in precondition",
    ]) {
        Class::PreconditionFailed(Failed::ResourceVersion)
    } else if message.contains("the object has been modified") {
        Class::StaleResourceVersion
    } else {
        Class::Conflict
    }
}

fn unprocessable(question: Question<'_>, status: Option<&Status>, message: &str) -> Class {
    let Some(status) = status else {
        return Class::Invalid;
    };
    if question.verb == Verb::Patch
        && status.details.causes.is_empty()
        && message == "the server rejected our request due to an error in our request"
    {
        return Class::PreconditionFailed(Failed::Test);
    }
    // The allocator of addresses and ports reports storage failures as a field error.
    if message.contains("rpc error: code = Unavailable") {
        return Class::ApiUnavailable;
    }
    match immutable::fields(status) {
        Some(fields)
            if fields
                .iter()
                .any(|field| field.to_string() == ".metadata.uid") =>
        {
            Class::PreconditionFailed(Failed::Uid)
        }
        Some(fields) => Class::Immutable(fields),
        None => Class::Invalid,
    }
}

fn internal(status: Option<&Status>, message: &str) -> Class {
    // `to`: a version from managedFields. `from`: the version in storage.
    const CONVERT: [&str; 2] = [
        "request to convert CR to an invalid group/version: ",
        "request to convert CR from an invalid group/version: ",
    ];
    if message.contains("failed to create typed patch object") {
        return Class::InvalidManifest;
    }
    if let Some((_, version)) = CONVERT.iter().find_map(|text| message.split_once(text)) {
        return Class::UnconvertibleVersion(version.trim().to_owned());
    }
    if is_of_record(message) {
        return Class::RecordedVersion;
    }
    if message.contains("more than one PodDisruptionBudget") {
        return Class::SeveralBudgets;
    }
    match status.map(|status| status.reason.as_str()) {
        Some("ServerTimeout" | "Timeout") => Class::ServerTimeout,
        _ => Class::ServerError,
    }
}

/// Returns whether the server could not convert an object to a version in its managedFields. A CRD
/// without a conversion webhook converts nothing, so a field can be missing in one version or have
/// another type.
fn is_of_record(message: &str) -> bool {
    const CONVERTING: [&str; 3] = [
        "failed to convert merged object",
        "failed to convert new object",
        "failed to convert old object",
    ];
    let is_converted = CONVERTING.iter().any(|text| message.contains(text));
    // The server always reads the live object at the requested version.
    let is_undeclared = message.contains(": field not declared in schema")
        && !message.contains("failed to create typed live object");
    is_undeclared || is_converted && message.contains(": expected ")
}
