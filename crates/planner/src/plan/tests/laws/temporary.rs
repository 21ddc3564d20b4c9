//! Invariants of temporary changes (I5).

use std::collections::BTreeSet;

use crate::observe::Observed;
use crate::plan::{
    Action, Course, Grant, Op, Overlay, Plan, Step, StepId, Until, tests::scene::Scene,
};
use pleach_formats::gate::Gate;
use pleach_model::finding::Finding;
use pleach_model::object::ObjectId;
use pleach_model::order::StageName;
use pleach_state::overlay::OverlayId;

/// Checks the invariants of temporary changes (I5).
pub(super) fn check_overlays(
    scene: &Scene,
    plan: &Plan,
    observed: &Observed,
    ancestors: &[BTreeSet<StepId>],
) {
    let known: BTreeSet<&OverlayId> = plan.overlays.iter().map(|one| &one.id).collect();
    assert_eq!(known.len(), plan.overlays.len());
    for id in observed.journal.overlays.keys() {
        assert!(known.contains(id), "{id:?} is forgotten");
    }
    for step in &plan.steps {
        let is_temporary = matches!(step.op, Op::Set { .. } | Op::Close { .. } | Op::Lift);
        assert_eq!(step.overlay.is_some(), is_temporary);
        if let Some(id) = &step.overlay {
            // No object besides the targets is changed.
            let overlay = plan.overlays.iter().find(|one| one.id == *id).unwrap();
            assert_eq!(overlay.object, step.object);
            let is_target = observed.targets.contains_key(&step.object);
            assert!(is_target || overlay.is_gate() || overlay.course == Course::Dropped);
        }
    }
    check_guards(scene, plan, observed, ancestors);
    for overlay in &plan.overlays {
        assert_eq!(overlay.undo, [Op::Lift]);
        if overlay.is_gate() {
            check_gate(plan, overlay, ancestors);
            continue;
        }
        let with = |is: fn(&Op) -> bool| -> Vec<&Step> {
            let steps = plan.steps.iter();
            steps
                .filter(|step| step.overlay.as_ref() == Some(&overlay.id) && is(&step.op))
                .collect()
        };
        let sets = with(|op| matches!(op, Op::Set { .. }));
        let lifts = with(|op| matches!(op, Op::Lift));
        assert_eq!(sets.len(), usize::from(overlay.course == Course::Made));
        let is_removed = plan
            .steps
            .iter()
            .any(|step| step.object == overlay.object && matches!(step.op, Op::Delete(_)));
        assert!(
            lifts.len() == 1 || is_removed && lifts.is_empty(),
            "{overlay:?}"
        );
        for lift in &lifts {
            for set in &sets {
                assert!(ancestors[lift.id.0].contains(&set.id));
            }
            if overlay.course == Course::Dropped {
                continue;
            }
            // The undo never precedes the end of the last stage. A scaling ends
            // after the apply of its object.
            let own = |step: &&Step| step.object == overlay.object;
            let scales = overlay.id.name().starts_with('s');
            let applies = plan
                .steps
                .iter()
                .filter(|step| step.op.applies() && step.stage <= StageName::Ungate);
            for step in applies.filter(|step| {
                if scales {
                    own(step)
                } else {
                    step.stage <= overlay.until
                }
            }) {
                assert!(
                    ancestors[lift.id.0].contains(&step.id),
                    "{} before {}",
                    lift.object,
                    step.object
                );
            }
        }
        let hands_over = overlay.id.name() == "handover";
        for set in &sets {
            let from = overlay.from.as_ref().unwrap();
            for step in plan.steps.iter().filter(|step| step.op.applies()) {
                let comes_after = if hands_over {
                    is_successor(scene, &overlay.object, &step.object)
                } else {
                    step.stage > *from && !is_needed_before(plan, ancestors, step, from)
                };
                assert!(!comes_after || ancestors[step.id.0].contains(&set.id));
            }
            // Only workloads that are deleted are emptied.
            assert!(!hands_over || is_removed, "{overlay:?}");
        }
    }
}

/// Returns whether a step of this or an earlier declared stage needs the step,
/// which then runs earlier than its own stage.
fn is_needed_before(
    plan: &Plan,
    ancestors: &[BTreeSet<StepId>],
    step: &Step,
    stage: &StageName,
) -> bool {
    plan.steps.iter().any(|one| {
        let is_assigned = matches!(one.stage, StageName::Declared(_));
        is_assigned && one.stage <= *stage && ancestors[one.id.0].contains(&step.id)
    })
}

/// Returns whether an object is the successor in a declared move.
fn is_successor(scene: &Scene, old: &ObjectId, new: &ObjectId) -> bool {
    old.group_kind() == new.group_kind()
        && old.name == new.name
        && scene.desired.sequence.moves.iter().any(|one| {
            old.namespace.as_ref() == Some(&one.from) && new.namespace.as_ref() == Some(&one.to)
        })
}

/// A gate closes before any registration that it replaces is deleted, and is
/// lifted afterwards; otherwise the plan is refused. A registration that
/// another one in git may replace needs no gate.
fn check_guards(scene: &Scene, plan: &Plan, observed: &Observed, ancestors: &[BTreeSet<StepId>]) {
    let closes: Vec<(&Step, &Gate)> = plan
        .steps
        .iter()
        .filter_map(|step| match &step.op {
            Op::Close { gate } => Some((step, gate)),
            _ => None,
        })
        .collect();
    for step in &plan.steps {
        let Op::Delete(deletion) = &step.op else {
            continue;
        };
        let needs_gate = match deletion.because() {
            Grant::Registration { .. } => true,
            Grant::Superseded { .. } => {
                let mut manifests = scene.desired.manifests.iter();
                !manifests.any(|one| one.id().kind == step.object.kind)
            }
            Grant::TakenOver { .. } => false,
            _ => continue,
        };
        let mut registrations = observed.registrations.iter();
        let registration = registrations.find(|one| one.id == step.object).unwrap();
        for rule in &registration.intercepts {
            let covering = closes.iter().filter(|(_, gate)| {
                let mut closed = gate.closed.iter();
                closed.any(|closed| closed.covers(rule))
            });
            let (mut is_covered, mut is_guarded) = (false, false);
            for (close, _) in covering {
                is_covered = true;
                let mut overlays = plan.overlays.iter();
                let overlay = overlays.find(|one| close.overlay.as_ref() == Some(&one.id));
                if overlay.unwrap().until < step.stage {
                    continue;
                }
                is_guarded = true;
                assert!(
                    ancestors[step.id.0].contains(&close.id),
                    "{} before {}",
                    step.object,
                    close.object
                );
                let mut lifts = plan
                    .steps
                    .iter()
                    .filter(|one| one.op == Op::Lift && one.overlay == close.overlay);
                assert!(lifts.all(|lift| ancestors[lift.id.0].contains(&step.id)));
            }
            let is_reported =
                |one: &Finding| ["gate-too-late", "not-guarded"].contains(&one.code.as_str());
            assert!(
                !needs_gate || !is_covered || is_guarded || plan.findings.iter().any(is_reported),
                "{} is not guarded",
                step.object
            );
        }
    }
}

/// Guarded writes run while the gate is closed, and it stays closed after an
/// incomplete change.
fn check_gate(plan: &Plan, overlay: &Overlay, ancestors: &[BTreeSet<StepId>]) {
    let steps = plan.steps.iter();
    let (closes, lifts): (Vec<&Step>, Vec<&Step>) = steps
        .filter(|step| step.overlay.as_ref() == Some(&overlay.id))
        .partition(|step| matches!(step.op, Op::Close { .. }));
    let is_dropped = overlay.course == Course::Dropped;
    assert_eq!(closes.len(), usize::from(!is_dropped));
    let is_blocked = plan.count(Action::Blocked) > 0;
    assert_eq!(lifts.len(), usize::from(is_dropped || !is_blocked));
    for step in closes.iter().chain(&lifts) {
        assert!(matches!(step.until, Some(Until::Probe { .. })));
    }
    let applies = || {
        let steps = plan.steps.iter();
        steps.filter(|step| step.op.applies() && step.stage <= StageName::Ungate)
    };
    for close in &closes {
        let is_declared = ["g0", "handover"].contains(&overlay.id.name());
        for step in applies() {
            let is_guarded = if is_declared {
                let is_later = |from: &StageName| {
                    step.stage > *from && !is_needed_before(plan, ancestors, step, from)
                };
                overlay.from.as_ref().is_some_and(is_later)
            } else {
                step.object.kind == "CustomResourceDefinition"
                    && plan.changes.iter().any(|change| {
                        change.object == step.object && change.action == Action::Create
                    })
            };
            assert!(!is_guarded || ancestors[step.id.0].contains(&close.id));
        }
        for lift in &lifts {
            assert!(ancestors[lift.id.0].contains(&close.id));
            for step in applies().filter(|step| step.stage <= overlay.until) {
                assert!(ancestors[lift.id.0].contains(&step.id));
            }
        }
    }
}
