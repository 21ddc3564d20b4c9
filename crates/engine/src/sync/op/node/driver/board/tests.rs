//! Tests of the wait for a driver.

use pleach_cluster::Patch;
use pleach_formats::file::Window;
use pleach_formats::nodes::driver::{HookAnnotations, NodeObject};
use pleach_model::cel::Expression;
use pleach_model::object::GroupKind;

use super::super::acknowledgement;
use super::*;

fn rule() -> DriverRule {
    let annotations = |request: &str, acknowledge: &str| HookAnnotations {
        request: request.to_owned(),
        acknowledge: acknowledge.to_owned(),
    };
    DriverRule {
        hooks: GroupKind::new("", "Secret"),
        namespace: Some("fleet".to_owned()),
        labels: BTreeMap::from([("machine".to_owned(), None)]),
        node: NodeObject {
            kind: GroupKind::new("example.org", "Machine"),
            namespace: Some("fleet".to_owned()),
            name: Expression::compile("hook.metadata.name", &["hook"]).unwrap(),
            is: Expression::compile("item.status.node", &["item"]).unwrap(),
        },
        before: annotations("pre", "pre-ack"),
        after: annotations("post", "post-ack"),
    }
}

/// Returns a board of nodes a, b and c with hooks such as `a pre=1 pre-ack=1`. The node of a hook
/// `lost` is not known.
fn board(hooks: &[&str]) -> Board {
    let names = ["a", "b", "c"].map(str::to_owned);
    let hook = |text: &&str| {
        let mut words = text.split_whitespace();
        let name = words.next().unwrap();
        let annotations: BTreeMap<&str, &str> =
            words.filter_map(|word| word.split_once('=')).collect();
        let metadata = json!({"name": name, "namespace": "fleet", "uid": name,
            "resourceVersion": "7", "annotations": annotations});
        let mut hook = rule().hook(&metadata).unwrap();
        if name.starts_with("lost") {
            hook.node = Err("Machine x does not exist".to_owned());
        }
        hook
    };
    Board {
        open: names.iter().cloned().collect(),
        active: None,
        ended: None,
        moved: Instant::now(),
        withdrawn: false,
        hooks: hooks.iter().map(hook).collect(),
        hooks_at: Some(Instant::now()),
        outlook: None,
        live: names
            .iter()
            .map(|name| (name.clone(), "u".to_owned()))
            .collect(),
        marks: BTreeMap::new(),
        nodes_at: Some(Instant::now()),
        known: BTreeMap::new(),
        last: BTreeMap::new(),
        warned: BTreeSet::new(),
    }
}

fn verdict(board: &mut Board, node: &str, windows: &Windows, limit: Duration) -> String {
    let turn = Waiting {
        node,
        uid: Some("u"),
        windows,
        // A Monday.
        now: "2026-01-05T18:00:00Z".parse().unwrap(),
        limit,
    };
    text(board.verdict(&rule(), &turn))
}

fn text(verdict: Verdict) -> String {
    match verdict {
        Verdict::Begin => "begin".to_owned(),
        Verdict::Wait(message) => message,
        Verdict::Marked(message) => format!("marked; {message}"),
        Verdict::Gone => "gone".to_owned(),
        Verdict::After(step) => format!("after {}", step.0),
        Verdict::Failed(failure) => failure.message,
    }
}

const HOUR: Duration = Duration::from_hours(1);

#[test]
fn a_node_begins_when_it_is_asked_for_and_no_other_is_in_work() {
    let open = Windows::default();
    let between = "a pre=1 pre-ack=1";
    let waits = "its hook waits for node a, which is between its hooks";
    for (hooks, active, node, expected) in [
        (
            &[][..],
            None,
            "a",
            "waiting for the driver to ask by annotation `pre`",
        ),
        (&["a pre=1"], None, "a", "begin"),
        (
            &["a pre=1"],
            None,
            "b",
            "waiting for the driver, which works on node a",
        ),
        (&["a pre=1", "b pre=1"], None, "b", waits),
        (&[between, "b pre=1"], None, "b", waits),
        (&[between, "b pre=1"], None, "a", "begin"),
        (&["a", "b pre=1"], Some("a"), "b", waits),
        (
            &["x pre=1"],
            None,
            "a",
            "waiting for the driver to ask by annotation `pre`; Secret/fleet/x is not acknowledged: the plan does not change its node",
        ),
    ] {
        let mut board = board(hooks);
        board.activate(active);
        assert_eq!(
            verdict(&mut board, node, &open, HOUR),
            expected,
            "{hooks:?} {node}"
        );
    }
}

#[test]
fn a_mark_of_a_killed_run_is_cleared_unless_the_driver_asks() {
    let open = Windows::default();
    let idle = "marked; waiting for the driver to ask by annotation `pre`";
    let busy = "marked; waiting for the driver, which works on node b";
    let waits = "its hook waits for node b, which is between its hooks";
    for (hooks, expected) in [
        (&[][..], idle),
        (&["a", "b"], idle),
        (&["b pre=1 pre-ack=1"], busy),
        (&["a pre=1", "b pre=1 pre-ack=1"], waits),
        (&["a pre=1"], "begin"),
        (&["a pre=1 pre-ack=1 post=1 post-ack=1"], "begin"),
    ] {
        let mut board = board(hooks);
        board.marks.insert("a".to_owned(), Mark::default());
        assert_eq!(verdict(&mut board, "a", &open, HOUR), expected, "{hooks:?}");
    }
}

#[test]
fn a_hook_whose_node_is_not_known_blocks_and_is_not_withdrawn() {
    let open = Windows::default();
    let between = "lost pre=1 pre-ack=1";
    let why = "; Secret/fleet/lost: no other node begins, because its node may be drained and is not known: Machine x does not exist";
    let waits = format!("its hook waits for a hook whose node is not known{why}");
    let idle = "waiting for the driver to ask by annotation `pre`";
    let asks = "; Secret/fleet/lost is not acknowledged: Machine x does not exist";
    for (hooks, last, expected) in [
        (&[between, "a pre=1"][..], &[][..], waits),
        (&[between], &[], format!("{idle}{why}")),
        (&["lost pre=1"], &[], format!("{idle}{asks}")),
        (&["lost pre=1"], &[("lost", "a")], format!("{idle}{asks}")),
        (
            &["lost pre=1"],
            &[("lost", "b")],
            format!("marked; {idle}{asks}"),
        ),
        (
            &["lost pre=1", "a"],
            &[("a", "a")],
            format!("marked; {idle}{asks}"),
        ),
    ] {
        let mut board = board(hooks);
        board.marks.insert("a".to_owned(), Mark::default());
        let last = last
            .iter()
            .map(|(uid, node)| ((*uid).to_owned(), (*node).to_owned()));
        board.last = last.collect();
        assert_eq!(verdict(&mut board, "a", &open, HOUR), expected, "{hooks:?}");
    }
}

#[test]
fn hooks_that_cannot_be_read_are_waited_for_within_limits() {
    let failed = || Failure::new(FailureKind::Cluster, "503");
    for (ended, active, is_retryable, limit, expected) in [
        (None, None, true, HOUR, "hooks cannot be read: 503"),
        (None, None, true, Duration::ZERO, "503"),
        (
            None,
            Some("b"),
            true,
            Duration::ZERO,
            "hooks cannot be read: 503",
        ),
        (None, None, false, HOUR, "503"),
        (Some(StepId(7)), None, true, HOUR, "after 7"),
        (Some(StepId(7)), None, false, HOUR, "after 7"),
    ] {
        let mut board = board(&[]);
        board.ended = ended;
        board.activate(active);
        let found = text(board.unread(failed(), is_retryable, limit));
        assert_eq!(found, expected, "{ended:?} {active:?} {is_retryable}");
    }
}

#[test]
fn a_driver_that_asks_and_withdraws_makes_no_progress() {
    let open = Windows::default();
    let stuck = "the driver withdrew its requests by annotation `pre` for 0 s";
    for (hooks, withdrawn, limit, expected) in [
        ("a pre=1", true, Duration::ZERO, stuck),
        ("a pre=1", true, HOUR, "begin"),
        ("a pre=1", false, Duration::ZERO, "begin"),
        ("a pre=1 pre-ack=1", true, Duration::ZERO, "begin"),
    ] {
        let mut board = board(&[hooks]);
        board.withdrawn = withdrawn;
        let moved = board.moved;
        board.activate(Some("a"));
        board.activate(None);
        assert_eq!(board.moved, moved, "only an acknowledgement is progress");
        assert_eq!(verdict(&mut board, "a", &open, limit), expected, "{hooks}");
        board.restart();
        assert!(!board.withdrawn);
    }
}

#[test]
fn a_wait_ends_early() {
    let open = Windows::default();
    let mut failed = board(&["a pre=1"]);
    failed.ended = Some(StepId(7));
    assert_eq!(verdict(&mut failed, "a", &open, HOUR), "after 7");
    let mut left = board(&["a pre=1"]);
    left.live.insert("a".to_owned(), "another".to_owned());
    assert_eq!(verdict(&mut left, "a", &open, HOUR), "gone");
    let silent = verdict(&mut board(&["x pre=1"]), "a", &open, Duration::ZERO);
    assert_eq!(
        silent,
        "the driver asked for none of a, b, c in 0 s by annotation `pre` of Secret/fleet/* with label machine; Secret/fleet/x is not acknowledged: the plan does not change its node"
    );
    let mut busy = board(&["a pre=1 pre-ack=1"]);
    busy.activate(Some("a"));
    let waits = verdict(&mut busy, "b", &open, Duration::ZERO);
    assert_eq!(waits, "waiting for the driver, which works on node a");
}

#[test]
fn outside_of_the_windows_only_a_node_in_work_goes_on() {
    let window = json!({"allow": "Mon-Fri 08:00-16:00"});
    let window: Window = serde_json::from_value(window).unwrap();
    let windows = Windows::recorded(&[vec![window]]);
    let closed = "the window closed; no further node begins";
    for (hooks, marked, expected) in [
        (&[][..], "", closed),
        (&["a pre=1"], "", closed),
        (&["a pre=1"], "a", "begin"),
        (&["a pre=1 pre-ack=1"], "", "begin"),
        (
            &["b pre=1 pre-ack=1"],
            "",
            "waiting for the driver, which works on node b",
        ),
    ] {
        let mut board = board(hooks);
        let names = marked.split_whitespace();
        board.marks = names
            .map(|node| (node.to_owned(), Mark::default()))
            .collect();
        assert_eq!(
            verdict(&mut board, "a", &windows, HOUR),
            expected,
            "{hooks:?} {marked}"
        );
    }
}

#[test]
fn an_acknowledgement_changes_one_annotation_and_needs_the_version() {
    let board = board(&["a pre=1"]);
    let Patch::Merge(patch) = acknowledgement(&board.hooks[0], &rule().before, "1") else {
        panic!("another patch");
    };
    let expected =
        json!({"metadata": {"uid": "a", "resourceVersion": "7", "annotations": {"pre-ack": "1"}}});
    assert_eq!(patch, expected);
}
