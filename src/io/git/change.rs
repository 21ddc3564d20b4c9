//! Copies of repositories that are elsewhere, for changes that are to be merged:
//! a branch and the commits of pull requests, with the history between them.

use std::path::Path;
use std::sync::Arc;

use git2::Repository;

use super::mirror::{Remote, Session};
use super::{GitError, unfetched};
use crate::io::files::{self, TemporaryFolder};

/// Downloads leave packs behind, and nothing collects them: after so many of
/// them the copy is made anew.
const DOWNLOADS: u32 = 100;
/// Likewise after so many bytes: a pull request may hold anything.
const LARGEST: usize = 2 << 30;

/// A copy of a repository, with whole histories.
pub struct ChangeMirror {
    remote: Remote,
    folder: Option<Arc<TemporaryFolder>>,
    downloads: u32,
    received: usize,
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
        super::mirror::limit_silence();
        Self {
            remote,
            folder: None,
            downloads: 0,
            received: 0,
        }
    }

    /// Fetches a branch, and what is to be merged into it: `head` is its
    /// reference in the repository. In the copy both can be named: the branch as
    /// it is called, the change by `name`.
    pub fn fetch(
        &mut self,
        branch: &str,
        head: &str,
        name: &str,
    ) -> Result<FetchedChange, GitError> {
        if self.downloads >= DOWNLOADS || self.received >= LARGEST {
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
        let failed = |source: git2::Error| unfetched(&self.remote.url, &source);
        // An empty folder becomes one, and one that is there stays as it is.
        let repository = Repository::init_bare(folder.path()).map_err(failed)?;
        let (url, _) = self.remote.location()?;
        let mut remote = repository.remote_anonymous(&url).map_err(failed)?;
        let head_name = format!("refs/remotes/{name}");
        let base_name = format!("refs/heads/{branch}");
        let wanted = [
            format!("+refs/heads/{branch}:{base_name}"),
            format!("+{head}:{head_name}"),
        ];
        let session = Session::open(&self.remote)?;
        let fetched = session.fetch(&mut remote, &wanted, false);
        self.downloads += 1;
        self.received += remote.stats().received_bytes();
        fetched.map_err(failed)?;
        let commit = |name: &str| {
            let reference = repository.find_reference(name)?;
            Ok(reference.peel_to_commit()?.id().to_string())
        };
        Ok(FetchedChange {
            base: commit(&base_name).map_err(failed)?,
            head: commit(&head_name).map_err(failed)?,
            folder,
        })
    }
}
