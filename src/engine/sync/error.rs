//! Errors that end a sync before, or instead of, its steps.

use pleach_domain::finding::Kind;
use pleach_domain::inventory::{RecordError, ShardError};

use crate::io::cluster::{Class, ClusterError};

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
        /// What is missing.
        what: String,
        /// Why, where a shard could not be read.
        #[source]
        source: Option<ShardError>,
    },
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
            } => Kind::Policy,
            Self::Record { .. } | Self::Inventory { .. } | Self::Definition(_) | Self::Random => {
                Kind::Cluster
            }
            Self::Contended { .. } => Kind::Conflict,
        }
    }

    /// The obvious next step.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Cluster(error) => error.class().and_then(Class::hint).map(str::to_owned),
            Self::Record { source: RecordError::Newer { .. }, .. }
            | Self::Inventory { source: Some(ShardError::Newer { .. }), .. } => Some("use a newer pleach".to_owned()),
            Self::Record { .. } | Self::Definition(_) | Self::Random => None,
            Self::Inventory { .. } => Some(
                "somebody changed or deleted ConfigMaps of the namespace pleach-system; restore them before anything is applied"
                    .to_owned(),
            ),
            Self::Contended { .. } => Some("run the command again".to_owned()),
        }
    }
}
