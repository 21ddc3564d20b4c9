//! Desired states of releases, and their triggers.

use pleach_planner::observe::ClusterId;
use pleach_state::inventory::SyncRequest;

use super::*;

/// Returns the commands about tasks of releases, in words.
fn changes(bench: &mut Bench) -> Vec<String> {
    let changes = bench.commands().into_iter().filter_map(|one| match one {
        Command::StartRelease(name, _) => Some(format!("start {name}")),
        Command::UpdateRelease(name, _) => Some(format!("update {name}")),
        Command::RemoveRelease(name) => Some(format!("remove {name}")),
        Command::Uninstall { is_changed, .. } if is_changed => Some("uninstall".to_owned()),
        Command::StopUninstalls => Some("no uninstalls".to_owned()),
        Command::StopSync => Some("leave".to_owned()),
        _ => None,
    });
    changes.collect()
}

/// Releases of a commit, and the stalled ones.
type Loaded = (&'static [&'static str], &'static [&'static str]);

#[test]
fn each_load_changes_the_tasks_of_releases() {
    let wrong = Load::Invalid(stall("WrongCluster"));
    let missing = Load::Invalid(stall("EnvironmentMissing"));
    // Each case: the result of loading the second commit, while db and web are deployed.
    let cases: [(&str, Result<Loaded, Load>, &[&str]); 7] = [
        (
            "updated",
            Ok((&["db", "web"], &[])),
            &["update db", "update web", "uninstall"],
        ),
        (
            "added",
            Ok((&["api", "db", "web"], &[])),
            &["start api", "update db", "update web", "uninstall"],
        ),
        (
            "removed",
            Ok((&["web"], &[])),
            &["update web", "remove db", "uninstall"],
        ),
        (
            "stalled with a known state",
            Ok((&["web"], &["db"])),
            &["update db", "update web", "uninstall"],
        ),
        ("unchanged", Err(Load::Unchanged), &[]),
        (
            "environment stalled",
            Err(wrong),
            &["update db", "update web", "no uninstalls"],
        ),
        ("environment removed", Err(missing), &["leave"]),
    ];
    for (case, loaded, expected) in cases {
        let mut bench = Bench::deploy(&["db", "web"]);
        bench.assign(assignment("c2"));
        match loaded {
            Ok((releases, stalled)) => {
                bench.loaded("c2", releases, stalled);
            }
            Err(load) => bench.load(load),
        }
        bench.finish_round();
        assert!(bench.is_waiting(), "{case}");
        assert_eq!(changes(&mut bench), expected, "{case}");
        // The same again changes nothing.
        bench.assign(assignment("c2"));
        bench.finish_round();
        let again: &[&str] = if bench.environment.state.is_some() {
            &[]
        } else {
            &["leave"]
        };
        assert_eq!(changes(&mut bench), again, "{case}");
    }
}

#[test]
fn a_stalled_release_stays_at_its_previous_state() {
    let mut bench = Bench::deploy(&["db", "web"]);
    let before = bench.environment.state.as_ref().unwrap().id;
    bench.assign(assignment("c2"));
    bench.loaded("c2", &["web"], &["db"]);
    bench.finish_round();
    let commands = bench.commands();
    let extracted = commands.iter().find_map(|one| match one {
        Command::Extract { id, from, release } if release == "db" => Some((*id, *from)),
        _ => None,
    });
    let (id, from) = extracted.unwrap();
    assert_eq!(from, before);
    assert!(bench.environment.uses(id) && !bench.environment.uses(before));
    let desired = commands.into_iter().find_map(|one| match one {
        Command::UpdateRelease(name, desired) if name == "db" => Some(desired),
        _ => None,
    });
    let desired = desired.unwrap();
    assert_eq!((desired.state, desired.index), (id, 0));
    assert!(desired.is_stalled && !desired.is_from_records);
    assert_eq!(
        desired.stall.map(|stall| stall.reason).as_deref(),
        Some("broken")
    );
    // At the next commit it stays at the same one.
    bench.assign(assignment("c3"));
    bench.loaded("c3", &["web"], &["db"]);
    bench.finish_round();
    assert_eq!(changes(&mut bench), ["update web", "uninstall"]);
}

#[test]
fn the_cluster_comes_from_policy_file_or_fallback() {
    let id = |name: &str| Some(ClusterId(name.to_owned()));
    // Each case: source policy, environment file, fallback, and the expected cluster. An empty name
    // stands for none.
    for (policy, file, fallback, expected) in [
        ("a", "a", "c", Some("a")),
        ("a", "", "c", Some("a")),
        ("", "b", "c", Some("b")),
        ("", "", "c", Some("c")),
        ("", "", "", None),
        ("a", "b", "c", None),
    ] {
        let named = |name: &str| id(name).filter(|id| !id.0.is_empty());
        let facts = AssignmentFacts {
            cluster: named(policy),
            fallback: named(fallback),
            ..assignment("c1")
        };
        let mut bench = Bench::of(facts, None);
        let state = Box::new(StateFacts {
            cluster: named(file),
            ..state(bench.environment.new_state(), "c1", &["web"], &[])
        });
        bench.load(Load::Loaded {
            state,
            is_same: false,
        });
        bench.finish_round();
        let case = format!("{policy} {file} {fallback}");
        let is_wrong = policy == "a" && file == "b";
        let reason = bench
            .environment
            .stall
            .as_ref()
            .map(|stall| stall.reason.clone());
        assert_eq!(
            reason.as_deref() == Some("WrongCluster"),
            is_wrong,
            "{case}"
        );
        let desired = bench.commands().into_iter().find_map(|one| match one {
            Command::StartRelease(_, desired) => Some(desired),
            _ => None,
        });
        assert_eq!(desired.is_none(), is_wrong, "{case}");
        let cluster = desired.and_then(|desired| desired.cluster);
        assert_eq!(cluster, expected.and_then(id), "{case}");
    }
}

#[test]
fn a_new_connection_triggers_the_releases() {
    let mut bench = Bench::deploy(&["web"]);
    for (answer, expected) in [
        (Answer::Connected(Ok(ConnectionId(1))), &[][..]),
        (
            Answer::Connected(Ok(ConnectionId(2))),
            &["update web", "uninstall"],
        ),
        (Answer::Connected(Err("no route".to_owned())), &[]),
    ] {
        bench.assign(assignment("c1"));
        bench.answer(answer.clone());
        assert!(bench.is_waiting());
        assert_eq!(changes(&mut bench), expected, "{answer:?}");
    }
    // The connection is retried.
    assert_eq!(bench.pass(Duration::from_mins(1)), Duration::from_secs(2));
}

#[test]
fn changed_files_start_a_round() {
    let mut bench = Bench::deploy(&["web"]);
    for (kubeconfig, keys) in [(false, false), (true, false), (false, true)] {
        bench.now.at = bench.environment.wake_at().unwrap();
        bench.on(Event::Tick);
        assert!(matches!(bench.task(), Task::CheckFiles));
        bench.answer(Answer::FilesChecked(ChangedFiles { kubeconfig, keys }));
        assert_eq!(bench.is_waiting(), !kubeconfig && !keys);
        match bench.task() {
            // The commit is loaded again only for other keys.
            Task::Load { inputs, .. } => assert!(keys && inputs.is_none()),
            Task::Connect { .. } => {
                assert!(kubeconfig);
                bench.answer(Answer::Connected(Ok(ConnectionId(1))));
            }
            other => assert!(matches!(other, Task::Wait), "{other:?}"),
        }
    }
}

#[test]
fn reconciled_releases_and_changed_records_trigger_others() {
    let mut bench = Bench::new();
    let mut facts = state(
        bench.environment.new_state(),
        "c1",
        &["api", "db", "web"],
        &[],
    );
    facts.releases[0].depends_on = ["db".to_owned()].into();
    facts.releases[2].depends_on = ["api".to_owned(), "db".to_owned()].into();
    bench.load(Load::Loaded {
        state: Box::new(facts),
        is_same: false,
    });
    bench.finish_round();
    bench.commands();
    let dependent = |name: &str| Command::TriggerDependent(name.to_owned());
    bench.on(Event::Reconciled("db".to_owned()));
    assert_eq!(bench.commands(), [dependent("api"), dependent("web")]);
    bench.on(Event::Reconciled("web".to_owned()));
    assert_eq!(bench.commands(), []);
    let request = SyncRequest {
        at: moment().wall,
        by: "ann".to_owned(),
        override_window: false,
        after_fetch: false,
        nodes: false,
    };
    let change = |release: &str, affects_dependents, is_requested, fetch: Option<&SyncRequest>| {
        Answer::RecordsChanged(vec![RecordChange {
            release: release.to_owned(),
            affects_dependents,
            is_requested,
            fetch: fetch.cloned(),
        }])
    };
    let trigger = |name: &str| Command::TriggerRelease(name.to_owned());
    for (answer, expected) in [
        (change("db", false, false, None), vec![]),
        (change("db", false, true, None), vec![trigger("db")]),
        (
            change("gone", false, true, None),
            vec![Command::TriggerUninstalls],
        ),
        (change("api", true, false, None), vec![dependent("web")]),
        (
            change("db", false, true, Some(&request)),
            vec![
                Command::Fetch("db".to_owned(), request.clone()),
                trigger("db"),
            ],
        ),
    ] {
        let until = bench.environment.wake_at();
        bench.answer(answer.clone());
        assert_eq!(bench.commands(), expected, "{answer:?}");
        assert!(bench.is_waiting());
        assert_eq!(bench.environment.wake_at(), until);
    }
}

#[test]
fn fetches_are_answered_once_the_releases_have_their_result() {
    let answered = |bench: &mut Bench| {
        let mut commands = bench.commands().into_iter();
        commands.find_map(|one| match one {
            Command::Answered(number) => Some(number),
            _ => None,
        })
    };
    let facts = |commit| AssignmentFacts {
        answered: 7,
        ..assignment(commit)
    };
    let mut bench = Bench::of(facts("c1"), None);
    bench.load(Load::Failed(stall("Unread")));
    bench.finish_round();
    assert_eq!(answered(&mut bench), None);
    bench.assign(facts("c2"));
    bench.loaded("c2", &["web"], &[]);
    bench.answer(Answer::Connected(Err("no route".to_owned())));
    assert_eq!(answered(&mut bench), None);
    bench.assign(facts("c2"));
    bench.finish_round();
    assert_eq!(answered(&mut bench), Some(7));
}
