//! Reports, readiness and the end of a release.

use pleach_formats::readiness::{Assessment, Readiness};
use pleach_state::inventory::{ConditionKind, HEARTBEAT};

use super::*;
use crate::health::Checked;

#[test]
fn conditions_are_written_once_per_heartbeat() {
    let mut bench = Bench::new();
    bench.deploy(plan());
    bench.requeue();
    let mut written = 0;
    let outcome = bench.now.at + HEARTBEAT * 4;
    while bench.now.at < outcome {
        match bench.task() {
            Task::Wait(_) => {
                bench.tick();
            }
            Task::Report(status) => {
                let is_written = status.conditions.is_some();
                written += usize::from(is_written);
                let is_ours = true;
                let written = is_written.then_some(true);
                bench.answer(Answer::Reported { is_ours, written });
            }
            Task::Execute { .. } => bench.executed(ReconcileOutcome::Unchanged),
            _ => bench.plan(PlanSummary {
                has_steps: false,
                ..correction()
            }),
        }
    }
    assert!((3..=5).contains(&written), "{written}");
}

#[test]
fn an_object_that_is_not_ready_degrades_the_release() {
    let mut bench = Bench::new();
    bench.deploy(plan());
    bench.requeue();
    let Changes { objects, .. } = objects();
    let id = objects.first().unwrap().clone();
    bench.answer(Answer::Written(objects.clone()));
    assert!(matches!(bench.task(), Task::Check { objects: checked, .. } if *checked == objects));
    let failed = Assessment::new(Readiness::Failed, "it crashed");
    bench.answer(Answer::Checked(vec![(id, Checked::Assessed(failed))]));
    let Task::Report(status) = bench.task() else {
        panic!()
    };
    assert_eq!(status.is_degraded, Some(true));
    assert_eq!(status.notifications[0].notice.reason, "Degraded");
    let kind = status.conditions.as_ref().and_then(|all| all.last());
    assert_eq!(kind.map(|one| one.kind), Some(ConditionKind::Degraded));
    // The wait continues until the same time.
    let until = bench.release.wake_at();
    assert_eq!(until, None);
    bench.requeue();
    assert_eq!(bench.release.wake_at(), Some(bench.now.at + INTERVAL));
}

#[test]
fn a_run_ends_before_the_release_does() {
    for event in [Event::Removed, Event::Stopped] {
        let mut bench = Bench::new();
        bench.deploy(plan());
        bench.on(event.clone());
        assert!(bench.others().ends_with(&[Command::End]), "{event:?}");

        let mut bench = Bench::new();
        bench.plan(plan());
        bench.report();
        bench.others();
        bench.on(event.clone());
        let is_removed = event == Event::Removed;
        let cancels = if is_removed {
            vec![Command::Cancel]
        } else {
            Vec::new()
        };
        assert_eq!(bench.others(), cancels, "{event:?}");
        let outcome = if is_removed {
            ReconcileOutcome::Superseded
        } else {
            ReconcileOutcome::Interrupted
        };
        bench.executed(outcome);
        assert_eq!(bench.outcome().outcome, outcome);
        if is_removed {
            bench.report_last();
        }
        assert!(bench.others().ends_with(&[Command::End]), "{event:?}");
    }
}

#[test]
fn a_panic_fails_the_reconcile_and_everything_is_planned_again() {
    let mut bench = Bench::new();
    bench.deploy(plan());
    bench.outcome();
    bench.tick();
    bench.admit();
    bench.answer(Answer::Panicked);
    let outcome = bench.outcome();
    assert_eq!(
        (outcome.outcome, outcome.public_message.as_str()),
        (ReconcileOutcome::Failed, "internal")
    );
    assert!(bench.release.reconciled.is_none());
    bench.requeue();
    assert_eq!(bench.tick(), Duration::from_secs(2));
}
