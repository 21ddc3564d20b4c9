//! Disk space of copies of repositories: one budget for all copies that share it.
//!
//! A download gets a limit before it starts. The limit counts against the budget while
//! the download runs; afterwards the size of the copy does. So downloads at the same
//! time, and previous copies that are still read, are within the budget together.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use git2::Repository;

use super::GitError;
use crate::io::files::{self, TemporaryFolder};

/// The part of the free bytes that a download gets at most: others start meanwhile.
const PART: u64 = 2;
/// Packs that no branch needs any more may have this part of the free bytes.
const SUPERFLUOUS: u64 = 4;
/// Added to the error of a download that got a smaller limit than it usually has.
pub(super) const SHORT: &str = ", which is what the disk budget of the controller leaves for it";
/// Start of the names of packs that libgit2 writes.
const UNFINISHED: &str = "pack_git2_";
/// End of the names of files by which git locks references.
const LOCK: &str = ".lock";

/// Bytes on disk that several copies share. Clones are the same budget.
#[derive(Debug, Clone)]
pub struct Budget {
    total: u64,
    used: Arc<Mutex<u64>>,
}

impl Budget {
    /// A budget of so many bytes.
    pub fn of(total: u64) -> Self {
        Self {
            total,
            used: Arc::default(),
        }
    }

    /// Returns the most that one download gets, in bytes: from an empty budget.
    pub(super) fn largest(&self) -> u64 {
        self.total / PART
    }

    /// Returns the bytes that are in use or promised to a download.
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

/// Bytes of a budget. Dropped, they are free again.
#[derive(Debug)]
struct Space {
    budget: Budget,
    bytes: Mutex<u64>,
}

impl Space {
    fn bytes(&self) -> MutexGuard<'_, u64> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a part of what is free, `most` bytes at most.
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

/// A bare repository in a temporary folder, with the disk space that it takes.
#[derive(Debug)]
pub(super) struct Store {
    // Removed before its bytes are free.
    folder: TemporaryFolder,
    space: Space,
    /// Its size when it had everything that was wanted, and nothing else.
    complete: Mutex<Option<u64>>,
}

impl Store {
    /// Makes an empty one.
    pub(super) fn make(budget: &Budget) -> Result<Self, GitError> {
        let folder = files::temporary_folder()?;
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

    /// Whether it is the only store of its budget.
    pub(super) fn is_alone(&self) -> bool {
        let bytes = *self.space.bytes();
        self.space.budget.used() == bytes
    }

    /// Whether previous downloads left so much behind that another copy is better.
    /// False if there is no space for another one.
    pub(super) fn is_worn(&self) -> bool {
        let complete = *self.complete.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.space.budget.free();
        let bytes = *self.space.bytes();
        complete.is_some_and(|complete| {
            bytes.saturating_sub(complete) > free / SUPERFLUOUS && complete <= free / PART
        })
    }

    /// Notes that it has nothing superfluous now.
    pub(super) fn note_complete(&self) {
        let bytes = *self.space.bytes();
        let mut complete = self.complete.lock().unwrap_or_else(PoisonError::into_inner);
        *complete = Some(bytes);
    }

    /// Returns the bytes that a download may take: `most`, or less if less is free.
    pub(super) fn promise(&self, most: u64) -> u64 {
        self.space.grow(most)
    }

    /// Removes the leftovers of a download that was killed, and counts the bytes that
    /// are there instead of the promised ones.
    pub(super) fn settle(&self) -> Result<(), GitError> {
        let mut bytes = 0;
        for (path, size) in files::sizes_below(self.path())? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_of_git = path.parent() != Some(self.path());
            if is_of_git && (name.starts_with(UNFINISHED) || name.ends_with(LOCK)) {
                files::remove_file(&path)?;
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

    /// Writes a file in the place of a download.
    fn write(store: &Store, name: &str, bytes: usize) {
        std::fs::write(store.path().join(name), vec![0; bytes]).unwrap();
    }

    #[test]
    fn downloads_at_the_same_time_share_what_is_free() {
        let budget = Budget::of(1 << 20);
        let (a, b) = (Store::make(&budget), Store::make(&budget));
        let (a, b) = (a.unwrap(), b.unwrap());
        assert_eq!(a.promise(1000), 1000);
        assert_eq!(budget.used(), 1000);
        assert_eq!(b.promise(u64::MAX), ((1 << 20) - 1000) / 2);
        a.settle().unwrap();
        write(&b, "objects/pack/pack-1.pack", 2000);
        b.settle().unwrap();
        let used = budget.used();
        assert!((2000..200_000).contains(&used), "{used}");
        drop(b);
        assert!(budget.used() < used - 1999 && a.is_alone());
        drop(a);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_copy_is_made_again_when_superfluous_packs_take_much_of_what_is_free() {
        let budget = Budget::of(1 << 20);
        let store = Store::make(&budget).unwrap();
        write(&store, "objects/pack/pack-0.pack", 200_000);
        store.settle().unwrap();
        assert!(!store.is_worn());
        store.note_complete();
        write(&store, "objects/pack/pack-1.pack", 50_000);
        store.settle().unwrap();
        assert!(!store.is_worn());
        write(&store, "objects/pack/pack-2.pack", 150_000);
        store.settle().unwrap();
        assert!(store.is_worn());
        // Without space for another copy it stays.
        let other = Store::make(&budget).unwrap();
        write(&other, "objects/pack/pack-3.pack", 1 << 20);
        other.settle().unwrap();
        assert!(!store.is_worn() && !other.is_worn());
    }

    #[test]
    fn the_leftovers_of_a_killed_download_are_removed() {
        let budget = Budget::of(1 << 20);
        let store = Store::make(&budget).unwrap();
        store.settle().unwrap();
        let before = budget.used();
        write(&store, "objects/pack/pack_git2_4711", 5000);
        write(&store, "refs/heads/main.lock", 10);
        store.settle().unwrap();
        assert_eq!(budget.used(), before);
        assert!(!store.path().join("refs/heads/main.lock").exists());
    }
}
