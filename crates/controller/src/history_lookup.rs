//! History lookup: the last reconciled state of releases whose newest commit waits. After a
//! restart, drift is corrected to that state.
//!
//! The record in the cluster names the commit, but clients with write access to the cluster must
//! not decide about git. So a commit counts only if it is in the history of the configured branch,
//! and carries the required signatures.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

use super::assignment::Assigned;
use super::crash::Attempt;
use super::loader::{Loader, check_cluster};
use super::{NAMED, Shared, SourcePolicy, backoff};
use pleach_engine::bounded_render::EnvironmentAt;
use pleach_engine::load::Loaded;
use pleach_engine::words;
use pleach_git::branch_history::BranchHistory;
use pleach_git::budget::Budget;
use pleach_git::fetch::Carrier;
use pleach_git::remote::Remote;

/// Largest age of a branch history that lookups use.
const MAX_AGE: Duration = Duration::from_mins(1);
/// Time for which a history is retained without lookups.
const RETENTION: Duration = Duration::from_secs(1);

/// Result of a lookup; `None` if no commit counts.
pub(super) type LookupResult = Option<Arc<Loaded>>;

/// A lookup of a previous state. The sender is dropped without an answer if the lookup failed.
#[derive(Debug)]
pub(super) struct LookupRequest {
    /// Candidate commits. The newest that counts and can be loaded is used.
    pub(super) commits: BTreeSet<String>,
    /// The release to look up; `None` for the whole environment.
    pub(super) release: Option<String>,
    pub(super) answer: oneshot::Sender<LookupResult>,
}

impl LookupRequest {
    fn answer(self, result: LookupResult) {
        // The receiver is gone if the release has newer work.
        drop(self.answer.send(result));
    }
}

/// Task that looks up previous states, one per environment.
pub(super) struct HistoryLookup {
    pub(super) environment: String,
    pub(super) assigned: watch::Receiver<Assigned>,
    pub(super) requests: mpsc::UnboundedReceiver<LookupRequest>,
    pub(super) shared: Shared,
    /// The commit that crashed the controller.
    pub(super) attempt: Attempt,
    /// Time limit of a lookup, and of the wait for lookups of other environments.
    pub(super) limit: Duration,
}

/// A history that is retained for further lookups.
#[derive(Debug)]
struct RetainedHistory {
    /// Permit for the history. Only one environment at a time has one, because histories are large.
    permit: OwnedSemaphorePermit,
    known: History,
}

/// History of a branch, with the last result.
#[derive(Debug)]
struct History {
    source_policy: Arc<SourcePolicy>,
    keys: Option<PathBuf>,
    fetched: Instant,
    branch: BranchHistory,
    /// The last loaded commit, because lookups often repeat it.
    last: Option<(String, LookupResult)>,
}

impl HistoryLookup {
    /// Answers lookups until shutdown.
    pub(super) async fn run(mut self) {
        let stop = self.shared.stop.clone();
        let mut known: Option<RetainedHistory> = None;
        let mut failures = 0;
        while let Some(received) = stop
            .run_until_cancelled(self.received(known.is_some()))
            .await
        {
            let answering = match received {
                Received::Requests(received) => self.answer(received, known.take()),
                Received::Timeout => {
                    // Dropping it deletes files, so do that on a thread.
                    let known = known.take();
                    drop(tokio::task::spawn_blocking(move || drop(known)));
                    continue;
                }
                Received::Closed => return,
            };
            match stop.run_until_cancelled(answering).await {
                None => return,
                Some(Ok(now)) => {
                    failures = 0;
                    known = now;
                }
                Some(Err(error)) => {
                    failures += 1;
                    tracing::warn!(environment = %self.environment, %error, "failed to look up the last applied revision");
                    let delay = sleep(backoff::after(failures));
                    if stop.run_until_cancelled(delay).await.is_none() {
                        return;
                    }
                }
            }
        }
    }

    /// Waits for lookups and returns all that are pending. With a retained history, waits only for
    /// a limited time.
    async fn received(&mut self, is_known: bool) -> Received {
        let first = if is_known {
            timeout(RETENTION, self.requests.recv()).await
        } else {
            Ok(self.requests.recv().await)
        };
        let first = match first {
            Ok(Some(first)) => first,
            Ok(None) => return Received::Closed,
            Err(_) => return Received::Timeout,
        };
        let mut received = vec![first];
        while let Ok(request) = self.requests.try_recv() {
            received.push(request);
        }
        Received::Requests(received)
    }

    async fn answer(
        &self,
        mut received: Vec<LookupRequest>,
        known: Option<RetainedHistory>,
    ) -> Result<Option<RetainedHistory>, String> {
        let assigned = self.assigned.borrow().clone();
        let Some(source) = assigned.source_policy.source(&self.environment) else {
            return Ok(None);
        };
        if !assigned.has_history {
            return Ok(None);
        }
        let (permit, known) = match known {
            Some(RetainedHistory { permit, known }) => (permit, Some(known)),
            None => (self.permit().await?, None),
        };
        // Skip lookups of releases that have newer work.
        received.retain(|request| !request.answer.is_closed());
        let name = self.environment.clone();
        let search = Search {
            environment: name,
            branch: source.branch,
            remote: assigned.remote,
            source_policy: assigned.source_policy,
            loader: self.shared.loader.clone(),
            attempt: self.attempt.clone(),
            budget: self.shared.fetching.budget.clone(),
        };
        // If dropped, the fetch process is killed. The permit is free then.
        let fetcher = &self.shared.fetching.fetcher;
        let answering = fetcher.run(move |carrier| search.answer(carrier, received, known));
        let Ok(answered) = timeout(self.limit, answering).await else {
            return Err(format!("the lookup did not finish within {:?}", self.limit));
        };
        let known = answered.map_err(|error| words(&error))??;
        Ok(known.map(|known| RetainedHistory { permit, known }))
    }

    /// Waits until no other environment retains a history.
    async fn permit(&self) -> Result<OwnedSemaphorePermit, String> {
        let waiting = Arc::clone(&self.shared.histories).acquire_owned();
        match timeout(self.limit, waiting).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) => Err("the controller is shutting down".to_owned()),
            Err(_) => Err("timed out behind the lookups of other environments".to_owned()),
        }
    }
}

/// Received lookups.
enum Received {
    Requests(Vec<LookupRequest>),
    /// No lookup arrived in time.
    Timeout,
    /// All senders are gone.
    Closed,
}

/// Blocking search for previous commits of an environment.
struct Search {
    environment: String,
    branch: String,
    remote: Remote,
    source_policy: Arc<SourcePolicy>,
    loader: Loader,
    attempt: Attempt,
    budget: Budget,
}

impl Search {
    fn answer(
        &self,
        carrier: &Carrier<'_>,
        mut received: Vec<LookupRequest>,
        known: Option<History>,
    ) -> Result<Option<History>, String> {
        if received.is_empty() {
            return Ok(known);
        }
        let commits: BTreeSet<String> = received
            .iter()
            .flat_map(|one| one.commits.clone())
            .collect();
        let had = |known: &History| known.branch.had(&commits).map_err(|error| words(&error));
        let is_current = |known: &History| {
            Arc::ptr_eq(&known.source_policy, &self.source_policy)
                && known.keys == self.remote.keys
                && known.fetched.elapsed() < MAX_AGE
        };
        let found = match &known {
            Some(known) if is_current(known) => had(known)?,
            _ => Vec::new(),
        };
        let (mut known, commits) = match known {
            // A missing commit can be newer than the history.
            Some(known) if found.len() == commits.len() => (known, found),
            known => {
                // Delete the previous copy before the next fetch.
                drop(known);
                let known = self.fetch(carrier)?;
                let commits = had(&known)?;
                (known, commits)
            }
        };
        // Group lookups of the same commit.
        received.sort_by(|a, b| a.commits.cmp(&b.commits));
        for request in received {
            let result = self.look_up(&commits, &request, &mut known)?;
            request.answer(result);
        }
        Ok(Some(known))
    }

    fn fetch(&self, carrier: &Carrier<'_>) -> Result<History, String> {
        let fetched = BranchHistory::fetch_by(carrier, &self.budget, &self.remote, &self.branch);
        Ok(History {
            source_policy: Arc::clone(&self.source_policy),
            keys: self.remote.keys.clone(),
            fetched: Instant::now(),
            branch: fetched.map_err(|error| words(&error))?,
            last: None,
        })
    }

    /// Answers a lookup. `had` are commits of the branch, newest first.
    fn look_up(
        &self,
        had: &[String],
        request: &LookupRequest,
        known: &mut History,
    ) -> Result<LookupResult, String> {
        for commit in had.iter().filter(|one| request.commits.contains(*one)) {
            let Some(loaded) = self.at(commit, known)? else {
                continue;
            };
            return Ok(Some(match &request.release {
                None => loaded,
                // Retain only the release: an environment can be large, and its releases can look
                // up different commits.
                Some(release) => Arc::new(loaded.alone(release)),
            }));
        }
        let (environment, branch) = (&self.environment, &self.branch);
        let commits = request.commits.iter().map(String::as_str);
        let commits: Vec<&str> = commits.take(NAMED).collect();
        tracing::info!(%environment, %branch, ?commits, "the last applied revision is not retained: the branch does not contain it, or it cannot be used");
        Ok(None)
    }

    /// Loads the environment at a commit of the branch. Returns `None` if the commit does not count
    /// or cannot be loaded.
    fn at(&self, commit: &str, known: &mut History) -> Result<LookupResult, String> {
        let skip = |reason: String| {
            let environment = &self.environment;
            tracing::info!(%environment, %commit, %reason, "a previous commit cannot be used");
        };
        if let Some(stall) = self.attempt.stall(commit) {
            skip(stall.message);
            return Ok(None);
        }
        let distrusted = known.branch.distrusts(commit);
        if let Some(reason) = distrusted.map_err(|error| words(&error))? {
            skip(reason);
            return Ok(None);
        }
        if let Some((last, result)) = &known.last
            && last == commit
        {
            return Ok(result.clone());
        }
        let at = EnvironmentAt {
            place: known.branch.reader().place(),
            commit: commit.to_owned(),
            name: self.environment.clone(),
            keys: self.source_policy.keys.clone(),
        };
        let read = self.loader.load_blocking(&at)?;
        let read = read.and_then(|loaded| check_cluster(loaded, &self.source_policy));
        let result = match read {
            Ok(loaded) => Some(Arc::new(loaded)),
            Err(stall) => {
                skip(stall.message);
                None
            }
        };
        known.last = Some((commit.to_owned(), result.clone()));
        Ok(result)
    }
}
