//! Earlier commits of a branch, for callers that recorded their ids.
//!
//! An id can come from any source. Only the history of the branch counts, and the signature of the
//! commit if signatures are required.

use std::collections::BTreeSet;
use std::sync::Arc;

use git2::{Repository, Sort};

use super::budget::{Budget, Store};
use super::fetch::{Carrier, Download, Fetch};
use super::mirror::Reader;
use super::remote::{DEADLINE, LARGEST, Remote};
use super::signature::Signatures;
use super::{GitError, unfetched};

/// Reference of the branch in the copy.
const BRANCH: &str = "refs/pleach/previous";

/// History of a branch at the time of the fetch.
#[derive(Debug)]
pub struct BranchHistory {
    signatures: Option<Signatures>,
    reader: Reader,
}

impl BranchHistory {
    /// Fetches the history into a separate copy, because the mirror can be shallow. Blocks and
    /// connects from this process.
    pub fn fetch(remote: &Remote, branch: &str) -> Result<Self, GitError> {
        Self::fetch_by(&Fetch::execute, &Budget::of(2 * LARGEST), remote, branch)
    }

    /// Fetches the history within a disk budget. Blocks.
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
        let received = remote.receive_by(carrier, &order);
        store.clean_up()?;
        received.map_err(|error| error.of(&remote.url))?;
        // A deleted branch fetches nothing.
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

    /// Returns the commits among `named` that the branch contained, newest first. Blocks.
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

    /// Returns the reason if a commit lacks a required signature. Fails if the signature cannot be
    /// checked now. Blocks.
    pub fn distrusts(&mut self, commit: &str) -> Result<Option<String>, GitError> {
        match &mut self.signatures {
            Some(signatures) => signatures.distrusts(self.reader.store.path(), commit),
            None => Ok(None),
        }
    }

    /// Returns a reader of the commits.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }
}
