//! An environment of which some releases cannot be resolved.

use std::collections::BTreeMap;

use semver::Version;

use super::{check_label, repository};
use crate::finding::Finding;
use crate::inventory::ReleaseName;
use crate::repo::{FileTree, ResolvedEnvironment, environment};

/// An environment with the releases that can be resolved.
#[derive(Debug, Clone)]
pub struct PartialEnvironment {
    /// The environment. A broken release is among its releases where enough of it is known
    /// to render it: other releases may use kinds that it defines.
    pub environment: ResolvedEnvironment,
    /// Releases with errors, by name.
    pub broken: BTreeMap<String, BrokenRelease>,
}

/// A release of an environment file that has errors.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BrokenRelease {
    /// Findings about this release, at least one error. Sorted by file and line.
    pub findings: Vec<Finding>,
    /// The release whose objects it takes over, as the environment file says.
    pub moved_from: Option<ReleaseName>,
}

/// Findings by the release that they are about.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Findings about files that all releases need.
    pub(super) shared: Vec<Finding>,
    releases: BTreeMap<String, Vec<Finding>>,
    /// The releases whose objects others take over, by the name of the successor.
    pub(super) moves: BTreeMap<String, ReleaseName>,
}

impl Findings {
    /// Findings about a release; the shared ones where it has no name.
    pub(super) fn of(&mut self, release: Option<&str>) -> &mut Vec<Finding> {
        match release {
            Some(release) => self.releases.entry(release.to_owned()).or_default(),
            None => &mut self.shared,
        }
    }

    /// All findings, sorted by file and line.
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

/// Reads an environment as far as that is possible; none where a file that all releases need
/// cannot be read.
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

/// Reads an environment like [`super::resolve`], but an error of a release leaves the other
/// releases usable.
///
/// Fails where a file that all releases need has errors, with every error found.
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
