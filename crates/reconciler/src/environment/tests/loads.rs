//! Loads, their retries and stalls.

use super::*;

#[test]
fn each_result_of_a_load_has_its_stall_and_its_retry() {
    let failed = || Load::Failed(stall("Unread"));
    let minutes = Duration::from_mins;
    let longest = minutes(60);
    // Each case: results of consecutive loads, the reported stalls, and the time until the next load.
    let cases: [(&str, Vec<Load>, &[&str], Duration); 6] = [
        ("unchanged", vec![Load::Unchanged], &[], longest),
        (
            "invalid",
            vec![Load::Invalid(stall("Bad"))],
            &["Bad"],
            longest,
        ),
        (
            "exceeded",
            vec![Load::Exceeded(stall("Big"))],
            &["Big"],
            minutes(30),
        ),
        ("one failure", vec![failed()], &[], Duration::from_secs(2)),
        (
            "two failures",
            vec![failed(), failed()],
            &["Unread"],
            Duration::from_secs(4),
        ),
        (
            "three failures",
            vec![failed(), failed(), failed()],
            &["Unread"],
            Duration::from_secs(8),
        ),
    ];
    for (case, results, holds, retry) in cases {
        let mut bench = Bench::new();
        let last = results.len() - 1;
        for (at, result) in results.into_iter().enumerate() {
            bench.load(result);
            bench.finish_round();
            if at < last {
                bench.pass(longest);
            }
        }
        let reasons: Vec<String> = bench
            .stalls()
            .into_iter()
            .map(|stall| stall.reason)
            .collect();
        assert_eq!(reasons, holds, "{case}");
        // Renewed reports are rounds without a load.
        let started = bench.now.at;
        while !bench.is_loading() && bench.now.at < started + longest {
            bench.pass(longest);
            bench.finish_round();
        }
        assert_eq!(bench.now.at.saturating_sub(started), retry, "{case}");
        assert_eq!(bench.is_loading(), retry < longest, "{case}");
    }
}

#[test]
fn a_commit_is_loaded_once_however_often_it_is_assigned() {
    let mut bench = Bench::deploy(&["web"]);
    for _ in 0..2 {
        bench.assign(assignment("c1"));
        assert!(matches!(bench.task(), Task::Connect { .. }));
        bench.finish_round();
    }
    bench.assign(assignment("c2"));
    assert!(matches!(bench.task(), Task::Load { commit, inputs: Some(_), .. } if commit == "c2"));
}

#[test]
fn the_newest_commit_follows_the_round_in_progress() {
    let mut bench = Bench::new();
    bench.assign(assignment("c2"));
    bench.assign(assignment("c3"));
    bench.loaded("c1", &["web"], &[]);
    bench.finish_round();
    assert!(matches!(bench.task(), Task::Load { commit, .. } if commit == "c3"));
}

#[test]
fn a_commit_that_changes_nothing_triggers_no_release() {
    let mut bench = Bench::deploy(&["web"]);
    bench.assign(assignment("c2"));
    bench.load(Load::Unchanged);
    bench.finish_round();
    bench.assign(assignment("c3"));
    bench.loaded_same("c3", &["web"], &[]);
    bench.finish_round();
    let commands = bench.commands();
    let unchanged = commands.iter().filter_map(|one| match one {
        Command::Unchanged(commit, took) => Some((commit.as_str(), took.is_some())),
        Command::UpdateRelease(..) => panic!("{one:?}"),
        _ => None,
    });
    let unchanged: Vec<_> = unchanged.collect();
    assert_eq!(unchanged, [("c2", false), ("c3", true)]);
    // After a stall, every release is triggered: its conditions change.
    bench.assign(assignment("c4"));
    bench.load(Load::Invalid(stall("Bad")));
    bench.finish_round();
    bench.commands();
    bench.assign(assignment("c5"));
    bench.loaded_same("c5", &["web"], &[]);
    bench.finish_round();
    let commands = bench.commands();
    let is_update = |one: &Command| matches!(one, Command::UpdateRelease(..));
    assert!(commands.iter().any(is_update), "{commands:?}");
}

#[test]
fn an_assignment_without_a_commit_has_its_stall() {
    let stalled = Commit::Stalled {
        reason: "Contested".to_owned(),
        message: "why".to_owned(),
    };
    let untrusted = Commit::Untrusted {
        reason: "UntrustedCommit".to_owned(),
        commit: "c2".to_owned(),
        message: "why".to_owned(),
    };
    // Each case: reason and commit of the stall, whether the releases stay, and whether the previous
    // commit is loaded without a comparison when it returns.
    let cases = [
        ("stalled", stalled, Some(("Contested", None)), false, true),
        (
            "untrusted",
            untrusted,
            Some(("UntrustedCommit", Some("c2"))),
            true,
            true,
        ),
        ("unknown", Commit::Unknown, None, true, false),
    ];
    for (case, commit, expected, stays, is_loaded) in cases {
        let mut bench = Bench::deploy(&["web"]);
        bench.assign(AssignmentFacts {
            commit,
            ..assignment("")
        });
        bench.finish_round();
        let stall = bench.environment.stall.clone();
        let stall = stall
            .as_ref()
            .map(|stall| (stall.reason.as_str(), stall.revision.as_deref()));
        assert_eq!(stall, expected, "{case}");
        assert_eq!(
            bench.environment.releases.contains_key("web"),
            stays,
            "{case}"
        );
        bench.assign(assignment("c1"));
        let is_forgotten = matches!(bench.task(), Task::Load { inputs: None, .. });
        assert_eq!(is_forgotten, is_loaded, "{case}");
    }
}

#[test]
fn a_stall_without_a_commit_ends_when_the_branch_returns() {
    let mut bench = Bench::of(
        AssignmentFacts {
            commit: Commit::Stalled {
                reason: "BranchMissing".to_owned(),
                message: "why".to_owned(),
            },
            ..assignment("")
        },
        None,
    );
    bench.finish_round();
    assert!(bench.environment.stall.is_some());
    bench.assign(AssignmentFacts {
        commit: Commit::Unknown,
        ..assignment("")
    });
    bench.finish_round();
    assert_eq!(bench.environment.stall, None);
}

#[test]
fn a_commit_at_which_the_controller_crashed_waits_and_no_other_commit_does() {
    let backoff = Duration::from_secs(100);
    let crash = Crash {
        commit: "c1".to_owned(),
        stall: stall("ControllerCrashed"),
        until: moment().at + backoff,
    };
    let mut bench = Bench::of(assignment("c1"), Some(crash.clone()));
    bench.finish_round();
    let stalls = bench.stalls();
    assert_eq!(stalls.len(), 1);
    assert_eq!(stalls[0].reason, "ControllerCrashed");
    assert_eq!(stalls[0].revision.as_deref(), Some("c1"));
    assert_eq!(bench.pass(Duration::from_mins(10)), backoff);
    assert!(bench.is_loading());

    let bench = Bench::of(assignment("c2"), Some(crash));
    assert!(bench.is_loading());
}

#[test]
fn the_crash_record_ends_once_the_releases_are_planned() {
    for (load, expected) in [
        (None, &["db", "web"][..]),
        (Some(Load::Invalid(stall("Bad"))), &[]),
        (Some(Load::Exceeded(stall("Big"))), &[]),
        (Some(Load::Failed(stall("Unread"))), &[]),
    ] {
        let mut bench = Bench::new();
        match load.clone() {
            Some(load) => bench.load(load),
            None => {
                bench.loaded("c1", &["db", "web"], &[]);
            }
        }
        let ends = bench.commands().into_iter().find_map(|one| match one {
            Command::EndAttempt(releases) => Some(releases),
            _ => None,
        });
        let expected = expected.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(ends, Some(expected), "{load:?}");
    }
}
