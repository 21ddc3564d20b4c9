//! What the Release object records.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::apply_set_id;
use crate::object::Digest;

/// A release within its environment; its text `<environment>.<release>` names
/// everything that is kept for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReleaseName {
    /// Environment, a DNS label.
    pub environment: String,
    /// Release, a DNS label.
    pub release: String,
}

impl ReleaseName {
    /// The only field manager of the release's objects.
    pub fn field_manager(&self) -> String {
        format!("pleach/{self}")
    }

    /// The id of its ApplySet; the parent is the cluster-scoped Release object.
    pub fn apply_set(&self) -> String {
        apply_set_id(&self.to_string(), "", "Release", "pleach.dev")
    }
}

impl fmt::Display for ReleaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.environment, self.release)
    }
}

/// What the cluster says is installed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Installed {
    /// uid of the Release object.
    pub uid: String,
    /// resourceVersion of the Release object: the fence of the next status write.
    pub resource_version: String,
    /// Id of the repository that owns the release.
    pub repository: String,
    /// Bundle of the last complete attempt.
    pub bundle: String,
    /// The last attempt that converged.
    pub installed: Option<Attempt>,
    /// An attempt that has not converged.
    pub applying: Option<Attempt>,
    /// Whether the last attempt converged and everything was ready.
    pub ready: bool,
    /// Shard names that belong to this state, with the digest of their content.
    pub shards: Vec<(String, Digest)>,
    /// Number of inventory entries over all shards.
    pub entries: usize,
}

/// One attempt to install a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// Version of the bundle; the revision for bundles without versions.
    pub version: String,
    /// git commit, `<commit>-dirty` or `none`.
    pub revision: String,
    /// Digest of everything desired.
    pub digest: Digest,
    /// When it began.
    pub at: Timestamp,
}

/// What a former run left to do. Overlays are recorded here before they are made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Journal {
    /// Digest of the effects of the plan that was being carried out.
    pub plan: Option<Digest>,
}
