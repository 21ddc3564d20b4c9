//! Task of one repository: fetches after a push, and at an interval.

use std::sync::Arc;
use std::time::Duration;

use pleach_reconciler::config::Branches;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use super::artifact::ArtifactCopy;
use super::backoff::{self, FetchSchedule, FetchTrigger};
use super::known_environments::{EnvironmentLookup, RecordedEnvironment};
use super::{ControllerEvent, Fetching, Repository, Shared};
use pleach_engine::words;
use pleach_git::{
    GitError,
    mirror::{Fetched, Limits, Mirror},
};

/// Longest interval between fetches.
const LONGEST: Duration = Duration::from_mins(1);
/// State of a repository.
#[derive(Debug, Clone, Default)]
pub(super) struct SourceState {
    /// Branches at the last successful fetch.
    pub(super) fetched: Option<Arc<Fetched>>,
    /// Error if it is unreachable now.
    pub(super) error: Option<String>,
    /// Recorded environments, looked up before the first successful fetch.
    pub(super) recorded: Vec<RecordedEnvironment>,
    /// Whether a fetch was tried.
    pub(super) was_tried: bool,
    /// Sequence number of the last fetch request before the latest fetch, which succeeded or
    /// failed.
    pub(super) answered: u64,
}

/// Fetches until shutdown. Publishes the state and notifies the receiver.
pub(super) async fn follow(
    repository: Repository,
    (trigger, fetch_schedule): (Arc<Notify>, FetchSchedule),
    (sender, changed): (watch::Sender<SourceState>, Arc<Notify>),
    shared: Shared,
) {
    let mut copies = Copies::default();
    let mut lookup = EnvironmentLookup::new(&repository);
    let mut failures = 0;
    let mut fetch_trigger = FetchTrigger::new(trigger);
    loop {
        let (started, requests) = (Instant::now(), fetch_schedule.requests());
        fetch_trigger.clear();
        let fetching = fetch(&repository, &mut copies, &shared.fetching);
        let Some(fetched) = shared.stop.run_until_cancelled(fetching).await else {
            return;
        };
        match fetched {
            Ok(fetched) => {
                failures = 0;
                shared.events.report(ControllerEvent::Fetched {
                    repository: repository.name.clone(),
                    branches: fetched.heads.len(),
                    took: started.elapsed(),
                });
                sender.send_replace(SourceState {
                    fetched: Some(Arc::new(fetched)),
                    error: None,
                    recorded: Vec::new(),
                    was_tried: true,
                    answered: requests,
                });
            }
            Err(message) => {
                failures += 1;
                shared.events.report(ControllerEvent::SourceUnreachable {
                    repository: repository.name.clone(),
                    message: message.clone(),
                });
                sender.send_modify(|state| {
                    // Publish only repeated failures: the first is retried at once, and each
                    // publication makes every release report.
                    if failures > 1 || state.fetched.is_none() {
                        state.error = Some(message);
                    }
                    state.was_tried = true;
                    state.answered = requests;
                });
                if sender.borrow().fetched.is_none() && lookup.is_open() {
                    // Publish the error now, because the lookup can be slow.
                    changed.notify_one();
                    let querying = lookup.query(&repository);
                    let Some(recorded) = shared.stop.run_until_cancelled(querying).await else {
                        return;
                    };
                    sender.send_modify(|state| state.recorded.extend(recorded));
                }
            }
        }
        changed.notify_one();
        let fetched_at = Instant::now();
        let took = fetched_at.saturating_duration_since(started);
        loop {
            let delay = if failures > 0 {
                backoff::after(failures)
            } else {
                backoff::interval(fetch_schedule.shortest().unwrap_or(LONGEST).min(LONGEST))
            };
            tokio::select! {
                () = fetch_trigger.wait_until_due((started, took)) => break,
                () = fetch_schedule.requested() => break,
                () = sleep_until(fetched_at + delay) => break,
                // A newly loaded environment can have a shorter interval.
                () = fetch_schedule.changed() => {}
                () = shared.stop.cancelled() => return,
            }
        }
    }
}

/// Copies of a repository: one of them is in use.
#[derive(Default)]
struct Copies {
    mirror: Option<Mirror>,
    artifact: ArtifactCopy,
}

/// Fetches once. Connections have deadlines.
async fn fetch(
    repository: &Repository,
    copies: &mut Copies,
    fetching: &Fetching,
) -> Result<Fetched, String> {
    if let Some(artifact) = &repository.artifact {
        return copies.artifact.fetch(artifact, fetching).await;
    }
    let taken = copies.mirror.take();
    let remote = repository.remote.clone();
    let limits = Limits::of(fetching.budget.clone());
    let branches: Vec<Branches> = repository
        .source_policies
        .iter()
        .map(|source_policy| source_policy.branches.clone())
        .collect();
    let calling = fetching.fetcher.run(move |carrier| {
        let mut taken = taken.unwrap_or_else(|| Mirror::within(remote, limits));
        let is_followed =
            |branch: &str| branches.iter().any(|one| one.environment(branch).is_some());
        let fetched: Result<Fetched, GitError> = taken.fetch_by(carrier, is_followed);
        (taken, fetched)
    });
    let (back, fetched) = calling.await.map_err(|error| words(&error))?;
    copies.mirror = Some(back);
    fetched.map_err(|error| words(&error))
}
