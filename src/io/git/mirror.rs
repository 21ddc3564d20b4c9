//! Copies of repositories that are elsewhere: bare, shallow where the transport
//! allows it, with no more than the branches that somebody wants.
//!
//! Calls block, and every one of them ends: the transport has time-outs, a
//! download has a deadline and a largest size.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use git2::Repository;
use pleach_domain::repo::controller::Transport;
use serde::{Deserialize, Serialize};

use super::remote::{LARGEST, Remote, Session, limit_silence};
use super::signature::Signatures;
use super::{GitError, GitTree, unfetched};
use crate::io::files::{self, TemporaryFolder};

/// Matches nothing: a fetch of it asks what there is and downloads nothing.
const NOTHING: &str = "+refs/pleach/nothing:refs/pleach/nothing";
/// For how long branches are fetched one after the other at once.
const IN_TURN: Duration = Duration::from_mins(1);
/// When a commit is fetched again that took more than it may.
const AGAIN: Duration = Duration::from_mins(30);

/// What a mirror may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The most that is downloaded at once, in bytes.
    pub download: usize,
    /// Downloads leave packs behind, and nothing collects them: after so many of them
    /// the mirror is made anew,
    pub downloads: u32,
    /// and after so many bytes.
    pub received: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            download: LARGEST,
            downloads: 200,
            received: 2 * LARGEST,
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
    received: usize,
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
    pub(super) folder: Arc<TemporaryFolder>,
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
    /// A mirror that has nothing yet.
    pub fn new(remote: Remote) -> Self {
        Self::within(remote, Limits::default())
    }

    /// Likewise, within these limits.
    pub fn within(remote: Remote, limits: Limits) -> Self {
        limit_silence();
        Self {
            signatures: remote.keys.clone().map(Signatures::new),
            remote,
            limits,
            reader: None,
            downloads: 0,
            received: 0,
            in_turn: false,
            beyond: BTreeMap::new(),
        }
    }

    /// Follows the branches that are wanted, wherever they moved to.
    pub fn fetch(&mut self, is_wanted: impl Fn(&str) -> bool) -> Result<Fetched, GitError> {
        // Somebody may have cleaned up where it lies.
        let is_gone = |reader: &Reader| Repository::open_bare(reader.folder.path()).is_err();
        let is_full =
            self.downloads >= self.limits.downloads || self.received >= self.limits.received;
        if is_full || self.reader.as_ref().is_some_and(is_gone) {
            self.reader = None;
        }
        let (url, prefix) = self.remote.location()?;
        let reader = match &self.reader {
            Some(reader) => reader.clone(),
            None => Reader {
                folder: Arc::new(files::temporary_folder()?),
                prefix: prefix.into(),
            },
        };
        let remote = self.remote.clone();
        let failed = |source: git2::Error| unfetched(&remote.url, &source);
        let repository = if self.reader.is_none() {
            (self.downloads, self.received) = (0, 0);
            Repository::init_bare(reader.folder.path())
        } else {
            Repository::open_bare(reader.folder.path())
        }
        .map_err(failed)?;
        let mut from = repository.remote_anonymous(&url).map_err(failed)?;
        let session = Session::open(&remote, self.limits.download)?;
        session
            .fetch(&mut from, &[NOTHING.to_owned()], false)
            .map_err(failed)?;
        let mut there: BTreeMap<String, String> = BTreeMap::new();
        let mut branches = Vec::new();
        for head in from.list().map_err(failed)? {
            let Some(branch) = head.name().strip_prefix("refs/heads/") else {
                continue;
            };
            branches.push(branch.to_owned());
            if is_wanted(branch) {
                there.insert(branch.to_owned(), head.oid().to_string());
            }
        }
        let default_branch = from.default_branch().ok().and_then(|name| {
            let name = name.as_str().ok()?.strip_prefix("refs/heads/")?;
            Some(name.to_owned())
        });
        let missing: BTreeMap<&str, &str> = there
            .iter()
            .filter(|(branch, commit)| local(&repository, branch).as_ref() != Some(commit))
            .map(|(branch, commit)| (branch.as_str(), commit.as_str()))
            .collect();
        let behind = self.download(&mut from, session, &missing)?;
        if self.reader.is_none() {
            self.reader = Some(reader.clone());
        }
        // What was there when it was downloaded may be newer than what was listed.
        let heads = there
            .into_keys()
            .filter_map(|branch| {
                let commit = local(&repository, &branch)?;
                Some((branch, commit))
            })
            .collect();
        let signatures = self.signatures.as_mut();
        let distrusted = signatures.map(|one| one.distrusted(reader.folder.path(), &heads));
        Ok(Fetched {
            heads,
            distrusted: distrusted.unwrap_or_default(),
            behind,
            branches,
            default_branch,
            reader,
        })
    }

    /// Downloads branches that are at these commits, all of them at once: one by one
    /// where that takes more than it may, so that those that do keep none of the others
    /// back. Gives those that are still missing, and why they are.
    fn download(
        &mut self,
        from: &mut git2::Remote<'_>,
        session: Session<'_>,
        missing: &BTreeMap<&str, &str>,
    ) -> Result<BTreeMap<String, String>, GitError> {
        let remote = self.remote.clone();
        let failed = |source: git2::Error| unfetched(&remote.url, &source);
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
            let fetched = self.receive(from, &session, &wanted);
            // The next time by itself, and who waits for it hears why.
            self.in_turn = fetched.is_err() && session.exceeded().is_some();
            return fetched.map(|()| behind).map_err(failed);
        }
        // Its credentials may not be good for long: they are asked for again for the next.
        let mut session = Some(session);
        let mut is_postponed = false;
        let until = Instant::now() + IN_TURN;
        for branch in wanted {
            if Instant::now() > until {
                let why = "other branches are fetched before it, one by one";
                behind.insert(branch.to_owned(), why.to_owned());
                is_postponed = true;
                continue;
            }
            let session = match session.take() {
                Some(session) => session,
                None => Session::open(&remote, self.limits.download)?,
            };
            let Err(error) = self.receive(from, &session, &[branch]) else {
                continue;
            };
            let error = failed(error);
            if session.exceeded().is_none() {
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
        &mut self,
        from: &mut git2::Remote<'_>,
        session: &Session<'_>,
        branches: &[&str],
    ) -> Result<(), git2::Error> {
        let specs: Vec<String> = branches
            .iter()
            .map(|branch| format!("+refs/heads/{branch}:{}", reference(branch)))
            .collect();
        let shallow = Transport::of(&self.remote.url) != Some(Transport::Local);
        let fetched = session.fetch(from, &specs, shallow);
        self.received += from.stats().received_bytes();
        fetched
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
            folder: self.folder.path().to_owned(),
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
        std::fs::remove_dir_all(first.reader.folder.path()).unwrap();
        assert!(first.reader.tree(&commit).is_err());
        let second = mirror.fetch(|_| true).unwrap();
        assert_eq!(second.heads["env/web"], commit);
        assert!(second.reader.tree(&commit).is_ok());
    }
}
