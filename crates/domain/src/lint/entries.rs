//! Entries of the environment file that are about nothing, or that have done
//! what they were for.

use super::Scene;
use crate::finding::{Finding, Kind};
use crate::repo::{Consent, ConsentAction};

pub(super) fn check(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    for (index, consent) in scene.environment.consent.iter().enumerate() {
        if let Some(finding) = consent_left_over(scene, consent) {
            findings.push(finding.at(scene.own_place("consent", index)));
        }
    }
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
