//! Lookups of previous states.

use super::*;

/// An environment that is stalled at its first commit, with a lookup in progress.
fn looking_up() -> (Bench, TaskId) {
    let mut bench = Bench::new();
    bench.load(Load::Invalid(stall("Bad")));
    bench.answer(recorded(&[("web", "c0"), ("db", "b9")]));
    let lookups = bench.commands().into_iter().filter_map(|one| match one {
        Command::LookUp {
            id,
            commits,
            release,
        } => Some((id, commits, release)),
        _ => None,
    });
    let lookups: Vec<_> = lookups.collect();
    bench.finish_round();
    assert!(bench.is_waiting());
    let [(id, commits, None)] = lookups.as_slice() else {
        panic!("{lookups:?}");
    };
    assert!(commits.iter().eq(["b9", "c0"]));
    (bench, *id)
}

#[test]
fn a_stalled_environment_retains_the_last_applied_revision() {
    let (mut bench, id) = looking_up();
    let found = bench.environment.new_state();
    let found = Box::new(state(found, "c0", &["web"], &["db"]));
    bench.on(Event::LookedUp(id, LookedUp::State(found)));
    assert!(
        bench
            .commands()
            .contains(&Command::Retained("c0".to_owned()))
    );
    // The previous state of db is looked up too.
    assert!(matches!(bench.task(), Task::ReadRecords { state: Some(_) }));
    bench.answer(Answer::Records(None));
    bench.finish_round();
    let started = bench.commands().into_iter().find_map(|one| match one {
        Command::StartRelease(name, desired) => Some((name, desired)),
        _ => None,
    });
    let (name, desired) = started.unwrap();
    assert_eq!(name, "web");
    assert!(desired.is_from_records && desired.stall.is_some());
    assert_eq!(bench.environment.uninstalls, None);
}

#[test]
fn an_environment_is_looked_up_once_per_stalled_commit() {
    for (case, found, is_again) in [
        ("nothing", LookedUp::Nothing, false),
        ("failed", LookedUp::Failed, true),
    ] {
        let (mut bench, id) = looking_up();
        bench.on(Event::LookedUp(id, found));
        let is_reading = matches!(bench.task(), Task::ReadRecords { state: None });
        assert_eq!(is_reading, is_again, "{case}");
        bench.finish_round();
        bench.assign(assignment("c2"));
        bench.load(Load::Invalid(stall("Bad")));
        assert!(
            matches!(bench.task(), Task::ReadRecords { state: None }),
            "{case}"
        );
    }
}

#[test]
fn the_result_of_a_lookup_comes_too_late_for_a_newer_state() {
    let (mut bench, id) = looking_up();
    bench.assign(assignment("c2"));
    bench.loaded("c2", &["web"], &[]);
    bench.finish_round();
    assert!(!bench.environment.awaits_lookup(id));
    let found = bench.environment.new_state();
    let found = Box::new(state(found, "c0", &["old"], &[]));
    bench.commands();
    bench.on(Event::LookedUp(id, LookedUp::State(found)));
    assert_eq!(bench.commands(), []);
    assert!(bench.is_waiting());
}

#[test]
fn some_stalled_environments_are_not_looked_up() {
    let with = |change: &dyn Fn(&mut AssignmentFacts)| {
        let mut facts = assignment("c1");
        change(&mut facts);
        facts
    };
    let stalled = Commit::Stalled {
        reason: "Contested".to_owned(),
        message: "why".to_owned(),
    };
    let cases = [
        ("it left git", assignment("c1"), Some("EnvironmentMissing")),
        (
            "no branch",
            with(&|facts| facts.has_branch = false),
            Some("Bad"),
        ),
        (
            "no commit",
            with(&|facts| facts.commit = stalled.clone()),
            None,
        ),
    ];
    for (case, assignment, reason) in cases {
        let mut bench = Bench::of(assignment, None);
        if let Some(reason) = reason {
            bench.load(Load::Invalid(stall(reason)));
        }
        assert!(matches!(bench.task(), Task::Report { .. }), "{case}");
    }
}

#[test]
fn records_that_cannot_be_read_are_read_again_after_a_backoff() {
    let mut bench = Bench::new();
    bench.load(Load::Invalid(stall("Bad")));
    for seconds in [2, 4] {
        bench.answer(Answer::Records(None));
        bench.finish_round();
        assert_eq!(
            bench.pass(Duration::from_mins(1)),
            Duration::from_secs(seconds)
        );
        assert!(matches!(bench.task(), Task::ReadRecords { .. }));
    }
}

#[test]
fn each_result_for_a_stalled_release_is_used_by_the_next_load() {
    let state_of = |bench: &mut Bench, name: &str| {
        let id = bench.environment.new_state();
        (id, LookedUp::State(Box::new(state(id, "c0", &[name], &[]))))
    };
    // Each case: the result, and the previous state that the next load receives.
    for case in [
        "found",
        "another release",
        "nothing",
        "failed",
        "not recorded",
    ] {
        let mut bench = Bench::new();
        bench.loaded("c1", &["web"], &["db"]);
        let records: &[_] = if case == "not recorded" {
            &[]
        } else {
            &[("db", "c0")]
        };
        bench.answer(recorded(records));
        let lookups = bench.lookups();
        assert_eq!(lookups.len(), records.len(), "{case}");
        bench.finish_round();
        let mut expected = Some(PreviousState::Absent);
        if let [(id, Some(release))] = lookups.as_slice() {
            assert_eq!(release, "db", "{case}");
            let found = match case {
                "found" => {
                    let (id, found) = state_of(&mut bench, "db");
                    expected = Some(PreviousState::In(id));
                    found
                }
                "another release" => state_of(&mut bench, "web").1,
                "nothing" => LookedUp::Nothing,
                _ => {
                    expected = None;
                    LookedUp::Failed
                }
            };
            bench.on(Event::LookedUp(*id, found));
        }
        let Task::Load {
            inputs: None,
            previous,
            ..
        } = bench.task()
        else {
            panic!("{case}: {:?}", bench.task());
        };
        assert_eq!(previous.get("db").copied(), expected, "{case}");
        bench.commands();
        bench.loaded("c1", &["web"], &["db"]);
        // A failed lookup is repeated.
        let is_reading = matches!(bench.task(), Task::ReadRecords { .. });
        assert_eq!(is_reading, case == "failed", "{case}");
        bench.finish_round();
        let started = bench.commands().into_iter().find_map(|one| match one {
            Command::StartRelease(name, desired) if name == "db" => Some(desired),
            _ => None,
        });
        assert_eq!(started.is_some(), case == "found", "{case}");
        if let Some(desired) = started {
            assert!(desired.is_stalled && desired.is_from_records);
        }
    }
}

#[test]
fn a_release_without_a_previous_state_is_looked_up_once_per_commit() {
    let mut bench = Bench::new();
    bench.loaded("c1", &["web"], &["db"]);
    bench.finish_round();
    bench.loaded("c1", &["web"], &["db"]);
    bench.finish_round();
    assert!(bench.is_waiting());
    // The content of the next commit is the same, so the state stays at the first commit.
    bench.assign(assignment("c2"));
    for is_last in [false, true] {
        bench.loaded_same("c2", &["web"], &["db"]);
        let is_reading = matches!(bench.task(), Task::ReadRecords { .. });
        assert_eq!(is_reading, !is_last);
        bench.finish_round();
    }
    assert!(bench.is_waiting());
}

#[test]
fn a_lookup_for_a_release_that_recovered_changes_nothing() {
    let mut bench = Bench::new();
    bench.loaded("c1", &["web"], &["db"]);
    bench.answer(recorded(&[("db", "c0")]));
    let (id, _) = bench.lookups().remove(0);
    bench.finish_round();
    bench.assign(assignment("c2"));
    bench.loaded("c2", &["web", "db"], &[]);
    bench.finish_round();
    assert!(!bench.environment.awaits_lookup(id));
    bench.commands();
    bench.on(Event::LookedUp(id, LookedUp::Failed));
    assert_eq!(bench.commands(), []);
    assert!(bench.is_waiting());
}
