//! Temporary folder that is always removed with its owner.
//!
//! Dropping it removes the folder. A killed process does not run destructors, and statics are never
//! dropped. So a small shell waits at the end of a pipe for the owner's death, then removes the
//! folder.
#![expect(
    clippy::disallowed_methods,
    reason = "writes only inside its own folder; ThrowawayError names the path"
)]

use std::{
    fs, io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
};

use super::ThrowawayError;

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

/// Maximum size of a log excerpt in an error, in bytes.
const TAIL: usize = 2000;

#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    reaper: Child,
    lifeline: Option<ChildStdin>,
}

impl Folder {
    pub(super) fn create(prefix: &str) -> Result<Self, ThrowawayError> {
        let path = tempfile::Builder::new()
            .prefix(prefix)
            .tempdir()
            .map_err(ThrowawayError::CreateFolder)?;
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
    fn tail_of_a_log_is_its_last_lines() {
        let folder = Folder::create("pleach-folder-test-").unwrap();
        let line = "x".repeat(TAIL);
        folder.write("etcd.log", &format!("first{line}")).unwrap();
        assert_eq!(folder.log_tail("etcd"), line);
        assert!(folder.log_tail("absent").starts_with("(no log: "));
    }
}
