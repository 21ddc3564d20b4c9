//! Copies of remote repositories for changes to merge: a branch, the commits of pull requests, and
//! the history between them.
//!
//! Any user can open a pull request, and a small download can unpack to a huge one. So each
//! download runs in a process with limits, and each commit has its own limit. A commit that exceeds
//! it is downloaded only once.

use std::path::Path;
use std::sync::Arc;

use git2::Repository;
use pleach_reconciler::config::Disk;

use super::budget::{Budget, SHORT, Store};
use super::fetch::{Carrier, Download, Failure, Fetch, FetchError, Peer};
use super::remote::{DEADLINE, LARGEST, Remote};
use super::too_large::TooLarge;
use super::{GitError, unfetched};

/// Number of downloads after which the copy is recreated. Nothing removes superfluous packs.
const DOWNLOADS: u32 = 100;

/// Copy of a repository with full history.
pub struct ChangeMirror {
    remote: Remote,
    /// Disk budget, including previous copies that are still read.
    budget: Budget,
    /// Maximum download for a commit of a fork, in bytes.
    fork_head: u64,
    too_large: TooLarge,
    store: Option<Arc<Store>>,
    downloads: u32,
}

/// Change to fetch.
#[derive(Debug, Clone)]
pub struct Change {
    /// Target branch.
    pub branch: String,
    /// git reference of the change.
    pub reference: String,
    /// Newest commit, as reported by the forge.
    pub head: String,
    /// Name in the copy.
    pub name: String,
    /// Whether the source is another repository.
    pub is_fork: bool,
}

/// Fetched change.
#[derive(Debug, Clone)]
pub struct FetchedChange {
    store: Arc<Store>,
    /// Newest commit of the target branch.
    pub base: String,
    /// Newest commit of the change.
    pub head: String,
}

impl FetchedChange {
    /// Returns the path of the bare repository. It exists at least as long as this value.
    pub fn folder(&self) -> &Path {
        self.store.path()
    }
}

/// Error of fetching a change.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// Temporary failure.
    #[error(transparent)]
    Passing(#[from] GitError),
    /// The change, or the branch with its history, is larger than its limit.
    #[error("{0}")]
    TooLarge(String),
}

/// Failed download.
struct Failed {
    error: FetchError,
    /// Whether the disk budget lowered the limit.
    is_short: bool,
}

/// Store for a fetch.
struct Copy {
    store: Arc<Store>,
    /// Whether the store is new and empty.
    is_new: bool,
}

impl ChangeMirror {
    /// Creates an empty copy within a disk budget.
    pub fn new(remote: Remote, disk: Disk) -> Self {
        Self {
            too_large: TooLarge::of(&pleach_files::temporary(), &remote.url),
            remote,
            budget: Budget::of(disk.budget),
            fork_head: disk.fork_head,
            store: None,
            downloads: 0,
        }
    }

    /// Fetches a branch and a change to merge into it. In the copy, the branch has its own name and
    /// the change has the given name. Blocks.
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
            // Commits of previous changes use the space.
            drop(copy);
            self.store = None;
            copy = self.copy()?;
            fetched = self.try_fetch((carrier, &from), (&copy, change), limit)?;
        }
        fetched.map_err(|failed| self.failed(failed, &copy.store, (&change.head, limit)))
    }

    /// Returns the current store, or an empty one if it must be replaced.
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
            failed.error.message = format!("branch {}: {}", change.branch, failed.error.message);
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
        let received = self.remote.receive_by(carrier, &order);
        store.clean_up()?;
        Ok(received.map(drop).map_err(|error| Failed {
            is_short: largest < most && error.failure == Failure::TooLarge,
            error,
        }))
    }

    /// Converts the error of a change. Records the commit if no later attempt can succeed.
    fn failed(&mut self, failed: Failed, store: &Store, (head, limit): (&str, u64)) -> ChangeError {
        let Failed {
            mut error,
            is_short,
        } = failed;
        // A later attempt can succeed once previous copies are removed.
        let is_final = error.failure == Failure::TooLarge && (!is_short || store.is_alone());
        if is_short {
            error.message.push_str(SHORT);
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
