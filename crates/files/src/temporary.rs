//! Temporary folders that are removed even after their owner was killed.
//!
//! The owner holds a file lock in the folder. The kernel releases the lock when the owner ends, so
//! a process that gets the lock knows that the folder is abandoned.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::{Builder, TempDir};

use super::{FileError, STAGING, exists, names};

/// Name of the lock file.
const LOCK: &str = "pleach.lock";
/// Age from which a folder without a lock file counts as abandoned. Younger ones can be in
/// creation.
const FORGOTTEN: Duration = Duration::from_hours(1);

/// Private temporary folder. Dropping it removes the folder.
#[derive(Debug)]
pub struct TemporaryFolder {
    folder: TempDir,
    _lock: File,
}

impl TemporaryFolder {
    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Returns the parent of all temporary folders.
pub fn temporary() -> PathBuf {
    std::env::temp_dir()
}

/// Creates a temporary folder.
pub fn temporary_folder() -> Result<TemporaryFolder, FileError> {
    loop {
        let folder = Builder::new()
            .prefix(STAGING)
            .tempdir()
            .map_err(FileError::write(&std::env::temp_dir()))?;
        let path = folder.path().join(LOCK);
        let lock = File::create_new(&path)
            .and_then(|lock| lock.lock().map(|()| lock))
            .map_err(FileError::write(&path))?;
        // A cleanup could have removed the folder before it was locked.
        if exists(&path)? {
            return Ok(TemporaryFolder {
                folder,
                _lock: lock,
            });
        }
    }
}

/// Removes the folders of our own killed processes and returns their number. Folders that cannot be
/// removed remain.
pub fn remove_abandoned() -> Result<usize, FileError> {
    remove_abandoned_in(&std::env::temp_dir())
}

#[expect(clippy::disallowed_methods, reason = "the home of std::fs")]
fn remove_abandoned_in(parent: &Path) -> Result<usize, FileError> {
    let own = temporary_folder()?;
    let us = std::fs::metadata(own.path())
        .map_err(FileError::read(own.path()))?
        .uid();
    let mut removed = 0;
    for name in names(parent)? {
        let path = parent.join(&name);
        if !name.to_string_lossy().starts_with(STAGING) || path == own.path() {
            continue;
        }
        // Other users can create anything with such a name.
        let data = std::fs::symlink_metadata(&path);
        let Some(data) = data.ok().filter(|data| data.is_dir() && data.uid() == us) else {
            continue;
        };
        if let Some(_taken) = take_abandoned(&path, &data)
            && std::fs::remove_dir_all(&path).is_ok()
        {
            removed += 1;
        }
    }
    Ok(removed)
}

/// Folder without an owner.
#[derive(Debug)]
struct Abandoned {
    /// Lock during the removal. A process that is about to lock the folder waits, then creates
    /// another one.
    _lock: Option<File>,
}

fn take_abandoned(folder: &Path, data: &Metadata) -> Option<Abandoned> {
    let taken = |lock| Abandoned { _lock: lock };
    match File::open(folder.join(LOCK)) {
        Ok(lock) => lock.try_lock().is_ok().then(|| taken(Some(lock))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let age = data.modified().ok()?.elapsed().ok()?;
            (age > FORGOTTEN).then(|| taken(None))
        }
        Err(_) => None,
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "looks at what is left behind")]
mod tests {
    use super::*;

    #[test]
    fn folders_are_removed_with_their_owner() {
        let folder = temporary_folder().unwrap();
        let path = folder.path().to_owned();
        assert!(path.is_dir());
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn only_folders_of_dead_processes_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let path = parent.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path
        };
        let left = folder(".pleach-tmp-left");
        std::fs::create_dir(left.join("objects")).unwrap();
        std::fs::write(left.join(LOCK), "").unwrap();
        let locked = folder(".pleach-tmp-held");
        let lock = File::create_new(locked.join(LOCK)).unwrap();
        lock.lock().unwrap();
        let new = folder(".pleach-tmp-new");
        let other = folder("other");
        std::fs::write(other.join(LOCK), "").unwrap();
        let linked = parent.path().join(".pleach-tmp-linked");
        std::os::unix::fs::symlink(&other, &linked).unwrap();
        let forgotten = folder(".pleach-tmp-forgotten");
        File::open(&forgotten)
            .unwrap()
            .set_modified(std::time::SystemTime::now() - 2 * FORGOTTEN)
            .unwrap();

        assert_eq!(remove_abandoned_in(parent.path()).unwrap(), 2);
        assert!(!left.exists() && !forgotten.exists());
        assert!(locked.exists() && new.exists() && other.exists() && linked.exists());
        drop(lock);
        assert_eq!(remove_abandoned_in(parent.path()).unwrap(), 1);
        assert!(!locked.exists());
    }

    #[test]
    fn an_abandoned_folder_has_no_owner_until_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let lock = File::create_new(folder.path().join(LOCK)).unwrap();
        let data = std::fs::symlink_metadata(folder.path()).unwrap();
        // The owner is about to lock the folder.
        let taken = take_abandoned(folder.path(), &data);
        assert!(taken.is_some());
        assert!(lock.try_lock().is_err());
        drop(taken);
        // A process that another test is about to start can hold a copy of the file for a moment.
        lock.lock().unwrap();
        assert!(take_abandoned(folder.path(), &data).is_none());
    }
}
