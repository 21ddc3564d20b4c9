//! Errors that end a sync before, or instead of, its steps.

use pleach_domain::finding::Kind;
use pleach_domain::inventory::{RecordError, ShardError, Store};

use crate::io::cluster::ClusterError;

/// Why a sync could not be begun, or could not be recorded.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The cluster could not be read or written.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
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
    /// Somebody else wrote the record in the meantime.
    #[error("the record of release {release} was changed by somebody else in the meantime")]
    Contended {
        /// Environment and release.
        release: String,
        /// The server's answer, where it refused the write.
        #[source]
        source: Option<Box<ClusterError>>,
    },
    /// The definition of Release did not become available.
    #[error(
        "the cluster does not serve releases.pleach.dev {0:?} after its definition was applied"
    )]
    Definition(std::time::Duration),
    /// The operating system gave no random bytes for the digest key.
    #[error("failed to get random bytes from the operating system")]
    Random,
}

impl SyncError {
    /// What it counts as: decides the exit code.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Cluster(error) => error.kind(),
            Self::Record {
                source: RecordError::Newer { .. },
                ..
            }
            | Self::Inventory {
                source: Some(ShardError::Newer { .. }),
                ..
            }
            | Self::KeptElsewhere { .. }
            | Self::NoStateNamespace(_) => Kind::Policy,
            Self::Record { .. } | Self::Inventory { .. } | Self::Definition(_) | Self::Random => {
                Kind::Cluster
            }
            Self::Contended { .. } => Kind::Conflict,
        }
    }

    /// The obvious next step.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Cluster(error) => error.hint(),
            Self::Record {
                source: RecordError::Newer { .. },
                ..
            }
            | Self::Inventory {
                source: Some(ShardError::Newer { .. }),
                ..
            } => Some("use a newer pleach".to_owned()),
            Self::Record { .. } | Self::Definition(_) | Self::Random => None,
            Self::Inventory {
                release, namespace, ..
            } => Some(format!(
                "somebody changed or deleted what pleach keeps in the namespace {namespace}; `pleach recover {}` rebuilds it, and deletes nothing",
                release.replacen('.', "/", 1)
            )),
            Self::KeptElsewhere { found, .. } => Some(format!(
                "write `state: {}` again; members carry the id of that record, so another one starts with a release under another name",
                found.spelled()
            )),
            Self::NoStateNamespace(namespace) => Some(format!(
                "`kubectl create namespace {namespace}`, or name another one in `state` of the environment file"
            )),
            Self::Contended { .. } => Some("run the command again".to_owned()),
        }
    }
}
