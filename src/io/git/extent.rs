//! How much a commit spreads out to.
//!
//! git stores a folder once, wherever it stands: a few kilobytes are any number of
//! files when each folder has the one below it twice. What is counted here is what
//! a reader would meet.

use std::collections::HashMap;

use git2::{ObjectType, Oid, Repository};

use super::{GitError, RELEVANT};

/// Files and folders below one folder.
const MOST_PATHS: u64 = 1_000_000;
/// Bytes of all files below one folder.
const MOST_BYTES: u64 = 1024 * 1024 * 1024;

/// What is below a folder, as often as it is met.
#[derive(Debug, Clone, Copy, Default)]
struct Extent {
    paths: u64,
    bytes: u64,
}

impl Extent {
    fn add(&mut self, below: Self) {
        self.paths = self.paths.saturating_add(below.paths);
        self.bytes = self.bytes.saturating_add(below.bytes);
    }

    /// The limit that it is above, in words.
    fn excess(self) -> Option<String> {
        if self.paths > MOST_PATHS {
            return Some(format!("{MOST_PATHS} files and folders"));
        }
        (self.bytes > MOST_BYTES).then(|| format!("{} MiB of files", MOST_BYTES / 1024 / 1024))
    }
}

/// Refuses a commit of which more would have to be read than a repository needs.
/// Only the folders that pleach reads count.
pub(super) fn check(repository: &Repository, root: Oid, revision: &str) -> Result<(), GitError> {
    let read = |source| GitError::ReadTree {
        revision: revision.to_owned(),
        source,
    };
    let top = repository.find_tree(root).map_err(read)?;
    for folder in RELEVANT {
        let Some(entry) = top.get_name(folder) else {
            continue;
        };
        if entry.kind() != Some(ObjectType::Tree) {
            continue;
        }
        let extent = measure(repository, entry.id()).map_err(read)?;
        if let Some(most) = extent.excess() {
            return Err(GitError::TooMuch {
                revision: revision.to_owned(),
                folder,
                most,
            });
        }
    }
    Ok(())
}

/// Looks at every folder once, the inner ones first; never by recursion, as git
/// knows no limit of depth.
fn measure(repository: &Repository, folder: Oid) -> Result<Extent, git2::Error> {
    let odb = repository.odb()?;
    let mut known: HashMap<Oid, Extent> = HashMap::new();
    let mut open = vec![folder];
    while let Some(&id) = open.last() {
        if known.contains_key(&id) {
            open.pop();
            continue;
        }
        let tree = repository.find_tree(id)?;
        let inner = tree
            .iter()
            .filter(|entry| entry.kind() == Some(ObjectType::Tree))
            .map(|entry| entry.id());
        let unknown: Vec<Oid> = inner.filter(|id| !known.contains_key(id)).collect();
        if !unknown.is_empty() {
            open.extend(unknown);
            continue;
        }
        let mut extent = Extent::default();
        for entry in &tree {
            let below = match entry.kind() {
                Some(ObjectType::Tree) => known.get(&entry.id()).copied().unwrap_or_default(),
                // One that is not there is missed where it is read.
                Some(ObjectType::Blob) => Extent {
                    paths: 0,
                    bytes: odb
                        .read_header(entry.id())
                        .map_or(0, |(size, _)| size as u64),
                },
                _ => Extent::default(),
            };
            extent.add(below);
            extent.paths = extent.paths.saturating_add(1);
        }
        known.insert(id, extent);
        open.pop();
    }
    Ok(known.get(&folder).copied().unwrap_or_default())
}
