//! Reports about releases without a task, and the end of an environment.

use pleach_state::inventory::{ConditionKind, HEARTBEAT};

use super::*;

fn written(releases: &[&str], error: Option<&str>) -> Answer {
    let written = releases.iter().map(|name| (*name).to_owned());
    Answer::Reported(Reported {
        connection: None,
        written: written.collect(),
        error: error.map(str::to_owned),
    })
}

/// An environment whose release db is stalled without a previous state, after its report.
fn stalled() -> Bench {
    let mut bench = Bench::new();
    for _ in 0..2 {
        bench.loaded("c1", &["web"], &["db"]);
        if matches!(bench.task(), Task::ReadRecords { .. }) {
            bench.finish_round();
        }
    }
    bench.answer(Answer::Connected(Ok(ConnectionId(1))));
    bench
}

#[test]
fn a_report_is_renewed_at_the_heartbeat() {
    let mut bench = stalled();
    bench.environment.reported = None;
    bench.assign(assignment("c1"));
    bench.finish_round();
    bench.commands();
    // The same report is not written again.
    bench.assign(assignment("c1"));
    bench.answer(Answer::Connected(Ok(ConnectionId(1))));
    assert!(bench.is_waiting());
    assert_eq!(bench.pass(HEARTBEAT * 2), HEARTBEAT);
    bench.answer(Answer::Connected(Ok(ConnectionId(1))));
    let Task::Report { reports, .. } = bench.task() else {
        panic!("{:?}", bench.task());
    };
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].release.as_deref(), Some("db"));
    let kinds = reports[0].conditions.iter().map(|one| one.kind);
    let kinds: Vec<ConditionKind> = kinds.collect();
    assert_eq!(kinds, [ConditionKind::Followed, ConditionKind::Stalled]);
}

#[test]
fn all_releases_are_reported_while_none_has_a_task() {
    let unreachable = Some("no route".to_owned());
    // Each case: whether the environment is stalled and whether its source is unreachable.
    for (case, is_stalled, source, expected) in [
        ("followed", false, None, None),
        ("unreachable", false, unreachable.clone(), Some(2)),
        ("stalled", true, None, Some(2)),
        ("both", true, unreachable, Some(3)),
    ] {
        let mut bench = Bench::of(
            AssignmentFacts {
                unreachable: source,
                has_branch: false,
                ..assignment("c1")
            },
            None,
        );
        bench.load(if is_stalled {
            Load::Invalid(stall("Bad"))
        } else {
            Load::Unchanged
        });
        let conditions = match bench.task() {
            Task::Report { reports, .. } => {
                assert_eq!(reports[0].release, None, "{case}");
                Some(reports[0].conditions.len())
            }
            _ => None,
        };
        assert_eq!(conditions, expected, "{case}");
    }
}

#[test]
fn a_stall_is_notified_once_per_release() {
    let mut bench = Bench::new();
    bench.load(Load::Invalid(stall("Bad")));
    bench.answer(recorded(&[]));
    // An error ends the report early, and it is repeated.
    for (releases, error, expected) in [
        (&["db"][..], Some("no route"), &["db"][..]),
        (&["db", "web"], None, &["web"]),
    ] {
        bench.answer(written(releases, error));
        let Task::Notify(notifications) = bench.task() else {
            panic!("{:?}", bench.task());
        };
        let names = notifications.iter().map(|one| one.release.as_str());
        assert_eq!(names.collect::<Vec<_>>(), expected);
        assert_eq!(notifications[0].revision.as_deref(), Some("c1"));
        bench.answer(Answer::Notified);
        assert!(bench.is_waiting());
        let is_unreachable = |one: &Command| matches!(one, Command::Unreachable(_));
        assert_eq!(bench.commands().iter().any(is_unreachable), error.is_some());
        let pause = bench.pass(HEARTBEAT * 2);
        let expected = error.map_or(HEARTBEAT, |_| Duration::from_secs(2));
        assert_eq!(pause, expected);
    }
    // A renewal sends nothing.
    bench.answer(written(&["db", "web"], None));
    assert!(bench.is_waiting());
}

#[test]
fn an_environment_ends_once_its_releases_ended_and_that_is_reported() {
    let mut bench = Bench::deploy(&["web"]);
    bench.assign(AssignmentFacts {
        commit: Commit::Stalled {
            reason: "BranchMissing".to_owned(),
            message: "why".to_owned(),
        },
        is_removed: true,
        ..assignment("")
    });
    assert!(matches!(bench.task(), Task::Report { .. }));
    bench.finish_round();
    // The task of web, and that of the uninstalls.
    for _ in 0..2 {
        assert!(!bench.is_ended);
        bench.pass(Duration::from_mins(1));
        assert!(matches!(bench.task(), Task::Report { .. }));
        // A task that ends during a report can have written other conditions.
        bench.on(Event::TaskEnded);
        bench.finish_round();
    }
    assert!(!bench.is_ended);
    bench.pass(Duration::from_mins(1));
    bench.answer(no_reports());
    assert!(bench.is_ended);
    assert_eq!(bench.environment.on(Event::Tick, bench.now), []);
}

#[test]
fn a_stopped_environment_ends_at_once() {
    for mut bench in [Bench::new(), Bench::deploy(&["web"])] {
        bench.on(Event::Stopped);
        assert!(bench.is_ended);
        assert_eq!(bench.environment.wake_at(), None);
        bench.assign(assignment("c2"));
        assert_eq!(bench.commands(), []);
    }
}

#[test]
fn a_connection_that_a_report_renewed_is_passed_to_the_releases() {
    for (connection, is_new_round) in [(None, false), (Some(1), false), (Some(2), true)] {
        let mut bench = stalled();
        bench.environment.reported = None;
        bench.assign(assignment("c1"));
        bench.answer(Answer::Connected(Ok(ConnectionId(1))));
        assert!(matches!(bench.task(), Task::Report { .. }));
        bench.answer(Answer::Reported(Reported {
            connection: connection.map(ConnectionId),
            written: Vec::new(),
            error: None,
        }));
        assert_eq!(!bench.is_waiting(), is_new_round, "{connection:?}");
    }
}
