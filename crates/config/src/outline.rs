//! Contents of an environment file that do not need its bundles, which can be gone.

use semver::Version;

use super::Outline;
use super::environment;
use super::resolve::repository;
use super::resolve::uninstall::moved_from;
use pleach_model::finding::Finding;
use pleach_model::object::Located;
use pleach_model::tree::FileTree;

/// Reads an environment file and the files that it extends, but not the bundles of its releases.
/// Fails with every error found.
pub fn outline(
    tree: &dyn FileTree,
    environment: &str,
    pleach_version: &Version,
) -> Result<Outline, Vec<Finding>> {
    let mut findings = Vec::new();
    let repository = repository(tree, pleach_version, &mut findings);
    let merged = environment::read(tree, environment, &mut findings);
    match (repository, merged) {
        (Some(repository), Some(mut merged)) if !findings.iter().any(Finding::is_error) => {
            let releases = merged.environment.releases.take().unwrap_or_default();
            let releases = releases
                .iter()
                .filter_map(|release| Some((release.own_name()?.to_owned(), moved_from(release))))
                .collect();
            let consent = Located::values(merged.environment.consent.take());
            let store = merged.store(&mut findings);
            let mut environment = merged.into_resolved(environment, store, consent, Vec::new());
            environment.repository = repository;
            environment.findings = findings;
            Ok(Outline {
                environment,
                releases,
            })
        }
        _ => Err(findings),
    }
}

/// Reads the id of the repository, which is all that is needed after an environment was removed.
/// Fails with every error found.
pub fn repository_id(
    tree: &dyn FileTree,
    pleach_version: &Version,
) -> Result<String, Vec<Finding>> {
    let mut findings = Vec::new();
    repository(tree, pleach_version, &mut findings).ok_or(findings)
}
