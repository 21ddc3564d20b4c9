//! Registrations of pods that are deleted in a move and that `runtimeObjects`
//! does not declare. The new version may not need them. The gate stays closed
//! for a short time in which they may come back, and then is lifted.

use std::collections::BTreeSet;

use jiff::SignedDuration;

use super::{Unregistered, recreated_in, unregistered};
use crate::plan::{
    draft::{Ctx, Draft},
    model::{StepId, Until},
};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{ObjectId, ServiceRef};
use pleach_model::order::StageName;

/// Maximum wait; a quarter of the timeout if that is less.
const A_WHILE: SignedDuration = SignedDuration::from_mins(1);

fn patience(ctx: &Ctx<'_>) -> SignedDuration {
    let share = (ctx.policy.timeout / 4).max(SignedDuration::from_secs(1));
    share.min(A_WHILE)
}

/// Returns undeclared registrations that are deleted before workloads start,
/// with their Service and its successors.
fn undeclared(ctx: &Ctx<'_>, draft: &Draft) -> Vec<(ObjectId, ServiceRef, Vec<ServiceRef>)> {
    let mut found = Vec::new();
    for Unregistered {
        object, service, ..
    } in unregistered(draft)
    {
        let kind = object.group_kind();
        let mut declared = ctx.desired.runtime_objects.iter();
        let is_declared = declared.any(|one| {
            let is_named = one.service.as_ref() == Some(&service.name)
                || one.name.as_ref() == Some(&object.name);
            is_named && one.group_kind().as_ref() == Some(&kind)
        });
        let come = recreated_in(ctx, &service).into_iter();
        let come: Vec<ServiceRef> = come
            .filter_map(|(_, namespace)| {
                Some(ServiceRef {
                    namespace: namespace?,
                    name: service.name.clone(),
                })
            })
            .collect();
        if !is_declared && !come.is_empty() {
            found.push((object, service, come));
        }
    }
    found
}

/// Reports the length of the wait.
pub(super) fn report(ctx: &Ctx<'_>, draft: &mut Draft) {
    for (object, service, _) in undeclared(ctx, draft) {
        let what = format!(
            "is deleted, and the bundle does not declare that the pods behind Service {} register it again",
            service.name
        );
        let message = if ctx.policy.wait {
            let seconds = patience(ctx).as_secs();
            format!(
                "{what}: pleach waits for it for up to {seconds} s, then lifts the gate in any case"
            )
        } else {
            format!(
                "{what}: the run finishes when the pods are ready, whether they registered it or not"
            )
        };
        let finding = Finding::warning(Kind::Cluster, "successor-undeclared", message);
        let kind = object.group_kind();
        let hint = format!(
            "declare it in the bundle: runtimeObjects: [{{kind: {}, group: {}, service: {}}}]; with `optional: true` pleach does not wait for it",
            kind.kind, kind.group, service.name
        );
        draft.findings.push(finding.on(object).hint(hint));
    }
}

/// Adds the waits, which succeed even after a time-out.
pub(in crate::plan) fn waits(ctx: &Ctx<'_>, draft: &mut Draft) -> Vec<StepId> {
    let undeclared = undeclared(ctx, draft).into_iter();
    let awaited: BTreeSet<_> = undeclared
        .flat_map(|(object, _, come)| {
            let kind = object.group_kind();
            come.into_iter().map(move |service| (service, kind.clone()))
        })
        .collect();
    let deadline = patience(ctx);
    let mut waits = Vec::new();
    for (service, kind) in awaited {
        let reason = format!(
            "its pods may register the deleted object again; after {} s the run continues without it",
            deadline.as_secs()
        );
        let id = service.id();
        let until = Some(Until::Registered {
            kind,
            service,
            optional: true,
        });
        let wait = draft.wait(ctx, StageName::Verify, id, until, &reason);
        draft.at(wait).deadline = deadline;
        waits.push(wait);
    }
    waits
}
