//! Previews of the pull requests of one repository: the newest commit of each open one is previewed
//! once, and the result is posted there.
//!
//! It is level-based too: any trigger lists the open pull requests. A newer commit cancels the
//! preview of the previous one, and a merge or close cancels it too. The comment itself shows that
//! a preview was posted, so no state is stored.

mod subject;
pub(super) mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pleach_reconciler::config::Disk;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use self::subject::Subject;
use self::work::slots::Slots;
use self::work::{Outcome, Work};
use super::replicas::Leadership;
use super::{ControllerEvent, Repository, Shared, backoff};
use pleach_engine::{preview_process::Verdict, words};
use pleach_forge::{Forge, PullRequest};

/// Interval between lists without a trigger.
const POLL: Duration = Duration::from_mins(1);
/// Number of extra failures that an unanswered cluster counts for, so that it gets a longer
/// backoff.
const UNANSWERED_FAILURES: u32 = 2;
/// Shortest time between lists. Each list costs a request, and anyone can trigger one with a
/// comment.
const SHORTEST: Duration = Duration::from_secs(3);
/// Time limit of a preview, excluding the wait for a slot.
const LIMIT: Duration = Duration::from_mins(15);

/// Configuration of previews for a repository.
#[derive(Debug, Clone)]
pub struct Previews {
    /// Forge of the pull requests.
    pub forge: Arc<Forge>,
    /// Path of the pleach binary, which runs each preview as a process.
    pub program: PathBuf,
    /// Access of previews to clusters; `None` without any.
    pub live: Option<Live>,
}

/// Access of previews to clusters.
#[derive(Debug, Clone)]
pub struct Live {
    /// Prefix of labels that approve a commit of a fork. `None`: no label does.
    pub fork_label: Option<String>,
    /// Environment variables that cluster connections need.
    pub variables: Vec<(OsString, OsString)>,
    /// Whether comments quote errors of clusters. Every reader of the repository sees them.
    pub details: bool,
}

/// Outcome of a preview of a pull request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Previewed {
    /// The change can be applied.
    Fine,
    /// The change would be refused.
    Refused,
    /// The change cannot be rendered.
    Invalid,
    /// The preview exceeded a limit or crashed.
    GivenUp,
    /// The result could not be posted. It will be retried.
    Failed,
}

impl Previewed {
    /// Returns the outcome in one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Refused => "refused",
            Self::Invalid => "invalid",
            Self::GivenUp => "given-up",
            Self::Failed => "failed",
        }
    }
}

impl From<Verdict> for Previewed {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Fine => Self::Fine,
            Verdict::Refused => Self::Refused,
            Verdict::Invalid => Self::Invalid,
        }
    }
}

/// An open pull request.
struct Open {
    subject: Subject,
    /// Cancels the preview in progress.
    stop: CancellationToken,
    runs: bool,
    failures: u32,
    /// Number of consecutive attempts without an answer from a cluster.
    unanswered: u32,
    /// Time of the next attempt.
    retry_at: Option<Instant>,
    /// Time of the last activity, in the format of the forge.
    updated_at: Option<String>,
    /// Remaining checks for the consent of a member.
    consent_checks: u8,
}

/// Number of consent checks after an activity. Two, because forges have timestamps in seconds and
/// two activities can share one.
const CONSENT_CHECKS: u8 = 2;

/// Result of one attempt. The inner `None`: already posted before.
type Ended = (Subject, Result<Option<Outcome>, String>, Duration);

/// Task of the pull requests of a repository.
pub(super) struct PullRequests {
    work: Arc<Work>,
    trigger: Arc<Notify>,
    /// Leadership: selects the replica that previews.
    leadership: watch::Receiver<Leadership>,
    shared: Shared,
    open: BTreeMap<u64, Open>,
    tasks: JoinSet<Option<Ended>>,
}

impl PullRequests {
    pub(super) fn new(
        (repository, previews, disk): (&Repository, &Previews, Disk),
        trigger: Arc<Notify>,
        (slots, leadership): (Slots, watch::Receiver<Leadership>),
        shared: Shared,
    ) -> Self {
        Self {
            work: Arc::new(Work::new((repository, previews, disk), slots)),
            trigger,
            leadership,
            shared,
            open: BTreeMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Runs until shutdown.
    pub(super) async fn run(mut self) {
        let stop = self.shared.stop.clone();
        let mut failures = 0;
        loop {
            if !self.leads() {
                // Dropping an entry cancels its preview.
                self.open.clear();
                match stop.run_until_cancelled(self.leadership.changed()).await {
                    Some(Ok(())) => continue,
                    _ => break,
                }
            }
            let listing = self.work.previews.forge.pull_requests();
            match stop.run_until_cancelled(listing).await {
                None => break,
                Some(Ok(pulls)) => {
                    failures = 0;
                    self.update(pulls);
                }
                Some(Err(error)) => {
                    failures += 1;
                    self.shared
                        .events
                        .report(ControllerEvent::ForgeUnreachable {
                            repository: self.work.repository.clone(),
                            message: words(&error),
                        });
                }
            }
            let delay = match failures {
                0 => backoff::interval(POLL),
                failures => backoff::after(failures),
            };
            if !self.wait(Instant::now() + delay, failures == 0).await {
                break;
            }
        }
        self.open.clear();
        while let Some(ended) = self.tasks.join_next().await {
            propagate_panic(ended);
        }
    }

    /// Returns whether this replica previews.
    fn leads(&mut self) -> bool {
        let leadership = self.leadership.borrow_and_update();
        leadership.leads_previews(&self.work.repository)
    }

    /// Waits until there is something to do. Returns false at shutdown.
    async fn wait(&mut self, until: Instant, was_listed: bool) -> bool {
        let earliest = Instant::now() + SHORTEST;
        loop {
            let retries = self.open.values().filter_map(|one| one.retry_at);
            let until = next_list((earliest, until), retries, was_listed);
            tokio::select! {
                () = self.shared.stop.cancelled() => return false,
                () = self.trigger.notified() => break,
                Ok(()) = self.leadership.changed() => if !self.leads() {
                    return true;
                },
                () = sleep_until(until) => return true,
                Some(ended) = self.tasks.join_next() => self.end(propagate_panic(ended)),
            }
        }
        // Combine several events into one list.
        let waiting = sleep_until(earliest);
        self.shared
            .stop
            .run_until_cancelled(waiting)
            .await
            .is_some()
    }

    /// Adapts the tasks to the open pull requests.
    fn update(&mut self, pulls: Vec<PullRequest>) {
        let numbers: BTreeSet<u64> = pulls.iter().map(|pull| pull.number).collect();
        // Dropping an entry cancels its preview.
        self.open.retain(|number, _| numbers.contains(number));
        for mut pull in pulls {
            let updated_at = pull.updated_at.take();
            let subject = Subject::of(pull, self.work.previews.live.as_ref());
            // Some forges report a pull request before its commits.
            if subject.head.is_empty() {
                continue;
            }
            let number = subject.number;
            let open = self
                .open
                .remove(&number)
                .filter(|one| one.subject == subject);
            let mut open = open.unwrap_or_else(|| Open {
                subject,
                stop: CancellationToken::new(),
                runs: false,
                failures: 0,
                unanswered: 0,
                retry_at: Some(Instant::now()),
                updated_at: None,
                consent_checks: 0,
            });
            if open.subject.awaits_consent()
                && (updated_at.is_none() || updated_at != open.updated_at)
            {
                open.updated_at = updated_at;
                open.consent_checks = CONSENT_CHECKS;
            }
            let is_due = open.retry_at.is_some_and(|at| at <= Instant::now());
            // A backoff after a failure has priority.
            let needs_consent_check = open.retry_at.is_none() && open.consent_checks > 0;
            if !open.runs && (is_due || needs_consent_check) {
                open.runs = true;
                open.retry_at = None;
                open.consent_checks = open.consent_checks.saturating_sub(1);
                self.start(&open);
            }
            self.open.insert(number, open);
        }
    }

    fn start(&mut self, open: &Open) {
        let (work, subject) = (Arc::clone(&self.work), open.subject.clone());
        let (stop, whole) = (open.stop.clone(), self.shared.stop.clone());
        let is_again = open.unanswered > 0;
        self.tasks.spawn_local(async move {
            let trying = async {
                // New previews do not queue behind repeated ones of an unreachable cluster.
                let _retry = if is_again {
                    Some(work.retries.acquire().await.ok()?)
                } else {
                    None
                };
                let _permit = work.slots.acquire(&work.author(&subject)).await?;
                let started = Instant::now();
                let result = match timeout(LIMIT, Box::pin(work.preview(&subject))).await {
                    Ok(result) => result,
                    Err(_) => Err(format!("the preview took longer than {LIMIT:?}")),
                };
                Some((subject, result, started.elapsed()))
            };
            let trying = stop.run_until_cancelled(trying);
            whole.run_until_cancelled(trying).await??
        });
    }

    /// Records the result of an attempt, unless the pull request changed meanwhile.
    fn end(&mut self, ended: Option<Ended>) {
        let Some((subject, result, took)) = ended else {
            return;
        };
        let open = self.open.get_mut(&subject.number);
        let Some(open) = open.filter(|one| one.subject == subject) else {
            return;
        };
        open.runs = false;
        if open.consent_checks > 0 {
            // An activity happened during the attempt.
            open.retry_at = Some(Instant::now() + SHORTEST);
        }
        let (previewed, message) = match result {
            Ok(None) => return,
            Ok(Some(outcome)) => {
                if outcome.is_unanswered {
                    open.unanswered += 1;
                    let delay = backoff::after(open.unanswered.saturating_add(UNANSWERED_FAILURES));
                    open.retry_at = Some(Instant::now() + delay);
                }
                (outcome.previewed, outcome.message)
            }
            Err(message) => {
                open.failures += 1;
                open.retry_at = Some(Instant::now() + backoff::after(open.failures));
                (Previewed::Failed, message)
            }
        };
        self.shared.events.report(ControllerEvent::Previewed {
            repository: self.work.repository.clone(),
            number: subject.number,
            head: subject.head,
            previewed,
            message,
            took,
        });
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Returns the time of the next list: `until`, or earlier for a retry of a pull request. A forge
/// that did not answer is not queried early, so that its backoff grows.
fn next_list(
    (earliest, until): (Instant, Instant),
    retries: impl Iterator<Item = Instant>,
    was_listed: bool,
) -> Instant {
    let retry = retries.filter(|_| was_listed).min();
    retry.map_or(until, |retry| retry.min(until)).max(earliest)
}

/// Propagates the panic of a task.
fn propagate_panic(ended: Result<Option<Ended>, tokio::task::JoinError>) -> Option<Ended> {
    match ended {
        Ok(ended) => ended,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn retries_do_not_shorten_the_backoff_of_a_silent_forge() {
        tokio::time::advance(Duration::from_mins(1)).await;
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let between = (after(1), after(300));
        let overdue = now - Duration::from_secs(30);
        for (retries, was_listed, expected) in [
            (vec![], true, after(300)),
            (vec![after(20), after(10)], true, after(10)),
            (vec![after(400)], true, after(300)),
            (vec![overdue], true, after(1)),
            (vec![overdue, after(10)], false, after(300)),
        ] {
            let next = next_list(between, retries.into_iter(), was_listed);
            assert_eq!(next, expected, "{was_listed}");
        }
    }
}
