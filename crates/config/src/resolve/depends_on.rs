//! Dependencies of releases: `dependsOn`.

use std::collections::BTreeMap;

use super::partly::Findings;
use super::{rules, unknown_group};
use crate::dependencies::{Dependency, Needed, NeededObject, arrange};
use pleach_formats::file;
use pleach_formats::readiness::NAMES;
use pleach_model::cel::Expression;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Located, Places, known_kind};
use pleach_model::suggest::did_you_mean;

/// Refuses dependencies on missing releases, and cycles.
pub(super) fn check(releases: &[Located<file::Release>], findings: &mut Findings) {
    let names: Vec<&str> = releases
        .iter()
        .map(|release| release.own_name().unwrap_or_default())
        .collect();
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, name) in names.iter().enumerate() {
        // A second release of the same name is refused at its own location.
        known.entry(name).or_insert(index);
    }
    let mut needs: Vec<Vec<usize>> = Vec::with_capacity(releases.len());
    for release in releases {
        let mut needed = Vec::new();
        for dependency in release.depends_on.iter().flatten() {
            let file::Dependency::Release(name) = &dependency.value else {
                continue;
            };
            if let Some(index) = known.get(name.as_str()) {
                needed.push(*index);
                continue;
            }
            let message =
                format!("`dependsOn` names release `{name}`, which the environment does not have");
            let mut finding = dependency.places.error("unknown-release", message);
            finding.hint = did_you_mean(name, &known.keys().copied().collect::<Vec<_>>());
            findings.of(release.own_name()).push(finding);
        }
        needs.push(needed);
    }
    for circle in arrange(&needs).circles {
        let path: Vec<&str> = circle.iter().map(|index| names[*index]).collect();
        let message = format!("these releases wait for each other: {}", path.join(" -> "));
        let mut finding = Finding::error(Kind::Repository, "release-cycle", message)
            .hint("remove one of these dependencies");
        let first = circle.first().and_then(|first| releases.get(*first));
        finding.place = first.map(|release| release.places.key("dependsOn"));
        for index in circle {
            findings.of(Some(names[index])).push(finding.clone());
        }
    }
}

/// Resolves the dependencies of a release.
pub(super) fn resolve(release: &file::Release, findings: &mut Vec<Finding>) -> Vec<Dependency> {
    let declared = release.depends_on.iter().flatten();
    declared
        .filter_map(|dependency| {
            let needed = match &dependency.value {
                file::Dependency::Release(name) => Needed::Release(name.clone()),
                file::Dependency::Object(declared) => {
                    Needed::Object(object(declared, &dependency.places, findings)?)
                }
            };
            let origin = dependency.places.origin.clone();
            Some(Dependency { needed, origin })
        })
        .collect()
}

fn object(
    declared: &file::DependencyObject,
    places: &Places,
    findings: &mut Vec<Finding>,
) -> Option<NeededObject> {
    let named = [
        Some(&declared.name),
        Some(&declared.kind),
        declared.namespace.as_ref(),
    ];
    let is_pattern = |text: &&String| text.is_empty() || text.contains(['*', '?', '/']);
    if named.into_iter().flatten().any(|text| is_pattern(&text)) {
        let message = "`dependsOn` must name exactly one object";
        findings.push(places.refuse(message, "write kind, name and namespace without patterns"));
        return None;
    }
    let Some(kind) = known_kind(declared.group.as_deref(), &declared.kind) else {
        findings.push(unknown_group(places, &declared.kind));
        return None;
    };
    let ready = declared.ready.as_deref();
    let ready = ready
        .map(|text| Expression::compile(text, NAMES))
        .transpose();
    let ready = ready
        .map_err(|error| findings.push(rules::expression(places, "ready", &error)))
        .ok()?;
    Some(NeededObject {
        kind,
        namespace: declared.namespace.clone(),
        name: declared.name.clone(),
        ready,
    })
}
