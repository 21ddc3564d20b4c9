//! Values without secrets.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A value without secrets, which may be stored and printed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NonSecret(pub Value);
