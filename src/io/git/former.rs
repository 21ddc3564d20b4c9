//! Commits that a branch had before its newest one, for who has kept their names.
//!
//! A name may come from anywhere: what counts is the history of the branch, and
//! the signature of the commit where commits have to be signed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use git2::{Repository, Sort};

use super::mirror::{Reader, Remote, Session, limit_silence};
use super::signature::Signatures;
use super::{GitError, unfetched};
use crate::io::files;

/// What the branch is called in the copy.
const BRANCH: &str = "refs/pleach/former";
/// The most commits that are of interest: each may have a signature to check.
const MOST: usize = 16;

/// Commits that a branch had.
#[derive(Debug, Clone)]
pub struct Former {
    /// Their ids, newest first.
    pub commits: Vec<String>,
    /// Whether older ones were not looked at, as these are many.
    pub is_cut: bool,
    /// Reads them.
    pub reader: Reader,
}

/// Those of the commits that are named which a branch has in its history, and
/// which are signed as they have to be. Fetches that history into a copy of its own,
/// as the one that follows the branch may know the newest commit only. Blocks.
pub fn former(remote: &Remote, branch: &str, named: &BTreeSet<String>) -> Result<Former, GitError> {
    limit_silence();
    let failed = |source: git2::Error| unfetched(&remote.url, &source);
    let (url, prefix) = remote.location()?;
    let folder = Arc::new(files::temporary_folder()?);
    let repository = Repository::init_bare(folder.path()).map_err(failed)?;
    let mut from = repository.remote_anonymous(&url).map_err(failed)?;
    let session = Session::open(remote)?;
    let whole = format!("+refs/heads/{branch}:{BRANCH}");
    session.fetch(&mut from, &[whole], false).map_err(failed)?;
    let mut history = repository.revwalk().map_err(failed)?;
    history
        .set_sorting(Sort::TOPOLOGICAL | Sort::TIME)
        .map_err(failed)?;
    history.push_ref(BRANCH).map_err(failed)?;
    let mut commits: Vec<String> = history
        .map_while(Result::ok)
        .map(|commit| commit.to_string())
        .filter(|commit| named.contains(commit))
        .take(named.len().min(MOST))
        .collect();
    let is_cut = commits.len() == MOST && named.len() > MOST;
    if let Some(keys) = &remote.keys {
        let each = commits.iter().map(|one| (one.clone(), one.clone()));
        let each: BTreeMap<String, String> = each.collect();
        let mut signatures = Signatures::new(keys.clone());
        let distrusted = signatures.distrusted(folder.path(), &each);
        commits.retain(|commit| !distrusted.contains_key(commit));
    }
    let reader = Reader {
        folder,
        prefix: prefix.into(),
    };
    Ok(Former {
        commits,
        is_cut,
        reader,
    })
}
