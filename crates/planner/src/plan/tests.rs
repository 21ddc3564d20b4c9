//! Decisions of the planner, tested with scenes: git, the cluster and the
//! record.

mod access;
mod adoption;
mod backends;
mod certificates;
mod changes;
mod checks;
mod cleanup;
mod configuration;
mod consent;
mod contended;
mod crds;
mod deletion;
mod drawn;
mod edges;
mod fields;
mod gates;
mod handover;
mod ignore;
mod laws;
mod leftover;
mod namespace;
mod nodes;
mod operators;
mod overlays;
mod ownership;
mod preflight;
mod preload;
mod previous;
mod prune;
mod questions;
mod recreate;
mod removal;
mod rendered;
mod reverse;
mod run_once_jobs;
mod scene;
mod secrets;
mod selectors;
mod server;
mod stages;
mod stale_registrations;
mod temporary_binding;
mod verify;
mod workload_context;

use rstest::rstest;
use serde_json::json;

use super::{Action, Op, Plan, Step, Until};
use scene::Scene;

/// CRD of the kind Widget.
const WIDGETS: &str = "CustomResourceDefinition.apiextensions.k8s.io/widgets.example.org: {spec: {group: example.org, names: {kind: Widget, plural: widgets}, versions: [{name: v1, served: true}]}}";
/// The same CRD, with a version note.
const NOTED_WIDGETS: &str = "CustomResourceDefinition.apiextensions.k8s.io/widgets.example.org: {spec: {group: example.org, names: {kind: Widget, plural: widgets}, versions: [{name: v1, served: true}], note: OLD}}";

/// Returns the changes of a plan as lines, one per object.
fn changes(plan: &Plan) -> Vec<String> {
    plan.changes
        .iter()
        .map(|change| format!("{} {}: {}", change.action, change.object, change.reason))
        .collect()
}

/// Returns the steps of a plan as lines, in order.
fn lines(plan: &Plan) -> Vec<String> {
    plan.steps.iter().map(line).collect()
}

fn line(step: &Step) -> String {
    let until = match &step.until {
        None => String::new(),
        Some(Until::Ready { .. }) => " until ready".to_owned(),
        Some(Until::Absent { .. }) => " until gone".to_owned(),
        Some(Until::Finished) => " until it ended".to_owned(),
        Some(Until::RolledOut { pods: None, .. }) => " until rolled out".to_owned(),
        Some(Until::RolledOut {
            pods: Some(pods), ..
        }) => format!(" until {pods} rolled out"),
        Some(Until::Emptied { .. }) => " until it has no pods".to_owned(),
        Some(Until::Probe { object, denied, .. }) => {
            let answer = if *denied { "denied" } else { "let through" };
            let gate = pleach_formats::gate::probed(object).unwrap_or_default();
            format!(" until the probe of {gate} is {answer}")
        }
        Some(Until::Served(gvk)) => format!(" until {gvk} is served"),
        Some(Until::Endpoints { service, ready, .. }) => format!(" until {service} has {ready}"),
        Some(Until::Registered {
            kind,
            service,
            optional,
        }) => {
            let end = if *optional { " or time is up" } else { "" };
            format!(" until {kind} points at {service}{end}")
        }
        Some(Until::Holds { check }) => format!(" until {check} holds"),
        Some(Until::Exists { any_of }) => {
            let names: Vec<String> = any_of.iter().map(ToString::to_string).collect();
            format!(" until {} exists", names.join(" or "))
        }
    };
    format!("{}: {} {}{until}", step.stage, step.op.verb(), step.object)
}

/// Returns the step that applies an object.
fn step_of<'a>(plan: &'a Plan, id: &str) -> &'a Step {
    let mut steps = plan.steps.iter();
    let is_it = |step: &&Step| step.op.applies() && step.object.to_string() == id;
    steps
        .find(is_it)
        .unwrap_or_else(|| panic!("{id} is not applied: {:?}", lines(plan)))
}

/// Returns the edges of a plan as lines.
fn edges(plan: &Plan) -> Vec<String> {
    let name = |step: &Step| match step.op {
        Op::Wait => format!("{} (wait)", step.object),
        _ => step.object.to_string(),
    };
    plan.steps
        .iter()
        .flat_map(|to| to.needs.iter().map(move |edge| (edge, to)))
        .map(|(edge, to)| {
            let from = &plan.steps[edge.from.0];
            format!(
                "{} -> {}: {:?} {:?}",
                name(from),
                name(to),
                edge.state,
                edge.why
            )
        })
        .collect()
}

/// Returns the position of the first step of an object.
fn position(plan: &Plan, id: &str) -> usize {
    let mut steps = plan.steps.iter();
    steps
        .position(|step| step.object.to_string() == id)
        .unwrap()
}

#[test]
fn effects_contain_no_uid_and_no_version() {
    let scene = |version: &str| {
        Scene::new()
            .installed("ConfigMap/web/old: {data: {a: b}}\nSecret/web/s: {data: {a: b}}")
            .git("ConfigMap/web/new: {data: {a: b}}\nSecret/web/s: {data: {a: c}}")
            .meta("ConfigMap/web/old", |meta| {
                meta.resource_version = version.to_owned();
            })
    };
    let (one, other) = (scene("1").plan(), scene("2").plan());
    assert_eq!(one.effects(), other.effects());
    let other = scene("1").git("ConfigMap/web/new: {data: {a: z}}").plan();
    assert_ne!(one.effects(), other.effects());
}

#[test]
fn a_plan_made_before_the_key_existed_is_not_stale() {
    let scene =
        || Scene::new().git("Secret/web/s: {data: {a: b}}\nConfigMap/web/c: {data: {a: b}}");
    let reviewed = scene().unkeyed("Secret/web/s").plan();
    let now = scene().plan();
    assert_ne!(now.effects(), reviewed.effects());
    assert!(now.has_effects_of(&reviewed));
    assert!(reviewed.has_effects_of(&reviewed));
    let other = scene().git("ConfigMap/web/c: {data: {a: z}}").plan();
    assert!(!other.has_effects_of(&reviewed));
    // A plan reviewed with digests requires the same digests.
    assert!(!reviewed.has_effects_of(&now));
}

#[rstest]
#[case::nothing("", "")]
#[case::waits_only("ConfigMap/web/c: {}", "ConfigMap/web/c: {}")]
fn waiting_is_no_effect(#[case] git: &str, #[case] installed: &str) {
    let plan = Scene::new().installed(installed).git(git).plan();
    assert!(!plan.has_steps());
    assert_eq!(plan.count(Action::Unchanged), plan.changes.len());
}

#[test]
fn a_plan_is_the_same_whatever_the_order_of_the_manifests() {
    let scene = || {
        Scene::new()
            .installed("Deployment.apps/web/old: {spec: {template: {}}}\nService/web/old: {}")
            .git("Deployment.apps/web/api: {spec: {template: {}}}\nService/web/api: {}\nConfigMap/web/c: {}")
    };
    let text = |plan: &Plan| serde_json::to_string(plan).unwrap();
    let expected = text(&scene().plan());
    for _ in 0..100 {
        assert_eq!(text(&scene().plan()), expected);
    }
    let mut shuffled = scene();
    shuffled.desired.manifests.reverse();
    assert_eq!(text(&shuffled.plan()), expected);
}

#[test]
fn a_plan_shows_no_secret() {
    let scene = Scene::new()
        .installed("Secret/web/s: {data: {a: previous-value}}")
        .git("Secret/web/s: {data: {a: later-value}}\nSecret/web/t: {data: {a: later-value}}");
    let text = json!(scene.plan()).to_string();
    assert!(!text.contains("previous-value") && !text.contains("later-value"));
}
