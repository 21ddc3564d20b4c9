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
use super::read::{Reading, Which, for_cluster};
use super::{NAMED, Shared, SourcePolicy, backoff};
use pleach_engine::load::Loaded;
use pleach_engine::words;
use pleach_git::branch_history::BranchHistory;
use pleach_git::budget::Budget;
use pleach_git::fetch::Carrier;
use pleach_git::remote::Remote;

/// Largest age of a branch history that lookups use.
const AGE: Duration = Duration::from_mins(1);
/// Time for which a history is retained without lookups.
const LINGER: Duration = Duration::from_secs(1);

/// Result of a lookup; `None` if no commit counts.
pub(super) type Recalled = Option<Arc<Loaded>>;

/// A lookup of a previous state. The sender is dropped without an answer if the lookup failed.
#[derive(Debug)]
pub(super) struct Question {
    /// Candidate commits. The newest that counts and can be loaded is used.
    pub(super) commits: BTreeSet<String>,
    /// The release to look up; `None` for the whole environment.
    pub(super) release: Option<String>,
    pub(super) answer: oneshot::Sender<Recalled>,
}

impl Question {
    fn answer(self, recalled: Recalled) {
        // The receiver is gone if the release has newer work.
        drop(self.answer.send(recalled));
    }
}

/// Task that looks up previous states, one per environment.
pub(super) struct Recollection {
    pub(super) environment: String,
    pub(super) assigned: watch::Receiver<Assigned>,
    pub(super) questions: mpsc::UnboundedReceiver<Question>,
    pub(super) shared: Shared,
    /// The commit that crashed the controller.
    pub(super) attempt: Attempt,
    /// Time limit of a lookup, and of the wait for lookups of other environments.
    pub(super) limit: Duration,
}

/// A history that is retained for further lookups.
#[derive(Debug)]
struct Kept {
    /// Permit for the history. Only one environment at a time has one, because histories are large.
    permit: OwnedSemaphorePermit,
    known: Known,
}

/// History of a branch, with the last result.
#[derive(Debug)]
struct Known {
    grant: Arc<SourcePolicy>,
    keys: Option<PathBuf>,
    fetched: Instant,
    former: BranchHistory,
    /// The last loaded commit, because lookups often repeat it.
    last: Option<(String, Recalled)>,
}

impl Recollection {
    /// Answers lookups until shutdown.
    pub(super) async fn run(mut self) {
        let stop = self.shared.stop.clone();
        let mut known: Option<Kept> = None;
        let mut failures = 0;
        while let Some(asked) = stop.run_until_cancelled(self.asked(known.is_some())).await {
            let answering = match asked {
                Asked::Questions(asked) => self.answer(asked, known.take()),
                Asked::Nothing => {
                    // Dropping it deletes files, so do that on a thread.
                    let known = known.take();
                    drop(tokio::task::spawn_blocking(move || drop(known)));
                    continue;
                }
                Asked::Over => return,
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
                    let pause = sleep(backoff::after(failures));
                    if stop.run_until_cancelled(pause).await.is_none() {
                        return;
                    }
                }
            }
        }
    }

    /// Waits for lookups and returns all that are pending. With a retained history, waits only for
    /// a limited time.
    async fn asked(&mut self, is_known: bool) -> Asked {
        let first = if is_known {
            timeout(LINGER, self.questions.recv()).await
        } else {
            Ok(self.questions.recv().await)
        };
        let first = match first {
            Ok(Some(first)) => first,
            Ok(None) => return Asked::Over,
            Err(_) => return Asked::Nothing,
        };
        let mut asked = vec![first];
        while let Ok(question) = self.questions.try_recv() {
            asked.push(question);
        }
        Asked::Questions(asked)
    }

    async fn answer(
        &self,
        mut asked: Vec<Question>,
        known: Option<Kept>,
    ) -> Result<Option<Kept>, String> {
        let assigned = self.assigned.borrow().clone();
        let Some(source) = assigned.grant.source(&self.environment) else {
            return Ok(None);
        };
        let (permit, known) = match known {
            Some(Kept { permit, known }) => (permit, Some(known)),
            None => (self.permit().await?, None),
        };
        // Skip lookups of releases that have newer work.
        asked.retain(|question| !question.answer.is_closed());
        let name = self.environment.clone();
        let search = Search {
            environment: name,
            branch: source.branch,
            remote: assigned.remote,
            grant: assigned.grant,
            reading: self.shared.reading.clone(),
            attempt: self.attempt.clone(),
            budget: self.shared.fetching.budget.clone(),
        };
        // If dropped, the fetch process is killed. The permit is free then.
        let fetcher = &self.shared.fetching.fetcher;
        let answering = fetcher.run(move |carrier| search.answer(carrier, asked, known));
        let Ok(answered) = timeout(self.limit, answering).await else {
            return Err(format!("the lookup did not finish within {:?}", self.limit));
        };
        let known = answered.map_err(|error| words(&error))??;
        Ok(known.map(|known| Kept { permit, known }))
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
enum Asked {
    Questions(Vec<Question>),
    /// No lookup arrived in time.
    Nothing,
    /// All senders are gone.
    Over,
}

/// Blocking search for previous commits of an environment.
struct Search {
    environment: String,
    branch: String,
    remote: Remote,
    grant: Arc<SourcePolicy>,
    reading: Reading,
    attempt: Attempt,
    budget: Budget,
}

impl Search {
    fn answer(
        &self,
        carrier: &Carrier<'_>,
        mut asked: Vec<Question>,
        known: Option<Known>,
    ) -> Result<Option<Known>, String> {
        if asked.is_empty() {
            return Ok(known);
        }
        let named: BTreeSet<String> = asked.iter().flat_map(|one| one.commits.clone()).collect();
        let had = |known: &Known| known.former.had(&named).map_err(|error| words(&error));
        let is_of_now = |known: &Known| {
            Arc::ptr_eq(&known.grant, &self.grant)
                && known.keys == self.remote.keys
                && known.fetched.elapsed() < AGE
        };
        let there = match &known {
            Some(known) if is_of_now(known) => had(known)?,
            _ => Vec::new(),
        };
        let (mut known, commits) = match known {
            // A missing commit can be newer than the history.
            Some(known) if there.len() == named.len() => (known, there),
            known => {
                // Delete the previous copy before the next fetch.
                drop(known);
                let known = self.fetch(carrier)?;
                let commits = had(&known)?;
                (known, commits)
            }
        };
        // Group lookups of the same commit.
        asked.sort_by(|a, b| a.commits.cmp(&b.commits));
        for question in asked {
            let recalled = self.recall(&commits, &question, &mut known)?;
            question.answer(recalled);
        }
        Ok(Some(known))
    }

    fn fetch(&self, carrier: &Carrier<'_>) -> Result<Known, String> {
        let fetched = BranchHistory::fetch_by(carrier, &self.budget, &self.remote, &self.branch);
        Ok(Known {
            grant: Arc::clone(&self.grant),
            keys: self.remote.keys.clone(),
            fetched: Instant::now(),
            former: fetched.map_err(|error| words(&error))?,
            last: None,
        })
    }

    /// Answers a lookup. `had` are commits of the branch, newest first.
    fn recall(
        &self,
        had: &[String],
        question: &Question,
        known: &mut Known,
    ) -> Result<Recalled, String> {
        for commit in had.iter().filter(|one| question.commits.contains(*one)) {
            let Some(loaded) = self.at(commit, known)? else {
                continue;
            };
            return Ok(Some(match &question.release {
                None => loaded,
                // Retain only the release: an environment can be large, and its releases can look
                // up different commits.
                Some(release) => Arc::new(loaded.alone(release)),
            }));
        }
        let (environment, branch) = (&self.environment, &self.branch);
        let commits = question.commits.iter().map(String::as_str);
        let commits: Vec<&str> = commits.take(NAMED).collect();
        tracing::info!(%environment, %branch, ?commits, "the last applied revision is not retained: the branch does not contain it, or it cannot be used");
        Ok(None)
    }

    /// Loads the environment at a commit of the branch. Returns `None` if the commit does not count
    /// or cannot be loaded.
    fn at(&self, commit: &str, known: &mut Known) -> Result<Recalled, String> {
        let unused = |reason: String| {
            let environment = &self.environment;
            tracing::info!(%environment, %commit, %reason, "a previous commit cannot be used");
        };
        if let Some(stall) = self.attempt.stall(commit) {
            unused(stall.message);
            return Ok(None);
        }
        let distrusted = known.former.distrusts(commit);
        if let Some(reason) = distrusted.map_err(|error| words(&error))? {
            unused(reason);
            return Ok(None);
        }
        if let Some((last, recalled)) = &known.last
            && last == commit
        {
            return Ok(recalled.clone());
        }
        let which = Which {
            place: known.former.reader().place(),
            commit: commit.to_owned(),
            name: self.environment.clone(),
        };
        let read = self.reading.load_anew(&which)?;
        let read = read.and_then(|loaded| for_cluster(loaded, &self.grant));
        let recalled = match read {
            Ok(loaded) => Some(Arc::new(loaded)),
            Err(stall) => {
                unused(stall.message);
                None
            }
        };
        known.last = Some((commit.to_owned(), recalled.clone()));
        Ok(recalled)
    }
}
