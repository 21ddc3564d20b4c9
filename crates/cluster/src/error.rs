//! Errors of requests: operation, object and cause.
//!
//! No text here contains a request body. Messages about secret objects omit the values that the
//! server quotes.

use std::path::PathBuf;
use std::time::Duration;

use pleach_model::finding;
use pleach_model::object::{GroupKind, ObjectId};
use pleach_planner::observe::MissingRule;

use super::Class;

/// Failure of one request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// Kind of failure.
    pub class: Class,
    /// HTTP status. `None` without an answer.
    pub status: Option<u16>,
    /// Reason of the Status object. Empty without one.
    pub reason: String,
    /// Message of the server, or our own if there is none.
    pub message: String,
    /// Retry delay that the server asks for.
    pub retry_after: Option<Duration>,
    /// Whether the server could have executed this or an earlier attempt.
    pub unclear: bool,
    /// Number of attempts.
    pub attempts: u32,
}

impl ApiError {
    /// Creates a failure that is not an answer of the server.
    pub(super) fn local(class: Class, message: impl Into<String>) -> Self {
        Self {
            unclear: class.is_unclear(),
            class,
            status: None,
            reason: String::new(),
            message: message.into(),
            retry_after: None,
            attempts: 1,
        }
    }
}

/// Errors from reading or changing a cluster.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The kubeconfig could not be read.
    #[error("failed to read the kubeconfig{}: {message}", of_file(.path.as_ref()))]
    ReadKubeconfig {
        /// File, if it was named explicitly.
        path: Option<PathBuf>,
        /// Reason, without content of the file.
        message: String,
    },
    /// A kubeconfig in a Secret cannot be used.
    #[error("failed to read the kubeconfig in {id}: {message}")]
    KubeconfigSecret {
        /// The Secret.
        id: ObjectId,
        /// Reason, without content of the Secret.
        message: String,
    },
    /// The kubeconfig has no such context.
    #[error("the kubeconfig has no context `{name}`; it has {}", names(.known))]
    UnknownContext {
        /// Requested name.
        name: String,
        /// Existing names.
        known: Vec<String>,
    },
    /// Neither a kubeconfig nor the files of a pod were found.
    #[error("no cluster configured: {message}")]
    NoCluster {
        /// Locations that were searched.
        message: String,
    },
    /// The client could not be built: credentials, certificates, proxy.
    #[error("failed to prepare the connection to {server}: {message}")]
    Prepare {
        /// Address of the API server.
        server: String,
        /// Reason, without credentials.
        message: String,
    },
    /// The API server did not answer the first request.
    #[error("failed to connect to {server}")]
    Connect {
        /// Address of the API server.
        server: String,
        /// Cause.
        #[source]
        source: Box<ApiError>,
    },
    /// The object has no valid URL.
    #[error("cannot address {what}: {why}")]
    Address {
        /// Kind and name.
        what: String,
        /// Reason.
        why: &'static str,
    },
    /// The version of the server could not be read.
    #[error("failed to read the server's version")]
    ServerVersion(#[source] Box<ApiError>),
    /// Discovery failed.
    #[error("failed to discover the kinds that the cluster serves")]
    Discover(#[source] Box<ApiError>),
    /// Objects could not be listed.
    #[error("failed to list {kind}{}", of_namespace(.namespace.as_ref()))]
    List {
        /// Their kind.
        kind: GroupKind,
        /// Their namespace. `None`: all namespaces.
        namespace: Option<String>,
        /// Cause.
        #[source]
        source: Box<ApiError>,
    },
    /// Objects could not be watched.
    #[error("failed to watch {kind}{}", of_namespace(.namespace.as_ref()))]
    Watch {
        /// Their kind.
        kind: GroupKind,
        /// Their namespace. `None`: all namespaces.
        namespace: Option<String>,
        /// Cause.
        #[source]
        source: Box<ApiError>,
    },
    /// An object could not be read.
    #[error("failed to read {id}")]
    Get {
        /// The object.
        id: ObjectId,
        /// Cause.
        #[source]
        source: Box<ApiError>,
    },
    /// An object could not be applied.
    #[error("failed to apply {id}")]
    Apply {
        /// The object.
        id: ObjectId,
        /// Cause.
        #[source]
        source: Box<ApiError>,
    },
    /// An object could not be created.
    #[error("failed to create {id}")]
    Create {
        /// The object.
        id: ObjectId,
        /// Cause.
        #[source]
        source: Box<ApiError>,
    },
    /// An object could not be patched.
    #[error("failed to patch {id}")]
    Patch {
        /// The object.
        id: ObjectId,
        /// Cause.
        #[source]
        source: Box<ApiError>,
    },
    /// An object could not be deleted.
    #[error("failed to delete {id}")]
    Delete {
        /// The object.
        id: ObjectId,
        /// Cause.
        #[source]
        source: Box<ApiError>,
    },
    /// An access review or a self review failed.
    #[error("failed to query {about}")]
    Review {
        /// Subject of the review.
        about: String,
        /// Cause.
        #[source]
        source: Box<ApiError>,
    },
}

fn of_file(path: Option<&PathBuf>) -> String {
    path.map(|path| format!(" {}", path.display()))
        .unwrap_or_default()
}

fn of_namespace(namespace: Option<&String>) -> String {
    namespace
        .map(|namespace| format!(" in namespace {namespace}"))
        .unwrap_or_default()
}

fn names(known: &[String]) -> String {
    if known.is_empty() {
        "none".to_owned()
    } else {
        known.join(", ")
    }
}

/// Message of [`ClusterError::Prepare`] for a certificate that the TLS library does not support.
pub(super) const OLD_CERTIFICATE: &str =
    "the client certificate has X.509 version 1, and TLS needs version 3";

impl ClusterError {
    /// Returns the failure of the request. `None` if no request was sent.
    pub fn api(&self) -> Option<&ApiError> {
        match self {
            Self::ReadKubeconfig { .. }
            | Self::KubeconfigSecret { .. }
            | Self::UnknownContext { .. }
            | Self::NoCluster { .. }
            | Self::Prepare { .. }
            | Self::Address { .. } => None,
            Self::ServerVersion(source)
            | Self::Discover(source)
            | Self::Connect { source, .. }
            | Self::List { source, .. }
            | Self::Watch { source, .. }
            | Self::Get { source, .. }
            | Self::Apply { source, .. }
            | Self::Create { source, .. }
            | Self::Patch { source, .. }
            | Self::Delete { source, .. }
            | Self::Review { source, .. } => Some(source),
        }
    }

    /// Returns the kind of failure. `None` if no request was sent.
    pub fn class(&self) -> Option<&Class> {
        self.api().map(|api| &api.class)
    }

    /// Returns whether another client was faster, or an earlier attempt of ours succeeded
    /// unnoticed.
    pub fn is_race(&self) -> bool {
        matches!(
            self.class(),
            Some(
                Class::AlreadyExists { .. }
                    | Class::StaleResourceVersion
                    | Class::Conflict
                    | Class::NotFound
                    | Class::PreconditionFailed(_)
            )
        )
    }

    /// Returns the object that the request was about.
    pub fn object(&self) -> Option<&ObjectId> {
        match self {
            Self::Get { id, .. }
            | Self::Apply { id, .. }
            | Self::Create { id, .. }
            | Self::Patch { id, .. }
            | Self::Delete { id, .. }
            | Self::KubeconfigSecret { id, .. } => Some(id),
            _ => None,
        }
    }

    /// Returns whether the same request can succeed later.
    pub fn is_retryable(&self) -> bool {
        self.class().is_some_and(Class::is_retryable)
    }

    /// Returns the finding kind, which decides the exit code.
    pub fn kind(&self) -> finding::Kind {
        match self {
            Self::Address { .. } => finding::Kind::Repository,
            // Only failures of writes can be caused by the repository.
            Self::Apply { source, .. }
            | Self::Create { source, .. }
            | Self::Patch { source, .. }
            | Self::Delete { source, .. } => source.class.finding_kind(),
            _ => finding::Kind::Cluster,
        }
    }

    /// Returns the next step for the user, if there is an obvious one. For a missing permission,
    /// this is the RBAC rule that grants it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::ReadKubeconfig { .. } | Self::NoCluster { .. } => Some(
                "name a kubeconfig with --kubeconfig or KUBECONFIG, and a context with --context",
            ),
            Self::UnknownContext { .. } => Some("name one of them with --context"),
            Self::Prepare { message, .. } if message == OLD_CERTIFICATE => Some(
                "issue it again with version 3: give `openssl x509 -req` an -extfile with `extendedKeyUsage=clientAuth`",
            ),
            Self::Prepare { .. } => Class::Credentials.hint(),
            Self::Address { .. } => Some("correct the name or the namespace in the manifest"),
            _ => {
                let refused = self.api().filter(|api| api.class == Class::Forbidden);
                if let Some(rule) = refused.and_then(|api| MissingRule::read(&api.message)) {
                    return Some(rule.hint());
                }
                self.class().and_then(Class::hint)
            }
        };
        hint.map(str::to_owned)
    }
}
