//! Fields that are ignored.

use serde_json::json;

use super::scene::Scene;
use crate::plan::{Action, Body, Desired, Op, Own, Plan};
use pleach_fields::diff::Cause;
use pleach_fields::ignore::Ignored;
use pleach_model::object::{DesiredDigest, ObjectId};

const KEY: &str = "Deployment.apps/web/a";
const GIT: &str = "Deployment.apps/web/a: {spec: {replicas: 2, image: v1}}";
const LATER: &str = "Deployment.apps/web/a: {spec: {replicas: 2, image: v2}}";
const SCALED: &str = "Deployment.apps/web/a: {spec: {replicas: 7}}";

/// Builds the state after a creation: everything was sent, and the record has
/// the object without the ignored field.
fn created() -> Scene {
    let scene = Scene::new()
        .installed(GIT)
        .git(GIT)
        .ignores(KEY, &["spec.replicas"]);
    let lean = scene
        .desired
        .ignored
        .lean(&scene.desired.manifests[0])
        .digest();
    scene.entry(KEY, |entry| entry.desired = Some(lean))
}

fn change(plan: &Plan) -> (Action, Option<Cause>) {
    let mut changes = plan.changes.iter();
    let change = changes
        .find(|change| change.object.to_string() == KEY)
        .unwrap();
    (change.action, change.cause.clone())
}

fn own(plan: &Plan) -> Option<&Own> {
    plan.steps.iter().find_map(|step| match &step.op {
        Op::Own(own) => Some(own),
        _ => None,
    })
}

#[test]
fn an_object_is_created_with_everything_and_approved_as_that() {
    let scene = Scene::new().git(GIT).ignores(KEY, &["spec.replicas"]);
    let body = |scene: &Scene| {
        let plan = scene.plan();
        let mut steps = plan.steps.into_iter();
        let step = steps.find(|step| step.object.to_string() == KEY).unwrap();
        match step.op {
            Op::Apply {
                body: Body::Rendered(digest),
                ..
            } => digest,
            op => panic!("{op:?}"),
        }
    };
    let mut observed = scene.clone();
    for (_, ignored) in observed.desired.ignored.iter_mut() {
        ignored.initial = DesiredDigest::Known(scene.desired.manifests[0].digest());
    }
    assert_eq!(
        body(&observed),
        DesiredDigest::Known(scene.desired.manifests[0].digest())
    );
    // The recorded digest omits the ignored field.
    let lean = scene
        .desired
        .ignored
        .lean(&scene.desired.manifests[0])
        .digest();
    assert_eq!(
        scene.plan().changes[0].digest,
        Some(DesiredDigest::Known(lean))
    );
}

#[test]
fn ignored_fields_are_unchanged_after_creation() {
    assert_eq!(change(&created().plan()), (Action::Unchanged, None));
    let scaled = created().edited("kubectl", SCALED);
    assert_eq!(change(&scaled.plan()), (Action::Unchanged, None));
    assert!(!scaled.plan().has_steps());
}

#[test]
fn the_path_is_given_up_before_the_first_apply_that_is_due() {
    let scene = created().git(LATER).ignores(KEY, &["spec.replicas"]);
    let plan = scene.plan();
    assert_eq!(change(&plan), (Action::Update, Some(Cause::Git)));
    let own = own(&plan).unwrap();
    assert_eq!(own.give_up.len(), 1);
    assert!(own.from.is_empty());
    // Another manager already owns the field, so there is nothing to give up,
    // and that is not drift.
    let plan = scene.edited("kubectl", SCALED).plan();
    assert_eq!(change(&plan), (Action::Update, Some(Cause::Git)));
    assert_eq!(plan.steps[0].op.verb(), "apply");
}

#[test]
fn a_rule_that_comes_gives_the_path_up_and_changes_no_value() {
    let scene = Scene::new()
        .installed(GIT)
        .git(GIT)
        .ignores(KEY, &["spec.replicas"]);
    let plan = scene.plan();
    assert_eq!(change(&plan), (Action::Update, Some(Cause::Git)));
    assert!(own(&plan).is_some());
    let observed = scene.observed();
    let id: ObjectId = KEY.parse().unwrap();
    let crate::observe::Prediction::Answer(after) = &observed.predicted[&id] else {
        panic!()
    };
    assert_eq!(after.value()["spec"]["replicas"], 2);
}

/// The sent object changes although git does not.
#[test]
fn a_new_or_removed_autoscaler_is_no_change_of_git() {
    let reason = |scene: &Scene| {
        let plan = scene.plan();
        let mut changes = plan.changes.iter();
        let change = changes.find(|change| change.object.to_string() == KEY);
        change.unwrap().reason.clone()
    };
    let mut comes = Scene::new()
        .installed(GIT)
        .git(GIT)
        .ignores(KEY, &["spec.replicas"]);
    let full = comes.desired.manifests[0].digest();
    for (_, ignored) in comes.desired.ignored.iter_mut() {
        ignored.initial = DesiredDigest::Known(full);
    }
    assert_eq!(reason(&comes), "some of its fields are ignored now");
    let removed = created().with_desired(|desired| desired.ignored = Ignored::default());
    assert_eq!(
        reason(&removed),
        "its replicas are no longer left to an autoscaler"
    );
    let git = Scene::new().installed(GIT).git(LATER);
    assert_eq!(reason(&git), "git changed");
    // The digest key is lost.
    let unknown = Scene::new().installed(GIT).git(GIT).unkeyed(KEY);
    assert_eq!(
        reason(&unknown),
        "cannot determine whether git changed: the digest key is gone"
    );
}

#[test]
fn a_removed_rule_restores_the_field_unless_another_manager_owns_it() {
    let lean = "Deployment.apps/web/a: {spec: {image: v1}}";
    let scene = Scene::new().installed(lean).git(GIT);
    assert_eq!(change(&scene.plan()), (Action::Update, Some(Cause::Git)));
    let scene = scene.edited("kubectl", SCALED);
    assert_eq!(change(&scene.plan()).0, Action::Blocked);
}

#[test]
fn an_adoption_leaves_the_field_as_it_is() {
    let live = "Deployment.apps/web/a: {spec: {replicas: 5, image: v1, old: x}, managers: [helm]}";
    let plan = Scene::new()
        .git(GIT)
        .live(live)
        .adopt("helm")
        .ignores(KEY, &["spec.replicas"])
        .plan();
    assert_eq!(change(&plan).0, Action::Adopt);
    let own = own(&plan).unwrap();
    assert_eq!((own.from.len(), own.give_up.len()), (1, 1));
    let Op::Apply { take_over, .. } = &plan.steps[1].op else {
        panic!()
    };
    assert!(take_over.is_empty(), "{take_over:?}");
}

#[test]
fn replicas_are_left_to_an_autoscaler_with_a_note() {
    let autoscaler: ObjectId = "HorizontalPodAutoscaler.autoscaling/web/h".parse().unwrap();
    let scene = Scene::new()
        .git(GIT)
        .with_desired(|desired| desired.leave_replicas(&KEY.parse().unwrap(), &autoscaler))
        .with_desired(|desired| desired.leave_replicas(&KEY.parse().unwrap(), &autoscaler));
    let plan = scene.plan();
    assert_eq!(plan.findings.len(), 1);
    assert_eq!(
        (
            plan.findings[0].code.as_str(),
            plan.findings[0].message.as_str()
        ),
        (
            "autoscaled",
            "spec.replicas is left to HorizontalPodAutoscaler.autoscaling/web/h, which scales it"
        )
    );
    // Replicas are not ignored if git does not set them.
    let scene = Scene::new()
        .git("Deployment.apps/web/a: {spec: {image: v1}}")
        .with_desired(|desired| desired.leave_replicas(&KEY.parse().unwrap(), &autoscaler));
    assert!(scene.plan().findings.is_empty());
}

/// The role is written as in the Kubernetes documentation of aggregated roles.
#[test]
fn rules_of_an_aggregated_role_are_left_to_the_cluster_with_a_note() {
    let key = "ClusterRole.rbac.authorization.k8s.io/r";
    let role = |label: &str| {
        format!(
            "{key}: {{metadata: {{labels: {{team: {label}}}}}, rules: [], \
             aggregationRule: {{clusterRoleSelectors: [{{matchLabels: {{to: r}}}}]}}}}"
        )
    };
    let scene = |label: &str| {
        let scene = Scene::new()
            .installed(&role("a"))
            .git(&role("a"))
            .with_desired(Desired::leave_aggregated_rules);
        let lean = &scene.desired.ignored;
        let lean = lean.lean(&scene.desired.manifests[0]).digest();
        let aggregated = format!("{key}: {{rules: [{{verbs: [get], resources: [pods]}}]}}");
        scene
            .entry(key, |entry| entry.desired = Some(lean))
            .edited("clusterrole-aggregation-controller", &aggregated)
            .git(&role(label))
            .with_desired(|desired| desired.ignored = Ignored::default())
            .with_desired(Desired::leave_aggregated_rules)
    };
    let action = |plan: &Plan| {
        let mut changes = plan.changes.iter();
        let change = changes.find(|change| change.object.to_string() == key);
        change.unwrap().action
    };
    let plan = scene("a").plan();
    assert_eq!(action(&plan), Action::Unchanged, "{:?}", plan.findings);
    assert!(plan.findings.iter().any(|one| one.code == "aggregated"));
    // Other changes of the role in git are applied without the rules.
    let plan = scene("b").plan();
    assert_eq!(action(&plan), Action::Update, "{:?}", plan.findings);
    assert_eq!(plan.refusals().count(), 0);
    // A complete role without aggregation belongs to git.
    let git = format!("{key}: {{rules: []}}");
    let whole = Scene::new()
        .git(&git)
        .with_desired(Desired::leave_aggregated_rules);
    assert!(whole.plan().findings.is_empty());
}

#[test]
fn a_field_inside_something_with_one_owner_is_refused() {
    let git = "ClusterRole.rbac.authorization.k8s.io/r: {rules: [{verbs: [get], resources: [a]}]}";
    let later = git.replace("get", "list");
    let key = "ClusterRole.rbac.authorization.k8s.io/r";
    let plan = Scene::new()
        .installed(git)
        .git(&later)
        .ignores(key, &["rules[*].verbs"])
        .plan();
    let finding = plan
        .findings
        .iter()
        .find(|finding| finding.is_error())
        .unwrap();
    assert_eq!(finding.code, "ignore-inside-atomic");
    assert_eq!(
        json!(finding.hint),
        json!("ignore the list or map as a whole")
    );
}
