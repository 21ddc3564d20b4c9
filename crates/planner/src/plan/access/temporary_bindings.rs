//! Temporary bindings for a changed `roleRef`. The field is immutable, so the
//! binding is recreated. Until everything is ready, a second binding under
//! another name grants the previous role to the pods that still run.

use serde_json::{Value, json};

use super::List;
use crate::plan::{
    draft::Ctx,
    model::{Action, Course, EdgeReason, Need, Op, Overlay, StepId},
    phases::Decided,
};
use pleach_model::object::{Digest, NonSecret, ObjectId, canonical_json};
use pleach_model::order::StageName;
use pleach_state::overlay::{OnFailure, OverlayContent, OverlayId};

/// Name of the overlay in plans, in the journal and in the status.
const NAME: &str = "previous-role";

/// A temporary binding and the step that creates it.
pub(in crate::plan) struct TemporaryBinding {
    pub(super) overlay: usize,
    pub(super) made: Option<StepId>,
}

/// Adds a temporary binding for each binding that is recreated.
pub(super) fn add(ctx: &Ctx<'_>, draft: &mut Decided) {
    let recreated: Vec<ObjectId> = draft
        .changes
        .values()
        .filter(|change| change.action == Action::Recreate)
        .filter(|change| List::of(&change.object) == Some(List::Subjects))
        .map(|change| change.object.clone())
        .collect();
    for id in recreated {
        let Some(live) = ctx.observed.full.get(&id) else {
            continue;
        };
        if let Some((object, body)) = temporary_binding(&id, live.value()) {
            make(ctx, draft, &id, &object, body);
        }
    }
}

/// Retains temporary bindings of earlier runs until this run removes them.
pub(super) fn keep(ctx: &Ctx<'_>, draft: &mut Decided) {
    for (id, journaled) in &ctx.observed.journal.overlays {
        if journaled.is_made() {
            draft.overlays.push(Overlay {
                id: id.clone(),
                object: journaled.object.clone(),
                content: journaled.into(),
                course: Course::Kept,
                from: None,
                until: StageName::Shrink,
                undo: vec![Op::Lift],
                on_failure: journaled.on_failure.clone(),
            });
            draft.temporary_bindings.push(TemporaryBinding {
                overlay: draft.overlays.len() - 1,
                made: None,
            });
        }
    }
}

/// Builds the binding that grants service accounts their previous role. Users
/// lose access immediately.
fn temporary_binding(id: &ObjectId, live: &Value) -> Option<(ObjectId, Value)> {
    let subjects = List::Subjects.items(live).iter();
    let subjects: Vec<&Value> = subjects
        .filter(|subject| List::Subjects.is_of_pods(subject))
        .collect();
    if subjects.is_empty() {
        return None;
    }
    let role = Digest::of(&canonical_json(&live["roleRef"])).short();
    // RBAC names may have up to 253 characters.
    let start: String = id.name.chars().take(200).collect();
    let name = format!(
        "{start}.pleach-{NAME}.{}",
        role.trim_start_matches("sha256:")
    );
    let object = ObjectId::new(&id.group, &id.kind, id.namespace.as_deref(), &name);
    let mut metadata = json!({"name": name, "labels": {"app.kubernetes.io/managed-by": "pleach"}});
    if let Some(namespace) = &id.namespace {
        metadata["namespace"] = json!(namespace);
    }
    let body = json!({
        "apiVersion": live["apiVersion"],
        "kind": id.kind,
        "metadata": metadata,
        "roleRef": live["roleRef"],
        "subjects": subjects,
    });
    Some((object, body))
}

fn make(ctx: &Ctx<'_>, draft: &mut Decided, id: &ObjectId, object: &ObjectId, body: Value) {
    let overlay = OverlayId::new(NAME, object, &body);
    if ctx.observed.journal.overlays.contains_key(&overlay)
        && ctx.observed.targets.contains_key(object)
    {
        return;
    }
    let mut temporary_bindings = std::mem::take(&mut draft.temporary_bindings);
    temporary_bindings.retain(|one| draft.overlays[one.overlay].id != overlay);
    draft.temporary_bindings = temporary_bindings;
    draft.overlays.push(Overlay {
        id: overlay.clone(),
        object: object.clone(),
        content: OverlayContent::Binding {
            body: NonSecret(body.clone()),
        },
        course: Course::Made,
        from: Some(StageName::Access),
        until: StageName::Shrink,
        undo: vec![Op::Lift],
        on_failure: OnFailure::Keep { max_age: None },
    });
    let index = draft.overlays.len() - 1;
    let reason = format!(
        "the roleRef of {id} changes; access that the running version may need is retained until the end"
    );
    let patch = NonSecret(body);
    let made = draft.step(
        ctx,
        StageName::Access,
        object.clone(),
        Op::Set { patch },
        &reason,
    );
    draft.at(made).overlay = Some(overlay);
    let own = draft.steps.iter();
    let deletions: Vec<StepId> = own
        .filter(|step| step.object == *id && matches!(step.op, Op::Delete(_)))
        .map(|step| step.id)
        .collect();
    for deletion in deletions {
        draft.edge(made, Need::Applied, deletion, EdgeReason::Overlay);
    }
    draft.temporary_bindings.push(TemporaryBinding {
        overlay: index,
        made: Some(made),
    });
}
