//! Copies of repositories that are elsewhere, for changes that are to be merged:
//! a branch and the commits of pull requests, with the history between them.
//!
//! Anybody may open a pull request, and a small download can unpack to anything.
//! So each connection is an order for a process with limits, and each commit has a
//! limit of its own. A commit that exceeds it is downloaded once.

use std::path::Path;
use std::sync::Arc;

use git2::Repository;
use pleach_domain::repo::controller::Disk;

use super::budget::{Budget, SHORT, Store};
use super::fetch::{Carrier, Download, Failure, Fetch, FetchError, Peer};
use super::remote::{DEADLINE, LARGEST, Remote};
use super::too_large::TooLarge;
use super::{GitError, unfetched};
use crate::io::files;

/// Downloads leave packs behind, and nothing collects them: after so many of
/// them the copy is made anew.
const DOWNLOADS: u32 = 100;

/// A copy of a repository, with whole histories.
pub struct ChangeMirror {
    remote: Remote,
    /// The disk space of the copy. Previous copies that are still read count too.
    budget: Budget,
    /// The most that is downloaded for a commit of a fork, in bytes.
    fork_head: u64,
    too_large: TooLarge,
    store: Option<Arc<Store>>,
    downloads: u32,
}

/// A change that is to be fetched.
#[derive(Debug, Clone)]
pub struct Change {
    /// The branch that it is to be merged into.
    pub branch: String,
    /// The reference of the change in the repository.
    pub reference: String,
    /// Its newest commit, as the forge knows it.
    pub head: String,
    /// The name that it gets in the copy.
    pub name: String,
    /// Whether it comes from another repository.
    pub is_fork: bool,
}

/// A change as it was fetched.
#[derive(Debug, Clone)]
pub struct FetchedChange {
    store: Arc<Store>,
    /// The commit of the branch that it is to be merged into.
    pub base: String,
    /// The newest commit of the change.
    pub head: String,
}

impl FetchedChange {
    /// The folder of the copy: a bare repository. It is there as long as this is.
    pub fn folder(&self) -> &Path {
        self.store.path()
    }
}

/// Why a change was not fetched.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// It may work another time.
    #[error(transparent)]
    Passing(#[from] GitError),
    /// The change, or the branch with its history, is larger than its limit.
    #[error("{0}")]
    TooLarge(String),
}

/// A failed download.
struct Failed {
    error: FetchError,
    /// Whether the disk budget gave less than the usual limit.
    is_short: bool,
}

/// A copy that a change is fetched into.
struct Copy {
    store: Arc<Store>,
    /// Whether it was empty.
    is_new: bool,
}

impl ChangeMirror {
    /// A copy that has nothing yet, within this disk space.
    pub fn new(remote: Remote, disk: Disk) -> Self {
        Self {
            too_large: TooLarge::of(&files::temporary(), &remote.url),
            remote,
            budget: Budget::of(disk.budget),
            fork_head: disk.fork_head,
            store: None,
            downloads: 0,
        }
    }

    /// Fetches a branch and a change that is to be merged into it. In the copy both can be
    /// named: the branch by its own name, the change by the name that it was given. Blocks.
    pub fn fetch(
        &mut self,
        carrier: &Carrier<'_>,
        change: &Change,
    ) -> Result<FetchedChange, ChangeError> {
        let most = if change.is_fork {
            self.fork_head
        } else {
            LARGEST
        };
        let limit = most.min(self.budget.largest());
        if let Some(reason) = self.too_large.reason(&change.head, limit) {
            return Err(ChangeError::TooLarge(reason.to_owned()));
        }
        let (from, _) = self.remote.location()?;
        let mut copy = self.copy()?;
        let mut fetched = self.try_fetch((carrier, &from), (&copy, change), limit)?;
        let is_short = |failed: &Failed| failed.is_short && !copy.is_new;
        if fetched.as_ref().is_err_and(is_short) {
            // Previous changes take the space.
            drop(copy);
            self.store = None;
            copy = self.copy()?;
            fetched = self.try_fetch((carrier, &from), (&copy, change), limit)?;
        }
        fetched.map_err(|failed| self.failed(failed, &copy.store, (&change.head, limit)))
    }

    /// The copy that is there, or an empty one in its place.
    fn copy(&mut self) -> Result<Copy, GitError> {
        if self.downloads >= DOWNLOADS || self.store.as_ref().is_some_and(|one| one.is_worn()) {
            self.store = None;
        }
        if let Some(store) = &self.store {
            self.downloads += 1;
            return Ok(Copy {
                store: Arc::clone(store),
                is_new: false,
            });
        }
        let store = Arc::new(Store::make(&self.budget)?);
        self.downloads = 1;
        self.store = Some(Arc::clone(&store));
        Ok(Copy {
            store,
            is_new: true,
        })
    }

    fn try_fetch(
        &self,
        (carrier, from): (&Carrier<'_>, &str),
        (copy, change): (&Copy, &Change),
        limit: u64,
    ) -> Result<Result<FetchedChange, Failed>, GitError> {
        let Copy { store, is_new } = copy;
        let base = format!("refs/heads/{}", change.branch);
        let head = format!("refs/remotes/{}", change.name);
        let largest = LARGEST.min(self.budget.largest());
        let peer = self.remote.peer(from)?;
        let fetched = self.download(carrier, (store, &peer), (&base, &base), largest)?;
        if let Err(mut failed) = fetched {
            failed.error.said = format!("branch {}: {}", change.branch, failed.error.said);
            return Ok(Err(failed));
        }
        if *is_new {
            store.note_complete();
        }
        let named = (&*change.reference, &*head);
        if let Err(failed) = self.download(carrier, (store, &peer), named, limit)? {
            return Ok(Err(failed));
        }
        let failed = |source: git2::Error| unfetched(&self.remote.url, &source);
        let repository = Repository::open_bare(store.path()).map_err(failed)?;
        let commit = |name: &str| repository.refname_to_id(name).map_err(failed);
        Ok(Ok(FetchedChange {
            base: commit(&base)?.to_string(),
            head: commit(&head)?.to_string(),
            store: Arc::clone(store),
        }))
    }

    fn download(
        &self,
        carrier: &Carrier<'_>,
        (store, peer): (&Store, &Peer),
        (there, here): (&str, &str),
        most: u64,
    ) -> Result<Result<(), Failed>, GitError> {
        let largest = store.promise(most);
        let download = Download {
            refspecs: vec![format!("+{there}:{here}")],
            shallow: false,
            largest,
            time: DEADLINE,
            background: true,
        };
        let order = Fetch::download(peer.clone(), store.path().to_owned(), download);
        let received = self.remote.carry(carrier, &order);
        store.settle()?;
        Ok(received.map(drop).map_err(|error| Failed {
            is_short: largest < most && error.failure == Failure::TooLarge,
            error,
        }))
    }

    /// The error of a change. Remembers a commit that no other try can fetch.
    fn failed(&mut self, failed: Failed, store: &Store, (head, limit): (&str, u64)) -> ChangeError {
        let Failed {
            mut error,
            is_short,
        } = failed;
        // Previous copies that are still read leave more space another time.
        let is_final = error.failure == Failure::TooLarge && (!is_short || store.is_alone());
        if is_short {
            error.said.push_str(SHORT);
        }
        let error = error.of(&self.remote.url);
        if !is_final {
            return ChangeError::Passing(error);
        }
        let reason = error.to_string();
        self.too_large.add(head, limit, &reason);
        ChangeError::TooLarge(reason)
    }
}
