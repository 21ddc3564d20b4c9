//! Stalled releases, while the rest of their environment is synced: releases with errors at the
//! newest commit, and releases that need one of them.

use std::collections::BTreeMap;

use pleach_config::ResolvedRelease;
use pleach_model::object::{GroupKind, Manifest, ObjectId};
use pleach_reconciler::stall::Stall;
use pleach_render::Rendered;

use super::loader::of_commit;
use pleach_engine::load::{Loaded, StalledRelease};

/// Code of the finding about a kind that neither Kubernetes nor a release defines.
const KIND_UNKNOWN: &str = "kind-unknown";

/// State of a stalled release at its last usable commit.
#[derive(Debug, Clone, Copy)]
pub(super) enum PreviousRelease<'a> {
    Unknown,
    /// No usable commit was found.
    Absent,
    /// The release and its rendered objects.
    Known(&'a (ResolvedRelease, Rendered)),
}

/// Adds the previous states of stalled releases to an environment. Stalls further releases that
/// need them, and registers their objects as those of other releases.
pub(super) fn complete<'a>(loaded: &mut Loaded, known: impl Fn(&str) -> PreviousRelease<'a>) {
    loop {
        let names = loaded.stalled.keys();
        let previous: BTreeMap<String, PreviousRelease<'a>> =
            names.map(|name| (name.clone(), known(name))).collect();
        let taken = Taken::by(&previous);
        let releases = loaded.rendered.iter();
        let stalled: BTreeMap<String, StalledRelease> = releases
            .filter_map(|(release, rendered)| {
                let reason = taken.speaks_against(rendered)?;
                let stalled = StalledRelease {
                    reasons: vec![format!("{}: {reason}", release.origin)],
                    moved_from: release.moved_from.clone(),
                };
                Some((release.name.release.clone(), stalled))
            })
            .collect();
        if stalled.is_empty() {
            let others = previous.values().filter_map(|previous| match previous {
                PreviousRelease::Known(release) => Some((*release).clone()),
                PreviousRelease::Unknown | PreviousRelease::Absent => None,
            });
            loaded.others.extend(others);
            return;
        }
        loaded.stall(stalled);
    }
}

/// Returns the hold of a release at a commit.
pub(super) fn stall_of(stalled: &StalledRelease, commit: &str) -> Stall {
    let reasons = stalled.reasons.join("; ");
    Stall {
        revision: Some(commit.to_owned()),
        ..Stall::new("InvalidRepository", of_commit(commit, &reasons))
    }
}

/// Objects and kinds of stalled releases, which no other release can contain.
#[derive(Default)]
struct Taken<'a> {
    objects: BTreeMap<&'a ObjectId, &'a str>,
    kinds: BTreeMap<GroupKind, &'a str>,
    /// A release with an unknown previous state.
    unknown: Option<&'a str>,
}

impl<'a> Taken<'a> {
    fn by(previous: &'a BTreeMap<String, PreviousRelease<'a>>) -> Self {
        let mut taken = Self::default();
        for (name, previous) in previous {
            let (_, rendered) = match previous {
                PreviousRelease::Unknown => {
                    taken.unknown = Some(name);
                    continue;
                }
                PreviousRelease::Absent => continue,
                PreviousRelease::Known(release) => release,
            };
            for manifest in &rendered.manifests {
                taken.objects.insert(manifest.id(), name);
                if let Some(kind) = defined_by(manifest) {
                    taken.kinds.insert(kind, name);
                }
            }
        }
        taken
    }

    /// Returns the reason to stall a release too.
    fn speaks_against(&self, rendered: &Rendered) -> Option<String> {
        let ids = || rendered.manifests.iter().map(Manifest::id);
        if let Some((id, owner)) = ids().find_map(|id| self.objects.get_key_value(id)) {
            return Some(format!("release {owner}, which is stalled, contains {id}"));
        }
        // The plural of such a kind depends on its CRD.
        let mut findings = rendered.findings.iter();
        if !findings.any(|finding| finding.code == KIND_UNKNOWN) {
            return None;
        }
        if let Some(name) = self.unknown {
            return Some(format!(
                "it uses kinds whose CRDs could be in release {name}, which is stalled"
            ));
        }
        let mut kinds = ids().map(ObjectId::group_kind);
        let (kind, name) = kinds.find_map(|kind| self.kinds.get_key_value(&kind))?;
        Some(format!(
            "it uses kind {kind}, whose CRD is in release {name}, which is stalled"
        ))
    }
}

/// Returns the kind that a CRD defines.
fn defined_by(manifest: &Manifest) -> Option<GroupKind> {
    if !pleach_planner::crd::is_crd(manifest.id()) {
        return None;
    }
    let value = manifest.value();
    let group = value["spec"]["group"].as_str()?;
    let kind = value["spec"]["names"]["kind"].as_str()?;
    Some(GroupKind::new(group, kind))
}

#[cfg(test)]
pub(crate) mod tests;
