//! Removal of images from nodes at the end of an upgrade.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use rstest::rstest;
use serde_json::json;

use super::scene::Scene;
use crate::observe::ObservedNodes;
use crate::plan::{Op, Plan, Step, StepId};
use pleach_formats::file::Rollback;
use pleach_formats::nodes::{CleanupRule, NodeState, NodesRule};
use pleach_formats::sequence::Count;
use pleach_model::cel::Expression;
use pleach_model::object::{ApiVersion, Manifest, ObjectId, Origin};

const OLD: &str = "ConfigMap/web/c: {data: {k: OLD}}\nConfigMap/web/gone: {data: {k: OLD}}";
const NEW: &str = "ConfigMap/web/c: {data: {k: NEW}}";

fn rule(reverse: bool) -> NodesRule {
    NodesRule {
        select: BTreeMap::new(),
        first: Vec::new(),
        parallel: Count::Pods(1),
        done: Expression::compile("node.done", &["node"]).unwrap(),
        before: Vec::new(),
        drain: None,
        driver: None,
        job: None,
        after: Vec::new(),
        cleanup: Some(CleanupRule {
            job: "purge.yaml".to_owned(),
            timeout: SignedDuration::from_secs(60),
        }),
        pause_after: None,
        reverse,
        timeout: SignedDuration::from_secs(600),
    }
}

fn node(name: &str, ready: bool, done: bool) -> NodeState {
    NodeState {
        name: name.to_owned(),
        uid: format!("uid of {name}"),
        labels: BTreeMap::new(),
        ready,
        cordoned: false,
        in_work: None,
        done,
    }
}

fn upgrade(reverse: bool, namespace: &str) -> Scene {
    let mut scene = Scene::new().installed(OLD).git(NEW);
    let id = ObjectId::new("batch", "Job", Some(namespace), "purge");
    let version = ApiVersion {
        group: "batch".to_owned(),
        version: "v1".to_owned(),
    };
    let value = json!({"apiVersion": "batch/v1", "kind": "Job"});
    let job = Manifest::new(id, version, Origin::new("purge.yaml", 1), &value, false);
    let jobs = &mut scene.desired.node_jobs;
    jobs.insert("purge.yaml".to_owned(), job);
    scene.applies_in("nodes", &[], move |stage| stage.nodes = Some(rule(reverse)))
}

fn planned(scene: Scene, nodes: &[NodeState], former: &[&str]) -> Plan {
    let read = ObservedNodes::Read {
        nodes: nodes.to_vec(),
        pods: Vec::new(),
        budgets: Vec::new(),
        capacity: Vec::new(),
        former: former.iter().map(|&one| one.to_owned()).collect(),
    };
    let scene = scene.cluster(|observed| drop(observed.nodes.insert("nodes".to_owned(), read)));
    scene.plan()
}

fn is_cleanup(step: &Step) -> bool {
    matches!(step.op, Op::RememberImages { .. } | Op::CleanNode { .. })
}

fn cleanup(plan: &Plan) -> Vec<String> {
    let steps = plan.steps.iter().filter(|step| is_cleanup(step));
    let shown = |step: &Step| match &step.op {
        Op::RememberImages { images } if images.is_empty() => "forget".to_owned(),
        op => format!("{} {}", op.verb(), step.object.name),
    };
    steps.map(shown).collect()
}

/// Returns the steps that a step directly or indirectly waits for.
fn before(plan: &Plan, step: StepId) -> BTreeSet<StepId> {
    let (mut open, mut seen) = (vec![step], BTreeSet::new());
    while let Some(id) = open.pop() {
        for edge in &plan.steps[id.0].needs {
            if seen.insert(edge.from) {
                open.push(edge.from);
            }
        }
    }
    seen
}

#[test]
fn images_are_remembered_before_all_writes_and_removed_after_all_deletions() {
    let nodes = [node("a", true, true), node("b", true, false)];
    let plan = planned(upgrade(false, "web"), &nodes, &["app:1"]);
    assert_eq!(
        cleanup(&plan),
        ["remember former-images", "clean a", "clean b", "forget"]
    );
    let ids: Vec<StepId> = plan
        .steps
        .iter()
        .filter(|step| is_cleanup(step))
        .map(|step| step.id)
        .collect();
    let others = plan.steps.iter().filter(|step| !is_cleanup(step));
    let writes: Vec<&Step> = others.filter(|step| step.op != Op::Wait).collect();
    assert!(
        writes.iter().any(|step| matches!(step.op, Op::Delete(_))),
        "{writes:?}"
    );
    for write in writes {
        assert!(before(&plan, write.id).contains(&ids[0]), "{write:?}");
        assert!(before(&plan, ids[1]).contains(&write.id), "{write:?}");
    }
    for pair in ids.windows(2) {
        assert!(before(&plan, pair[1]).contains(&pair[0]), "{pair:?}");
    }
}

#[rstest]
#[case::nothing_to_remove(false, false, "web", &[], false)]
#[case::a_new_namespace(false, false, "new", &["app:1"], false)]
#[case::a_rollback(true, false, "web", &["app:1"], false)]
#[case::a_rollback_that_changes_nodes(true, true, "web", &["app:1"], true)]
fn a_cleanup_is_left_out(
    #[case] back: bool,
    #[case] reverse: bool,
    #[case] namespace: &str,
    #[case] former: &[&str],
    #[case] expected: bool,
) {
    let mut scene = upgrade(reverse, namespace);
    if back {
        scene = scene.version("v3.0.0").policy(|policy| {
            policy.versions.rollback = Some(Rollback {
                from: "v3.0.0".to_owned(),
                to: "v2.0.0".to_owned(),
            });
        });
    }
    let plan = planned(scene, &[node("a", true, true)], former);
    assert_eq!(!cleanup(&plan).is_empty(), expected);
}

#[test]
fn a_node_that_is_not_ready_is_named() {
    let nodes = [node("a", true, true), node("b", false, true)];
    let plan = planned(upgrade(false, "web"), &nodes, &["app:1"]);
    assert_eq!(
        cleanup(&plan),
        ["remember former-images", "clean a", "forget"]
    );
    let mut findings = plan.findings.iter();
    assert!(findings.any(|one| one.code.as_str() == "node-not-cleaned"));
}
