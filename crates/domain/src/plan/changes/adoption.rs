//! What happens to an existing object that may be taken over.

use super::emit::{apply_after, block, change};
use super::member::holders_of;
use super::refusal;
use crate::object::Manifest;
use crate::observe::{FieldConflict, LiveMeta, Prediction};
use crate::plan::draft::{Ctx, Draft};
use crate::plan::model::Action;
use crate::plan::ownership;

/// Merges the fields of adopted managers into our entry, then applies.
pub(super) fn decide(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest, live: &LiveMeta) {
    let id = manifest.id();
    let Some(before) = ctx.observed.full.get(id) else {
        let finding = refusal::not_read("it exists and could not be read");
        return block(ctx, draft, manifest, finding);
    };
    let (take_over, unverified) = match ctx.observed.predicted.get(id) {
        Some(Prediction::Answer(_)) => (Vec::new(), None),
        Some(Prediction::Conflict { fields, forced }) => {
            let mut blocking: Vec<&FieldConflict> = fields
                .iter()
                .filter(|field| !ownership::may_take_over(ctx, &field.manager))
                .collect();
            if blocking.is_empty() && forced.is_none() {
                blocking = fields.iter().collect();
            }
            if !blocking.is_empty() {
                return block(ctx, draft, manifest, refusal::conflict(blocking));
            }
            // What they hold through a subresource stays theirs after the merge.
            (holders_of(fields), None)
        }
        Some(Prediction::Unverified(why)) => (Vec::new(), Some(why.to_string())),
        Some(Prediction::Refused(refusal)) => {
            return block(ctx, draft, manifest, refusal::refused(refusal));
        }
        Some(Prediction::Immutable(paths)) => {
            return block(ctx, draft, manifest, refusal::immutable(paths));
        }
        Some(Prediction::Creates) | None => {
            let finding = refusal::not_read("the server was not asked about it");
            return block(ctx, draft, manifest, finding);
        }
    };
    let from = ownership::strangers(ctx, live);
    let reason = format!("it exists and is taken over from {}", from.join(", "));
    change(ctx, draft, manifest, Action::Adopt, &reason).unverified = unverified;
    let merge = ownership::merge(ctx, manifest, before, &|manager| {
        ownership::may_take_over(ctx, manager)
    });
    let patch = merge.map(|patch| (patch, "the fields of the former managers become ours"));
    apply_after(ctx, draft, manifest, patch, take_over, live, &reason);
}
