//! Shared start of all commands: opens the repository at a revision and renders an environment.

pub use pleach_engine::load::Loaded;
pub(super) use pleach_engine::load::{pleach_version, read_all};
use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pleach_config::ResolvedEnvironment;
use pleach_model::engines::Engines;
use pleach_model::finding::Finding;
use pleach_model::kinds::KindTable;
use pleach_model::tree::{FileTree, KeyedTree};
use tokio_util::sync::CancellationToken;

use super::Target;
use super::error::{CliError, Kind};
use super::format::findings;
use pleach_engine::decryption::{FileKeys, SopsProgram};
use pleach_engine::engines::{EngineRunner, EngineSearch};
use pleach_engine::stop::Cause;
use pleach_engine::{
    load::{self, with_excerpts},
    preview::{End, Incomparable},
    refusals,
    stop::Stop,
};
use pleach_files::{WorkingTree, age_keys::AgeKeys};
use pleach_git::{GitError, Revision, Source};

/// File that marks the root of a repository.
const REPOSITORY_FILE: &str = "pleach.yaml";

/// Global options and environment variables.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Folder of the repository. `None`: the nearest parent folder with a repository.
    pub repo: Option<PathBuf>,
    /// Revision to read. `None`: the working tree.
    pub revision: Option<String>,
    /// Kubeconfig file. `None`: kubectl's default.
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. `None`: from the environment.
    pub context: Option<String>,
    /// Namespace with the keys for state in tenant namespaces. `None`: beside the state.
    pub key_namespace: Option<String>,
}

/// Arguments of every command.
#[derive(Debug, Clone)]
pub struct Context {
    /// Global options and environment variables.
    pub settings: Settings,
    /// Cancelled by the first Ctrl-C.
    pub cancel: CancellationToken,
    /// Program that renders charts and overlays.
    pub engines: Arc<EngineRunner>,
}

/// Repository at a revision.
pub struct Opened {
    /// Files of the revision.
    pub tree: Box<dyn FileTree>,
    /// Revision of the files.
    pub revision: Revision,
}

impl Context {
    /// Creates a context that is not cancelled.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            cancel: CancellationToken::new(),
            engines: Arc::new(EngineRunner::new(EngineSearch::of_process())),
        }
    }

    /// Returns the signal that stops a run at its next safe point.
    pub fn stop(&self) -> Stop {
        Stop::on(Cause::Interrupted, self.cancel.clone())
    }

    /// Opens the repository.
    pub fn open(&self) -> Result<Opened, CliError> {
        self.open_at(self.settings.revision.as_deref())
    }

    /// Returns the folder of the repository and its git repository.
    pub(super) fn source(&self) -> Result<Source, CliError> {
        Ok(Source::open(&self.folder()?)?)
    }

    /// Opens the repository at a revision, or its working tree.
    pub fn open_at(&self, revision: Option<&str>) -> Result<Opened, CliError> {
        self.open_with(revision, Keys::IfPossible)
    }

    fn open_with(&self, revision: Option<&str>, keys: Keys) -> Result<Opened, CliError> {
        let folder = self.folder()?;
        let source = Source::open(&folder)?;
        Ok(match revision {
            Some(revision) => {
                let tree = source.tree(revision)?;
                Opened {
                    revision: Revision::Commit(tree.commit()),
                    tree: Box::new(self.keyed(tree, keys)),
                }
            }
            None => Opened {
                revision: source.revision()?,
                tree: Box::new(self.keyed(source.working_tree(), keys)),
            },
        })
    }

    /// Returns one side of a comparison. `None` is the working tree.
    pub(super) fn end(&self, revision: Option<&str>, keys: Keys) -> Result<End, CliError> {
        let Opened { tree, revision: of } = self.open_with(revision, keys)?;
        Ok(End {
            name: revision.unwrap_or("working tree").to_owned(),
            tree,
            revision: of,
        })
    }

    /// Loads a target for a cluster. Fails with all findings if one of them is an error, so the
    /// result is complete. Encrypted values must be decrypted.
    pub fn load(&self, target: &Target) -> Result<Loaded, CliError> {
        sound(self.read_with(target, Keys::Required)?, target)
    }

    /// Loads a target as far as possible. The findings can contain errors, and manifests can be
    /// missing. Encrypted values without a key have stand-ins.
    pub fn read(&self, target: &Target) -> Result<Loaded, CliError> {
        self.read_with(target, Keys::IfPossible)
    }

    fn read_with(&self, target: &Target, keys: Keys) -> Result<Loaded, CliError> {
        if let Some(revision) = self.settings.revision.as_deref() {
            let Opened { tree, revision } = self.open_with(Some(revision), keys)?;
            return read(&*tree, revision, target);
        }
        // Render in parallel, because git compares all files with the commit.
        let folder = pleach_files::canonical(&self.folder()?).map_err(GitError::from)?;
        let tree = self.keyed(WorkingTree::new(&folder), keys);
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

    /// Refuses a target with objects that the API server would refuse.
    pub(super) fn ensure_accepted(&self, target: &Target, loaded: &Loaded) -> Result<(), CliError> {
        let tree = self.tree()?;
        let found = refusals::of(&*tree, loaded, |_| true);
        if found.is_empty() {
            return Ok(());
        }
        let summary = findings::summary(&found);
        let message = format!("the API server would refuse {target}: {summary}");
        let error = CliError::from_findings(message, found);
        if loaded.environment.cluster.kubernetes.is_some() {
            return Err(error);
        }
        let newest = KindTable::minors().last().unwrap_or_default();
        Err(error.hint(format!(
            "Kubernetes {newest} is assumed; declare a newer version as `cluster.kubernetes` of the environment"
        )))
    }

    /// Returns the files of the revision, or of the working tree.
    pub(super) fn tree(&self) -> Result<Box<dyn FileTree>, CliError> {
        let folder = pleach_files::canonical(&self.folder()?).map_err(GitError::from)?;
        let tree: Box<dyn FileTree> = match &self.settings.revision {
            Some(revision) => {
                Box::new(self.keyed(Source::open(&folder)?.tree(revision)?, Keys::IfPossible))
            }
            None => Box::new(self.keyed(WorkingTree::new(&folder), Keys::IfPossible)),
        };
        Ok(tree)
    }

    /// Resolves an environment without rendering it or comparing its files with git. `None` on
    /// errors, which [`Context::load`] reports.
    pub(super) fn resolved(&self, name: &str) -> Option<ResolvedEnvironment> {
        load::resolve(&*self.tree().ok()?, name).ok()
    }

    /// Reads an environment without rendering it. `None` outside of a repository, for commands that
    /// do not need one.
    pub fn environment(&self, name: &str) -> Result<Option<ResolvedEnvironment>, CliError> {
        if self.find_folder()?.is_none() {
            return Ok(None);
        }
        let Opened { tree, .. } = self.open()?;
        pleach_config::resolve(&*tree, name, &pleach_version())
            .map(Some)
            .map_err(|findings| {
                let target = Target {
                    environment: name.to_owned(),
                    release: None,
                };
                refused(&target, with_excerpts(&*tree, findings))
            })
    }

    /// Returns the names of all environments. Empty outside of a repository.
    pub fn environments(&self) -> Result<BTreeSet<String>, CliError> {
        if self.find_folder()?.is_none() {
            return Ok(BTreeSet::new());
        }
        let Opened { tree, .. } = self.open()?;
        Ok(pleach_config::environments(&*tree).into_iter().collect())
    }

    /// Returns the id of the repository, even if an environment is unreadable. `None` outside of a
    /// repository.
    pub(super) fn repository_id(&self) -> Result<Option<String>, CliError> {
        if self.find_folder()?.is_none() {
            return Ok(None);
        }
        let Opened { tree, .. } = self.open()?;
        pleach_config::repository_id(&*tree, &pleach_version()).map(Some).map_err(|findings| {
            CliError::from_findings(
                "cannot read the id of the repository, so releases of other repositories cannot be excluded".to_owned(),
                findings,
            )
        })
    }

    /// Returns whether the user named the repository or a revision explicitly.
    pub fn names_repository(&self) -> bool {
        self.settings.repo.is_some() || self.settings.revision.is_some()
    }

    /// Returns the folder of the repository.
    pub(super) fn folder(&self) -> Result<PathBuf, CliError> {
        if let Some(folder) = self.find_folder()? {
            return Ok(folder);
        }
        let here = pleach_files::canonical(Path::new("."))?;
        Err(CliError::new(
            Kind::Repository,
            format!(
                "no {REPOSITORY_FILE} in {} or its parent folders",
                here.display()
            ),
        )
        .hint("name the repository with --repo, or create one with `pleach init`"))
    }

    /// Adds the keys of the user and the program for charts to a tree.
    pub(super) fn keyed<T: FileTree>(&self, tree: T, keys: Keys) -> KeyedTree<T, FileKeys> {
        #[expect(clippy::disallowed_methods, reason = "settings are read here")]
        let age = || AgeKeys::of_user(&|name| std::env::var_os(name));
        let tree = match keys {
            Keys::Required => {
                KeyedTree::decrypted(tree, FileKeys::new(age(), SopsProgram::of_user()))
            }
            Keys::IfPossible => KeyedTree::new(tree, FileKeys::new(age(), None)),
            Keys::Unused => KeyedTree::new(tree, FileKeys::default()),
        };
        tree.with_engines(Arc::clone(&self.engines) as Arc<dyn Engines>)
    }

    fn find_folder(&self) -> Result<Option<PathBuf>, CliError> {
        if let Some(folder) = &self.settings.repo {
            return Ok(Some(folder.clone()));
        }
        let here = pleach_files::canonical(Path::new("."))?;
        for folder in here.ancestors() {
            if pleach_files::exists(&folder.join(REPOSITORY_FILE))? {
                return Ok(Some(folder.to_owned()));
            }
        }
        Ok(None)
    }
}

/// Use of the user's age keys for a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    /// Every encrypted value must be decrypted, also by the program of the user.
    Required,
    /// A value that no key fits has a stand-in.
    IfPossible,
    /// No key is read, and every encrypted value has a stand-in.
    Unused,
}

/// Fails if there are errors.
pub(super) fn sound(loaded: Loaded, target: &Target) -> Result<Loaded, CliError> {
    if loaded.is_sound() {
        Ok(loaded)
    } else {
        Err(refused(target, loaded.findings))
    }
}

/// Loads a target from a tree as far as possible.
pub(super) fn read(
    tree: &dyn FileTree,
    revision: Revision,
    target: &Target,
) -> Result<Loaded, CliError> {
    let loaded = read_all(tree, revision, &target.environment)
        .map_err(|findings| refused(target, findings))?;
    let Some(requested) = &target.release else {
        return Ok(loaded);
    };
    if !loaded.names().contains(&requested.as_str()) {
        return Err(no_release(&loaded.environment, requested));
    }
    Ok(loaded.only(requested))
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

pub(super) fn no_release(environment: &ResolvedEnvironment, requested: &str) -> CliError {
    let target = Target {
        environment: environment.name.clone(),
        release: Some(requested.to_owned()),
    };
    refused(&target, vec![load::no_release(environment, requested)])
}
