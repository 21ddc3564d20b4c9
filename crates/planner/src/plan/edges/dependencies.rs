//! Dependencies between objects of the release, derived from their manifests.

use std::collections::{BTreeMap, BTreeSet};

use super::needs::{Dependencies, Joint, Needs};
use crate::crd::is_crd;
use crate::observe::Registration;
use crate::plan::{
    access::gathered,
    draft::{Ctx, Draft},
    model::{EdgeReason, Need},
};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::ObjectId;
use pleach_model::order::{Facts, Interception};
use pleach_state::inventory::EntryState;

/// Collects all dependencies that the manifests express.
pub(super) fn dependencies<'a>(ctx: &Ctx<'a>, draft: &mut Draft) -> Dependencies<'a> {
    let mut found = Dependencies::within(&draft.budget);
    permissions(ctx, &mut found);
    for (&id, facts) in &ctx.facts {
        let mut need = |from: &ObjectId, need: Need, why: EdgeReason| {
            if let Some((&from, _)) = ctx.manifests.get_key_value(from)
                && from != id
            {
                found.add(from, id, need, why);
            }
        };
        if let Some((crd, _)) = ctx.crd(&id.group_kind()) {
            need(crd, Need::Ready, EdgeReason::Crd);
        }
        let api_version = ctx.manifests.get(id).map(|manifest| manifest.api_version());
        if let Some(api) = api_version.and_then(|api_version| ctx.api(api_version)) {
            need(api, Need::Ready, EdgeReason::Api);
        }
        if let Some(namespace) = &id.namespace {
            let namespace = ObjectId::new("", "Namespace", None, namespace);
            need(&namespace, Need::Applied, EdgeReason::Namespace);
        }
        if let Some(role) = &facts.role {
            need(role, Need::Applied, EdgeReason::Role);
        }
        if let Some(account) = &facts.token_of {
            need(account, Need::Applied, EdgeReason::Token);
        }
        for reference in &facts.pod_references {
            need(reference, Need::Applied, EdgeReason::Reference);
        }
        // Custom resources need the conversion webhook, the CRD itself does
        // not.
        if !is_crd(id) {
            for service in &facts.services {
                need(&service.id(), Need::Applied, EdgeReason::Backend);
                // Its stage may come before anything can answer.
                if ctx.is_applied_only(&ctx.stage_of(id)) {
                    continue;
                }
                for workload in ctx.backends(service) {
                    need(workload, Need::Ready, EdgeReason::Backend);
                }
            }
        }
        for (kind, name) in &facts.after {
            match named(ctx, kind, name, id.namespace.as_deref()) {
                Some(before) => need(before, Need::Ready, EdgeReason::After),
                None => draft.findings.push(after_nothing(ctx, id, kind, name)),
            }
        }
    }
    switch_on(ctx, &mut found);
    intercept(ctx, draft, &mut found);
    answer(ctx, &mut found);
    convert(ctx, &mut found);
    found
}

/// Reports annotations `pleach.dev/after` without an object, as
/// [`dependencies`] does.
pub(super) fn check(ctx: &Ctx<'_>, draft: &mut Draft) {
    for (&id, facts) in &ctx.facts {
        for (kind, name) in &facts.after {
            if named(ctx, kind, name, id.namespace.as_deref()).is_none() {
                draft.findings.push(after_nothing(ctx, id, kind, name));
            }
        }
    }
}

/// Makes workloads need their ServiceAccount and its permissions. Many
/// workloads and bindings may share an account, so a joint per account keeps
/// the number of edges small.
fn permissions<'a>(ctx: &Ctx<'a>, found: &mut Dependencies<'a>) {
    let mut workloads: BTreeMap<&ObjectId, Vec<&'a ObjectId>> = BTreeMap::new();
    let mut bindings: BTreeMap<&ObjectId, Vec<&'a ObjectId>> = BTreeMap::new();
    for (&id, facts) in &ctx.facts {
        if let Some(account) = &facts.service_account {
            workloads.entry(account).or_default().push(id);
        }
        for subject in &facts.subjects {
            bindings.entry(subject).or_default().push(id);
        }
    }
    let gathered = gathered(ctx);
    for (account, to) in workloads {
        let mut from: BTreeSet<&ObjectId> = BTreeSet::from([account]);
        for binding in bindings.get(account).into_iter().flatten() {
            from.insert(binding);
            // An unchanged binding may refer to a role that changes.
            if let Some(role) = ctx.facts.get(binding).and_then(|of| of.role.as_ref())
                && from.insert(role)
            {
                from.extend(gathered.get(role).into_iter().flatten());
            }
        }
        let ours = from.into_iter();
        let from = ours.filter_map(|id| Some(*ctx.manifests.get_key_value(id)?.0));
        found.join(Joint {
            from: from.collect(),
            to,
            why: EdgeReason::Permissions,
            reason: format!("{account} has its permissions"),
        });
    }
}

/// Orders admission policies. A policy without its parameters refuses
/// everything it matches. So it comes after the CRD of its parameters and after
/// the parameters, which may need new fields. The binding, which enables it,
/// comes last.
fn switch_on<'a>(ctx: &Ctx<'a>, found: &mut Dependencies<'a>) {
    let mut kinds: BTreeMap<(&str, &str), Vec<&'a ObjectId>> = BTreeMap::new();
    if ctx.facts.values().any(|facts| facts.switches_on.is_some()) {
        for &id in ctx.manifests.keys() {
            kinds.entry((&id.group, &id.kind)).or_default().push(id);
        }
    }
    for (&id, facts) in &ctx.facts {
        if let Some(kind) = &facts.parameter_kind {
            if let Some((crd, _)) = ctx.crd(&kind.group_kind()) {
                found.add(crd, id, Need::Ready, EdgeReason::Crd);
            }
            if let Some(api) = ctx.api(&kind.api_version) {
                found.add(api, id, Need::Ready, EdgeReason::Api);
            }
        }
        let Some(switched_on) = &facts.switches_on else {
            continue;
        };
        let Some((&policy, asks)) = ctx.facts.get_key_value(&switched_on.policy) else {
            continue;
        };
        found.add(policy, id, Need::Applied, EdgeReason::Policy);
        let named = switched_on.parameters.as_ref();
        if let Some((named, kind)) = named.zip(asks.parameter_kind.as_ref()) {
            let kind = (kind.api_version.group.as_str(), kind.kind.as_str());
            let all = kinds.get(&kind).into_iter().flatten();
            for &parameter in all.filter(|id| named.may_be(id)) {
                found.add(parameter, policy, Need::Applied, EdgeReason::Policy);
                found.add(parameter, id, Need::Applied, EdgeReason::Policy);
            }
        }
    }
}

/// Orders custom resources after the workloads of their conversion webhook.
/// Exceptions are resources that such a workload needs itself, and resources in
/// an earlier stage.
fn convert<'a>(ctx: &Ctx<'a>, found: &mut Dependencies<'a>) {
    let mut needs = Needs::of(found);
    let mut resources: BTreeMap<&ObjectId, Vec<&'a ObjectId>> = BTreeMap::new();
    for &id in ctx.facts.keys() {
        if let Some((crd, _)) = ctx.crd(&id.group_kind()) {
            resources.entry(crd).or_default().push(id);
        }
    }
    for (crd, resources) in resources {
        let facts = ctx.facts.get(crd);
        let services = facts.into_iter().flat_map(|facts| &facts.services);
        let backends: Vec<&ObjectId> = services.flat_map(|one| ctx.backends(one)).collect();
        for from in backends {
            come_after(
                ctx,
                found,
                &mut needs,
                (from, &resources),
                &EdgeReason::Backend,
            );
        }
    }
}

/// Orders custom resources after a workload. Exceptions are resources that the
/// workload needs itself, and resources in an earlier stage.
fn come_after<'a>(
    ctx: &Ctx<'a>,
    found: &mut Dependencies<'a>,
    needs: &mut Needs<'a>,
    (from, resources): (&'a ObjectId, &[&'a ObjectId]),
    why: &EdgeReason,
) {
    let before = needs.ancestors(from);
    let stage = ctx.stage_of(from);
    let later = resources.iter().copied();
    for to in later.filter(|id| !before.contains(id) && ctx.stage_of(id) >= stage) {
        // The next webhook must see this edge too, or two webhooks could form a
        // cycle.
        needs.add(from, to);
        found.add(from, to, Need::Ready, why.clone());
    }
}

/// Resolves `pleach.dev/after: Kind/name` to an object of the release. Objects
/// in the same namespace come first, then cluster-scoped ones, then all others.
fn named<'a>(
    ctx: &Ctx<'a>,
    kind: &str,
    name: &str,
    namespace: Option<&str>,
) -> Option<&'a ObjectId> {
    let candidates = ctx.named(kind, name);
    candidates
        .iter()
        .find(|id| id.namespace.as_deref() == namespace)
        .or_else(|| candidates.iter().find(|id| id.namespace.is_none()))
        .or_else(|| candidates.first())
        .copied()
}

fn after_nothing(ctx: &Ctx<'_>, id: &ObjectId, kind: &str, name: &str) -> Finding {
    let message = if name.is_empty() {
        format!("annotation pleach.dev/after contains `{kind}`, expected Kind/name")
    } else {
        format!("annotation pleach.dev/after names {kind}/{name}, which is not part of the release")
    };
    let finding = Finding::error(Kind::Repository, "after-nothing", message).on(id.clone());
    match ctx.manifests.get(id) {
        Some(manifest) => finding.at(manifest.origin().clone()),
        None => finding,
    }
}

/// Orders custom resources of the release after the webhooks that intercept
/// them, now or after this plan, and after the backends. Exceptions are
/// resources that the registration needs itself. Custom resources of other CRDs
/// come before the workloads, which may need their effects.
fn intercept<'a>(ctx: &Ctx<'a>, draft: &Draft, found: &mut Dependencies<'a>) {
    let live = ctx.observed.registrations.iter();
    let live: BTreeMap<&ObjectId, &[Interception]> = live
        .map(|one| (&one.id, one.intercepts.as_slice()))
        .collect();
    let registrations: Vec<(&'a ObjectId, &Facts, &[Interception])> = ctx
        .facts
        .iter()
        .map(|(id, facts)| {
            let until_now = live.get(*id).copied().unwrap_or_default();
            (*id, *facts, until_now)
        })
        .filter(|(_, facts, until_now)| !facts.intercepts.is_empty() || !until_now.is_empty())
        .collect();
    let resources: Vec<(&'a ObjectId, &str)> = ctx
        .facts
        .keys()
        .filter_map(|id| Some((*id, plural(ctx, id)?)))
        .collect();
    if registrations.is_empty() || resources.is_empty() {
        return;
    }
    let mut needs = Needs::of(found);
    for (registration, facts, until_now) in registrations {
        let rules = facts.intercepts.len() + until_now.len();
        if !draft.budget.work(rules.saturating_mul(resources.len())) {
            return;
        }
        let is_requested = |id: &ObjectId, plural: &str| {
            is_intercepted(&facts.intercepts, id, plural) || is_intercepted(until_now, id, plural)
        };
        let ancestors = needs.ancestors(registration);
        let answering = answering(ctx, registration, facts);
        for &(id, plural) in &resources {
            if ancestors.contains(id) || !is_requested(id, plural) {
                continue;
            }
            // The next registration must see this edge too, or two could form a
            // cycle.
            needs.add(registration, id);
            found.add(registration, id, Need::Applied, EdgeReason::Intercepts);
            // The backend is asked even if the registration is unchanged: the
            // previous version may refuse what the new one accepts.
            for workload in &answering {
                found.add(workload, id, Need::Ready, EdgeReason::Intercepts);
            }
        }
    }
}

/// Orders custom resources after the backends of webhooks that pods of the
/// release registered. Exceptions are resources that such a workload needs
/// itself, and resources in an earlier stage.
fn answer<'a>(ctx: &Ctx<'a>, found: &mut Dependencies<'a>) {
    let registrations = registered(ctx);
    if registrations.is_empty() {
        return;
    }
    let mut needs = Needs::of(found);
    for registration in registrations {
        let services = registration.services.iter();
        let backends: BTreeSet<&'a ObjectId> =
            services.flat_map(|service| ctx.backends(service)).collect();
        let resources = intercepted(ctx, &registration.intercepts);
        for from in backends {
            come_after(
                ctx,
                found,
                &mut needs,
                (from, &resources),
                &EdgeReason::Intercepts,
            );
        }
    }
}

/// Returns the recorded registrations that pods of the release made.
pub(in crate::plan) fn registered<'a>(ctx: &Ctx<'a>) -> Vec<&'a Registration> {
    let observed = ctx.observed;
    let is_recorded = |one: &&Registration| {
        let entry = observed.inventory.entries.get(&one.id);
        entry.is_some_and(|entry| entry.state == EntryState::Observed)
    };
    let all = observed.registrations.iter();
    all.filter(is_recorded)
        .filter(|one| !ctx.is_desired(&one.id))
        .collect()
}

/// Returns the workloads behind a registration; empty if its stage does not
/// wait for them.
pub(in crate::plan) fn answering<'a>(
    ctx: &Ctx<'a>,
    registration: &ObjectId,
    facts: &Facts,
) -> Vec<&'a ObjectId> {
    if ctx.is_applied_only(&ctx.stage_of(registration)) {
        return Vec::new();
    }
    let services = facts.services.iter();
    services.flat_map(|service| ctx.backends(service)).collect()
}

/// Returns the plural of a custom resource whose CRD is part of the release.
fn plural<'c>(ctx: &'c Ctx<'_>, id: &ObjectId) -> Option<&'c str> {
    let (_, crd) = ctx.crd(&id.group_kind())?;
    Some(&crd.plural)
}

/// Returns the intercepted custom resources whose CRD is part of the release.
pub(in crate::plan) fn intercepted<'a>(ctx: &Ctx<'a>, rules: &[Interception]) -> Vec<&'a ObjectId> {
    let all = ctx.facts.keys().copied();
    all.filter(|id| plural(ctx, id).is_some_and(|plural| is_intercepted(rules, id, plural)))
        .collect()
}

fn is_intercepted(rules: &[Interception], id: &ObjectId, plural: &str) -> bool {
    rules.iter().any(|rule| {
        (rule.group == "*" || rule.group == id.group)
            && (rule.resource == "*" || rule.resource == plural)
    })
}
