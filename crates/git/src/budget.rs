//! Disk budget of repository copies, shared by all copies.
//!
//! A download gets a limit before it starts. The limit counts against the budget while the download
//! runs; afterwards the size of the copy does. So concurrent downloads and previous copies that are
//! still read fit into the budget together.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use git2::Repository;

use super::GitError;
use pleach_files::TemporaryFolder;

/// Divisor of the free bytes: a download gets at most this part, because others can start
/// meanwhile.
const PART: u64 = 2;
/// Divisor of the free bytes: the maximum part for packs that no branch needs.
const SUPERFLUOUS: u64 = 4;
/// Suffix for the error of a download whose limit was lower than usual.
pub(super) const SHORT: &str = ", the remainder of the controller's disk budget";
/// Prefix of incomplete packs of libgit2.
const UNFINISHED: &str = "pack_git2_";
/// Suffix of git's lock files.
const LOCK: &str = ".lock";

/// Budget of bytes on disk. Clones share the budget.
#[derive(Debug, Clone)]
pub struct Budget {
    total: u64,
    used: Arc<Mutex<u64>>,
}

impl Budget {
    /// Creates a budget of `total` bytes.
    pub fn of(total: u64) -> Self {
        Self {
            total,
            used: Arc::default(),
        }
    }

    /// Returns the maximum limit of one download, in bytes. It applies to an empty budget.
    pub(super) fn largest(&self) -> u64 {
        self.total / PART
    }

    /// Returns the bytes that are in use or reserved for a download.
    pub fn used(&self) -> u64 {
        *self.lock()
    }

    fn free(&self) -> u64 {
        self.total.saturating_sub(self.used())
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reserved bytes of a budget. Dropping it frees them.
#[derive(Debug)]
struct Space {
    budget: Budget,
    bytes: Mutex<u64>,
}

impl Space {
    fn bytes(&self) -> MutexGuard<'_, u64> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a part of the free bytes, at most `most`. Returns the reserved bytes.
    fn grow(&self, most: u64) -> u64 {
        let mut bytes = self.bytes();
        let mut used = self.budget.lock();
        let more = most.min(self.budget.total.saturating_sub(*used) / PART);
        *used += more;
        *bytes += more;
        more
    }

    fn set(&self, now: u64) {
        let mut bytes = self.bytes();
        let mut used = self.budget.lock();
        *used = used.saturating_sub(*bytes) + now;
        *bytes = now;
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Bare repository in a temporary folder, with its reserved disk space.
#[derive(Debug)]
pub(super) struct Store {
    // Declared first, so that the folder is removed before its bytes are freed.
    folder: TemporaryFolder,
    space: Space,
    /// Size after the first complete download, without superfluous packs.
    complete: Mutex<Option<u64>>,
}

impl Store {
    /// Creates an empty store.
    pub(super) fn make(budget: &Budget) -> Result<Self, GitError> {
        let folder = pleach_files::temporary_folder()?;
        Repository::init_bare(folder.path()).map_err(|source| GitError::Open {
            path: folder.path().to_owned(),
            source,
        })?;
        Ok(Self {
            folder,
            space: Space {
                budget: budget.clone(),
                bytes: Mutex::default(),
            },
            complete: Mutex::default(),
        })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns whether this is the only store of its budget.
    pub(super) fn is_alone(&self) -> bool {
        let bytes = *self.space.bytes();
        self.space.budget.used() == bytes
    }

    /// Returns whether superfluous packs take so much space that a new copy is better. Returns
    /// `false` if there is no space for a new one.
    pub(super) fn is_worn(&self) -> bool {
        let complete = *self.complete.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.space.budget.free();
        let bytes = *self.space.bytes();
        complete.is_some_and(|complete| {
            bytes.saturating_sub(complete) > free / SUPERFLUOUS && complete <= free / PART
        })
    }

    /// Records the current size as the size without superfluous packs.
    pub(super) fn note_complete(&self) {
        let bytes = *self.space.bytes();
        let mut complete = self.complete.lock().unwrap_or_else(PoisonError::into_inner);
        *complete = Some(bytes);
    }

    /// Reserves bytes for a download: `most`, or less if less is free.
    pub(super) fn promise(&self, most: u64) -> u64 {
        self.space.grow(most)
    }

    /// Removes the leftovers of a killed download. Replaces the reservation by the size on disk.
    pub(super) fn clean_up(&self) -> Result<(), GitError> {
        let mut bytes = 0;
        for (path, size) in pleach_files::sizes_below(self.path())? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_of_git = path.parent() != Some(self.path());
            if is_of_git && (name.starts_with(UNFINISHED) || name.ends_with(LOCK)) {
                pleach_files::remove_file(&path)?;
            } else {
                bytes += size;
            }
        }
        self.space.set(bytes);
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "writes in the place of git")]
mod tests {
    use super::*;

    /// Writes a file, as a download would.
    fn write(store: &Store, name: &str, bytes: usize) {
        std::fs::write(store.path().join(name), vec![0; bytes]).unwrap();
    }

    #[test]
    fn concurrent_downloads_share_the_free_budget() {
        let budget = Budget::of(1 << 20);
        let (a, b) = (Store::make(&budget), Store::make(&budget));
        let (a, b) = (a.unwrap(), b.unwrap());
        assert_eq!(a.promise(1000), 1000);
        assert_eq!(budget.used(), 1000);
        assert_eq!(b.promise(u64::MAX), ((1 << 20) - 1000) / 2);
        a.clean_up().unwrap();
        write(&b, "objects/pack/pack-1.pack", 2000);
        b.clean_up().unwrap();
        let used = budget.used();
        assert!((2000..200_000).contains(&used), "{used}");
        drop(b);
        assert!(budget.used() < used - 1999 && a.is_alone());
        drop(a);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_mirror_with_many_superfluous_packs_is_recreated() {
        let budget = Budget::of(1 << 20);
        let store = Store::make(&budget).unwrap();
        write(&store, "objects/pack/pack-0.pack", 200_000);
        store.clean_up().unwrap();
        assert!(!store.is_worn());
        store.note_complete();
        write(&store, "objects/pack/pack-1.pack", 50_000);
        store.clean_up().unwrap();
        assert!(!store.is_worn());
        write(&store, "objects/pack/pack-2.pack", 150_000);
        store.clean_up().unwrap();
        assert!(store.is_worn());
        // Without space for another copy, the store is not replaced.
        let other = Store::make(&budget).unwrap();
        write(&other, "objects/pack/pack-3.pack", 1 << 20);
        other.clean_up().unwrap();
        assert!(!store.is_worn() && !other.is_worn());
    }

    #[test]
    fn the_leftovers_of_a_killed_download_are_removed() {
        let budget = Budget::of(1 << 20);
        let store = Store::make(&budget).unwrap();
        store.clean_up().unwrap();
        let before = budget.used();
        write(&store, "objects/pack/pack_git2_4711", 5000);
        write(&store, "refs/heads/main.lock", 10);
        store.clean_up().unwrap();
        assert_eq!(budget.used(), before);
        assert!(!store.path().join("refs/heads/main.lock").exists());
    }
}
