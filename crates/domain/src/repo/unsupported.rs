//! What may be written and is not built yet: refused in words, never ignored.

use crate::finding::{Finding, Kind};
use crate::object::Origin;
use crate::object::yaml::{Content, Entry, Node};

/// Fields of a release.
const RELEASE: [&str; 1] = ["dependsOn"];

/// Refuses what an environment file uses and pleach does not have.
pub(super) fn in_environment(root: &Node, findings: &mut Vec<Finding>) {
    let releases = root.get("releases").map_or(&[][..], Node::items);
    for (index, release) in releases.iter().enumerate() {
        let path = format!("releases[{index}].");
        fields(release, &path, &RELEASE, findings);
    }
}

/// Fields of the loop's configuration, with where they are.
const CONTROLLER: [&str; 1] = ["notifications"];

/// Fields of a repository that the loop follows.
const WATCHED: [(&str, &[&str]); 2] = [
    ("", &["verify"]),
    ("auth", &["sshKeyFile", "knownHostsFile", "githubApp"]),
];

/// Refuses what the loop's configuration uses and pleach does not have.
pub(super) fn in_controller(root: &Node, findings: &mut Vec<Finding>) {
    fields(root, "", &CONTROLLER, findings);
    let repositories = root.get("repositories").map_or(&[][..], Node::items);
    for (index, repository) in repositories.iter().enumerate() {
        let path = format!("repositories[{index}].");
        for (within, names) in WATCHED {
            match repository.get(within) {
                _ if within.is_empty() => fields(repository, &path, names, findings),
                Some(node) => fields(node, &format!("{path}{within}."), names, findings),
                None => {}
            }
        }
        let environments = repository.get("environments").map_or(&[][..], Node::items);
        for (at, environment) in environments.iter().enumerate() {
            if let Some(cluster) = environment.get("cluster") {
                let path = format!("{path}environments[{at}].cluster.");
                fields(cluster, &path, &["kubeconfigSecret"], findings);
            }
        }
    }
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

/// An empty list and nothing at all ask for nothing.
fn asks_for_something(node: &Node) -> bool {
    !node.is_null() && !matches!(&node.content, Content::List(items) if items.is_empty())
}

fn refuse(entry: &Entry, what: &str) -> Finding {
    at(Origin::new(&*entry.value.file, entry.line), what)
}
