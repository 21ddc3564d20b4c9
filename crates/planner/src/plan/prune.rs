//! Objects that git no longer has. They are selected here and deleted after
//! verify, in reverse order.

mod backends;
mod contents;
mod steps;
mod verdict;

pub(super) use backends::check as check_backends;
pub(super) use contents::keep_occupied;
pub(super) use steps::run as steps;
pub(super) use verdict::{Judge, Verdict, is_running, retained};

use std::collections::BTreeMap;

use super::changes::is_recreated_with_crd;
use super::consent::bound_to;
use super::draft::{Ctx, Draft, Pruned};
use super::model::Action;
use super::namespace;
use super::phases::Decided;
use super::removal::{Handed, successor};
use crate::observe::{Listing, ListingKey};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{GroupKind, ObjectId, ServiceRef};
use pleach_model::order::StageName;
use pleach_state::inventory::EntryState;

/// Decides for every undesired member whether it is deleted or stays, and why.
pub(super) fn decide(ctx: &Ctx<'_>, draft: &mut Decided) {
    let implied = namespace::implied(ctx);
    let judge = Judge::new(ctx);
    let mut pruned = Vec::new();
    let mut counted = 0_usize;
    let mut moved = BTreeMap::new();
    let undesired = || {
        let left = ctx.left.iter().copied();
        left.filter(|(id, _)| implied.as_ref() != Some(*id))
    };
    for (id, entry) in undesired() {
        if is_recreated_with_crd(ctx, draft, id) {
            stays(draft, id, "it is deleted with its CRD, which is recreated");
            continue;
        }
        match entry.state {
            EntryState::Intended if is_gone(ctx, id) => {
                stays(draft, id, "no longer in git, and does not exist");
            }
            EntryState::Intended => skip(
                draft,
                id,
                "no longer in git; its creation was never confirmed, so an existing object is not changed",
            ),
            EntryState::Kept if is_copy(ctx, id) => skip(
                draft,
                id,
                "copied when the bundle moved; stays because it belongs to the user",
            ),
            EntryState::Kept => skip(
                draft,
                id,
                "no longer in git; stays because other field managers own fields of it",
            ),
            EntryState::Applied if handed_over(ctx, draft, id) => {}
            EntryState::Applied => {
                let verdict = judge.member(id, entry);
                if matches!(verdict, Verdict::Absent | Verdict::Delete(_)) {
                    draft.leaving.extend(service_ref(id));
                }
                if matches!(verdict, Verdict::Delete(_)) && !is_moved(ctx, &mut moved, id) {
                    counted += 1;
                }
                apply_verdict(draft, id, verdict, &mut pruned);
            }
            EntryState::Observed => {}
        }
    }
    draft.leaving.extend(lost_services(ctx));
    for (id, entry) in undesired().filter(|(_, entry)| entry.state == EntryState::Observed) {
        if is_recreated_with_crd(ctx, draft, id) {
            continue;
        }
        let verdict = judge.run_time_object(id, entry, &draft.leaving);
        apply_verdict(draft, id, verdict, &mut pruned);
    }
    for (id, entry) in &ctx.observed.found {
        let verdict = judge.found(id, entry, &draft.leaving);
        apply_verdict(draft, id, verdict, &mut pruned);
    }
    if pruned.is_empty() && draft.leaving.is_empty() {
        return report_unlisted(ctx, draft);
    }
    if let Some(why) = prune_blocker(ctx, draft) {
        for one in pruned {
            let reason = format!("no longer in git; stays because {why}");
            skip(draft, &one.id, &reason);
        }
        draft.leaving.clear();
        return;
    }
    for (id, finding) in keep_occupied(ctx, &mut pruned) {
        counted = counted.saturating_sub(1);
        skip(draft, &id, &finding.message);
        draft.findings.push(finding.on(id));
    }
    check_backends(ctx, draft, &pruned);
    check_cap(ctx, draft, counted);
    draft.pruned = pruned;
}

/// Returns whether another release takes or took over an object, and records
/// the reason.
fn handed_over(ctx: &Ctx<'_>, draft: &mut Draft, id: &ObjectId) -> bool {
    let live = ctx.observed.live_meta(id);
    match successor(&ctx.desired.terms.successors, id, live) {
        Some((Handed::Taken, successor)) => {
            let reason = format!("it was handed over to release {}", successor.name);
            stays(draft, id, &reason);
            true
        }
        Some((Handed::Waiting, successor)) => {
            let reason = format!(
                "no longer in git; stays because it is to be handed over to release {}",
                successor.name
            );
            skip(draft, id, &reason);
            true
        }
        None => false,
    }
}

/// Returns whether a move of the bundle copied the object.
fn is_copy(ctx: &Ctx<'_>, id: &ObjectId) -> bool {
    let mut moves = ctx.desired.sequence.moves.iter();
    moves.any(|rule| {
        let mut copied = rule.copy.iter();
        id.namespace.as_ref() == Some(&rule.to) && copied.any(|one| one.names(id))
    })
}

fn apply_verdict(draft: &mut Draft, id: &ObjectId, verdict: Verdict, pruned: &mut Vec<Pruned>) {
    match verdict {
        Verdict::Absent => stays(draft, id, "no longer in git, and gone already"),
        Verdict::Replaced => stays(
            draft,
            id,
            "no longer in git; its name now belongs to another object",
        ),
        Verdict::InUse => stays(draft, id, "the workloads created it"),
        Verdict::Keep(finding) => {
            skip(draft, id, &finding.message);
            draft.findings.push(finding.on(id.clone()));
        }
        Verdict::Delete(one) => pruned.push(*one),
    }
}

/// Records that nothing is left to do for an object.
fn stays(draft: &mut Draft, id: &ObjectId, reason: &str) {
    let stage = StageName::Prune;
    draft.change(id, Action::Unchanged, stage, reason, Vec::new());
}

fn skip(draft: &mut Draft, id: &ObjectId, reason: &str) {
    let stage = StageName::Prune;
    draft.change(id, Action::Skip, stage, reason, Vec::new());
}

/// Returns whether an object is absent and its kind was listed completely.
pub(super) fn is_gone(ctx: &Ctx<'_>, id: &ObjectId) -> bool {
    ctx.observed.live_meta(id).is_none() && ctx.observed.is_complete(id)
}

pub(super) fn service_ref(id: &ObjectId) -> Option<ServiceRef> {
    let namespace = id.namespace.clone().filter(|_| id.is("", "Service"))?;
    Some(ServiceRef {
        namespace,
        name: id.name.clone(),
    })
}

/// Returns Services that runtime objects refer to and that no longer exist. An
/// earlier run deleted them and their record, and pods then registered again.
pub(super) fn lost_services(ctx: &Ctx<'_>) -> Vec<ServiceRef> {
    let observed = ctx.observed;
    let is_lost = |service: &&ServiceRef| {
        let backend = observed.backends.get(*service);
        !ctx.is_desired(&service.id()) && backend.is_some_and(|backend| !backend.exists)
    };
    let recorded = observed.inventory.entries.values();
    let recorded = recorded.filter(|entry| entry.state == EntryState::Observed);
    let services = recorded.filter_map(|entry| entry.service.as_ref());
    services.filter(is_lost).cloned().collect()
}

/// Warns about registrations that could not be listed although nothing is
/// deleted now. Dead ones are not visible, and the next plan may be unable to
/// prune.
fn report_unlisted(ctx: &Ctx<'_>, draft: &mut Draft) {
    for (group, kind) in REGISTRATIONS {
        let key = ListingKey {
            kind: GroupKind::new(*group, *kind),
            namespace: None,
        };
        if let Some(Listing::Failed(why)) = ctx.observed.listings.get(&key) {
            let message = format!(
                "objects of kind {kind} could not be listed: {why}; nothing could be pruned, because they may need a deleted object"
            );
            let finding = Finding::warning(Kind::Cluster, "incomplete-view", message);
            draft.findings.push(finding);
        }
    }
}

/// Returns the reason why nothing is pruned; `None` if pruning is possible.
pub(super) fn prune_blocker(ctx: &Ctx<'_>, draft: &mut Draft) -> Option<String> {
    let unseen = unseen_registrations(ctx, draft);
    if let Some((kind, why)) = &unseen {
        draft.findings.push(Finding::warning(
            Kind::Cluster,
            "incomplete-view",
            format!("nothing is pruned: objects of kind {kind} may need a deleted object, and could not be listed: {why}"),
        ));
    }
    if draft.is_blocked() {
        return Some("objects are blocked".to_owned());
    }
    if !ctx.policy.wait {
        return Some("this run does not wait for readiness".to_owned());
    }
    if !ctx.policy.prune.enabled {
        return Some("pruning is disabled in the environment file".to_owned());
    }
    unseen.map(|(kind, _)| format!("objects of kind {kind} could not be listed"))
}

/// Kinds that reference Services.
pub const REGISTRATIONS: &[(&str, &str)] = &[
    ("apiregistration.k8s.io", "APIService"),
    (
        "admissionregistration.k8s.io",
        "MutatingWebhookConfiguration",
    ),
    (
        "admissionregistration.k8s.io",
        "ValidatingWebhookConfiguration",
    ),
];

/// Returns a kind of registrations that could not be listed. An unseen
/// registration may need an object that is deleted (I1). If listing is
/// forbidden, a release with only namespaced objects ignores it.
pub(super) fn unseen_registrations(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
) -> Option<(GroupKind, String)> {
    for (group, kind) in REGISTRATIONS {
        let key = ListingKey {
            kind: GroupKind::new(*group, *kind),
            namespace: None,
        };
        match ctx.observed.listings.get(&key) {
            Some(Listing::Failed(why)) => return Some((key.kind, why.clone())),
            Some(Listing::Forbidden(why)) if !is_namespaced(ctx) => {
                return Some((key.kind, why.clone()));
            }
            Some(Listing::Forbidden(_)) => draft.findings.push(Finding::note(
                Kind::Cluster,
                "registrations-not-seen",
                format!("pleach is not allowed to list objects of kind {kind}; those that point at a deleted Service are not found"),
            )),
            Some(Listing::Complete | Listing::NotServed) | None => {}
        }
    }
    None
}

/// Returns whether all present and recorded objects of the release are
/// namespaced.
fn is_namespaced(ctx: &Ctx<'_>) -> bool {
    let recorded = ctx.observed.inventory.entries.keys();
    ctx.manifests
        .keys()
        .copied()
        .chain(recorded)
        .all(|id| id.namespace.is_some() || id.is("", "Namespace"))
}

/// Returns whether the object moved to another namespace, with the same kind
/// and name. Each new object counts as the successor of one. If several
/// namespaces had the object and only one keeps it, the others lose it.
fn is_moved<'a>(
    ctx: &Ctx<'_>,
    moved: &mut BTreeMap<(&'a str, &'a str, &'a str), usize>,
    id: &'a ObjectId,
) -> bool {
    if id.namespace.is_none() {
        return false;
    }
    let successors = ctx
        .named(&id.kind, &id.name)
        .iter()
        .filter(|other| other.group == id.group && other.namespace != id.namespace)
        .count();
    let taken = moved.entry((&id.group, &id.kind, &id.name)).or_default();
    let is_left = *taken < successors;
    *taken += usize::from(is_left);
    is_left
}

fn check_cap(ctx: &Ctx<'_>, draft: &mut Draft, counted: usize) {
    let cap = ctx.policy.prune.max.cap(ctx.observed.inventory.applied());
    let release = &ctx.desired.name.release;
    let from = super::protection::installed_version(ctx);
    let to = &ctx.desired.version;
    let consented = ctx
        .policy
        .consent
        .iter()
        .filter_map(|consent| consent.prune_limit(release, from, to))
        .max();
    if counted <= cap.max(consented.unwrap_or(0)) {
        return;
    }
    draft.findings.push(
        Finding::error(
            Kind::Policy,
            "prune-cap",
            format!("{counted} objects would be pruned, more than the cap of {cap}"),
        )
        .hint(format!(
            "if that is intended, add to `consent` in the environment file: {{action: prune, {}, count: {counted}}}",
            bound_to(ctx)
        )),
    );
}
