//! List items of ours that another manager replaced with its own.
//!
//! Changing the key of a list item, such as the port of a Service, creates
//! another item. A plain apply would add our item next to the foreign one. The
//! server refuses that if a field must be unique. So we first take ownership of
//! the foreign item, and the apply then removes it because git lacks it.

use std::collections::BTreeSet;

use super::drift;
use super::emit::{Manner, apply_after, change};
use super::member::{drift_reason, own};
use crate::observe::{ApiRefusal, FieldConflict};
use crate::plan::{
    draft::{Ctx, Draft},
    model::{Action, Taken},
};
use pleach_fields::diff::{
    Cause,
    ownership::{FieldSet, displacing},
};
use pleach_model::object::Manifest;
use pleach_state::live::Live;

/// Marker of the API server for two items with the same unique value.
const DUPLICATE: &str = ": Duplicate value";

/// Plans to restore our items and the conflicting `fields`. Returns false if
/// the refusal has another cause.
pub(super) fn restore(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    manifest: &Manifest,
    before: &Live,
    refusal: &ApiRefusal,
    fields: &[FieldConflict],
) -> bool {
    let unique = doubled(&refusal.message);
    let theirs = displacing(before.value(), &manifest.value(), &ctx.manager, &unique);
    let mut reclaim = FieldSet::default();
    let mut managers = BTreeSet::new();
    let mut taken = Vec::new();
    for (manager, fields) in theirs {
        reclaim = reclaim.union(&fields);
        taken.extend(fields.leaves().into_iter().map(|field| Taken {
            field,
            manager: manager.clone(),
        }));
        managers.insert(manager);
    }
    if taken.is_empty() {
        return false;
    }
    let contended = drift::contended(ctx, manifest, &taken);
    if !contended.is_empty() {
        draft.findings.push(drift::finding(manifest, &contended));
        let reason =
            "other field managers keep writing to fields of the release; it is not changed";
        change(ctx, draft, manifest, Action::Skip, reason);
        return true;
    }
    let Some(own) = own(ctx, manifest, before, reclaim) else {
        return false;
    };
    managers.extend(fields.iter().map(|field| field.manager.clone()));
    let managers: Vec<String> = managers.into_iter().collect();
    let reason = drift_reason("", &managers);
    let change = change(ctx, draft, manifest, Action::Update, &reason);
    change.cause = Some(Cause::Drift { managers });
    change.corrects = taken;
    change.unverified = Some(
        "the server refuses it while its lists contain items of other field managers".to_owned(),
    );
    let manner = Manner {
        take_over: fields.to_vec(),
        ..Manner::default()
    };
    let live = before.meta();
    apply_after(ctx, draft, manifest, Some(own), manner, live, &reason);
    true
}

/// Returns the names of the fields in which items collide.
fn doubled(message: &str) -> Vec<&str> {
    message
        .match_indices(DUPLICATE)
        .filter_map(|(end, _)| message[..end].rsplit('.').next())
        .filter(|name| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_that_are_doubled_are_read_from_the_refusal() {
        let one = r#"Service "web" is invalid: spec.ports[1].name: Duplicate value: "http""#;
        assert_eq!(doubled(one), ["name"]);
        let two = r#"Service "web" is invalid: [spec.ports[1].name: Duplicate value: "http", spec.ports[1].nodePort: Duplicate value: 30080]"#;
        assert_eq!(doubled(two), ["name", "nodePort"]);
        assert!(doubled("spec.ports[1]: Duplicate value: {}").is_empty());
        assert!(doubled("spec.replicas: Invalid value").is_empty());
    }
}
