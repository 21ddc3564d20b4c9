//! Entries of the environment file that are about nothing, or that have done
//! what they were for.

use super::Scene;
use crate::finding::{Finding, Kind};
use crate::object::Origin;
use crate::repo::{Consent, ConsentAction, ResolvedRelease, release_name};

pub(super) fn check(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    for (index, consent) in scene.environment.consent.iter().enumerate() {
        if let Some(finding) = consent_left_over(scene, consent) {
            findings.push(finding.at(scene.own_place("consent", index)));
        }
    }
    for release in &scene.environment.releases {
        findings.extend(rollback_left_over(scene, release));
    }
}

/// An entry for another version than the one that is wanted is for a way that
/// was gone already, or that nobody goes.
fn rollback_left_over(scene: &Scene<'_>, release: &ResolvedRelease) -> Option<Finding> {
    let rollback = release.versions.rollback.as_ref()?;
    let (message, hint) = match &release.version {
        None => (
            "`rollback` is between versions, and the version of this release is the git revision"
                .to_owned(),
            "take it out; to go back, revert the commit",
        ),
        Some(version) if *version != rollback.to => (
            format!(
                "the rollback is to {}, and release {} is at {version}",
                rollback.to, release.name.release
            ),
            "take it out when the way back is gone",
        ),
        Some(_) => return None,
    };
    let place = scene
        .own
        .as_ref()
        .and_then(|file| file.get("releases"))
        .and_then(|releases| {
            let mut items = releases.items().iter();
            items.find(|item| release_name(item) == Some(&release.name.release))
        })
        .and_then(|item| item.entry("rollback"))
        .map_or_else(
            || release.origin.clone(),
            |entry| Origin::new(&*entry.value.file, entry.line),
        );
    let finding = Finding::warning(Kind::Repository, "unused-rollback", message);
    Some(finding.at(place).hint(hint))
}

fn consent_left_over(scene: &Scene<'_>, consent: &Consent) -> Option<Finding> {
    // Resolving has said that the release is not there.
    let release = scene
        .environment
        .releases
        .iter()
        .find(|release| release.name.release == consent.release)?;
    let (to, version) = (consent.to.as_ref(), release.version.as_ref());
    if let (Some(to), Some(version)) = (to, version)
        && to != version
    {
        return Some(
            Finding::warning(
                Kind::Repository,
                "unused-consent",
                format!(
                    "the consent is for {to}, and release {} is at {version}",
                    consent.release
                ),
            )
            .hint("take it out when that upgrade is done"),
        );
    }
    if consent.action != ConsentAction::Delete {
        return None;
    }
    let kept = scene.objects.iter().find(|object| {
        let id = object.id();
        object.release.name == release.name
            && consent.kind.as_ref() == Some(&id.kind)
            && consent.name.as_ref() == Some(&id.name)
            && consent
                .group
                .as_ref()
                .is_none_or(|group| *group == id.group)
            && (consent.namespace.is_none() || consent.namespace == id.namespace)
    })?;
    Some(
        Finding::warning(
            Kind::Repository,
            "unused-consent",
            format!(
                "the consent is to delete {}, which release {} has",
                kept.id(),
                consent.release
            ),
        )
        .hint("take it out, or take the object out of the manifests"),
    )
}
