//! What every command begins with: the repository at a revision, an
//! environment of it, and what it renders to.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use pleach_domain::finding::Finding;
use pleach_domain::kinds::KindTable;
use pleach_domain::repo::{self, FileTree, ResolvedEnvironment};
use tokio_util::sync::CancellationToken;

use super::Target;
use super::error::{CliError, Kind};
use super::format::findings;
pub use crate::engine::load::Loaded;
use crate::engine::load::{self, with_excerpts};
pub(super) use crate::engine::load::{pleach_version, read_all};
use crate::engine::preview::{End, Incomparable};
use crate::engine::refusals;
use crate::engine::stop::{Cause, Stop};
use crate::io::files::{self, WorkingTree};
use crate::io::git::{GitError, Revision, Source};

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
    /// Namespace that has the key of state in the namespaces of tenants; beside the
    /// state when left out.
    pub key_namespace: Option<String>,
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

    /// One of two revisions that are compared; the working tree when left out.
    pub(super) fn end(&self, revision: Option<&str>) -> Result<End, CliError> {
        let Opened { tree, revision: of } = self.open_at(revision)?;
        Ok(End {
            name: revision.unwrap_or("working tree").to_owned(),
            tree,
            revision: of,
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
        if self.settings.revision.is_some() {
            let Opened { tree, revision } = self.open()?;
            return read(&*tree, revision, target);
        }
        // git looks at all files of the working tree too, to see whether they are
        // those of its commit: meanwhile they are rendered.
        let folder = files::canonical(&self.folder()?).map_err(GitError::from)?;
        let tree = WorkingTree::new(&folder);
        let (loaded, revision) = rayon::join(
            || read(&tree, Revision::None, target),
            || Source::open(&folder)?.revision(),
        );
        let revision = revision?;
        Ok(Loaded {
            revision,
            ..loaded?
        })
    }

    /// Refuses to go on with objects of a target that the API server would refuse.
    pub(super) fn ensure_accepted(&self, target: &Target, loaded: &Loaded) -> Result<(), CliError> {
        let folder = files::canonical(&self.folder()?).map_err(GitError::from)?;
        let tree: Box<dyn FileTree> = match &self.settings.revision {
            Some(revision) => Box::new(Source::open(&folder)?.tree(revision)?),
            None => Box::new(WorkingTree::new(&folder)),
        };
        let found = refusals::of(&*tree, loaded, |_| true);
        if found.is_empty() {
            return Ok(());
        }
        let summary = findings::summary(&found);
        let message = format!("{target} would be refused by the API server: {summary}");
        let error = CliError::from_findings(message, found);
        if loaded.environment.cluster.kubernetes.is_some() {
            return Err(error);
        }
        let newest = KindTable::minors().last().unwrap_or_default();
        Err(error.hint(format!(
            "Kubernetes {newest} is assumed; a newer one is declared as `cluster.kubernetes` of the environment"
        )))
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

    /// Names of the environments of the repository; empty outside of one.
    pub fn environments(&self) -> Result<BTreeSet<String>, CliError> {
        if self.find_folder()?.is_none() {
            return Ok(BTreeSet::new());
        }
        let Opened { tree, .. } = self.open()?;
        Ok(repo::environments(&*tree).into_iter().collect())
    }

    /// The id of the repository, also where an environment of it cannot be read; none
    /// where there is no repository.
    pub(super) fn repository_id(&self) -> Result<Option<String>, CliError> {
        if self.find_folder()?.is_none() {
            return Ok(None);
        }
        let Opened { tree, .. } = self.open()?;
        repo::repository_id(&*tree, &pleach_version()).map(Some).map_err(|findings| {
            CliError::from_findings(
                "the id of the repository cannot be read, so releases of other repositories cannot be left out".to_owned(),
                findings,
            )
        })
    }

    /// Whether somebody named the repository or a revision of it, and did not
    /// just happen to be in one.
    pub fn names_repository(&self) -> bool {
        self.settings.repo.is_some() || self.settings.revision.is_some()
    }

    /// The folder of the repository.
    pub(super) fn folder(&self) -> Result<PathBuf, CliError> {
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
    pub(super) fn sound(self, target: &Target) -> Result<Self, CliError> {
        if self.is_sound() {
            Ok(self)
        } else {
            Err(refused(target, self.findings))
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
    if !loaded.names().contains(&wanted.as_str()) {
        return Err(no_release(&loaded.environment, wanted));
    }
    Ok(loaded.only(wanted))
}

impl From<Incomparable> for CliError {
    fn from(error: Incomparable) -> Self {
        let failed = Self::from_findings(error.message, error.findings);
        match error.hint {
            Some(hint) => failed.hint(hint),
            None => failed,
        }
    }
}

pub(super) fn refused(target: &impl Display, findings: Vec<Finding>) -> CliError {
    let summary = findings::summary(&findings);
    CliError::from_findings(format!("{target} cannot be rendered: {summary}"), findings)
}

pub(super) fn no_release(environment: &ResolvedEnvironment, wanted: &str) -> CliError {
    let target = Target {
        environment: environment.name.clone(),
        release: Some(wanted.to_owned()),
    };
    refused(&target, vec![load::no_release(environment, wanted)])
}
