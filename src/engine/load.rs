//! An environment of a repository at a revision, and what it renders to.

use std::collections::BTreeSet;

use pleach_domain::finding::{Finding, Kind, excerpt};
use pleach_domain::inventory::ReleaseName;
use pleach_domain::kinds::KindTable;
use pleach_domain::render::{self, Rendered};
use pleach_domain::repo::{self, FileTree, KeepingTree, ResolvedEnvironment, ResolvedRelease};
use semver::Version;

use crate::io::git::Revision;

/// An environment and what its releases render to.
#[derive(Debug)]
pub struct Loaded {
    /// The environment with all of its releases, also those not asked for.
    pub environment: ResolvedEnvironment,
    /// The releases asked for, in the order of the environment.
    pub rendered: Vec<(ResolvedRelease, Rendered)>,
    /// The releases not asked for: what is secret there is secret here too.
    pub others: Vec<(ResolvedRelease, Rendered)>,
    /// Releases that `movedFrom` names and that git says it has no more.
    pub given_up: BTreeSet<ReleaseName>,
    /// What the files are a revision of.
    pub revision: Revision,
    /// Everything there is to say about the environment and those releases.
    pub findings: Vec<Finding>,
}

impl Loaded {
    /// Whether there is no error among the findings.
    pub fn is_sound(&self) -> bool {
        !self.findings.iter().any(Finding::is_error)
    }

    /// Whether the same is wanted at both revisions, object for object and line
    /// for line.
    pub fn wants_the_same(&self, other: &Self) -> bool {
        self.environment == other.environment
            && self.rendered == other.rendered
            && self.others == other.others
            && self.given_up == other.given_up
    }

    /// What all releases render to, also those not asked for.
    pub fn all(&self) -> impl Iterator<Item = &Rendered> {
        self.rendered
            .iter()
            .chain(&self.others)
            .map(|(_, rendered)| rendered)
    }

    /// Names of the releases asked for.
    pub fn names(&self) -> Vec<&str> {
        self.rendered
            .iter()
            .map(|(release, _)| release.name.release.as_str())
            .collect()
    }

    /// Sets the releases but one aside, with what was found in them.
    #[must_use]
    pub fn only(mut self, wanted: &str) -> Self {
        let (rendered, others): (Vec<_>, Vec<_>) = self
            .rendered
            .into_iter()
            .partition(|(release, _)| release.name.release == wanted);
        for (_, other) in &others {
            for finding in &other.findings {
                // Those of the environment have got their line of source.
                let same = |known: &Finding| {
                    (&known.code, &known.place, &known.object, &known.message)
                        == (
                            &finding.code,
                            &finding.place,
                            &finding.object,
                            &finding.message,
                        )
                };
                if let Some(position) = self.findings.iter().position(same) {
                    self.findings.remove(position);
                }
            }
        }
        self.rendered = rendered;
        self.others.extend(others);
        self
    }

    /// The version of a release: the revision for a bundle without versions.
    pub fn version(&self, release: &ResolvedRelease) -> String {
        match &release.version {
            Some(version) => version.clone(),
            None => self.revision.to_string(),
        }
    }
}

/// Loads an environment with all of its releases, as far as that is possible.
pub fn read_all(
    tree: &dyn FileTree,
    revision: Revision,
    environment: &str,
) -> Result<Loaded, Vec<Finding>> {
    let kept = KeepingTree::new(tree);
    let environment = resolve(&kept, environment)?;
    let (kinds, _) = KindTable::nearest(environment.cluster.kubernetes.as_deref());
    // All of them, whatever is asked for: releases share kinds, and no two of
    // them may have the same object.
    let all = render::render_environment(&kept, &environment, &kinds);
    Ok(loaded(tree, revision, environment, all))
}

/// Reads an environment with what it refers to, without rendering it.
pub fn resolve(
    tree: &dyn FileTree,
    environment: &str,
) -> Result<ResolvedEnvironment, Vec<Finding>> {
    repo::resolve(tree, environment, &pleach_version())
        .map_err(|findings| with_excerpts(tree, findings))
}

/// An environment with what its releases were rendered to, in its order.
pub fn loaded(
    tree: &dyn FileTree,
    revision: Revision,
    environment: ResolvedEnvironment,
    all: Vec<Rendered>,
) -> Loaded {
    let (_, note) = KindTable::nearest(environment.cluster.kubernetes.as_deref());
    let findings: Vec<Finding> = environment
        .findings
        .iter()
        .cloned()
        .chain(note)
        .chain(all.iter().flat_map(|one| one.findings.iter().cloned()))
        .collect();
    let findings = with_excerpts(tree, findings);
    let formers = environment.releases.iter();
    let formers = formers.filter_map(|release| release.moved_from.clone());
    Loaded {
        given_up: formers
            .filter(|former| is_given_up(tree, &environment, former))
            .collect(),
        rendered: environment.releases.iter().cloned().zip(all).collect(),
        environment,
        others: Vec::new(),
        revision,
        findings,
    }
}

/// Whether git says that it does not have a release any more. An environment
/// that it does not have, or that cannot be read, says nothing.
fn is_given_up(
    tree: &dyn FileTree,
    environment: &ResolvedEnvironment,
    release: &ReleaseName,
) -> bool {
    if release.environment == environment.name {
        let mut releases = environment.releases.iter();
        return releases.all(|known| known.name != *release);
    }
    let outline = repo::outline(tree, &release.environment, &pleach_version());
    outline.is_ok_and(|outline| !outline.releases.contains_key(&release.release))
}

/// Adds the lines of source that findings are about.
pub fn with_excerpts(tree: &dyn FileTree, mut findings: Vec<Finding>) -> Vec<Finding> {
    excerpt::attach(tree, &mut findings);
    findings
}

/// The version that `requires` in pleach.yaml is compared with.
pub fn pleach_version() -> Version {
    let part = |text: &str| text.parse().unwrap_or_default();
    Version::new(
        part(env!("CARGO_PKG_VERSION_MAJOR")),
        part(env!("CARGO_PKG_VERSION_MINOR")),
        part(env!("CARGO_PKG_VERSION_PATCH")),
    )
}

/// An environment does not have a release that was asked for.
pub fn no_release(environment: &ResolvedEnvironment, wanted: &str) -> Finding {
    let names: Vec<&str> = environment
        .releases
        .iter()
        .map(|release| release.name.release.as_str())
        .collect();
    Finding::error(
        Kind::Repository,
        "unknown-release",
        format!("environment {} has no release {wanted}", environment.name),
    )
    .at(environment.origin.clone())
    .hint(match names.as_slice() {
        [] => "it has no releases".to_owned(),
        names => format!("it has {}", names.join(", ")),
    })
}

/// Whether git does not have the environment at all.
pub fn is_unknown(findings: &[Finding]) -> bool {
    findings
        .iter()
        .any(|finding| finding.code == "unknown-environment")
}
