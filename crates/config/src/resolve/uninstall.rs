//! Handover from a previous release (`movedFrom`), and conditions that forbid an uninstall.

use super::rules::{check_objects, expression};
use super::{Source, check_label};
use pleach_formats::check::Check;
use pleach_formats::file;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Located, Origin, ReleaseName};

/// Resolves the release that hands over its objects, and checks its name.
pub(super) fn origin(
    release: &file::Release,
    name: &ReleaseName,
    place: &Origin,
    findings: &mut Vec<Finding>,
) -> Option<ReleaseName> {
    let from = moved_from(release)?;
    check_label("environment", &from.environment, Some(place), findings);
    check_label("release", &from.release, Some(place), findings);
    if from == *name {
        findings.push(
            Finding::error(
                Kind::Repository,
                "invalid-value",
                "`movedFrom` names the release itself",
            )
            .at(place.clone()),
        );
    }
    Some(from)
}

/// Returns the release that hands over its objects.
pub(crate) fn moved_from(release: &file::Release) -> Option<ReleaseName> {
    let moved = release.moved_from.as_ref()?;
    Some(ReleaseName {
        environment: moved.environment.clone(),
        release: moved.release.clone(),
    })
}

/// Resolves the conditions that forbid an uninstall. The groups of their kinds must be known.
pub(super) fn block_uninstall(
    source: &Source,
    findings: &mut Vec<Finding>,
) -> Vec<file::BlockUninstall> {
    for rule in source.body.block_uninstall.iter().flatten() {
        check_objects(&rule.for_each, &rule.places, findings);
        if let Err(broken) = Check::of_end(rule, rule.places.origin.clone()) {
            let broken = broken.iter();
            findings.extend(broken.map(|one| expression(&rule.places, one.field, &one.error)));
        }
    }
    Located::values(source.body.block_uninstall.clone())
}
