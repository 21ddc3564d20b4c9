//! Preloading of images: which nodes, their order, and what prevents it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use serde_json::json;

use super::scene::Scene;
use crate::observe::ObservedNodes;
use crate::plan::{Op, Plan, Planning, Question, Topic, plan};
use pleach_formats::file::Rollback;
use pleach_formats::nodes::NodeState;
use pleach_formats::preload::{PreloadRule, PreloadSource};
use pleach_formats::sequence::Count;

const OLD: &str =
    "Deployment.apps/web/a: {spec: {template: {spec: {containers: [{name: a, image: \"a:1\"}]}}}}";
const NEW: &str =
    "Deployment.apps/web/a: {spec: {template: {spec: {containers: [{name: a, image: \"a:2\"}]}}}}";

fn node(name: &str) -> NodeState {
    NodeState {
        name: name.to_owned(),
        uid: format!("uid of {name}"),
        labels: BTreeMap::new(),
        ready: true,
        cordoned: false,
        in_work: None,
        done: false,
    }
}

fn rule() -> PreloadRule {
    PreloadRule {
        select: BTreeMap::new(),
        parallel: Count::Pods(2),
        source: PreloadSource::Release,
        runner: Some("pleach:1".to_owned()),
        space: None,
        timeout: SignedDuration::from_secs(600),
    }
}

fn upgrade(rule: PreloadRule) -> Scene {
    let scene = Scene::new().installed(OLD).git(NEW);
    scene.applies_in("images", &[], |stage| stage.preload = Some(rule))
}

fn planned(scene: Scene, nodes: &[NodeState]) -> Plan {
    let read = ObservedNodes::Read {
        nodes: nodes.to_vec(),
        pods: Vec::new(),
        budgets: Vec::new(),
        capacity: Vec::new(),
        former: BTreeSet::new(),
    };
    let scene = scene.cluster(|observed| drop(observed.nodes.insert("images".to_owned(), read)));
    scene.plan()
}

fn preloaded(plan: &Plan) -> Vec<&str> {
    let steps = plan.steps.iter();
    let steps = steps.filter(|step| matches!(step.op, Op::Preload { .. }));
    steps.map(|step| step.object.name.as_str()).collect()
}

fn codes(plan: &Plan) -> Vec<&str> {
    let codes = plan.findings.iter().map(|finding| finding.code.as_str());
    codes
        .filter(|code| code.contains("node") || code.contains("preload"))
        .collect()
}

#[test]
fn nodes_are_preloaded_in_batches_unless_they_are_done() {
    let done = NodeState {
        done: true,
        ..node("b")
    };
    let nodes = [node("d"), node("c"), done, node("a")];
    let plan = planned(upgrade(rule()), &nodes);
    assert_eq!(preloaded(&plan), ["a", "c", "d"]);
    assert_eq!(codes(&plan), [""; 0]);
    let needs = |name: &str| {
        let step = plan
            .steps
            .iter()
            .find(|step| step.object.name == name && matches!(step.op, Op::Preload { .. }));
        let step = step.unwrap();
        assert_eq!(step.reason, "1 image");
        let preloads = |edge: &&crate::plan::Edge| {
            matches!(plan.steps[edge.from.0].op, Op::Preload { .. } | Op::Wait)
        };
        step.needs.iter().filter(preloads).count()
    };
    assert_eq!((needs("a"), needs("c")), (0, 0));
    assert!(needs("d") > 0);
}

#[test]
fn the_effects_depend_on_nodes_and_images() {
    let effects = |git: &str, nodes: &[&str]| {
        let nodes: Vec<NodeState> = nodes.iter().map(|name| node(name)).collect();
        let plan = planned(upgrade(rule()).git(git), &nodes);
        let steps = plan.steps.iter();
        let steps = steps.filter(|step| matches!(step.op, Op::Preload { .. }));
        let effects = steps.map(|step| json!([step.object.to_string(), step.op.effect(true)]));
        effects.collect::<Vec<_>>()
    };
    let first = effects(NEW, &["a"]);
    assert_eq!(first, effects(NEW, &["a"]));
    assert_ne!(first, effects(NEW, &["b"]));
    let other = "Deployment.apps/web/b: {spec: {template: {spec: {containers: [{name: a, image: \"b:1\"}]}}}}";
    assert_ne!(first, effects(other, &["a"]));
}

#[test]
fn nothing_is_preloaded_on_a_rollback_or_without_images_or_nodes() {
    let back = upgrade(rule()).version("v3.0.0").policy(|policy| {
        policy.versions.rollback = Some(Rollback {
            from: "v3.0.0".to_owned(),
            to: "v2.0.0".to_owned(),
        });
    });
    let plan = planned(back, &[node("a")]);
    assert_eq!(
        (preloaded(&plan).len(), codes(&plan)),
        (0, vec!["nodes-skipped"])
    );
    let scene = Scene::new().installed("ConfigMap/web/c: {data: {k: OLD}}");
    let scene = scene.git("ConfigMap/web/c: {data: {k: NEW}}");
    let scene = scene.applies_in("images", &[], |stage| stage.preload = Some(rule()));
    let plan = planned(scene, &[node("a")]);
    assert_eq!((preloaded(&plan).len(), codes(&plan)), (0, vec![]));
    let plan = planned(upgrade(rule()), &[]);
    assert_eq!((preloaded(&plan).len(), codes(&plan)), (0, vec![]));
}

#[test]
fn old_servers_and_lost_nodes_are_refused() {
    let old =
        |scene: Scene| scene.cluster(|observed| observed.server_version = "v1.34.2".to_owned());
    let plan = planned(old(upgrade(rule())), &[node("a")]);
    assert_eq!(codes(&plan), ["preload-unsupported"]);
    assert_eq!(plan.refusals().count(), 1);
    let of_job = PreloadRule {
        source: PreloadSource::Job("job.yaml".to_owned()),
        ..rule()
    };
    let plan = planned(old(upgrade(of_job)), &[node("a")]);
    assert_eq!((preloaded(&plan), codes(&plan)), (vec!["a"], vec![]));
    let lost = NodeState {
        ready: false,
        ..node("a")
    };
    let plan = planned(upgrade(rule()), &[lost]);
    assert_eq!(codes(&plan), ["nodes-not-ready"]);
    let mut nowhere = upgrade(rule());
    nowhere.desired.namespace = None;
    assert_eq!(
        codes(&planned(nowhere, &[node("a")])),
        ["preload-unsupported"]
    );
    let mut absent = upgrade(rule());
    absent.desired.namespace = Some("new".to_owned());
    assert_eq!(codes(&planned(absent, &[node("a")])), ["nodes-skipped"]);
}

#[test]
fn nodes_and_permissions_are_asked_for() {
    let scene = upgrade(rule());
    let mut policy = scene.policy.clone();
    policy.asks = [Topic::Nodes, Topic::Permissions].into();
    let mut observed = scene.observed();
    let Planning::Ask(questions) = plan(&scene.desired, &observed, &policy) else {
        panic!("nothing is asked");
    };
    assert_eq!(questions, [Question::Nodes("images".to_owned())].into());
    let read = ObservedNodes::Read {
        nodes: vec![node("a")],
        pods: Vec::new(),
        budgets: Vec::new(),
        capacity: Vec::new(),
        former: BTreeSet::new(),
    };
    observed.nodes.insert("images".to_owned(), read);
    let Planning::Ask(questions) = plan(&scene.desired, &observed, &policy) else {
        panic!("nothing is asked");
    };
    let Some(Question::Permissions(permissions)) = questions.first() else {
        panic!("{questions:?}");
    };
    let creates_pods = permissions.needed.keys().any(|one| {
        one.verb == "create" && one.resource == "pods" && one.namespace.as_deref() == Some("web")
    });
    assert!(creates_pods, "{permissions:?}");
}
