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
    #[error("{registration} keeps pleach from writing: nothing answers for it")]
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
    #[error("release {release} is installed, and its record is kept in {}, not in {}", found.spelled(), wanted.spelled())]
    KeptElsewhere {
        /// Environment and release.
        release: String,
        /// Store of the present record.
        found: Store,
        /// Store in the environment file.
        wanted: Store,
    },
    /// The namespace for the state does not exist.
    #[error("namespace {0}, in which state is to be kept, does not exist")]
    NoStateNamespace(String),
    /// The journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Another client changed the record meanwhile.
    #[error("the record of release {release} was changed by somebody else in the meantime")]
    Contended {
        /// Environment and release.
        release: String,
        /// Answer of the server, if it rejected the write.
        #[source]
        source: Option<Box<ClusterError>>,
    },
    /// Another client executes a plan of the same release.
    #[error("release {release} is being applied by {holder}; waited {patience:?} for it")]
    Held {
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
        "release {release} may be applied by somebody else now: {lease} was lost, and nothing was written from then on"
    )]
    LeaseLost {
        /// Environment and release.
        release: String,
        /// The Lease that prevents concurrent writes.
        lease: Box<ObjectId>,
    },
    /// The Release CRD was not served in time.
    #[error(
        "the cluster does not serve releases.pleach.dev {0:?} after its definition was applied"
    )]
    Definition(Duration),
    /// A CRD defines a kind that discovery lacks. Its objects are unknown, not absent.
    #[error("the cluster has a definition of {0}, and does not say yet that it serves it")]
    Undiscovered(GroupKind),
    /// Planning exceeded its time limit, and other releases wait for the permit.
    #[error("no plan of release {release} was made within {limit:?}")]
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
            | Self::KeptElsewhere { .. }
            | Self::Journal(JournalError::Newer { .. } | JournalError::TooLarge { .. })
            | Self::NoStateNamespace(_) => Kind::Policy,
            Self::Record { .. }
            | Self::Inventory { .. }
            | Self::Unverified { .. }
            | Self::Journal(JournalError::Parse { .. })
            | Self::Definition(_)
            | Self::Undiscovered(_)
            | Self::TooLong { .. }
            | Self::Random => Kind::Cluster,
            Self::Contended { .. } | Self::Held { .. } | Self::LeaseLost { .. } => Kind::Conflict,
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
                Some("change fewer objects, or smaller fields, for a while".to_owned())
            }
            Self::Journal(JournalError::Parse { name, .. }) => Some(format!(
                "somebody changed the ConfigMap {}: what it says of temporary changes has to be taken back by hand before it is deleted",
                Journal::name(name)
            )),
            Self::Record { .. } | Self::Definition(_) | Self::TooLong { .. } | Self::Random => None,
            Self::Undiscovered(_) => Some(
                "an API server that was just started says so a little later: run the command again"
                    .to_owned(),
            ),
            Self::Inventory {
                release, namespace, ..
            } => Some(format!(
                "somebody changed or deleted what pleach keeps in the namespace {namespace}; `pleach recover {}` rebuilds it, and deletes nothing",
                release.replacen('.', "/", 1)
            )),
            Self::Unverified {
                release, source, ..
            } => Some(way_to_trust(release, source)),
            Self::KeptElsewhere { found, .. } => Some(format!(
                "write `state: {}` again; members carry the id of that record, so another one starts with a release under another name",
                found.spelled()
            )),
            Self::NoStateNamespace(namespace) => Some(format!(
                "`kubectl create namespace {namespace}`, or name another one in `state` of the environment file"
            )),
            Self::Contended { .. } => Some("run the command again".to_owned()),
            Self::Held { lease, .. } => Some(format!(
                "run the command again when it has ended, or wait longer with --lock-timeout; {lease} of a process that is gone ends by itself {} s after it was last renewed",
                Terms::default().duration.as_secs()
            )),
            Self::LeaseLost { .. } => Some(
                "see `pleach status`, and run the command again: it goes on from there".to_owned(),
            ),
        }
    }
}

/// Returns the hint to verify the state with its key, or to write it again.
fn way_to_trust(release: &str, source: &SealError) -> String {
    let target = release.replacen('.', "/", 1);
    let recover =
        format!("`pleach recover {target}` rebuilds it from the objects, and deletes nothing");
    let home = match source {
        SealError::OtherKey { home } | SealError::NoKey { home } => home.as_deref(),
        SealError::Missing | SealError::Mismatch => None,
    };
    match home.and_then(|home| home.strip_suffix("/pleach-state-key")) {
        Some(namespace) => format!(
            "if a controller in namespace {namespace} follows the release, use its key: --key-namespace {namespace}; otherwise {recover}"
        ),
        None => recover,
    }
}
