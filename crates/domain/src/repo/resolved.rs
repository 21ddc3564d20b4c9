//! An environment with everything it refers to, ready to be rendered.

use crate::inventory::ReleaseName;
use crate::object::Origin;

/// An environment file merged with what it extends, and its releases.
#[derive(Debug, Clone)]
pub struct ResolvedEnvironment {
    /// Id of the repository.
    pub repository: String,
    /// Name of the environment: the file's name without `.yaml`.
    pub name: String,
    /// In the order of the file.
    pub releases: Vec<ResolvedRelease>,
}

/// A release with its bundle, version and values.
#[derive(Debug, Clone)]
pub struct ResolvedRelease {
    /// Environment and release.
    pub name: ReleaseName,
    /// Where the environment names it.
    pub origin: Origin,
}
