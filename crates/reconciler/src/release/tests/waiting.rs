//! Waits: for a newer commit, a window, an approval, a request, a dependency.

use pleach_formats::file::Window;
use pleach_formats::window::Windows;

use super::*;

/// Brings a release to commit 0, and lets a refused commit 1 wait behind it.
fn waiting() -> Bench {
    let mut bench = Bench::new();
    bench.deploy(plan());
    bench.outcome();
    bench.on(Event::Target(Box::new(target(90, 1))));
    bench.plan(PlanSummary {
        refused: Some(refusal(false)),
        is_last_started: true,
        ..plan()
    });
    bench
}

#[test]
fn the_last_applied_revision_is_retained_while_a_newer_one_waits() {
    let there = PlanSummary {
        is_applied: true,
        ..correction()
    };
    let refused = PlanSummary {
        refused: Some(refusal(false)),
        ..there.clone()
    };
    for (case, summary, expected) in [
        ("drift", Some(there), Some(ReconcileOutcome::Deployed)),
        ("refused", Some(refused), Some(ReconcileOutcome::Refused)),
        ("another state", Some(correction()), None),
        ("unplanned", None, Some(ReconcileOutcome::Failed)),
    ] {
        let mut bench = waiting();
        let is_retained = |one: &Command| {
            matches!(
                one,
                Command::Retain {
                    from: TargetId(0),
                    ..
                }
            )
        };
        assert!(bench.others().iter().any(is_retained), "{case}");
        if let Some(summary) = summary {
            bench.plan(summary);
        } else {
            let reasons = reasons("why");
            let is_transient = true;
            bench.answer(Answer::Planned(Err(Failure {
                reasons,
                is_transient,
            })));
        }
        bench.report();
        if matches!(bench.task(), Task::Execute { .. }) {
            bench.executed(ReconcileOutcome::Deployed);
        }
        let outcome = bench.outcome();
        assert_eq!(outcome.outcome, ReconcileOutcome::Refused, "{case}");
        let retained = outcome
            .retained
            .map(|retained| (retained.revision, retained.report.outcome));
        let expected = expected.map(|outcome| ("commit-0".to_owned(), outcome));
        assert_eq!(retained, expected, "{case}");
    }
}

#[test]
fn a_correction_that_can_unblock_the_waiting_revision_is_followed_by_a_retry() {
    let mut bench = waiting();
    let there = || PlanSummary {
        is_applied: true,
        ..correction()
    };
    let refused = || PlanSummary {
        refused: Some(refusal(false)),
        is_last_started: true,
        ..plan()
    };
    bench.plan(there());
    bench.executed(ReconcileOutcome::Deployed);
    bench.requeue();
    assert_eq!(bench.tick(), Duration::from_secs(1));
    // Once only.
    bench.plan(refused());
    bench.plan(there());
    bench.executed(ReconcileOutcome::Deployed);
    bench.requeue();
    assert_eq!(bench.tick(), INTERVAL);
}

#[test]
fn a_user_request_stops_the_correction_of_the_retained_revision() {
    let mut bench = waiting();
    bench.plan(PlanSummary {
        is_applied: true,
        ..correction()
    });
    bench.report();
    bench.others();
    bench.on(Event::Requested);
    assert_eq!(bench.others(), [Command::Cancel]);
    bench.executed(ReconcileOutcome::Superseded);
    bench.report();
    assert!(bench.is_admitting());
}

#[test]
fn the_recorded_commit_is_looked_up_after_a_restart() {
    let recorded = || PlanSummary {
        refused: Some(refusal(false)),
        is_last_started: true,
        recorded: Some("commit-0".to_owned()),
        ..plan()
    };
    let lookup = |commands: Vec<Command>| {
        let mut all = commands.into_iter();
        all.find_map(|one| match one {
            Command::LookUp(id, commit) => Some((id, commit)),
            _ => None,
        })
    };
    let mut bench = Bench::of(target(0, 1));
    bench.plan(recorded());
    let (id, commit) = lookup(bench.others()).unwrap();
    assert_eq!(commit, "commit-0");
    assert_eq!(bench.outcome().retained, None);
    bench.requeue();
    bench.on(Event::LookedUp(id, Found::Target(Box::new(target(70, 0)))));
    assert!(bench.is_admitting());
    bench.plan(recorded());
    assert!(bench.others().contains(&Command::Retain {
        id: TargetId(bench.release.next - 2),
        from: TargetId(70),
    }));
    bench.plan(correction());
    bench.requeue();
    // It is used once, and no other lookup follows.
    assert_eq!(lookup(bench.others()), None);

    // A commit that does not count is looked up again after a newer one arrived.
    let mut bench = Bench::of(target(0, 1));
    bench.plan(recorded());
    bench.requeue();
    let (id, _) = lookup(bench.others()).unwrap();
    bench.on(Event::LookedUp(id, Found::Nothing));
    bench.tick();
    bench.plan(recorded());
    bench.requeue();
    assert_eq!(lookup(bench.others()), None);
    bench.on(Event::Target(Box::new(target(80, 2))));
    bench.plan(recorded());
    assert!(lookup(bench.others()).is_some());
}

fn unapproved_plan(effects: &str, covered_by: Option<TaskId>) -> PlanSummary {
    PlanSummary {
        policy: SyncPolicy {
            needs_approval: true,
            ..SyncPolicy::default()
        },
        approval: Some(Approval {
            effects: effects.to_owned(),
            covered_by,
            missing: Some(reasons("waits")),
        }),
        ..plan()
    }
}

#[test]
fn a_plan_waits_for_approval_and_drift_does_not_query_the_forge() {
    let mut bench = Bench::new();
    bench.plan(PlanSummary {
        is_unrecorded: true,
        ..unapproved_plan("a", None)
    });
    // The record comes first, so that an approval can be written to it.
    assert!(matches!(bench.task(), Task::CreateRecord(_)));
    bench.answer(Answer::Recorded(Ok(())));
    assert!(matches!(bench.task(), Task::Plan { since: None, .. }));
    let (plan, _) = bench.task.clone().unwrap();
    bench.plan(unapproved_plan("a", None));
    assert!(matches!(bench.task(), Task::Approve(id) if *id == plan));
    bench.answer(Answer::Approved(Some(reasons("missing"))));
    assert!(bench.others().contains(&Command::RetainPlan(plan)));
    let outcome = bench.outcome();
    assert_eq!(outcome.outcome, ReconcileOutcome::Unapproved);
    bench.requeue();

    // A change of an object: the same effects are not queried again.
    bench.release.changes = objects();
    bench.tick();
    bench.plan(unapproved_plan("a", None));
    assert_eq!(bench.outcome().message, "missing");
    bench.requeue();

    // An approved plan that does less is executed.
    bench.tick();
    let awaited = bench.release.awaited.as_ref().unwrap().plan;
    let mut approved = unapproved_plan("b", Some(awaited));
    approved.requests.approved = Some("a".to_owned());
    bench.deploy(approved);
    assert_eq!(bench.outcome().outcome, ReconcileOutcome::Deployed);
}

#[test]
fn an_approval_counts_for_no_other_commit_that_does_less() {
    let mut bench = Bench::new();
    bench.plan(unapproved_plan("both", None));
    bench.answer(Answer::Approved(Some(reasons("missing"))));
    bench.outcome();
    bench.requeue();
    bench.on(Event::Target(Box::new(target(8, 1))));
    // The retained plan is for other content, so it covers nothing.
    let mut less = unapproved_plan("one", None);
    less.requests.approved = Some("both".to_owned());
    bench.plan(less);
    assert!(matches!(bench.task(), Task::Approve(_)));
    bench.answer(Answer::Approved(Some(reasons("missing"))));
    assert_eq!(bench.outcome().outcome, ReconcileOutcome::Unapproved);
    bench.requeue();
}

#[test]
fn the_approved_revision_is_retained_while_a_newer_commit_waits() {
    let mut bench = Bench::new();
    let mut approved = unapproved_plan("a", None);
    approved.approval = approved.approval.map(|one| Approval {
        missing: None,
        ..one
    });
    bench.deploy(approved);
    assert_eq!(bench.outcome().outcome, ReconcileOutcome::Deployed);
    bench.on(Event::Target(Box::new(target(8, 1))));
    let waits = || PlanSummary {
        is_last_started: true,
        ..unapproved_plan("b", None)
    };
    // Drift of the approved revision is corrected each time, without an approval.
    for _ in 0..2 {
        bench.plan(waits());
        bench.answer(Answer::Approved(Some(reasons("missing"))));
        let retained = |one: &Command| matches!(one, Command::Retain { .. });
        let others = bench.others();
        assert!(others.iter().any(retained), "{others:?}");
        bench.plan(PlanSummary {
            is_applied: true,
            policy: waits().policy,
            ..correction()
        });
        bench.executed(ReconcileOutcome::Deployed);
        let outcome = bench.outcome();
        assert_eq!(outcome.outcome, ReconcileOutcome::Unapproved);
        let retained = outcome
            .retained
            .map(|retained| (retained.revision, retained.report.outcome));
        let expected = ("commit-0".to_owned(), ReconcileOutcome::Deployed);
        assert_eq!(retained, Some(expected));
        let condition = outcome.condition.map(|condition| condition.reason);
        assert_eq!(condition.as_deref(), Some("AwaitingApproval"));
        bench.requeue();
        bench.tick();
    }
    // Once approved, it is executed, and the previous revision is not retained any more.
    let mut approved = unapproved_plan("b", None);
    approved.approval = approved.approval.map(|one| Approval {
        missing: None,
        ..one
    });
    bench.deploy(approved);
    let outcome = bench.outcome();
    assert_eq!(outcome.outcome, ReconcileOutcome::Deployed);
    assert_eq!(outcome.retained, None);
}

/// Returns a plan under windows that allow these times.
fn within(allow: &str) -> PlanSummary {
    PlanSummary {
        policy: SyncPolicy {
            windows: Windows::recorded(&[vec![Window {
                allow: Some(allow.to_owned()),
                deny: None,
                time_zone: None,
            }]]),
            ..SyncPolicy::default()
        },
        ..plan()
    }
}

#[test]
fn a_window_that_opens_triggers_the_waiting_release() {
    let mut bench = Bench::new();
    bench.plan(within("00:02-01:00"));
    let outcome = bench.outcome();
    assert_eq!(outcome.outcome, ReconcileOutcome::Waiting);
    let reason = outcome.condition.map(|condition| condition.reason);
    assert_eq!(reason.as_deref(), Some("WindowClosed"));
    bench.requeue();
    let waited = bench.tick();
    assert_eq!(waited, Duration::from_secs(121));
    bench.now.wall += SignedDuration::try_from(waited).unwrap();
    bench.deploy(within("00:02-01:00"));
    assert_eq!(bench.outcome().outcome, ReconcileOutcome::Deployed);

    // A window that opens later than the interval is checked at the interval.
    let mut bench = Bench::new();
    bench.plan(within("12:00-13:00"));
    bench.requeue();
    assert_eq!(bench.tick(), INTERVAL);
}

#[test]
fn an_override_of_the_windows_outlasts_a_dependency() {
    let mut bench = Bench::new();
    let mut summary = within("12:00-13:00");
    summary.requests.sync = Some(request(true));
    bench.plan(PlanSummary {
        refused: Some(refusal(true)),
        ..summary.clone()
    });
    let outcome = bench.outcome();
    assert_eq!(outcome.outcome, ReconcileOutcome::Waiting);
    let reason = outcome.condition.map(|condition| condition.reason);
    assert_eq!(reason.as_deref(), Some("DependencyNotReady"));
    assert_eq!(outcome.request, None, "it stays open");
    assert!(bench.requeue().for_dependencies);
    bench.answer(Answer::Ready);
    bench.deploy(summary.clone());
    let outcome = bench.outcome();
    assert_eq!(outcome.outcome, ReconcileOutcome::Deployed);
    assert_eq!(outcome.request, summary.requests.sync);

    // A refusal ends the request.
    let mut bench = Bench::new();
    bench.plan(PlanSummary {
        refused: Some(refusal(false)),
        ..summary.clone()
    });
    assert_eq!(bench.outcome().request, summary.requests.sync);
}

#[test]
fn a_request_stays_open_until_its_commits_have_arrived() {
    let waiting = SyncRequest {
        after_fetch: true,
        ..request(false)
    };
    for (request, answered, is_open) in [
        (request(true), 6, true),
        (request(true), 7, false),
        (waiting.clone(), 6, true),
        (waiting, 7, false),
        (request(false), 6, false),
    ] {
        let mut bench = Bench::new();
        let mut summary = plan();
        summary.requests.sync = Some(request.clone());
        summary.fetch = Some(Fetch {
            number: 7,
            until: bench.now.at + Duration::from_mins(10),
        });
        bench.answer(Answer::Admitted {
            found: Changes::default(),
            answered,
        });
        bench.plan(summary);
        bench.executed(ReconcileOutcome::Deployed);
        let fulfilled = bench.outcome().request;
        assert_eq!(fulfilled.is_none(), is_open, "{request:?} {answered}");
        assert_eq!(bench.requeue().for_fetch, is_open, "{request:?} {answered}");
    }
}

#[test]
fn a_dependency_triggers_only_a_release_that_waits_for_it() {
    let mut bench = Bench::new();
    bench.on(Event::DependencyReconciled);
    bench.plan(PlanSummary {
        refused: Some(refusal(true)),
        ..plan()
    });
    bench.report();
    // The reconcile could have read the dependency before.
    assert!(bench.is_admitting());
    let mut bench = Bench::new();
    bench.deploy(plan());
    bench.on(Event::DependencyReconciled);
    assert!(matches!(bench.task(), Task::Wait(_)));
}
