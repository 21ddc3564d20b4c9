//! Fields of ours that others wrote to.
//!
//! What git wants is taken back, unless somebody keeps writing it: the same
//! field taken back three times within ten minutes from the same manager is
//! left alone until that has calmed down. Two controllers that undo each
//! other's work do more harm than a field that is not as wanted.

use std::collections::BTreeSet;

use super::member::Sides;
use crate::diff::locate;
use crate::diff::ownership::{FieldSet, applied_by, held_by_others, owners};
use crate::finding::{Finding, Kind};
use crate::object::{FieldPath, Manifest};
use crate::observe::Live;
use crate::plan::draft::Ctx;
use crate::plan::model::Taken;

/// The fields that we have lost and that an apply would bring back to us, with
/// those who hold them now.
pub(super) fn taken(ctx: &Ctx<'_>, Sides { before, after }: Sides<'_>) -> Vec<Taken> {
    if !before.meta().has_managed_fields {
        // The record was wiped: nobody can be told.
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

/// What of this others would still hold beside us after an apply: they wrote
/// it back as it was, so it conflicts with nobody, and would stay when git
/// drops it.
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
    lost.intersection(&held_by_others(&after.value()["metadata"], &ctx.manager))
}

/// What of this is not taken back any more.
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

/// The fields to leave out of what is sent; none when that cannot be done, as
/// the manifest says them in another way than the server.
pub(super) fn left_out(manifest: &Manifest, contended: &[Taken]) -> Option<Vec<FieldPath>> {
    let value = manifest.value();
    let fields: BTreeSet<&FieldPath> = contended.iter().map(|one| &one.field).collect();
    fields
        .into_iter()
        .map(|field| locate::find(&value, field).map(|_| field.clone()))
        .collect()
}

/// Says that a field is fought over.
pub(super) fn finding(manifest: &Manifest, contended: &[Taken]) -> Finding {
    let fields: Vec<String> = contended
        .iter()
        .map(|one| format!("{} with {}", one.field, one.who()))
        .collect();
    Finding::warning(
        Kind::Conflict,
        "contended",
        format!(
            "contended: {}; it was taken back three times within ten minutes and is left alone until that calms down",
            fields.join(", ")
        ),
    )
    .at(manifest.origin().clone())
    .on(manifest.id().clone())
    .hint("stop the other writer, or leave the field to it with an ignore rule of the release")
}
