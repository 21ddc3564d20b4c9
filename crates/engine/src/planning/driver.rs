//! Planning in rounds: plan, answer all open questions, plan again.
//!
//! Plans are made on separate threads, so that they do not block the tasks of other releases.

use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::time::Duration;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use pleach_planner::plan::{self, Answer, Desired, Planning, Policy, Question, Removal, Topic};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::timeout;

use super::{Gone, Options, Planned, Planner, neighbor};
use crate::sync::{Observation, SyncError, answers};
use pleach_cluster::Cluster;

/// Number of questions that are answered concurrently.
const CONCURRENCY: usize = 32;
/// Number of namespaces whose contents are read concurrently. Each takes one request per kind.
const NAMESPACES: usize = 4;
/// Permits for concurrent plans. Each plan can use its whole budget.
static PERMITS: Semaphore = Semaphore::const_new(2);
/// Time limit of a plan. The planner counts its work and normally gives up long before.
const LIMIT: Duration = Duration::from_mins(1);

/// Input of the plan of a release.
pub(super) struct Input {
    pub(super) desired: Desired,
    pub(super) observation: Observation,
    pub(super) policy: Policy,
    /// Set to uninstall the whole release.
    pub(super) removal: Option<Removal>,
}

impl Options {
    /// Returns the facts that the planner asks for.
    pub(super) fn asks(self) -> BTreeSet<Topic> {
        let mut asks = BTreeSet::from([
            Topic::Uninstall,
            Topic::Contents,
            Topic::Checks,
            Topic::Nodes,
        ]);
        if self.review {
            asks.extend([
                Topic::Dependencies,
                Topic::WorkloadContext,
                Topic::Permissions,
            ]);
        }
        asks
    }
}

impl Planner<'_> {
    /// Plans, and answers the questions of the planner until it has none. `gone` is the release to
    /// uninstall.
    pub(super) async fn finish(
        &self,
        cluster: &Cluster,
        mut input: Input,
        gone: Option<&Gone>,
    ) -> Result<Planned, SyncError> {
        loop {
            let planning;
            (input, planning) = input.plan().await?;
            let questions = match planning {
                Planning::Ask(questions) => questions,
                Planning::Done(plan) => {
                    return Ok(Planned {
                        desired: input.desired,
                        observation: input.observation,
                        plan: *plan,
                    });
                }
            };
            let (desired, observed) = (&input.desired, &input.observation.observed);
            let source = answers::Source {
                cluster,
                desired,
                observed,
            };
            // They are asked about in a round of their own.
            let is_contents = |one: &Question| one.topic() == Topic::Contents;
            let concurrency = if questions.iter().any(is_contents) {
                NAMESPACES
            } else {
                CONCURRENCY
            };
            let answers: Vec<Answer> = stream::iter(questions)
                .map(|question| Box::pin(self.answer(source, gone, question)))
                .buffered(concurrency)
                .try_collect()
                .await?;
            for answer in answers {
                input.observation.observed.learn(answer);
            }
        }
    }

    /// Answers one question.
    async fn answer(
        &self,
        source: answers::Source<'_>,
        gone: Option<&Gone>,
        question: Question,
    ) -> Result<Answer, SyncError> {
        Ok(match question {
            Question::Blocking(index) => {
                let outcome = source.blocking(index).await;
                Answer::Blocking(index, outcome)
            }
            Question::Dependents => Answer::Dependents(match gone {
                Some(gone) => self.dependents(source.cluster, gone).await?,
                None => Vec::new(),
            }),
            Question::Contents(namespace) => {
                let contents = source.contents(&namespace).await;
                Answer::Contents(namespace, contents)
            }
            Question::Check(name) => {
                let outcome = source.check(&name).await;
                Answer::Check(name, outcome)
            }
            Question::Dependency(index) => {
                let (loaded, predecessors) = (self.loaded, self.options.predecessors);
                let neighbor = |name: &str| neighbor(loaded, predecessors, name);
                let hindrance = source.dependency(index, &neighbor).await?;
                Answer::Dependency(index, hindrance)
            }
            Question::WorkloadContext => Answer::WorkloadContext(source.workload_context().await),
            Question::Nodes(stage) => {
                let nodes = source.nodes(&stage).await;
                Answer::Nodes(stage, nodes)
            }
            Question::MarkedNodes => Answer::MarkedNodes(source.marked_nodes().await),
            Question::Permissions(needed) => {
                Answer::Permissions(source.permissions(*needed).await?)
            }
        })
    }
}

impl Input {
    /// Plans from the present facts. Propagates a panic of the planner.
    async fn plan(self) -> Result<(Self, Planning), SyncError> {
        // The semaphore is never closed.
        let permit = PERMITS.acquire().await.ok();
        let release = self.desired.name.to_string();
        let planning = spawn_blocking(move || {
            let planning = self.planning();
            // A plan beyond the time limit keeps its permit until it ends.
            drop(permit);
            (self, planning)
        });
        in_time(release, planning).await
    }

    fn planning(&self) -> Planning {
        let Self {
            desired,
            observation,
            policy,
            removal,
        } = self;
        let observed = &observation.observed;
        match removal {
            Some(removal) => plan::remove(desired, removal, observed, policy),
            None => plan::plan(desired, observed, policy),
        }
    }
}

/// Awaits a plan within the time limit. Propagates its panic.
async fn in_time<T>(
    release: String,
    planning: impl Future<Output = Result<T, JoinError>>,
) -> Result<T, SyncError> {
    let too_long = SyncError::TooLong {
        release,
        limit: LIMIT,
    };
    match timeout(LIMIT, planning).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(ended)) => match ended.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // Canceled only at shutdown of the runtime.
            Err(_) => Err(too_long),
        },
        Err(_) => Err(too_long),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_plan_fails_its_release_at_the_time_limit() {
        let started = Instant::now();
        let planning = pending::<Result<(), JoinError>>();
        let error = in_time("prod/web".to_owned(), planning).await.unwrap_err();
        assert_eq!(started.elapsed().as_secs(), LIMIT.as_secs());
        let SyncError::TooLong { release, limit } = &error else {
            panic!("{error:?}");
        };
        assert_eq!((release.as_str(), *limit), ("prod/web", LIMIT));
        let done = in_time("prod/web".to_owned(), ready(Ok(1))).await;
        assert_eq!(done.unwrap(), 1);
    }
}
