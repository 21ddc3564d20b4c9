//! Entries of the environment file that have no effect or are obsolete.

use super::Scene;
use pleach_config::{ResolvedRelease, release_name};
use pleach_formats::policy::{Consent, ConsentAction};
use pleach_model::finding::{Finding, Kind, overridable::OVERRIDABLE};
use pleach_model::foreign_tools;
use pleach_model::object::{Origin, managers};
use pleach_model::suggest::did_you_mean;

pub(super) fn check(scene: &Scene<'_>, findings: &mut Vec<Finding>) {
    for (index, consent) in scene.environment.consent.iter().enumerate() {
        if let Some(finding) = consent_left_over(scene, consent) {
            findings.push(finding.at(scene.own_place("consent", index)));
        }
    }
    for release in &scene.environment.releases {
        findings.extend(rollback_left_over(scene, release));
        for item in &release.adopt {
            if let Some((message, hint)) = adopts_nothing(item, &release.adopt) {
                let message = format!("release {}: {message}", release.name.release);
                findings.push(
                    Finding::warning(Kind::Repository, "unused-adopt", message)
                        .at(release.origin.clone())
                        .hint(hint),
                );
            }
        }
    }
}

/// Reports a rollback to another version than the target version. It is already finished, or was
/// never started.
fn rollback_left_over(scene: &Scene<'_>, release: &ResolvedRelease) -> Option<Finding> {
    let rollback = release.versions.rollback.as_ref()?;
    let (message, hint) = match &release.version {
        None => (
            "`rollback` is between versions, but the version of this release is the git revision"
                .to_owned(),
            "remove it; to go back, revert the commit",
        ),
        Some(version) if *version != rollback.to => (
            format!(
                "the rollback is to {}, but release {} is at {version}",
                rollback.to, release.name.release
            ),
            "remove it after the rollback",
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

/// Returns the problem and the hint if an item of `adopt` has no effect.
///
/// Any name can be that of a field manager, so only obvious mistakes are found.
fn adopts_nothing(item: &str, all: &[String]) -> Option<(String, String)> {
    let take_out = || "remove it".to_owned();
    if all.iter().filter(|other| *other == item).count() > 1 {
        return Some((format!("`adopt` has {item} more than once"), take_out()));
    }
    if item == "pleach" || managers::is_of_pleach(item) {
        let message =
            format!("`adopt` has {item}: field managers of pleach itself need no consent");
        return Some((message, take_out()));
    }
    match foreign_tools::family(item) {
        Some(family) if family != item && all.iter().any(|other| other == family) => {
            let message = format!("`adopt` has {item}, which {family} covers");
            Some((message, take_out()))
        }
        Some(_) => None,
        None => {
            let hint = foreign_tools::families().find(|family| is_misspelled(item, family))?;
            let message =
                format!("`adopt` has {item}, which is not a known family of field managers");
            Some((message, format!("did you mean `{hint}`?")))
        }
    }
}

/// Returns whether an item is a misspelled family: one edit away, or a different notation. Real
/// manager names are similar to each other, so larger distances do not count.
fn is_misspelled(item: &str, family: &str) -> bool {
    let plain: String = item
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|letter| letter.to_ascii_lowercase())
        .collect();
    let short = plain.strip_suffix("cd").unwrap_or(&plain);
    [plain.as_str(), short]
        .iter()
        .any(|text| strsim::osa_distance(text, family) <= 1)
}

fn consent_left_over(scene: &Scene<'_>, consent: &Consent) -> Option<Finding> {
    // Resolving already reported the missing release.
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
                    "the consent is for {to}, but release {} is at {version}",
                    consent.release
                ),
            )
            .hint("remove it after that upgrade"),
        );
    }
    let named = scene.objects.iter().find(|object| {
        let id = object.id();
        object.release.name == release.name
            && consent.kind.as_ref() == Some(&id.kind)
            && consent.name.as_ref() == Some(&id.name)
            && consent
                .group
                .as_ref()
                .is_none_or(|group| *group == id.group)
            && (consent.namespace.is_none() || consent.namespace == id.namespace)
    });
    let unused = |message: String| Finding::warning(Kind::Repository, "unused-consent", message);
    match (consent.action, named) {
        // Without `to`, the consent is possibly meant for the uninstall of the release.
        (ConsentAction::Delete, Some(retained)) if consent.to.is_some() => Some(
            unused(format!(
                "the consent is to delete {}, which release {} still contains",
                retained.id(),
                consent.release
            ))
            .hint("remove the consent, or remove the object from the manifests"),
        ),
        (ConsentAction::Recreate, None) => Some(
            unused(format!(
                "the consent is to recreate {} {}, which no manifest of release {} contains",
                consent.kind.as_deref().unwrap_or_default(),
                consent.name.as_deref().unwrap_or_default(),
                consent.release
            ))
            .hint("correct the name, or remove the consent"),
        ),
        (ConsentAction::Override, _) => overrides_nothing(release, consent),
        _ => None,
    }
}

/// Reports an override of a check that does not exist.
fn overrides_nothing(release: &ResolvedRelease, consent: &Consent) -> Option<Finding> {
    let name = consent.check.as_deref()?;
    let checks = release.sequence.checks.iter();
    let known: Vec<&str> = checks
        .map(|check| check.name.as_str())
        .chain(OVERRIDABLE)
        .collect();
    if known.contains(&name) {
        return None;
    }
    let message = format!(
        "the consent is to override check {name}, which the bundle of release {} does not have",
        consent.release
    );
    let finding = Finding::warning(Kind::Repository, "unused-consent", message);
    let hint = did_you_mean(name, &known);
    Some(finding.hint(hint.unwrap_or_else(|| "correct the name, or remove the consent".to_owned())))
}
