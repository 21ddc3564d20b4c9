//! Reports, readiness and the end of a release.

use pleach_formats::readiness::{Assessment, Readiness};
use pleach_state::inventory::{ConditionKind, HEARTBEAT};

use super::*;
use crate::health::Checked;

#[test]
fn conditions_are_written_once_per_heartbeat() {
    let mut bench = Bench::new();
    bench.deploy(plan());
    bench.rest();
    let mut written = 0;
    let end = bench.now.at + HEARTBEAT * 4;
    while bench.now.at < end {
        match bench.task() {
            Task::Wait(_) => {
                bench.tick();
            }
            Task::Tell(tell) => {
                let is_written = tell.conditions.is_some();
                written += usize::from(is_written);
                let is_ours = true;
                let written = is_written.then_some(true);
                bench.answer(Answer::Told { is_ours, written });
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
    bench.rest();
    let Changes { objects, .. } = objects();
    let id = objects.first().unwrap().clone();
    bench.answer(Answer::Written(objects.clone()));
    assert!(matches!(bench.task(), Task::Check { objects: checked, .. } if *checked == objects));
    let failed = Assessment::new(Readiness::Failed, "it crashed");
    bench.answer(Answer::Checked(vec![(id, Checked::Assessed(failed))]));
    let Task::Tell(tell) = bench.task() else {
        panic!()
    };
    assert_eq!(tell.is_degraded, Some(true));
    assert_eq!(tell.notifications[0].item.reason, "Degraded");
    let kind = tell.conditions.as_ref().and_then(|all| all.last());
    assert_eq!(kind.map(|one| one.kind), Some(ConditionKind::Degraded));
    // It goes on to wait for the same time.
    let until = bench.release.wake_at();
    assert_eq!(until, None);
    bench.rest();
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
        bench.tell();
        bench.others();
        bench.on(event.clone());
        let is_removed = event == Event::Removed;
        let cancels = if is_removed {
            vec![Command::Cancel]
        } else {
            Vec::new()
        };
        assert_eq!(bench.others(), cancels, "{event:?}");
        let end = if is_removed {
            ReconcileOutcome::Superseded
        } else {
            ReconcileOutcome::Interrupted
        };
        bench.executed(end);
        assert_eq!(bench.outcome().end, end);
        if is_removed {
            bench.tell_last();
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
        (outcome.end, outcome.about.as_str()),
        (ReconcileOutcome::Failed, "internal")
    );
    assert!(bench.release.reached.is_none());
    bench.rest();
    assert_eq!(bench.tick(), Duration::from_secs(2));
}
