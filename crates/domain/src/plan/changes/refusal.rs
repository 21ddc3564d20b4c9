//! Why an object cannot be brought about.

use crate::finding::{Finding, Kind};
use crate::inventory::EntryState;
use crate::object::{FieldPath, Gvk, Manifest};
use crate::observe::{ApiRefusal, FieldConflict, MissingRule, Served};
use crate::plan::draft::Ctx;

/// Whether a definition of the release serves the manifest's kind at its version.
pub(super) fn is_defined(ctx: &Ctx<'_>, manifest: &Manifest) -> bool {
    ctx.definition(&manifest.id().group_kind())
        .is_some_and(|(_, definition)| definition.served.contains(&manifest.gvk()))
}

/// Whether an APIService of the release registers the manifest's group-version,
/// and that is not there yet; or it does not answer yet, and the object was
/// never seen there.
pub(super) fn is_to_come(ctx: &Ctx<'_>, manifest: &Manifest) -> bool {
    let (api_version, discovery) = (manifest.api_version(), &ctx.observed.discovery);
    let entry = ctx.observed.inventory.entries.get(manifest.id());
    let is_new = entry.is_none_or(|entry| entry.state == EntryState::Intended);
    let is_absent = discovery.served(&manifest.gvk()) == Served::Absent;
    ctx.api(api_version).is_some() && !discovery.answers(api_version) && (is_new || is_absent)
}

pub(super) fn api_stale(manifest: &Manifest) -> Finding {
    Finding::error(
        Kind::Cluster,
        "api-stale",
        format!(
            "the API {} is registered but its server does not answer",
            manifest.api_version()
        ),
    )
    .hint("see the APIService of that group-version: `kubectl get apiservices`")
}

pub(super) fn not_served(ctx: &Ctx<'_>, manifest: &Manifest) -> Finding {
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
    if let Some((_, definition)) = ctx.definition(&id.group_kind()) {
        let versions: Vec<String> = definition.served.iter().map(version).collect();
        return finding.hint(format!(
            "its definition in this release serves {}",
            versions.join(", ")
        ));
    }
    match ctx.observed.discovery.preferred(&id.group_kind()) {
        Some((version, _)) => finding.hint(format!("it is served at {version}")),
        None => finding.hint("the CustomResourceDefinition must be installed first"),
    }
}

fn version(gvk: &Gvk) -> String {
    gvk.api_version.to_string()
}

pub(super) fn not_read(message: &str) -> Finding {
    Finding::error(Kind::Cluster, "not-read", message)
}

pub(super) fn immutable(paths: &[FieldPath]) -> Finding {
    let paths: Vec<String> = paths.iter().map(ToString::to_string).collect();
    Finding::error(
        Kind::Policy,
        "immutable-field",
        format!("{} cannot be changed on an existing object", paths.join(", ")),
    )
    .hint("recreating objects is not supported yet; delete it by hand, or give the new object another name")
}

/// How the server begins to say that the webhook which converts the objects of
/// a definition between its versions did not answer.
const CONVERSION_FAILED: &str = "conversion webhook for ";

pub(super) fn refused(refusal: &ApiRefusal) -> Finding {
    let (kind, code) = match refusal.code {
        401 | 403 => (Kind::Cluster, "forbidden"),
        409 => (Kind::Conflict, "refused"),
        429 | 502..=504 => (Kind::Cluster, "refused"),
        // The object is well; what stands between it and us is not.
        500 if refusal.message.starts_with(CONVERSION_FAILED) => {
            (Kind::Cluster, "conversion-failed")
        }
        _ => (Kind::Repository, "refused"),
    };
    let mut finding = Finding::error(
        kind,
        code,
        format!(
            "the server refuses it ({}): {}",
            refusal.code, refusal.message
        ),
    );
    finding.hint = MissingRule::read(&refusal.message).map(|rule| rule.hint());
    finding
}

pub(super) fn conflict<'a>(fields: impl IntoIterator<Item = &'a FieldConflict>) -> Finding {
    let held: Vec<String> = fields
        .into_iter()
        .map(|field| format!("{} holds {}", field.manager, field.field))
        .collect();
    Finding::error(Kind::Conflict, "field-conflict", held.join("; ")).hint(
        "take the fields over with `adopt` in the environment file, or remove them from the manifest",
    )
}
