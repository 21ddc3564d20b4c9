//! Temporary folder that is always removed with its owner.
//!
//! Dropping it removes the folder. A killed process does not run destructors, and statics are never
//! dropped. So a small shell waits at the end of a pipe for the owner's death, then removes the
//! folder. If the shell was killed too, as by a restart of the machine, the next folder with the same
//! prefix removes it: the owner of a folder locks a file in it.
#![expect(
    clippy::disallowed_methods,
    reason = "writes only inside its own folder; ThrowawayError names the path"
)]

use std::{
    fs, io,
    os::unix::{fs::MetadataExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
};

use crate::ThrowawayError;

/// Waits for the end of its input, then removes the folder, and control groups with its name. Retries
/// for a while, because dying programs can still write to it.
const REAPER: &str = r#"
trap "" HUP INT TERM
cat
for attempt in 1 2 3 4 5 6 7 8 9 10; do
  is_gone=1
  for group in /sys/fs/cgroup/"${0##*/}" /sys/fs/cgroup/*/"${0##*/}"; do
    [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} + || is_gone=
  done
  rm -rf -- "$0" && [ "$is_gone" ] && exit 0
  sleep 0.2
done
"#;

/// File that the owner of a folder locks.
const OWNER: &str = "owner";

/// Maximum size of a log excerpt in an error, in bytes.
const TAIL: usize = 2000;

#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    reaper: Child,
    lifeline: Option<ChildStdin>,
    _lock: fs::File,
}

impl Folder {
    /// Creates a folder that only its user can read, and removes those of killed processes.
    pub(super) fn create(prefix: &str) -> Result<Self, ThrowawayError> {
        let path = tempfile::Builder::new()
            .prefix(prefix)
            .tempdir()
            .map_err(ThrowawayError::CreateFolder)?;
        let lock = lock(path.path()).map_err(ThrowawayError::CreateFolder)?;
        remove_leftovers(path.path(), prefix);
        let mut reaper = Command::new("/bin/sh")
            .args(["-c", REAPER])
            .arg(path.path())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0) // Ctrl-C in the terminal is for the owner only
            .spawn()
            .map_err(ThrowawayError::CreateFolder)?;
        let lifeline = reaper.stdin.take();
        Ok(Self {
            path: path.keep(),
            reaper,
            lifeline,
            _lock: lock,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn write(&self, name: &str, contents: &str) -> Result<PathBuf, ThrowawayError> {
        let path = self.path.join(name);
        match fs::write(&path, contents) {
            Ok(()) => Ok(path),
            Err(source) => Err(ThrowawayError::WriteFile { path, source }),
        }
    }

    /// Opens the log of a program for appending.
    pub(super) fn log(&self, program: &str) -> Result<fs::File, ThrowawayError> {
        let path = self.path.join(format!("{program}.log"));
        let mut options = fs::File::options();
        options.create(true).append(true);
        options
            .open(&path)
            .map_err(|source| ThrowawayError::WriteFile { path, source })
    }

    /// Returns the end of a program's log, for error messages.
    pub(super) fn log_tail(&self, program: &str) -> String {
        let read = || -> io::Result<String> {
            let bytes = fs::read(self.path.join(format!("{program}.log")))?;
            Ok(String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(TAIL)..]).into_owned())
        };
        read().unwrap_or_else(|error| format!("(no log: {error})"))
    }
}

/// Locks a folder. The file appears with its lock, so that no process finds it unlocked.
fn lock(folder: &Path) -> io::Result<fs::File> {
    let new = folder.join("owner.new");
    let file = fs::File::create(&new)?;
    file.lock()?;
    fs::rename(new, folder.join(OWNER))?;
    Ok(file)
}

/// Removes folders beside this one whose owner was killed. Folders of other users and folders that
/// cannot be read stay.
fn remove_leftovers(own: &Path, prefix: &str) {
    let (Some(parent), Ok(metadata)) = (own.parent(), own.metadata()) else {
        return;
    };
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_candidate = entry.file_name().to_string_lossy().starts_with(prefix)
            && path != own
            && entry
                .metadata()
                .is_ok_and(|it| it.is_dir() && it.uid() == metadata.uid());
        let is_left = is_candidate
            && fs::File::open(path.join(OWNER)).is_ok_and(|file| file.try_lock().is_ok());
        if is_left && let Err(error) = fs::remove_dir_all(&path) {
            tracing::debug!(folder = %path.display(), %error, "leftover folder was not removed");
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        if let Err(error) = self.reaper.wait() {
            tracing::warn!(folder = %self.path.display(), %error, "temporary folder may be left");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_vanishes_with_its_contents() {
        let folder = Folder::create("pleach-folder-test-").unwrap();
        let path = folder.path().to_owned();
        let file = folder.write("a", "text").unwrap();
        assert_eq!(fs::read_to_string(file).unwrap(), "text");

        drop(folder);

        assert!(!path.exists());
    }

    #[test]
    fn folders_of_killed_owners_are_removed_by_the_next_start() {
        let prefix = "pleach-folder-leftover-";
        let running = Folder::create(prefix).unwrap();
        let beside = |name: &str| running.path().with_file_name(format!("{prefix}{name}"));
        let process = std::process::id();
        let (left, unknown) = (
            beside(&format!("{process}-left")),
            beside(&format!("{process}-unknown")),
        );
        for folder in [&left, &unknown] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("admin.kubeconfig"), "{}").unwrap();
        }
        drop(lock(&left).unwrap());

        let next = Folder::create(prefix).unwrap();

        let exist = [&left, &unknown].map(|folder| folder.exists());
        fs::remove_dir_all(unknown).unwrap();
        // A folder without the file of an owner is not ours to remove.
        assert_eq!(exist, [false, true]);
        assert!(running.path().exists() && next.path().exists());
    }

    #[test]
    fn tail_of_a_log_is_its_last_lines() {
        let folder = Folder::create("pleach-folder-test-").unwrap();
        let line = "x".repeat(TAIL);
        folder.write("etcd.log", &format!("first{line}")).unwrap();
        assert_eq!(folder.log_tail("etcd"), line);
        assert!(folder.log_tail("absent").starts_with("(no log: "));
    }
}
