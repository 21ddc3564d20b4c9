//! Errors of requests: what was asked, of which object, and how it failed.
//!
//! No text here ever holds a request body, and messages about secret objects
//! come without the values they quote.

use std::path::PathBuf;
use std::time::Duration;

use pleach_domain::finding;
use pleach_domain::object::{GroupKind, ObjectId};
use pleach_domain::observe::MissingRule;

use super::Class;

/// How one request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// What kind of failure it is.
    pub class: Class,
    /// HTTP status; none when no answer came.
    pub status: Option<u16>,
    /// Reason of the Status object; empty where there is none.
    pub reason: String,
    /// The server's words, or ours when it said nothing.
    pub message: String,
    /// How long the server asks to wait.
    pub retry_after: Option<Duration>,
    /// Whether this or an earlier attempt may have been carried out all the same.
    pub unclear: bool,
    /// How many times it was tried.
    pub attempts: u32,
}

impl ApiError {
    /// A failure that is no answer of the server.
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
        /// The file, where one was named.
        path: Option<PathBuf>,
        /// What is wrong with it; never its content.
        message: String,
    },
    /// A kubeconfig in a Secret cannot be used.
    #[error("failed to read the kubeconfig in {id}: {message}")]
    KubeconfigSecret {
        /// The Secret.
        id: ObjectId,
        /// What is wrong with it; never its content.
        message: String,
    },
    /// The kubeconfig has no such context.
    #[error("the kubeconfig has no context `{name}`; it has {}", names(.known))]
    UnknownContext {
        /// The name that was asked for.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// Neither a kubeconfig nor the files of a pod were found.
    #[error("no cluster to talk to: {message}")]
    NoCluster {
        /// What was looked for.
        message: String,
    },
    /// The client could not be built: credentials, certificates, proxy.
    #[error("failed to prepare the connection to {server}: {message}")]
    Prepare {
        /// Address of the API server.
        server: String,
        /// What is wrong; never a credential.
        message: String,
    },
    /// The API server did not answer the first request.
    #[error("failed to connect to {server}")]
    Connect {
        /// Address of the API server.
        server: String,
        /// How it failed.
        #[source]
        source: Box<ApiError>,
    },
    /// A name that has no address.
    #[error("cannot address {what}: {why}")]
    Address {
        /// Kind and name.
        what: String,
        /// What is wrong with it.
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
        /// Their namespace; none for all.
        namespace: Option<String>,
        /// How it failed.
        #[source]
        source: Box<ApiError>,
    },
    /// Objects could not be watched.
    #[error("failed to watch {kind}{}", of_namespace(.namespace.as_ref()))]
    Watch {
        /// Their kind.
        kind: GroupKind,
        /// Their namespace; none for all.
        namespace: Option<String>,
        /// How it failed.
        #[source]
        source: Box<ApiError>,
    },
    /// An object could not be read.
    #[error("failed to read {id}")]
    Get {
        /// The object.
        id: ObjectId,
        /// How it failed.
        #[source]
        source: Box<ApiError>,
    },
    /// An object could not be applied.
    #[error("failed to apply {id}")]
    Apply {
        /// The object.
        id: ObjectId,
        /// How it failed.
        #[source]
        source: Box<ApiError>,
    },
    /// An object could not be created.
    #[error("failed to create {id}")]
    Create {
        /// The object.
        id: ObjectId,
        /// How it failed.
        #[source]
        source: Box<ApiError>,
    },
    /// An object could not be patched.
    #[error("failed to patch {id}")]
    Patch {
        /// The object.
        id: ObjectId,
        /// How it failed.
        #[source]
        source: Box<ApiError>,
    },
    /// An object could not be deleted.
    #[error("failed to delete {id}")]
    Delete {
        /// The object.
        id: ObjectId,
        /// How it failed.
        #[source]
        source: Box<ApiError>,
    },
    /// The server could not be asked what we may do, or who we are.
    #[error("failed to ask the server about {about}")]
    Review {
        /// What was asked.
        about: String,
        /// How it failed.
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

/// The message of [`ClusterError::Prepare`] for a certificate that the TLS library
/// does not support.
pub(super) const OLD_CERTIFICATE: &str =
    "the client certificate has X.509 version 1, and TLS needs version 3";

impl ClusterError {
    /// How the request failed; none when nothing was asked.
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

    /// The kind of failure; none when nothing was asked.
    pub fn class(&self) -> Option<&Class> {
        self.api().map(|api| &api.class)
    }

    /// Whether somebody else was faster, or we were and did not hear of it.
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

    /// The object it is about.
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

    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.class().is_some_and(Class::is_retryable)
    }

    /// What it counts as: decides the exit code.
    pub fn kind(&self) -> finding::Kind {
        match self {
            Self::Address { .. } => finding::Kind::Repository,
            // Only what we send can be the repository's fault.
            Self::Apply { source, .. }
            | Self::Create { source, .. }
            | Self::Patch { source, .. }
            | Self::Delete { source, .. } => source.class.finding_kind(),
            _ => finding::Kind::Cluster,
        }
    }

    /// The obvious next step, where there is one: of a missing right the rule
    /// that grants it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::ReadKubeconfig { .. } | Self::NoCluster { .. } => Some(
                "name a kubeconfig with --kubeconfig or KUBECONFIG, and a context with --context",
            ),
            Self::UnknownContext { .. } => Some("name one of them with --context"),
            Self::Prepare { message, .. } if message == OLD_CERTIFICATE => Some(
                "issue it again with version 3: `openssl x509 -req` makes one where -extfile names a file with `extendedKeyUsage=clientAuth`",
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
