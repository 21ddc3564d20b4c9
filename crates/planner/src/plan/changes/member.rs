//! Plans an existing object of the release.

use super::drift;
use super::emit::{Manner, apply_after, block, change, unchanged};
use super::{displaced, previous, recreate, refusal};
use crate::observe::{ApiRefusal, FieldConflict, Prediction, is_unchanged};
use crate::plan::{
    crds::ENDS,
    draft::{Ctx, Draft},
    model::{Action, Own, Taken},
    ownership,
};
use pleach_fields::diff::{
    Cause,
    normalize::normalized,
    ownership::{
        FieldSet, applied_by, fingerprint_with, holders, orphaned, owned_by, same_entry, survivors,
    },
};
use pleach_fields::ignore::{self, FieldPattern, sets_replicas};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{DesiredDigest, FieldPath, Manifest, managers};
use pleach_state::inventory::OwnedBefore;
use pleach_state::live::{Live, LiveMeta};

/// Leaves the object unchanged, applies it, or blocks it with a finding.
pub(super) fn decide(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest, live: &LiveMeta) {
    let id = manifest.id();
    let entry = ctx.observed.inventory.entries.get(id);
    let digest = ctx.desired.digests.get(id);
    if let Some(entry) = entry
        && !ctx.policy.verify
        && is_unchanged(ctx.desired.ignored.lean(manifest), digest, entry, live)
    {
        return unchanged(ctx, draft, manifest, "in sync");
    }
    // Git changed unless the new digest equals the recorded one.
    let git = match (digest, entry.and_then(|entry| entry.desired)) {
        (Some(DesiredDigest::Known(desired)), Some(recorded)) => *desired != recorded,
        _ => true,
    };
    let Some(before) = ctx.observed.full.get(id) else {
        let finding = refusal::not_read("it changed and could not be read");
        return block(ctx, draft, manifest, finding);
    };
    if let Some(why) = previous::unverified(ctx, manifest) {
        let reason = "it could not be compared";
        let own = own(ctx, manifest, before, FieldSet::default());
        let change = change(ctx, draft, manifest, Action::Update, reason);
        change.unverified = Some(why.to_string());
        change.cause = git.then_some(Cause::Git);
        apply_after(ctx, draft, manifest, own, Manner::default(), live, reason);
        return;
    }
    match ctx.observed.predicted.get(id) {
        Some(Prediction::Answer(after)) => {
            compare(ctx, draft, manifest, Sides { before, after }, git, &[]);
        }
        Some(Prediction::Conflict {
            fields,
            refused: Some(refusal),
            immutable,
            ..
        }) => {
            let why = (refusal, immutable.as_slice());
            inseparable(ctx, draft, manifest, before, git, fields, why);
        }
        Some(Prediction::Conflict { fields, forced, .. }) => {
            let forced = forced.as_ref();
            contested(ctx, draft, manifest, before, git, fields, forced);
        }
        Some(Prediction::Refused(refusal)) => {
            if git || !has_drifted(ctx, manifest, before) {
                block(ctx, draft, manifest, refusal::refused(refusal));
            } else {
                next_to_other_managers(ctx, draft, manifest, before, refusal, &[]);
            }
        }
        Some(Prediction::Immutable { fields, refused }) => {
            let why = (fields.as_slice(), refused.as_ref());
            recreate::decide(ctx, draft, manifest, live, why, git.then_some(Cause::Git));
        }
        Some(Prediction::Creates | Prediction::Unverified(_)) | None => {
            let finding = refusal::not_read("there is no dry run of the change");
            block(ctx, draft, manifest, finding);
        }
    }
}

/// The live object, and the predicted result of an apply. Both come from the
/// server, which has defaulted and canonicalized them.
#[derive(Clone, Copy)]
pub(super) struct Sides<'a> {
    pub(super) before: &'a Live,
    pub(super) after: &'a Live,
}

/// Decides fields that another manager owns with a different value.
fn contested(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    manifest: &Manifest,
    before: &Live,
    git: bool,
    fields: &[FieldConflict],
    forced: Option<&Live>,
) {
    // Fields that we wrote last are restored from any owner.
    let foreign: Vec<&FieldConflict> = fields
        .iter()
        .filter(|field| git && !ownership::may_take_over(ctx, &field.manager))
        .filter(|field| {
            !was_ours(ctx, manifest).is_some_and(|owned| owned.is_unchanged(&field.field))
        })
        // For wiped managed fields, the server invents an owner.
        .filter(|field| before.meta().has_managed_fields || !ownership::is_made_up(&field.manager))
        .collect();
    match forced {
        Some(after) if foreign.is_empty() => {
            compare(ctx, draft, manifest, Sides { before, after }, git, fields);
        }
        _ if foreign.is_empty() => {
            let finding = refusal::conflict(ctx, manifest, fields);
            block(ctx, draft, manifest, finding);
        }
        _ => {
            let finding = refusal::conflict(ctx, manifest, foreign);
            block(ctx, draft, manifest, finding);
        }
    }
}

/// Decides fields of other managers where the server refuses even a forced
/// apply. The ownership is then not the cause of the refusal.
fn inseparable(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    manifest: &Manifest,
    before: &Live,
    git: bool,
    fields: &[FieldConflict],
    (refusal, immutable): (&ApiRefusal, &[FieldPath]),
) {
    let entry = ctx.observed.inventory.entries.get(manifest.id());
    let finding = if immutable.is_empty() && git {
        refusal::refused(refusal)
    } else if immutable.is_empty() {
        return next_to_other_managers(ctx, draft, manifest, before, refusal, fields);
    } else if entry.is_none_or(|entry| entry.uid.as_deref() != Some(&before.meta().uid)) {
        refusal::immutable_foreign(immutable)
    } else if git {
        // Once the other manager gives up the field, the change in git can be
        // applied by recreation.
        let theirs = fields
            .iter()
            .filter(|field| !ownership::may_take_over(ctx, &field.manager));
        refusal::conflict(ctx, manifest, theirs)
    } else {
        refusal::immutable_conflict(ctx, manifest, fields, immutable)
    };
    block(ctx, draft, manifest, finding);
}

/// Decides a manifest that the server accepted before and refuses next to later
/// writes of other managers. Conflicting fields are restored too.
fn next_to_other_managers(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    manifest: &Manifest,
    before: &Live,
    refusal: &ApiRefusal,
    fields: &[FieldConflict],
) {
    if !displaced::restore(ctx, draft, manifest, before, refusal, fields) {
        let finding = refusal::refused_beside(ctx, manifest, before.meta(), refusal);
        block(ctx, draft, manifest, finding);
    }
}

fn compare(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    manifest: &Manifest,
    sides: Sides<'_>,
    git: bool,
    conflicts: &[FieldConflict],
) {
    let id = manifest.id();
    let Sides { before, after } = sides;
    let differs = normalized(before.value(), false) != normalized(after.value(), false);
    let ignored = ctx.desired.ignored.of(id);
    let entry_differs = !same_entry(before.value(), after.value(), &ctx.manager, ignored);
    let must_repair = after.meta().has_managed_fields && needs_repair(ctx, before);
    if !differs && !entry_differs && !git && !must_repair {
        // Only the record is refreshed, without a write to the object.
        return unchanged(ctx, draft, manifest, "in sync; the record is updated");
    }
    let mut taken = drift::taken(ctx, sides);
    if is_overlaid(ctx, manifest) {
        taken.retain(|one| !managers::is_other(&one.manager));
    }
    let owned = was_ours(ctx, manifest);
    let mut contended = drift::contended(ctx, manifest, &taken);
    if git {
        // A field that git changed is written even if it is contended.
        contended.retain(|one| owned.is_some_and(|owned| owned.unchanged.contains(&one.field)));
    }
    let mut leave = Vec::new();
    if !contended.is_empty() {
        draft.findings.push(drift::finding(manifest, &contended));
        let others = taken.iter().any(|one| !contended.contains(one));
        match drift::left_out(manifest, &contended) {
            Some(fields) if others || git => leave = fields,
            _ if git => {}
            _ => {
                let reason =
                    "other field managers keep writing to fields of the release; it is not changed";
                change(ctx, draft, manifest, Action::Skip, reason);
                return;
            }
        }
    }
    let shared = match owned {
        Some(owned) if git => {
            let shared = drift::shared(ctx, sides, &contended);
            shared.intersection(&FieldSet::of_all(&owned.fields))
        }
        // Exclusive ownership is not recorded.
        _ if git || !has_drifted(ctx, manifest, before) => FieldSet::default(),
        _ => drift::shared(ctx, sides, &contended),
    };
    let (cause, reason) = cause(ctx, manifest, sides, (git, differs), conflicts);
    let corrects = corrects(&cause, taken, &contended, &shared);
    let change = change(ctx, draft, manifest, Action::Update, &reason);
    change.cause = Some(cause);
    change.corrects = corrects;
    for (path, owners) in survivors(before.value(), after.value(), &ctx.manager) {
        let owners = owners.join(", ");
        let message = format!("git no longer has {path}, but it stays: {owners} also owns it");
        draft.findings.push(
            Finding::warning(Kind::Conflict, "co-owned-field", message)
                .at(manifest.origin().clone())
                .on(id.clone()),
        );
    }
    report_unowned(ctx, draft, manifest, sides);
    if let Some(locked) = ignored
        .iter()
        .find(|field| field.is_locked(&applied_by(&after.value()["metadata"], &ctx.manager)))
    {
        let message = format!(
            "{locked} cannot be ignored: it is in an atomic list or map, which has a single owner"
        );
        draft.findings.push(
            Finding::error(Kind::Repository, "ignore-inside-atomic", message)
                .at(manifest.origin().clone())
                .on(id.clone())
                .hint("ignore the list or map as a whole"),
        );
    }
    let own = if after.meta().has_managed_fields {
        own(ctx, manifest, before, shared)
    } else {
        // The API server for the kind does not record field ownership.
        None
    };
    let manner = Manner {
        take_over: conflicts.to_vec(),
        leave,
    };
    apply_after(ctx, draft, manifest, own, manner, before.meta(), &reason);
}

/// Warns about items that git dropped and that the apply does not remove. They
/// have no owner since the CRD gave their list keys.
fn report_unowned(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest, sides: Sides<'_>) {
    let Sides { before, after } = sides;
    let orphaned = orphaned(before.value(), after.value(), &ctx.manager);
    let is_item = |at: &&String| {
        let last = at.rsplit('/').next().unwrap_or_default();
        last.parse::<usize>().is_ok()
    };
    let items: Vec<&str> = orphaned
        .iter()
        .filter(is_item)
        .map(String::as_str)
        .collect();
    if items.is_empty() {
        return;
    }
    let message = format!(
        "git no longer has {}, but it stays: it has no owner since its list is keyed",
        items.join(", ")
    );
    draft.findings.push(
        Finding::warning(Kind::Conflict, "unowned-item", message)
            .at(manifest.origin().clone())
            .on(manifest.id().clone())
            .hint(
                "remove it with `kubectl edit`; the items of the list that git has do not change",
            ),
    );
}

/// Returns the fields that were ours alone after the last apply; `None` if the
/// record has none.
fn was_ours<'a>(ctx: &Ctx<'a>, manifest: &Manifest) -> Option<&'a OwnedBefore> {
    ctx.observed.owned.get(manifest.id())
}

/// Returns whether an earlier run left a temporary change on the object.
fn is_overlaid(ctx: &Ctx<'_>, manifest: &Manifest) -> bool {
    let mut overlays = ctx.observed.journal.overlays_of(manifest.id());
    overlays.next().is_some()
}

/// Returns the origin of a change, and the reason as text.
fn cause(
    ctx: &Ctx<'_>,
    manifest: &Manifest,
    sides: Sides<'_>,
    (git, differs): (bool, bool),
    conflicts: &[FieldConflict],
) -> (Cause, String) {
    let mut managers = writers(ctx, sides, conflicts);
    let overlaid = is_overlaid(ctx, manifest);
    if overlaid {
        managers.retain(|manager| !managers::is_other(manager));
    }
    // A temporary change of an earlier run is not drift.
    let is_drift = !overlaid || !managers.is_empty();
    let drifted = git && is_drift && has_drifted(ctx, manifest, sides.before);
    match (git, drifted) {
        (true, true) => {
            let reason = drift_reason("git changed and ", &managers);
            (Cause::Both { managers }, reason)
        }
        (true, false) => (Cause::Git, of_git(ctx, manifest).to_owned()),
        (false, _) if differs && !is_drift => {
            let reason = "a temporary change of a previous run is reverted".to_owned();
            (Cause::Overlay, reason)
        }
        (false, _) if differs => {
            let reason = drift_reason("", &managers);
            (Cause::Drift { managers }, reason)
        }
        (false, _) => (
            Cause::Ownership,
            "its managedFields differ from the fields that the release owns".to_owned(),
        ),
    }
}

/// Explains why the digest differs from the recorded one. The sent object may
/// change without a change in git, and without the digest key the cause is
/// unknown.
fn of_git(ctx: &Ctx<'_>, manifest: &Manifest) -> &'static str {
    let id = manifest.id();
    let ignored = &ctx.desired.ignored;
    let entry = ctx.observed.inventory.entries.get(id);
    let Some(recorded) = entry.and_then(|entry| entry.desired) else {
        return "git changed";
    };
    if ctx.desired.digests.get(id) == Some(&DesiredDigest::Unkeyed) {
        return "cannot determine whether git changed: the digest key is gone";
    }
    if ignored.initial(id) == Some(DesiredDigest::Known(recorded)) {
        return "some of its fields are ignored now";
    }
    let replicas = FieldPattern::replicas();
    if manifest.is_secret() || !sets_replicas(manifest) || ignored.of(id).contains(&replicas) {
        return "git changed";
    }
    let mut scaled = ignored.clone();
    scaled.add(manifest, &[replicas]);
    if scaled.lean(manifest).digest() == recorded {
        return "its replicas are no longer left to an autoscaler";
    }
    "git changed"
}

/// Returns whether another client wrote fields of ours since they were
/// recorded. Losing an ignored field is not drift.
fn has_drifted(ctx: &Ctx<'_>, manifest: &Manifest, before: &Live) -> bool {
    let id = manifest.id();
    let entry = ctx.observed.inventory.entries.get(id);
    let Some(recorded) = entry.and_then(|entry| entry.fingerprint) else {
        return false;
    };
    let now = before.meta().fingerprint;
    if now == Some(recorded) {
        return false;
    }
    let metadata = &before.value()["metadata"];
    let ours = applied_by(metadata, &ctx.manager);
    let left = ignore::named(ctx.desired.ignored.of(id), &ours, &manifest.value());
    fingerprint_with(metadata, &ctx.manager, &left) != Some(recorded)
}

/// Returns the fields that the apply restores, for the record.
fn corrects(
    cause: &Cause,
    taken: Vec<Taken>,
    contended: &[Taken],
    shared: &FieldSet,
) -> Vec<Taken> {
    match cause {
        Cause::Drift { .. } => taken
            .into_iter()
            .filter(|one| !contended.contains(one))
            .collect(),
        // Fields that git adds have no previous owner.
        Cause::Both { .. } => taken
            .into_iter()
            .filter(|one| !one.manager.is_empty())
            .collect(),
        // The values match git, but their owner is wrong.
        Cause::Ownership => taken
            .into_iter()
            .filter(|one| shared.touches(&one.field))
            .collect(),
        Cause::Git | Cause::Overlay => Vec::new(),
    }
}

/// Returns whether field ownership must be repaired. Wiped managed fields are
/// rebuilt first, or the server invents an owner for every live field. Fields
/// of our other managers become ours.
fn needs_repair(ctx: &Ctx<'_>, before: &Live) -> bool {
    let meta = before.meta();
    !meta.has_managed_fields
        || meta
            .managers
            .iter()
            .any(|manager| managers::is_other(manager))
        || has_second_entry(ctx, before)
}

/// Returns whether our manager has an entry besides that of its applies.
fn has_second_entry(ctx: &Ctx<'_>, before: &Live) -> bool {
    let metadata = &before.value()["metadata"];
    owned_by(metadata, &ctx.manager) != applied_by(metadata, &ctx.manager)
}

/// Returns the ownership change to make before the apply, with its reason.
pub(super) fn own(
    ctx: &Ctx<'_>,
    manifest: &Manifest,
    before: &Live,
    reclaim: FieldSet,
) -> Option<(Own, &'static str)> {
    let left = ctx.desired.left_at_once(ctx.policy, manifest, before);
    let why = if !before.meta().has_managed_fields {
        "its managedFields were cleared"
    } else if needs_repair(ctx, before) {
        "the field manager of the release takes the fields of pleach's other managers"
    } else if !left.is_empty() {
        ENDS
    } else if !reclaim.is_empty() {
        "the release becomes the only owner of its fields again"
    } else {
        "ownership of the ignored fields is released, because the apply would otherwise remove them"
    };
    let reclaim = if left.is_empty() {
        reclaim
    } else {
        reclaim.union(&left)
    };
    let change = ownership::Change {
        from: &managers::is_other,
        reclaim,
        strip: Vec::new(),
    };
    ownership::own(ctx, manifest, before, change).map(|own| (own, why))
}

/// Returns the managers of fields that the apply would restore: those in
/// conflict, and the owners of the fields we lost.
fn writers(
    ctx: &Ctx<'_>,
    Sides { before, after }: Sides<'_>,
    conflicts: &[FieldConflict],
) -> Vec<String> {
    let ours = |live: &Live| applied_by(&live.value()["metadata"], &ctx.manager);
    let lost = ours(after).difference(&ours(before));
    let mut managers = holders(&before.value()["metadata"], &lost, &ctx.manager);
    managers.extend(conflicts.iter().map(|field| field.manager.clone()));
    // The server invents this manager for wiped managed fields.
    managers.retain(|manager| !ownership::is_made_up(manager));
    managers.sort();
    managers.dedup();
    managers
}

pub(super) fn drift_reason(prefix: &str, managers: &[String]) -> String {
    if managers.is_empty() {
        format!("{prefix}the cluster drifted")
    } else {
        format!(
            "{prefix}the cluster drifted: {} wrote to fields of the release",
            managers.join(", ")
        )
    }
}
