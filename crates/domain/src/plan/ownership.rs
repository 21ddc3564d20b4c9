//! Whose an existing object is.

use super::draft::Ctx;
use super::model::{NonSecret, Policy};
use crate::diff::ownership;
use crate::finding::{Finding, Kind};
use crate::inventory::EntryState;
use crate::object::{Manifest, ObjectId};
use crate::observe::{Live, LiveMeta};

/// What may be done with an existing object.
pub(super) enum Claim {
    /// It is a member of the release.
    Ours,
    /// It may be taken over.
    Adopt,
    /// It is somebody else's.
    Refused(Box<Finding>),
}

/// Field managers of pleach beside the release's own: what they hold is taken over.
const OUR_OTHER_MANAGERS: &[&str] = &["pleach-overlay", "pleach-copy", "pleach-state"];

/// The owner that the server makes up for fields that nobody is recorded for.
pub(super) const MADE_UP_MANAGER: &str = "before-first-apply";

/// The families that `adopt` may name, and the managers that belong to them.
const FAMILIES: &[(&str, &[&str])] = &[
    ("kubectl", &["kubectl", MADE_UP_MANAGER]),
    ("flux", &["kustomize-controller", "helm-controller", "flux"]),
    ("helm", &["helm", "Helm"]),
    ("argocd", &["argocd"]),
];

/// The marks that a deployer which may still be active leaves on its objects:
/// label or annotation, who it is, and how it is stopped.
const DEPLOYERS: &[(&str, &str, &str)] = &[
    (
        "kustomize.toolkit.fluxcd.io/name",
        "Flux",
        "flux suspend kustomization NAME",
    ),
    (
        "helm.toolkit.fluxcd.io/name",
        "Flux",
        "flux suspend helmrelease NAME",
    ),
    (
        "argocd.argoproj.io/tracking-id",
        "Argo CD",
        "argocd app set NAME --sync-policy none",
    ),
    (
        "meta.helm.sh/release-name",
        "Helm",
        "annotate the objects with helm.sh/resource-policy=keep and apply the chart, then helm uninstall NAME",
    ),
];

/// Another deployer that may be active on an object.
pub(super) struct Deployer {
    /// The label or annotation by which it is known.
    pub(super) mark: &'static str,
    name: &'static str,
    stop: &'static str,
}

/// The deployer that left its mark on an object.
pub(super) fn deployer(live: &LiveMeta) -> Option<Deployer> {
    DEPLOYERS
        .iter()
        .find(|(mark, ..)| live.labels.contains_key(*mark) || live.annotations.contains_key(*mark))
        .map(|(mark, name, stop)| Deployer { mark, name, stop })
}

/// Decides by existence, not by conflict: an object that exists, is not in the
/// inventory and lacks our label needs the release's `adopt`.
pub(super) fn claim(ctx: &Ctx<'_>, id: &ObjectId, live: &LiveMeta) -> Claim {
    if let Some(set) = live.part_of().filter(|set| *set != ctx.apply_set) {
        return Claim::Refused(Box::new(
            Finding::error(
                Kind::Policy,
                "foreign-apply-set",
                format!("it is part of another ApplySet ({set})"),
            )
            .hint("remove it from the other set, or from this release"),
        ));
    }
    if is_ours(ctx, id, live) {
        return Claim::Ours;
    }
    if let Some(Deployer { mark, name, stop }) = deployer(live) {
        return Claim::Refused(Box::new(
            Finding::error(
                Kind::Policy,
                "owned-by-deployer",
                format!("{name} manages it (mark `{mark}`)"),
            )
            .hint(format!(
                "taking over from an active {name} is not supported yet; stop it first: `{stop}`"
            )),
        ));
    }
    let strangers = strangers(ctx, live);
    // Our own Apply entry and nobody else's: an adoption that was cut short
    // between its patch and its apply.
    let is_begun = strangers.is_empty() && live.fingerprint.is_some();
    if is_begun || strangers.iter().any(|manager| ctx.policy.adopts(manager)) {
        return Claim::Adopt;
    }
    let managers = if strangers.is_empty() {
        "nobody on record".to_owned()
    } else {
        strangers.join(", ")
    };
    Claim::Refused(Box::new(
        Finding::error(
            Kind::Policy,
            "not-adopted",
            format!(
                "it exists already and is not of this release; its fields are held by {managers}"
            ),
        )
        .hint(adoption_hint(&strangers)),
    ))
}

/// Whether the object carries our label or is a member. One that somebody else
/// created while we applied it carries our label too; it is theirs as long as
/// they hold fields of it. A member that was deleted and made again by hand is
/// still wanted here: it drifted, unless another deployer made it.
fn is_ours(ctx: &Ctx<'_>, id: &ObjectId, live: &LiveMeta) -> bool {
    let entry = ctx.observed.inventory.entries.get(id);
    let is_same = entry.is_some_and(|entry| entry.uid.as_deref() == Some(&live.uid));
    match entry.map(|entry| entry.state) {
        Some(EntryState::Kept) if is_same => strangers(ctx, live).is_empty(),
        Some(EntryState::Applied) => {
            is_same || live.part_of().is_some() || deployer(live).is_none()
        }
        _ => live.part_of().is_some(),
    }
}

/// The managers of an object that are not ours.
pub(super) fn strangers<'a>(ctx: &Ctx<'_>, live: &'a LiveMeta) -> Vec<&'a str> {
    live.managers
        .iter()
        .map(String::as_str)
        .filter(|manager| *manager != ctx.manager && !is_our_other(manager))
        .collect()
}

fn adoption_hint(managers: &[&str]) -> String {
    let family = managers.iter().find_map(|manager| family(manager));
    let wanted = family.or_else(|| managers.first().copied());
    format!(
        "to take it over, add `adopt: [{}]` to the release in the environment file",
        wanted.unwrap_or("kubectl")
    )
}

/// The family that a manager belongs to: the first that matches, Flux runs
/// Helm under a name of its own.
fn family(manager: &str) -> Option<&'static str> {
    FAMILIES
        .iter()
        .find(|(_, managers)| managers.iter().any(|known| manager.starts_with(known)))
        .map(|(name, _)| *name)
}

impl Policy {
    /// Whether objects and fields of this manager may be taken over.
    pub fn adopts(&self, manager: &str) -> bool {
        let family = family(manager);
        self.adopt
            .iter()
            .any(|wanted| wanted == manager || Some(wanted.as_str()) == family)
    }
}

/// Whether a manager is one of pleach's own beside the release's.
pub(super) fn is_our_other(manager: &str) -> bool {
    OUR_OTHER_MANAGERS.contains(&manager)
}

/// Whether fields of this manager are taken over without asking.
pub(super) fn may_take_over(ctx: &Ctx<'_>, manager: &str) -> bool {
    manager == ctx.manager || is_our_other(manager) || ctx.policy.adopts(manager)
}

/// The patch that makes the fields of some managers ours.
pub(super) fn merge(
    ctx: &Ctx<'_>,
    manifest: &Manifest,
    live: &Live,
    taken: &dyn Fn(&str) -> bool,
) -> Option<NonSecret> {
    let metadata = &live.value()["metadata"];
    let api_version = manifest.api_version().to_string();
    ownership::merge_entries(metadata, &api_version, &ctx.manager, taken).map(NonSecret)
}
