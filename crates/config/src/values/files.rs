//! Files of values that `valuesFrom` names.

use std::collections::BTreeMap;

use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{
    Origin,
    yaml::{Content, Entry, Node, parse_nodes},
};
use pleach_model::secret_values::SecretValues;
use pleach_model::tree::FileTree;
use pleach_sops::{METADATA, Read};
use serde_json::Value;

use super::Layer;
use crate::read_file::read_text;

/// Reader of files of values. Reads and decrypts each file once.
pub(crate) struct ValuesFiles<'a> {
    tree: &'a dyn FileTree,
    read: BTreeMap<String, Result<Contents, Vec<Finding>>>,
}

/// Contents of a file.
#[derive(Clone)]
struct Contents {
    node: Node,
    secrets: SecretValues,
    has_stand_ins: bool,
}

impl<'a> ValuesFiles<'a> {
    pub(crate) fn new(tree: &'a dyn FileTree) -> Self {
        Self {
            tree,
            read: BTreeMap::new(),
        }
    }

    /// Returns a layer for each file of a `valuesFrom`, in its order. Paths start at `folder`; empty
    /// is the root of the repository. `name` is that of the layer with the `values` beside it.
    pub(crate) fn layers(
        &mut self,
        name: &str,
        folder: &str,
        values_from: Option<&Entry>,
        findings: &mut Vec<Finding>,
    ) -> Vec<Layer> {
        let mut layers = Vec::new();
        for item in values_from.iter().flat_map(|entry| entry.value.items()) {
            let place = Origin::new(&*item.file, item.line);
            // Values of another type were reported by the decoder.
            let Some(path) = item.as_str().and_then(|path| within(folder, path)) else {
                let message = "expected the path of a YAML file, neither absolute nor with `..`";
                let error = Finding::error(Kind::Repository, "invalid-value", message);
                findings.push(error.at(place));
                continue;
            };
            match self.read(&path) {
                Ok(contents) => layers.push(Layer {
                    name: name.to_owned(),
                    node: contents.node,
                    secrets: contents.secrets,
                    has_stand_ins: contents.has_stand_ins,
                }),
                Err(found) => findings.extend(found.into_iter().map(|finding| {
                    let is_missing = finding.code == "missing-file";
                    if !is_missing {
                        return finding;
                    }
                    let message = format!("there is no file {path}");
                    Finding::error(Kind::Repository, "missing-file", message).at(place.clone())
                })),
            }
        }
        layers
    }

    fn read(&mut self, path: &str) -> Result<Contents, Vec<Finding>> {
        let tree = self.tree;
        let entry = self.read.entry(path.to_owned());
        entry.or_insert_with(|| contents(tree, path)).clone()
    }
}

/// Returns the path of a file below `folder`. `None` if it leads elsewhere or is not YAML.
pub(crate) fn within(folder: &str, path: &str) -> Option<String> {
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    let extension = path.rsplit_once('.').map(|(_, extension)| extension);
    let is_yaml = matches!(extension, Some("yaml" | "yml" | "json"));
    let is_below = is_yaml && path.split('/').all(is_plain) && !path.contains('\\');
    let prefix = if folder.is_empty() { "" } else { "/" };
    is_below.then(|| format!("{folder}{prefix}{path}"))
}

fn contents(tree: &dyn FileTree, path: &str) -> Result<Contents, Vec<Finding>> {
    let mut text = read_text(tree, path).map_err(|finding| vec![*finding])?;
    let mut secrets = SecretValues::default();
    let mut has_stand_ins = false;
    let is_encrypted = pleach_sops::is_encrypted(&text);
    if is_encrypted {
        text = match pleach_sops::read(path, &text, tree.encrypted_values())? {
            Read::Decrypted(opened) => {
                secrets = SecretValues::all_of(&Value::Array(opened.values));
                opened.text
            }
            Read::StandIns(opened) => {
                has_stand_ins = true;
                opened.text
            }
        };
    }
    let error = |code: &'static str, message: String, line: usize| {
        Finding::error(Kind::Repository, code, message).at(Origin::new(path, line))
    };
    let mut nodes = parse_nodes(path, &text).map_err(|errors| {
        let findings = errors.into_iter();
        findings
            .map(|found| error("invalid-yaml", found.message, found.line))
            .collect::<Vec<_>>()
    })?;
    let first = (nodes.len() == 1).then(|| nodes.remove(0));
    let Some(mut node) = first.filter(|node| matches!(node.content, Content::Map(_))) else {
        let message = "a file of values is one map".to_owned();
        return Err(vec![error("invalid-value", message, 1)]);
    };
    if is_encrypted && let Content::Map(entries) = &mut node.content {
        entries.retain(|entry| entry.key != METADATA);
    }
    Ok(Contents {
        node,
        secrets,
        has_stand_ins,
    })
}

#[cfg(test)]
mod tests {
    use super::within;

    #[test]
    fn paths_stay_below_their_folder() {
        for (folder, path, expected) in [
            ("", "secrets/a.yaml", Some("secrets/a.yaml")),
            ("manifests/web", "a.yml", Some("manifests/web/a.yml")),
            ("manifests/web", "../a.yaml", None),
            ("", "/etc/a.yaml", None),
            ("", "a/./b.yaml", None),
            ("", "a//b.yaml", None),
            ("", "a.yaml.j2", None),
            ("", "", None),
        ] {
            assert_eq!(within(folder, path).as_deref(), expected, "{folder} {path}");
        }
    }
}
