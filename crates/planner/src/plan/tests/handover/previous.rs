//! Workloads of a release that hands its objects over.

use rstest::rstest;
use serde_json::json;

use super::{HOOK, HOOK_ID, NEW, OLD, Scene, comes_before, find, lines, set, step_of};
use crate::plan::{Grant, Op, Plan, Propagation, Step};
use pleach_state::overlay::OnFailure;

/// Builds a release that takes over objects, some of which run in another
/// namespace.
fn succeeding() -> Scene {
    Scene::new().previous(OLD).git(NEW)
}

fn deleted<'a>(plan: &'a Plan, id: &str) -> Option<&'a Step> {
    let mut steps = plan.steps.iter();
    steps.find(|step| matches!(step.op, Op::Delete(_)) && step.object.to_string() == id)
}

#[test]
fn a_workload_that_hands_over_stops_before_its_successor_starts() {
    let plan = succeeding().plan();
    assert!(plan.findings.iter().all(|one| !one.is_error()));
    for id in [
        "Deployment.apps/old/api",
        "Deployment.apps/old/controller",
        "DaemonSet.apps/old/agent",
    ] {
        let emptied = set(&plan, id);
        let new = step_of(&plan, &id.replace("/old/", "/web/"));
        let gone = deleted(&plan, id).unwrap();
        assert!(comes_before(&plan, emptied, new), "{id}");
        assert!(comes_before(&plan, new, gone), "{id}");
        let mut overlays = plan.overlays.iter();
        let overlay = overlays.find(|one| one.object == emptied.object).unwrap();
        let ready = new.object.clone();
        assert_eq!(overlay.on_failure, OnFailure::UndoUnless { ready });
        let Op::Delete(deletion) = &gone.op else {
            panic!()
        };
        assert_eq!(deletion.uid(), format!("uid of {id}"));
        assert!(
            matches!(deletion.because(), Grant::PreviousRelease { release } if release.release == "old")
        );
        assert_eq!(deletion.propagation(), Propagation::Foreground);
    }
    // The other objects are not this release's to delete.
    for id in ["Service/old/api", "ServiceAccount/old/s"] {
        assert!(deleted(&plan, id).is_none(), "{id}");
    }
}

#[test]
fn registrations_of_the_previous_release_are_deleted_before_its_successors_start() {
    let plan = succeeding().live(HOOK).plan();
    assert!(plan.findings.iter().all(|one| !one.is_error()));
    let unregister = deleted(&plan, HOOK_ID).unwrap();
    assert_eq!(
        unregister.reason,
        "points at Service old/api of release e.old, whose pods are deleted"
    );
    let close = find(&plan, "gate", |step| matches!(step.op, Op::Close { .. }));
    let Op::Close { gate } = &close.op else {
        panic!()
    };
    assert_eq!(gate.explain(), "CREATE and UPDATE of *.x.org");
    // Accounts of pods that still run stay exempt.
    for place in ["old", "web"] {
        let account = format!("system:serviceaccount:{place}:s");
        assert!(gate.exempt.contains(&account), "{:?}", gate.exempt);
    }
    let emptied = set(&plan, "Deployment.apps/old/api");
    let again = find(&plan, "second look", |step| {
        step.op == Op::Wait && step.object.to_string() == HOOK_ID
    });
    let new = step_of(&plan, "Deployment.apps/web/api");
    let order = [close, unregister, emptied, again, new];
    for pair in order.windows(2) {
        assert!(comes_before(&plan, pair[0], pair[1]), "{:#?}", lines(&plan));
    }
}

/// Builds another Deployment of the previous release, which has no successor.
fn beside(app: &str) -> Scene {
    let other = format!(
        "Deployment.apps/old/other: {{spec: {{replicas: 1, selector: {{matchLabels: {{app: {app}, n: two}}}}, template: {{metadata: {{labels: {{app: {app}, n: two}}}}}}}}}}"
    );
    Scene::new()
        .previous(&format!("{OLD}\n{other}"))
        .git(NEW)
        .live(HOOK)
}

#[rstest]
#[case::another_workload_beside_it(beside("other"), true)]
#[case::another_workload_behind_the_service(beside("api"), false)]
#[case::it_is_shipped(Scene::new().previous(&format!("{OLD}\n{HOOK}")).git(NEW), false)]
#[case::nothing_is_pruned(succeeding().live(HOOK).policy(|policy| policy.prune.enabled = false), false)]
#[case::the_workload_stays(succeeding().live(HOOK).meta("Deployment.apps/old/api", |meta| {
    meta.annotations.insert("pleach.dev/prune".to_owned(), "disabled".to_owned());
}), false)]
#[case::git_still_has_it(succeeding().live(HOOK).cluster(|observed| observed.previous = None), false)]
#[case::it_points_elsewhere_too(succeeding().live(&HOOK.replace("rules:", "x: y}, {clientConfig: {service: {namespace: others, name: api}}, rules:")), false)]
#[case::another_object_owns_it(succeeding().live(HOOK).with_live(HOOK_ID, |live| {
    live["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u"}]);
}), false)]
fn a_registration_of_the_previous_release_is_deleted_only_with_all_its_backends(
    #[case] scene: Scene,
    #[case] is_removed: bool,
) {
    let plan = scene.plan();
    assert!(
        plan.findings.iter().all(|one| !one.is_error()),
        "{:?}",
        plan.findings
    );
    assert_eq!(
        deleted(&plan, HOOK_ID).is_some(),
        is_removed,
        "{:#?}",
        lines(&plan)
    );
}

#[test]
fn user_objects_of_the_previous_release_are_copied() {
    let plan = succeeding().moves("old", "web", &["settings"]).plan();
    let copy = find(&plan, "copy", |step| matches!(step.op, Op::Copy { .. }));
    assert_eq!(copy.object.to_string(), "ConfigMap/web/settings");
    let api = step_of(&plan, "Deployment.apps/web/api");
    assert!(comes_before(&plan, copy, api));
}

#[rstest]
#[case::nothing_is_pruned(succeeding().policy(|policy| policy.prune.enabled = false), true)]
#[case::nothing_is_waited_for(succeeding().policy(|policy| policy.wait = false), true)]
#[case::protected(succeeding().protect("{group: apps, kind: Deployment}"), true)]
#[case::annotated(succeeding().meta("Deployment.apps/old/controller", |meta| {
    meta.annotations.insert("pleach.dev/prune".to_owned(), "disabled".to_owned());
}), true)]
#[case::another_incarnation(succeeding().meta("Deployment.apps/old/controller", |meta| meta.uid = "v".to_owned()), false)]
#[case::of_another_owner_by_now(succeeding().meta("Deployment.apps/old/controller", |meta| {
    meta.labels.insert(pleach_model::object::labels::PART_OF.to_owned(), "applyset-other".to_owned());
}), false)]
#[case::gone_already(succeeding().gone("Deployment.apps/old/controller"), false)]
#[case::git_still_has_it(succeeding().cluster(|observed| observed.previous = None), false)]
#[case::nothing_comes(succeeding().with_desired(|desired| {
    desired.manifests.retain(|manifest| manifest.id().name != "controller");
}), false)]
fn a_retained_workload_is_not_emptied(#[case] scene: Scene, #[case] is_reported: bool) {
    let plan = scene.plan();
    let id = "Deployment.apps/old/controller";
    assert!(deleted(&plan, id).is_none());
    let touched = |step: &&Step| step.object.to_string() == id && !matches!(step.op, Op::Wait);
    assert!(!plan.steps.iter().any(|step| touched(&step)));
    let mut findings = plan.findings.iter();
    let finding = findings.find(|one| {
        one.code == "runs-beside" && one.object.as_ref().is_some_and(|it| it.to_string() == id)
    });
    assert_eq!(finding.is_some(), is_reported, "{:?}", plan.findings);
    assert!(plan.findings.iter().all(|one| !one.is_error()));
}

#[test]
fn a_shared_backend_runs_until_its_registrations_point_at_the_successor() {
    let hook = |namespace: &str| {
        format!(
            "{HOOK_ID}: {{webhooks: [{{name: a, clientConfig: {{service: {{namespace: {namespace}, name: api}}}}}}]}}"
        )
    };
    let plan = Scene::new()
        .previous(&format!("{OLD}\n{}", hook("old")))
        .git(&format!("{NEW}\n{}", hook("web")))
        .plan();
    assert!(plan.findings.iter().all(|one| !one.is_error()));
    let api = "Deployment.apps/old/api";
    let is_set = |id: &str| {
        let mut steps = plan.steps.iter();
        steps.any(|step| matches!(step.op, Op::Set { .. }) && step.object.to_string() == id)
    };
    assert!(!is_set(api));
    assert!(is_set("Deployment.apps/old/controller"));
    let retargeted = step_of(&plan, HOOK_ID);
    assert!(comes_before(
        &plan,
        retargeted,
        deleted(&plan, api).unwrap()
    ));
}
