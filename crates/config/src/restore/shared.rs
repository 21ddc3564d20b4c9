//! Shared parts of a release: they are reported, but not restored.

use std::collections::BTreeSet;

use super::folders::{files, not_restored, of_bundle};
use super::{KEYS, Merged, bundle, item, read, value, version};
use crate::environments;
use crate::release_name;
use crate::values::{Values, ValuesFiles, dotted};
use crate::{bundle as bundles, bundle::Source};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Origin, Places, yaml::Node};
use pleach_model::tree::FileTree;

/// Reports other users of a bundle without versions that is restored.
pub(super) fn users(
    tree: &dyn FileTree,
    name: &str,
    environment: &str,
    release: &str,
) -> Option<Finding> {
    let mut users = Vec::new();
    for other in environments(tree) {
        let Ok(merged) = read(tree, &other) else {
            continue;
        };
        let items = merged.node.get("releases").map_or(&[][..], Node::items);
        for one in items.iter().filter(|one| bundle(one) == Some(name)) {
            let user = release_name(one).unwrap_or_default();
            if other != environment || user != release {
                users.push(format!("{other}/{user}"));
            }
        }
    }
    (!users.is_empty()).then(|| {
        Finding::warning(
            Kind::Policy,
            "shared-bundle",
            format!(
                "bundle {name} has no version folders, so the rollback also changes {}",
                users.join(", ")
            ),
        )
        .hint("give the bundle version folders to have releases at different versions")
    })
}

/// Reports the remaining differences from the target revision after a release was restored.
pub(super) fn differences(
    after: &dyn FileTree,
    then: &dyn FileTree,
    environment: &str,
    release: &str,
) -> Vec<Finding> {
    let (Ok(now), Ok(previous)) = (read(after, environment), read(then, environment)) else {
        return Vec::new();
    };
    let (Some(present), Some(past)) = (item(&now.node, release), item(&previous.node, release))
    else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    let keys: BTreeSet<&str> = present
        .entries()
        .iter()
        .chain(past.entries())
        .map(|entry| entry.key.as_str())
        .filter(|key| !KEYS.contains(key) && *key != "rollback")
        .collect();
    for key in keys {
        if value(present, key) != value(past, key) {
            let what = format!("`{key}` of release {release}");
            findings.push(not_restored(&what).at(Places::from(present).key(key)));
        }
    }
    let values = |tree: &dyn FileTree, merged: &Merged, at: &Node| {
        let mut files = ValuesFiles::new(tree);
        let source = source(tree, &mut files, at);
        let mut layers = source.map_or_else(Vec::new, |source| source.layers);
        layers.extend(merged.layers(release, &mut files, &mut Vec::new()));
        Values::merge(&layers)
    };
    let (is, was) = (values(after, &now, present), values(then, &previous, past));
    let pointers: BTreeSet<&String> = is.origins.keys().chain(was.origins.keys()).collect();
    for pointer in pointers {
        let (new, old) = (is.merged.pointer(pointer), was.merged.pointer(pointer));
        // Name the value, but do not show it: it can be secret.
        if new != old {
            let what = format!("shared value `{}`", dotted(pointer));
            let mut finding = not_restored(&what);
            finding.place = is.origins.get(pointer).map(|source| source.place.clone());
            findings.push(finding);
        }
    }
    findings.extend(files_that_differ(after, then, past));
    findings
}

fn source(tree: &dyn FileTree, files: &mut ValuesFiles<'_>, at: &Node) -> Option<Source> {
    let mut ignored = Vec::new();
    let place = at.origin();
    let found = bundles::find(tree, bundle(at)?, &place, &mut ignored)?;
    found.version(tree, version(at), &place, files, &mut ignored)
}

/// Reports changed files that all versions of the bundle share, and changed macros.
fn files_that_differ(after: &dyn FileTree, then: &dyn FileTree, at: &Node) -> Vec<Finding> {
    let own = bundle(at).map(|name| format!("{}/bundle.yaml", of_bundle(name)));
    let mut findings: Vec<Finding> = own
        .filter(|path| after.read(path).ok() != then.read(path).ok())
        .map(|path| not_restored(&format!("{path} was changed since")).at(Origin::new(path, 0)))
        .into_iter()
        .collect();
    if files(after, "templates") != files(then, "templates") {
        let what = "the macros in templates were changed since";
        findings.push(not_restored(what).at(Origin::new("templates", 0)));
    }
    findings
}
