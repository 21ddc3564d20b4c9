//! Dry-run refusals caused by objects that this plan replaces or adds.
//!
//! The present CRDs and webhooks answer a dry run. They may refuse a custom
//! resource that their new versions accept and that this plan applies later.
//! Examples are a new field, or a version that only the next operator can
//! install. Such a refusal proves nothing. The object counts as unverified, and
//! the server decides when it is applied.

use super::Ctx;
use crate::observe::{ApiRefusal, Prediction, Unverified};
use crate::plan::{
    edges::{answering, registered},
    stale_registrations,
};
use pleach_formats::gate::is_policy;
use pleach_model::object::{DesiredDigest, Manifest, ObjectId, ServiceRef};
use pleach_state::inventory::EntryState;

/// Prefix of the server's message about fields that a CRD lacks.
const UNKNOWN_FIELD: &str = "failed to create typed patch object";

/// Returns the reason why the dry run of an object proves nothing; `None` if it
/// does.
pub(super) fn unverified(ctx: &Ctx<'_>, manifest: &Manifest) -> Option<Unverified> {
    match ctx.observed.predicted.get(manifest.id())? {
        Prediction::Unverified(why) => Some(why.clone()),
        Prediction::Refused(refusal) => {
            if let Some(role) = coming_role(ctx, manifest.id(), refusal) {
                return Some(Unverified::RoleMissing(role.name.clone()));
            }
            let gate = closed_by(ctx, refusal).map(Unverified::Gate);
            gate.or_else(|| {
                is_outdated(ctx, manifest.id(), refusal)
                    .then(|| Unverified::PreviousRelease(refusal.message.clone()))
            })
        }
        _ => None,
    }
}

/// Returns the missing role because of which a binding is refused, if the
/// release contains the role. The server reads the role to check whether the
/// user has its permissions.
fn coming_role<'a>(ctx: &'a Ctx<'_>, id: &ObjectId, refusal: &ApiRefusal) -> Option<&'a ObjectId> {
    let role = ctx.facts.get(id)?.role.as_ref()?;
    let comes = ctx.is_desired(role) && ctx.observed.live_meta(role).is_none();
    (refusal.code == 404 && comes).then_some(role)
}

/// Returns the gate of an earlier run of this release that caused a refusal.
fn closed_by(ctx: &Ctx<'_>, refusal: &ApiRefusal) -> Option<String> {
    let journaled = ctx.observed.journal.overlays.values();
    let mut gates = journaled.map(|one| &one.object).filter(|id| is_policy(id));
    let refuses = |gate: &&ObjectId| {
        let text = format!("ValidatingAdmissionPolicy '{}' with binding ", gate.name);
        refusal.message.contains(&text)
    };
    gates.find(refuses).map(|gate| gate.name.clone())
}

/// Returns whether the source of a refusal is replaced before the custom
/// resource is applied.
fn is_outdated(ctx: &Ctx<'_>, id: &ObjectId, refusal: &ApiRefusal) -> bool {
    let Some((crd, _)) = ctx.crd(&id.group_kind()) else {
        return false;
    };
    if let Some(webhook) = denied_by(&refusal.message) {
        return changes_version(ctx, webhook) || disappears_before(ctx, webhook);
    }
    let is_invalid = matches!(refusal.code, 400 | 422)
        || refusal.code == 500 && refusal.message.starts_with(UNKNOWN_FIELD);
    is_invalid && is_changed(ctx, crd)
}

/// Returns the webhook that caused a refusal.
fn denied_by(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once("admission webhook \"")?;
    let (name, rest) = rest.split_once('"')?;
    rest.starts_with(" denied the request").then_some(name)
}

/// Returns whether another version will serve a webhook of the release, or one
/// that its pods registered. This includes a version that an unfinished run
/// already started.
fn changes_version(ctx: &Ctx<'_>, webhook: &str) -> bool {
    let is_begun = is_begun(ctx);
    let mut registrations = ctx
        .facts
        .iter()
        .filter(|(id, facts)| !facts.intercepts.is_empty() && has_webhook(ctx, id, webhook));
    let comes = |workload: &ObjectId| is_begun || is_changed(ctx, workload);
    registrations.any(|(id, facts)| answering(ctx, id, facts).into_iter().any(comes))
        || registered(ctx)
            .into_iter()
            .filter(|one| one.webhooks.iter().any(|name| name == webhook))
            .flat_map(|one| &one.services)
            .any(|service| ctx.backends(service).into_iter().any(comes))
}

/// Returns whether git has a webhook in a configuration.
fn has_webhook(ctx: &Ctx<'_>, id: &ObjectId, webhook: &str) -> bool {
    let value = ctx.manifests.get(id).map(|manifest| manifest.value());
    let webhooks = value
        .as_ref()
        .and_then(|value| value["webhooks"].as_array());
    webhooks
        .into_iter()
        .flatten()
        .any(|one| one["name"] == webhook)
}

/// Returns whether a webhook was removed from the release and disappears before
/// the objects that it intercepts. Its configuration is rewritten first, or
/// deleted with the pods behind it or in favor of another one.
fn disappears_before(ctx: &Ctx<'_>, webhook: &str) -> bool {
    let observed = ctx.observed;
    let mut registrations = observed.registrations.iter();
    registrations.any(|one| {
        if !one.webhooks.iter().any(|name| name == webhook) {
            return false;
        }
        if ctx.is_desired(&one.id) {
            return !has_webhook(ctx, &one.id, webhook) && is_changed(ctx, &one.id);
        }
        let entry = observed.inventory.entries.get(&one.id);
        let is_ours = entry.is_some_and(|entry| entry.state == EntryState::Applied);
        let mut services = one.services.iter();
        is_ours
            && (stale_registrations::replacement(ctx, one).is_some()
                || services.any(|service| are_all_replaced(ctx, service)))
    })
}

/// Returns whether all pods behind a Service are replaced by this version, or
/// an unfinished run already started that.
fn are_all_replaced(ctx: &Ctx<'_>, service: &ServiceRef) -> bool {
    let behind = stale_registrations::behind(ctx, service);
    let is_begun = is_begun(ctx);
    let mut workloads = behind.iter();
    !behind.is_empty() && workloads.all(|workload| is_begun || is_changed(ctx, workload))
}

/// Returns whether an unfinished run already started to apply the desired
/// state.
fn is_begun(ctx: &Ctx<'_>) -> bool {
    let installed = ctx.observed.installed.as_ref();
    let applying = installed.and_then(|installed| installed.applying.as_ref());
    applying.is_some_and(|attempt| ctx.desired.is_of(attempt))
}

/// Returns whether git differs from the last applied state.
fn is_changed(ctx: &Ctx<'_>, id: &ObjectId) -> bool {
    let recorded = ctx.observed.inventory.entries.get(id);
    let recorded = recorded.and_then(|entry| entry.desired);
    match (ctx.desired.digests.get(id), recorded) {
        (Some(DesiredDigest::Known(desired)), Some(recorded)) => *desired != recorded,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_its_webhook() {
        let denied = "admission webhook \"depots.example.org\" denied the request: no";
        assert_eq!(denied_by(denied), Some("depots.example.org"));
        let wrapped = format!("depots.example.org \"a\" is forbidden: {denied}");
        assert_eq!(denied_by(&wrapped), Some("depots.example.org"));
        assert_eq!(denied_by("failed calling webhook \"w\": timeout"), None);
        assert_eq!(denied_by("admission webhook \"w\" is asked"), None);
    }
}
