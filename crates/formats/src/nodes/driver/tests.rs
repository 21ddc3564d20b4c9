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

/// Returns a hook object named like its node, with annotations such as `pre=1 pre-ack=1`. The node
/// of a name that begins with `?` is not known.
fn hook(node: &str, annotations: &str) -> Hook {
    let annotations: BTreeMap<&str, &str> = annotations
        .split_whitespace()
        .filter_map(|one| one.split_once('='))
        .collect();
    let metadata = json!({"name": node.replace('?', "lost"), "namespace": "fleet", "uid": "u", "resourceVersion": "7",
        "labels": {"example.org/machine": node}, "annotations": annotations});
    let mut hook = rule().hook(&metadata).unwrap();
    if node.starts_with('?') {
        hook.node = Err("Machine x does not exist".to_owned());
    }
    hook
}

fn names(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Returns marks of nodes such as `a b:v1`: of b with value v1 of the second request at the first
/// acknowledgement.
fn marks(text: &str) -> BTreeMap<String, Mark> {
    let mark = |text: &str| {
        let (node, earlier) = text.split_once(':').unzip();
        let mark = Mark {
            begun: earlier.is_some(),
            earlier: earlier.map(digest),
            ..Mark::default()
        };
        (node.unwrap_or(text).to_owned(), mark)
    };
    text.split_whitespace().map(mark).collect()
}

/// Hooks | active node | marked nodes | node in work | waiting nodes | case.
const DECISIONS: &str = "
a | | | | | nothing is asked
a pre= | | | | | an empty request asks for nothing
b pre=1 | | | b before 1 | | one asks
b pre=2 pre-ack=1 | | | b before 2 | | another value is due again
c pre=1, b pre=1 | | | b before 1 | c | two ask
c pre=1, b pre=1 | | c | c before 1 | b | a begun node first
a pre=1, c pre=1 pre-ack=1 | | | c drain | a | a node that is drained first
a pre=1, c pre=1 pre-ack=1 post=1 | | | c after 1 | a | its second hook
a pre=1, c post=1 | | | c after 1 | a | a driver with one hook
a pre=1 post=1 | | | a before 1 | | both ask, so the first is due
a pre=1 pre-ack=1, c pre=1 | c | | c before 1 | a | the active one stays
a pre=1, c | c | | | a | a withdrawn request
a pre=1 pre-ack=1 post=1 post-ack=1, b pre=1 | | | b before 1 | | an earlier change
a pre=1 pre-ack=1 post=1 post-ack=1, b pre=1 | | a | a over | b | a killed run ended it
a pre=1 pre-ack=1 post=1 post-ack=1, b pre=1 | a | | a over | b | the active one ends
b pre=1 pre-ack=1, a pre=1 pre-ack=1 | | | a drain | b | two are between already
a pre=1, a pre=1 | | | | | two hooks of a node
a pre=1 pre-ack=1, a pre=1, b pre=1 | | | a drain | b | two hooks, one between
x pre=1, b pre=1 | | | b before 1 | | an unknown node
a pre=3 pre-ack=3 post=2 post-ack=2, b pre=1 | a | a:2 | a drain | b | an old pair is left
a pre=3 pre-ack=3 post=2, b pre=1 | | a:2 | a drain | b | an old request that was not acknowledged
a pre=3 pre-ack=3 post=3 post-ack=2, b pre=1 | a | a:2 | a after 3 | b | a new request beside an old answer
a pre=3 pre-ack=3 post=3 post-ack=3, b pre=1 | a | a:2 | a over | b | the new pair
a pre=3 pre-ack=3 post=3 post-ack=3, b pre=1 | a | a | a over | b | the mark of a change without an old pair
? pre=1, b pre=1 | | | b before 1 | | a lost hook that asks
? pre=1 pre-ack=1, b pre=1, c pre=1 pre-ack=1 | | | | b c | a lost hook between its acknowledgements
? pre=1 pre-ack=1 post=1, b pre=1 | | | | b | a lost hook whose node is drained
? pre=1 pre-ack=1, b pre=1, c pre=1 | b | | b before 1 | c | a lost hook while a node is active
? pre=1 pre-ack=1 post=1 post-ack=1, b pre=1 | | | b before 1 | | a lost hook from an earlier change
";

#[test]
fn one_node_at_most_is_between_its_hooks() {
    for line in DECISIONS.lines().skip(1) {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let [hooks, active, marked, turn, waiting, case] = fields.as_slice() else {
            panic!("{line}");
        };
        let hooks = hooks.split(", ");
        let hooks = hooks.map(|text| text.split_once(' ').unwrap_or((text, "")));
        let hooks: Vec<Hook> = hooks.map(|(node, text)| hook(node, text)).collect();
        let (open, marks) = (names("a b c"), marks(marked));
        let course = Course {
            open: &open,
            active: Some(*active).filter(|active| !active.is_empty()),
            marks: &marks,
        };
        let decision = next(&hooks, course);
        let found = decision.turn.map(|(node, _, point)| match point {
            Point::Before(value) => format!("{node} before {value}"),
            Point::Drain => format!("{node} drain"),
            Point::After(value) => format!("{node} after {value}"),
            Point::Over => format!("{node} over"),
        });
        let waits: Vec<&str> = decision.waiting.into_iter().collect();
        let found = (found.unwrap_or_default(), waits.join(" "));
        assert_eq!(
            (found.0.as_str(), found.1.as_str()),
            (*turn, *waiting),
            "{case}"
        );
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
    let (open, marks) = (names("a b c"), BTreeMap::new());
    let course = Course {
        open: &open,
        active: None,
        marks: &marks,
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
    assert_eq!(decision.turn, None);
    let block = decision
        .block
        .map(|(hook, why)| (hook.object.name.as_str(), why));
    assert_eq!(block, Some(("silent", "Machine x does not exist")));
}

/// Hooks | last known nodes of hooks | node | whether its request can be in a hook that is not
/// resolved.
const UNRESOLVED: &str = "
a pre=1 | | a | false
a pre=1, ?1 pre=1 | | a | true
a, ?1 pre=1 | a=a | a | false
?1 pre=1 pre-ack=1 | ?1=a | a | true
?1 pre=1 pre-ack=1 | ?1=b | a | false
?1 | ?1=a | a | false
?1 | | a | false
?1 pre=1, ?2 pre=1 | ?1=b | a | true
";

#[test]
fn a_hook_without_a_node_is_not_withdrawn() {
    for line in UNRESOLVED.lines().skip(1) {
        let fields: Vec<&str> = line.split('|').map(str::trim).collect();
        let [hooks, known, node, expected] = fields.as_slice() else {
            panic!("{line}");
        };
        let hooks = hooks.split(", ");
        let hooks = hooks.map(|text| text.split_once(' ').unwrap_or((text, "")));
        let hooks = hooks.map(|(name, text)| Hook {
            uid: name.to_owned(),
            ..hook(name, text)
        });
        let hooks: Vec<Hook> = hooks.collect();
        let known = known.split_whitespace();
        let known = known.filter_map(|one| one.split_once('='));
        let known = known.map(|(uid, node)| (uid.to_owned(), node.to_owned()));
        let found = unresolved(&hooks, &known.collect(), node).is_some();
        assert_eq!(found.to_string(), *expected, "{line}");
    }
}

#[test]
fn an_acknowledgement_of_another_client_is_found() {
    let begun = Mark {
        begun: true,
        ..Mark::default()
    };
    for (annotations, mark, expected) in [
        ("pre=1", None, false),
        ("pre=1 pre-ack=1", None, true),
        ("pre=1 pre-ack=1", Some(&Mark::default()), true),
        ("pre=1 pre-ack=1", Some(&begun), false),
        ("pre=1 pre-ack=1 post=1", None, true),
        ("pre=1 pre-ack=1 post=1 post-ack=1", None, false),
        ("post=1", None, false),
    ] {
        let hook = hook("a", annotations);
        assert_eq!(hook.is_foreign(mark), expected, "{annotations} {mark:?}");
    }
}

#[test]
fn an_acknowledgement_is_found_after_the_request_changed() {
    for (annotations, expected) in [
        ("pre=1", false),
        ("pre=2 pre-ack=0", false),
        ("pre=1 pre-ack=1", true),
        ("pre=2 pre-ack=1", true),
        ("pre-ack=1", true),
        ("", false),
    ] {
        let found = hook("a", annotations).has_confirmed("1");
        assert_eq!(found, expected, "{annotations}");
    }
}

#[test]
fn done_is_evidence_without_a_driver_or_if_it_held_before() {
    let was_done = Mark {
        was_done: true,
        ..Mark::default()
    };
    for (has_driver, mark, expected) in [
        (false, &Mark::default(), true),
        (true, &Mark::default(), false),
        (true, &was_done, true),
    ] {
        assert_eq!(
            is_evidence(has_driver, mark),
            expected,
            "{has_driver} {mark:?}"
        );
    }
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
