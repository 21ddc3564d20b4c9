//! Name of a release.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Digest, managers};

/// Name of a release within its environment. The text `<environment>.<release>` is the name of all
/// its state objects.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReleaseName {
    /// Environment, a DNS label.
    pub environment: String,
    /// Release, a DNS label.
    pub release: String,
}

impl ReleaseName {
    /// Returns the only field manager of the release's objects.
    pub fn field_manager(&self) -> String {
        format!("{}{self}", managers::RELEASE)
    }

    /// Returns the value of label `pleach.dev/release`. This is the name, or its digest if the name
    /// exceeds 63 characters.
    pub fn label(&self) -> String {
        let name = self.to_string();
        if name.len() <= 63 {
            name
        } else {
            Digest::of(name.as_bytes()).short()
        }
    }
}

impl fmt::Display for ReleaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.environment, self.release)
    }
}
