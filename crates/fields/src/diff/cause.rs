//! Origin of a difference.

use serde::Serialize;

/// Origin of an update.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Cause {
    /// Only git changed.
    Git,
    /// Only the cluster drifted.
    Drift {
        /// Field managers that now own fields of ours, as far as known.
        managers: Vec<String>,
    },
    /// Both git and the cluster changed.
    Both {
        /// Field managers that now own fields of ours, as far as known.
        managers: Vec<String>,
    },
    /// No value changes, only the field ownership.
    Ownership,
    /// A temporary change of ours is reverted.
    Overlay,
}
