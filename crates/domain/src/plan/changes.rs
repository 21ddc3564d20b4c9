//! What happens to every desired object, and the steps that do it.

use super::draft::{Ctx, Draft};
use super::model::{Action, Body, Cause, Change, EdgeReason, Need, Op, Precondition, Until};
use super::ownership::{self, Claim};
use crate::diff::normalize::normalized;
use crate::diff::ownership::{applied_by, holders, survivors};
use crate::finding::{Finding, Kind};
use crate::inventory::EntryState;
use crate::object::{Manifest, ObjectId};
use crate::observe::{
    ApiRefusal, DesiredDigest, FieldConflict, Live, LiveMeta, Prediction, Served, Unverified,
    is_unchanged,
};
use crate::readiness;

/// Decides about every desired object.
pub(super) fn run(ctx: &Ctx<'_>, draft: &mut Draft) {
    for manifest in &ctx.desired.manifests {
        decide(ctx, draft, manifest);
    }
}

fn decide(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest) {
    let id = manifest.id();
    match ctx.observed.discovery.served(&manifest.gvk()) {
        Served::Current(_) => {}
        Served::Stale => {
            let finding = Finding::error(
                Kind::Cluster,
                "api-stale",
                format!(
                    "the API {} is registered but its server does not answer",
                    manifest.api_version()
                ),
            )
            .hint("see the APIService of that group-version: `kubectl get apiservices`");
            return block(ctx, draft, manifest, finding);
        }
        Served::Absent if ctx.defined.contains(&id.group_kind()) => {}
        Served::Absent => return block(ctx, draft, manifest, not_served(ctx, manifest)),
    }
    if super::namespace::is_ending(ctx, id) {
        return create_after_namespace(ctx, draft, manifest);
    }
    match ctx.observed.live_meta(id) {
        None => decide_absent(ctx, draft, manifest),
        Some(live) if live.deleting => recreate_after_deletion(ctx, draft, manifest, live),
        Some(live) => match ownership::claim(ctx, id, live) {
            Claim::Ours => decide_member(ctx, draft, manifest, live),
            Claim::Adopt => decide_adoption(ctx, draft, manifest, live),
            Claim::Refused(finding) => block(ctx, draft, manifest, finding),
        },
    }
}

fn not_served(ctx: &Ctx<'_>, manifest: &Manifest) -> Finding {
    let id = manifest.id();
    let finding = Finding::error(
        Kind::Repository,
        "kind-not-served",
        format!(
            "the cluster serves no {} at {}",
            id.kind,
            manifest.api_version()
        ),
    );
    match ctx.observed.discovery.preferred(&id.group_kind()) {
        Some((version, _)) => finding.hint(format!("it is served at {version}")),
        None => finding.hint("the CustomResourceDefinition must be installed first"),
    }
}

/// An object that does not exist: created, once the server has checked what it can.
fn decide_absent(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest) {
    let id = manifest.id();
    let unverified = match ctx.observed.predicted.get(id) {
        Some(Prediction::Creates | Prediction::Answer(_)) => None,
        Some(Prediction::Unverified(why)) => Some(why.to_string()),
        Some(Prediction::Refused(refusal)) => return block(ctx, draft, manifest, refused(refusal)),
        Some(Prediction::Conflict { fields, .. }) => {
            return block(ctx, draft, manifest, conflict(fields.iter()));
        }
        Some(Prediction::Immutable(_)) | None => Some(Unverified::Offline.to_string()),
    };
    let reason = match ctx
        .observed
        .inventory
        .entries
        .get(id)
        .map(|entry| entry.state)
    {
        Some(EntryState::Applied) => "it was deleted in the cluster",
        _ => "it does not exist yet",
    };
    change(
        ctx,
        draft,
        manifest,
        Action::Create,
        reason,
        None,
        unverified,
    );
    apply(
        ctx,
        draft,
        manifest,
        false,
        vec![Precondition::Absent],
        reason,
    );
}

/// Everything in a terminating namespace goes with it, also what is still there.
fn create_after_namespace(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest) {
    let reason = "its namespace is being deleted; created again after that";
    let unverified = manifest
        .id()
        .namespace
        .clone()
        .map(|name| Unverified::NamespaceMissing(name).to_string());
    change(
        ctx,
        draft,
        manifest,
        Action::Create,
        reason,
        None,
        unverified,
    );
    let absent = vec![Precondition::Absent];
    if let Some(change) = draft.changes.get_mut(manifest.id()) {
        change.require.clone_from(&absent);
    }
    apply(ctx, draft, manifest, false, absent, reason);
}

/// A terminating object is never applied: its end is waited for, then it is created.
fn recreate_after_deletion(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest, live: &LiveMeta) {
    let id = manifest.id();
    let waiting = if live.finalizers.is_empty() {
        "it is being deleted; created again when it is gone".to_owned()
    } else {
        format!(
            "it is being deleted and waits for {}; created again when it is gone",
            live.finalizers.join(", ")
        )
    };
    change(ctx, draft, manifest, Action::Create, &waiting, None, None);
    let gone = draft.wait(
        ctx,
        ctx.stage_of(id),
        id.clone(),
        Some(Until::Absent { pods: None }),
        &waiting,
    );
    draft
        .at(gone)
        .require
        .push(Precondition::Uid(live.uid.clone()));
    let step = apply(
        ctx,
        draft,
        manifest,
        false,
        vec![Precondition::Absent],
        "the former object is gone",
    );
    draft.edge(gone, Need::Absent, step, EdgeReason::SameObject);
}

fn decide_member(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest, live: &LiveMeta) {
    let id = manifest.id();
    let entry = ctx.observed.inventory.entries.get(id);
    let digest = ctx.desired.digests.get(id);
    if let Some(entry) = entry
        && !ctx.policy.verify
        && is_unchanged(manifest, digest, entry, live)
    {
        return unchanged(ctx, draft, manifest, "as wanted");
    }
    // Git changed unless what would be written is what was recorded.
    let git = match (digest, entry.and_then(|entry| entry.desired)) {
        (Some(DesiredDigest::Known(wanted)), Some(recorded)) => *wanted != recorded,
        _ => true,
    };
    let Some(before) = ctx.observed.full.get(id) else {
        let finding = Finding::error(
            Kind::Cluster,
            "not-read",
            "it changed and could not be read",
        );
        return block(ctx, draft, manifest, finding);
    };
    match ctx.observed.predicted.get(id) {
        Some(Prediction::Answer(after)) => {
            decide_update(ctx, draft, manifest, before, after, git, &[]);
        }
        Some(Prediction::Conflict { fields, forced }) => {
            let foreign: Vec<&FieldConflict> = fields
                .iter()
                .filter(|field| git && !ownership::may_take_over(ctx, &field.manager))
                // Of a record that was wiped the server makes up an owner.
                .filter(|field| {
                    live.has_managed_fields || field.manager != ownership::MADE_UP_MANAGER
                })
                .collect();
            match forced {
                Some(after) if foreign.is_empty() => {
                    decide_update(ctx, draft, manifest, before, after, git, fields);
                }
                _ if foreign.is_empty() => block(ctx, draft, manifest, conflict(fields.iter())),
                _ => block(ctx, draft, manifest, conflict(foreign.into_iter())),
            }
        }
        other => without_answer(ctx, draft, manifest, live, other),
    }
}

fn decide_adoption(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest, live: &LiveMeta) {
    let id = manifest.id();
    let Some(before) = ctx.observed.full.get(id) else {
        let finding = Finding::error(Kind::Cluster, "not-read", "it exists and could not be read");
        return block(ctx, draft, manifest, finding);
    };
    match ctx.observed.predicted.get(id) {
        Some(
            Prediction::Answer(_)
            | Prediction::Conflict {
                forced: Some(_), ..
            },
        ) => {}
        other => return without_answer(ctx, draft, manifest, live, other),
    }
    if let Some(Prediction::Conflict { fields, .. }) = ctx.observed.predicted.get(id) {
        let foreign: Vec<&FieldConflict> = fields
            .iter()
            .filter(|field| !ownership::may_take_over(ctx, &field.manager))
            .collect();
        if !foreign.is_empty() {
            return block(ctx, draft, manifest, conflict(foreign.into_iter()));
        }
    }
    let reason = format!(
        "it exists and is taken over from {}",
        live.managers.join(", ")
    );
    change(ctx, draft, manifest, Action::Adopt, &reason, None, None);
    let require = vec![Precondition::Uid(live.uid.clone())];
    let merged = ownership::adoption(ctx, manifest, before);
    let patch = merged.map(|patch| {
        let step = draft.step(
            ctx,
            ctx.stage_of(id),
            id.clone(),
            Op::Patch {
                patch,
                subresource: None,
            },
            "the fields of the former managers become ours",
        );
        draft.at(step).require.clone_from(&require);
        step
    });
    let step = apply(ctx, draft, manifest, true, require, &reason);
    if let Some(patch) = patch {
        draft.edge(patch, Need::Applied, step, EdgeReason::SameObject);
    }
}

fn decide_update(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    manifest: &Manifest,
    before: &Live,
    after: &Live,
    git: bool,
    conflicts: &[FieldConflict],
) {
    let id = manifest.id();
    let live = before.meta();
    // Both sides are the server's own: it has defaulted and canonicalized them.
    let differs = normalized(before.value(), false) != normalized(after.value(), false);
    let entry_differs = live.fingerprint != after.meta().fingerprint;
    if !differs && !entry_differs && !git {
        // Only the record is refreshed, without a write.
        return unchanged(ctx, draft, manifest, "as wanted; the record is refreshed");
    }
    // Who holds what would come back to us: those in conflict, and those that
    // hold what we have lost.
    let ours = |live: &Live| applied_by(&live.value()["metadata"], &ctx.manager);
    let mut managers = holders(
        &before.value()["metadata"],
        &ours(after).difference(&ours(before)),
        &ctx.manager,
    );
    managers.extend(conflicts.iter().map(|field| field.manager.clone()));
    managers.sort();
    managers.dedup();
    let recorded = ctx
        .observed
        .inventory
        .entries
        .get(id)
        .and_then(|entry| entry.fingerprint);
    let drifted = recorded.is_some() && recorded != live.fingerprint;
    let (cause, reason) = match (git, drifted || !git) {
        (true, false) => (Cause::Git, "git changed".to_owned()),
        (false, _) if differs => (
            Cause::Drift {
                managers: managers.clone(),
            },
            drift_reason("", &managers),
        ),
        (false, _) => (
            Cause::Drift {
                managers: managers.clone(),
            },
            "what we own of it is not recorded as ours".to_owned(),
        ),
        (true, true) => (
            Cause::Both {
                managers: managers.clone(),
            },
            drift_reason("git changed and ", &managers),
        ),
    };
    change(
        ctx,
        draft,
        manifest,
        Action::Update,
        &reason,
        Some(cause),
        None,
    );
    for (path, owners) in survivors(before.value(), after.value(), &ctx.manager) {
        draft.findings.push(
            Finding::warning(
                Kind::Conflict,
                "co-owned-field",
                format!(
                    "git no longer has {path}, but it stays: {} holds it too",
                    owners.join(", ")
                ),
            )
            .at(manifest.origin().clone())
            .on(id.clone()),
        );
    }
    let require = vec![Precondition::Uid(live.uid.clone())];
    // Managed fields that were wiped are repaired before they are applied to,
    // or the server invents an owner for every live field.
    let repair = (!live.has_managed_fields)
        .then(|| ownership::adoption(ctx, manifest, before))
        .flatten()
        .map(|patch| {
            let step = draft.step(
                ctx,
                ctx.stage_of(id),
                id.clone(),
                Op::Patch {
                    patch,
                    subresource: None,
                },
                "its record of owners was wiped",
            );
            draft.at(step).require.clone_from(&require);
            step
        });
    let step = apply(
        ctx,
        draft,
        manifest,
        !conflicts.is_empty(),
        require,
        &reason,
    );
    if let Some(repair) = repair {
        draft.edge(repair, Need::Applied, step, EdgeReason::SameObject);
    }
}

fn drift_reason(prefix: &str, managers: &[String]) -> String {
    if managers.is_empty() {
        format!("{prefix}the cluster drifted")
    } else {
        format!(
            "{prefix}the cluster drifted: {} wrote to fields of ours",
            managers.join(", ")
        )
    }
}

/// An existing object for which the server gave no usable answer.
fn without_answer(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    manifest: &Manifest,
    live: &LiveMeta,
    prediction: Option<&Prediction>,
) {
    match prediction {
        Some(Prediction::Refused(refusal)) => block(ctx, draft, manifest, refused(refusal)),
        Some(Prediction::Immutable(paths)) => {
            let paths: Vec<String> = paths.iter().map(ToString::to_string).collect();
            let finding = Finding::error(
                Kind::Policy,
                "immutable-field",
                format!("{} cannot be changed on an existing object", paths.join(", ")),
            )
            .hint("recreating objects is not supported yet; delete it by hand, or give the new object another name");
            block(ctx, draft, manifest, finding);
        }
        Some(Prediction::Conflict { fields, .. }) => {
            block(ctx, draft, manifest, conflict(fields.iter()))
        }
        Some(Prediction::Unverified(Unverified::ApiStale)) => {
            let finding = Finding::error(Kind::Cluster, "api-stale", "its API does not answer");
            block(ctx, draft, manifest, finding);
        }
        Some(Prediction::Unverified(why)) => {
            let cause = Some(Cause::Git);
            change(
                ctx,
                draft,
                manifest,
                Action::Update,
                "it could not be compared",
                cause,
                Some(why.to_string()),
            );
            let require = vec![Precondition::Uid(live.uid.clone())];
            apply(
                ctx,
                draft,
                manifest,
                false,
                require,
                "it could not be compared",
            );
        }
        Some(Prediction::Creates) => {
            // It went away between the two reads.
            change(
                ctx,
                draft,
                manifest,
                Action::Create,
                "it was just deleted",
                None,
                None,
            );
            apply(
                ctx,
                draft,
                manifest,
                false,
                vec![Precondition::Absent],
                "it was just deleted",
            );
        }
        Some(Prediction::Answer(_)) | None => {
            let finding = Finding::error(
                Kind::Cluster,
                "not-read",
                "the server was not asked about it",
            );
            block(ctx, draft, manifest, finding);
        }
    }
}

fn refused(refusal: &ApiRefusal) -> Finding {
    let (kind, code) = match refusal.code {
        401 | 403 => (Kind::Cluster, "forbidden"),
        409 => (Kind::Conflict, "refused"),
        _ => (Kind::Repository, "refused"),
    };
    Finding::error(
        kind,
        code,
        format!(
            "the server refuses it ({}): {}",
            refusal.code, refusal.message
        ),
    )
}

fn conflict<'a>(fields: impl Iterator<Item = &'a FieldConflict>) -> Finding {
    let held: Vec<String> = fields
        .map(|field| format!("{} holds {}", field.manager, field.field))
        .collect();
    Finding::error(Kind::Conflict, "field-conflict", held.join("; ")).hint(
        "take the fields over with `adopt` in the environment file, or remove them from the manifest",
    )
}

fn block(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest, finding: Finding) {
    let finding = finding
        .at(manifest.origin().clone())
        .on(manifest.id().clone());
    change(
        ctx,
        draft,
        manifest,
        Action::Blocked,
        &finding.message,
        None,
        None,
    );
    draft.findings.push(finding);
}

fn unchanged(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest, reason: &str) {
    change(ctx, draft, manifest, Action::Unchanged, reason, None, None);
}

fn change(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    manifest: &Manifest,
    action: Action,
    reason: &str,
    cause: Option<Cause>,
    unverified: Option<String>,
) {
    let id = manifest.id();
    let require = match ctx.observed.live_meta(id) {
        None => vec![Precondition::Absent],
        Some(live) => std::iter::once(Precondition::Uid(live.uid.clone()))
            .chain(live.fingerprint.map(Precondition::Fingerprint))
            .collect(),
    };
    let stage = !matches!(action, Action::Unchanged | Action::Blocked | Action::Skip);
    draft.changes.insert(
        id.clone(),
        Change {
            object: id.clone(),
            action,
            stage: stage.then(|| ctx.stage_of(id)),
            reason: reason.to_owned(),
            cause,
            require,
            digest: ctx.desired.digests.get(id).copied(),
            unverified,
        },
    );
}

/// The step that applies an object, and what completes it.
fn apply(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    manifest: &Manifest,
    force: bool,
    require: Vec<Precondition>,
    reason: &str,
) -> super::StepId {
    let id = manifest.id();
    let digest = ctx
        .desired
        .digests
        .get(id)
        .copied()
        .unwrap_or(DesiredDigest::Unkeyed);
    let op = Op::Apply {
        body: Body::Rendered(digest),
        force,
    };
    let step = draft.step(ctx, ctx.stage_of(id), id.clone(), op, reason);
    draft.at(step).require = require;
    draft.at(step).until = until(ctx, id);
    draft.done_by.insert(id.clone(), step);
    step
}

/// What completes an object: a CRD is done when its kind answers, others when
/// they are ready; kinds without a status are done when they are applied.
pub(super) fn until(ctx: &Ctx<'_>, id: &ObjectId) -> Option<Until> {
    if let Some((gvk, _)) = ctx.facts.get(id).and_then(|facts| facts.defines.as_ref()) {
        return Some(Until::Served(gvk.clone()));
    }
    readiness::has_rules(&id.group_kind()).then_some(Until::Ready {
        stable_for: jiff::SignedDuration::ZERO,
    })
}
