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
    Refused(Finding),
}

/// Field managers of pleach beside the release's own: what they hold is taken over.
const OUR_OTHER_MANAGERS: &[&str] = &["pleach-overlay", "pleach-copy", "pleach-state"];

/// The owner that the server makes up for fields that nobody is recorded for.
pub(super) const MADE_UP_MANAGER: &str = "before-first-apply";

/// The families that `adopt` may name, and the managers that belong to them.
const FAMILIES: &[(&str, &[&str])] = &[
    ("kubectl", &["kubectl", MADE_UP_MANAGER]),
    ("helm", &["helm", "Helm"]),
    ("flux", &["kustomize-controller", "helm-controller", "flux"]),
    ("argocd", &["argocd"]),
];

/// Marks that a deployer which may still be active leaves on its objects:
/// where it is, under which key, who it is and how it is stopped.
const ACTIVE_OWNERS: &[(bool, &str, &str, &str)] = &[
    (
        true,
        "kustomize.toolkit.fluxcd.io/name",
        "Flux",
        "flux suspend kustomization NAME",
    ),
    (
        true,
        "helm.toolkit.fluxcd.io/name",
        "Flux",
        "flux suspend helmrelease NAME",
    ),
    (
        false,
        "argocd.argoproj.io/tracking-id",
        "Argo CD",
        "argocd app set NAME --sync-policy none",
    ),
    (
        false,
        "meta.helm.sh/release-name",
        "Helm",
        "helm uninstall NAME --keep-history (it deletes the objects)",
    ),
];

/// Decides by existence, not by conflict: an object that exists, is not in the
/// inventory and lacks our label needs the release's `adopt`.
pub(super) fn claim(ctx: &Ctx<'_>, id: &ObjectId, live: &LiveMeta) -> Claim {
    let member = ctx.observed.inventory.entries.get(id).is_some_and(|entry| {
        entry.state == EntryState::Applied && entry.uid.as_deref() == Some(&live.uid)
    });
    match live.part_of() {
        Some(set) if set == ctx.apply_set => return Claim::Ours,
        Some(set) => {
            return Claim::Refused(
                Finding::error(
                    Kind::Policy,
                    "foreign-apply-set",
                    format!("it is part of another ApplySet ({set})"),
                )
                .hint("remove it from the other set, or from this release"),
            );
        }
        None if member => return Claim::Ours,
        None => {}
    }
    if let Some((_, key, owner, command)) = ACTIVE_OWNERS.iter().find(|(label, key, ..)| {
        if *label {
            live.labels.contains_key(*key)
        } else {
            live.annotations.contains_key(*key)
        }
    }) {
        return Claim::Refused(
            Finding::error(Kind::Policy, "owned-by-deployer", format!("{owner} manages it (mark `{key}`)"))
                .hint(format!("taking over from an active {owner} is not supported yet; stop it first: `{command}`")),
        );
    }
    if live
        .managers
        .iter()
        .any(|manager| ctx.policy.adopts(manager))
    {
        return Claim::Adopt;
    }
    let managers = if live.managers.is_empty() {
        "nobody on record".to_owned()
    } else {
        live.managers.join(", ")
    };
    Claim::Refused(
        Finding::error(
            Kind::Policy,
            "not-adopted",
            format!(
                "it exists already and is not of this release; its fields are held by {managers}"
            ),
        )
        .hint(adoption_hint(live)),
    )
}

fn adoption_hint(live: &LiveMeta) -> String {
    let family = live
        .managers
        .iter()
        .find_map(|manager| {
            let family = FAMILIES
                .iter()
                .find(|(_, managers)| managers.iter().any(|known| manager.starts_with(known)));
            Some(family.map_or_else(|| manager.clone(), |(name, _)| (*name).to_owned()))
        })
        .unwrap_or_else(|| "kubectl".to_owned());
    format!("to take it over, add `adopt: [{family}]` to the release in the environment file")
}

impl Policy {
    /// Whether objects and fields of this manager may be taken over.
    pub fn adopts(&self, manager: &str) -> bool {
        self.adopt.iter().any(|wanted| {
            manager == wanted
                || FAMILIES.iter().any(|(name, managers)| {
                    name == wanted && managers.iter().any(|known| manager.starts_with(known))
                })
        })
    }
}

/// Whether fields of this manager are taken over without asking.
pub(super) fn may_take_over(ctx: &Ctx<'_>, manager: &str) -> bool {
    manager == ctx.manager || OUR_OTHER_MANAGERS.contains(&manager) || ctx.policy.adopts(manager)
}

/// The patch that makes the fields of adopted managers ours.
pub(super) fn adoption(ctx: &Ctx<'_>, manifest: &Manifest, live: &Live) -> Option<NonSecret> {
    let metadata = &live.value()["metadata"];
    let api_version = manifest.api_version().to_string();
    ownership::merge_entries(metadata, &api_version, &ctx.manager, &|manager| {
        may_take_over(ctx, manager)
    })
    .map(NonSecret)
}
