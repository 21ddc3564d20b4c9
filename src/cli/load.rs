//! What every command begins with: the repository at a revision, an
//! environment of it, and what it renders to.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use pleach_domain::finding::{Finding, Kind as FindingKind, excerpt};
use pleach_domain::kinds::KindTable;
use pleach_domain::render::{self, Rendered};
use pleach_domain::repo::{self, FileTree, ResolvedEnvironment, ResolvedRelease};
use semver::Version;
use tokio_util::sync::CancellationToken;

use super::Target;
use super::error::{CliError, Kind};
use super::format::findings;
use crate::engine::stop::{Cause, Stop};
use crate::io::files;
use crate::io::git::{Revision, Source};

/// The file that makes a folder a repository.
const REPOSITORY_FILE: &str = "pleach.yaml";

/// What options and environment variables say.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Folder of the repository; the nearest parent that is one when left out.
    pub repo: Option<PathBuf>,
    /// Revision to read; the working tree when left out.
    pub revision: Option<String>,
    /// Kubeconfig file; as kubectl finds it when left out.
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; the environment's when left out.
    pub context: Option<String>,
}

/// What is handed down to every command.
#[derive(Debug)]
pub struct Context {
    /// What options and environment variables say.
    pub settings: Settings,
    /// Cancelled by the first Ctrl-C.
    pub cancel: CancellationToken,
}

/// A repository at a revision.
pub struct Opened {
    /// Its files.
    pub tree: Box<dyn FileTree>,
    /// What they are a revision of.
    pub revision: Revision,
}

/// An environment and what its releases render to.
#[derive(Debug)]
pub struct Loaded {
    /// The environment with all of its releases, also those not asked for.
    pub environment: ResolvedEnvironment,
    /// The releases asked for, in the order of the environment.
    pub rendered: Vec<(ResolvedRelease, Rendered)>,
    /// The releases not asked for: what is secret there is secret here too.
    pub others: Vec<(ResolvedRelease, Rendered)>,
    /// What the files are a revision of.
    pub revision: Revision,
    /// Everything there is to say about the environment and those releases.
    pub findings: Vec<Finding>,
}

impl Context {
    /// Starts with nothing cancelled.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            cancel: CancellationToken::new(),
        }
    }

    /// What ends a run at its next safe point.
    pub fn stop(&self) -> Stop {
        Stop::on(Cause::Interrupted, self.cancel.clone())
    }

    /// Opens the repository.
    pub fn open(&self) -> Result<Opened, CliError> {
        self.open_at(self.settings.revision.as_deref())
    }

    /// The folder of the repository, with the git repository around it.
    pub(super) fn source(&self) -> Result<Source, CliError> {
        Ok(Source::open(&self.folder()?)?)
    }

    /// Opens the repository at a revision, or its working tree.
    pub fn open_at(&self, revision: Option<&str>) -> Result<Opened, CliError> {
        let folder = self.folder()?;
        let source = Source::open(&folder)?;
        Ok(match revision {
            Some(revision) => {
                let tree = source.tree(revision)?;
                Opened {
                    revision: Revision::Commit(tree.commit()),
                    tree: Box::new(tree),
                }
            }
            None => Opened {
                revision: source.revision()?,
                tree: Box::new(source.working_tree()),
            },
        })
    }

    /// Loads what a target means. Fails with all findings when there are
    /// errors among them: what is returned can be used.
    pub fn load(&self, target: &Target) -> Result<Loaded, CliError> {
        self.read(target)?.sound(target)
    }

    /// Loads what a target means as far as that is possible: errors may be
    /// among the findings, and manifests may be missing.
    pub fn read(&self, target: &Target) -> Result<Loaded, CliError> {
        let Opened { tree, revision } = self.open()?;
        read(&*tree, revision, target)
    }

    /// What the repository says of an environment, without rendering it; none
    /// where there is no repository: for commands that do without one.
    pub fn environment(&self, name: &str) -> Result<Option<ResolvedEnvironment>, CliError> {
        if self.find_folder()?.is_none() {
            return Ok(None);
        }
        let Opened { tree, .. } = self.open()?;
        repo::resolve(&*tree, name, &pleach_version())
            .map(Some)
            .map_err(|findings| {
                let target = Target {
                    environment: name.to_owned(),
                    release: None,
                };
                refused(&target, with_excerpts(&*tree, findings))
            })
    }

    /// Whether somebody named the repository or a revision of it, and did not
    /// just happen to be in one.
    pub fn names_repository(&self) -> bool {
        self.settings.repo.is_some() || self.settings.revision.is_some()
    }

    fn folder(&self) -> Result<PathBuf, CliError> {
        if let Some(folder) = self.find_folder()? {
            return Ok(folder);
        }
        let here = files::canonical(Path::new("."))?;
        Err(CliError::new(
            Kind::Repository,
            format!(
                "neither {} nor a folder above it holds a {REPOSITORY_FILE}",
                here.display()
            ),
        )
        .hint("name the repository with --repo, or make one with `pleach init`"))
    }

    fn find_folder(&self) -> Result<Option<PathBuf>, CliError> {
        if let Some(folder) = &self.settings.repo {
            return Ok(Some(folder.clone()));
        }
        let here = files::canonical(Path::new("."))?;
        for folder in here.ancestors() {
            if files::exists(&folder.join(REPOSITORY_FILE))? {
                return Ok(Some(folder.to_owned()));
            }
        }
        Ok(None)
    }
}

impl Loaded {
    /// Refuses to go on when there are errors.
    pub fn sound(self, target: &Target) -> Result<Self, CliError> {
        if self.findings.iter().any(Finding::is_error) {
            return Err(refused(target, self.findings));
        }
        Ok(self)
    }

    /// What all releases render to, also those not asked for.
    pub(super) fn all(&self) -> impl Iterator<Item = &Rendered> {
        self.rendered
            .iter()
            .chain(&self.others)
            .map(|(_, rendered)| rendered)
    }

    /// Names of the releases asked for.
    pub(super) fn names(&self) -> Vec<&str> {
        self.rendered
            .iter()
            .map(|(release, _)| release.name.release.as_str())
            .collect()
    }

    /// Sets the releases but one aside, with what was found in them.
    pub(super) fn only(mut self, wanted: &str) -> Self {
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

/// Loads a target from a tree, as far as that is possible.
pub(super) fn read(
    tree: &dyn FileTree,
    revision: Revision,
    target: &Target,
) -> Result<Loaded, CliError> {
    let loaded = read_all(tree, revision, &target.environment)
        .map_err(|findings| refused(target, findings))?;
    let Some(wanted) = &target.release else {
        return Ok(loaded);
    };
    let names = loaded.names();
    if !names.contains(&wanted.as_str()) {
        return Err(no_release(&loaded.environment, wanted, &names));
    }
    Ok(loaded.only(wanted))
}

/// Loads an environment with all of its releases, as far as that is possible.
pub(super) fn read_all(
    tree: &dyn FileTree,
    revision: Revision,
    environment: &str,
) -> Result<Loaded, Vec<Finding>> {
    let environment = repo::resolve(tree, environment, &pleach_version())
        .map_err(|findings| with_excerpts(tree, findings))?;
    let (kinds, note) = KindTable::nearest(environment.cluster.kubernetes.as_deref());
    // All of them, whatever is asked for: releases share kinds, and no two of
    // them may have the same object.
    let all = render::render_environment(tree, &environment, &kinds);
    let findings: Vec<Finding> = environment
        .findings
        .iter()
        .cloned()
        .chain(note)
        .chain(all.iter().flat_map(|one| one.findings.iter().cloned()))
        .collect();
    let findings = with_excerpts(tree, findings);
    Ok(Loaded {
        rendered: environment.releases.iter().cloned().zip(all).collect(),
        environment,
        others: Vec::new(),
        revision,
        findings,
    })
}

fn with_excerpts(tree: &dyn FileTree, mut findings: Vec<Finding>) -> Vec<Finding> {
    excerpt::attach(tree, &mut findings);
    findings
}

pub(super) fn refused(target: &impl Display, findings: Vec<Finding>) -> CliError {
    let summary = findings::summary(&findings);
    CliError::from_findings(format!("{target} cannot be rendered: {summary}"), findings)
}

pub(super) fn no_release(
    environment: &ResolvedEnvironment,
    wanted: &str,
    names: &[&str],
) -> CliError {
    let finding = Finding::error(
        FindingKind::Repository,
        "unknown-release",
        format!("environment {} has no release {wanted}", environment.name),
    )
    .at(environment.origin.clone())
    .hint(match names {
        [] => "it has no releases".to_owned(),
        names => format!("it has {}", names.join(", ")),
    });
    let target = Target {
        environment: environment.name.clone(),
        release: Some(wanted.to_owned()),
    };
    refused(&target, vec![finding])
}

/// The version that `requires` in pleach.yaml is compared with.
pub(super) fn pleach_version() -> Version {
    let part = |text: &str| text.parse().unwrap_or_default();
    Version::new(
        part(env!("CARGO_PKG_VERSION_MAJOR")),
        part(env!("CARGO_PKG_VERSION_MINOR")),
        part(env!("CARGO_PKG_VERSION_PATCH")),
    )
}
