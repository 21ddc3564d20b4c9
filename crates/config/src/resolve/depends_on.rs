//! Dependencies of releases: `dependsOn`.

use std::collections::BTreeMap;

use super::partly::Findings;
use super::rules;
use crate::dependencies::{Dependency, Needed, NeededObject, arrange};
use crate::environment::release_name;
use pleach_formats::file;
use pleach_formats::readiness::NAMES;
use pleach_model::cel::Expression;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{GroupKind, Origin, well_known_group, yaml::Node};
use pleach_model::suggest::did_you_mean;

/// Refuses dependencies on missing releases, and cycles.
pub(super) fn check(releases: &[file::Release], nodes: &[Node], findings: &mut Findings) {
    let names: Vec<&str> = nodes
        .iter()
        .map(|node| release_name(node).unwrap_or_default())
        .collect();
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, name) in names.iter().enumerate() {
        // A second release of the same name is refused at its own location.
        known.entry(name).or_insert(index);
    }
    let mut needs: Vec<Vec<usize>> = Vec::with_capacity(releases.len());
    for (release, node) in releases.iter().zip(nodes) {
        let mut needed = Vec::new();
        for (dependency, place) in declared(release, node) {
            let file::Dependency::Release(name) = dependency else {
                continue;
            };
            if let Some(index) = known.get(name.as_str()) {
                needed.push(*index);
                continue;
            }
            let message =
                format!("`dependsOn` names release `{name}`, which the environment does not have");
            let mut finding =
                Finding::error(Kind::Repository, "unknown-release", message).at(place);
            finding.hint = did_you_mean(name, &known.keys().copied().collect::<Vec<_>>());
            findings.of(release_name(node)).push(finding);
        }
        needs.push(needed);
    }
    for circle in arrange(&needs).circles {
        let path: Vec<&str> = circle.iter().map(|index| names[*index]).collect();
        let message = format!("these releases wait for each other: {}", path.join(" -> "));
        let place = circle.first().and_then(|first| nodes.get(*first));
        let place = place.and_then(|node| node.entry("dependsOn"));
        let mut finding = Finding::error(Kind::Repository, "release-cycle", message)
            .hint("remove one of these dependencies");
        finding.place = place.map(|entry| Origin::new(&*entry.value.file, entry.line));
        for index in circle {
            findings.of(Some(names[index])).push(finding.clone());
        }
    }
}

/// Resolves the dependencies of a release.
pub(super) fn resolve(
    release: &file::Release,
    node: &Node,
    findings: &mut Vec<Finding>,
) -> Vec<Dependency> {
    let items = node.get("dependsOn").map_or(&[][..], Node::items);
    let mut resolved = Vec::new();
    for ((dependency, origin), item) in declared(release, node).zip(items) {
        let needed = match dependency {
            file::Dependency::Release(name) => Some(Needed::Release(name.clone())),
            file::Dependency::Object(declared) => {
                object(declared, item, findings).map(Needed::Object)
            }
        };
        resolved.extend(needed.map(|needed| Dependency { needed, origin }));
    }
    resolved
}

/// Returns the declared dependencies with their locations.
fn declared<'a>(
    release: &'a file::Release,
    node: &'a Node,
) -> impl Iterator<Item = (&'a file::Dependency, Origin)> {
    let items = node.get("dependsOn").map_or(&[][..], Node::items);
    let declared = release.depends_on.as_deref().unwrap_or_default();
    declared.iter().zip(items.iter().map(Node::origin))
}

fn object(
    declared: &file::DependencyObject,
    node: &Node,
    findings: &mut Vec<Finding>,
) -> Option<NeededObject> {
    let mut invalid = |message: String, hint: &str| {
        findings.push(
            Finding::error(Kind::Repository, "invalid-value", message)
                .at(node.origin())
                .hint(hint),
        );
    };
    let named = [
        Some(&declared.name),
        Some(&declared.kind),
        declared.namespace.as_ref(),
    ];
    let is_pattern = |text: &&String| text.is_empty() || text.contains(['*', '?', '/']);
    if named.into_iter().flatten().any(|text| is_pattern(&text)) {
        let message = "`dependsOn` must name exactly one object".to_owned();
        invalid(message, "write kind, name and namespace without patterns");
        return None;
    }
    let group = declared
        .group
        .as_deref()
        .or_else(|| well_known_group(&declared.kind));
    let Some(group) = group else {
        let message = format!("the API group of {} is not known", declared.kind);
        invalid(message, "set `group`");
        return None;
    };
    let ready = match declared
        .ready
        .as_deref()
        .map(|text| Expression::compile(text, NAMES))
    {
        None => None,
        Some(Ok(ready)) => Some(ready),
        Some(Err(error)) => {
            findings.push(rules::expression(node, "ready", &error));
            return None;
        }
    };
    Some(NeededObject {
        kind: GroupKind::new(group, declared.kind.clone()),
        namespace: declared.namespace.clone(),
        name: declared.name.clone(),
        ready,
    })
}
