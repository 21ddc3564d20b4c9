//! What may be written and is not built yet: refused in words, never ignored.

use crate::finding::{Finding, Kind};
use crate::object::Origin;
use crate::object::yaml::{Content, Entry, Node};

/// Fields of an environment.
const ENVIRONMENT: [&str; 1] = ["sync"];

/// Fields of a release.
const RELEASE: [&str; 1] = ["dependsOn"];

/// Fields of a bundle or version.
const BUNDLE: [&str; 4] = ["gates", "checks", "readiness", "moves"];

/// Actions of a consent.
const CONSENT: [&str; 1] = ["override"];

/// Checks that can be overridden: those that pleach makes by itself.
const CHECKS: [&str; 1] = ["field-in-use"];

/// Refuses what an environment file uses and pleach does not have.
pub(super) fn in_environment(root: &Node, findings: &mut Vec<Finding>) {
    fields(root, "", &ENVIRONMENT, findings);
    let releases = root.get("releases").map_or(&[][..], Node::items);
    for (index, release) in releases.iter().enumerate() {
        let path = format!("releases[{index}].");
        fields(release, &path, &RELEASE, findings);
        patches(release, &path, findings);
        if let Some(entry) = release.entry("restartOnConfigChange")
            && !is_scalar(&entry.value, &false.into())
        {
            findings.push(refuse(entry, &format!("{path}restartOnConfigChange")));
        }
    }
    let consents = root.get("consent").map_or(&[][..], Node::items);
    for (index, consent) in consents.iter().enumerate() {
        if let Some(entry) = consent.entry("action")
            && let Some(action) = entry.value.as_str()
            && CONSENT.contains(&action)
            && !consent
                .get("check")
                .and_then(Node::as_str)
                .is_some_and(|check| CHECKS.contains(&check))
        {
            findings.push(refuse(entry, &format!("consent[{index}].action: {action}")));
        }
    }
}

/// Refuses what a bundle or version file uses and pleach does not have.
pub(super) fn in_bundle(root: &Node, findings: &mut Vec<Finding>) {
    fields(root, "", &BUNDLE, findings);
    patches(root, "", findings);
}

/// Refuses a feature at a place.
pub(super) fn at(place: Origin, what: &str) -> Finding {
    Finding::error(
        Kind::Repository,
        "not-supported-yet",
        format!("`{what}` is not supported yet"),
    )
    .at(place)
}

fn fields(node: &Node, path: &str, names: &[&str], findings: &mut Vec<Finding>) {
    for entry in node.entries() {
        if names.contains(&entry.key.as_str()) && asks_for_something(&entry.value) {
            findings.push(refuse(entry, &format!("{path}{}", entry.key)));
        }
    }
}

fn patches(node: &Node, path: &str, findings: &mut Vec<Finding>) {
    let patches = node.get("patches").map_or(&[][..], Node::items);
    for (index, patch) in patches.iter().enumerate() {
        if let Some(entry) = patch.entry("patch") {
            let mut finding = refuse(entry, &format!("{path}patches[{index}].patch"));
            finding.hint = Some("write it as `json` or `merge`".to_owned());
            findings.push(finding);
        }
        if let Some(entry) = patch
            .get("target")
            .and_then(|target| target.entry("service"))
        {
            findings.push(refuse(
                entry,
                &format!("{path}patches[{index}].target.service"),
            ));
        }
    }
}

/// An empty list and nothing at all ask for nothing.
fn asks_for_something(node: &Node) -> bool {
    !node.is_null() && !matches!(&node.content, Content::List(items) if items.is_empty())
}

fn is_scalar(node: &Node, wanted: &serde_json::Value) -> bool {
    node.is_null() || matches!(&node.content, Content::Scalar(value) if value == wanted)
}

fn refuse(entry: &Entry, what: &str) -> Finding {
    at(Origin::new(&*entry.value.file, entry.line), what)
}
