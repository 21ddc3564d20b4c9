//! What a release leaves behind for its own end.

use serde::{Deserialize, Serialize};

use crate::repo::format::{BlockUninstall, ReadinessRule};
use crate::repo::{Protect, RuntimeObject};

/// What taking a release away needs to know of it when git no longer has its
/// bundle, or its environment. Its size does not grow with the release.
///
/// Every field is written always, also where it is empty: the status is
/// written as a merge patch, which keeps what it does not name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Memory {
    /// Default namespace of the release.
    pub namespace: Option<String>,
    /// Objects that its workloads make.
    pub runtime_objects: Vec<RuntimeObject>,
    /// What forbids its end.
    pub block_uninstall: Vec<BlockUninstall>,
    /// What "ready" means for some kinds.
    pub readiness: Vec<ReadinessRule>,
    /// The releases that it depends on: it goes before them.
    pub depends_on: Vec<String>,
    /// Kinds that its environment protects beside the built-in ones.
    pub protect: Vec<Protect>,
    /// Deadline of each wait, in seconds.
    pub timeout: Option<i64>,
}
