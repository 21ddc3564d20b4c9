//! Reading of a release's files into objects.
//!
//! Objects are not changed here: the objects of plain files are those that kubectl reads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use pleach_sops::Read;
use rayon::prelude::*;
use serde_json::Value;

use super::engine::{Engine, Library};
use super::source_map::Lines;
use crate::charts::{Capabilities, Inputs, Prepared};
use pleach_config::{ResolvedEnvironment, ResolvedRelease};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{
    Manifest, ObjectId, Origin,
    yaml::{self, Node, YamlError},
};
use pleach_model::secret_values::SecretValues;
use pleach_model::tree::FileTree;

/// Returns whether a file is a template.
pub(crate) fn is_template(file: &str) -> bool {
    file.as_bytes().ends_with(b".j2")
}

/// An object and its location.
#[derive(Debug, Clone)]
pub(super) struct Written {
    pub(super) value: Value,
    pub(super) place: Place,
}

/// Location of an object, from which the locations of its fields can be derived.
#[derive(Debug, Clone)]
pub(super) struct Place {
    text: Arc<Text>,
    /// Line of the document within the text.
    document: usize,
    /// Line of the object within the text.
    line: usize,
    /// JSON pointer from the document to the object. Empty unless the object is an item of a List.
    pointer: String,
}

/// A parsed text: a plain file, or the output of a template.
#[derive(Debug)]
struct Text {
    file: String,
    content: String,
    /// Source map of a template. `None` for plain files.
    lines: Option<Lines>,
    /// Default namespace of its objects, instead of that of the release.
    namespace: Option<String>,
    /// Documents with positions, parsed on first use.
    nodes: OnceLock<Vec<Node>>,
}

/// Most exact known location of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spot {
    /// File and line.
    pub origin: Origin,
    /// Column, from 1. `None` within templates.
    pub column: Option<usize>,
}

impl Text {
    fn origin(&self, line: usize) -> Origin {
        let line = match &self.lines {
            Some(lines) => lines.template_line(line),
            None => line,
        };
        Origin::new(&self.file, line)
    }
}

impl Text {
    /// Returns the document that starts at a line, with positions.
    fn document(&self, line: usize) -> Option<&Node> {
        let nodes = self
            .nodes
            .get_or_init(|| yaml::parse_nodes(&self.file, &self.content).unwrap_or_default());
        let at = nodes.binary_search_by_key(&line, |node| node.line).ok()?;
        nodes.get(at)
    }
}

impl Place {
    /// Returns the location of a field, given by a JSON pointer. Falls back to the object's
    /// location if the field is missing or its value is not `value`, because it was changed after
    /// reading.
    pub(super) fn spot(&self, pointer: &str, value: Option<&Value>) -> Spot {
        let pointer = format!("{}{pointer}", self.pointer);
        let found = self
            .text
            .document(self.document)
            .and_then(|document| document.find(&pointer))
            .filter(|(node, _)| value.is_none_or(|value| node.to_value() == *value));
        match found {
            Some((_, (line, column))) => Spot {
                origin: self.text.origin(line),
                column: self.text.lines.is_none().then_some(column),
            },
            None => Spot {
                origin: self.origin(),
                column: None,
            },
        }
    }

    /// Returns the file.
    pub(super) fn file(&self) -> &str {
        &self.text.file
    }

    /// Returns the default namespace, if it is not that of the release.
    pub(super) fn namespace(&self) -> Option<&String> {
        self.text.namespace.as_ref()
    }

    /// Returns file and line of the object.
    pub(super) fn origin(&self) -> Origin {
        self.text.origin(self.line)
    }

    /// Returns file and line of a field, given by a JSON pointer. Falls back to the object's
    /// location. Parses the text again.
    pub(super) fn field(&self, pointer: &str) -> Origin {
        let pointer = format!("{}{pointer}", self.pointer);
        match yaml::locate(&self.text.content, self.document, &pointer) {
            Some(line) => self.text.origin(line),
            None => self.origin(),
        }
    }
}

/// Locations of a release's objects.
#[derive(Debug, Clone, Default)]
pub struct Sources(BTreeMap<ObjectId, Place>);

impl Sources {
    /// Adds a location. The first one of an id wins.
    pub(super) fn add(&mut self, id: ObjectId, place: Place) {
        self.0.entry(id).or_insert(place);
    }

    /// Returns the location of a manifest's field, given by a JSON pointer. If `value` is given,
    /// the field matches only if its value was not changed after reading.
    pub fn spot(&self, manifest: &Manifest, pointer: &str, value: Option<&Value>) -> Spot {
        match self.0.get(manifest.id()) {
            Some(place) if pointer.is_empty() => Spot {
                origin: place.origin(),
                column: None,
            },
            Some(place) => place.spot(pointer, value),
            None => Spot {
                origin: manifest.origin().clone(),
                column: None,
            },
        }
    }
}

/// Result of reading the files of a release.
#[derive(Debug)]
pub(super) struct Loaded<T> {
    /// In the order of the files, without broken ones.
    pub(super) files: Vec<T>,
    pub(super) findings: Vec<Finding>,
    pub(super) inputs: BTreeSet<String>,
}

/// The texts of a release's files.
#[derive(Debug, Default)]
pub(super) struct Texts<'r> {
    /// Name and text, in the order of the release.
    pub(super) files: Vec<(&'r String, Result<String, Vec<Finding>>)>,
    /// Values that were encrypted.
    pub(super) secrets: SecretValues,
    /// Files whose encrypted values are replaced by stand-ins.
    pub(super) stand_ins: Vec<String>,
    /// Files of charts and overlays.
    pub(super) charts: Inputs<'r>,
}

impl Texts<'_> {
    /// Reads a file. Values of an encrypted plain file are decrypted, or replaced by stand-ins.
    pub(super) fn decrypted(
        &mut self,
        tree: &dyn FileTree,
        file: &str,
    ) -> Result<String, Vec<Finding>> {
        let text = read(tree, file).map_err(|finding| vec![*finding])?;
        self.decrypted_text(tree, file, text)
    }

    /// Like [`Self::decrypted`], for the text of a file.
    pub(super) fn decrypted_text(
        &mut self,
        tree: &dyn FileTree,
        file: &str,
        text: String,
    ) -> Result<String, Vec<Finding>> {
        if is_template(file) || !pleach_sops::is_encrypted(&text) {
            return Ok(text);
        }
        match pleach_sops::read(file, &text, tree.encrypted_values())? {
            Read::Decrypted(opened) => {
                let values = Value::Array(opened.values);
                self.secrets.extend(&SecretValues::all_of(&values));
                Ok(opened.text)
            }
            Read::StandIns(opened) => {
                self.stand_ins.push(file.to_owned());
                Ok(opened.text)
            }
        }
    }
}

/// Reader of an environment's files. Shared templates are read only if a release has a template.
pub(super) struct Loader<'a> {
    tree: &'a dyn FileTree,
    environment: &'a ResolvedEnvironment,
    library: Option<Library>,
}

impl<'a> Loader<'a> {
    pub(super) fn new(tree: &'a dyn FileTree, environment: &'a ResolvedEnvironment) -> Self {
        Self {
            tree,
            environment,
            library: None,
        }
    }

    /// Returns the file tree.
    pub(super) fn tree(&self) -> &'a dyn FileTree {
        self.tree
    }

    /// Reads every file of a release, and decrypts plain ones.
    pub(super) fn read<'r>(&self, release: &'r ResolvedRelease) -> Texts<'r> {
        let mut texts = Texts::default();
        // Skip templates if the schema refused the values: errors would only be consequences.
        let with_templates = release.refused.is_empty();
        let files = release.files.iter();
        for file in files.filter(|file| with_templates || !is_template(file)) {
            let text = texts.decrypted(self.tree, file);
            texts.files.push((file, text));
        }
        if with_templates {
            texts.charts = Inputs::read(self.tree, release, &mut texts);
        }
        texts
    }

    /// Builds the requests for the charts and overlays of a release.
    pub(super) fn prepare<'r>(
        &mut self,
        release: &'r ResolvedRelease,
        inputs: Inputs<'r>,
        capabilities: &Capabilities,
    ) -> Prepared<'r> {
        let engine = Inputs::has_templates(release).then(|| self.engine(release));
        inputs.prepare(release, engine.as_ref(), capabilities)
    }

    fn engine(&mut self, release: &ResolvedRelease) -> Engine {
        let library = self.library.get_or_insert_with(|| Library::read(self.tree));
        Engine::new(library, self.environment, release)
    }

    /// Renders the files of a release. Converts the objects of each file with `each`.
    pub(super) fn load<T: Send>(
        &mut self,
        release: &ResolvedRelease,
        texts: Vec<(&String, Result<String, Vec<Finding>>)>,
        each: impl Fn(Vec<Written>) -> T + Sync,
    ) -> Loaded<T> {
        let mut inputs: BTreeSet<String> = release.values.files.iter().cloned().collect();
        inputs.extend(release.files.iter().cloned());
        let has_templates = texts.iter().any(|(file, _)| is_template(file));
        let engine = has_templates.then(|| self.engine(release));
        // Files are independent, so parse them in parallel.
        let files: Vec<Result<T, Vec<Finding>>> = texts
            .into_par_iter()
            .map(|(file, text)| {
                let text = text?;
                let templates = engine.as_ref().filter(|_| is_template(file));
                objects(file, text, templates).map(&each)
            })
            .collect();
        if let Some(engine) = engine {
            inputs.extend(engine.requested());
        }
        collect(files, inputs)
    }
}

/// Reads the plain files of a release, without its templates.
pub(super) fn load_plain(tree: &dyn FileTree, release: &ResolvedRelease) -> Loaded<Vec<Written>> {
    let plain = || release.files.iter().filter(|file| !is_template(file));
    let files = plain().map(|file| {
        let text = Texts::default().decrypted(tree, file)?;
        objects(file, text, None)
    });
    collect(files.collect(), plain().cloned().collect())
}

fn collect<T>(files: Vec<Result<T, Vec<Finding>>>, inputs: BTreeSet<String>) -> Loaded<T> {
    let mut loaded = Loaded {
        files: Vec::with_capacity(files.len()),
        findings: Vec::new(),
        inputs,
    };
    for file in files {
        match file {
            Ok(file) => loaded.files.push(file),
            Err(findings) => loaded.findings.extend(findings),
        }
    }
    loaded
}

fn read(tree: &dyn FileTree, file: &str) -> Result<String, Box<Finding>> {
    let error = |message: String| {
        Box::new(
            Finding::error(Kind::Repository, "file-unreadable", message).at(Origin::new(file, 0)),
        )
    };
    let bytes = tree.read(file).map_err(|e| error(e.to_string()))?;
    String::from_utf8(bytes.into()).map_err(|_| error("the file is not UTF-8".to_owned()))
}

/// Parses the objects of a file. Fails with the error of its template, or with the first error of
/// each document.
fn objects(
    file: &str,
    content: String,
    templates: Option<&Engine>,
) -> Result<Vec<Written>, Vec<Finding>> {
    let (content, lines) = match templates {
        None => (content, None),
        Some(engine) => {
            let output = engine.render(file, &content).map_err(|e| vec![*e])?;
            (output.text, Some(output.lines))
        }
    };
    // The metadata of an encrypted file is still there, with its authentication code.
    let is_encrypted = lines.is_none() && pleach_sops::is_encrypted(&content);
    let text = Text {
        file: file.to_owned(),
        content,
        lines,
        namespace: None,
        nodes: OnceLock::new(),
    };
    parsed(text, is_encrypted)
}

/// Parses the objects of a text that a chart or overlay gave. Their lines are unknown.
pub(super) fn generated(
    file: &str,
    content: String,
    namespace: Option<&str>,
) -> Result<Vec<Written>, Vec<Finding>> {
    let text = Text {
        file: file.to_owned(),
        content,
        lines: Some(Lines::default()),
        namespace: namespace.map(str::to_owned),
        nodes: OnceLock::new(),
    };
    parsed(text, false)
}

fn parsed(text: Text, is_encrypted: bool) -> Result<Vec<Written>, Vec<Finding>> {
    let text = Arc::new(text);
    let documents = yaml::parse_documents(&text.content).map_err(|errors| {
        let findings = errors.iter().map(|error| yaml_finding(&text, error));
        findings.collect::<Vec<Finding>>()
    })?;
    let mut objects = Vec::with_capacity(documents.len());
    for document in documents {
        let place = Place {
            text: Arc::clone(&text),
            document: document.line,
            line: document.line,
            pointer: String::new(),
        };
        let mut value = document.value;
        if is_encrypted && let Value::Object(object) = &mut value {
            object.shift_remove(pleach_sops::METADATA);
        }
        expand(value, place, None, &mut objects);
    }
    Ok(objects)
}

/// Adds an object, or the items of a List as kubectl does: items without a kind inherit that of the
/// List.
fn expand(
    mut value: Value,
    place: Place,
    inherited: Option<(&str, &str)>,
    objects: &mut Vec<Written>,
) {
    if let (Some((api_version, kind)), Value::Object(object)) = (inherited, &mut value)
        && !object.contains_key("apiVersion")
        && !object.contains_key("kind")
    {
        object.insert("apiVersion".to_owned(), api_version.into());
        object.insert("kind".to_owned(), kind.into());
    }
    let Some(items) = take_items(&mut value) else {
        objects.push(Written { value, place });
        return;
    };
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
    let api_version = text("apiVersion").to_owned();
    let kind = text("kind");
    let item_kind = kind.strip_suffix("List").unwrap_or(kind).to_owned();
    let inherited = (!item_kind.is_empty()).then_some((&*api_version, &*item_kind));
    let lines = item_lines(&place);
    for (index, item) in items.into_iter().enumerate() {
        let pointer = format!("{}/items/{index}", place.pointer);
        let place = Place {
            line: lines.get(&pointer).copied().unwrap_or(place.line),
            pointer,
            ..place.clone()
        };
        expand(item, place, inherited, objects);
    }
}

/// Takes the items of a List kind. `None` for other objects.
fn take_items(value: &mut Value) -> Option<Vec<Value>> {
    let object = value.as_object_mut()?;
    let kind = object.get("kind")?.as_str()?;
    if !kind.ends_with("List") {
        return None;
    }
    let generic = kind == "List" && object.get("apiVersion").and_then(Value::as_str) == Some("v1");
    match object.get_mut("items") {
        Some(Value::Array(items)) => Some(std::mem::take(items)),
        None | Some(Value::Null) if generic => Some(Vec::new()),
        _ => None,
    }
}

/// Returns the lines of a List's items by their pointer. Parses the text once for the whole List.
fn item_lines(place: &Place) -> BTreeMap<String, usize> {
    let nodes = yaml::parse_nodes(&place.text.file, &place.text.content).unwrap_or_default();
    let Some(document) = nodes.iter().find(|node| node.line == place.document) else {
        return BTreeMap::new();
    };
    let list = place
        .pointer
        .split('/')
        .skip(1)
        .try_fold(document, |node, key| match key.parse::<usize>() {
            Ok(index) => node.items().get(index),
            Err(_) => node.get(key),
        });
    list.and_then(|list| list.get("items"))
        .map(Node::items)
        .unwrap_or_default()
        .iter()
        .enumerate()
        .map(|(index, item)| (format!("{}/items/{index}", place.pointer), item.line))
        .collect()
}

fn yaml_finding(text: &Text, error: &YamlError) -> Finding {
    let message = match &text.lines {
        None => format!("{} (column {})", error.message, error.column),
        Some(_) => format!(
            "the output of the template is not YAML: {} (line {}, column {} of the output)",
            error.message, error.line, error.column
        ),
    };
    let mut finding = Finding::error(Kind::Repository, "yaml", message).at(text.origin(error.line));
    finding.column = text.lines.is_none().then_some(error.column);
    let line = text.content.lines().nth(error.line.saturating_sub(1));
    let has_tag = line.is_some_and(|line| ["{{", "{%"].iter().any(|tag| line.contains(tag)));
    if text.lines.is_none() && has_tag {
        finding.hint("only files whose name ends in .j2 are templates")
    } else {
        finding
    }
}
