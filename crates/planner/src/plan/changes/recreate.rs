//! Recreates objects with a changed immutable field.
//!
//! Only members that we applied ourselves are recreated, and only after the
//! server accepted the new object in a dry run. Protected kinds and objects
//! with the annotation against deletion also need a consent in git. The consent
//! names the object and the version change.

mod stateful;

pub(in crate::plan) use stateful::lost_claims;

use super::emit::{block, change, create};
use super::refusal;
use crate::crd::covers;
use crate::observe::ApiRefusal;
use crate::plan::{
    Deletion, Propagation,
    consent::bound_to,
    draft::{Ctx, Draft},
    model::{Action, EdgeReason, Need, Op, Precondition, Until},
    protection::{installed_version, protected},
};
use pleach_fields::diff::Cause;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{FieldPath, Manifest, ObjectId, annotations};
use pleach_model::order::{DeletionClass, deletion_class};
use pleach_state::live::LiveMeta;

/// Plans the deletion and the creation, or blocks the object.
pub(super) fn decide(
    ctx: &Ctx<'_>,
    draft: &mut Draft,
    manifest: &Manifest,
    live: &LiveMeta,
    (fields, refused): (&[FieldPath], Option<&ApiRefusal>),
    cause: Option<Cause>,
) {
    let id = manifest.id();
    let named = named(ctx, manifest, fields);
    let fields = named.as_slice();
    if let Some(refusal) = refused {
        return block(
            ctx,
            draft,
            manifest,
            refusal::refused_again(fields, refusal),
        );
    }
    let propagation = match propagation(ctx, id, live, fields) {
        Ok(propagation) => propagation,
        Err(mut finding) => {
            if let Some(besides) = lost_claims(ctx, id, stateful::advised(ctx, id)) {
                finding.message = format!("{}; {besides}", finding.message);
            }
            return block(ctx, draft, manifest, *finding);
        }
    };
    if propagation == Propagation::Orphan && !stateful::adopts(ctx, id) {
        return block(ctx, draft, manifest, stateful::left_behind(fields));
    }
    let entry = ctx.observed.inventory.entries.get(id);
    let deletion = entry.and_then(|entry| {
        Deletion::of_recreate(ctx.member(entry, live), propagation, fields.to_vec())
    });
    let Some(deletion) = deletion else {
        return block(ctx, draft, manifest, refusal::immutable_foreign(fields));
    };
    let why = deletion.explain();
    let reason = match propagation {
        Propagation::Orphan => format!("{why}; its pods stay and are adopted by the new object"),
        Propagation::Background | Propagation::Foreground => {
            match lost_claims(ctx, id, propagation) {
                Some(besides) => format!("{why}; {besides}"),
                None => why.clone(),
            }
        }
    };
    change(ctx, draft, manifest, Action::Recreate, &reason).cause = cause;
    let stage = ctx.stage_of(id);
    let delete = draft.step(ctx, stage, id.clone(), Op::Delete(deletion), &why);
    draft.at(delete).require = vec![Precondition::Uid(live.uid.clone())];
    draft.at(delete).until = Some(Until::Absent { pods: None });
    let created = create(ctx, draft, manifest, "the previous object is gone");
    draft.edge(delete, Need::Absent, created, EdgeReason::SameObject);
}

/// Mutable fields of a `StatefulSet`. For all others the server only reports
/// that a field in `spec` is immutable.
const MUTABLE: [&str; 7] = [
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

/// Returns the immutable fields that changed, as precisely as known.
fn named(ctx: &Ctx<'_>, manifest: &Manifest, fields: &[FieldPath]) -> Vec<FieldPath> {
    let id = manifest.id();
    let spec = FieldPath::default().key("spec");
    let live = ctx.observed.full.get(id);
    let (Some(live), true) = (
        live,
        id.is("apps", "StatefulSet") && fields == [spec.clone()],
    ) else {
        return fields.to_vec();
    };
    let desired = ctx.desired.ignored.lean(manifest).value();
    let desired = desired["spec"].as_object().into_iter().flatten();
    let found: Vec<FieldPath> = desired
        .filter(|(key, _)| !MUTABLE.contains(&key.as_str()))
        .filter(|(key, desired)| !covers(&live.value()["spec"][*key], desired))
        .map(|(key, _)| spec.key(key))
        .collect();
    if found.is_empty() {
        return fields.to_vec();
    }
    found
}

/// Returns the propagation of the deletion, or a finding if it needs a consent.
fn propagation(
    ctx: &Ctx<'_>,
    id: &ObjectId,
    live: &LiveMeta,
    fields: &[FieldPath],
) -> Result<Propagation, Box<Finding>> {
    let entry = ctx.observed.inventory.entries.get(id);
    let is_stateful = id.is("apps", "StatefulSet");
    let protected = match protected(ctx, id, entry) {
        None if is_stateful => Some("objects of kind StatefulSet".to_owned()),
        other => other,
    };
    let (against, instead) = match protected {
        Some(what) => (Some(format!("{what} are protected")), ""),
        None if live.annotations.get(annotations::PRUNE).map(String::as_str)
            == Some("disabled") =>
        {
            (
                Some(format!(
                    "its annotation {}: disabled forbids that",
                    annotations::PRUNE
                )),
                "remove the annotation, in the cluster too; or, ",
            )
        }
        None => (None, ""),
    };
    // Old and new pods must not run at the same time.
    let default = if deletion_class(&id.group_kind()) == DeletionClass::Workloads {
        Propagation::Foreground
    } else {
        Propagation::Background
    };
    let (release, from) = (&ctx.desired.name.release, installed_version(ctx));
    let to = &ctx.desired.version;
    let consent = ctx
        .policy
        .consent
        .iter()
        .find(|consent| consent.allows_recreate(id, release, from, to));
    match (consent, against) {
        (Some(consent), _) => Ok(consent.propagation.map_or(default, Propagation::from)),
        (None, None) => Ok(default),
        (None, Some(against)) => {
            let namespace = match &id.namespace {
                Some(namespace) => format!("namespace: {namespace}, "),
                None => String::new(),
            };
            let orphan = match stateful::advised(ctx, id) {
                _ if !is_stateful => "",
                Propagation::Orphan => ", propagation: Orphan",
                _ => ", propagation: Foreground",
            };
            let message = format!(
                "{}; it would have to be recreated, but {against}",
                refusal::cannot_change(fields)
            );
            Err(Box::new(
                Finding::error(Kind::Policy, "immutable-field", message).hint(format!(
                    "{instead}to recreate it, add to `consent` in {}: {{action: recreate, kind: {}, {namespace}name: {}, {}{orphan}}}",
                    ctx.environment_file(),
                    id.kind,
                    id.name,
                    bound_to(ctx),
                )),
            ))
        }
    }
}
