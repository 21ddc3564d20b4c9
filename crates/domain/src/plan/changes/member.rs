//! What happens to an existing object of the release.

use std::collections::BTreeSet;

use super::emit::{apply_after, block, change, unchanged};
use super::refusal;
use crate::diff::normalize::normalized;
use crate::diff::ownership::{applied_by, holders, survivors};
use crate::finding::{Finding, Kind};
use crate::object::Manifest;
use crate::observe::{DesiredDigest, FieldConflict, Live, LiveMeta, Prediction, is_unchanged};
use crate::plan::draft::{Ctx, Draft};
use crate::plan::model::{Action, Cause};
use crate::plan::ownership;

/// Leaves it as it is, applies it, or says why neither can be done.
pub(super) fn decide(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest, live: &LiveMeta) {
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
        let finding = refusal::not_read("it changed and could not be read");
        return block(ctx, draft, manifest, finding);
    };
    match ctx.observed.predicted.get(id) {
        Some(Prediction::Answer(after)) => {
            compare(ctx, draft, manifest, Sides { before, after }, git, &[]);
        }
        Some(Prediction::Conflict { fields, forced }) => {
            // What we wrote ourselves is taken back, whoever holds it now.
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
                    compare(ctx, draft, manifest, Sides { before, after }, git, fields);
                }
                _ if foreign.is_empty() => {
                    block(ctx, draft, manifest, refusal::conflict(fields));
                }
                _ => block(ctx, draft, manifest, refusal::conflict(foreign)),
            }
        }
        Some(Prediction::Refused(refusal)) => {
            block(ctx, draft, manifest, refusal::refused(refusal));
        }
        Some(Prediction::Immutable(paths)) => {
            block(ctx, draft, manifest, refusal::immutable(paths));
        }
        Some(Prediction::Unverified(why)) => {
            let reason = "it could not be compared";
            let change = change(ctx, draft, manifest, Action::Update, reason);
            change.unverified = Some(why.to_string());
            change.cause = git.then_some(Cause::Git);
            apply_after(ctx, draft, manifest, None, Vec::new(), live, reason);
        }
        Some(Prediction::Creates) | None => {
            let finding = refusal::not_read("the server was not asked about it");
            block(ctx, draft, manifest, finding);
        }
    }
}

/// The live object, and what the server says an apply would make of it. Both
/// are the server's own: it has defaulted and canonicalized them.
#[derive(Clone, Copy)]
struct Sides<'a> {
    before: &'a Live,
    after: &'a Live,
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
    let live = before.meta();
    let differs = normalized(before.value(), false) != normalized(after.value(), false);
    let entry_differs = live.fingerprint != after.meta().fingerprint;
    let repair = repair(ctx, manifest, sides);
    if !differs && !entry_differs && !git && repair.is_none() {
        // Only the record is refreshed, without a write.
        return unchanged(ctx, draft, manifest, "as wanted; the record is refreshed");
    }
    let recorded = ctx.observed.inventory.entries.get(id);
    let recorded = recorded.and_then(|entry| entry.fingerprint);
    let drifted = recorded.is_some() && recorded != live.fingerprint;
    let managers = writers(ctx, sides, conflicts);
    let (cause, reason) = match (git, drifted) {
        (true, true) => (
            Cause::Both {
                managers: managers.clone(),
            },
            drift_reason("git changed and ", &managers),
        ),
        (true, false) => (Cause::Git, "git changed".to_owned()),
        (false, _) if differs => (
            Cause::Drift {
                managers: managers.clone(),
            },
            drift_reason("", &managers),
        ),
        (false, _) => (
            Cause::Ownership,
            "what we own of it is not recorded as ours".to_owned(),
        ),
    };
    change(ctx, draft, manifest, Action::Update, &reason).cause = Some(cause);
    for (path, owners) in survivors(before.value(), after.value(), &ctx.manager) {
        let owners = owners.join(", ");
        let message = format!("git no longer has {path}, but it stays: {owners} holds it too");
        draft.findings.push(
            Finding::warning(Kind::Conflict, "co-owned-field", message)
                .at(manifest.origin().clone())
                .on(id.clone()),
        );
    }
    apply_after(
        ctx,
        draft,
        manifest,
        repair,
        holders_of(conflicts),
        live,
        &reason,
    );
}

/// The patch of the record of owners that must come before the apply: one that
/// was wiped is made up anew, or the server invents an owner for every live
/// field; and what our other managers hold becomes ours.
fn repair(
    ctx: &Ctx<'_>,
    manifest: &Manifest,
    Sides { before, after }: Sides<'_>,
) -> Option<(crate::plan::NonSecret, &'static str)> {
    if !after.meta().has_managed_fields {
        // Its server keeps no record of owners.
        return None;
    }
    let why = if before.meta().has_managed_fields {
        "the fields of our other managers become ours"
    } else {
        "its record of owners was wiped"
    };
    let patch = ownership::merge(ctx, manifest, before, &|manager| {
        ownership::is_our_other(manager)
    });
    patch.map(|patch| (patch, why))
}

/// Who holds what would come back to us: those in conflict, and those that hold
/// what we have lost.
fn writers(
    ctx: &Ctx<'_>,
    Sides { before, after }: Sides<'_>,
    conflicts: &[FieldConflict],
) -> Vec<String> {
    let ours = |live: &Live| applied_by(&live.value()["metadata"], &ctx.manager);
    let lost = ours(after).difference(&ours(before));
    let mut managers = holders(&before.value()["metadata"], &lost, &ctx.manager);
    managers.extend(conflicts.iter().map(|field| field.manager.clone()));
    // Nobody is called that: the server makes it up for a record that was wiped.
    managers.retain(|manager| manager != ownership::MADE_UP_MANAGER);
    managers.sort();
    managers.dedup();
    managers
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

/// The managers in a conflict, without doubles.
pub(super) fn holders_of(conflicts: &[FieldConflict]) -> Vec<String> {
    let managers: BTreeSet<&String> = conflicts.iter().map(|field| &field.manager).collect();
    managers.into_iter().cloned().collect()
}
