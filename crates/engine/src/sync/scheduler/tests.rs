//! Property tests of the scheduler with random plans and a checking executor.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use jiff::SignedDuration;
use pleach_model::object::{ObjectId, ReleaseName};
use pleach_model::order::StageName;
use pleach_planner::plan::{Edge, EdgeReason, Op, Until};
use proptest::prelude::*;

use tokio_util::sync::CancellationToken;

use super::*;
use crate::stop::Cause;
use crate::sync::report::FailureKind;

fn release() -> ReleaseName {
    ReleaseName {
        environment: "test".to_owned(),
        release: "web".to_owned(),
    }
}

/// Builds a step with its edges, optionally with a wait.
fn step(id: usize, needs: &[(usize, Need)], waits: bool) -> Step {
    Step {
        id: StepId(id),
        stage: StageName::Config,
        object: ObjectId::new("", "ConfigMap", Some("web"), &format!("c{id}")),
        op: Op::Wait,
        needs: needs
            .iter()
            .map(|(from, state)| Edge {
                from: StepId(*from),
                state: *state,
                why: EdgeReason::After,
            })
            .collect(),
        require: Vec::new(),
        until: waits.then_some(Until::Absent { pods: None }),
        deadline: SignedDuration::from_secs(1),
        overlay: None,
        reason: String::new(),
    }
}

fn plan(steps: Vec<Step>) -> Plan {
    Plan {
        steps,
        ..Plan::new(release(), "v1")
    }
}

/// Executor that checks that the edges of each step are satisfied.
struct Checker {
    progress: Mutex<Vec<StepProgress>>,
    in_flight: AtomicUsize,
    most: AtomicUsize,
    fail_operation: Option<usize>,
    fail_wait: Option<usize>,
    cancel: Option<(usize, CancellationToken)>,
}

impl Checker {
    fn new(steps: usize) -> Self {
        Self {
            progress: Mutex::new(vec![StepProgress::Nothing; steps]),
            in_flight: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            fail_operation: None,
            fail_wait: None,
            cancel: None,
        }
    }
}

fn failure() -> Failure {
    Failure::new(FailureKind::Other, "as asked")
}

impl Executor for Checker {
    async fn execute<'a>(&'a self, step: &'a Step, _: &'a Permit) -> Result<(), Failure> {
        for edge in &step.needs {
            let needed = if edge.state == Need::Applied {
                StepProgress::Applied
            } else {
                StepProgress::Complete
            };
            let progress = self.progress.lock().unwrap()[edge.from.0];
            assert!(
                progress >= needed,
                "step {} started before {} was {:?}",
                step.id.0,
                edge.from.0,
                edge.state
            );
        }
        let now = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        if let Some((at, token)) = &self.cancel
            && *at == step.id.0
        {
            token.cancel();
        }
        if self.fail_operation == Some(step.id.0) {
            return Err(failure());
        }
        self.progress.lock().unwrap()[step.id.0] = if step.until.is_some() {
            StepProgress::Applied
        } else {
            StepProgress::Complete
        };
        Ok(())
    }

    async fn complete<'a>(&'a self, step: &'a Step) -> Result<(), Failure> {
        tokio::task::yield_now().await;
        if self.fail_wait == Some(step.id.0) {
            return Err(failure());
        }
        self.progress.lock().unwrap()[step.id.0] = StepProgress::Complete;
        Ok(())
    }
}

async fn execute(plan: &Plan, checker: &Checker, limit: usize) -> SyncResult {
    let stop = match &checker.cancel {
        Some((_, token)) => Stop::on(Cause::Superseded, token.clone()),
        None => Stop::never(),
    };
    run(plan, checker, &Events::silent(release()), limit, &stop).await
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}

/// Generates random graphs, in which steps depend on earlier ones.
fn graphs() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(
        (
            prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..4),
            any::<bool>(),
        ),
        1..40,
    )
    .prop_map(|steps| {
        steps
            .into_iter()
            .enumerate()
            .map(|(id, (needs, waits))| {
                let mut needs: Vec<(usize, Need)> = needs
                    .into_iter()
                    .filter(|_| id > 0)
                    .map(|(from, ready)| {
                        (
                            from.index(id),
                            if ready { Need::Ready } else { Need::Applied },
                        )
                    })
                    .collect();
                needs.sort_by_key(|(from, _)| *from);
                needs.dedup_by_key(|(from, _)| *from);
                step(id, &needs, waits)
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn every_edge_is_respected_and_every_step_runs(steps in graphs(), limit in 1usize..6) {
        let checker = Checker::new(steps.len());
        let plan = plan(steps);
        let result = block_on(execute(&plan, &checker, limit));
        prop_assert!(result.is_success());
        prop_assert_eq!(result.outcomes.len(), plan.steps.len());
        prop_assert!(checker.most.load(Ordering::SeqCst) <= limit);
    }

    #[test]
    fn a_failure_stops_its_descendants_only(steps in graphs(), at in any::<prop::sample::Index>(), in_wait in any::<bool>()) {
        let at = at.index(steps.len());
        let in_wait = in_wait && steps[at].until.is_some();
        let mut checker = Checker::new(steps.len());
        if in_wait { checker.fail_wait = Some(at) } else { checker.fail_operation = Some(at) }
        let plan = plan(steps);
        let result = block_on(execute(&plan, &checker, 4));
        let mut lost = vec![false; plan.steps.len()];
        lost[at] = true;
        for step in &plan.steps {
            if step.needs.iter().any(|edge| {
                let still_applied = edge.from.0 == at && in_wait && edge.state == Need::Applied;
                lost[edge.from.0] && !still_applied
            }) {
                lost[step.id.0] = true;
            }
        }
        for step in &plan.steps {
            let outcome = &result.outcomes[&step.id];
            if step.id.0 == at {
                prop_assert!(matches!(outcome, StepOutcome::Failed(_)));
            } else if lost[step.id.0] {
                prop_assert!(matches!(outcome, StepOutcome::Skipped { .. }), "{:?}", outcome);
            } else {
                prop_assert_eq!(outcome, &StepOutcome::Done);
            }
        }
    }

    #[test]
    fn a_stopped_run_starts_no_new_step(steps in graphs(), at in any::<prop::sample::Index>()) {
        let at = at.index(steps.len());
        let token = CancellationToken::new();
        let mut checker = Checker::new(steps.len());
        checker.cancel = Some((at, token));
        let plan = plan(steps);
        let result = block_on(execute(&plan, &checker, 1));
        // With one operation at a time, steps that started before the stop are done, and no later
        // one starts.
        let started = checker.progress.lock().unwrap().iter().filter(|progress| **progress != StepProgress::Nothing).count();
        let ended = result.outcomes.values().filter(|outcome| **outcome == StepOutcome::Done).count();
        prop_assert!(ended <= started);
        let stopped = (ended < plan.steps.len()).then_some(Cause::Superseded);
        prop_assert_eq!(result.stopped, stopped);
        prop_assert_eq!(result.outcomes.len(), plan.steps.len());
    }
}

/// Executor whose operations are retried until the last step has succeeded.
struct Troubled {
    last: usize,
    is_over: CancellationToken,
    sending: AtomicUsize,
    most: AtomicUsize,
    again: AtomicUsize,
}

impl Executor for Troubled {
    async fn execute<'a>(&'a self, step: &'a Step, permit: &'a Permit) -> Result<(), Failure> {
        loop {
            let now = self.sending.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            tokio::task::yield_now().await;
            self.sending.fetch_sub(1, Ordering::SeqCst);
            if step.id.0 == self.last {
                self.is_over.cancel();
            }
            if self.is_over.is_cancelled() {
                return Ok(());
            }
            permit.aside(tokio::task::yield_now()).await;
            self.again.fetch_add(1, Ordering::SeqCst);
        }
    }

    async fn complete<'a>(&'a self, _: &'a Step) -> Result<(), Failure> {
        Ok(())
    }
}

#[test]
fn a_retried_operation_does_not_delay_others() {
    let troubled = Troubled {
        last: 99,
        is_over: CancellationToken::new(),
        sending: AtomicUsize::new(0),
        most: AtomicUsize::new(0),
        again: AtomicUsize::new(0),
    };
    let plan = plan((0..100).map(|id| step(id, &[], false)).collect());
    let events = Events::silent(release());
    let stop = Stop::never();
    let result = block_on(run(&plan, &troubled, &events, 4, &stop));
    assert!(result.is_success());
    assert!(troubled.again.load(Ordering::SeqCst) > 0);
    // The new operations and one retry.
    assert_eq!(troubled.most.load(Ordering::SeqCst), 5);
}

#[test]
fn a_failure_skips_a_long_chain() {
    let steps = (0..50_000_usize).map(|id| {
        let before = id.checked_sub(1);
        let needs: Vec<_> = before.map(|id| (id, Need::Applied)).into_iter().collect();
        step(id, &needs, false)
    });
    let plan = plan(steps.collect());
    let mut checker = Checker::new(plan.steps.len());
    checker.fail_operation = Some(0);
    let result = block_on(execute(&plan, &checker, 4));
    let skipped = result.outcomes.values();
    let skipped = skipped
        .filter(|outcome| matches!(outcome, StepOutcome::Skipped { because, applied: false } if because.0 == 0));
    assert_eq!(skipped.count(), 49_999);
}

/// Executor whose first operation fails and whose others did not begin.
struct NotBegunAfter(NotBegun);

impl Executor for NotBegunAfter {
    async fn execute<'a>(&'a self, step: &'a Step, _: &'a Permit) -> Result<(), Failure> {
        tokio::task::yield_now().await;
        Err(match step.id.0 {
            0 => failure(),
            _ => Failure::not_begun(self.0),
        })
    }

    async fn complete<'a>(&'a self, _: &'a Step) -> Result<(), Failure> {
        Ok(())
    }
}

#[test]
fn an_operation_that_did_not_begin_is_skipped_with_its_dependents() {
    let skipped = StepOutcome::Skipped {
        because: StepId(0),
        applied: false,
    };
    let stopped = StepOutcome::Stopped { applied: false };
    for (why, expected) in [
        (NotBegun::After(StepId(0)), skipped),
        (NotBegun::Stopped, stopped),
    ] {
        let steps = vec![
            step(0, &[], false),
            step(1, &[], false),
            step(2, &[(1, Need::Applied)], false),
        ];
        let (plan, events, stop) = (plan(steps), Events::silent(release()), Stop::never());
        let result = block_on(run(&plan, &NotBegunAfter(why), &events, 8, &stop));
        assert_eq!(result.outcomes[&StepId(0)], StepOutcome::Failed(failure()));
        assert_eq!(result.outcomes[&StepId(1)], expected, "{why:?}");
        assert_eq!(result.outcomes[&StepId(2)], expected, "{why:?}");
        assert_eq!(result.failures(&plan).count(), 1);
    }
}

/// Executor whose waits end as their steps say, or never.
struct Waiting<'a>(&'a [(Ends, bool)]);

/// End of a wait.
#[derive(Debug, Clone, Copy)]
enum Ends {
    Never,
    Ready,
    Failed,
    FailedFast,
}

impl Executor for Waiting<'_> {
    async fn execute<'a>(&'a self, _: &'a Step, _: &'a Permit) -> Result<(), Failure> {
        tokio::task::yield_now().await;
        Ok(())
    }

    async fn complete<'a>(&'a self, step: &'a Step) -> Result<(), Failure> {
        tokio::task::yield_now().await;
        let ends_waits = match self.0[step.id.0].0 {
            Ends::Never => std::future::pending().await,
            Ends::Ready => return Ok(()),
            Ends::Failed => false,
            Ends::FailedFast => true,
        };
        Err(Failure {
            ends_waits,
            ..failure()
        })
    }
}

#[test]
fn a_fast_failure_ends_the_waits_of_all_others_and_no_operation() {
    use Ends::{Failed, FailedFast, Never, Ready};
    // End of each wait, and whether the step needs the one before it to be ready. The result has a
    // letter per step: done, failed, skipped, and waited for no longer.
    for (steps, expected) in [
        (&[(FailedFast, false), (Never, false)][..], "fw"),
        (
            &[
                (FailedFast, false),
                (Never, false),
                (Ready, true),
                (Ready, false),
            ],
            "fwsw",
        ),
        (&[(Never, false), (FailedFast, false), (Ready, true)], "wfs"),
        // A step that is ready to start is still applied, and its wait ends too.
        (
            &[
                (FailedFast, false),
                (Ready, false),
                (Ready, true),
                (Never, true),
            ],
            "fwss",
        ),
        // An ordinary failure stops its descendants only.
        (
            &[
                (Failed, false),
                (Ready, true),
                (Ready, false),
                (Ready, true),
            ],
            "fsdd",
        ),
    ] {
        let all = steps.iter().enumerate().map(|(id, (_, needs))| {
            let before = needs.then(|| (id - 1, Need::Ready));
            step(id, before.as_slice(), true)
        });
        let plan = plan(all.collect());
        let (events, stop) = (Events::silent(release()), Stop::never());
        let result = block_on(run(&plan, &Waiting(steps), &events, 1, &stop));
        let letters = result.outcomes.values().map(|outcome| match outcome {
            StepOutcome::Done => 'd',
            StepOutcome::Failed(_) => 'f',
            StepOutcome::Skipped { applied: false, .. } => 's',
            StepOutcome::Skipped { applied: true, .. } => 'w',
            StepOutcome::Stopped { .. } => '?',
        });
        assert_eq!(letters.collect::<String>(), expected, "{steps:?}");
        assert_eq!(result.stopped, None);
    }
}
