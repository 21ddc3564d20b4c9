//! Services that are deleted although a remaining object references them.
//!
//! A CRD stays because it still has custom resources, a registration because a
//! user asked for it. Without their backend they break their clients.

use std::collections::BTreeSet;

use super::service_ref;
use super::verdict::consent;
use crate::crd::{converter, is_crd};
use crate::observe::Observed;
use crate::plan::{
    draft::{Ctx, Draft, Pruned},
    model::Desired,
    protection::{installed_version, protected},
    removal::{Consented, Handed, Successor, successor},
};
use pleach_model::finding::{Finding, Kind, overridable::BACKEND_DELETED};
use pleach_model::object::{Manifest, ObjectId, ServiceRef, annotations};
use pleach_state::inventory::{EntryState, Override};

impl Desired {
    /// Returns undesired CRDs that must be read, because a deleted Service may
    /// be their conversion webhook.
    pub fn undesired_crds(&self, observed: &Observed) -> Vec<ObjectId> {
        let desired: BTreeSet<&ObjectId> = self.manifests.iter().map(Manifest::id).collect();
        let left = || {
            let recorded = observed.inventory.entries.keys();
            recorded.filter(|id| !desired.contains(id) && observed.live_meta(id).is_some())
        };
        if !left().any(|id| id.is("", "Service")) {
            return Vec::new();
        }
        left().filter(|id| is_crd(id)).cloned().collect()
    }
}

/// Refuses to delete a Service that a remaining member references.
pub(in crate::plan) fn check(ctx: &Ctx<'_>, draft: &mut Draft, pruned: &[Pruned]) {
    let going: BTreeSet<ServiceRef> = pruned
        .iter()
        .filter_map(|one| service_ref(&one.id))
        .collect();
    if going.is_empty() {
        return;
    }
    let deleted: BTreeSet<&ObjectId> = pruned.iter().map(|one| &one.id).collect();
    let stays =
        |id: &ObjectId| !deleted.contains(id) && !ctx.is_desired(id) && !is_handed_over(ctx, id);
    let observed = ctx.observed;
    let entries = &observed.inventory.entries;
    for id in entries.keys().filter(|id| is_crd(id) && stays(id)) {
        match observed.full.get(id) {
            Some(live) => {
                if let Some(service) = converter(live.value()).filter(|one| going.contains(one)) {
                    report(ctx, draft, id, &service);
                }
            }
            None if observed.live_meta(id).is_none() && observed.is_complete(id) => {}
            None => draft.findings.push(unread(id)),
        }
    }
    for registration in &observed.registrations {
        let id = &registration.id;
        let entry = entries.get(id);
        // All others are deleted with their Service, or a finding explains why
        // not.
        let shipped = entry.is_some_and(|entry| entry.state == EntryState::Applied);
        if !shipped || !stays(id) {
            continue;
        }
        let services = registration.services.iter();
        for service in services.filter(|one| going.contains(*one)) {
            report(ctx, draft, id, service);
        }
    }
}

/// Returns whether another release takes over the object before the Service is
/// deleted.
fn is_handed_over(ctx: &Ctx<'_>, id: &ObjectId) -> bool {
    let waits = ctx.removal.and_then(|removal| removal.consented.as_ref());
    let is_out_of_order = waits.is_some_and(Consented::is_out_of_order);
    match successor_of(ctx, id) {
        Some((Handed::Taken, _)) => true,
        Some((Handed::Waiting, _)) => !is_out_of_order,
        None => false,
    }
}

/// Returns the release that takes or took over an object.
fn successor_of<'c>(ctx: &Ctx<'c>, id: &ObjectId) -> Option<(Handed, &'c Successor)> {
    let successors = match ctx.removal {
        Some(removal) => &removal.successors,
        None => &ctx.desired.terms.successors,
    };
    successor(successors, id, ctx.observed.live_meta(id))
}

/// Reports what would break; it is an error unless a consent overrides it.
fn report(ctx: &Ctx<'_>, draft: &mut Draft, id: &ObjectId, service: &ServiceRef) {
    let harm = match id.kind.as_str() {
        "CustomResourceDefinition" => {
            "this Service converts its objects: without it they can only be read and written in their stored version"
        }
        "APIService" => "this Service serves its API: without it no client can use the API",
        _ => {
            "this Service serves its webhooks: without it the writes that they intercept are refused or not checked"
        }
    };
    let message = format!("is deleted, but {id} stays; {harm}");
    let service = service.id();
    let (release, from) = (&ctx.desired.name.release, installed_version(ctx));
    let to = &ctx.desired.version;
    let mut consents = ctx.policy.consent.iter();
    let overriding = consents.find(|consent| {
        consent.allows_override_for((BACKEND_DELETED, &service), release, from, to)
    });
    let finding = if let Some(overriding) = overriding {
        let reason = overriding.reason.clone().unwrap_or_default();
        let message = format!("check {BACKEND_DELETED} is overridden ({reason}): {message}");
        let check = BACKEND_DELETED.to_owned();
        let one = Override { check, reason };
        if !draft.overrides.contains(&one) {
            draft.overrides.push(one);
        }
        Finding::warning(Kind::Policy, "check-overridden", message)
    } else {
        Finding::error(Kind::Policy, BACKEND_DELETED, message).hint(ways_out(ctx, id, &service))
    };
    draft.findings.push(finding.on(service));
}

/// Returns hints: delete the remaining object, keep the Service, or override.
fn ways_out(ctx: &Ctx<'_>, id: &ObjectId, service: &ObjectId) -> String {
    if let Some((_, successor)) = successor_of(ctx, id) {
        let name = &successor.name;
        return format!(
            "{id} is handed over to release {name}: run `pleach apply {}/{}` first",
            name.environment, name.release
        );
    }
    let file = ctx.environment_file();
    let keep = match ctx.removal {
        Some(_) => "",
        None => "; or keep the Service in git",
    };
    let action = format!("override, check: {BACKEND_DELETED}");
    let overriding = consent(ctx, &action, service);
    let overriding = overriding.trim_end_matches('}');
    format!(
        "{}{keep}; or, if the Service is not needed, add to `consent` in {file}: {overriding}, reason: …}}",
        without(ctx, id, &file)
    )
}

/// Returns the hint to delete the remaining object.
fn without(ctx: &Ctx<'_>, id: &ObjectId, file: &str) -> String {
    let entry = ctx.observed.inventory.entries.get(id);
    let live = ctx.observed.live_meta(id);
    let (Some(entry), Some(live)) = (entry, live) else {
        return format!("change or delete {id} first");
    };
    let is_ours = entry.state == EntryState::Applied
        && entry.uid.as_deref() == Some(&live.uid)
        && live.part_of().is_none_or(|set| set == ctx.apply_set);
    let disabled = live.annotations.get(annotations::PRUNE);
    if is_ours && disabled.is_some_and(|value| value == "disabled") {
        format!("to delete {id} as well, remove its annotation pleach.dev/prune")
    } else if is_ours && protected(ctx, id, Some(entry)).is_some() {
        format!(
            "to delete {id} as well, add to `consent` in {file}: {}",
            consent(ctx, "delete", id)
        )
    } else {
        format!("change {id} first so that it does not need the Service")
    }
}

/// Refuses a deletion because an unread CRD may need the Service (I1).
fn unread(id: &ObjectId) -> Finding {
    let message = format!(
        "{id} stays and could not be read: it is unknown whether a deleted Service converts its objects"
    );
    Finding::error(Kind::Cluster, "backend-unknown", message)
        .hint("make sure that pleach can read it")
}
