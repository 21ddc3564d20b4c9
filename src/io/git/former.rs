//! Commits that a branch had before its newest one, for who has kept their names.
//!
//! A name may come from anywhere: what counts is the history of the branch, and
//! the signature of the commit where commits have to be signed.

use std::collections::BTreeSet;
use std::sync::Arc;

use git2::{Repository, Sort};

use super::budget::{Budget, Store};
use super::fetch::{Carrier, Download, Fetch};
use super::mirror::Reader;
use super::remote::{DEADLINE, LARGEST, Remote};
use super::signature::Signatures;
use super::{GitError, unfetched};

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
    /// may know the newest commit only. Blocks; this process talks to the server.
    pub fn fetch(remote: &Remote, branch: &str) -> Result<Self, GitError> {
        Self::fetch_by(&Fetch::execute, &Budget::of(2 * LARGEST), remote, branch)
    }

    /// Likewise, within a disk budget. Blocks.
    pub fn fetch_by(
        carrier: &Carrier<'_>,
        budget: &Budget,
        remote: &Remote,
        branch: &str,
    ) -> Result<Self, GitError> {
        let (from, prefix) = remote.location()?;
        let store = Store::make(budget)?;
        let download = Download {
            refspecs: vec![format!("+refs/heads/{branch}:{BRANCH}")],
            shallow: false,
            largest: store.promise(LARGEST),
            time: DEADLINE,
            background: false,
        };
        let order = Fetch::download(remote.peer(&from)?, store.path().to_owned(), download);
        let received = remote.carry(carrier, &order);
        store.settle()?;
        received.map_err(|error| error.of(&remote.url))?;
        // Nothing is fetched of a branch that is gone.
        Repository::open_bare(store.path())
            .and_then(|repository| repository.refname_to_id(BRANCH))
            .map_err(|source| unfetched(&remote.url, &source))?;
        Ok(Self {
            signatures: remote.keys.clone().map(Signatures::new),
            reader: Reader {
                store: Arc::new(store),
                prefix: prefix.into(),
            },
        })
    }

    /// Those of the commits that are named which the branch had, newest first. Blocks.
    pub fn had(&self, named: &BTreeSet<String>) -> Result<Vec<String>, GitError> {
        let path = self.reader.store.path();
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
            Some(signatures) => signatures.distrusts(self.reader.store.path(), commit),
            None => Ok(None),
        }
    }

    /// Reads the commits.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }
}
