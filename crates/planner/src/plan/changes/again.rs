//! Recreates APIServices that block the deletion of a namespace. A namespace is
//! deleted only when every registered API answers, and the backend of this API
//! is in the namespace.

use super::emit::{change, create};
use crate::plan::{
    Deletion, Grant,
    draft::{Ctx, Draft},
    model::{Action, EdgeReason, Need, Op, Precondition, StepId, Until},
    namespace::implied,
    phases::Decided,
};
use pleach_model::object::{Manifest, ObjectId, ServiceRef};
use pleach_state::live::LiveMeta;

/// Returns the deletion of an APIService whose Service is deleted with its
/// namespace, if the release creates that namespace again.
pub(super) fn deletion(ctx: &Ctx<'_>, manifest: &Manifest, live: &LiveMeta) -> Option<Deletion> {
    let id = manifest.id();
    if !id.is("apiregistration.k8s.io", "APIService") {
        return None;
    }
    let entry = ctx.observed.inventory.entries.get(id)?;
    let mut registrations = ctx.observed.registrations.iter();
    let registration = registrations.find(|one| one.id == *id)?;
    let service = registration.services.first()?;
    let namespace = namespace_of(service);
    let comes_again = ctx.is_desired(&namespace) || implied(ctx).as_ref() == Some(&namespace);
    if !comes_again || !ctx.is_terminating(&service.namespace) {
        return None;
    }
    Deletion::of_terminating_namespace(ctx.member(entry, live), service)
}

/// Plans the deletion, and the creation once the backend exists again.
pub(super) fn decide(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    manifest: &Manifest,
    live: &LiveMeta,
    deletion: Deletion,
) {
    let id = manifest.id();
    let why = deletion.explain();
    change(ctx, draft, manifest, Action::Recreate, &why);
    let stage = match deletion.because() {
        Grant::EndingNamespace { service } => ctx.stage_of(&namespace_of(service)),
        _ => ctx.stage_of(id),
    };
    let delete = draft.step(ctx, stage, id.clone(), Op::Delete(deletion), &why);
    draft.at(delete).require = vec![Precondition::Uid(live.uid.clone())];
    draft.at(delete).until = Some(Until::Absent { pods: None });
    let created = create(ctx, draft, manifest, "its namespace exists again");
    // Uses `Leftover`, not `SameObject`: dependencies of the creation do not
    // apply to the deletion.
    draft.edge(delete, Need::Absent, created, EdgeReason::Leftover);
}

/// Makes waits for the end of a namespace wait for these deletions.
pub(in crate::plan) fn await_deletions(draft: &mut Decided) {
    let deleted = draft.steps.iter().filter_map(|step| match &step.op {
        Op::Delete(deletion) => match deletion.because() {
            Grant::EndingNamespace { service } => Some((step.id, namespace_of(service))),
            _ => None,
        },
        _ => None,
    });
    let deleted: Vec<(StepId, ObjectId)> = deleted.collect();
    for (deletion, namespace) in deleted {
        let waits = draft.steps.iter().filter(|step| {
            step.object == namespace && matches!(step.until, Some(Until::Absent { .. }))
        });
        let waits: Vec<StepId> = waits.map(|step| step.id).collect();
        for wait in waits {
            draft.edge(deletion, Need::Absent, wait, EdgeReason::Leftover);
        }
    }
}

fn namespace_of(service: &ServiceRef) -> ObjectId {
    ObjectId::new("", "Namespace", None, &service.namespace)
}
