//! No step leaves the namespaces and kinds of `allow`, except gates over kinds
//! of the release.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::json;

use super::world::world;
use crate::allow::Allow;
use crate::plan::{Action, Op, Plan, Step, tests::scene::Scene};
use pleach_formats::file::{AllowList, ClusterScoped};
use pleach_formats::gate;
use pleach_model::object::ObjectId;
use pleach_state::overlay::OverlayId;

/// Returns a patch of a policy; some look like a gate.
fn patch(number: u8) -> serde_json::Value {
    let closed = match number {
        0 => return json!({"spec": {"failurePolicy": "Ignore"}}),
        1 => json!([]),
        2 => json!([{"groups": [], "resources": []}]),
        _ => json!([{"groups": ["x.org"], "resources": ["k1"]}]),
    };
    json!({"release": {"environment": "e", "release": "r"}, "name": "g0", "version": "v1",
        "closed": closed, "operations": [], "exempt": [], "state": "pleach-system"})
}

/// Builds a scene with patches of policies, which an older version accepted.
fn patched(mut scene: Scene, patches: &[(bool, u8)]) -> Scene {
    for (number, (is_own, text)) in patches.iter().enumerate() {
        let name = if *is_own { "e.r.g0" } else { "images" };
        let key = format!("{}.{}/{name}", gate::POLICY, gate::GROUP);
        scene = scene.live(&format!("{key}: {{}}")).overlay(&format!(
            "{{name: p{number}, target: {{kind: {}, group: {}, name: {name}}}, patch: {}, from: verify, until: verify}}",
            gate::POLICY,
            gate::GROUP,
            patch(*text),
        ));
    }
    scene
}

/// Returns whether a step belongs to a gate that only closes kinds of the plan.
fn is_own_gate(plan: &Plan, step: &Step) -> bool {
    let overlay = plan.overlay_of(step).unwrap();
    let Some(gate) = overlay.content.gate() else {
        return false;
    };
    let kinds: BTreeSet<String> = plan
        .changes
        .iter()
        .filter(|change| change.object.kind == "CustomResourceDefinition")
        .filter(|change| !matches!(change.action, Action::Blocked | Action::Skip))
        .map(|change| change.object.name.clone())
        .collect();
    let mut closed = gate.closed.iter().flat_map(|closed| {
        let groups = closed.groups.iter();
        groups.flat_map(|group| {
            let plurals = closed.resources.iter();
            plurals.map(move |plural| format!("{plural}.{group}"))
        })
    });
    matches!(step.op, Op::Close { .. } | Op::Lift)
        && step.object == gate.id()
        && overlay.id == OverlayId::of_gate(&gate.name, &gate.id())
        && closed.clone().next().is_some()
        && closed.all(|kind| kinds.contains(&kind))
}

fn check(plan: &Plan, allow: &Allow) {
    let refused: BTreeSet<ObjectId> = allow
        .check(plan)
        .into_iter()
        .filter_map(|finding| finding.object)
        .collect();
    for step in &plan.steps {
        let is_barrier = step.object.is("pleach.dev", "Release") && step.op == Op::Wait;
        let passes = is_barrier || allow.permits(&step.object) || refused.contains(&step.object);
        assert!(passes || is_own_gate(plan, step), "{step:?}");
    }
    for change in &plan.changes {
        let id = &change.object;
        let passes = change.action == Action::Skip || allow.permits(id);
        assert!(passes || refused.contains(id), "{id}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_step_outside_of_allow_passes(
        world in world(),
        patches in prop::collection::vec((any::<bool>(), 0..4_u8), 0..3),
        defines in any::<bool>(),
    ) {
        let kinds = defines.then(|| vec![ClusterScoped::Kind("CustomResourceDefinition".to_owned())]);
        let allow = Allow::new(&AllowList {
            namespaces: Some(vec!["web".to_owned()]),
            cluster_scoped: kinds,
        });
        check(&patched(world.scene(), &patches).plan(), &allow);
    }
}
