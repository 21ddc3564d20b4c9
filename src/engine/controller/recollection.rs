//! What releases were brought to before the loop started, for those whose newest
//! commit waits: drift is corrected to it.
//!
//! The record of a release names the commit that it was brought to. It lies in the
//! cluster, and whoever may write there decides nothing about git: a commit counts
//! only where the branch that the configuration names has it in its history, and
//! where it is signed as commits have to be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use pleach_domain::inventory::Source;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use super::assigned::Assigned;
use super::environment::{LIMIT, for_cluster};
use super::read::load;
use super::{Grant, Shared, pace};
use crate::engine::load::Loaded;
use crate::engine::words;
use crate::io::git::former::former;
use crate::io::git::mirror::Remote;

/// What an environment was at a commit; none where that commit does not count.
pub(super) type Recalled = Option<Arc<Loaded>>;

/// Asks what an environment was at a commit. Nothing is answered where that could
/// not be looked up now.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) commit: String,
    pub(super) answer: oneshot::Sender<Recalled>,
}

impl Question {
    fn answer(self, recalled: Recalled) {
        // Who asked may have something newer to look at by now.
        drop(self.answer.send(recalled));
    }
}

/// A question of a release, with its answer.
#[derive(Debug)]
pub(super) struct Recall {
    commit: String,
    answer: Answer,
}

#[derive(Debug)]
enum Answer {
    Awaited(oneshot::Receiver<Recalled>),
    Known(Recalled),
}

impl Recall {
    /// Asks.
    pub(super) fn of(commit: String, questions: &mpsc::UnboundedSender<Question>) -> Self {
        let (answer, answered) = oneshot::channel();
        let question = Question {
            commit: commit.clone(),
            answer,
        };
        // Nobody answers any more when the loop ends.
        drop(questions.send(question));
        Self {
            commit,
            answer: Answer::Awaited(answered),
        }
    }

    /// What was answered for this commit; the outer none where it was not asked.
    pub(super) fn answered(&self, commit: &str) -> Option<Recalled> {
        if self.commit != commit {
            return None;
        }
        Some(match &self.answer {
            Answer::Awaited(_) => None,
            Answer::Known(recalled) => recalled.clone(),
        })
    }

    /// Whether the commit does not count: something newer may change that.
    pub(super) fn is_in_vain(&self) -> bool {
        matches!(self.answer, Answer::Known(None))
    }

    /// Comes back when there is an answer that can be used. What could not be looked
    /// up is forgotten, and asked for again by the next look.
    pub(super) async fn is_answered(this: &mut Option<Self>) {
        if let Some(recall) = this
            && let Answer::Awaited(answered) = &mut recall.answer
        {
            match answered.await {
                Ok(recalled) => {
                    let is_found = recalled.is_some();
                    recall.answer = Answer::Known(recalled);
                    if is_found {
                        return;
                    }
                }
                Err(_) => *this = None,
            }
        }
        std::future::pending::<()>().await;
    }
}

/// Looks up what an environment was; one such task per environment.
pub(super) struct Recollection {
    pub(super) environment: String,
    pub(super) assigned: watch::Receiver<Assigned>,
    pub(super) questions: mpsc::UnboundedReceiver<Question>,
    pub(super) shared: Shared,
}

/// What is known of commits of a branch. Those who asked keep it: it is given to
/// others as long as they do.
#[derive(Debug, Default)]
struct Known {
    source: Option<Source>,
    commits: BTreeMap<String, Weak<Loaded>>,
}

impl Recollection {
    /// Answers until the loop ends.
    pub(super) async fn run(mut self) {
        let stop = self.shared.stop.clone();
        let mut known = Known::default();
        let mut failures = 0;
        while let Some(Some(first)) = stop.run_until_cancelled(self.questions.recv()).await {
            let mut asked = vec![first];
            while let Ok(question) = self.questions.try_recv() {
                asked.push(question);
            }
            match stop
                .run_until_cancelled(self.answer(asked, &mut known))
                .await
            {
                None => return,
                Some(Ok(())) => failures = 0,
                Some(Err(error)) => {
                    failures += 1;
                    tracing::warn!(environment = %self.environment, %error, "what was synced last cannot be looked up");
                    let pause = sleep(pace::after(failures));
                    if stop.run_until_cancelled(pause).await.is_none() {
                        return;
                    }
                }
            }
        }
    }

    async fn answer(&self, asked: Vec<Question>, known: &mut Known) -> Result<(), String> {
        let assigned = self.assigned.borrow().clone();
        let name = self.environment.clone();
        let source = assigned.grant.source(&name);
        if known.source != source {
            *known = Known {
                source: source.clone(),
                ..Known::default()
            };
        }
        known.commits.retain(|_, loaded| loaded.strong_count() > 0);
        let mut open: BTreeMap<String, Vec<Question>> = BTreeMap::new();
        for question in asked {
            match known.commits.get(&question.commit).and_then(Weak::upgrade) {
                Some(loaded) => question.answer(Some(loaded)),
                None => open
                    .entry(question.commit.clone())
                    .or_default()
                    .push(question),
            }
        }
        let Some(source) = source.filter(|_| !open.is_empty()) else {
            return Ok(());
        };
        // A history is large: one at a time, of all environments.
        let Ok(_room) = self.shared.histories.acquire().await else {
            return Ok(());
        };
        let work = format!("to look up what environment {name} was");
        let _work = self.shared.pulse.work(work, LIMIT * 2);
        let (remote, grant) = (assigned.remote, assigned.grant);
        let reading = tokio::task::spawn_blocking(move || {
            look_up(&remote, &source.branch, open, &name, &grant)
        });
        let found = match timeout(LIMIT, reading).await {
            Ok(Ok(read)) => read?,
            Ok(Err(_)) => return Err("a commit could not be read; this is a bug".to_owned()),
            Err(_) => return Err(format!("git did not answer within {LIMIT:?}")),
        };
        known.commits.extend(found);
        Ok(())
    }
}

/// Answers by what an environment was at commits, one after the other: only those who
/// asked keep them. Blocks.
fn look_up(
    remote: &Remote,
    branch: &str,
    mut open: BTreeMap<String, Vec<Question>>,
    environment: &str,
    grant: &Grant,
) -> Result<Vec<(String, Weak<Loaded>)>, String> {
    let named: BTreeSet<String> = open.keys().cloned().collect();
    let former = former(remote, branch, &named).map_err(|error| words(&error))?;
    let mut found = Vec::new();
    for commit in &former.commits {
        let read = match load(&former.reader, commit, environment, None) {
            Some((read, _)) => read.and_then(|loaded| for_cluster(loaded, grant)),
            None => continue,
        };
        let loaded = match read {
            Ok(loaded) => Some(Arc::new(loaded)),
            Err(hold) => {
                let reason = hold.message;
                tracing::info!(%environment, %commit, %reason, "what was synced last is not kept");
                None
            }
        };
        found.extend(
            loaded
                .iter()
                .map(|one| (commit.clone(), Arc::downgrade(one))),
        );
        for question in open.remove(commit).into_iter().flatten() {
            question.answer(loaded.clone());
        }
    }
    if former.is_cut {
        // There may be more of them: who asked asks again.
        return Ok(found);
    }
    for (commit, questions) in open {
        tracing::info!(%environment, %commit, %branch, "what was synced last is not kept: the branch does not have it, or it is not signed as it has to be");
        for question in questions {
            question.answer(None);
        }
    }
    Ok(found)
}
