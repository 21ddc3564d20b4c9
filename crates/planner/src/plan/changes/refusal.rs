//! Findings that block an object.

use std::collections::BTreeSet;

use crate::observe::{ApiRefusal, Escalation, FieldConflict, MissingRule};
use crate::plan::{draft::Ctx, ownership};
use pleach_fields::ignore::FieldPattern;
use pleach_model::discovery::Served;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{FieldPath, Gvk, Manifest, well_known_group};
use pleach_state::inventory::EntryState;
use pleach_state::live::LiveMeta;

/// Returns whether a CRD of the release serves the manifest's kind at its
/// version.
pub(super) fn is_defined(ctx: &Ctx<'_>, manifest: &Manifest) -> bool {
    ctx.crd(&manifest.id().group_kind())
        .is_some_and(|(_, crd)| crd.served.contains(&manifest.gvk()))
}

/// Returns whether an APIService of the release will serve the manifest's kind.
/// The group-version must not answer yet, and the object must never have been
/// seen at it unless the kind is absent.
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
    if let Some((_, crd)) = ctx.crd(&id.group_kind()) {
        let versions: Vec<String> = crd.served.iter().map(version).collect();
        return finding.hint(format!(
            "its CRD in this release serves {}",
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

/// Describes immutable fields that change.
pub(super) fn cannot_change(fields: &[FieldPath]) -> String {
    let fields: Vec<String> = fields.iter().map(ToString::to_string).collect();
    format!(
        "{} cannot be changed on an existing object",
        fields.join(", ")
    )
}

/// Refuses to recreate an object that is not recorded as applied by us.
pub(super) fn immutable_foreign(fields: &[FieldPath]) -> Finding {
    Finding::error(Kind::Policy, "immutable-field", cannot_change(fields)).hint(
        "pleach only recreates objects that this release has applied; set the fields to their values in the cluster and apply that first",
    )
}

/// Refuses an adoption that would remove immutable fields.
pub(super) fn immutable_left_out(fields: &[FieldPath], gone: &[FieldPath]) -> Finding {
    if gone.is_empty() {
        return immutable_foreign(fields);
    }
    let gone: Vec<String> = gone.iter().map(ToString::to_string).collect();
    let gone = gone.join(", ");
    let message = format!("{}, and git does not have {gone}", cannot_change(fields));
    Finding::error(Kind::Policy, "immutable-field", message).hint(
        "an adoption removes fields that git does not have; add these fields with their values in the cluster",
    )
}

/// Refuses to recreate an object whose new version the server rejects.
pub(super) fn refused_again(fields: &[FieldPath], refusal: &ApiRefusal) -> Finding {
    Finding::error(
        Kind::Policy,
        "immutable-field",
        format!(
            "{}, and the server would refuse the new object ({}): {}",
            cannot_change(fields),
            refusal.code,
            refusal.message
        ),
    )
}

/// Prefix of the server's message about a conversion webhook that did not
/// answer.
const CONVERSION_FAILED: &str = "conversion webhook for ";

pub(in crate::plan) fn refused(refusal: &ApiRefusal) -> Finding {
    let (kind, code) = match refusal.code {
        _ if refusal.is_by_admission() => (Kind::Policy, "denied"),
        401 | 403 => (Kind::Cluster, "forbidden"),
        409 => (Kind::Conflict, "refused"),
        429 | 502..=504 => (Kind::Cluster, "refused"),
        // The object is valid; the conversion webhook fails.
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
    finding.hint = MissingRule::read(&refusal.message)
        .map(|rule| rule.hint())
        .or_else(|| Escalation::hint_of(&refusal.message))
        .or_else(|| filled_in(&refusal.message))
        .or_else(|| {
            let ask =
                "change the object so that it passes the check, or ask the owner of the check to allow it";
            (code == "denied").then(|| ask.to_owned())
        });
    finding
}

/// Refuses a change of an object that the server accepted before and other
/// managers wrote since. The manifest is not at fault.
pub(super) fn refused_beside(
    ctx: &Ctx<'_>,
    manifest: &Manifest,
    live: &LiveMeta,
    refusal: &ApiRefusal,
) -> Finding {
    let found = refused(refusal);
    let managers = ownership::strangers(ctx, live);
    if refusal.code != 422 || found.kind == Kind::Policy || managers.is_empty() {
        return found;
    }
    let message = format!(
        "the fields in git conflict with fields that {} wrote: {}",
        managers.join(", "),
        found.message
    );
    let object = manifest.id().kubectl_arguments();
    Finding::error(Kind::Conflict, &found.code, message).hint(format!(
        "remove those fields with `kubectl edit {object}`; \
         `kubectl get {object} -o yaml --show-managed-fields` shows their managers"
    ))
}

/// Returns a hint for a field that the server defaulted next to a choice that
/// git no longer makes. The field has no owner, so no apply removes it.
fn filled_in(message: &str) -> Option<String> {
    message.contains("may not be specified when").then(|| {
        "if git does not have that field, the server defaulted it, and no apply removes a field without an owner: \
         add it to the manifest with its current value and apply that first, then the change"
            .to_owned()
    })
}

/// Reports fields that other managers own, with ways to resolve the conflict.
/// Each way is a line to copy.
pub(super) fn conflict<'a>(
    ctx: &Ctx<'_>,
    manifest: &Manifest,
    fields: impl IntoIterator<Item = &'a FieldConflict>,
) -> Finding {
    let fields: Vec<&FieldConflict> = fields.into_iter().collect();
    Finding::error(Kind::Conflict, "field-conflict", holders(&fields))
        .hint(ways_out(ctx, manifest, &fields, true))
}

fn holders(fields: &[&FieldConflict]) -> String {
    let owned: Vec<String> = fields
        .iter()
        .map(|field| format!("{} owns {}", field.manager, field.field))
        .collect();
    owned.join("; ")
}

/// Reports fields that other managers own and that are immutable. Taking
/// ownership would not help.
pub(super) fn immutable_conflict(
    ctx: &Ctx<'_>,
    manifest: &Manifest,
    fields: &[FieldConflict],
    immutable: &[FieldPath],
) -> Finding {
    let fields: Vec<&FieldConflict> = fields.iter().collect();
    let message = format!("{}, and {}", holders(&fields), cannot_change(immutable));
    Finding::error(Kind::Conflict, "field-conflict", message)
        .hint(ways_out(ctx, manifest, &fields, false))
}

/// Returns hints to resolve a conflict. `may_change` includes the hint to take
/// ownership, which is useless for immutable fields.
fn ways_out(
    ctx: &Ctx<'_>,
    manifest: &Manifest,
    fields: &[&FieldConflict],
    may_change: bool,
) -> String {
    let id = manifest.id();
    let value = manifest.value();
    let managers: BTreeSet<&str> = fields.iter().map(|field| field.manager.as_str()).collect();
    let managers: Vec<&str> = managers.into_iter().collect();
    let names: Vec<String> = fields
        .iter()
        .filter_map(|field| FieldPattern::of_server(&field.field, &value))
        .map(|field| field.to_string())
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let quoted: Vec<String> = names.iter().map(|name| in_flow(name)).collect();
    let namespace = match &id.namespace {
        Some(namespace) => format!(", namespace: {namespace}"),
        None => String::new(),
    };
    let group = if well_known_group(&id.kind) == Some(id.group.as_str()) {
        String::new()
    } else {
        format!(", group: {}", in_flow(&id.group))
    };
    let (release, file) = (&ctx.desired.name.release, ctx.environment_file());
    let take_over = if may_change {
        let managers: Vec<String> = managers.iter().map(|manager| in_flow(manager)).collect();
        format!(
            "to take ownership of them, add:\n  adopt: [{}]\n",
            managers.join(", ")
        )
    } else {
        String::new()
    };
    format!(
        "to leave the fields to {}, add to release {release} in {file}:\n  \
         ignore: [{{kind: {}{group}, name: {}{namespace}, fields: [{}]}}]\n\
         {take_over}or remove {} from {}",
        managers.join(", "),
        id.kind,
        in_flow(&id.name),
        quoted.join(", "),
        names.join(", "),
        manifest.origin(),
    )
}

/// Quotes a text for a YAML flow sequence if necessary.
fn in_flow(text: &str) -> String {
    let is_plain = !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
        && !text.starts_with('-');
    if is_plain {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "''"))
    }
}
