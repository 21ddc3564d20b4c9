//! Fields of ours that another manager wrote.
//!
//! The values of git are restored, unless another writer keeps changing them. A
//! field restored three times within ten minutes from the same manager is left
//! alone until the writes stop. Two controllers that revert each other do more
//! harm than a field with a wrong value.

use std::collections::BTreeSet;

use super::member::Sides;
use crate::plan::{draft::Ctx, model::Taken};
use pleach_fields::diff::{
    locate,
    ownership::{FieldSet, applied_by, owned_by_others, owners},
};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{FieldPath, Manifest};
use pleach_state::live::Live;

/// Returns the fields that we lost and that an apply would restore, with their
/// present owners.
pub(super) fn taken(ctx: &Ctx<'_>, Sides { before, after }: Sides<'_>) -> Vec<Taken> {
    if !before.meta().has_managed_fields {
        // The managed fields were wiped, so the owner is unknown.
        return Vec::new();
    }
    let ours = |live: &Live| applied_by(&live.value()["metadata"], &ctx.manager);
    let lost = ours(after).difference(&ours(before));
    let mut taken = BTreeSet::new();
    for field in lost.leaves() {
        let mut managers = owners(&before.value()["metadata"], &field);
        managers.retain(|manager| *manager != ctx.manager);
        if managers.is_empty() {
            managers.push(String::new());
        }
        for manager in managers {
            let field = field.clone();
            taken.insert(Taken { field, manager });
        }
    }
    taken.into_iter().collect()
}

/// Returns the lost fields that other managers would still co-own after an
/// apply. The other manager wrote the same value, so there is no conflict, and
/// the field would survive when git drops it.
pub(super) fn shared(
    ctx: &Ctx<'_>,
    Sides { before, after }: Sides<'_>,
    contended: &[Taken],
) -> FieldSet {
    if !before.meta().has_managed_fields {
        return FieldSet::default();
    }
    let ours = |live: &Live| applied_by(&live.value()["metadata"], &ctx.manager);
    let lost = ours(after).difference(&ours(before));
    let lost = contended
        .iter()
        .fold(lost, |lost, one| lost.without(&one.field));
    lost.intersection(&owned_by_others(&after.value()["metadata"], &ctx.manager))
}

/// Returns the fields that are no longer restored because they are contended.
pub(super) fn contended(ctx: &Ctx<'_>, manifest: &Manifest, taken: &[Taken]) -> Vec<Taken> {
    let Some(installed) = &ctx.observed.installed else {
        return Vec::new();
    };
    taken
        .iter()
        .filter(|one| {
            let field = one.field.to_string();
            installed.is_contended(manifest.id(), &field, &one.manager, ctx.observed.at)
        })
        .cloned()
        .collect()
}

/// Returns the fields to omit from the apply. `None` if a field cannot be
/// omitted, because the manifest spells it differently from the server.
pub(super) fn left_out(manifest: &Manifest, contended: &[Taken]) -> Option<Vec<FieldPath>> {
    let value = manifest.value();
    let fields: BTreeSet<&FieldPath> = contended.iter().map(|one| &one.field).collect();
    fields
        .into_iter()
        .map(|field| locate::find(&value, field).map(|_| field.clone()))
        .collect()
}

/// Builds the warning about contended fields.
pub(super) fn finding(manifest: &Manifest, contended: &[Taken]) -> Finding {
    let fields: Vec<String> = contended
        .iter()
        .map(|one| format!("{} with {}", one.field, one.who()))
        .collect();
    Finding::warning(
        Kind::Conflict,
        "contended",
        format!(
            "contended: {}; pleach reverted it three times within ten minutes, and leaves it unchanged until the other writes stop",
            fields.join(", ")
        ),
    )
    .at(manifest.origin().clone())
    .on(manifest.id().clone())
    .hint("stop the other writer, or leave the field to it with an ignore rule of the release")
}
