//! Registrations whose Service this plan removes.
//!
//! An upgrade that moves a product to another namespace leaves behind the
//! APIService and webhook configurations that its pods registered at run time:
//! no manifest has them. They are found by the Service they point at, and go
//! before the new workloads start, which would crash on them otherwise.

use std::collections::BTreeSet;

use super::Deletion;
use super::draft::{Ctx, Draft};
use super::edges::applies;
use super::model::{Action, Change, EdgeReason, Need, Op, Precondition, Until};
use crate::finding::{Finding, Kind};
use crate::inventory::EntryState;
use crate::object::ServiceRef;
use crate::observe::Registration;
use crate::order::StageName;

/// Plans the deletion of every registration that points only at Services that go.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Draft) {
    let leaving: BTreeSet<ServiceRef> = draft
        .pruned
        .iter()
        .filter(|pruned| pruned.id.is("", "Service"))
        .filter_map(|pruned| {
            Some(ServiceRef {
                namespace: pruned.id.namespace.clone()?,
                name: pruned.id.name.clone(),
            })
        })
        .collect();
    if leaving.is_empty() {
        return;
    }
    for registration in &ctx.observed.registrations {
        let id = &registration.id;
        let shipped = ctx
            .observed
            .inventory
            .entries
            .get(id)
            .is_some_and(|entry| entry.state == EntryState::Applied);
        let Some(service) = registration
            .services
            .iter()
            .find(|service| leaving.contains(service))
        else {
            continue;
        };
        if ctx.is_desired(id) || shipped {
            // Retargeted by its apply, or pruned before its backend.
            continue;
        }
        if let Some(finding) = reservation(ctx, registration, &leaving) {
            draft.findings.push(finding.on(id.clone()));
            continue;
        }
        if let Some(deletion) = Deletion::of_registration(registration, service) {
            delete(ctx, draft, registration, deletion);
        }
    }
}

/// Why a registration is left alone although its Service goes.
fn reservation(
    ctx: &Ctx<'_>,
    registration: &Registration,
    leaving: &BTreeSet<ServiceRef>,
) -> Option<Finding> {
    let note = |code: &str, message: String| {
        Some(
            Finding::warning(Kind::Policy, code, message)
                .hint("it is left in place; remove it by hand if nobody needs it"),
        )
    };
    if let Some(other) = registration
        .services
        .iter()
        .find(|service| !leaving.contains(service))
    {
        return note(
            "leftover-shared",
            format!("it also points at Service {other}, which stays"),
        );
    }
    if let Some(set) = registration
        .meta
        .part_of()
        .filter(|set| *set != ctx.apply_set)
    {
        return note(
            "leftover-foreign",
            format!("its Service goes, but it is part of another ApplySet ({set})"),
        );
    }
    if !registration.meta.owners.is_empty() {
        return note(
            "leftover-owned",
            "its Service goes, but another object owns it".to_owned(),
        );
    }
    let marks = [
        "kustomize.toolkit.fluxcd.io/name",
        "argocd.argoproj.io/tracking-id",
        "meta.helm.sh/release-name",
    ];
    let marked = marks.iter().find(|key| {
        registration.meta.labels.contains_key(**key)
            || registration.meta.annotations.contains_key(**key)
    });
    marked.and_then(|key| {
        note(
            "leftover-foreign",
            format!("its Service goes, but it carries the mark `{key}`"),
        )
    })
}

fn delete(ctx: &Ctx<'_>, draft: &mut Draft, registration: &Registration, deletion: Deletion) {
    let id = &registration.id;
    let reason = deletion.explain();
    let require = vec![
        Precondition::Uid(registration.meta.uid.clone()),
        Precondition::ResourceVersion(registration.meta.resource_version.clone()),
    ];
    draft.changes.insert(
        id.clone(),
        Change {
            object: id.clone(),
            action: Action::Delete,
            stage: Some(StageName::Workloads),
            reason: reason.clone(),
            cause: None,
            require: require.clone(),
            digest: None,
            unverified: None,
        },
    );
    let workloads: Vec<_> = draft
        .steps
        .iter()
        .filter(|step| step.stage == StageName::Workloads && applies(&step.op))
        .map(|step| step.id)
        .collect();
    let step = draft.step(
        ctx,
        StageName::Workloads,
        id.clone(),
        Op::Delete(deletion),
        &reason,
    );
    draft.at(step).require = require;
    draft.at(step).until = Some(Until::Absent { pods: None });
    for workload in workloads {
        draft.edge(step, Need::Absent, workload, EdgeReason::Leftover);
    }
}
