//! Releases that are held while the rest of their environment is synced: those that have errors
//! at the newest commit, and those that need one of these.

use std::collections::BTreeMap;
use std::sync::Arc;

use pleach_domain::object::{GroupKind, Manifest, ObjectId};
use pleach_domain::render::Rendered;
use pleach_domain::repo::ResolvedRelease;

use super::read::{Hold, of_commit};
use crate::engine::load::{HeldRelease, Loaded};

/// Code of the finding about a kind that neither Kubernetes nor a release defines.
const KIND_UNKNOWN: &str = "kind-unknown";

/// What a held release was at the last commit that it can be kept at.
#[derive(Debug, Clone)]
pub(super) enum Former {
    /// It has to be looked up.
    Unknown,
    /// It is being looked up.
    Asked,
    /// No commit was found when the environment was held at this one.
    Absent(String),
    /// The release alone, and whether only its record named that commit.
    Known(Arc<Loaded>, bool),
}

/// What held releases were, by their names.
pub(super) type Formers = BTreeMap<String, Former>;

impl Former {
    /// The release and what it rendered to.
    fn release(&self) -> Option<&(ResolvedRelease, Rendered)> {
        match self {
            // It is alone.
            Self::Known(loaded, _) => loaded.rendered.first(),
            Self::Unknown | Self::Asked | Self::Absent(_) => None,
        }
    }
}

/// Completes an environment with what is known of its held releases: more releases are held
/// where they need something of these, and their objects are known as those of others.
pub(super) fn complete(loaded: &mut Loaded, known: impl Fn(&str) -> Former) -> Formers {
    let mut formers = Formers::new();
    while !loaded.held.is_empty() {
        for name in loaded.held.keys() {
            formers.entry(name.clone()).or_insert_with(|| known(name));
        }
        let taken = Taken::by(&formers);
        let releases = loaded.rendered.iter();
        let held: BTreeMap<String, HeldRelease> = releases
            .filter_map(|(release, rendered)| {
                let reason = taken.speaks_against(rendered)?;
                let held = HeldRelease {
                    reasons: vec![format!("{}: {reason}", release.origin)],
                    moved_from: release.moved_from.clone(),
                };
                Some((release.name.release.clone(), held))
            })
            .collect();
        if held.is_empty() {
            break;
        }
        loaded.hold(held);
    }
    let others = formers.values().filter_map(Former::release);
    loaded.others.extend(others.cloned());
    formers
}

/// What a release is held for at a commit.
pub(super) fn hold_of(held: &HeldRelease, commit: &str) -> Hold {
    let reasons = held.reasons.join("; ");
    Hold {
        revision: Some(commit.to_owned()),
        ..Hold::new("InvalidRepository", of_commit(commit, &reasons))
    }
}

/// What held releases have, which no other release may have.
#[derive(Default)]
struct Taken<'a> {
    objects: BTreeMap<&'a ObjectId, &'a str>,
    kinds: BTreeMap<GroupKind, &'a str>,
    /// A release of which that is not known yet.
    unknown: Option<&'a str>,
}

impl<'a> Taken<'a> {
    fn by(formers: &'a Formers) -> Self {
        let mut taken = Self::default();
        for (name, former) in formers {
            match former {
                Former::Unknown | Former::Asked => taken.unknown = Some(name),
                Former::Absent(_) | Former::Known(..) => {}
            }
            let manifests = former.release().into_iter();
            for manifest in manifests.flat_map(|(_, rendered)| &rendered.manifests) {
                taken.objects.insert(manifest.id(), name);
                if let Some(kind) = defined_by(manifest) {
                    taken.kinds.insert(kind, name);
                }
            }
        }
        taken
    }

    /// Why a release is held as well.
    fn speaks_against(&self, rendered: &Rendered) -> Option<String> {
        let ids = || rendered.manifests.iter().map(Manifest::id);
        if let Some((id, owner)) = ids().find_map(|id| self.objects.get_key_value(id)) {
            return Some(format!("release {owner}, which is held, has {id}"));
        }
        // How objects of such a kind are called depends on its definition.
        let mut findings = rendered.findings.iter();
        if !findings.any(|finding| finding.code == KIND_UNKNOWN) {
            return None;
        }
        if let Some(name) = self.unknown {
            return Some(format!(
                "it uses kinds that release {name}, which is held, may define"
            ));
        }
        let mut kinds = ids().map(ObjectId::group_kind);
        let (kind, name) = kinds.find_map(|kind| self.kinds.get_key_value(&kind))?;
        Some(format!(
            "it uses kind {kind}, which release {name} defines, and that is held"
        ))
    }
}

/// The kind that a definition defines.
fn defined_by(manifest: &Manifest) -> Option<GroupKind> {
    if !pleach_domain::definition::is_definition(manifest.id()) {
        return None;
    }
    let value = manifest.value();
    let group = value["spec"]["group"].as_str()?;
    let kind = value["spec"]["names"]["kind"].as_str()?;
    Some(GroupKind::new(group, kind))
}

#[cfg(test)]
mod tests;
