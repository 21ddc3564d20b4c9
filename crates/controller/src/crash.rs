//! Crash records: a commit that crashed the controller waits before it is retried.
//!
//! An environment records the commit that it starts to process in a file of the temporary folder.
//! It removes the file once all releases are planned, or the commit failed without a crash. A file
//! that exists at start was left behind by a crash.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pleach_model::object::Digest;
use pleach_reconciler::config::ClaimKey;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::backoff;
use super::read::{Hold, of_commit};
use pleach_files::FileContent;

/// Version of the file.
const VERSION: u32 = 1;
/// The largest file, in bytes.
const FILE: u64 = 4 << 10;

/// Attempt of an environment to process a commit. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Attempt(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The commit that crashed the controller, until it is retried.
    crashed: Option<Crashed>,
    /// The commit in progress.
    open: Option<Open>,
}

#[derive(Debug)]
struct Crashed {
    commit: String,
    crashes: u32,
    /// End of the backoff.
    until: Instant,
}

#[derive(Debug)]
struct Open {
    commit: String,
    /// Releases that are not planned yet. `None` until the environment is loaded.
    unplanned: Option<BTreeSet<String>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Content {
    version: u32,
    commit: String,
    /// Number of previous crashes at this commit.
    crashes: u32,
    /// Whether the commit is in progress: a restart then counts as a crash.
    is_open: bool,
    /// Process id of the controller.
    process: u32,
}

/// Returns whether another process with this id is running: another controller that shares the
/// folder.
fn is_of_another(process: u32) -> bool {
    let running = PathBuf::from(format!("/proc/{process}"));
    process != std::process::id() && pleach_files::exists(&running).unwrap_or(false)
}

impl Crashed {
    fn of(commit: String, crashes: u32) -> Self {
        Self {
            commit,
            crashes,
            until: Instant::now() + backoff::after(crashes),
        }
    }

    /// Returns the remaining backoff, or `None` if the commit can be retried.
    fn left(&self) -> Option<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }
}

impl Attempt {
    /// Reads the crash record of an environment. An unreadable file counts as absent.
    pub(super) fn of(folder: &Path, url: &str, key: &ClaimKey) -> Self {
        let ClaimKey {
            environment,
            cluster,
        } = key;
        let cluster = cluster.as_deref().unwrap_or_default();
        // A restarted container has the name of its pod, and often another process id.
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy();
        let named = format!("{host}\n{url}\n{environment}\n{cluster}");
        let digest = Digest::of(named.as_bytes()).to_string();
        let name = digest.trim_start_matches("sha256:");
        let name = name.get(..16).unwrap_or(name);
        let file = folder.join(format!("pleach-attempt-{name}.json"));
        let read = pleach_files::read_own(&file, FILE).ok().flatten();
        let read = read.and_then(|bytes| serde_json::from_slice::<Content>(&bytes).ok());
        let crashed = read
            .filter(|content| content.version == VERSION && !is_of_another(content.process))
            .map(|content| {
                // A restart during the backoff is not a crash.
                let crashes = content.crashes.saturating_add(u32::from(content.is_open));
                let content = Content {
                    crashes,
                    is_open: false,
                    process: std::process::id(),
                    ..content
                };
                write(&file, &content);
                Crashed::of(content.commit, crashes)
            });
        let state = State {
            crashed,
            open: None,
        };
        Self(Arc::new(Inner {
            file,
            state: Mutex::new(state),
        }))
    }

    /// Returns the reason why a commit is stalled after crashes, or `None` if it can be processed.
    pub(super) fn hold(&self, commit: &str) -> Option<Hold> {
        let state = self.lock();
        let crashed = state.crashed.as_ref();
        let crashed = crashed.filter(|crashed| crashed.commit == commit)?;
        crashed.left()?;
        let crashes = crashed.crashes;
        let words = format!(
            "the controller crashed while it read or planned this commit (crashes: {crashes}); it waits before it tries again"
        );
        Some(Hold::new("ControllerCrashed", of_commit(commit, &words)))
    }

    /// Returns the remaining backoff of a crashed commit, or `None`.
    pub(super) fn left(&self) -> Option<Duration> {
        self.lock().crashed.as_ref().and_then(Crashed::left)
    }

    /// Records the start of processing a commit, before anything is rendered. Blocks.
    pub(super) fn begin(&self, commit: &str) {
        let mut state = self.lock();
        let crashed = state.crashed.take_if(|crashed| crashed.commit == commit);
        state.open = Some(Open {
            commit: commit.to_owned(),
            unplanned: None,
        });
        let content = Content {
            version: VERSION,
            commit: commit.to_owned(),
            crashes: crashed.map_or(0, |crashed| crashed.crashes),
            is_open: true,
            process: std::process::id(),
        };
        // Write under the lock, so that the end of this attempt cannot overtake the write.
        write(&self.0.file, &content);
        drop(state);
    }

    /// Ends the attempt as soon as these releases are planned.
    pub(super) fn end_with(&self, releases: BTreeSet<String>) {
        if releases.is_empty() {
            self.end();
        } else if let Some(open) = &mut self.lock().open {
            open.unplanned = Some(releases);
        }
    }

    /// Records that a release was planned at a commit, with any outcome.
    pub(super) fn planned(&self, commit: &str, release: &str) {
        let is_last = {
            let mut state = self.lock();
            let open = state.open.as_mut();
            let open = open.filter(|open| open.commit == commit);
            let unplanned = open.and_then(|open| open.unplanned.as_mut());
            unplanned.is_some_and(|unplanned| unplanned.remove(release) && unplanned.is_empty())
        };
        if is_last {
            self.end();
        }
    }

    /// Ends the attempt: its commit is planned, or failed without a crash.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        if state.open.take().is_some()
            && let Err(error) = pleach_files::remove_file(&self.0.file)
        {
            tracing::warn!(%error, "a commit waits after the next restart as if it had crashed the controller");
        }
        drop(state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write(file: &Path, content: &Content) {
    let written = serde_json::to_vec(content)
        .map_err(|error| error.to_string())
        .and_then(|bytes| {
            let content = FileContent::private(bytes);
            pleach_files::write_atomic(file, &content).map_err(|error| error.to_string())
        });
    if let Err(error) = written {
        tracing::warn!(%error, "a commit that crashes the controller is tried again without a pause");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(folder: &Path) -> Attempt {
        let key = ClaimKey {
            environment: "web".to_owned(),
            cluster: None,
        };
        Attempt::of(folder, "https://git.example.org/fleet.git", &key)
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_at_which_the_controller_crashes_waits_longer_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let first = start(folder.path());
        assert_eq!((first.hold("a"), first.left()), (None, None));
        first.begin("a");
        for (crashes, seconds) in [(1, 2.0), (2, 4.0), (3, 8.0)] {
            let attempt = start(folder.path());
            let hold = attempt.hold("a").unwrap();
            assert_eq!(hold.reason, "ControllerCrashed");
            let counted = format!(
                "commit a: the controller crashed while it read or planned this commit (crashes: {crashes});"
            );
            assert!(hold.message.starts_with(&counted), "{}", hold.message);
            assert_eq!(attempt.hold("b"), None);
            let left = attempt.left().unwrap();
            let pause = left.as_secs_f64() / seconds;
            assert!((0.89..=1.11).contains(&pause), "{crashes}: {pause}");
            // Another environment crashed the controller during the backoff.
            assert_eq!(start(folder.path()).hold("a"), Some(hold));
            tokio::time::advance(left).await;
            assert_eq!((attempt.hold("a"), attempt.left()), (None, None));
            attempt.begin("a");
        }
    }

    #[tokio::test]
    async fn an_attempt_that_ended_in_an_orderly_way_is_no_crash() {
        let folder = tempfile::tempdir().unwrap();
        let is_there = || !pleach_files::names(folder.path()).unwrap().is_empty();
        let attempt = start(folder.path());
        attempt.begin("a");
        assert!(is_there());
        attempt.end();
        assert!(!is_there());
        attempt.begin("a");
        attempt.end_with(BTreeSet::new());
        assert!(!is_there());
        attempt.begin("b");
        attempt.end_with(["db", "web"].map(str::to_owned).into());
        for (commit, release, is_open) in [
            ("b", "db", true),
            ("b", "db", true),
            ("a", "web", true),
            ("b", "web", false),
        ] {
            attempt.planned(commit, release);
            assert_eq!(is_there(), is_open, "{commit} {release}");
        }
        assert_eq!(start(folder.path()).left(), None);
        // Files of another version count as absent.
        attempt.begin("c");
        let content = Content {
            version: VERSION + 1,
            commit: "c".to_owned(),
            crashes: 1,
            is_open: true,
            process: std::process::id(),
        };
        write(&attempt.0.file, &content);
        assert_eq!(start(folder.path()).hold("c"), None);
        // So do those of a running controller, here process 1, and not those of one that ended.
        for (process, waits) in [(1, false), (u32::MAX, true)] {
            let content = Content {
                version: VERSION,
                commit: "c".to_owned(),
                crashes: 1,
                is_open: true,
                process,
            };
            write(&attempt.0.file, &content);
            assert_eq!(start(folder.path()).hold("c").is_some(), waits, "{process}");
        }
    }
}
