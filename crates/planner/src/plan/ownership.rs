//! Ownership of existing objects.

use super::draft::Ctx;
use super::model::{Desired, Own, Policy};
use crate::observe::Observed;
use pleach_fields::diff::ownership::{FieldSet, Transfer};
use pleach_fields::ignore::FieldPattern;
use pleach_model::finding::{Finding, Kind};
use pleach_model::foreign_tools::{
    self, ForeignTool, MADE_UP_MANAGER, OwnerKind, OwnerState, Tool,
};
use pleach_model::object::{
    Digest, FieldPath, Manifest, ObjectId, annotations, canonical_json, labels, managers,
};
use pleach_state::inventory::{Entry, EntryState};
use pleach_state::live::{Live, LiveMeta};
use pleach_state::state_objects;

/// Relation of the release to an existing object.
pub(super) enum Claim {
    /// The object is a member of the release.
    Ours,
    /// The release is allowed to take ownership.
    Adopt,
    /// The object belongs to another client.
    Refused(Box<Finding>),
}

/// Decides by existence, not by field conflict. An existing object that is not
/// in the inventory and lacks our label needs the release's `adopt`.
pub(super) fn claim(ctx: &Ctx<'_>, id: &ObjectId, live: &LiveMeta) -> Claim {
    let entry = ctx.observed.inventory.entries.get(id);
    claim_of(ctx, id, entry, live)
}

/// Like [`claim`], for a known entry of the inventory.
pub(super) fn claim_of(
    ctx: &Ctx<'_>,
    id: &ObjectId,
    entry: Option<&Entry>,
    live: &LiveMeta,
) -> Claim {
    if live.part_of().is_some_and(|set| is_previous(ctx, set)) {
        // Handed over: its field manager is the previous release.
        return Claim::Adopt;
    }
    if state_objects::holds_state(id, live) && !is_still_applied(entry, live) {
        return Claim::Refused(Box::new(state_objects::refusal()));
    }
    if let Some(set) = live.part_of().filter(|set| *set != ctx.apply_set)
        && !is_relabelled(ctx, entry, live)
    {
        return Claim::Refused(Box::new(of_another(ctx, live, set)));
    }
    let strangers = strangers(ctx, live);
    if is_member(entry, live, &strangers) {
        return Claim::Ours;
    }
    if let Some(foreign_tool) = foreign_tools::marked(live) {
        return claim_from(ctx, &foreign_tool);
    }
    // With our Apply entry but without our label, an adoption was interrupted
    // between its patch and its apply.
    let is_begun = live.fingerprint.is_some() && live.part_of().is_none();
    // An uninstall of this release left the object in place.
    let released = live.annotations.get(annotations::RELEASED);
    let was_ours = released.is_some_and(|name| *name == ctx.desired.name.to_string());
    let is_adopted = if strangers.is_empty() {
        // Without managed fields, the server would invent an owner.
        ctx.policy.adopts(MADE_UP_MANAGER)
    } else {
        strangers.iter().any(|manager| ctx.policy.adopts(manager))
    };
    if is_begun || was_ours || is_adopted {
        return Claim::Adopt;
    }
    let managers = if strangers.is_empty() {
        "no recorded manager".to_owned()
    } else {
        strangers.join(", ")
    };
    let family = strangers
        .iter()
        .find_map(|manager| foreign_tools::family(manager));
    let manager = family.or_else(|| strangers.first().copied());
    Claim::Refused(Box::new(
        Finding::error(
            Kind::Policy,
            "not-adopted",
            format!(
                "it already exists and is not part of this release; its fields are owned by {managers}"
            ),
        )
        .hint(adoption_hint(ctx, manager.unwrap_or("kubectl"))),
    ))
}

/// Returns whether it is the object that this release applied, and still has
/// our Apply entry.
fn is_still_applied(entry: Option<&Entry>, live: &LiveMeta) -> bool {
    let is_applied = entry.is_some_and(|entry| {
        entry.state == EntryState::Applied && entry.uid.as_deref() == Some(&live.uid)
    });
    is_applied && live.fingerprint.is_some()
}

/// Returns whether only the label of a member changed, and no other release
/// applied it.
fn is_relabelled(ctx: &Ctx<'_>, entry: Option<&Entry>, live: &LiveMeta) -> bool {
    is_still_applied(entry, live) && other_release(ctx, live).is_none()
}

/// Returns another release that applied the object, as
/// `<environment>.<release>`.
fn other_release<'a>(ctx: &Ctx<'_>, live: &'a LiveMeta) -> Option<&'a str> {
    let own = ctx.desired.name.to_string();
    let applied = live.managers.iter();
    let mut releases = applied.filter_map(|manager| manager.strip_prefix(managers::RELEASE));
    releases.find(|name| *name != own)
}

/// Refuses an object of another ApplySet. A release is identified by its field
/// manager. Our own field manager does not decide, because we may have applied
/// the object before.
fn of_another(ctx: &Ctx<'_>, live: &LiveMeta, set: &str) -> Finding {
    let owner = other_release(ctx, live);
    let (message, hint) = match owner.and_then(|name| Some((name, name.split_once('.')?))) {
        Some((name, (environment, release))) => (
            format!("it is part of release {name}"),
            format!(
                "to take ownership of it, add to release {} in {}: `movedFrom: {{environment: {environment}, release: {release}}}`; or remove it from one of the two releases",
                ctx.desired.name.release,
                ctx.environment_file()
            ),
        ),
        // Another client replaced the label of an object that we applied.
        None if live.fingerprint.is_some() => (
            format!("it is part of another ApplySet ({set})"),
            format!(
                "remove it from the other set, or from this release; if no other set contains it, remove its label {}",
                labels::PART_OF
            ),
        ),
        None => (
            format!("it is part of another ApplySet ({set})"),
            "remove it from the other set, or from this release".to_owned(),
        ),
    };
    // `Conflict` blocks only this object; the rest of the release is
    // independent of it.
    Finding::error(Kind::Conflict, "foreign-apply-set", message).hint(hint)
}

/// Decides an object with the marks of another deployment tool. It is adopted
/// only if that tool is suspended or gone, and the release allows it.
fn claim_from(ctx: &Ctx<'_>, foreign_tool: &ForeignTool) -> Claim {
    let refused = |code: &str, message: String, hint: String| {
        Claim::Refused(Box::new(
            Finding::error(Kind::Policy, code, message).hint(hint),
        ))
    };
    let (name, family) = (foreign_tool.name(), foreign_tool.tool.family());
    let then = adoption_hint(ctx, family);
    match state_of(ctx.observed, foreign_tool) {
        OwnerState::Active { namespace } => {
            let commands = foreign_tool
                .owner
                .as_ref()
                .map(|owner| owner.suspend(Some(&namespace)))
                .unwrap_or_default();
            let how = match commands.as_slice() {
                [] => "suspend it first".to_owned(),
                commands => format!("suspend it first: `{}`", commands.join("` or `")),
            };
            refused(
                "owned-by-other-tool",
                format!("{name} manages it and is active"),
                format!("{how}; {then}"),
            )
        }
        OwnerState::Unknown(why) => refused(
            "owned-by-other-tool",
            format!("{name} manages it, and it is unknown whether the tool is active: {why}"),
            format!("allow pleach to read {name}, or delete it; {then}"),
        ),
        OwnerState::Suspended | OwnerState::Absent | OwnerState::Recorded { .. } => {
            if ctx.policy.adopt.iter().any(|adopted| adopted == family) {
                return Claim::Adopt;
            }
            refused(
                "not-adopted",
                format!("it already exists and is not part of this release; {name} installed it"),
                then,
            )
        }
    }
}

/// Returns the state of the tool that owns an object.
fn state_of(observed: &Observed, foreign_tool: &ForeignTool) -> OwnerState {
    let known = observed
        .owners
        .iter()
        .find(|known| Some(&known.owner) == foreign_tool.owner.as_ref());
    match known {
        Some(known) => known.state.clone(),
        // Helm only acts on a command, so an unread state is harmless.
        None if foreign_tool.tool == Tool::Helm => OwnerState::Absent,
        None => OwnerState::Unknown("its state was not read".to_owned()),
    }
}

/// Warns about a Helm record that could still delete an adopted object.
pub(super) fn helm_remains(ctx: &Ctx<'_>, live: &LiveMeta) -> Option<Finding> {
    let owner = foreign_tools::helm_owner(live)?;
    let known = ctx
        .observed
        .owners
        .iter()
        .find(|known| known.owner == owner)?;
    let finding = |message: String| Finding::warning(Kind::Policy, "helm-release-remains", message);
    let name = &owner.name;
    match &known.state {
        OwnerState::Recorded { namespace, records } => {
            let names = records.join(", ");
            let message = format!(
                "Helm still has a record of {owner} ({names} in namespace {namespace}): `helm uninstall {name}` would delete the adopted objects"
            );
            let hint = foreign_tools::forget_helm(namespace, records)
                .map(|command| format!("after this apply, delete the record: `{command}`"));
            Some(match hint {
                Some(hint) => finding(message).hint(hint),
                None => finding(message),
            })
        }
        OwnerState::Unknown(why) => Some(
            finding(format!(
                "it is unknown whether Helm still has a record of {owner}: {why}"
            ))
            .hint(format!(
                "delete its Secrets or ConfigMaps sh.helm.release.v1.{name}.v*, or `helm uninstall {name}` deletes the adopted objects"
            )),
        ),
        OwnerState::Active { .. } | OwnerState::Suspended | OwnerState::Absent => None,
    }
}

/// Returns the owners whose state must be read before the object can be
/// adopted.
pub fn owners_of(live: &LiveMeta) -> Vec<foreign_tools::Owner> {
    let marked = foreign_tools::marked(live).and_then(|foreign_tool| foreign_tool.owner);
    let mut owners: Vec<foreign_tools::Owner> = marked.into_iter().collect();
    owners.extend(
        foreign_tools::helm_owner(live)
            .filter(|helm| !owners.contains(helm) && helm.kind == OwnerKind::HelmInstallation),
    );
    owners
}

/// Returns whether an ApplySet is the one of the release that hands its objects
/// over.
fn is_previous(ctx: &Ctx<'_>, set: &str) -> bool {
    ctx.desired.terms.previous_set.as_deref() == Some(set)
}

/// Returns whether the object is a member of the release.
///
/// An object that another client created while we applied it carries our label
/// too, and stays foreign while that client owns fields. A member that was
/// deleted and created by hand counts as drifted, unless another deployment
/// tool created it.
fn is_member(entry: Option<&Entry>, live: &LiveMeta, strangers: &[&str]) -> bool {
    let is_same = entry.is_some_and(|entry| entry.uid.as_deref() == Some(&live.uid));
    match entry.map(|entry| entry.state) {
        Some(EntryState::Kept) if is_same => strangers.is_empty(),
        Some(EntryState::Applied) => {
            is_same || live.part_of().is_some() || foreign_tools::marked(live).is_none()
        }
        _ => live.part_of().is_some(),
    }
}

/// Returns whether an existing object would have to be adopted.
pub fn is_foreign(entry: Option<&Entry>, live: &LiveMeta, apply_set: &str) -> bool {
    live.part_of().is_none_or(|set| set == apply_set) && !is_member(entry, live, &[])
}

/// Returns the field managers of an object that are not ours.
pub(super) fn strangers<'a>(ctx: &Ctx<'_>, live: &'a LiveMeta) -> Vec<&'a str> {
    live.managers
        .iter()
        .map(String::as_str)
        .filter(|manager| *manager != ctx.manager && !managers::is_other(manager))
        .collect()
}

fn adoption_hint(ctx: &Ctx<'_>, manager: &str) -> String {
    format!(
        "to adopt the object, add `adopt: [{manager}]` to release {} in {}",
        ctx.desired.name.release,
        ctx.environment_file()
    )
}

impl Policy {
    /// Returns whether the policy allows adopting objects and fields of a
    /// manager.
    pub fn adopts(&self, manager: &str) -> bool {
        let family = foreign_tools::family(manager);
        self.adopt
            .iter()
            .any(|adopted| adopted == manager || Some(adopted.as_str()) == family)
    }
}

/// Returns whether a release takes over fields of a manager without a conflict.
/// These are its other managers, the release it takes objects from, and the
/// managers it adopts. Any other release counts as foreign.
pub fn takes_ownership(desired: &Desired, policy: &Policy, manager: &str) -> bool {
    let previous = desired.terms.moved_from.as_ref();
    manager == desired.name.field_manager()
        || managers::is_other(manager)
        || previous.is_some_and(|previous| previous.field_manager() == manager)
        || policy.adopts(manager)
}

/// Returns whether the release takes over fields of a manager without a
/// conflict.
pub(super) fn may_take_over(ctx: &Ctx<'_>, manager: &str) -> bool {
    takes_ownership(ctx.desired, ctx.policy, manager)
}

/// Ownership changes to make before an object is applied.
pub(super) struct Change<'a> {
    /// Selects the managers whose fields become ours.
    pub(super) from: &'a dyn Fn(&str) -> bool,
    /// Fields that become ours alone again.
    pub(super) reclaim: FieldSet,
    /// Labels and annotations to remove.
    pub(super) strip: Vec<FieldPath>,
}

/// Builds the operation that takes over fields and gives up ignored ones.
/// `None` if no ownership changes.
pub(super) fn own(
    ctx: &Ctx<'_>,
    manifest: &Manifest,
    live: &Live,
    change: Change<'_>,
) -> Option<Own> {
    let give_up: &[FieldPattern] = ctx.desired.ignored.of(manifest.id());
    let api_version = manifest.api_version().to_string();
    let transferred = Transfer {
        ours: &ctx.manager,
        api_version: &api_version,
        from: change.from,
        reclaim: &change.reclaim,
        give_up,
        strip: &change.strip,
    }
    .of(live.value())?;
    let managers = live.meta().managers.iter();
    Some(Own {
        api_version,
        from: managers
            .filter(|manager| (change.from)(manager) && **manager != ctx.manager)
            .cloned()
            .collect(),
        reclaim: change.reclaim,
        give_up: give_up.to_vec(),
        strip: change.strip,
        fields: Some(Digest::of(&canonical_json(&transferred.fields.to_json()))),
    })
}

/// Returns the marks of other deployment tools on an object that git does not
/// contain.
pub(super) fn marks_to_strip(manifest: &Manifest, live: &Live) -> Vec<FieldPath> {
    let desired = manifest.value();
    foreign_tools::marks(&live.value()["metadata"])
        .into_iter()
        .filter(|path| pleach_fields::diff::locate::find(&desired, path).is_none())
        .collect()
}

/// Returns whether the manager is the one that the server invents for fields
/// without an owner.
pub(super) fn is_made_up(manager: &str) -> bool {
    manager == MADE_UP_MANAGER
}
