//! Environments in which some releases cannot be resolved.

use std::collections::BTreeMap;

use semver::Version;

use super::{check_label, repository};
use crate::{ResolvedEnvironment, environment};
use pleach_model::finding::Finding;
use pleach_model::object::ReleaseName;
use pleach_model::tree::FileTree;

/// An environment with the releases that could be resolved.
#[derive(Debug, Clone)]
pub struct PartialEnvironment {
    /// The environment. It includes broken releases that can be rendered, because other releases
    /// can use kinds that they define.
    pub environment: ResolvedEnvironment,
    /// Releases with errors, by name.
    pub broken: BTreeMap<String, BrokenRelease>,
}

/// A release with errors.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BrokenRelease {
    /// Findings about this release, with at least one error. Sorted by file and line.
    pub findings: Vec<Finding>,
    /// The release that hands over its objects, from the environment file.
    pub moved_from: Option<ReleaseName>,
}

/// Findings by release.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Findings about files that all releases need.
    pub(super) shared: Vec<Finding>,
    releases: BTreeMap<String, Vec<Finding>>,
    /// Releases that hand over their objects, by the name of the successor.
    pub(super) moves: BTreeMap<String, ReleaseName>,
}

impl Findings {
    /// Returns the findings of a release, or the shared ones for a release without a name.
    pub(super) fn of(&mut self, release: Option<&str>) -> &mut Vec<Finding> {
        match release {
            Some(release) => self.releases.entry(release.to_owned()).or_default(),
            None => &mut self.shared,
        }
    }

    /// Returns all findings, sorted by file and line.
    pub(super) fn all(self) -> Vec<Finding> {
        let mut all = self.shared;
        all.extend(self.releases.into_values().flatten());
        sort(&mut all);
        all
    }
}

fn sort(findings: &mut Vec<Finding>) {
    findings.sort_by(|a, b| (&a.place, a).cmp(&(&b.place, b)));
    findings.dedup();
}

/// Reads an environment as far as possible. `None` if a file that all releases need is unreadable.
pub(super) fn read(
    tree: &dyn FileTree,
    environment: &str,
    pleach_version: &Version,
) -> (Option<ResolvedEnvironment>, Findings) {
    let mut findings = Findings::default();
    let shared = &mut findings.shared;
    let repository = repository(tree, pleach_version, shared);
    check_label("environment", environment, None, shared);
    let resolved = environment::read(tree, environment, shared)
        .map(|merged| merged.resolve(tree, environment, &mut findings));
    let resolved = match (repository, resolved) {
        (Some(repository), Some(mut resolved)) => {
            resolved.repository = repository;
            Some(resolved)
        }
        _ => None,
    };
    (resolved, findings)
}

/// Reads an environment like [`super::resolve`], but an error in one release does not affect the
/// others.
///
/// Fails with every error found if a file that all releases need has errors.
pub fn resolve_partly(
    tree: &dyn FileTree,
    environment: &str,
    pleach_version: &Version,
) -> Result<PartialEnvironment, Vec<Finding>> {
    let (resolved, mut findings) = read(tree, environment, pleach_version);
    let Some(mut environment) = resolved else {
        return Err(findings.all());
    };
    if findings.shared.iter().any(Finding::is_error) {
        return Err(findings.all());
    }
    let mut broken = BTreeMap::new();
    for (name, mut found) in std::mem::take(&mut findings.releases) {
        if found.iter().any(Finding::is_error) {
            sort(&mut found);
            let moved_from = findings.moves.get(&name).cloned();
            let release = BrokenRelease {
                findings: found,
                moved_from,
            };
            broken.insert(name, release);
        } else {
            findings.shared.extend(found);
        }
    }
    environment.findings = findings.all();
    Ok(PartialEnvironment {
        environment,
        broken,
    })
}
