//! Copies of repositories that are elsewhere: bare, shallow where the transport
//! allows it, with no more than the branches that somebody wants.
//!
//! Calls block, and every one of them ends: each connection has a deadline and a
//! largest size. A [`Carrier`] executes them in another process, which is killed then.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use git2::Repository;
use pleach_domain::repo::controller::Transport;
use serde::{Deserialize, Serialize};

use super::budget::{Budget, SHORT, Store};
use super::fetch::{Carrier, Download, Failure, Fetch, FetchError, Peer};
use super::remote::{DEADLINE, LARGEST, Remote};
use super::signature::Signatures;
use super::{GitError, GitTree, unfetched};

/// For how long branches are fetched one after the other at once.
const IN_TURN: Duration = Duration::from_mins(1);
/// When a commit is fetched again that took more than it may.
const AGAIN: Duration = Duration::from_mins(30);

/// What a mirror may take.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The most that is downloaded at once, in bytes.
    pub download: u64,
    /// How long a connection may take.
    pub time: Duration,
    /// Downloads leave packs behind, and nothing collects them: after so many of them
    /// the mirror is made anew,
    pub downloads: u32,
    /// and earlier if these packs take much of what is free of the disk budget.
    pub budget: Budget,
}

impl Limits {
    /// The usual limits within a disk budget.
    pub fn of(budget: Budget) -> Self {
        Self {
            download: LARGEST,
            time: DEADLINE,
            downloads: 200,
            budget,
        }
    }
}

/// A copy of a repository.
pub struct Mirror {
    remote: Remote,
    limits: Limits,
    signatures: Option<Signatures>,
    reader: Option<Reader>,
    downloads: u32,
    /// Whether each branch is fetched by itself: one of them takes more than it may.
    in_turn: bool,
    /// The branches that do.
    beyond: BTreeMap<String, Beyond>,
}

/// A commit that takes more than it may.
struct Beyond {
    commit: String,
    why: String,
    since: Instant,
}

/// Reads commits of a mirror, also while it is fetched or made anew.
#[derive(Debug, Clone)]
pub struct Reader {
    pub(super) store: Arc<Store>,
    /// Where the pleach repository lies within the git repository.
    pub(super) prefix: Arc<str>,
}

/// Where commits lie, for other processes too.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Place {
    folder: PathBuf,
    prefix: String,
}

/// What a repository has.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// The commits of the branches that were wanted.
    pub heads: BTreeMap<String, String>,
    /// Those of these branches whose commit is not signed as it has to be, and
    /// why not.
    pub distrusted: BTreeMap<String, String>,
    /// Those of the branches that were wanted whose newest commit is not here, and why
    /// not. What they had before is among the commits, if it is.
    pub behind: BTreeMap<String, String>,
    /// Names of all branches.
    pub branches: Vec<String>,
    /// The branch that the repository calls its default.
    pub default_branch: Option<String>,
    /// Reads those commits.
    pub reader: Reader,
}

impl Mirror {
    /// A mirror that has nothing yet, with a disk budget of its own.
    pub fn new(remote: Remote) -> Self {
        Self::within(remote, Limits::of(Budget::of(2 * LARGEST)))
    }

    /// Likewise, within these limits.
    pub fn within(remote: Remote, limits: Limits) -> Self {
        Self {
            signatures: remote.keys.clone().map(Signatures::new),
            remote,
            limits,
            reader: None,
            downloads: 0,
            in_turn: false,
            beyond: BTreeMap::new(),
        }
    }

    /// Follows the branches that are wanted, wherever they moved to. This process talks
    /// to the server.
    pub fn fetch(&mut self, is_wanted: impl Fn(&str) -> bool) -> Result<Fetched, GitError> {
        self.fetch_by(&Fetch::execute, is_wanted)
    }

    /// Follows the branches that are wanted, wherever they moved to.
    pub fn fetch_by(
        &mut self,
        carrier: &Carrier<'_>,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Fetched, GitError> {
        // Somebody may have cleaned up where it lies.
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
        let listed = self.remote.carry(carrier, &listing);
        let listed = listed.map_err(|error| error.of(&self.remote.url))?;
        let there: BTreeMap<&String, &String> = listed
            .branches
            .iter()
            .filter(|(branch, _)| is_wanted(branch))
            .collect();
        let failed = |source: git2::Error| unfetched(&self.remote.url, &source);
        let repository = Repository::open_bare(folder).map_err(failed)?;
        let missing: BTreeMap<&str, &str> = there
            .iter()
            .filter(|(branch, commit)| local(&repository, branch).as_ref() != Some(**commit))
            .map(|(branch, commit)| (branch.as_str(), commit.as_str()))
            .collect();
        let was_in_turn = self.in_turn;
        let behind = self.download((carrier, peer), &reader.store, &missing)?;
        if self.reader.is_none() || was_in_turn {
            reader.store.note_complete();
            self.reader = Some(reader.clone());
        }
        // Packs may have come in since it was opened.
        let failed = |source: git2::Error| unfetched(&self.remote.url, &source);
        let repository = Repository::open_bare(folder).map_err(failed)?;
        // What was there when it was downloaded may be newer than what was listed.
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

    /// Downloads branches that are at these commits, all of them at once: one by one
    /// where that takes more than it may, so that those that do keep none of the others
    /// back. Gives those that are still missing, and why they are.
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
        let wanted = missing.keys().copied();
        let wanted: Vec<&str> = wanted
            .filter(|branch| !behind.contains_key(*branch))
            .collect();
        if wanted.is_empty() {
            self.in_turn = false;
            return Ok(behind);
        }
        self.downloads += 1;
        if !self.in_turn && wanted.len() > 1 {
            let fetched = self.receive((carrier, peer), store, &wanted)?;
            // The next time by itself, and who waits for it hears why.
            self.in_turn = fetched.as_ref().is_err_and(FetchError::is_beyond);
            return match fetched {
                Ok(()) => Ok(behind),
                Err(error) => Err(error.of(&self.remote.url)),
            };
        }
        // Its credentials may not be good for long: they are read again for the next.
        let from = peer.from.clone();
        let mut peer = Some(peer);
        let mut is_postponed = false;
        let until = Instant::now() + IN_TURN;
        for branch in wanted {
            if Instant::now() > until {
                let why = "other branches are fetched before it, one by one";
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
        // Those that take more than they may are left out from now on.
        self.in_turn = is_postponed;
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
        let received = self.remote.carry(carrier, &order);
        store.settle()?;
        Ok(match received {
            Ok(_) => Ok(()),
            Err(mut error) => {
                if error.failure == Failure::TooLarge && largest < self.limits.download {
                    error.said.push_str(SHORT);
                }
                Err(error)
            }
        })
    }
}

impl Reader {
    /// The files of a commit.
    pub fn tree(&self, commit: &str) -> Result<GitTree, GitError> {
        self.place().tree(commit)
    }

    /// Where the commits lie, as long as this is there.
    pub fn place(&self) -> Place {
        Place {
            folder: self.store.path().to_owned(),
            prefix: self.prefix.to_string(),
        }
    }
}

impl Place {
    /// The bare repository.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The files of a commit.
    pub fn tree(&self, commit: &str) -> Result<GitTree, GitError> {
        let path = &self.folder;
        let repository = Repository::open_bare(path).map_err(|source| GitError::Open {
            path: path.clone(),
            source,
        })?;
        GitTree::open(repository, &self.prefix, commit)
    }
}

/// Where a branch is kept.
fn reference(branch: &str) -> String {
    format!("refs/pleach/heads/{branch}")
}

/// The commit of a branch as it was last fetched.
fn local(repository: &Repository, branch: &str) -> Option<String> {
    let reference = repository.find_reference(&reference(branch)).ok()?;
    let commit = reference.peel_to_commit().ok()?;
    Some(commit.id().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::git::remote::Auth;

    #[test]
    fn a_mirror_that_was_cleaned_up_is_made_anew() {
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
