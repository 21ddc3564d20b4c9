//! Releases that take their version from another release: `versionFrom`.

use std::collections::BTreeMap;

use super::partly::Findings;
use pleach_formats::file;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::Located;
use pleach_model::suggest::did_you_mean;

/// Copies the versions that releases take from others, and the matching `rollback`. Reports each
/// version that cannot be determined.
pub(super) fn follow(releases: &mut [Located<file::Release>], findings: &mut Findings) {
    let names: Vec<Option<&str>> = releases.iter().map(|one| one.own_name()).collect();
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, name) in names.iter().enumerate() {
        // A second release of the same name is refused at its own location.
        if let Some(name) = name {
            known.entry(name).or_insert(index);
        }
    }
    let followed: Vec<Option<usize>> = (0..releases.len())
        .map(|index| {
            releases[index].version_from.as_ref()?;
            let found = followed_by(releases, &known, &names, index);
            found
                .map_err(|finding| {
                    let finding = finding.at(releases[index].places.key("versionFrom"));
                    findings.of(names[index]).push(finding);
                })
                .ok()
        })
        .collect();
    for (index, followed) in followed.into_iter().enumerate() {
        let Some(followed) = followed else { continue };
        let version = releases[followed].version.clone();
        // A `rollback` to another version is obsolete, which is reported at its own location.
        let rollback = releases[followed].rollback.clone();
        let rollback = rollback.filter(|rollback| Some(&rollback.to) == version.as_ref());
        let release = &mut releases[index].value;
        release.version = version;
        release.rollback = release.rollback.take().or(rollback);
    }
}

/// Follows a chain of `versionFrom` to the release with a version.
fn followed_by(
    releases: &[Located<file::Release>],
    known: &BTreeMap<&str, usize>,
    names: &[Option<&str>],
    index: usize,
) -> Result<usize, Box<Finding>> {
    let error = |code: &str, message: String| Finding::error(Kind::Repository, code, message);
    let name_of = |index: usize| names[index].unwrap_or_default();
    if releases[index].version.is_some() {
        let message = "a release has either `version` or `versionFrom`".to_owned();
        return Err(Box::new(error("invalid-value", message)));
    }
    let mut path = vec![index];
    let mut at = index;
    while let Some(followed) = &releases[at].version_from {
        let Some(&next) = known.get(followed.as_str()) else {
            let message = format!(
                "`versionFrom` names release `{followed}`, which the environment does not have"
            );
            let mut finding = error("unknown-release", message);
            finding.hint = did_you_mean(followed, &known.keys().copied().collect::<Vec<_>>());
            return Err(Box::new(finding));
        };
        if let Some(first) = path.iter().position(|known| *known == next) {
            let circle = path[first..].iter().chain([&next]);
            let circle: Vec<&str> = circle.map(|index| name_of(*index)).collect();
            let message = format!(
                "these releases follow each other's version: {}",
                circle.join(" -> ")
            );
            let finding = error("invalid-value", message).hint("one of them needs `version`");
            return Err(Box::new(finding));
        }
        path.push(next);
        at = next;
    }
    if releases[at].version.is_some() {
        return Ok(at);
    }
    let message = format!(
        "release `{}`, whose version is followed, has no version",
        name_of(at)
    );
    Err(Box::new(error("missing-field", message)
        .hint("the version of a bundle without version folders is the git revision: no release has to follow it")))
}
