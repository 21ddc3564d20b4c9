//! Waits: for a newer commit, an approval, a request, a dependency.

use super::*;

/// Brings a release to commit 0, and lets a refused commit 1 wait behind it.
fn waiting() -> Bench {
    let mut bench = Bench::new();
    bench.deploy(plan());
    bench.outcome();
    bench.on(Event::Target(Box::new(target(90, 1))));
    bench.plan(PlanSummary {
        refused: Some(refusal(false)),
        is_left: true,
        ..plan()
    });
    bench
}

#[test]
fn the_last_applied_revision_is_retained_while_a_newer_one_waits() {
    let there = PlanSummary {
        was_there: true,
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
            let may_pass = true;
            bench.answer(Answer::Planned(Err(Failure { reasons, may_pass })));
        }
        bench.tell();
        if matches!(bench.task(), Task::Execute { .. }) {
            bench.executed(ReconcileOutcome::Deployed);
        }
        let outcome = bench.outcome();
        assert_eq!(outcome.end, ReconcileOutcome::Refused, "{case}");
        let kept = outcome.kept.map(|kept| (kept.revision, kept.report.end));
        let expected = expected.map(|end| ("commit-0".to_owned(), end));
        assert_eq!(kept, expected, "{case}");
    }
}

#[test]
fn a_correction_that_can_unblock_the_waiting_revision_is_followed_by_a_retry() {
    let mut bench = waiting();
    let there = || PlanSummary {
        was_there: true,
        ..correction()
    };
    let refused = || PlanSummary {
        refused: Some(refusal(false)),
        is_left: true,
        ..plan()
    };
    bench.plan(there());
    bench.executed(ReconcileOutcome::Deployed);
    bench.rest();
    assert_eq!(bench.tick(), Duration::from_secs(1));
    // Once only.
    bench.plan(refused());
    bench.plan(there());
    bench.executed(ReconcileOutcome::Deployed);
    bench.rest();
    assert_eq!(bench.tick(), INTERVAL);
}

#[test]
fn a_user_request_stops_the_correction_of_the_retained_revision() {
    let mut bench = waiting();
    bench.plan(PlanSummary {
        was_there: true,
        ..correction()
    });
    bench.tell();
    bench.others();
    bench.on(Event::Requested);
    assert_eq!(bench.others(), [Command::Cancel]);
    bench.executed(ReconcileOutcome::Superseded);
    bench.tell();
    assert!(bench.is_admitting());
}

#[test]
fn the_recorded_commit_is_looked_up_after_a_restart() {
    let recorded = || PlanSummary {
        refused: Some(refusal(false)),
        is_left: true,
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
    assert_eq!(bench.outcome().kept, None);
    bench.rest();
    bench.on(Event::LookedUp(id, Found::Target(Box::new(target(70, 0)))));
    assert!(bench.is_admitting());
    bench.plan(recorded());
    assert!(bench.others().contains(&Command::Retain {
        id: TargetId(bench.release.next - 2),
        from: TargetId(70),
    }));
    bench.plan(correction());
    bench.rest();
    // It is used once, and no other lookup follows.
    assert_eq!(lookup(bench.others()), None);

    // A commit that does not count is looked up again after a newer one arrived.
    let mut bench = Bench::of(target(0, 1));
    bench.plan(recorded());
    bench.rest();
    let (id, _) = lookup(bench.others()).unwrap();
    bench.on(Event::LookedUp(id, Found::Nothing));
    bench.tick();
    bench.plan(recorded());
    bench.rest();
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
    assert!(matches!(bench.task(), Task::Introduce(_)));
    bench.answer(Answer::Recorded(Ok(())));
    assert!(matches!(bench.task(), Task::Plan { since: None, .. }));
    let (plan, _) = bench.task.clone().unwrap();
    bench.plan(unapproved_plan("a", None));
    assert!(matches!(bench.task(), Task::Approve(id) if *id == plan));
    bench.answer(Answer::Approved(Some(reasons("missing"))));
    assert!(bench.others().contains(&Command::RetainPlan(plan)));
    let outcome = bench.outcome();
    assert_eq!(outcome.end, ReconcileOutcome::Unapproved);
    bench.rest();

    // A change of an object: the same effects are not queried again.
    bench.release.changes = objects();
    bench.tick();
    bench.plan(unapproved_plan("a", None));
    assert_eq!(bench.outcome().message, "missing");
    bench.rest();

    // An approved plan that does less is executed.
    bench.tick();
    let awaited = bench.release.awaited.as_ref().unwrap().plan;
    let mut approved = unapproved_plan("b", Some(awaited));
    approved.requests.approved = Some("a".to_owned());
    bench.deploy(approved);
    assert_eq!(bench.outcome().end, ReconcileOutcome::Deployed);
}

#[test]
fn a_request_stays_open_until_its_commits_have_arrived() {
    for (override_window, answered, is_open) in
        [(true, 6, true), (true, 7, false), (false, 6, false)]
    {
        let mut bench = Bench::new();
        let mut summary = plan();
        summary.requests.sync = Some(request(override_window));
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
        assert_eq!(fulfilled.is_none(), is_open, "{override_window} {answered}");
        assert_eq!(
            bench.rest().for_fetch,
            is_open,
            "{override_window} {answered}"
        );
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
    bench.tell();
    // The reconcile could have read the dependency before.
    assert!(bench.is_admitting());
    let mut bench = Bench::new();
    bench.deploy(plan());
    bench.on(Event::DependencyReconciled);
    assert!(matches!(bench.task(), Task::Wait(_)));
}
