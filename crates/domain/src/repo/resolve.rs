//! From files to a [`ResolvedEnvironment`].

use semver::Version;

use super::{FileTree, ResolvedEnvironment};
use crate::finding::{Finding, Kind};

/// Reads an environment with everything it refers to.
///
/// Fails with every error found, sorted by file and line, never with an empty
/// list; notes and warnings are among them then.
pub fn resolve(
    tree: &dyn FileTree,
    environment: &str,
    pleach_version: &Version,
) -> Result<ResolvedEnvironment, Vec<Finding>> {
    let _ = (tree, environment, pleach_version);
    Err(vec![Finding::error(
        Kind::Repository,
        "not-supported-yet",
        "resolution is not supported yet",
    )])
}

/// Names of the environments of a repository, sorted; without those that are
/// only extended from.
pub fn environments(tree: &dyn FileTree) -> Vec<String> {
    let _ = tree;
    Vec::new()
}
