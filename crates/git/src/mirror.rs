//! Copies of remote repositories: bare, shallow if the transport supports it, and only with the
//! requested branches.
//!
//! Calls block. Each connection has a deadline and a size limit. A [`Carrier`] executes it in
//! another process, which is killed at the deadline.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use git2::Repository;
use pleach_reconciler::config::Transport;
use serde::{Deserialize, Serialize};

use super::budget::{Budget, SHORT, Store};
use super::fetch::{Carrier, Download, Failure, Fetch, FetchError, Peer};
use super::remote::{DEADLINE, LARGEST, Remote};
use super::signature::Signatures;
use super::{GitError, GitTree, unfetched};

/// How long one call fetches branches one by one.
const SEQUENTIAL: Duration = Duration::from_mins(1);
/// Delay before a commit that exceeded its limits is fetched again.
const AGAIN: Duration = Duration::from_mins(30);

/// Limits of a mirror.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum size of one download, in bytes.
    pub download: u64,
    /// Time-out of a connection.
    pub time: Duration,
    /// Number of downloads after which the mirror is recreated. Nothing removes superfluous packs.
    pub downloads: u32,
    /// Disk budget. The mirror is recreated earlier if superfluous packs take much of it.
    pub budget: Budget,
}

impl Limits {
    /// Returns the default limits within a disk budget.
    pub fn of(budget: Budget) -> Self {
        Self {
            download: LARGEST,
            time: DEADLINE,
            downloads: 200,
            budget,
        }
    }
}

/// Copy of a repository.
pub struct Mirror {
    remote: Remote,
    limits: Limits,
    signatures: Option<Signatures>,
    reader: Option<Reader>,
    downloads: u32,
    /// Whether to fetch branches one by one, because one of them exceeds its limits.
    is_sequential: bool,
    /// Branches that exceed their limits.
    beyond: BTreeMap<String, Beyond>,
}

/// Commit that exceeds its limits.
struct Beyond {
    commit: String,
    why: String,
    since: Instant,
}

/// Reader of a mirror's commits. Works during a fetch or after the mirror is recreated.
#[derive(Debug, Clone)]
pub struct Reader {
    pub(super) store: Arc<Store>,
    /// Path of the pleach repository within the git repository.
    pub(super) prefix: Arc<str>,
}

/// Location of commits, which can be sent to another process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Place {
    folder: PathBuf,
    prefix: String,
}

/// Result of a fetch.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// Commits of the requested branches.
    pub heads: BTreeMap<String, String>,
    /// Branches whose commit lacks a required signature, with the reason.
    pub distrusted: BTreeMap<String, String>,
    /// Requested branches whose newest commit could not be fetched, with the reason. `heads` then
    /// has the previous commit, if any.
    pub behind: BTreeMap<String, String>,
    /// Names of all branches.
    pub branches: Vec<String>,
    /// Default branch of the repository.
    pub default_branch: Option<String>,
    /// Reader of these commits.
    pub reader: Reader,
}

impl Mirror {
    /// Creates an empty mirror with its own disk budget.
    pub fn new(remote: Remote) -> Self {
        Self::within(remote, Limits::of(Budget::of(2 * LARGEST)))
    }

    /// Creates an empty mirror within these limits.
    pub fn within(remote: Remote, limits: Limits) -> Self {
        Self {
            signatures: remote.keys.clone().map(Signatures::new),
            remote,
            limits,
            reader: None,
            downloads: 0,
            is_sequential: false,
            beyond: BTreeMap::new(),
        }
    }

    /// Fetches the requested branches, from this process.
    pub fn fetch(&mut self, is_selected: impl Fn(&str) -> bool) -> Result<Fetched, GitError> {
        self.fetch_by(&Fetch::execute, is_selected)
    }

    /// Fetches the requested branches with an executor.
    pub fn fetch_by(
        &mut self,
        carrier: &Carrier<'_>,
        is_selected: impl Fn(&str) -> bool,
    ) -> Result<Fetched, GitError> {
        // The temporary folder could have been cleaned up.
        let is_gone = |reader: &Reader| Repository::open_bare(reader.store.path()).is_err();
        let is_worn = |reader: &Reader| reader.store.is_worn();
        if self.downloads >= self.limits.downloads
            || self.reader.as_ref().is_some_and(is_gone)
            || self.reader.as_ref().is_some_and(is_worn)
        {
            self.reader = None;
        }
        let (from, prefix) = self.remote.location()?;
        let reader = if let Some(reader) = &self.reader {
            reader.clone()
        } else {
            self.downloads = 0;
            Reader {
                store: Arc::new(Store::make(&self.limits.budget)?),
                prefix: prefix.into(),
            }
        };
        let folder = reader.store.path();
        let peer = self.remote.peer(&from)?;
        let listing = Fetch::list(peer.clone(), folder.to_owned(), self.limits.time);
        let listed = self.remote.receive_by(carrier, &listing);
        let listed = listed.map_err(|error| error.of(&self.remote.url))?;
        let there: BTreeMap<&String, &String> = listed
            .branches
            .iter()
            .filter(|(branch, _)| is_selected(branch))
            .collect();
        let failed = |source: git2::Error| unfetched(&self.remote.url, &source);
        let repository = Repository::open_bare(folder).map_err(failed)?;
        let missing: BTreeMap<&str, &str> = there
            .iter()
            .filter(|(branch, commit)| local(&repository, branch).as_ref() != Some(**commit))
            .map(|(branch, commit)| (branch.as_str(), commit.as_str()))
            .collect();
        let was_sequential = self.is_sequential;
        let behind = self.download((carrier, peer), &reader.store, &missing)?;
        if self.reader.is_none() || was_sequential {
            reader.store.note_complete();
            self.reader = Some(reader.clone());
        }
        // New packs could have arrived since the repository was opened.
        let failed = |source: git2::Error| unfetched(&self.remote.url, &source);
        let repository = Repository::open_bare(folder).map_err(failed)?;
        // A branch can move between listing and download.
        let heads = there
            .into_keys()
            .filter_map(|branch| {
                let commit = local(&repository, branch)?;
                Some((branch.clone(), commit))
            })
            .collect();
        let signatures = self.signatures.as_mut();
        let distrusted = signatures.map(|one| one.distrusted(folder, &heads));
        Ok(Fetched {
            heads,
            distrusted: distrusted.unwrap_or_default(),
            behind,
            branches: listed.branches.into_keys().collect(),
            default_branch: listed.default_branch,
            reader,
        })
    }

    /// Downloads branches at these commits, all together. After a call that exceeded the limits,
    /// the next one downloads them one by one, so that a large branch does not block the others.
    /// Returns the missing branches with the reason.
    fn download(
        &mut self,
        (carrier, peer): (&Carrier<'_>, Peer),
        store: &Store,
        missing: &BTreeMap<&str, &str>,
    ) -> Result<BTreeMap<String, String>, GitError> {
        self.beyond.retain(|branch, beyond| {
            missing.get(branch.as_str()) == Some(&beyond.commit.as_str())
                && beyond.since.elapsed() < AGAIN
        });
        let mut behind: BTreeMap<String, String> = self
            .beyond
            .iter()
            .map(|(branch, beyond)| (branch.clone(), beyond.why.clone()))
            .collect();
        let branches = missing.keys().copied();
        let branches: Vec<&str> = branches
            .filter(|branch| !behind.contains_key(*branch))
            .collect();
        if branches.is_empty() {
            self.is_sequential = false;
            return Ok(behind);
        }
        self.downloads += 1;
        if !self.is_sequential && branches.len() > 1 {
            let fetched = self.receive((carrier, peer), store, &branches)?;
            // Fetch one by one next time. The caller receives the reason.
            self.is_sequential = fetched.as_ref().is_err_and(FetchError::is_beyond);
            return match fetched {
                Ok(()) => Ok(behind),
                Err(error) => Err(error.of(&self.remote.url)),
            };
        }
        // Credentials can be short-lived, so read them again for each further download.
        let from = peer.from.clone();
        let mut peer = Some(peer);
        let mut is_postponed = false;
        let until = Instant::now() + SEQUENTIAL;
        for branch in branches {
            if Instant::now() > until {
                let why = "other branches are fetched first, one by one";
                behind.insert(branch.to_owned(), why.to_owned());
                is_postponed = true;
                continue;
            }
            let peer = match peer.take() {
                Some(peer) => peer,
                None => self.remote.peer(&from)?,
            };
            let Err(error) = self.receive((carrier, peer), store, &[branch])? else {
                continue;
            };
            let is_beyond = error.is_beyond();
            let error = error.of(&self.remote.url);
            if !is_beyond {
                return Err(error);
            }
            let why = error.to_string();
            behind.insert(branch.to_owned(), why.clone());
            let beyond = Beyond {
                commit: missing[branch].to_owned(),
                why,
                since: Instant::now(),
            };
            self.beyond.insert(branch.to_owned(), beyond);
        }
        // From now on, skip branches that exceed their limits.
        self.is_sequential = is_postponed;
        Ok(behind)
    }

    fn receive(
        &self,
        (carrier, peer): (&Carrier<'_>, Peer),
        store: &Store,
        branches: &[&str],
    ) -> Result<Result<(), FetchError>, GitError> {
        let specs = branches
            .iter()
            .map(|branch| format!("+refs/heads/{branch}:{}", reference(branch)));
        let largest = store.promise(self.limits.download);
        let download = Download {
            refspecs: specs.collect(),
            shallow: Transport::of(&self.remote.url) != Some(Transport::Local),
            largest,
            time: self.limits.time,
            background: false,
        };
        let order = Fetch::download(peer, store.path().to_owned(), download);
        let received = self.remote.receive_by(carrier, &order);
        store.clean_up()?;
        Ok(match received {
            Ok(_) => Ok(()),
            Err(mut error) => {
                if error.failure == Failure::TooLarge && largest < self.limits.download {
                    error.message.push_str(SHORT);
                }
                Err(error)
            }
        })
    }
}

impl Reader {
    /// Returns the files of a commit.
    pub fn tree(&self, commit: &str) -> Result<GitTree, GitError> {
        self.place().tree(commit)
    }

    /// Returns the location of the commits. It exists at least as long as this reader.
    pub fn place(&self) -> Place {
        Place {
            folder: self.store.path().to_owned(),
            prefix: self.prefix.to_string(),
        }
    }
}

impl Place {
    /// Returns the path of the bare repository.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the files of a commit.
    pub fn tree(&self, commit: &str) -> Result<GitTree, GitError> {
        let path = &self.folder;
        let repository = Repository::open_bare(path).map_err(|source| GitError::Open {
            path: path.clone(),
            source,
        })?;
        GitTree::open(repository, &self.prefix, commit)
    }
}

/// Returns the reference of a branch in the mirror.
fn reference(branch: &str) -> String {
    format!("refs/pleach/heads/{branch}")
}

/// Returns the last fetched commit of a branch.
fn local(repository: &Repository, branch: &str) -> Option<String> {
    let reference = repository.find_reference(&reference(branch)).ok()?;
    let commit = reference.peel_to_commit().ok()?;
    Some(commit.id().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::Auth;

    #[test]
    fn a_deleted_mirror_is_recreated() {
        let folder = tempfile::tempdir().unwrap();
        let source = Repository::init(folder.path()).unwrap();
        let ann = git2::Signature::now("Ann", "ann@example.org").unwrap();
        let tree = source.treebuilder(None).unwrap().write().unwrap();
        let tree = source.find_tree(tree).unwrap();
        let branch = Some("refs/heads/env/web");
        let commit = source.commit(branch, &ann, &ann, "start", &tree, &[]);
        let commit = commit.unwrap().to_string();
        let mut mirror = Mirror::new(Remote {
            url: folder.path().display().to_string(),
            auth: Auth::Anonymous,
            keys: None,
        });
        let first = mirror.fetch(|_| true).unwrap();
        #[expect(clippy::disallowed_methods, reason = "what only a test would do")]
        std::fs::remove_dir_all(first.reader.store.path()).unwrap();
        assert!(first.reader.tree(&commit).is_err());
        let second = mirror.fetch(|_| true).unwrap();
        assert_eq!(second.heads["env/web"], commit);
        assert!(second.reader.tree(&commit).is_ok());
    }
}
