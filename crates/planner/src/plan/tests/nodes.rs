//! Change of nodes: which nodes, their order, and what prevents it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use rstest::rstest;
use serde_json::{Value, json};

use super::removal::by_command;
use super::scene::Scene;
use crate::observe::{MarkedNode, MarkedNodes, Observed, ObservedNodes};
use crate::plan::{Op, Plan, Planning, Policy, Question, Step, StepId, Topic, Until, plan, remove};
use pleach_formats::check::{CheckOutcome, Objection};
use pleach_formats::file::{Loss, Rollback};
use pleach_formats::nodes::driver::{HookAnnotations, NodeObject};
use pleach_formats::nodes::{
    Budget, DrainRule, DriverRule, Mark, NodeCapacity, NodePod, NodeState, NodesRule, Resources,
};
use pleach_formats::sequence::Count;
use pleach_model::cel::Expression;
use pleach_model::object::GroupKind;
use pleach_state::inventory::NodesMemory;

const OLD: &str = "ConfigMap/web/c: {data: {k: OLD}}";
const NEW: &str = "ConfigMap/web/c: {data: {k: NEW}}";

fn rule(parallel: u32) -> NodesRule {
    let labels = |value: &str| BTreeMap::from([("role".to_owned(), value.to_owned())]);
    NodesRule {
        select: BTreeMap::new(),
        first: vec![labels("control-plane")],
        parallel: Count::Pods(parallel),
        done: Expression::compile("node.done", &["node"]).unwrap(),
        before: Vec::new(),
        drain: Some(DrainRule {
            empty_dir: Loss::Refuse,
            unmanaged: Loss::Refuse,
            timeout: None,
        }),
        driver: None,
        job: None,
        after: Vec::new(),
        cleanup: None,
        pause_after: None,
        reverse: false,
        timeout: SignedDuration::from_secs(600),
    }
}

/// Returns a node; the name of one of the control plane begins with `c`.
fn node(name: &str) -> NodeState {
    let role = if name.starts_with('c') {
        "control-plane"
    } else {
        "worker"
    };
    NodeState {
        name: name.to_owned(),
        uid: format!("uid of {name}"),
        labels: BTreeMap::from([("role".to_owned(), role.to_owned())]),
        ready: true,
        cordoned: false,
        in_work: None,
        done: false,
    }
}

fn mark(release: &str) -> Mark {
    Mark {
        release: release.to_owned(),
        stage: "nodes".to_owned(),
        ..Mark::default()
    }
}

fn upgrade(parallel: u32) -> Scene {
    Scene::new()
        .installed(OLD)
        .git(NEW)
        .applies_in("nodes", &[], |stage| {
            stage.nodes = Some(rule(parallel));
        })
}

fn planned(mut scene: Scene, nodes: &[NodeState], pods: &[Value], budgets: &[Value]) -> Plan {
    let read = ObservedNodes::Read {
        nodes: nodes.to_vec(),
        pods: pods.iter().filter_map(NodePod::of).collect(),
        budgets: budgets.iter().filter_map(Budget::of).collect(),
        capacity: Vec::new(),
        former: BTreeSet::new(),
    };
    scene = scene.cluster(|observed| drop(observed.nodes.insert("nodes".to_owned(), read)));
    scene.plan()
}

/// Returns the changed nodes, each with the nodes that it directly or indirectly waits for.
fn order(plan: &Plan) -> Vec<(String, Vec<String>)> {
    let is_node = |op: &Op| matches!(op, Op::UpgradeNode { .. });
    let steps = plan.steps.iter().filter(|step| is_node(&step.op));
    steps
        .map(|step| {
            let (mut open, mut seen) = (vec![step.id], BTreeSet::new());
            let mut before = Vec::new();
            while let Some(id) = open.pop() {
                if !seen.insert(id) {
                    continue;
                }
                for edge in &plan.steps[id.0].needs {
                    let other = &plan.steps[edge.from.0];
                    if is_node(&other.op) && !before.contains(&other.object.name) {
                        before.push(other.object.name.clone());
                    }
                    open.push(edge.from);
                }
            }
            before.sort();
            (step.object.name.clone(), before)
        })
        .collect()
}

fn after(name: &str, before: &[&str]) -> (String, Vec<String>) {
    (
        name.to_owned(),
        before.iter().map(|&name| name.to_owned()).collect(),
    )
}

fn codes(plan: &Plan) -> Vec<&str> {
    let codes = plan.findings.iter().map(|finding| finding.code.as_str());
    codes
        .filter(|code| {
            code.contains("node")
                || code.contains("budget")
                || ["unmanaged-pods", "empty-dirs"].contains(code)
        })
        .collect()
}

#[test]
fn nodes_are_changed_one_after_the_other_the_first_ones_first() {
    let nodes = ["a", "b", "c2", "c1"].map(node);
    let plan = planned(upgrade(1), &nodes, &[], &[]);
    let mut found = order(&plan);
    found.sort_by_key(|(_, before)| before.len());
    assert_eq!(
        found,
        [
            after("c1", &[]),
            after("c2", &["c1"]),
            after("a", &["c1", "c2"]),
            after("b", &["a", "c1", "c2"]),
        ]
    );
    assert_eq!(codes(&plan), Vec::<&str>::new());
}

#[test]
fn a_batch_waits_for_all_of_the_batch_before() {
    let nodes = ["a", "b", "c1", "c2", "d", "e"].map(node);
    let mut found = order(&planned(upgrade(2), &nodes, &[], &[]));
    found.sort();
    assert_eq!(
        found,
        [
            after("a", &["c1", "c2"]),
            after("b", &["c1", "c2"]),
            after("c1", &[]),
            after("c2", &["c1"]),
            after("d", &["a", "b", "c1", "c2"]),
            after("e", &["a", "b", "c1", "c2"]),
        ]
    );
}

#[test]
fn a_node_that_is_done_is_left_alone_unless_it_bears_our_mark() {
    let ours = mark("e.r");
    let nodes = [
        NodeState {
            done: true,
            ..node("a")
        },
        NodeState {
            done: true,
            in_work: Some(ours),
            ..node("b")
        },
        NodeState {
            ready: false,
            in_work: Some(mark("e.r")),
            ..node("d")
        },
    ];
    let plan = planned(upgrade(1), &nodes, &[], &[]);
    assert_eq!(order(&plan), [after("b", &[]), after("d", &["b"])]);
    assert_eq!(codes(&plan), ["too-few-nodes"; 0]);
}

#[test]
fn later_stages_wait_for_the_nodes() {
    let scene = upgrade(1).git("Ingress.networking.k8s.io/web/i: {spec: {k: NEW}}");
    let plan = planned(scene, &["a", "b"].map(node), &[], &[]);
    let position = |name: &str| plan.steps.iter().position(|step| step.object.name == name);
    assert!(
        position("c") < position("a") && position("b") < position("i"),
        "{:#?}",
        plan.steps
    );
}

#[test]
fn a_finished_release_and_a_rollback_change_no_node() {
    let nodes = ["a", "b", "d"].map(node);
    let steady = upgrade(1).version("v2.0.0");
    let mut steady = steady.git(OLD);
    steady.desired.digest_with(None);
    let digest = steady.desired.digest();
    steady = steady.cluster(|observed| {
        let installed = observed.installed.get_or_insert_default();
        installed.installed.as_mut().unwrap().digest = digest;
    });
    assert_eq!(order(&planned(steady, &nodes, &[], &[])), []);
    let back = upgrade(1).version("v3.0.0").policy(|policy| {
        policy.versions.rollback = Some(Rollback {
            from: "v3.0.0".to_owned(),
            to: "v2.0.0".to_owned(),
        });
    });
    let plan = planned(back, &nodes, &[], &[]);
    assert_eq!(order(&plan), []);
    assert_eq!(codes(&plan), ["nodes-left"]);
    assert_eq!(plan.nodes_memory(), Some(NodesMemory::Left));
}

fn pod(extra: &Value) -> Value {
    let mut pod = json!({"metadata": {"namespace": "web", "name": "web-1", "uid": "u",
        "labels": {"app": "web"}, "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "controller": true}]},
        "spec": {"nodeName": "a"}, "status": {"phase": "Running"}});
    for (pointer, value) in extra.as_object().unwrap() {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        pod.pointer_mut(parent).unwrap()[key] = value.clone();
    }
    pod
}

fn budget(name: &str, spec: &Value) -> Value {
    json!({"metadata": {"namespace": "web", "name": name}, "spec": spec})
}

#[rstest]
#[case::nothing(json!({}), &[], &[])]
#[case::without_a_controller(json!({"/metadata/ownerReferences": null}), &[], &["unmanaged-pods"])]
#[case::with_data(json!({"/spec/volumes": [{"name": "a", "emptyDir": {}}]}), &[], &["empty-dirs"])]
#[case::closed(json!({}), &[budget("a", &json!({"maxUnavailable": 0, "selector": {}}))], &["budget-allows-nothing"])]
#[case::closed_for_others(json!({}), &[budget("a", &json!({"maxUnavailable": 0, "selector": {"matchLabels": {"app": "db"}}}))], &[])]
#[case::two(json!({}), &[budget("a", &json!({"minAvailable": 1, "selector": {}})), budget("b", &json!({"minAvailable": 1, "selector": {}}))], &["budgets-overlap"])]
fn what_an_eviction_would_meet_is_refused_first(
    #[case] extra: Value,
    #[case] budgets: &[Value],
    #[case] expected: &[&str],
) {
    let plan = planned(
        upgrade(1),
        &["a", "b", "d"].map(node),
        &[pod(&extra)],
        budgets,
    );
    assert_eq!(codes(&plan), expected);
    assert_eq!(plan.refusals().count(), expected.len());
    assert!(plan.refusals().all(|finding| finding.hint.is_some()));
}

#[test]
fn nodes_that_are_not_ready_or_of_another_release_are_refused_all_at_once() {
    let nodes = [
        NodeState {
            ready: false,
            ..node("a")
        },
        NodeState {
            in_work: Some(mark("e.other")),
            ..node("b")
        },
        node("d"),
    ];
    let plan = planned(upgrade(1), &nodes, &[], &[]);
    assert_eq!(codes(&plan), ["nodes-in-work", "nodes-not-ready"]);
    let unknown = ObservedNodes::Unknown("nodes is forbidden".to_owned());
    let scene = upgrade(1);
    let scene = scene.cluster(|observed| drop(observed.nodes.insert("nodes".to_owned(), unknown)));
    let plan = scene.plan();
    assert_eq!(codes(&plan), ["nodes-unknown"]);
    assert_eq!(plan.refusals().count(), 1);
}

#[test]
fn too_few_nodes_are_pointed_out() {
    let plan = planned(upgrade(2), &["a", "b"].map(node), &[], &[]);
    assert_eq!(codes(&plan), ["too-few-nodes"]);
    assert_eq!(plan.refusals().count(), 0);
}

#[test]
fn pods_without_another_replica_are_pointed_out() {
    let scene = upgrade(1);
    let mut alone = NodePod::of(&pod(&json!({}))).unwrap();
    alone.alone = true;
    let read = ObservedNodes::Read {
        nodes: ["a", "b", "d"].map(node).to_vec(),
        pods: vec![alone],
        budgets: Vec::new(),
        capacity: Vec::new(),
        former: BTreeSet::new(),
    };
    let scene = scene.cluster(|observed| drop(observed.nodes.insert("nodes".to_owned(), read)));
    let plan = scene.plan();
    let mut warnings = plan.findings.iter();
    let warning = warnings.find(|finding| finding.code == "single-replicas");
    assert_eq!(
        warning.unwrap().message,
        "stage nodes: Pod/web/web-1 without another replica; each is down while it moves"
    );
    assert_eq!(plan.refusals().count(), 0);
}

#[test]
fn nodes_are_asked_for_before_permissions() {
    let scene = upgrade(1);
    let mut policy = scene.policy.clone();
    policy.asks = [Topic::Nodes, Topic::Permissions].into();
    let mut observed = scene.observed();
    let Planning::Ask(questions) = plan(&scene.desired, &observed, &policy) else {
        panic!("nothing is asked");
    };
    assert_eq!(questions, [Question::Nodes("nodes".to_owned())].into());
    let read = ObservedNodes::Read {
        nodes: vec![node("a")],
        pods: Vec::new(),
        budgets: Vec::new(),
        capacity: Vec::new(),
        former: BTreeSet::new(),
    };
    observed.nodes.insert("nodes".to_owned(), read);
    let Planning::Ask(questions) = plan(&scene.desired, &observed, &policy) else {
        panic!("nothing is asked");
    };
    let Some(Question::Permissions(permissions)) = questions.first() else {
        panic!("{questions:?}");
    };
    let evicts = permissions
        .needed
        .keys()
        .any(|one| one.subresource == Some("eviction"));
    assert!(evicts, "{permissions:?}");
}

fn driver() -> DriverRule {
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
            name: Expression::compile("hook.metadata.labels.machine", &["hook"]).unwrap(),
            is: Expression::compile("item.status.node", &["item"]).unwrap(),
        },
        before: annotations("pre", "pre-ack"),
        after: annotations("post", "post-ack"),
    }
}

#[test]
fn a_driver_chooses_the_order_of_nodes() {
    let driven = NodesRule {
        first: Vec::new(),
        drain: None,
        driver: Some(driver()),
        ..rule(1)
    };
    let done = NodeState {
        done: true,
        ..node("b")
    };
    let begun = NodeState {
        in_work: Some(mark("e.r")),
        ..node("c")
    };
    let nodes = [node("a"), done, begun, node("d")];
    let plan = planned(upgrade_by(&driven), &nodes, &[], &[]);
    let expected = [after("a", &[]), after("c", &[]), after("d", &[])];
    assert_eq!(order(&plan), expected);
    assert!(codes(&plan).is_empty(), "{:?}", plan.findings);
    let objects = plan.steps.iter().filter_map(|step| match &step.op {
        Op::UpgradeNode { driver, .. } => driver.clone(),
        _ => None,
    });
    let texts = objects.map(|one| format!("{} {}", one.hooks, one.nodes));
    let texts: BTreeSet<String> = texts.collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    assert_eq!(texts, ["Secret/fleet/* Machine.example.org/fleet/*"]);
    let of = |driver: DriverRule| {
        let driven = NodesRule {
            driver: Some(driver),
            ..driven.clone()
        };
        planned(upgrade_by(&driven), &nodes, &[], &[]).effects()
    };
    let other = DriverRule {
        namespace: Some("other".to_owned()),
        ..driver()
    };
    assert_eq!(of(driver()), plan.effects());
    assert_ne!(of(other), plan.effects());
}

#[test]
fn a_thousand_nodes_are_planned_with_few_edges() {
    let nodes: Vec<NodeState> = (0..1000)
        .map(|number| node(&format!("n{number:04}")))
        .collect();
    let plan = planned(upgrade(10), &nodes, &[], &[]);
    let edges: usize = plan.steps.iter().map(|step| step.needs.len()).sum();
    assert!(edges < 6000, "{edges}");
    assert_eq!(order(&plan).len(), 1000);
}

fn upgrade_by(rule: &NodesRule) -> Scene {
    let scene = Scene::new().installed(OLD).git(NEW);
    scene.applies_in("nodes", &[], |stage| stage.nodes = Some(rule.clone()))
}

/// Returns the node after which a plan pauses, with the nodes changed before and after it.
fn pause(plan: &Plan) -> Option<String> {
    let pause = plan.steps.iter().find(|step| step.op == Op::Pause)?;
    let position = |name: &str| {
        let mut steps = plan.steps.iter();
        steps.position(|step| matches!(step.op, Op::UpgradeNode { .. }) && step.object.name == name)
    };
    let waits = |step: StepId| {
        let (mut open, mut seen) = (vec![step], BTreeSet::new());
        while let Some(id) = open.pop() {
            if seen.insert(id) {
                open.extend(plan.steps[id.0].needs.iter().map(|edge| edge.from));
            }
        }
        seen
    };
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for (name, _) in order(plan) {
        let id = plan.steps[position(&name).unwrap()].id;
        if waits(pause.id).contains(&id) {
            before.push(name);
        } else {
            assert!(waits(id).contains(&pause.id), "{name}");
            after.push(name);
        }
    }
    before.sort();
    after.sort();
    let (before, after) = (before.join(" "), after.join(" "));
    Some(format!("{before}, pause at {}, {after}", pause.object.name))
}

#[rstest]
#[case::after_the_first(1, &[], Some("c, pause at c, a b d"), false)]
#[case::within_the_others(2, &[], Some("a c, pause at a, b d"), false)]
#[case::a_changed_one_counts(2, &["c"], Some("a, pause at a, b d"), false)]
#[case::the_rest(1, &["c"], None, true)]
#[case::nothing_after_it(4, &[], None, false)]
fn a_run_ends_after_the_first_nodes(
    #[case] after: u32,
    #[case] done: &[&str],
    #[case] expected: Option<&str>,
    #[case] continues: bool,
) {
    let nodes = ["a", "b", "c", "d"].map(|name| NodeState {
        done: done.contains(&name),
        ..node(name)
    });
    let pausing = NodesRule {
        pause_after: Some(after),
        ..rule(1)
    };
    let plan = planned(upgrade_by(&pausing), &nodes, &[], &[]);
    assert_eq!(pause(&plan).as_deref(), expected);
    assert_eq!(plan.continues_after_pause(), continues);
}

#[test]
fn a_rollback_changes_nodes_back_if_the_stage_says_so() {
    let reversible = NodesRule {
        reverse: true,
        ..rule(1)
    };
    let back = upgrade_by(&reversible).version("v3.0.0");
    let back = back.policy(|policy| {
        policy.versions.rollback = Some(Rollback {
            from: "v3.0.0".to_owned(),
            to: "v2.0.0".to_owned(),
        });
    });
    let plan = planned(back, &["a", "b"].map(node), &[], &[]);
    assert_eq!(order(&plan).len(), 2);
    assert_eq!(codes(&plan), Vec::<&str>::new());
}

/// Returns a scene whose version is installed already.
fn steady(rule: &NodesRule) -> Scene {
    let mut steady = upgrade_by(rule).version("v2.0.0").git(OLD);
    steady.desired.digest_with(None);
    let digest = steady.desired.digest();
    steady.cluster(|observed| {
        let installed = observed.installed.get_or_insert_default();
        installed.installed.as_mut().unwrap().digest = digest;
    })
}

#[test]
fn a_node_that_fell_behind_is_reported_and_changed_only_on_request() {
    let nodes = [
        node("b"),
        NodeState {
            done: true,
            ..node("a")
        },
        node("c1"),
    ];
    let pausing = NodesRule {
        pause_after: Some(1),
        ..rule(1)
    };
    let memory = |memory: Option<NodesMemory>| {
        move |observed: &mut Observed| {
            observed.installed.get_or_insert_default().nodes = memory;
        }
    };
    for (case, recorded, requested, behind, changed) in [
        ("reported", None, false, true, 0),
        (
            "reported after a change",
            Some(NodesMemory::Changed),
            false,
            true,
            0,
        ),
        ("requested", Some(NodesMemory::Changed), true, false, 2),
        ("after a rollback", Some(NodesMemory::Left), false, false, 0),
        (
            "requested after a rollback",
            Some(NodesMemory::Left),
            true,
            false,
            0,
        ),
    ] {
        let scene = steady(&pausing)
            .cluster(memory(recorded))
            .policy(|policy| policy.nodes_behind = requested);
        let plan = planned(scene, &nodes, &[], &[]);
        assert_eq!(order(&plan).len(), changed, "{case}");
        assert_eq!(plan.refusals().count(), 0, "{case}");
        let message = "stage nodes: c1, b behind: `node.done` does not hold";
        assert_eq!(plan.nodes_behind(), behind.then_some(message), "{case}");
        assert_eq!(plan.nodes_memory().is_some(), changed > 0, "{case}");
        // Nobody has to check what was requested.
        assert!(
            !plan.steps.iter().any(|step| step.op == Op::Pause),
            "{case}"
        );
    }
    // A requested change that failed is continued.
    let mut half = nodes.clone();
    half[2].in_work = Some(mark("e.r"));
    let plan = planned(steady(&rule(1)), &half, &[], &[]);
    assert_eq!(order(&plan), [after("c1", &[])]);
    assert!(
        plan.nodes_behind()
            .is_some_and(|message| message.contains(": b behind"))
    );
    // Pods on the others are no obstacle.
    let mut unmanaged = pod(&json!({"/metadata/ownerReferences": null}));
    unmanaged["spec"]["nodeName"] = json!("b");
    let plan = planned(steady(&rule(1)), &half, &[unmanaged], &[]);
    assert_eq!(plan.refusals().count(), 0);
    let done = nodes.map(|node| NodeState { done: true, ..node });
    let plan = planned(steady(&rule(1)), &done, &[], &[]);
    assert_eq!((plan.nodes_behind(), codes(&plan)), (None, Vec::new()));
}

fn marked(names: &[&str]) -> MarkedNodes {
    let nodes = names.iter().map(|&name| MarkedNode {
        name: name.to_owned(),
        stage: "nodes".to_owned(),
    });
    MarkedNodes::Read(nodes.collect())
}

#[test]
fn nodes_in_work_that_no_stage_completes_are_refused() {
    let in_work = NodeState {
        in_work: Some(mark("e.r")),
        ..node("a")
    };
    let back = |policy: &mut Policy| {
        policy.versions.rollback = Some(Rollback {
            from: "v3.0.0".to_owned(),
            to: "v2.0.0".to_owned(),
        });
    };
    let without = || Scene::new().installed(OLD).git(NEW);
    let unknown = MarkedNodes::Unknown("nodes is forbidden".to_owned());
    for (case, scene, found, expected, refuses) in [
        (
            "the stage has it",
            (&|| upgrade(1)) as &dyn Fn() -> Scene,
            marked(&["a"]),
            vec![],
            false,
        ),
        ("nothing is in work", &without, marked(&[]), vec![], false),
        (
            "the stage is gone",
            &without,
            marked(&["a"]),
            vec!["nodes-unclaimed"],
            true,
        ),
        (
            "the stage selects other nodes",
            &|| upgrade(1),
            marked(&["a", "x"]),
            vec!["nodes-unclaimed"],
            true,
        ),
        (
            "a rollback to a version without the stage",
            &|| without().version("v3.0.0").policy(back),
            marked(&["a"]),
            vec!["nodes-unclaimed"],
            false,
        ),
        ("unknown", &without, unknown, vec!["nodes-unknown"], true),
    ] {
        let scene = scene().cluster(|observed| {
            observed.installed.get_or_insert_default().nodes = Some(NodesMemory::Changed);
            observed.marked_nodes = Some(found);
        });
        let plan = planned(scene, &[in_work.clone(), node("b"), node("d")], &[], &[]);
        assert_eq!(codes(&plan), expected, "{case}");
        assert_eq!(plan.refusals().count() > 0, refuses, "{case}");
    }
}

#[test]
fn an_uninstall_with_a_node_in_work_is_refused() {
    for (case, recorded, found, refuses) in [
        (
            "in work",
            Some(NodesMemory::Changed),
            Some(marked(&["a"])),
            true,
        ),
        (
            "after a rollback",
            Some(NodesMemory::Left),
            Some(marked(&["a"])),
            true,
        ),
        (
            "none is in work",
            Some(NodesMemory::Changed),
            Some(marked(&[])),
            false,
        ),
        ("never changed a node", None, None, false),
    ] {
        let scene = Scene::new().installed(OLD).cluster(|observed| {
            observed.installed.get_or_insert_default().nodes = recorded;
        });
        let mut policy = scene.policy.clone();
        policy.asks = [Topic::Nodes].into();
        let asked = remove(&scene.desired, &by_command(), &scene.observed(), &policy);
        let asks = matches!(&asked, Planning::Ask(questions) if questions.contains(&Question::MarkedNodes));
        assert_eq!(asks, recorded.is_some(), "{case}");
        let scene = scene.cluster(|observed| observed.marked_nodes = found);
        let plan = scene.end(&by_command());
        let refusals: Vec<&str> = plan.refusals().map(|one| one.code.as_str()).collect();
        let expected: &[&str] = if refuses { &["nodes-unclaimed"] } else { &[] };
        assert_eq!(refusals, expected, "{case}");
        if let Some(refusal) = plan.refusals().next() {
            assert!(
                refusal
                    .hint
                    .as_ref()
                    .unwrap()
                    .contains("kubectl uncordon a")
            );
        }
    }
}

#[test]
fn tight_capacity_is_a_warning() {
    let resources = |cpu: u64, memory: u64| Resources { cpu, memory };
    let capacity = |name: &str, free: u64, moving: u64| NodeCapacity {
        name: name.to_owned(),
        free: resources(free, 1 << 30),
        moving: resources(moving, 1 << 20),
        taints: BTreeSet::new(),
    };
    let fits = [("a", 500, 500), ("b", 500, 500), ("c1", 500, 500)];
    let tight = [
        ("a", 500, 1000),
        ("b", 500, 1500),
        ("c1", 250, 0),
        ("z", 0, 9000),
    ];
    for (parallel, nodes, expected) in [
        (1, &fits[..], None),
        // `z` is not selected, so its pods stay.
        (
            1,
            &tight,
            Some(
                "stage nodes: the pods of a request 1000m CPU and 1Mi, and the other nodes have 750m CPU and 3Gi free; likewise for 1 more nodes",
            ),
        ),
        (
            2,
            &tight,
            Some(
                "stage nodes: the pods of a, b request 2500m CPU and 2Mi, and the other nodes have 250m CPU and 2Gi free",
            ),
        ),
    ] {
        let read = ObservedNodes::Read {
            nodes: ["a", "b", "c1"].map(node).to_vec(),
            pods: Vec::new(),
            budgets: Vec::new(),
            capacity: nodes
                .iter()
                .map(|&(name, free, moving)| capacity(name, free, moving))
                .collect(),
            former: BTreeSet::new(),
        };
        let scene = upgrade(parallel)
            .cluster(|observed| drop(observed.nodes.insert("nodes".to_owned(), read)));
        let plan = scene.plan();
        let mut findings = plan.findings.iter();
        let found = findings.find(|finding| finding.code == "tight-capacity");
        assert_eq!(
            found.map(|one| one.message.as_str()),
            expected,
            "{parallel}"
        );
        assert!(found.is_none_or(|one| !one.is_error()) && !order(&plan).is_empty());
    }
}

#[rstest]
#[case::no_node_in_work(None, OLD, false)]
#[case::in_work(Some("e.r"), OLD, true)]
#[case::of_another_release(Some("e.other"), OLD, false)]
// The checks were not asked about this change yet.
#[case::with_another_change(Some("e.r"), NEW, false)]
fn a_check_that_fails_because_of_a_node_in_work_does_not_stop_its_completion(
    #[case] release: Option<&str>,
    #[case] git: &str,
    #[case] resumes: bool,
) {
    let nodes = [
        node("a"),
        NodeState {
            in_work: release.map(mark),
            ..node("b")
        },
        node("c1"),
    ];
    let scene = upgrade(2)
        .git(git)
        .check("{name: healthy, forEach: {kind: Pod}, require: \"item.status.ok\"}")
        .outcome(
            "healthy",
            CheckOutcome::seen(vec![Objection {
                object: "Pod/web/p".parse().unwrap(),
                message: "is lost".to_owned(),
            }]),
        );
    let plan = planned(scene, &nodes, &[], &[]);
    let failed = plan
        .findings
        .iter()
        .find(|one| one.code == "check-failed")
        .unwrap();
    assert_eq!(failed.is_error(), !resumes, "{failed}");
    if !resumes {
        return;
    }
    assert_eq!(
        failed.hint.as_deref(),
        Some("the plan completes b first, then it waits for the check")
    );
    // The node in work comes first and waits for no check; all others wait for both.
    assert_eq!(
        order(&plan),
        [
            after("b", &[]),
            after("c1", &["b"]),
            after("a", &["b", "c1"])
        ]
    );
    let is_check = |step: &&Step| matches!(step.until, Some(Until::Holds { .. }));
    let checks: Vec<StepId> = plan
        .steps
        .iter()
        .filter(is_check)
        .map(|step| step.id)
        .collect();
    assert!(!checks.is_empty());
    let needs = |name: &str| {
        let step = plan
            .steps
            .iter()
            .find(|step| step.object.name == name)
            .unwrap();
        let (mut open, mut all) = (vec![step.id], BTreeSet::new());
        while let Some(id) = open.pop() {
            if all.insert(id) {
                open.extend(plan.steps[id.0].needs.iter().map(|edge| edge.from));
            }
        }
        checks.iter().filter(|id| all.contains(id)).count()
    };
    assert_eq!(needs("b"), 0);
    assert_eq!((needs("c1"), needs("a")), (checks.len(), checks.len()));
}

#[test]
fn what_follows_the_last_node_in_work_waits_for_the_checks() {
    let nodes = [NodeState {
        in_work: Some(mark("e.r")),
        ..node("b")
    }];
    let scene = upgrade(1)
        .git(OLD)
        .git("Ingress.networking.k8s.io/web/i: {spec: {k: NEW}}")
        .check("{name: healthy, forEach: {kind: Pod}, require: \"item.status.ok\"}")
        .outcome("healthy", CheckOutcome::seen(Vec::new()));
    let plan = planned(scene, &nodes, &[], &[]);
    let position = |is: &dyn Fn(&Step) -> bool| plan.steps.iter().position(is).unwrap();
    let node = position(&|step| step.object.name == "b");
    let check = position(&|step| matches!(step.until, Some(Until::Holds { .. })));
    let later = position(&|step| step.object.name == "i");
    assert!(node < check && check < later, "{:#?}", plan.steps);
}
