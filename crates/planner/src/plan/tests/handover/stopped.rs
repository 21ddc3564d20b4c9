//! Moves that an earlier run did not finish.

use rstest::rstest;
use serde_json::json;

use super::{HOOK, HOOK_ID, NEW, OLD, Scene, comes_before, find, lines, moving, set, step_of};
use crate::observe::Listing;
use crate::plan::{Op, Plan, Step, Until, tests::scene::service_ref};
use pleach_model::object::ObjectId;
use pleach_state::overlay::OnFailure;

/// Builds an unfinished move without any registration of the pods.
fn forward() -> Scene {
    Scene::new().installed(OLD).unfinished("v2.0.0").git(NEW)
}

/// Builds the move back.
fn back() -> Scene {
    Scene::new()
        .live("Namespace/old: {}")
        .installed(NEW)
        .unfinished("v2.0.0")
        .git(OLD)
}

/// Adds a workload that an earlier run emptied before it was killed.
fn emptied(scene: Scene, from: &str, to: &str) -> Scene {
    let id = |place: &str| format!("Deployment.apps/{place}/controller");
    let ready: ObjectId = id(to).parse().unwrap();
    let patch = json!({"spec": {"replicas": 0}});
    let scene = scene.left_on("handover", &id(from), &patch);
    scene.cluster(|observed| {
        for journaled in observed.journal.overlays.values_mut() {
            let ready = ready.clone();
            journaled.on_failure = OnFailure::UndoUnless { ready };
        }
    })
}

/// Adds a journaled registration that an earlier run deleted.
fn unregistered(scene: Scene, service: &str) -> Scene {
    let service = service_ref(service);
    scene.cluster(|observed| {
        observed.journal.unregistered.insert(service);
    })
}

const RUN_TIME: &str = "{kind: ValidatingWebhookConfiguration, service: api}";

#[rstest]
#[case::by_what_it_emptied(emptied(forward(), "old", "web"), ["old", "web"])]
#[case::by_its_gate(forward().left_closed("handover", "x.org", "*"), ["old", "web"])]
#[case::by_what_it_removed(unregistered(forward(), "old/api"), ["old", "web"])]
#[case::by_what_registers(forward().declares(RUN_TIME), ["old", "web"])]
#[case::by_what_it_emptied_on_the_way_back(emptied(back(), "web", "old"), ["web", "old"])]
#[case::by_its_gate_on_the_way_back(back().left_closed("handover", "x.org", "*"), ["web", "old"])]
#[case::by_what_it_removed_on_the_way_back(unregistered(back(), "web/api"), ["web", "old"])]
#[case::by_the_move_that_goes_back(back().moves("old", "web", &[]), ["web", "old"])]
fn a_stopped_move_is_detected_from_any_trace(#[case] scene: Scene, #[case] places: [&str; 2]) {
    let plan = scene.plan();
    let [from, to] = places;
    for (kind, name) in [
        ("Deployment", "api"),
        ("Deployment", "controller"),
        ("DaemonSet", "agent"),
    ] {
        let old = format!("{kind}.apps/{from}/{name}");
        let stopped = find(&plan, &old, |step| {
            matches!(step.until, Some(Until::Emptied { .. })) && step.object.to_string() == old
        });
        let new = step_of(&plan, &format!("{kind}.apps/{to}/{name}"));
        assert!(comes_before(&plan, stopped, new), "{:#?}", lines(&plan));
        assert!(!is_lifted(&plan, &old), "{:#?}", lines(&plan));
    }
}

fn is_lifted(plan: &Plan, id: &str) -> bool {
    let mut steps = plan.steps.iter();
    steps.any(|step| step.op == Op::Lift && step.object.to_string() == id)
}

#[test]
fn an_emptied_workload_runs_again_after_its_successor_stopped() {
    let scene = Scene::new()
        .installed(OLD)
        .installed(NEW)
        .unfinished("v2.0.0")
        .git(OLD);
    let plan = emptied(scene, "old", "web").plan();
    let stopped = set(&plan, "Deployment.apps/web/controller");
    let lift = find(&plan, "lift", |step| step.op == Op::Lift);
    assert_eq!(lift.object.to_string(), "Deployment.apps/old/controller");
    assert!(comes_before(&plan, stopped, lift), "{:#?}", lines(&plan));
}

#[rstest]
#[case::nothing_declares_it(forward())]
#[case::it_registers_if_it_likes(forward().declares("{kind: ValidatingWebhookConfiguration, service: api, optional: true}"))]
#[case::the_gate_is_of_the_bundle(forward().gate("{name: handover, groups: [x.org]}").left_closed("handover", "x.org", "*"))]
#[case::the_change_is_a_new_one(Scene::new().installed(OLD).git(NEW).declares(RUN_TIME))]
fn a_workload_without_a_move_runs_until_the_end(#[case] scene: Scene) {
    let plan = scene.plan();
    let mut steps = plan.steps.iter();
    assert!(
        !steps.any(|step| matches!(step.op, Op::Set { .. })),
        "{:#?}",
        lines(&plan)
    );
}

/// Builds a move that git reverted before any workload was emptied. The
/// registration of the pods is gone.
fn reversed() -> Scene {
    Scene::new()
        .installed(OLD)
        .unfinished("v2.0.0")
        .git(OLD)
        .declares(RUN_TIME)
        .listing(
            "ValidatingWebhookConfiguration.admissionregistration.k8s.io",
            Listing::Complete,
        )
}

#[test]
fn a_retained_workload_is_restarted_to_register() {
    let plan = reversed().left_closed("handover", "x.org", "*").plan();
    let restarted: Vec<&Step> = plan
        .steps
        .iter()
        .filter(|step| matches!(step.op, Op::Restart { .. }))
        .collect();
    let [restart] = restarted.as_slice() else {
        panic!("{:#?}", lines(&plan));
    };
    assert_eq!(restart.object.to_string(), "Deployment.apps/old/api");
    let registered = find(&plan, "registration", |step| {
        matches!(step.until, Some(Until::Registered { .. }))
    });
    let lift = find(&plan, "lift", |step| step.op == Op::Lift);
    assert!(comes_before(&plan, restart, registered));
    assert!(comes_before(&plan, registered, lift));
}

#[test]
fn a_retained_workload_is_restarted_without_a_declaration() {
    let scene = Scene::new().installed(OLD).unfinished("v2.0.0").git(OLD);
    let scene = unregistered(scene, "old/api");
    let restarted = |scene: &Scene| -> Vec<String> {
        let plan = scene.plan();
        let steps = plan.steps.iter();
        steps
            .filter(|step| matches!(step.op, Op::Restart { .. }))
            .map(|step| step.object.to_string())
            .collect()
    };
    assert_eq!(restarted(&scene), ["Deployment.apps/old/api"]);
    assert_eq!(restarted(&scene.live(HOOK)), [""; 0]);
}

#[rstest]
#[case::it_is_there(reversed().live(HOOK))]
#[case::it_may_be_there(reversed().incomplete("ValidatingWebhookConfiguration.admissionregistration.k8s.io"))]
#[case::it_registers_if_it_likes(reversed().with_desired(|desired| desired.runtime_objects[0].optional = true))]
#[case::it_starts_anyway(reversed().left_on("handover", "Deployment.apps/old/api", &json!({"spec": {"replicas": 0}})))]
#[case::nothing_was_begun(reversed().version("v1.0.0").cluster(|observed| observed.installed.as_mut().unwrap().applying = None))]
fn a_registered_workload_is_not_restarted(#[case] scene: Scene) {
    let plan = scene.plan();
    let mut steps = plan.steps.iter();
    assert!(
        !steps.any(|step| matches!(step.op, Op::Restart { .. })),
        "{:#?}",
        lines(&plan)
    );
}

#[rstest]
#[case::removed(moving(), Some(HOOK_ID))]
#[case::removed_under_another_name(moving().declares(&RUN_TIME.replace("api", "other")), Some(HOOK_ID))]
#[case::removed_earlier(forward().left_closed("handover", "x.org", "*"), Some("ValidatingAdmissionPolicy.admissionregistration.k8s.io/e.r.handover"))]
#[case::removed_and_named(moving().declares(RUN_TIME), None)]
#[case::removed_earlier_and_named(forward().declares(RUN_TIME).left_closed("handover", "x.org", "*"), None)]
#[case::nothing(forward(), None)]
fn undeclared_registrations_are_reported(#[case] scene: Scene, #[case] object: Option<&str>) {
    let plan = scene.plan();
    let mut findings = plan.findings.iter();
    let finding = findings.find(|one| one.code == "successor-undeclared");
    let of = finding.and_then(|one| one.object.as_ref());
    assert_eq!(of.map(ToString::to_string).as_deref(), object);
    assert!(finding.is_none_or(|one| one.hint.is_some()));
}
