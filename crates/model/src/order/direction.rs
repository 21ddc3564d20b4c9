//! Direction of a version change.

use serde::{Deserialize, Serialize};

/// Direction of a version change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// To a newer version, or the same.
    Forward,
    /// To an older version.
    Reverse,
}
