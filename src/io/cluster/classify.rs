//! The one table from an answer of the API server to a kind of failure.
//!
//! Statuses and reasons alone do not tell: the same 500 is a typing error in a
//! manifest, a webhook that is down, or a server in trouble. The exact texts
//! are tests (`classify/tests.rs`).

mod conflict;
mod immutable;
mod meaning;
#[cfg(test)]
mod tests;

use pleach_domain::object::FieldPath;
use pleach_domain::observe::FieldConflict;

use super::status::Status;

/// What a request wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Verb {
    /// One object, or a document of the server.
    Get,
    /// A page of objects.
    List,
    /// A stream of changes.
    Watch,
    /// A server-side apply.
    Apply,
    /// A server-side apply that writes nothing.
    DryRun,
    /// A POST that makes an object.
    Create,
    /// A JSON patch or merge patch.
    Patch,
    /// A deletion.
    Delete,
    /// A POST that makes nothing: an access review.
    Review,
}

/// Which precondition failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failed {
    /// The object is another incarnation, or none.
    Uid,
    /// Somebody wrote to the object.
    ResourceVersion,
    /// A test within a JSON patch; the server does not say which.
    Test,
}

/// Kinds of failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Class {
    /// No connection.
    Unreachable,
    /// The certificates do not fit.
    Tls,
    /// The connection broke off before the answer was complete: ours, or the one
    /// from a load balancer to the server.
    Interrupted,
    /// No complete answer in time.
    Timeout,
    /// Our credentials could not be had: a plugin or a token file failed.
    Credentials,
    /// An answer that no API server gives.
    NotKubernetes,
    /// The server does not accept who we say we are.
    Unauthorized,
    /// The server knows us and does not let us.
    Forbidden,
    /// The object would grant rights that we do not have.
    RbacEscalation {
        /// The rules that we lack, as the server writes them.
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
        /// It is being deleted.
        terminating: bool,
    },
    /// Other managers hold fields that would change.
    FieldConflict(Vec<FieldConflict>),
    /// A precondition of ours no longer holds.
    PreconditionFailed(Failed),
    /// Somebody wrote to the object in the meantime.
    StaleResourceVersion,
    /// Another conflict.
    Conflict,
    /// These fields cannot change.
    Immutable(Vec<FieldPath>),
    /// The object is not valid.
    Invalid,
    /// The object does not fit the schema: unknown fields, duplicate keys, wrong types.
    InvalidManifest,
    /// The live object is stored at a version that is gone, or its managedFields
    /// record one.
    UnconvertibleVersion(String),
    /// What would become of the live object does not fit the schema of a version
    /// that its managedFields record.
    RecordedVersion,
    /// A request that makes no sense to the server.
    BadRequest,
    /// The object is too large.
    TooLarge,
    /// The server behind this API does not know the method or the format.
    Unsupported,
    /// A webhook could not be called.
    WebhookUnavailable(String),
    /// A webhook refuses the object.
    WebhookDenied(String),
    /// A webhook cannot be asked without writing.
    WebhookNoDryRun(String),
    /// A `ValidatingAdmissionPolicy` refuses the object.
    PolicyDenied {
        /// The policy.
        policy: String,
        /// Its binding.
        binding: String,
    },
    /// Another admission check refuses it: a quota, pod security, a limit range.
    AdmissionDenied,
    /// The API is registered and does not answer, or the server is going away.
    ApiUnavailable,
    /// Too many requests.
    TooManyRequests,
    /// The server ran out of time.
    ServerTimeout,
    /// The list or the version to start from is no longer kept.
    Expired {
        /// With it the rest of the list can be had, inconsistently.
        continue_token: Option<String>,
    },
    /// The server is in trouble.
    ServerError,
    /// A status that nothing here expects.
    Unexpected,
}

/// What a request was about, as far as it changes the meaning of an answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question<'a> {
    /// What it wanted.
    pub(super) verb: Verb,
    /// Kind of the object; empty for documents of the server.
    pub(super) kind: &'a str,
}

impl Class {
    /// Looks an answer up: HTTP status, and the Status object of the body.
    /// `status` is none when the body was something else.
    pub(super) fn of(
        question: Question<'_>,
        http: u16,
        status: Option<&Status>,
        body: &str,
    ) -> Self {
        let message = status.map_or(body, |status| status.message.as_str());
        // Webhooks and policies choose the code themselves.
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
            429 => Self::TooManyRequests,
            500 => internal(status, message),
            502 => Self::Interrupted,
            503 => Self::ApiUnavailable,
            504 => Self::ServerTimeout,
            501 | 505..=599 => Self::ServerError,
            _ => Self::Unexpected,
        }
    }
}

/// The text between two marks.
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
    // `User "x" cannot list resource "y" …` comes from the authorizer; any
    // other 403 on a write is an admission check that looked at the object.
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
    // A path that nothing serves gets plain text from the outermost handler.
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
    // An apply creates, so the missing thing is not the object: the server
    // gives the name of the role and the kind of the binding.
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
    // The words of the storage come where a kind judges its deletions itself
    // (Namespace, CustomResourceDefinition), or where a write came in between.
    let says = |words: &[&str]| words.iter().any(|words| message.contains(words));
    if says(&[
        "the UID in the precondition",
        "Precondition failed: UID in precondition",
        "uid mismatch:",
    ]) {
        Class::PreconditionFailed(Failed::Uid)
    } else if says(&[
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
    // Who hands out addresses and ports puts trouble of its storage into a field.
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
    // `to` the version that managedFields record, `from` the one it is stored at.
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
    match status.map(|status| status.reason.as_str()) {
        Some("ServerTimeout" | "Timeout") => Class::ServerTimeout,
        _ => Class::ServerError,
    }
}

/// Whether the server could not read an object at a version that some owner of its
/// fields wrote it at. Definitions without a webhook convert nothing: what one
/// version has, another one may lack, or have as another type.
fn is_of_record(message: &str) -> bool {
    const CONVERTING: [&str; 3] = [
        "failed to convert merged object",
        "failed to convert new object",
        "failed to convert old object",
    ];
    let is_converted = CONVERTING.iter().any(|text| message.contains(text));
    // The live object itself is always read at the version that is asked for.
    let is_undeclared = message.contains(": field not declared in schema")
        && !message.contains("failed to create typed live object");
    is_undeclared || is_converted && message.contains(": expected ")
}
