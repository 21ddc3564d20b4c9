//! Errors that end a sync before, or instead of, its steps.

use std::time::Duration;

use pleach_domain::finding::Kind;
use pleach_domain::inventory::{Journal, JournalError, RecordError, SealError, ShardError, Store};
use pleach_domain::object::{GroupKind, ObjectId, ServiceRef};

use super::unanswered::way_out;
use crate::engine::lease::{Holder, Terms};
use crate::io::cluster::ClusterError;

/// Why a sync could not be begun, or could not be recorded.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The cluster could not be read or written.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A webhook is asked about what pleach writes, and nothing answers for it.
    #[error("{registration} keeps pleach from writing: nothing answers for it")]
    Unanswered {
        /// The configuration that has the webhook.
        registration: Box<ObjectId>,
        /// The Service that is to answer; none where it is asked at a URL.
        service: Option<Box<ServiceRef>>,
        /// Whether it is a member of the release that was to be applied.
        is_ours: bool,
        /// What was to be written.
        #[source]
        source: Box<ClusterError>,
    },
    /// The record of the release is of a newer pleach, or unreadable.
    #[error("the record of release {release} cannot be used")]
    Record {
        /// Environment and release.
        release: String,
        /// Why.
        #[source]
        source: RecordError,
    },
    /// The inventory is incomplete: nothing may be concluded from it (I1).
    #[error("the inventory of release {release} is incomplete: {what}")]
    Inventory {
        /// Environment and release.
        release: String,
        /// Where it is kept.
        namespace: String,
        /// What is missing.
        what: String,
        /// Why, where a shard could not be read.
        #[source]
        source: Option<ShardError>,
    },
    /// Its state is not what pleach wrote: nothing is concluded from it (I14).
    #[error("the state of release {release} cannot be trusted: {what} does not verify")]
    Unverified {
        /// Environment and release.
        release: String,
        /// What of it.
        what: &'static str,
        /// Why.
        #[source]
        source: SealError,
    },
    /// The release is installed with a record in another place.
    #[error("release {release} is installed, and its record is kept in {}, not in {}", found.spelled(), wanted.spelled())]
    KeptElsewhere {
        /// Environment and release.
        release: String,
        /// Where the record is.
        found: Store,
        /// Where the environment file has it.
        wanted: Store,
    },
    /// State is to be kept in a namespace that does not exist.
    #[error("namespace {0}, in which state is to be kept, does not exist")]
    NoStateNamespace(String),
    /// The journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Somebody else wrote the record in the meantime.
    #[error("the record of release {release} was changed by somebody else in the meantime")]
    Contended {
        /// Environment and release.
        release: String,
        /// The server's answer, where it refused the write.
        #[source]
        source: Option<Box<ClusterError>>,
    },
    /// Somebody else carries out a plan of the same release.
    #[error("release {release} is being applied by {holder}; waited {patience:?} for it")]
    Held {
        /// Environment and release.
        release: String,
        /// What keeps two from writing at once.
        lease: Box<ObjectId>,
        /// Who has it.
        holder: Box<Holder>,
        /// How long it was waited for.
        patience: Duration,
    },
    /// It was not our turn any more.
    #[error(
        "release {release} may be applied by somebody else now: {lease} was lost, and nothing was written from then on"
    )]
    LeaseLost {
        /// Environment and release.
        release: String,
        /// What keeps two from writing at once.
        lease: Box<ObjectId>,
    },
    /// The definition of Release did not become available.
    #[error(
        "the cluster does not serve releases.pleach.dev {0:?} after its definition was applied"
    )]
    Definition(Duration),
    /// A definition has a kind that the server does not say it serves: what is
    /// there of it is unknown, not absent.
    #[error("the cluster has a definition of {0}, and does not say yet that it serves it")]
    Undiscovered(GroupKind),
    /// It was given up: others wait for the same.
    #[error("no plan of release {release} was made within {limit:?}")]
    TooLong {
        /// Environment and release.
        release: String,
        /// How long it was given.
        limit: Duration,
    },
    /// The operating system gave no random bytes for the digest key.
    #[error("failed to get random bytes from the operating system")]
    Random,
}

impl SyncError {
    /// What went wrong between us and the cluster, where that is it.
    pub fn of_cluster(&self) -> Option<&ClusterError> {
        match self {
            Self::Cluster(error) => Some(error),
            Self::Unanswered { source, .. } => Some(source),
            _ => None,
        }
    }

    /// What it counts as: decides the exit code.
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

    /// The obvious next step.
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

/// How state is read that does not verify here, or written again.
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
