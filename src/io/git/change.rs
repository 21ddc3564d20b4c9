//! Copies of repositories that are elsewhere, for changes that are to be merged:
//! a branch and the commits of pull requests, with the history between them.
//!
//! Anybody may open a pull request, and a small download can unpack to anything.
//! So what is to be fetched is only said here, for a process that is bounded and may
//! break down.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use git2::{ErrorClass, Reference, Repository};
use serde::{Deserialize, Serialize};

use super::remote::{Credentials, LARGEST, Remote, Session, limit_silence, location};
use super::{GitError, unfetched};
use crate::io::files::{self, TemporaryFolder};

/// Downloads leave packs behind, and nothing collects them: after so many of
/// them the copy is made anew.
const DOWNLOADS: u32 = 100;
/// Likewise after so many bytes: a pull request may hold anything.
const MOST: usize = 2 * LARGEST;

/// What libgit2 calls packs that it is about to write.
const UNFINISHED: &str = "pack_git2_";

/// A copy of a repository, with whole histories.
pub struct ChangeMirror {
    remote: Remote,
    folder: Option<Arc<TemporaryFolder>>,
    downloads: u32,
    received: usize,
}

/// A change that is to be fetched. It is handed to another process, with the
/// credentials that this takes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fetch {
    url: String,
    credentials: Credentials,
    folder: PathBuf,
    /// The branch that the change is to be merged into.
    branch: String,
    /// The reference of the change in the repository.
    head: String,
    /// What the change is called in the copy.
    name: String,
}

/// What came of a fetch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Received {
    base: String,
    head: String,
    bytes: usize,
}

/// A change as it was fetched.
#[derive(Debug, Clone)]
pub struct FetchedChange {
    folder: Arc<TemporaryFolder>,
    /// The commit of the branch that it is to be merged into.
    pub base: String,
    /// The newest commit of the change.
    pub head: String,
}

impl FetchedChange {
    /// The folder of the copy: a bare repository. It is there as long as this is.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl ChangeMirror {
    /// A copy that has nothing yet.
    pub fn new(remote: Remote) -> Self {
        Self {
            remote,
            folder: None,
            downloads: 0,
            received: 0,
        }
    }

    /// What is to be fetched for a branch and what is to be merged into it: `head` is
    /// its reference in the repository. In the copy both can be named: the branch as
    /// it is called, the change by `name`. Blocks where a token is asked for.
    pub fn begin(&mut self, branch: &str, head: &str, name: &str) -> Result<Fetch, GitError> {
        if self.downloads >= DOWNLOADS || self.received >= MOST {
            self.folder = None;
        }
        let folder = if let Some(folder) = &self.folder {
            Arc::clone(folder)
        } else {
            let folder = Arc::new(files::temporary_folder()?);
            (self.downloads, self.received) = (0, 0);
            self.folder = Some(Arc::clone(&folder));
            folder
        };
        let fetch = Fetch {
            url: self.remote.url.clone(),
            credentials: self.remote.auth.credentials()?,
            folder: folder.path().to_owned(),
            branch: branch.to_owned(),
            head: head.to_owned(),
            name: name.to_owned(),
        };
        // The one before may have been killed.
        fetch.tidy_up()?;
        self.downloads += 1;
        Ok(fetch)
    }

    /// Notes what came of it.
    pub fn end(&mut self, received: Received) -> Option<FetchedChange> {
        self.received += received.bytes;
        Some(FetchedChange {
            folder: Arc::clone(self.folder.as_ref()?),
            base: received.base,
            head: received.head,
        })
    }

    /// Notes that the credentials are refused. Blocks where a token is asked for.
    pub fn refused(&self) {
        self.remote.auth.refused();
    }
}

/// Why a change could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// It may work another time.
    #[error(transparent)]
    Passing(#[from] GitError),
    /// The credentials are not taken.
    #[error(transparent)]
    Refused(GitError),
    /// The change, or the branch with its history, is larger than what is fetched.
    #[error(transparent)]
    TooLarge(GitError),
}

impl Fetch {
    /// What the branch and the change are called in the copy.
    fn references(&self) -> [String; 2] {
        [
            format!("refs/heads/{}", self.branch),
            format!("refs/remotes/{}", self.name),
        ]
    }

    /// Removes what a fetch into the same copy left behind that was killed: a pack that
    /// it wrote, and locks.
    fn tidy_up(&self) -> Result<(), GitError> {
        let packs = self.folder.join("objects/pack");
        for name in files::names(&packs)? {
            if name.to_string_lossy().starts_with(UNFINISHED) {
                files::remove_file(&packs.join(name))?;
            }
        }
        for reference in self.references() {
            // Of any other name nothing is fetched.
            if Reference::is_valid_name(&reference) {
                files::remove_file(&self.folder.join(format!("{reference}.lock")))?;
            }
        }
        Ok(())
    }

    /// Fetches. Blocks, and takes as much memory as the change wants.
    pub fn carry_out(self) -> Result<Received, FetchError> {
        limit_silence();
        let failed = |source: git2::Error| unfetched(&self.url, &source);
        // An empty folder becomes one, and one that is there stays as it is.
        let repository = Repository::init_bare(&self.folder).map_err(failed)?;
        let (url, _) = location(&self.url)?;
        let mut remote = repository.remote_anonymous(&url).map_err(failed)?;
        let [base_name, head_name] = self.references();
        let wanted = [
            format!("+{base_name}:{base_name}"),
            format!("+{}:{head_name}", self.head),
        ];
        let session = Session::with(&self.url, self.credentials)?;
        if let Err(error) = session.fetch(&mut remote, &wanted, false) {
            let is_too_large =
                error.class() == ErrorClass::NoMemory || remote.stats().received_bytes() > LARGEST;
            let error = failed(error);
            return Err(if is_too_large {
                FetchError::TooLarge(error)
            } else if session.is_refused() {
                FetchError::Refused(error)
            } else {
                FetchError::Passing(error)
            });
        }
        let commit = |name: &str| {
            let reference = repository.find_reference(name)?;
            Ok(reference.peel_to_commit()?.id().to_string())
        };
        Ok(Received {
            base: commit(&base_name).map_err(failed)?,
            head: commit(&head_name).map_err(failed)?,
            bytes: remote.stats().received_bytes(),
        })
    }
}
