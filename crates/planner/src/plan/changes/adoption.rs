//! Plans the adoption of an existing object.

use super::emit::{Manner, apply_after, block, change};
use super::refusal;
use crate::observe::{FieldConflict, Prediction};
use crate::plan::{
    draft::{Ctx, Draft},
    model::Action,
    ownership,
};
use pleach_fields::diff::{locate, ownership::at_stake};
use pleach_model::finding::Finding;
use pleach_model::object::{FieldPath, Manifest};
use pleach_state::live::LiveMeta;

/// Merges the fields of adopted managers into our entry, then applies.
pub(super) fn decide(ctx: &Ctx<'_>, draft: &mut Draft, manifest: &Manifest, live: &LiveMeta) {
    let id = manifest.id();
    let Some(before) = ctx.observed.full.get(id) else {
        let finding = refusal::not_read("it exists and could not be read");
        return block(ctx, draft, manifest, finding);
    };
    let (take_over, unverified) = match prospect(ctx, manifest, live) {
        Ok(prospect) => prospect,
        Err(finding) => return block(ctx, draft, manifest, *finding),
    };
    let strangers = ownership::strangers(ctx, live);
    let reason = if !live.has_managed_fields {
        "it exists and is adopted; its managedFields are empty".to_owned()
    } else if strangers.is_empty() {
        "it exists; a previous adoption did not finish".to_owned()
    } else {
        format!("it exists and is adopted from {}", strangers.join(", "))
    };
    change(ctx, draft, manifest, Action::Adopt, &reason).unverified = unverified;
    let strip = ownership::marks_to_strip(manifest, before);
    let why = if strip.is_empty() {
        "pleach takes ownership of the fields of the previous managers"
    } else {
        "pleach takes ownership of the fields of the previous managers, and removes the marks of the previous tool"
    };
    let from = |manager: &str| ownership::may_take_over(ctx, manager);
    let own = ownership::own(
        ctx,
        manifest,
        before,
        ownership::Change {
            from: &from,
            reclaim: ctx.desired.left_at_once(ctx.policy, manifest, before),
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

/// Returns the conflicts to force, and the reason if the server has not checked
/// the adoption. Fails with a finding if the adoption is not possible.
fn prospect(
    ctx: &Ctx<'_>,
    manifest: &Manifest,
    live: &LiveMeta,
) -> Result<(Vec<FieldConflict>, Option<String>), Box<Finding>> {
    let id = manifest.id();
    // Check the adopted object first, without the fields that git lacks. A
    // refusal with those fields may not apply without them, and the other way
    // round.
    let is_adopted = ctx.observed.adopted.contains_key(id);
    let finding = match ctx.observed.unadoptable.get(id) {
        Some(Prediction::Refused(refusal)) => Some(refusal::refused(refusal)),
        Some(Prediction::Immutable { fields, .. }) => {
            let gone = left_out(ctx, manifest, fields);
            Some(refusal::immutable_left_out(fields, &gone))
        }
        _ => None,
    };
    if let Some(finding) = finding {
        return Err(Box::new(finding));
    }
    let finding = match ctx.observed.predicted.get(id) {
        Some(Prediction::Answer(_)) => return Ok((Vec::new(), None)),
        Some(Prediction::Refused(_)) if is_adopted => return Ok((Vec::new(), None)),
        Some(Prediction::Unverified(why)) => return Ok((Vec::new(), Some(why.to_string()))),
        Some(Prediction::Conflict {
            refused: Some(refusal),
            immutable,
            ..
        }) if !is_adopted => {
            // The ownership conflict is not the only obstacle; the server would
            // refuse a forced apply too.
            if immutable.is_empty() {
                refusal::refused_beside(ctx, manifest, live, refusal)
            } else {
                refusal::immutable_foreign(immutable)
            }
        }
        Some(Prediction::Conflict { fields, forced, .. }) => {
            let mut blocking: Vec<&FieldConflict> = fields
                .iter()
                .filter(|field| !ownership::may_take_over(ctx, &field.manager))
                .collect();
            if blocking.is_empty() && forced.is_none() && !is_adopted {
                blocking = fields.iter().collect();
            }
            if blocking.is_empty() {
                // Fields written through a subresource keep their owner after
                // the merge, so these conflicts have to be forced.
                return Ok((fields.clone(), None));
            }
            refusal::conflict(ctx, manifest, blocking)
        }
        Some(Prediction::Refused(refusal)) => refusal::refused(refusal),
        // Only objects that we applied ourselves can be recreated.
        Some(Prediction::Immutable { fields, .. }) => refusal::immutable_foreign(fields),
        Some(Prediction::Creates) | None => refusal::not_read("there is no dry run of the change"),
    };
    Err(Box::new(finding))
}

/// Returns fields that the adoption would make ours, that lie within `within`,
/// and that the manifest does not contain.
fn left_out(ctx: &Ctx<'_>, manifest: &Manifest, within: &[FieldPath]) -> Vec<FieldPath> {
    let Some(before) = ctx.observed.full.get(manifest.id()) else {
        return Vec::new();
    };
    let from = |manager: &str| ownership::may_take_over(ctx, manager);
    let live = before.value();
    let desired = manifest.value();
    let ours = at_stake(live, live, &ctx.manager, &from).present(live);
    ours.into_iter()
        .map(|(path, _)| path)
        .filter(|path| within.iter().any(|field| path.0.starts_with(&field.0)))
        .filter(|path| locate::find(&desired, path).is_none())
        .collect()
}
