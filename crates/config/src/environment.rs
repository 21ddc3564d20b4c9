//! Environment files, merged with the files that they extend.

use std::sync::Arc;

use super::decode::decode;
use super::read_file::read_own;
use crate::values::{Layer, ValuesFiles};
use pleach_formats::file;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{
    Origin,
    yaml::{Content, Entry, Node},
};
use pleach_model::suggest::did_you_mean;
use pleach_model::tree::FileTree;

/// Folder of the environment files.
const FOLDER: &str = "environments";

/// Start of the names of value layers of a release.
pub(super) const OF_RELEASE: &str = "release";

/// Files of an environment, and their merge result.
pub(super) struct Merged {
    /// The merged environment.
    pub(super) environment: file::Environment,
    /// The merged tree with positions.
    pub(super) node: Node,
    /// The files in merge order: the base file first.
    chain: Vec<Node>,
}

/// Returns the sorted names of a repository's environments. Omits base files, whose names start
/// with `_`. Includes links: such an environment is unreadable, not removed.
pub fn environments(tree: &dyn FileTree) -> Vec<String> {
    let entries = tree.list(FOLDER).unwrap_or_default();
    entries
        .into_iter()
        .filter(|entry| !entry.name.starts_with(['_', '.']))
        .filter_map(|entry| Some(entry.name.strip_suffix(".yaml")?.to_owned()))
        .collect()
}

/// Reads an environment with all files that it extends.
pub(super) fn read(tree: &dyn FileTree, name: &str, findings: &mut Vec<Finding>) -> Option<Merged> {
    if name.starts_with('_') {
        findings.push(Finding::error(
            Kind::Repository,
            "unknown-environment",
            format!(
                "`{name}` is not an environment: files that start with _ are only for `extends`"
            ),
        ));
        return None;
    }
    // List the other environments only for the message.
    let file = format!("{name}.yaml");
    if file.starts_with('.') || tree.kind(FOLDER, &file).is_none() {
        findings.push(unknown(tree, name, &environments(tree)));
        return None;
    }
    let chain = chain(tree, &file, findings)?;
    let before = findings.len();
    for file in &chain {
        // Decode each file separately, so that an error names its file.
        decode::<file::Environment>(file, findings);
    }
    if findings.len() > before {
        return None;
    }
    let node = chain
        .iter()
        .skip(1)
        .fold(chain.first()?.clone(), |below, above| merge(&below, above));
    let environment = decode(&node, findings)?;
    Some(Merged {
        environment,
        node,
        chain,
    })
}

/// Reads an environment with all files that it extends. Fails with every error found.
pub(super) fn read_merged(tree: &dyn FileTree, name: &str) -> Result<Merged, Vec<Finding>> {
    let mut findings = Vec::new();
    read(tree, name, &mut findings).ok_or(findings)
}

impl Merged {
    /// Returns the environment's own file.
    pub(super) fn own(&self) -> &Node {
        self.chain.last().unwrap_or(&self.node)
    }

    /// Returns the value layers of a release, lowest first: those of the environment files, then
    /// those of the release in each file.
    pub(super) fn layers(
        &self,
        release: &str,
        files: &mut ValuesFiles<'_>,
        findings: &mut Vec<Finding>,
    ) -> Vec<Layer> {
        let last = self.chain.len() - 1;
        let file_name = |node: &Node| node.file.rsplit('/').next().unwrap_or_default().to_owned();
        let mut of_environment = Vec::new();
        let mut of_release = Vec::new();
        for (index, file) in self.chain.iter().enumerate() {
            let from = if index == last {
                String::new()
            } else {
                format!(" {}", file_name(file))
            };
            let name = format!("environment{from}");
            layer(&mut of_environment, &name, file.entry("values"));
            let values_from = file.entry("valuesFrom");
            of_environment.extend(files.layers(&name, "", values_from, findings));
            let Some(releases) = file.entry("releases") else {
                continue;
            };
            if releases.value.is_null() {
                of_release.clear();
            }
            for item in releases.value.items() {
                if release_name(item) == Some(release) {
                    let name = format!("{OF_RELEASE}{from}");
                    layer(&mut of_release, &name, item.entry("values"));
                    let values_from = item.entry("valuesFrom");
                    of_release.extend(files.layers(&name, "", values_from, findings));
                }
            }
        }
        of_environment.append(&mut of_release);
        of_environment
    }
}

/// Adds a layer. `values: null` removes all lower layers.
fn layer(layers: &mut Vec<Layer>, name: &str, values: Option<&Entry>) {
    match values {
        None => {}
        Some(entry) if entry.value.is_null() => layers.clear(),
        Some(entry) => layers.push(Layer::plain(name.to_owned(), entry.value.clone())),
    }
}

fn unknown(tree: &dyn FileTree, name: &str, known: &[String]) -> Finding {
    let mut finding = Finding::error(
        Kind::Repository,
        "unknown-environment",
        format!("there is no environment `{name}`"),
    );
    finding.hint = did_you_mean(name, known).or_else(|| {
        Some(if known.is_empty() {
            format!("create {FOLDER}/{name}.yaml")
        } else {
            format!("known environments: {}", known.join(", "))
        })
    });
    let other = format!("{name}.yml");
    let entries = tree.list(FOLDER).unwrap_or_default();
    if entries.iter().any(|entry| entry.name == other) {
        return finding.hint(format!("rename {FOLDER}/{other} to {FOLDER}/{name}.yaml"));
    }
    finding
}

/// Reads the file and all files that it extends, base file first.
fn chain(tree: &dyn FileTree, file: &str, findings: &mut Vec<Finding>) -> Option<Vec<Node>> {
    let mut chain: Vec<Node> = Vec::new();
    let mut names = vec![file.to_owned()];
    let mut place: Option<Origin> = None;
    loop {
        let name = names.last()?.clone();
        let path = format!("{FOLDER}/{name}");
        let before = findings.len();
        let Some(node) = read_own(tree, &path, "Environment", findings) else {
            // Report a missing file at the `extends` that names it.
            if let (Some(place), Some(finding)) = (place, findings.get_mut(before))
                && finding.code == "missing-file"
            {
                finding.message = format!("`extends`: there is no file {path}");
                finding.place = Some(place);
                finding.hint = did_you_mean(&name, &extendable(tree));
            }
            return None;
        };
        let next = node.entry("extends").and_then(|entry| {
            let origin = Origin::new(&*node.file, entry.line);
            Some((entry.value.as_str()?.to_owned(), origin))
        });
        chain.push(node);
        let Some((next, origin)) = next else {
            chain.reverse();
            return Some(chain);
        };
        let error = |code: &str, message: String| {
            Finding::error(Kind::Repository, code, message).at(origin.clone())
        };
        if next.contains('/') || next.strip_suffix(".yaml").is_none() {
            findings.push(
                error(
                    "invalid-extends",
                    format!("`extends` must name a file in {FOLDER}/, not `{next}`"),
                )
                .hint("write it as `_base.yaml`"),
            );
            return None;
        }
        if names.contains(&next) {
            names.push(next);
            findings.push(error(
                "extends-cycle",
                format!("environments extend each other: {}", names.join(" → ")),
            ));
            return None;
        }
        names.push(next);
        place = Some(origin);
    }
}

fn extendable(tree: &dyn FileTree) -> Vec<String> {
    let entries = tree.list(FOLDER).unwrap_or_default();
    entries.into_iter().map(|entry| entry.name).collect()
}

/// Returns the name of a release, which defaults to its bundle's name.
pub fn release_name(item: &Node) -> Option<&str> {
    item.get("name")
        .filter(|name| !name.is_null())
        .or_else(|| item.get("bundle"))
        .and_then(Node::as_str)
}

/// Merges a file over another: maps are merged, lists replaced, releases merged by name. Null
/// deletes a key.
fn merge(below: &Node, above: &Node) -> Node {
    merge_maps(below, above, &|key, below, above| {
        (key == "releases").then(|| merge_releases(below, above))
    })
}

/// Override of the merge for some keys.
type Special<'a> = &'a dyn Fn(&str, &Node, &Node) -> Option<Node>;

fn merge_maps(below: &Node, above: &Node, special: Special<'_>) -> Node {
    let mut entries: Vec<Entry> = below.entries().to_vec();
    for entry in above.entries() {
        let at = entries.iter().position(|known| known.key == entry.key);
        match at {
            _ if entry.value.is_null() => entries.retain(|known| known.key != entry.key),
            None => entries.push(entry.clone()),
            Some(at) => {
                let below = &entries[at].value;
                let value = special(&entry.key, below, &entry.value).unwrap_or_else(|| {
                    match (&below.content, &entry.value.content) {
                        (Content::Map(_), Content::Map(_)) => {
                            merge_maps(below, &entry.value, &|_, _, _| None)
                        }
                        _ => entry.value.clone(),
                    }
                });
                entries[at] = Entry {
                    key: entry.key.clone(),
                    line: entry.line,
                    written: entry.written,
                    value,
                };
            }
        }
    }
    Node {
        file: Arc::clone(&above.file),
        line: above.line,
        column: above.column,
        content: Content::Map(entries),
    }
}

fn merge_releases(below: &Node, above: &Node) -> Node {
    let mut items: Vec<Node> = below.items().to_vec();
    for item in above.items() {
        let name = release_name(item);
        match items
            .iter()
            .position(|known| name.is_some() && release_name(known) == name)
        {
            Some(at) => items[at] = merge_maps(&items[at], item, &|_, _, _| None),
            None => items.push(item.clone()),
        }
    }
    Node {
        file: Arc::clone(&above.file),
        line: above.line,
        column: above.column,
        content: Content::List(items),
    }
}
