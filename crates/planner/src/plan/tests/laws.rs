//! Invariants of every plan, tested with random scenes.

mod allow;
mod temporary;
mod world;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::scene::Scene;
use crate::observe::Observed;
use crate::plan::{Consented, Grant, Op, Plan, Removal, StepId, is_protected_kind};
use pleach_model::object::{ObjectId, ServiceRef};
use pleach_model::order::StageName;
use pleach_state::inventory::EntryState;
use temporary::check_overlays;
use world::{Part, World, world};

/// Returns all direct and indirect predecessors of each step.
fn ancestors(plan: &Plan) -> Vec<BTreeSet<StepId>> {
    let mut all: Vec<BTreeSet<StepId>> = Vec::new();
    for step in &plan.steps {
        let mut mine = BTreeSet::new();
        for edge in &step.needs {
            mine.insert(edge.from);
            mine.extend(&all[edge.from.0]);
        }
        all.push(mine);
    }
    all
}

/// Ids are positions, and a step only needs earlier steps, so there is no
/// cycle.
fn check_edges(plan: &Plan) {
    for (position, step) in plan.steps.iter().enumerate() {
        assert_eq!(step.id, StepId(position));
        for edge in &step.needs {
            assert!(
                edge.from < step.id,
                "{} needs {}",
                step.object,
                plan.steps[edge.from.0].object
            );
        }
        let needed: BTreeSet<StepId> = step.needs.iter().map(|edge| edge.from).collect();
        assert_eq!(needed.len(), step.needs.len());
    }
}

fn check(scene: &Scene) {
    let observed = scene.observed();
    let plan = scene.plan();
    let entries = &observed.inventory.entries;
    let desired: BTreeSet<&ObjectId> = scene
        .desired
        .manifests
        .iter()
        .map(pleach_model::object::Manifest::id)
        .collect();

    check_edges(&plan);
    assert!(
        plan.findings
            .iter()
            .all(|finding| finding.code != "dependency-cycle")
    );
    assert_eq!(
        plan.stages.iter().map(|stage| stage.steps).sum::<usize>(),
        plan.steps.len()
    );

    // Every object has exactly one change.
    let changes: BTreeMap<&ObjectId, _> = plan
        .changes
        .iter()
        .map(|change| (&change.object, change))
        .collect();
    assert_eq!(changes.len(), plan.changes.len());
    for id in desired.iter().copied().chain(entries.keys()) {
        assert!(changes.contains_key(id), "{id} is missing");
    }

    let ancestors = ancestors(&plan);
    let barrier = plan
        .steps
        .iter()
        .rfind(|step| step.stage == StageName::Verify && step.until.is_none());
    for step in &plan.steps {
        let Op::Delete(deletion) = &step.op else {
            continue;
        };
        let id = &step.object;
        let entry = entries.get(id);
        let live = observed.live_meta(id).unwrap();

        // I2: only our own objects are deleted, with the observed UID.
        assert_eq!(deletion.uid(), live.uid);
        if let Grant::EndingNamespace { service } = deletion.because() {
            // The object is recreated, and its namespace cannot be deleted
            // before it.
            assert!(desired.contains(id) && is_terminating(&observed, &service.namespace));
            assert_eq!(entry.unwrap().state, EntryState::Applied);
            continue;
        }
        assert!(!desired.contains(id));
        let is = |state| {
            entry.is_some_and(|entry| {
                entry.state == state && entry.uid.as_deref() == Some(&live.uid)
            })
        };
        match deletion.because() {
            Grant::Inventory | Grant::Superseded { .. } | Grant::TakenOver { .. } => {
                assert!(is(EntryState::Applied));
            }
            Grant::DeadRegistration { .. } => {
                assert!(is(EntryState::Applied) && deletion.resource_version().is_some());
            }
            Grant::RunTimeObject { .. } => {
                assert!(is(EntryState::Observed) || observed.found.contains_key(id));
            }
            Grant::Registration { service } => {
                let mut registrations = observed.registrations.iter();
                let registration = registrations.find(|one| one.id == *id).unwrap();
                assert!(
                    registration.services.contains(service) && !desired.contains(&service.id())
                );
                assert!(is_of_ours(&observed, service));
                assert_eq!(deletion.resource_version(), Some(&*live.resource_version));
            }
            _ => panic!("nothing asks for it: {id}"),
        }
        // I1: no deletion on an incomplete view. I9: no deletion of protected
        // objects without consent.
        let is_seen = observed.is_complete(id) || observed.found.contains_key(id);
        assert!(is_seen, "{id}");
        assert!(!is_protected_kind(&id.group_kind()), "{id}");
        // Pruning comes after verify, except for obstacles to it.
        let barrier = barrier.unwrap();
        match deletion.because() {
            Grant::Inventory | Grant::RunTimeObject { .. } => {
                assert!(ancestors[step.id.0].contains(&barrier.id));
            }
            Grant::DeadRegistration { .. }
            | Grant::Registration { .. }
            | Grant::Superseded { .. }
            | Grant::TakenOver { .. } => {
                assert!(ancestors[barrier.id.0].contains(&step.id));
            }
            _ => panic!("nothing asks for it: {id}"),
        }
        assert!(
            plan.steps
                .iter()
                .filter(|one| one.op.applies())
                .all(|one| ancestors[barrier.id.0].contains(&one.id))
        );
    }

    check_overlays(scene, &plan, &observed, &ancestors);

    check_order(scene, &plan);
}

/// Returns whether a Service belongs to the release, or did: the record refers
/// to it.
fn is_of_ours(observed: &Observed, service: &ServiceRef) -> bool {
    let entries = &observed.inventory.entries;
    let backend = observed.backends.get(service);
    let is_gone = backend.is_some_and(|backend| !backend.exists);
    let mut recorded = entries.values();
    let was_ours = recorded.any(|one| one.service.as_ref() == Some(service));
    entries.contains_key(&service.id()) || is_gone && was_ours
}

fn is_terminating(observed: &Observed, namespace: &str) -> bool {
    let id = ObjectId::new("", "Namespace", None, namespace);
    observed.live_meta(&id).unwrap().deleting
}

/// The plan does not depend on the order of its input.
fn check_order(scene: &Scene, plan: &Plan) {
    let mut shuffled = scene.clone();
    shuffled.desired.manifests.reverse();
    let text = |plan: &Plan| serde_json::to_string(plan).unwrap();
    assert_eq!(text(&shuffled.plan()), text(plan));
    assert_eq!(shuffled.plan().effects(), plan.effects());
}

/// Invariants of an uninstall.
fn check_end(scene: &Scene) {
    let waiting = scene.end(&Removal::default());
    assert!(
        waiting.steps.is_empty(),
        "nothing is deleted without consent"
    );
    let plan = scene.end(&Removal {
        consented: Some(Consented::by_command()),
        ..Removal::default()
    });
    let observed = scene.observed();
    for step in &plan.steps {
        let Op::Delete(deletion) = &step.op else {
            assert!(
                matches!(step.op, Op::Patch { .. } | Op::Wait | Op::Lift),
                "{step:?}"
            );
            continue;
        };
        let id = &step.object;
        let live = observed.live_meta(id).unwrap();
        assert_eq!(deletion.uid(), live.uid);
        let is_seen = observed.is_complete(id) || observed.found.contains_key(id);
        assert!(is_seen, "{id}");
        assert!(!is_protected_kind(&id.group_kind()), "{id}");
        let entry = observed.inventory.entries.get(id);
        let is = |state| {
            entry.is_some_and(|entry| {
                entry.state == state && entry.uid.as_deref() == Some(&live.uid)
            })
        };
        match deletion.because() {
            Grant::Uninstall | Grant::DeadRegistration { .. } => assert!(is(EntryState::Applied)),
            Grant::RunTimeObject { .. } => {
                assert!(is(EntryState::Observed) || observed.found.contains_key(id));
            }
            Grant::Registration { service } => {
                assert!(is_of_ours(&observed, service));
            }
            _ => panic!("not in this plan: {id}"),
        }
    }
    // Released objects are never deleted, and deleted ones are never released.
    for id in &plan.removal.as_ref().unwrap().released {
        let mut deletions = plan.steps.iter();
        assert!(!deletions.any(|step| step.object == *id && matches!(step.op, Op::Delete(_))));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_plan_obeys_the_laws(world in world()) {
        check(&world.scene());
        check_end(&world.scene());
    }
}

/// Returns the number of edges in the plan of a large application.
#[expect(
    clippy::format_push_string,
    reason = "a text is made once, and format! cannot fail"
)]
fn edges_of(count: usize) -> usize {
    let mut git = String::from("Namespace/big: {}\nServiceAccount/big/s: {}\n");
    let mut installed = String::new();
    for index in 0..count {
        git += &format!("ConfigMap/big/c{index}: {{}}\n");
        git += &format!(
            "Deployment.apps/big/d{index}: {{spec: {{template: {{metadata: {{labels: {{app: d{index}}}}}, spec: {{serviceAccountName: s, volumes: [{{configMap: {{name: c{index}}}}}]}}}}}}}}\n"
        );
        git += &format!("Service/big/d{index}: {{spec: {{selector: {{app: d{index}}}}}}}\n");
        installed += &format!(
            "ConfigMap/web/o{index}: {{}}\nService/web/d{index}: {{}}\nDeployment.apps/web/d{index}: {{}}\n"
        );
    }
    let mut scene = Scene::new().git(&git).installed(&installed);
    for index in 0..10 {
        scene = scene.live(&format!("APIService.apiregistration.k8s.io/v{index}.x: {{spec: {{service: {{namespace: web, name: d{index}}}}}}}"));
        scene = scene.declares(&format!(
            "{{kind: APIService, group: apiregistration.k8s.io, service: d{index}}}"
        ));
    }
    let plan = scene
        .policy(|policy| policy.prune.max = pleach_formats::policy::PruneMax::Percent(100))
        .plan();
    assert!(
        plan.findings.iter().all(|finding| !finding.is_error()),
        "{:?}",
        plan.findings
    );
    plan.steps.iter().map(|step| step.needs.len()).sum()
}

#[test]
fn the_number_of_edges_grows_with_the_objects() {
    let (some, many) = (edges_of(100), edges_of(200));
    assert!(
        many < some * 5 / 2,
        "{some} edges, {many} for twice as many objects"
    );
}

/// A declared stage applies a registration early, and its Service after a
/// temporary change. A gate that closes until then must not be lifted before
/// both.
#[test]
fn a_gate_is_lifted_after_steps_that_only_appear_early() {
    let part = |text: &str, state| Part {
        text: text.to_owned(),
        state,
    };
    let world = World {
        parts: vec![
            part(
                "ValidatingWebhookConfiguration.admissionregistration.k8s.io/h0: {webhooks: [{clientConfig: {service: {namespace: web, name: a1}}, rules: [{apiGroups: ['*'], resources: [k0]}]}]}",
                33,
            ),
            part("Service/web/a1: {spec: {selector: {app: a1}}}", 0),
            part("Service/web/a2: {spec: {selector: {app: a2}}}", 10),
        ],
        overlays: vec![(10, 4, 4)],
        stages: vec![(1, 2, 18)],
        gates: vec![(0, 2)],
        ..World::default()
    };
    check(&world.scene());
}
