//! Scheduler of plans: starts every step as soon as its edges are satisfied.
//!
//! Steps without an edge between them run concurrently, up to a number of operations. Waits hold no
//! permit. The failure of a step only stops its descendants. A failure that ends all waits also
//! stops the steps that need another one.

mod permits;

pub(super) use permits::Permit;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;

use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{FuturesUnordered, StreamExt as _};
use pleach_planner::plan::{Need, Plan, Step, StepId};

use self::permits::Permits;
use super::events::{EventKind, Events, StepOutcome};
use super::report::{Failure, NotBegun, SyncResult};
use crate::stop::Stop;

/// Executor of single steps.
pub(super) trait Executor: Sync {
    /// Executes the operation of a step, with retries, until the server accepted it. Waits do not
    /// hold `permit`.
    fn execute<'a>(
        &'a self,
        step: &'a Step,
        permit: &'a Permit,
    ) -> impl Future<Output = Result<(), Failure>> + Send + 'a;
    /// Waits for the completion of the step.
    fn complete<'a>(
        &'a self,
        step: &'a Step,
    ) -> impl Future<Output = Result<(), Failure>> + Send + 'a;
}

/// Progress of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum StepProgress {
    Nothing,
    Applied,
    Complete,
}

/// Result of a future of a step.
enum Ended {
    Operation(Result<(), Failure>),
    Wait(Result<(), Failure>),
}

struct Run<'a, E> {
    plan: &'a Plan,
    executor: &'a E,
    events: &'a Events,
    progress: Vec<StepProgress>,
    /// Number of unsatisfied edges, by step.
    unmet: Vec<usize>,
    /// Steps that depend on a step, with the required progress.
    dependents: Vec<Vec<(StepId, Need)>>,
    /// Steps with satisfied edges that wait for a permit.
    ready: BTreeSet<StepId>,
    running: FuturesUnordered<BoxFuture<'a, (StepId, Ended)>>,
    permits: Permits,
    in_flight: usize,
    /// Step whose failure ends the waits of all others.
    gave_up: Option<StepId>,
    outcomes: BTreeMap<StepId, StepOutcome>,
}

/// Executes a plan with at most `limit` concurrent operations. On a stop request, running
/// operations finish, waits are interrupted, and no step starts.
pub(super) async fn run<E: Executor>(
    plan: &Plan,
    executor: &E,
    events: &Events,
    limit: usize,
    stop: &Stop,
) -> SyncResult {
    let mut run = Run::new(plan, executor, events, limit);
    let mut stop_cause = stop.cause();
    loop {
        match stop_cause {
            None => run.start(),
            Some(_) if run.in_flight == 0 => break,
            Some(_) => {}
        }
        if run.has_given_up() {
            break;
        }
        tokio::select! {
            biased;
            cause = stop.wait(), if stop_cause.is_none() => stop_cause = Some(cause),
            ended = run.running.next() => match ended {
                Some((id, ended)) => run.ended(id, ended),
                None => break,
            },
            () = run.permits.free(), if stop_cause.is_none() && !run.ready.is_empty() => {}
        }
    }
    if stop_cause.is_none() {
        run.end_waits();
    }
    // A stop request after the last step has no effect. A long operation can stop by itself.
    let is_done = |id| run.outcomes.get(id) == Some(&StepOutcome::Done);
    let stopped = stop_cause.filter(|_| !plan.steps.iter().all(|step| is_done(&step.id)));
    for step in &plan.steps {
        let applied = run.progress[step.id.0] >= StepProgress::Applied;
        let stopped = StepOutcome::Stopped { applied };
        run.outcomes.entry(step.id).or_insert(stopped);
    }
    SyncResult {
        outcomes: run.outcomes,
        stopped,
        ..SyncResult::default()
    }
}

impl<'a, E: Executor> Run<'a, E> {
    fn new(plan: &'a Plan, executor: &'a E, events: &'a Events, limit: usize) -> Self {
        let mut dependents = vec![Vec::new(); plan.steps.len()];
        for step in &plan.steps {
            for edge in &step.needs {
                dependents[edge.from.0].push((step.id, edge.state));
            }
        }
        Self {
            plan,
            executor,
            events,
            progress: vec![StepProgress::Nothing; plan.steps.len()],
            unmet: plan.steps.iter().map(|step| step.needs.len()).collect(),
            dependents,
            ready: plan
                .steps
                .iter()
                .filter(|step| step.needs.is_empty())
                .map(|step| step.id)
                .collect(),
            running: FuturesUnordered::new(),
            permits: Permits::new(limit),
            in_flight: 0,
            gave_up: None,
            outcomes: BTreeMap::new(),
        }
    }

    /// Starts ready steps in plan order, while permits are available.
    fn start(&mut self) {
        while let Some(&id) = self.ready.first()
            && let Some(permit) = self.permits.take()
        {
            self.ready.remove(&id);
            let step = &self.plan.steps[id.0];
            self.events.send(EventKind::Started(id));
            self.in_flight += 1;
            let executor = self.executor;
            let operation = async move {
                let result = executor.execute(step, &permit).await;
                permit.release();
                (id, Ended::Operation(result))
            };
            self.running.push(operation.boxed());
        }
    }

    fn ended(&mut self, id: StepId, ended: Ended) {
        match ended {
            Ended::Operation(result) => {
                self.in_flight -= 1;
                match result {
                    Ok(()) => self.applied(id),
                    Err(failure) => match failure.not_begun {
                        None => self.fail(id, failure),
                        Some(NotBegun::After(because)) => {
                            let applied = false;
                            self.finish(id, StepOutcome::Skipped { because, applied });
                            self.skip_dependents(id, StepProgress::Nothing, because);
                        }
                        // The end of the run stops it.
                        Some(NotBegun::Stopped) => {}
                    },
                }
            }
            Ended::Wait(Ok(())) => self.advance(id, StepProgress::Complete),
            Ended::Wait(Err(failure)) => self.fail(id, failure),
        }
    }

    fn applied(&mut self, id: StepId) {
        self.events.send(EventKind::Applied(id));
        let step = &self.plan.steps[id.0];
        if step.until.is_none() {
            return self.advance(id, StepProgress::Complete);
        }
        self.advance(id, StepProgress::Applied);
        let executor = self.executor;
        self.running
            .push(async move { (id, Ended::Wait(executor.complete(step).await)) }.boxed());
    }

    fn advance(&mut self, id: StepId, now: StepProgress) {
        let before = std::mem::replace(&mut self.progress[id.0], now);
        for (dependent, need) in self.dependents[id.0].clone() {
            let needed = match need {
                Need::Applied => StepProgress::Applied,
                Need::Ready | Need::Absent => StepProgress::Complete,
            };
            if before < needed && now >= needed {
                self.unmet[dependent.0] -= 1;
                if self.unmet[dependent.0] == 0 && !self.outcomes.contains_key(&dependent) {
                    self.ready.insert(dependent);
                }
            }
        }
        if now == StepProgress::Complete {
            self.finish(id, StepOutcome::Done);
        }
    }

    fn fail(&mut self, id: StepId, failure: Failure) {
        let progress = self.progress[id.0];
        if failure.ends_waits {
            self.gave_up.get_or_insert(id);
        }
        self.finish(id, StepOutcome::Failed(failure));
        self.skip_dependents(id, progress, id);
    }

    /// Returns whether only waits are left after a failure that ends them.
    fn has_given_up(&self) -> bool {
        self.gave_up.is_some() && self.in_flight == 0 && self.ready.is_empty()
    }

    /// Ends the remaining waits, and the steps that need them, after a failure that ends them.
    fn end_waits(&mut self) {
        let Some(because) = self.gave_up else { return };
        for step in &self.plan.steps {
            if !self.outcomes.contains_key(&step.id) {
                let applied = self.progress[step.id.0] >= StepProgress::Applied;
                self.finish(step.id, StepOutcome::Skipped { because, applied });
            }
        }
    }

    /// Skips steps that can no longer start. Steps that only need an applied, not a ready,
    /// predecessor can continue.
    fn skip_dependents(&mut self, from: StepId, progress: StepProgress, because: StepId) {
        let mut open = vec![(from, progress)];
        while let Some((id, progress)) = open.pop() {
            for (dependent, need) in self.dependents[id.0].clone() {
                let met = need == Need::Applied && progress >= StepProgress::Applied;
                if !met && !self.outcomes.contains_key(&dependent) {
                    self.ready.remove(&dependent);
                    let applied = false;
                    self.finish(dependent, StepOutcome::Skipped { because, applied });
                    open.push((dependent, StepProgress::Nothing));
                }
            }
        }
    }

    fn finish(&mut self, id: StepId, outcome: StepOutcome) {
        let object = self.plan.steps[id.0].object.clone();
        self.events
            .send(EventKind::Done(id, object, outcome.clone()));
        self.outcomes.insert(id, outcome);
    }
}

#[cfg(test)]
mod tests;
