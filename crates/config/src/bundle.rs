//! Folder of a bundle: its versions, and the files to render.

use std::collections::BTreeMap;

use super::decode::decode;
use super::read_file::{Header, header, read_own, read_text};
use crate::values::{Layer, ValuesFiles, ValuesSchema, within};
use pleach_formats::file;
use pleach_formats::versions::{KnownVersion, semantic};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{
    Origin,
    yaml::{Content, Entry, Node, parse_nodes},
};
use pleach_model::suggest::nearest;
use pleach_model::tree::{
    DEEPEST, FileTree, MOST_BYTES, MOST_ENTRIES, TreeEntry, TreeError, TreeKind, is_too_deep,
};

/// Folder of the bundles.
const FOLDER: &str = "manifests";

/// Hint for a bundle that exceeds a limit.
const TOO_MUCH: &str = "remove files that are not deployed, or start their names with _";

/// Schema of a version's values, beside its manifests.
const VALUES_SCHEMA: &str = "values.schema.json";

/// A bundle's folder.
pub(super) struct Found {
    /// Path of the folder.
    pub(super) folder: String,
    /// Content of `bundle.yaml`.
    pub(super) node: Node,
    /// Version folders in ascending order.
    pub(super) versions: Vec<String>,
    entries: Vec<TreeEntry>,
}

/// A version of a bundle, or a bundle without versions.
pub(super) struct Source {
    /// Folder of its files.
    pub(super) folder: String,
    /// Files to render, sorted.
    pub(super) files: Vec<String>,
    /// Files of pleach, charts and their values, which are no manifests.
    pub(super) own: Vec<String>,
    /// `bundle.yaml` with the keys that `version.yaml` replaces.
    pub(super) body: file::Bundle,
    /// Schema of the values.
    pub(super) schema: Option<ValuesSchema>,
    /// Values of `bundle.yaml` and of `version.yaml`, the lowest layers.
    pub(super) layers: Vec<Layer>,
    /// Errors of the files of values.
    pub(super) refused: Vec<Finding>,
}

/// Returns the names of all bundles.
fn bundles(tree: &dyn FileTree) -> Vec<String> {
    let entries = tree.list(FOLDER).unwrap_or_default();
    entries
        .into_iter()
        .filter(|entry| entry.kind == TreeKind::Folder && !is_private(&entry.name))
        .map(|entry| entry.name)
        .collect()
}

fn is_private(name: &str) -> bool {
    name.starts_with(['.', '_'])
}

/// Finds a bundle by name. `place` is the reference to it.
pub(super) fn find(
    tree: &dyn FileTree,
    name: &str,
    place: &Origin,
    findings: &mut Vec<Finding>,
) -> Option<Found> {
    let error = |message: String| {
        Finding::error(Kind::Repository, "unknown-bundle", message).at(place.clone())
    };
    if name.is_empty() || name.contains('/') || is_private(name) {
        findings.push(error(format!(
            "`{name}` is not a bundle name: a bundle is a folder directly below {FOLDER}/"
        )));
        return None;
    }
    let folder = format!("{FOLDER}/{name}");
    // List the other bundles only for the message.
    if tree.kind(FOLDER, name) != Some(TreeKind::Folder) {
        let known = bundles(tree);
        let mut finding = error(format!("there is no bundle `{name}`: no folder {folder}"));
        let entries = tree.list(FOLDER).unwrap_or_default();
        let is_elsewhere = entries.iter().any(|entry| {
            entry.name == name && matches!(entry.kind, TreeKind::Link | TreeKind::Submodule)
        });
        finding.hint = Some(match nearest(name, known.iter().map(String::as_str)) {
            _ if is_elsewhere => {
                format!("{folder} is a link or a submodule, which pleach does not follow")
            }
            Some(nearest) => format!("did you mean `{nearest}`?"),
            None if known.is_empty() => format!("create {folder}/bundle.yaml"),
            None => format!("known bundles: {}", known.join(", ")),
        });
        findings.push(finding);
        return None;
    }
    let entries = list(tree, &folder, findings)?;
    let path = format!("{folder}/bundle.yaml");
    let before = findings.len();
    let Some(node) = read_own(tree, &path, "Bundle", findings) else {
        if let Some(finding) = findings.get_mut(before)
            && finding.code == "missing-file"
        {
            finding.message = format!("bundle `{name}` has no bundle.yaml");
            finding.hint = Some(format!(
                "create it with `apiVersion: {}` and `kind: Bundle`",
                file::API_VERSION
            ));
        }
        return None;
    };
    let versions = versions(tree, &folder, &entries);
    Some(Found {
        folder,
        node,
        versions,
        entries,
    })
}

/// Returns the version folders: subfolders named as a semantic version, or with a `version.yaml` of
/// pleach. Sorted by version, others last.
fn versions(tree: &dyn FileTree, folder: &str, entries: &[TreeEntry]) -> Vec<String> {
    let mut versions: Vec<String> = entries
        .iter()
        .filter(|entry| entry.kind == TreeKind::Folder && !is_private(&entry.name))
        .filter(|entry| {
            semantic(&entry.name).is_some()
                || is_ours(tree, &format!("{folder}/{}/version.yaml", entry.name))
        })
        .map(|entry| entry.name.clone())
        .collect();
    versions.sort_by_cached_key(|name| {
        let version = semantic(name);
        (version.is_none(), version, name.clone())
    });
    versions
}

/// Returns whether a `version.yaml` belongs to pleach and is not a manifest of that name. A broken
/// file counts as pleach's: its error is reported when it is read.
fn is_ours(tree: &dyn FileTree, path: &str) -> bool {
    match tree
        .read(path)
        .map(|bytes| String::from_utf8(bytes.to_vec()))
    {
        Err(_) => false,
        Ok(Err(_)) => true,
        Ok(Ok(text)) => match parse_nodes(path, &text) {
            Err(_) => true,
            Ok(nodes) => nodes.first().is_some_and(|node| {
                let ours = node
                    .get("apiVersion")
                    .and_then(Node::as_str)
                    .is_some_and(|text| text.starts_with("pleach.dev/"));
                ours || matches!(header(node, &["BundleVersion"]), Header::Ours)
            }),
        },
    }
}

impl Found {
    /// Reads a version, or the bundle if it has no versions. `place` is the version reference of
    /// the release.
    pub(super) fn version(
        &self,
        tree: &dyn FileTree,
        version: Option<&str>,
        place: &Origin,
        values_files: &mut ValuesFiles<'_>,
        findings: &mut Vec<Finding>,
    ) -> Option<Source> {
        let version = match self.choose(version, place) {
            Ok(version) => version,
            Err(finding) => {
                findings.push(*finding);
                return None;
            }
        };
        let before = findings.len();
        let folder = version.map_or_else(
            || self.folder.clone(),
            |version| format!("{}/{version}", self.folder),
        );
        decode::<file::Bundle>(&self.node, findings);
        let mut own = vec![format!("{}/bundle.yaml", self.folder)];
        let special = version.and_then(|_| {
            let path = format!("{folder}/version.yaml");
            if !is_ours(tree, &path) {
                return None;
            }
            own.push(path.clone());
            let node = read_own(tree, &path, "BundleVersion", findings)?;
            decode::<file::Bundle>(&node, findings);
            Some(node)
        });
        let of_bundle = DeclaredValues::new("bundle", &self.folder, &self.node);
        let of_version = special
            .as_ref()
            .map(|node| DeclaredValues::new("version", &folder, node));
        own.extend(of_bundle.files());
        own.extend(of_version.iter().flat_map(DeclaredValues::files));
        let (mut layers, mut refused) = (Vec::new(), Vec::new());
        // `values: null` in a version removes the bundle's defaults.
        let is_replaced = special
            .as_ref()
            .and_then(|node| node.get("values"))
            .is_some_and(Node::is_null);
        if !is_replaced {
            of_bundle.add(&mut layers, values_files, &mut refused);
        }
        if let Some(values) = of_version {
            values.add(&mut layers, values_files, &mut refused);
        }
        let node = special
            .as_ref()
            .map_or_else(|| self.node.clone(), |special| replace(&self.node, special));
        // Errors of both files are reported already.
        let body: Option<file::Bundle> = decode(&node, &mut Vec::new());
        let is_overlay = body.as_ref().is_some_and(|body| body.kustomize.is_some());
        own.extend(body.iter().flat_map(|body| of_charts(&folder, body)));
        let has_others = is_overlay || body.as_ref().is_some_and(|body| body.charts.is_some());
        let mut files = Files {
            tree,
            own: &own,
            found: Vec::new(),
            entries: 0,
            bytes: 0,
            findings,
        };
        if version.is_some() {
            files.beside(&self.folder, &self.entries, &self.versions);
        }
        // An overlay reads the files itself.
        if !is_overlay {
            files.collect(&folder, true);
        }
        let files = files.sorted();
        let schema = values_schema(tree, &folder, findings);
        if findings[before..].iter().any(Finding::is_error) {
            return None;
        }
        if files.is_empty() && !has_others {
            findings.push(
                Finding::warning(
                    Kind::Repository,
                    "nothing-to-render",
                    format!("{folder} contains no manifest"),
                )
                .at(Origin::new(folder.clone(), 0)),
            );
        }
        let body = body?;
        Some(Source {
            folder,
            files,
            own,
            body,
            schema,
            layers,
            refused,
        })
    }

    /// Returns all versions with the versions that each can be upgraded from. Ignores unreadable
    /// files: the desired version is read separately, with its errors.
    pub(super) fn known(&self, tree: &dyn FileTree) -> Vec<KnownVersion> {
        self.versions
            .iter()
            .map(|name| {
                let path = format!("{}/{name}/version.yaml", self.folder);
                let special = is_ours(tree, &path)
                    .then(|| read_own(tree, &path, "BundleVersion", &mut Vec::new()))
                    .flatten();
                let entry = special
                    .as_ref()
                    .and_then(|node| node.entry("upgradesFrom"))
                    .or_else(|| self.node.entry("upgradesFrom"));
                KnownVersion {
                    name: name.clone(),
                    upgrades_from: entry.and_then(|entry| entry.value.as_str()?.parse().ok()),
                }
            })
            .collect()
    }

    /// Returns the version folder. `None` for a bundle without versions.
    fn choose<'a>(
        &'a self,
        desired: Option<&str>,
        place: &Origin,
    ) -> Result<Option<&'a String>, Box<Finding>> {
        let folder = &self.folder;
        let all = self.versions.join(", ");
        let (code, message, hint) = match desired {
            None if self.versions.is_empty() => return Ok(None),
            None => (
                "missing-field",
                format!("`version` is required: {folder} has versions"),
                format!("known versions: {all}"),
            ),
            Some(desired) if self.versions.is_empty() => (
                "unknown-version",
                format!("there is no version `{desired}`: {folder} has no version folders"),
                "omit `version`; the git revision is the version".to_owned(),
            ),
            Some(desired) => match self.versions.iter().find(|known| *known == desired) {
                Some(version) => return Ok(Some(version)),
                None => (
                    "unknown-version",
                    format!("there is no version `{desired}` of {folder}; known versions: {all}"),
                    format!("did you mean `{}`?", self.nearest_version(desired)),
                ),
            },
        };
        let finding = Finding::error(Kind::Repository, code, message);
        Err(Box::new(finding.at(place.clone()).hint(hint)))
    }

    /// Returns the best suggestion: the same version in another spelling, a similar name, or the
    /// newest version.
    fn nearest_version(&self, desired: &str) -> &str {
        let same = semantic(desired).and_then(|desired| {
            self.versions
                .iter()
                .find(|known| semantic(known).as_ref() == Some(&desired))
        });
        same.map(String::as_str)
            .or_else(|| nearest(desired, self.versions.iter().rev().map(String::as_str)))
            .or_else(|| self.versions.last().map(String::as_str))
            .unwrap_or_default()
    }
}

/// Values in a file of a bundle: its `values`, and the files of its `valuesFrom`.
struct DeclaredValues<'a> {
    /// Name of the layers.
    name: &'static str,
    folder: &'a str,
    node: &'a Node,
}

impl<'a> DeclaredValues<'a> {
    fn new(name: &'static str, folder: &'a str, node: &'a Node) -> Self {
        Self { name, folder, node }
    }

    /// Returns the paths of the files of values, which are no manifests.
    fn files(&self) -> impl Iterator<Item = String> {
        let items = self
            .node
            .get("valuesFrom")
            .into_iter()
            .flat_map(Node::items);
        items.filter_map(|item| within(self.folder, item.as_str()?))
    }

    /// Adds the layers, the lowest first.
    fn add(
        &self,
        layers: &mut Vec<Layer>,
        files: &mut ValuesFiles<'_>,
        findings: &mut Vec<Finding>,
    ) {
        let values = self.node.get("values").filter(|values| !values.is_null());
        layers.extend(values.map(|node| Layer::plain(self.name.to_owned(), node.clone())));
        let values_from = self.node.entry("valuesFrom");
        layers.extend(files.layers(self.name, self.folder, values_from, findings));
    }
}

/// Returns the paths of charts and of their values.
fn of_charts<'a>(folder: &'a str, body: &'a file::Bundle) -> impl Iterator<Item = String> + 'a {
    let charts = body.charts.iter().flatten();
    let paths = charts.flat_map(|chart| [Some(&chart.path), chart.values.as_ref()]);
    paths.flatten().map(move |path| format!("{folder}/{path}"))
}

/// Reads the schema of the values, if any.
fn values_schema(
    tree: &dyn FileTree,
    folder: &str,
    findings: &mut Vec<Finding>,
) -> Option<ValuesSchema> {
    let entries = tree.list(folder).ok()?;
    if !entries
        .iter()
        .any(|entry| entry.name == VALUES_SCHEMA && entry.kind == TreeKind::File)
    {
        return None;
    }
    let path = format!("{folder}/{VALUES_SCHEMA}");
    let schema = match read_text(tree, &path) {
        Ok(text) => ValuesSchema::read(&path, &text),
        Err(finding) => Err(vec![*finding]),
    };
    schema.map_err(|found| findings.extend(found)).ok()
}

/// Merges `version.yaml` over `bundle.yaml`: its keys replace the bundle's.
fn replace(bundle: &Node, version: &Node) -> Node {
    let header = ["apiVersion", "kind"];
    let mut keys: BTreeMap<&str, &Entry> = BTreeMap::new();
    for entry in bundle.entries().iter().chain(version.entries()) {
        if header.contains(&entry.key.as_str()) {
            keys.entry(&entry.key).or_insert(entry);
        } else {
            keys.insert(&entry.key, entry);
        }
    }
    Node {
        content: Content::Map(keys.into_values().cloned().collect()),
        ..version.clone()
    }
}

fn list(tree: &dyn FileTree, folder: &str, findings: &mut Vec<Finding>) -> Option<Vec<TreeEntry>> {
    match tree.list(folder) {
        Ok(entries) => Some(entries),
        Err(failure) => {
            let message = match failure {
                TreeError::Missing { .. } => "the folder does not exist".to_owned(),
                TreeError::Unreadable { reason, .. } => {
                    format!("the folder cannot be read: {reason}")
                }
            };
            findings.push(
                Finding::error(Kind::Repository, "missing-file", message)
                    .at(Origin::new(folder, 0)),
            );
            None
        }
    }
}

/// Collector for the files of a folder.
struct Files<'a> {
    tree: &'a dyn FileTree,
    own: &'a [String],
    found: Vec<String>,
    /// Number of files and folders so far.
    entries: usize,
    /// Total size of the files so far, in bytes.
    bytes: usize,
    findings: &'a mut Vec<Finding>,
}

impl Files<'_> {
    /// Returns whether a limit was exceeded, which was reported already.
    fn is_too_much(&self) -> bool {
        self.entries > MOST_ENTRIES || self.bytes > MOST_BYTES
    }

    /// Collects everything below a folder.
    fn collect(&mut self, folder: &str, top: bool) {
        for entry in list(self.tree, folder, self.findings).unwrap_or_default() {
            let path = format!("{folder}/{}", entry.name);
            if is_private(&entry.name) || self.own.contains(&path) {
                continue;
            }
            if self.is_too_much() {
                return;
            }
            self.entries += 1;
            if self.entries > MOST_ENTRIES {
                let message = format!("more than {MOST_ENTRIES} files and folders");
                return self.error(&path, "too-many-files", &message, TOO_MUCH);
            }
            match entry.kind {
                TreeKind::Folder if is_too_deep(&path) => self.error(
                    &path,
                    "too-deep",
                    &format!("folders are nested more than {DEEPEST} levels deep"),
                    "move its files to a higher level",
                ),
                TreeKind::Folder => self.collect(&path, false),
                TreeKind::Link => self.error(
                    &path,
                    "not-a-file",
                    "symbolic links are not followed",
                    "replace the link with the file, or use a macro in templates/",
                ),
                TreeKind::Submodule => self.error(
                    &path,
                    "not-a-file",
                    "submodules are not followed",
                    "copy the files into the repository, so that reviews include them",
                ),
                TreeKind::File => self.file(path, &entry.name, top),
            }
        }
    }

    fn file(&mut self, path: String, name: &str, top: bool) {
        match name {
            VALUES_SCHEMA if top => {}
            "kustomization.yaml" | "kustomization.yml" | "Kustomization" => self.error(
                &path,
                "kustomization",
                "no bundle.yaml or version.yaml names this kustomization: the files beside it would be rendered without it",
                "write `kustomize: {path: FOLDER}` with its folder, relative to that of the version",
            ),
            "Chart.yaml" => self.error(
                &path,
                "helm-chart",
                "no bundle.yaml or version.yaml names this chart: the files beside it use another template language",
                "write `charts: [{path: FOLDER}]` with its folder, relative to that of the version",
            ),
            _ if is_manifest(name) => {
                // Reading here reports a Git LFS pointer as such, and not as broken YAML.
                match read_text(self.tree, &path) {
                    Ok(text) => self.bytes += text.len(),
                    Err(finding) => self.findings.push(*finding),
                }
                if self.bytes > MOST_BYTES {
                    let message = format!("more than {} MiB of files", MOST_BYTES / 1024 / 1024);
                    return self.error(&path, "too-many-files", &message, TOO_MUCH);
                }
                self.found.push(path);
            }
            _ => self.findings.push(
                Finding::note(
                    Kind::Repository,
                    "not-rendered",
                    "not rendered: the name does not end in .yaml, .yml or .json, with or without .j2",
                )
                .at(Origin::new(path, 0)),
            ),
        }
    }

    /// Reports files beside version folders: they are not rendered, but manifests are probably
    /// intended to be.
    fn beside(&mut self, folder: &str, entries: &[TreeEntry], versions: &[String]) {
        for entry in entries {
            let path = format!("{folder}/{}", entry.name);
            if is_private(&entry.name) || versions.contains(&entry.name) || self.own.contains(&path)
            {
                continue;
            }
            let (problem, hint) = match entry.name.as_str() {
                VALUES_SCHEMA => (
                    "not read",
                    "copy it into each version whose values it describes",
                ),
                name if entry.kind == TreeKind::Folder || is_manifest(name) => (
                    "not rendered",
                    "move it into each version, or start its name with _",
                ),
                _ => continue,
            };
            let message = format!("{problem}: it is beside the version folders");
            let finding = Finding::warning(Kind::Repository, "not-rendered", message);
            self.findings
                .push(finding.at(Origin::new(path, 0)).hint(hint));
        }
    }

    fn error(&mut self, path: &str, code: &str, message: &str, hint: &str) {
        self.findings.push(
            Finding::error(Kind::Repository, code, message)
                .at(Origin::new(path, 0))
                .hint(hint),
        );
    }

    fn sorted(mut self) -> Vec<String> {
        self.found.sort();
        self.found
    }
}

fn is_manifest(name: &str) -> bool {
    let bare = name.strip_suffix(".j2").unwrap_or(name);
    [".yaml", ".yml", ".json"]
        .iter()
        .any(|ending| bare.ends_with(ending))
}
