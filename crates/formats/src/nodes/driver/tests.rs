//! Tests of the decision which node is in work.

use rstest::rstest;

use super::*;

fn rule() -> DriverRule {
    let annotations = |request: &str, acknowledge: &str| HookAnnotations {
        request: request.to_owned(),
        acknowledge: acknowledge.to_owned(),
    };
    let name = "hook.metadata.labels['example.org/machine']";
    DriverRule {
        hooks: GroupKind::new("", "Secret"),
        namespace: Some("fleet".to_owned()),
        labels: BTreeMap::from([
            ("example.org/machine".to_owned(), None),
            ("team".to_owned(), Some("a".to_owned())),
        ]),
        node: NodeObject {
            kind: GroupKind::new("example.org", "Machine"),
            namespace: Some("fleet".to_owned()),
            name: Expression::compile(name, &[HOOK]).unwrap(),
            is: Expression::compile("item.status.nodeRef.name", &[ITEM]).unwrap(),
        },
        before: annotations("pre", "pre-ack"),
        after: annotations("post", "post-ack"),
    }
}

/// Returns a hook object named like its node, with annotations such as `pre=1 pre-ack=1`.
fn hook(node: &str, annotations: &str) -> Hook {
    let annotations: BTreeMap<&str, &str> = annotations
        .split_whitespace()
        .filter_map(|one| one.split_once('='))
        .collect();
    let metadata = json!({"name": node, "namespace": "fleet", "uid": "u", "resourceVersion": "7",
        "labels": {"example.org/machine": node}, "annotations": annotations});
    rule().hook(&metadata).unwrap()
}

fn names(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Decides for nodes a, b and c. Returns the node in work with its point, and the waiting nodes.
fn decide(hooks: &[(&str, &str)], active: Option<&str>, marked: &str) -> (String, String) {
    let hooks: Vec<Hook> = hooks.iter().map(|(node, text)| hook(node, text)).collect();
    let (open, marked) = (names("a b c"), names(marked));
    let course = Course {
        open: &open,
        active,
        marked: &marked,
    };
    let decision = next(&hooks, course);
    let turn = decision.turn.map(|(node, _, point)| match point {
        Point::Before(value) => format!("{node} before {value}"),
        Point::Drain => format!("{node} drain"),
        Point::After(value) => format!("{node} after {value}"),
        Point::Over => format!("{node} over"),
    });
    let waiting: Vec<&str> = decision.waiting.into_iter().collect();
    (turn.unwrap_or_default(), waiting.join(" "))
}

#[test]
fn one_node_at_most_is_between_its_hooks() {
    const BETWEEN: &str = "pre=1 pre-ack=1";
    const OVER: &str = "pre=1 pre-ack=1 post=1 post-ack=1";
    for (name, hooks, active, marked, expected) in [
        ("nothing is asked", &[("a", "")][..], None, "", ("", "")),
        (
            "an empty request asks for nothing",
            &[("a", "pre=")],
            None,
            "",
            ("", ""),
        ),
        ("one asks", &[("b", "pre=1")], None, "", ("b before 1", "")),
        (
            "another value is due again",
            &[("b", "pre=2 pre-ack=1")],
            None,
            "",
            ("b before 2", ""),
        ),
        (
            "two ask",
            &[("c", "pre=1"), ("b", "pre=1")],
            None,
            "",
            ("b before 1", "c"),
        ),
        (
            "a begun node first",
            &[("c", "pre=1"), ("b", "pre=1")],
            None,
            "c",
            ("c before 1", "b"),
        ),
        (
            "a drained node first",
            &[("a", "pre=1"), ("c", BETWEEN)],
            None,
            "",
            ("c drain", "a"),
        ),
        (
            "its second hook",
            &[("a", "pre=1"), ("c", "pre=1 pre-ack=1 post=1")],
            None,
            "",
            ("c after 1", "a"),
        ),
        (
            "a driver with one hook",
            &[("a", "pre=1"), ("c", "post=1")],
            None,
            "",
            ("c after 1", "a"),
        ),
        (
            "both ask, so the first is due",
            &[("a", "pre=1 post=1")],
            None,
            "",
            ("a before 1", ""),
        ),
        (
            "the active one stays",
            &[("a", BETWEEN), ("c", "pre=1")],
            Some("c"),
            "",
            ("c before 1", "a"),
        ),
        (
            "a withdrawn request",
            &[("a", "pre=1"), ("c", "")],
            Some("c"),
            "",
            ("", "a"),
        ),
        (
            "an earlier change",
            &[("a", OVER), ("b", "pre=1")],
            None,
            "",
            ("b before 1", ""),
        ),
        (
            "a node that a killed run ended",
            &[("a", OVER), ("b", "pre=1")],
            None,
            "a",
            ("a over", "b"),
        ),
        (
            "the active one ends",
            &[("a", OVER), ("b", "pre=1")],
            Some("a"),
            "",
            ("a over", "b"),
        ),
        (
            "two are between already",
            &[("b", BETWEEN), ("a", BETWEEN)],
            None,
            "",
            ("a drain", "b"),
        ),
        (
            "two hooks of a node",
            &[("a", "pre=1"), ("a", "pre=1")],
            None,
            "",
            ("", ""),
        ),
        (
            "two hooks, one between",
            &[("a", BETWEEN), ("a", "pre=1"), ("b", "pre=1")],
            None,
            "",
            ("a drain", "b"),
        ),
        (
            "an unknown node",
            &[("x", "pre=1"), ("b", "pre=1")],
            None,
            "",
            ("b before 1", ""),
        ),
    ] {
        let (turn, waiting) = decide(hooks, active, marked);
        assert_eq!((turn.as_str(), waiting.as_str()), expected, "{name}");
    }
}

#[test]
fn hooks_that_are_not_acknowledged_have_a_reason() {
    let long = format!("pre={}", "x".repeat(LONGEST + 1));
    let lost = Hook {
        node: Err("Machine x does not exist".to_owned()),
        ..hook("lost", "pre=1")
    };
    let silent = Hook {
        node: Err("Machine x does not exist".to_owned()),
        ..hook("silent", "pre=1 pre-ack=1")
    };
    let hooks = [
        hook("other", "pre=1"),
        lost,
        silent,
        hook("a", &long),
        hook("b", "pre=1"),
        hook("b", "pre=2"),
        hook("c", "pre=1"),
    ];
    let (open, marked) = (names("a b c"), BTreeSet::new());
    let course = Course {
        open: &open,
        active: None,
        marked: &marked,
    };
    let decision = next(&hooks, course);
    let strays: Vec<String> = decision
        .strays
        .iter()
        .map(|(hook, why)| format!("{}: {why}", hook.object.name))
        .collect();
    let expected = [
        "other: the plan does not change its node",
        "lost: Machine x does not exist",
        "a: its request is longer than 4096 bytes",
        "b: 2 hooks name node b",
        "b: 2 hooks name node b",
    ];
    assert_eq!(strays, expected);
    assert_eq!(decision.turn.map(|(node, ..)| node), Some("c"));
}

#[rstest]
#[case::of_a_machine(json!({"status": {"nodeRef": {"name": "node-1"}}}), Ok("node-1"))]
#[case::not_known_yet(json!({"status": {}}), Err("`node.is`: there is no `nodeRef`"))]
#[case::no_text(json!({"status": {"nodeRef": {"name": 7}}}), Err("`node.is`: expected string, got int"))]
#[case::a_path(json!({"status": {"nodeRef": {"name": "../node"}}}), Err("`node.is` returns no valid name"))]
#[case::empty(json!({"status": {"nodeRef": {"name": ""}}}), Err("`node.is` returns no valid name"))]
fn the_node_of_a_hook(#[case] machine: Value, #[case] expected: Result<&str, &str>) {
    let node = rule().node.node_of(&machine);
    assert_eq!(node.as_deref().map_err(String::as_str), expected);
}

#[test]
fn a_hook_is_read_from_its_metadata() {
    let rule = rule();
    assert_eq!(rule.selector(), "example.org/machine,team=a");
    let read = hook("m-1", "pre=1");
    assert_eq!(read.node.as_deref(), Ok("m-1"));
    assert_eq!(read.before, Signal::Due("1".to_owned()));
    assert_eq!(read.object.to_string(), "Secret/fleet/m-1");
    let without = json!({"name": "m", "uid": "u", "resourceVersion": "1"});
    let why = rule.hook(&without).unwrap().node.unwrap_err();
    assert_eq!(why, "`node.name`: there is no `labels`");
}
