//! The pull requests of one repository: the newest commit of each that is open
//! is previewed once, and what came of it is told there.
//!
//! It is level-based too: whatever wakes it, it lists what is open now. A newer
//! commit takes the place of one that is being previewed, and one that was merged
//! or closed ends it. That a preview was told is known by the comment itself, so
//! nothing has to be kept.

mod subject;
pub(super) mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pleach_domain::repo::controller::Disk;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use self::subject::Subject;
use self::work::slots::Slots;
use self::work::{Outcome, Work};
use super::replicas::Standing;
use super::{LoopEvent, Repository, Shared, pace};
use crate::engine::preview_process::Verdict;
use crate::engine::words;
use crate::io::forge::{Forge, PullRequest};

/// How often the open ones are listed where nothing wakes this.
const POLL: Duration = Duration::from_mins(1);
/// So many failures of others count where a cluster did not answer: it is not asked
/// again within moments.
const CALMER: u32 = 2;
/// However often something wakes this: each time costs a request, and anybody may
/// comment on a pull request.
const SHORTEST: Duration = Duration::from_secs(3);
/// How long a preview may take as a whole, its turn not counted.
const LIMIT: Duration = Duration::from_mins(15);

/// How pull requests of a repository are previewed.
#[derive(Debug, Clone)]
pub struct Previews {
    /// Where they are.
    pub forge: Arc<Forge>,
    /// pleach itself: each preview is a process of its own.
    pub program: PathBuf,
    /// How these ask clusters; none where they do not.
    pub live: Option<Live>,
}

/// How previews ask clusters.
#[derive(Debug, Clone)]
pub struct Live {
    /// How the names of labels begin that vouch for a commit of a fork. None where
    /// nothing does.
    pub fork_label: Option<String>,
    /// Variables by which connections lead to clusters.
    pub variables: Vec<(OsString, OsString)>,
    /// Whether comments quote errors of clusters: everybody who can read the repository
    /// reads them.
    pub details: bool,
}

/// What came of previewing a pull request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Previewed {
    /// It can be carried out.
    Fine,
    /// It would not be carried out.
    Refused,
    /// It cannot be rendered.
    Invalid,
    /// It took more than it may, or broke down.
    GivenUp,
    /// It could not be told, and is tried again.
    Failed,
}

impl Previewed {
    /// In one word.
    pub fn word(self) -> &'static str {
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

/// One that is open.
struct Open {
    subject: Subject,
    /// Ends the preview that is under way.
    stop: CancellationToken,
    runs: bool,
    failures: u32,
    /// How often in a row a cluster did not answer.
    unanswered: u32,
    /// When it is tried again.
    retry_at: Option<Instant>,
    /// When something last happened on it, in the words of its forge.
    updated_at: Option<String>,
    /// How often it is still asked whether a member consented.
    questions: u8,
}

/// How often it is asked for consent after something happened on a pull request. Two
/// things may happen within the second that forges tell times by.
const QUESTIONS: u8 = 2;

/// What came of one try; none where it had been told before.
type Ended = (Subject, Result<Option<Outcome>, String>, Duration);

/// The task of the pull requests of a repository.
pub(super) struct PullRequests {
    work: Arc<Work>,
    wake: Arc<Notify>,
    /// Which replica previews.
    stands: watch::Receiver<Standing>,
    shared: Shared,
    open: BTreeMap<u64, Open>,
    tasks: JoinSet<Option<Ended>>,
}

impl PullRequests {
    pub(super) fn new(
        (repository, previews, disk): (&Repository, &Previews, Disk),
        wake: Arc<Notify>,
        (slots, stands): (Slots, watch::Receiver<Standing>),
        shared: Shared,
    ) -> Self {
        Self {
            work: Arc::new(Work::new((repository, previews, disk), slots)),
            wake,
            stands,
            shared,
            open: BTreeMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Runs until the loop ends.
    pub(super) async fn run(mut self) {
        let stop = self.shared.stop.clone();
        let mut failures = 0;
        loop {
            if !self.leads() {
                // Dropped, each ends what it has under way.
                self.open.clear();
                match stop.run_until_cancelled(self.stands.changed()).await {
                    Some(Ok(())) => continue,
                    _ => break,
                }
            }
            let listing = self.work.previews.forge.pull_requests();
            match stop.run_until_cancelled(listing).await {
                None => break,
                Some(Ok(pulls)) => {
                    failures = 0;
                    self.settle(pulls);
                }
                Some(Err(error)) => {
                    failures += 1;
                    self.shared.listener.tell(LoopEvent::Untold {
                        repository: self.work.repository.clone(),
                        message: words(&error),
                    });
                }
            }
            let pause = match failures {
                0 => pace::interval(POLL),
                failures => pace::after(failures),
            };
            if !self.wait(Instant::now() + pause, failures == 0).await {
                break;
            }
        }
        self.open.clear();
        while let Some(ended) = self.tasks.join_next().await {
            pass_on(ended);
        }
    }

    /// Whether it is this replica that previews.
    fn leads(&mut self) -> bool {
        let standing = self.stands.borrow_and_update();
        standing.leads_previews(&self.work.repository)
    }

    /// Waits until there is something to do; false at the end of the loop.
    async fn wait(&mut self, until: Instant, was_listed: bool) -> bool {
        let rested = Instant::now() + SHORTEST;
        loop {
            let retries = self.open.values().filter_map(|one| one.retry_at);
            let until = next_list((rested, until), retries, was_listed);
            tokio::select! {
                () = self.shared.stop.cancelled() => return false,
                () = self.wake.notified() => break,
                Ok(()) = self.stands.changed() => if !self.leads() {
                    return true;
                },
                () = sleep_until(until) => return true,
                Some(ended) = self.tasks.join_next() => self.end(pass_on(ended)),
            }
        }
        // Several things that happen at once are one.
        let resting = sleep_until(rested);
        self.shared
            .stop
            .run_until_cancelled(resting)
            .await
            .is_some()
    }

    /// Brings the tasks in line with what is open.
    fn settle(&mut self, pulls: Vec<PullRequest>) {
        let numbers: BTreeSet<u64> = pulls.iter().map(|pull| pull.number).collect();
        // Dropped, each ends what it has under way.
        self.open.retain(|number, _| numbers.contains(number));
        for mut pull in pulls {
            let updated_at = pull.updated_at.take();
            let subject = Subject::of(pull, self.work.previews.live.as_ref());
            // Some forges know a pull request before its commits.
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
                questions: 0,
            });
            if open.subject.awaits_consent()
                && (updated_at.is_none() || updated_at != open.updated_at)
            {
                open.updated_at = updated_at;
                open.questions = QUESTIONS;
            }
            let is_due = open.retry_at.is_some_and(|at| at <= Instant::now());
            // The pause after a failure comes first.
            let is_asked = open.retry_at.is_none() && open.questions > 0;
            if !open.runs && (is_due || is_asked) {
                open.runs = true;
                open.retry_at = None;
                open.questions = open.questions.saturating_sub(1);
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
                // New ones do not wait for all those whose cluster is away.
                let _again = if is_again {
                    Some(work.again.acquire().await.ok()?)
                } else {
                    None
                };
                let _permit = work.slots.acquire(&work.author(&subject)).await?;
                let started = Instant::now();
                let result = match timeout(LIMIT, Box::pin(work.preview(&subject))).await {
                    Ok(result) => result,
                    Err(_) => Err(format!("it took longer than {LIMIT:?}")),
                };
                Some((subject, result, started.elapsed()))
            };
            let trying = stop.run_until_cancelled(trying);
            whole.run_until_cancelled(trying).await??
        });
    }

    /// Notes what came of a try, if it is of what is open now.
    fn end(&mut self, ended: Option<Ended>) {
        let Some((subject, result, took)) = ended else {
            return;
        };
        let open = self.open.get_mut(&subject.number);
        let Some(open) = open.filter(|one| one.subject == subject) else {
            return;
        };
        open.runs = false;
        if open.questions > 0 {
            // Something happened on it meanwhile.
            open.retry_at = Some(Instant::now() + SHORTEST);
        }
        let (previewed, message) = match result {
            Ok(None) => return,
            Ok(Some(told)) => {
                if told.is_unanswered {
                    open.unanswered += 1;
                    let pause = pace::after(open.unanswered.saturating_add(CALMER));
                    open.retry_at = Some(Instant::now() + pause);
                }
                (told.previewed, told.message)
            }
            Err(message) => {
                open.failures += 1;
                open.retry_at = Some(Instant::now() + pace::after(open.failures));
                (Previewed::Failed, message)
            }
        };
        self.shared.listener.tell(LoopEvent::Previewed {
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

/// When the open ones are listed again: `until` at the latest, and earlier where one
/// of them is to be tried again. A forge that did not answer is not asked earlier for
/// that: its pauses grow.
fn next_list(
    (rested, until): (Instant, Instant),
    retries: impl Iterator<Item = Instant>,
    was_listed: bool,
) -> Instant {
    let retry = retries.filter(|_| was_listed).min();
    retry.map_or(until, |retry| retry.min(until)).max(rested)
}

/// A task that broke down takes the one that started it along.
fn pass_on(ended: Result<Option<Ended>, tokio::task::JoinError>) -> Option<Ended> {
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
    async fn what_is_tried_again_does_not_hurry_a_forge_that_does_not_answer() {
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
