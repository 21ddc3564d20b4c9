//! Outcomes of plans and runs.

use pleach_formats::file::Drift;
use pleach_formats::window::Windows;
use pleach_state::inventory::ConditionKind;

use super::*;

#[test]
fn a_release_is_planned_and_applied_then_reconciled_at_its_interval() {
    let mut bench = Bench::new();
    bench.deploy(plan());
    assert_eq!(bench.outcome().outcome, ReconcileOutcome::Deployed);
    assert!(bench.others().contains(&Command::NotifyDependents));
    assert_eq!(bench.requeue().drift_from, Some(bench.now.at));
    assert_eq!(bench.tick(), INTERVAL);
    let since = bench.now.at.checked_sub(INTERVAL / 10);
    assert!(
        matches!(bench.task(), Task::Admit { needs_permit: true, since: at, .. } if *at == since)
    );
}

#[test]
fn a_plan_that_is_not_allowed_is_not_executed() {
    let closed = SyncPolicy {
        windows: Windows::recorded(&[vec![pleach_formats::file::Window {
            allow: None,
            deny: Some("00:00-24:00".to_owned()),
            time_zone: None,
        }]]),
        ..SyncPolicy::default()
    };
    let mut suspended = plan();
    suspended.requests.suspend = Some(pleach_state::inventory::Suspension {
        until: None,
        reason: String::new(),
        by: String::new(),
        at: None,
    });
    let remembered = TargetFacts {
        is_from_records: true,
        ..target(0, 0)
    };
    let cases = [
        (
            "suspended",
            suspended,
            target(0, 0),
            ReconcileOutcome::Suspended,
            None,
        ),
        (
            "remembered",
            plan(),
            remembered,
            ReconcileOutcome::Waiting,
            None,
        ),
        (
            "window",
            PlanSummary {
                policy: closed,
                ..plan()
            },
            target(0, 0),
            ReconcileOutcome::Waiting,
            Some("WindowClosed"),
        ),
        (
            "refused",
            PlanSummary {
                refused: Some(refusal(false)),
                ..plan()
            },
            target(0, 0),
            ReconcileOutcome::Refused,
            Some("Refused"),
        ),
        (
            "dependency",
            PlanSummary {
                refused: Some(refusal(true)),
                ..plan()
            },
            target(0, 0),
            ReconcileOutcome::Waiting,
            Some("DependencyNotReady"),
        ),
        (
            "blocked",
            PlanSummary {
                blocked: Some(reasons("no")),
                ..plan()
            },
            target(0, 0),
            ReconcileOutcome::Failed,
            Some("Blocked"),
        ),
    ];
    for (case, summary, target, expected, reason) in cases {
        let mut bench = Bench::of(target);
        bench.plan(summary);
        let wait = bench.requeue();
        let report = bench.outcome();
        assert_eq!(report.outcome, expected, "{case}");
        let condition = report.condition.map(|condition| condition.reason);
        assert_eq!(condition.as_deref(), reason, "{case}");
        assert_eq!(wait.drift_from, None, "{case}");
        assert_eq!(wait.for_dependencies, case == "dependency", "{case}");
    }
}

#[test]
fn failures_back_off_until_a_new_commit() {
    let mut bench = Bench::new();
    for seconds in [2, 4, 8] {
        bench.fail(true);
        assert_eq!(bench.outcome().outcome, ReconcileOutcome::Failed);
        bench.requeue();
        assert_eq!(bench.tick(), Duration::from_secs(seconds));
    }
    bench.on(Event::Target(Box::new(target(9, 9))));
    bench.fail(true);
    bench.requeue();
    assert_eq!(bench.tick(), Duration::from_secs(2));
}

#[test]
fn a_persistent_failure_is_reported_the_second_time() {
    for (is_transient, expected) in [(false, Some(ConditionKind::Stalled)), (true, None)] {
        let mut bench = Bench::new();
        bench.fail(is_transient);
        assert_eq!(bench.outcome().condition, None);
        bench.requeue();
        bench.tick();
        bench.fail(is_transient);
        let kind = bench.outcome().condition.map(|one| one.kind);
        assert_eq!(kind, expected);
        // No plan verified the record.
        let Task::Report(status) = bench.task() else {
            panic!()
        };
        let ask = if is_transient {
            Ownership::Foreign
        } else {
            Ownership::Ask
        };
        assert_eq!(status.ownership, ask);
    }
}

#[test]
fn a_newer_commit_cancels_the_run_only_if_it_changes_the_release() {
    let stalled = TargetFacts {
        is_stalled: true,
        ..target(8, 0)
    };
    for (case, newer, is_cancelled) in [
        ("same content", target(8, 0), false),
        ("other content", target(8, 1), true),
        ("stalled", stalled, true),
    ] {
        let mut bench = Bench::new();
        bench.plan(plan());
        bench.report();
        bench.others();
        for _ in 0..2 {
            bench.on(Event::Target(Box::new(newer.clone())));
        }
        let cancels = if is_cancelled {
            vec![Command::Cancel]
        } else {
            Vec::new()
        };
        assert_eq!(bench.others(), cancels, "{case}");
        bench.executed(ReconcileOutcome::Superseded);
        bench.report();
        let admits = matches!(bench.task(), Task::Admit { target, .. } if *target == newer.id);
        assert!(admits, "{case}: {:?}", bench.task());
    }
}

#[test]
fn a_run_that_was_planned_for_an_old_commit_is_cancelled_at_once() {
    let mut bench = Bench::new();
    bench.admit();
    bench.on(Event::Target(Box::new(target(8, 1))));
    bench.plan(plan());
    bench.report();
    assert!(bench.others().ends_with(&[Command::Cancel]));
}

#[test]
fn answers_of_replaced_tasks_are_ignored() {
    let mut bench = Bench::new();
    let (old, _) = bench.task.clone().unwrap();
    bench.on(Event::Target(Box::new(target(8, 1))));
    let (new, _) = bench.task.clone().unwrap();
    assert_ne!(old, new);
    bench.on(Event::Answer(old, Answer::Ready));
    assert!(bench.is_admitting());
    assert!(bench.finished.is_empty());
}

#[test]
fn drift_is_corrected_without_a_permit_and_later_if_it_is_none() {
    let mut bench = Bench::new();
    bench.deploy(plan());
    bench.outcome();
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
        bench.answer(Answer::Changed(objects()));
        assert!(matches!(
            bench.task(),
            Task::Admit {
                needs_permit: false,
                ..
            }
        ));
        bench.admit();
        let depth = Depth::Changed(objects().objects);
        assert!(matches!(bench.task(), Task::Plan { depth: now, .. } if *now == depth));
        // More than the changed objects is needed.
        bench.answer(Answer::Planned(Ok(None)));
        assert!(matches!(
            bench.task(),
            Task::Plan {
                depth: Depth::All { .. },
                ..
            }
        ));
        bench.plan(PlanSummary {
            has_steps: false,
            ..correction()
        });
        bench.executed(ReconcileOutcome::Unchanged);
        assert_eq!(bench.outcome().outcome, ReconcileOutcome::Unchanged);
        let wait = bench.requeue();
        assert_eq!(
            wait.drift_from,
            Some(bench.now.at + Duration::from_secs(seconds))
        );
    }
    bench.answer(Answer::Changed(objects()));
    bench.deploy(correction());
    let outcome = bench.outcome();
    assert!(outcome.is_correction);
    assert_eq!(outcome.message, correction().drift);
    assert_eq!(bench.requeue().drift_from, Some(bench.now.at));
}

#[test]
fn drift_is_only_reported_under_that_policy() {
    let mut target = target(0, 0);
    target.sync.drift = Drift::Report;
    let mut bench = Bench::of(target);
    bench.plan(correction());
    assert_eq!(bench.outcome().outcome, ReconcileOutcome::Drifted);
    bench.requeue();
    bench.tick();
    // The record names another commit.
    bench.plan(PlanSummary {
        is_of_another_commit: true,
        ..correction()
    });
    assert!(matches!(bench.task(), Task::RecordRevision(_)));
    bench.answer(Answer::Recorded(Ok(())));
    assert_eq!(bench.outcome().outcome, ReconcileOutcome::Drifted);
}

/// A partial plan does not read nodes, so it neither reports nor withdraws them.
#[test]
fn nodes_that_fell_behind_are_reported_until_a_plan_of_all_objects_finds_none() {
    let mut bench = Bench::new();
    for (case, behind, covers_all_objects, expected) in [
        ("behind", "a, b behind", true, Some("a, b behind")),
        ("a plan of some objects", "", false, Some("a, b behind")),
        (
            "another one fell behind",
            "c behind",
            true,
            Some("c behind"),
        ),
        ("all are changed", "", true, None),
    ] {
        bench.plan(PlanSummary {
            is_new: false,
            is_reconciled: true,
            has_steps: false,
            nodes_behind: behind.to_owned(),
            covers_all_objects,
            ..plan()
        });
        bench.executed(ReconcileOutcome::Unchanged);
        bench.requeue();
        let conditions = bench.release.reported_conditions.clone();
        let conditions = conditions.unwrap_or_default();
        let drifted: Vec<(&str, &str)> = conditions
            .iter()
            .filter(|one| one.kind == ConditionKind::Drifted)
            .map(|one| (one.reason.as_str(), one.message.as_str()))
            .collect();
        let expected: Vec<(&str, &str)> = expected
            .map(|message| ("NodesBehind", message))
            .into_iter()
            .collect();
        assert_eq!(drifted, expected, "{case}");
        assert_eq!(
            bench.outcome().outcome,
            ReconcileOutcome::Unchanged,
            "{case}"
        );
        bench.tick();
    }
}
