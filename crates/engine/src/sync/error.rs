//! Errors that prevent a sync, or end it early.

use std::time::Duration;

use pleach_model::finding::Kind;
use pleach_model::object::{GroupKind, ObjectId, ServiceRef};
use pleach_state::inventory::{Journal, JournalError, RecordError, SealError, ShardError, Store};

use super::unanswered::way_out;
use crate::lease::{Holder, Terms};
use pleach_cluster::ClusterError;

/// Reason why a sync could not start or could not be recorded.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The cluster could not be read or written.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A webhook for the objects of pleach itself does not answer.
    #[error("{registration} blocks the writes of pleach: its webhook does not answer")]
    Unanswered {
        /// The configuration with the webhook.
        registration: Box<ObjectId>,
        /// The Service of the webhook; `None` for a URL.
        service: Option<Box<ServiceRef>>,
        /// Whether it is a member of the release to apply.
        is_ours: bool,
        /// The failed write.
        #[source]
        source: Box<ClusterError>,
    },
    /// The record of the release was written by a newer pleach, or is unreadable.
    #[error("the record of release {release} cannot be used")]
    Record {
        /// Environment and release.
        release: String,
        /// The cause.
        #[source]
        source: RecordError,
    },
    /// The inventory is incomplete, so nothing can be concluded from it (I1).
    #[error("the inventory of release {release} is incomplete: {what}")]
    Inventory {
        /// Environment and release.
        release: String,
        /// Namespace of the inventory.
        namespace: String,
        /// The missing part.
        what: String,
        /// The error of an unreadable shard.
        #[source]
        source: Option<ShardError>,
    },
    /// The state does not verify as written by pleach, so nothing can be concluded from it (I14).
    #[error("the state of release {release} cannot be trusted: {what} does not verify")]
    Unverified {
        /// Environment and release.
        release: String,
        /// The part that does not verify.
        what: &'static str,
        /// The cause.
        #[source]
        source: SealError,
    },
    /// The release is installed with a record in another store.
    #[error("release {release} is installed with its record in {}, not in {}", found.spelled(), expected.spelled())]
    RecordedElsewhere {
        /// Environment and release.
        release: String,
        /// Store of the present record.
        found: Store,
        /// Store in the environment file.
        expected: Store,
    },
    /// The namespace for the state does not exist.
    #[error("the state namespace {0} does not exist")]
    NoStateNamespace(String),
    /// The journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Another client changed the record meanwhile.
    #[error("another client changed the record of release {release} in the meantime")]
    Contended {
        /// Environment and release.
        release: String,
        /// Answer of the server, if it rejected the write.
        #[source]
        source: Option<Box<ClusterError>>,
    },
    /// Another client executes a plan of the same release.
    #[error("release {release} is being applied by {holder}; waited {patience:?} for it")]
    LeaseTaken {
        /// Environment and release.
        release: String,
        /// The Lease that prevents concurrent writes.
        lease: Box<ObjectId>,
        /// Its holder.
        holder: Box<Holder>,
        /// Duration of the wait.
        patience: Duration,
    },
    /// The Lease was lost during the run.
    #[error(
        "{lease} was lost: another client could be applying release {release}, so pleach stopped writing"
    )]
    LeaseLost {
        /// Environment and release.
        release: String,
        /// The Lease that prevents concurrent writes.
        lease: Box<ObjectId>,
    },
    /// The Release CRD was not served in time.
    #[error("the cluster does not serve releases.pleach.dev {0:?} after its CRD was applied")]
    Crd(Duration),
    /// A CRD defines a kind that discovery lacks. Its objects are unknown, not absent.
    #[error("the cluster has a CRD of {0}, but its discovery does not list the kind yet")]
    Undiscovered(GroupKind),
    /// Planning exceeded its time limit, and other releases wait for the permit.
    #[error("planning of release {release} exceeded its time limit of {limit:?}")]
    TooLong {
        /// Environment and release.
        release: String,
        /// The time limit.
        limit: Duration,
    },
    /// The operating system provided no random bytes for the digest key.
    #[error("failed to get random bytes from the operating system")]
    Random,
}

impl SyncError {
    /// Returns the error of the cluster, if it is the cause.
    pub fn of_cluster(&self) -> Option<&ClusterError> {
        match self {
            Self::Cluster(error) => Some(error),
            Self::Unanswered { source, .. } => Some(source),
            _ => None,
        }
    }

    /// Returns the kind of the error, which decides the exit code.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Cluster(error) => error.kind(),
            Self::Unanswered { source, .. } => source.kind(),
            Self::Record {
                source: RecordError::Newer { .. },
                ..
            }
            | Self::Inventory {
                source: Some(ShardError::Newer { .. }),
                ..
            }
            | Self::RecordedElsewhere { .. }
            | Self::Journal(JournalError::Newer { .. } | JournalError::TooLarge { .. })
            | Self::NoStateNamespace(_) => Kind::Policy,
            Self::Record { .. }
            | Self::Inventory { .. }
            | Self::Unverified { .. }
            | Self::Journal(JournalError::Parse { .. })
            | Self::Crd(_)
            | Self::Undiscovered(_)
            | Self::TooLong { .. }
            | Self::Random => Kind::Cluster,
            Self::Contended { .. } | Self::LeaseTaken { .. } | Self::LeaseLost { .. } => {
                Kind::Conflict
            }
        }
    }

    /// Returns the next step, if it is obvious.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Cluster(error) => error.hint(),
            Self::Unanswered {
                registration,
                service,
                is_ours,
                ..
            } => Some(way_out(registration, service.as_deref(), *is_ours)),
            Self::Record {
                source: RecordError::Newer { .. },
                ..
            }
            | Self::Inventory {
                source: Some(ShardError::Newer { .. }),
                ..
            }
            | Self::Journal(JournalError::Newer { .. }) => Some("use a newer pleach".to_owned()),
            Self::Journal(JournalError::TooLarge { .. }) => {
                Some("declare fewer temporary changes, or change smaller fields".to_owned())
            }
            Self::Journal(JournalError::Parse { name, .. }) => Some(format!(
                "another client edited ConfigMap {}: revert the temporary changes that it records by hand, then delete it",
                Journal::name(name)
            )),
            Self::Record { .. } | Self::Crd(_) | Self::TooLong { .. } | Self::Random => None,
            Self::Undiscovered(_) => Some(
                "the discovery of a restarted API server is incomplete for a moment: run the command again"
                    .to_owned(),
            ),
            Self::Inventory {
                release, namespace, ..
            } => Some(format!(
                "another client changed or deleted state of pleach in namespace {namespace}; `pleach recover {}` rebuilds it and deletes nothing",
                release.replacen('.', "/", 1)
            )),
            Self::Unverified {
                release, source, ..
            } => Some(seal_hint(release, source)),
            Self::RecordedElsewhere { found, .. } => Some(format!(
                "restore `state: {}`; members carry the id of that record, so another `state` needs a new release name",
                found.spelled()
            )),
            Self::NoStateNamespace(namespace) => Some(format!(
                "run `kubectl create namespace {namespace}`, or set another namespace in `state` of the environment file"
            )),
            Self::Contended { .. } => Some("run the command again".to_owned()),
            Self::LeaseTaken { lease, .. } => Some(format!(
                "run the command again when that run has finished, or wait longer with --lock-timeout; if the holder has crashed, {lease} expires {} s after its last renewal",
                Terms::default().duration.as_secs()
            )),
            Self::LeaseLost { .. } => Some(
                "check `pleach status`, then run the command again: it continues from there".to_owned(),
            ),
        }
    }
}

/// Returns the hint to verify the state with its key, or to write it again.
fn seal_hint(release: &str, source: &SealError) -> String {
    let target = release.replacen('.', "/", 1);
    let recover =
        format!("`pleach recover {target}` rebuilds it from the objects and deletes nothing");
    let home = match source {
        SealError::OtherKey { home } | SealError::NoKey { home } => home.as_deref(),
        SealError::Missing | SealError::Mismatch => None,
    };
    match home.and_then(|home| home.strip_suffix("/pleach-state-key")) {
        Some(namespace) => format!(
            "if a controller in namespace {namespace} reconciles the release, use its key: --key-namespace {namespace}; otherwise {recover}"
        ),
        None => recover,
    }
}
