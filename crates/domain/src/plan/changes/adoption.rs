//! What happens to an existing object that may be taken over.

use super::emit::{Manner, apply_after, block, change};
use super::refusal;
use crate::diff::ownership::FieldSet;
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
                let finding = refusal::conflict(ctx, manifest, blocking);
                return block(ctx, draft, manifest, finding);
            }
            // What they hold through a subresource stays theirs after the merge.
            (fields.clone(), None)
        }
        Some(Prediction::Unverified(why)) => (Vec::new(), Some(why.to_string())),
        Some(Prediction::Refused(refusal)) => {
            return block(ctx, draft, manifest, refusal::refused(refusal));
        }
        Some(Prediction::Immutable { fields, .. }) => {
            // Only what we applied ourselves may be deleted.
            return block(ctx, draft, manifest, refusal::immutable_foreign(fields));
        }
        Some(Prediction::Creates) | None => {
            let finding = refusal::not_read("the server was not asked about it");
            return block(ctx, draft, manifest, finding);
        }
    };
    let strangers = ownership::strangers(ctx, live);
    let reason = if !live.has_managed_fields {
        "it exists and is taken over; its record of owners is empty".to_owned()
    } else if strangers.is_empty() {
        "it exists; a former adoption of it was not finished".to_owned()
    } else {
        format!("it exists and is taken over from {}", strangers.join(", "))
    };
    change(ctx, draft, manifest, Action::Adopt, &reason).unverified = unverified;
    let strip = ownership::marks_to_strip(manifest, before);
    let why = if strip.is_empty() {
        "the fields of the former managers become ours"
    } else {
        "the fields of the former managers become ours, and the marks of the former deployer go"
    };
    let from = |manager: &str| ownership::may_take_over(ctx, manager);
    let own = ownership::own(
        ctx,
        manifest,
        before,
        ownership::Change {
            from: &from,
            take_back: FieldSet::default(),
            strip,
        },
    );
    if let Some(finding) = ownership::helm_remains(ctx, live) {
        draft.findings.push(finding);
    }
    let manner = Manner {
        take_over,
        ..Manner::default()
    };
    apply_after(
        ctx,
        draft,
        manifest,
        own.map(|own| (own, why)),
        manner,
        live,
        &reason,
    );
}
