//! Crash records: a commit that crashed the controller waits before it is retried.
//!
//! An environment records the commit that it starts to process in a file of the temporary folder.
//! It removes the file once all releases are planned, the commit failed without a crash, or the task
//! of the environment ended. A file that exists at start was left behind by a crash.
//!
//! A commit waits only if it is the one that can have caused the crash. If several were in progress,
//! their environments become suspects. Suspects are processed one at a time, so that the next crash
//! finds its cause. All other environments are not delayed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pleach_model::object::Digest;
use pleach_reconciler::{config::EnvironmentKey, environment::Crash, stall::Stall};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};

use super::backoff;
use super::clock::Clock;
use super::loader::of_commit;
use pleach_files::FileContent;

/// Version of the file.
const VERSION: u32 = 2;
/// The largest file, in bytes.
const FILE: u64 = 4 << 10;
/// Longest wait of a suspect for other suspects.
const SUSPECT_TIMEOUT: Duration = Duration::from_mins(2);
/// Longest random delay of a suspect before that wait.
const SUSPECT_DELAY: Duration = Duration::from_secs(5);

/// Crash records of this host. Clones share the permit of suspects.
#[derive(Debug, Clone)]
pub(super) struct Crashes {
    folder: PathBuf,
    /// Start of the file names.
    prefix: String,
    suspects: Arc<Semaphore>,
}

/// Attempt of an environment to process a commit. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Attempt(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: PathBuf,
    suspects: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The commit that crashed the controller, until it is retried.
    crashed: Option<Crashed>,
    /// Whether the environment was in progress at a crash, and no attempt ended since.
    is_suspect: bool,
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
    /// Number of previous crashes at this commit.
    crashes: u32,
    /// Whether the file contains the attempt.
    is_recorded: bool,
    /// Permit of a suspect.
    permit: Option<OwnedSemaphorePermit>,
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
    /// Whether the environment was in progress at a previous crash.
    is_suspect: bool,
    /// Process id of the controller.
    process: u32,
}

/// Returns whether another process with this id is running: another controller that shares the
/// folder.
fn is_of_another(process: u32) -> bool {
    let running = PathBuf::from(format!("/proc/{process}"));
    process != std::process::id() && pleach_files::exists(&running).unwrap_or(false)
}

/// Reads a crash record. An unreadable file counts as absent.
fn read(file: &Path) -> Option<Content> {
    let bytes = pleach_files::read_own(file, FILE).ok().flatten()?;
    let content = serde_json::from_slice::<Content>(&bytes).ok()?;
    (content.version == VERSION).then_some(content)
}

/// Counts a crash at the commit that caused it, and turns all that were in progress into suspects.
/// The cause is the only commit in progress, or the only one of a suspect. A suspect that is counted
/// wrongly waits once: the real cause is a suspect after that. Otherwise the cause is unknown, and no
/// commit waits.
fn count_crashes(records: &mut [Content]) {
    let open = records.iter().filter(|record| record.is_open);
    let (suspects, others): (Vec<_>, Vec<_>) = open.partition(|record| record.is_suspect);
    let (suspects, all) = (suspects.len(), suspects.len() + others.len());
    for record in records.iter_mut().filter(|record| record.is_open) {
        let is_cause = all == 1 || (record.is_suspect && suspects == 1);
        record.crashes = record.crashes.saturating_add(u32::from(is_cause));
        record.is_suspect = true;
        // Another restart before the retry is not a crash.
        record.is_open = false;
    }
}

impl Crashes {
    /// Judges what the previous process left behind in the folder. Must precede the first attempt.
    pub(super) fn of(folder: PathBuf) -> Self {
        // A restarted container has the name of its pod, and often another process id.
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy();
        let prefix = format!("pleach-attempt-{}-", short(&host));
        let names = pleach_files::names(&folder).unwrap_or_default();
        let names = names.iter().filter_map(|name| name.to_str());
        let (paths, mut records): (Vec<PathBuf>, Vec<Content>) = names
            .filter(|name| name.starts_with(&prefix))
            .map(|name| folder.join(name))
            .filter_map(|file| read(&file).map(|content| (file, content)))
            .filter(|(_, content)| !is_of_another(content.process))
            .unzip();
        count_crashes(&mut records);
        for (file, record) in paths.iter().zip(records) {
            let record = Content {
                process: std::process::id(),
                ..record
            };
            write(file, &record);
        }
        Self {
            folder,
            prefix,
            suspects: Arc::new(Semaphore::new(1)),
        }
    }
}

/// Returns the first digits of the digest of a text.
fn short(text: &str) -> String {
    let digest = Digest::of(text.as_bytes()).to_string();
    let digits = digest.trim_start_matches("sha256:");
    digits.get(..16).unwrap_or(digits).to_owned()
}

impl Crashed {
    fn of(commit: String, crashes: u32) -> Self {
        Self {
            commit,
            crashes,
            until: Instant::now() + backoff::after(crashes),
        }
    }

    fn stall(&self) -> Stall {
        let crashes = self.crashes;
        let words = format!(
            "the controller crashed while it read or planned this commit (crashes: {crashes}); it waits before it tries again"
        );
        Stall::new("ControllerCrashed", of_commit(&self.commit, &words))
    }
}

impl Attempt {
    /// Reads the crash record of an environment.
    pub(super) fn of(crashes: &Crashes, url: &str, key: &EnvironmentKey) -> Self {
        let EnvironmentKey {
            environment,
            cluster,
        } = key;
        let cluster = cluster.as_deref().unwrap_or_default();
        let name = short(&format!("{url}\n{environment}\n{cluster}"));
        let Crashes {
            folder,
            prefix,
            suspects,
        } = crashes;
        let file = folder.join(format!("{prefix}{name}.json"));
        // Records of this process are those that were judged at its start.
        let counted = read(&file).filter(|content| content.process == std::process::id());
        let state = State {
            is_suspect: counted.as_ref().is_some_and(|content| content.is_suspect),
            crashed: counted
                .filter(|content| content.crashes > 0)
                .map(|content| Crashed::of(content.commit, content.crashes)),
            open: None,
        };
        Self(Arc::new(Inner {
            file,
            suspects: Arc::clone(suspects),
            state: Mutex::new(state),
        }))
    }

    /// Returns the reason why a commit is stalled after crashes, or `None` if it can be processed.
    pub(super) fn stall(&self, commit: &str) -> Option<Stall> {
        let state = self.lock();
        let crashed = state.crashed.as_ref();
        let crashed = crashed.filter(|crashed| crashed.commit == commit);
        let crashed = crashed.filter(|crashed| Instant::now() < crashed.until);
        crashed.map(Crashed::stall)
    }

    /// Returns the commit that crashed the previous process, until it is retried.
    pub(super) fn crash(&self, clock: Clock) -> Option<Crash> {
        let state = self.lock();
        state.crashed.as_ref().map(|crashed| Crash {
            commit: crashed.commit.clone(),
            stall: crashed.stall(),
            until: clock.time(crashed.until),
        })
    }

    /// Waits until no other suspect is in progress, for a limited time. Returns at once if the
    /// environment is no suspect.
    pub(super) async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        let (is_suspect, own) = {
            let mut state = self.lock();
            // The next commit of the same environment inherits the permit.
            let own = state.open.as_mut().and_then(|open| open.permit.take());
            (state.is_suspect, own)
        };
        if own.is_some() || !is_suspect {
            return own;
        }
        // The order is random, so that a slow suspect is not first after each crash.
        sleep(SUSPECT_DELAY.mul_f64(backoff::random())).await;
        let waiting = Arc::clone(&self.0.suspects).acquire_owned();
        timeout(SUSPECT_TIMEOUT, waiting)
            .await
            .ok()
            .and_then(Result::ok)
    }

    /// Records the start of processing a commit, before anything is rendered.
    pub(super) async fn begin(&self, commit: &str, permit: Option<OwnedSemaphorePermit>) {
        {
            let mut state = self.lock();
            let crashed = state.crashed.take_if(|crashed| crashed.commit == commit);
            state.open = Some(Open {
                commit: commit.to_owned(),
                crashes: crashed.map_or(0, |crashed| crashed.crashes),
                is_recorded: false,
                permit,
                unplanned: None,
            });
        }
        self.record().await;
    }

    /// Writes the record of the commit in progress, unless it is written already.
    pub(super) async fn record(&self) {
        let is_due = {
            let state = self.lock();
            state.open.as_ref().is_some_and(|open| !open.is_recorded)
        };
        if is_due {
            let attempt = self.clone();
            let _written = spawn_blocking(move || attempt.write()).await;
        }
    }

    /// Writes the record. Does nothing if the attempt ended: the caller can have been canceled, and
    /// this thread continues. Blocks.
    fn write(&self) {
        let mut state = self.lock();
        let is_suspect = state.is_suspect;
        if let Some(open) = &mut state.open {
            open.is_recorded = true;
            let content = Content {
                version: VERSION,
                commit: open.commit.clone(),
                crashes: open.crashes,
                is_open: true,
                is_suspect,
                process: std::process::id(),
            };
            // Write under the lock, so that the end of this attempt cannot overtake the write.
            write(&self.0.file, &content);
        }
        drop(state);
    }

    /// Removes the record while nothing can be planned. [`Self::record`] writes it again.
    pub(super) fn suspend_record(&self) {
        let mut state = self.lock();
        if let Some(open) = &mut state.open {
            open.is_recorded = false;
            open.permit = None;
            remove(&self.0.file);
        }
        drop(state);
    }

    /// Returns a guard that ends the attempt when the task of the environment ends or is canceled.
    /// A panic of the task ends the process, so the attempt stays recorded then. A panic that is
    /// caught is no crash: the caller reports its release as planned.
    pub(super) fn end_on_drop(&self) -> EndOnDrop {
        EndOnDrop(self.clone())
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
        if state.open.take().is_some() {
            state.is_suspect = false;
            remove(&self.0.file);
        }
        drop(state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Guard that ends an attempt on drop, unless the thread panics.
#[derive(Debug)]
#[must_use]
pub(super) struct EndOnDrop(Attempt);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.end();
        }
    }
}

fn remove(file: &Path) {
    if let Err(error) = pleach_files::remove_file(file) {
        tracing::warn!(%error, "failed to delete the crash record; after a restart, its commit counts as one that crashed the controller");
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
        tracing::warn!(%error, "failed to write the crash record; a commit that crashes the controller is retried without a backoff");
    }
}

#[cfg(test)]
mod tests;
