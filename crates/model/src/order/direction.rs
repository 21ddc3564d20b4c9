//! Direction of a version change.

use serde::{Deserialize, Serialize};

/// Which way a version change goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// To a newer version, or the same.
    Forward,
    /// To an older version.
    Reverse,
}
