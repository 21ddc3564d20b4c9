//! Commits that a branch had before its newest one, for who has kept their names.
//!
//! A name may come from anywhere: what counts is the history of the branch, and
//! the signature of the commit where commits have to be signed.

use std::collections::BTreeSet;
use std::sync::Arc;

use git2::{Repository, Sort};

use super::mirror::Reader;
use super::remote::{LARGEST, Remote, Session, limit_silence};
use super::signature::Signatures;
use super::{GitError, unfetched};
use crate::io::files;

/// What the branch is called in the copy.
const BRANCH: &str = "refs/pleach/former";

/// The history of a branch, as it was when it was fetched.
#[derive(Debug)]
pub struct Former {
    signatures: Option<Signatures>,
    reader: Reader,
}

impl Former {
    /// Fetches the history into a copy of its own, as the one that follows the branch
    /// may know the newest commit only. Blocks.
    pub fn fetch(remote: &Remote, branch: &str) -> Result<Self, GitError> {
        limit_silence();
        let failed = |source: git2::Error| unfetched(&remote.url, &source);
        let (url, prefix) = remote.location()?;
        let folder = Arc::new(files::temporary_folder()?);
        let repository = Repository::init_bare(folder.path()).map_err(failed)?;
        let mut from = repository.remote_anonymous(&url).map_err(failed)?;
        let session = Session::open(remote, LARGEST)?;
        let whole = format!("+refs/heads/{branch}:{BRANCH}");
        session.fetch(&mut from, &[whole], false).map_err(failed)?;
        // Nothing is fetched of a branch that is gone.
        repository.refname_to_id(BRANCH).map_err(failed)?;
        Ok(Self {
            signatures: remote.keys.clone().map(Signatures::new),
            reader: Reader {
                folder,
                prefix: prefix.into(),
            },
        })
    }

    /// Those of the commits that are named which the branch had, newest first. Blocks.
    pub fn had(&self, named: &BTreeSet<String>) -> Result<Vec<String>, GitError> {
        let path = self.reader.folder.path();
        let failed = |source| GitError::Open {
            path: path.to_owned(),
            source,
        };
        let repository = Repository::open_bare(path).map_err(failed)?;
        let mut history = repository.revwalk().map_err(failed)?;
        history
            .set_sorting(Sort::TOPOLOGICAL | Sort::TIME)
            .map_err(failed)?;
        history.push_ref(BRANCH).map_err(failed)?;
        Ok(history
            .map_while(Result::ok)
            .map(|commit| commit.to_string())
            .filter(|commit| named.contains(commit))
            .take(named.len())
            .collect())
    }

    /// Why one of these commits does not count, if it is not signed as it has to be; an
    /// error where nobody can tell now. Blocks.
    pub fn distrusts(&mut self, commit: &str) -> Result<Option<String>, GitError> {
        match &mut self.signatures {
            Some(signatures) => signatures.distrusts(self.reader.folder.path(), commit),
            None => Ok(None),
        }
    }

    /// Reads the commits.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }
}
