//! Files and values of charts and overlays.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::engine::Engine;
use crate::package::{self, folder_digest, package_digest};
use crate::source::{Texts, is_template};
use pleach_config::values::{Values, ValuesSchema};
use pleach_config::{ChartSource, ChartValues, KustomizeSource, ResolvedRelease};
use pleach_model::engines::{ChartRequest, EngineFiles, KustomizeRequest};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Origin, yaml};
use pleach_model::tree::{FileTree, MOST_BYTES, MOST_ENTRIES, TreeKind, is_too_deep};

/// Files of a chart with the schema of its values, and with its default values.
const SCHEMA: &str = "values.schema.json";
const DEFAULTS: &str = "values.yaml";

/// Start of a Git LFS pointer.
const LFS: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Files of the charts and of the overlay of a release, as read.
#[derive(Debug, Default)]
pub(crate) struct Inputs<'r> {
    charts: Vec<Chart<'r>>,
    overlay: Option<(&'r KustomizeSource, EngineFiles)>,
    findings: Vec<Finding>,
    /// Files that were read.
    read: BTreeSet<String>,
}

#[derive(Debug)]
struct Chart<'r> {
    source: &'r ChartSource,
    files: EngineFiles,
    /// Text of the file with its values.
    values: Option<String>,
}

/// Requests for the charts and the overlay of a release.
#[derive(Default)]
pub(crate) struct Prepared<'r> {
    pub(super) charts: Vec<(&'r ChartSource, ChartRequest)>,
    pub(super) overlay: Option<(&'r KustomizeSource, KustomizeRequest)>,
    pub(crate) findings: Vec<Finding>,
    pub(crate) inputs: BTreeSet<String>,
}

impl Prepared<'_> {
    /// Returns whether there is nothing to render.
    pub(crate) fn is_empty(&self) -> bool {
        self.charts.is_empty() && self.overlay.is_none()
    }
}

/// Facts about the cluster that charts ask for.
pub(crate) struct Capabilities {
    /// Version of Kubernetes, such as `v1.36.0`.
    pub(crate) kubernetes: String,
    /// Served APIs.
    pub(crate) api_versions: Vec<String>,
}

impl Capabilities {
    /// Completes the declared version of Kubernetes, or the minor of the kind table.
    pub(crate) fn new(declared: Option<&str>, minor: &str, api_versions: Vec<String>) -> Self {
        let version = declared.unwrap_or(minor).trim_start_matches('v');
        let patch = if version.split('.').count() < 3 {
            ".0"
        } else {
            ""
        };
        Self {
            kubernetes: format!("v{version}{patch}"),
            api_versions,
        }
    }
}

impl<'r> Inputs<'r> {
    /// Reads the files. Decrypts values and the files of overlays into `texts`.
    pub(crate) fn read(
        tree: &dyn FileTree,
        release: &'r ResolvedRelease,
        texts: &mut Texts<'_>,
    ) -> Self {
        let mut inputs = Self::default();
        for source in &release.charts {
            if let Some(chart) = inputs.chart(tree, source, texts) {
                inputs.charts.push(chart);
            }
        }
        if let Some(overlay) = &release.kustomize {
            inputs.overlay = inputs
                .overlay(tree, release, overlay, texts)
                .map(|files| (overlay, files));
        }
        inputs
    }

    fn chart(
        &mut self,
        tree: &dyn FileTree,
        source: &'r ChartSource,
        texts: &mut Texts<'_>,
    ) -> Option<Chart<'r>> {
        let before = self.findings.len();
        let files = self.files_of(tree, source);
        let values = match &source.values {
            ChartValues::Merged(_) => None,
            ChartValues::File(file) => {
                self.read.insert(file.clone());
                let text = texts.decrypted(tree, file);
                text.map_err(|found| self.findings.extend(found)).ok()
            }
        };
        (self.findings.len() == before).then_some(Chart {
            source,
            files: files?,
            values,
        })
    }

    /// Reads the files of a chart, and compares its digest.
    fn files_of(&mut self, tree: &dyn FileTree, source: &ChartSource) -> Option<EngineFiles> {
        let path = &source.path;
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let (digest, files) = if tree.kind(parent, name) == Some(TreeKind::Folder) {
            let files = self.folder(tree, path, &[])?;
            let start = path.len() + 1;
            let files: EngineFiles = files
                .into_iter()
                .map(|(path, content)| (path[start..].to_owned(), content))
                .collect();
            let digest = source.digest.as_ref().map(|_| folder_digest(&files));
            (digest, package::expand(files))
        } else {
            let content = self.file(tree, path)?;
            if content.starts_with(LFS) {
                let message = "the file is a Git LFS pointer, not the content";
                self.refuse("lfs-pointer", path, message.to_owned());
                return None;
            }
            let digest = source.digest.as_ref().map(|_| package_digest(&content));
            (digest, package::unpack(&content))
        };
        if digest != source.digest {
            let found = digest.unwrap_or_default();
            let message = format!("{path} has another digest: {found}");
            let finding = Finding::error(Kind::Repository, "chart-digest", message);
            let hint = "restore the chart, or set `digest` after a review of the change";
            self.findings
                .push(finding.at(source.origin.clone()).hint(hint));
            return None;
        }
        match files {
            Ok(files) => Some(files),
            Err(error) => {
                let message = format!("the package cannot be unpacked: {error}");
                let finding = Finding::error(Kind::Repository, "chart-file", message);
                self.findings.push(finding.at(Origin::new(path, 0)));
                None
            }
        }
    }

    /// Reads the files of the version folder and of all bases.
    fn overlay(
        &mut self,
        tree: &dyn FileTree,
        release: &ResolvedRelease,
        overlay: &KustomizeSource,
        texts: &mut Texts<'_>,
    ) -> Option<EngineFiles> {
        let mut files = self.folder(tree, &release.folder, &overlay.excluded)?;
        for base in &overlay.bases {
            files.extend(self.folder(tree, base, &[])?);
        }
        for (path, content) in &mut files {
            let Ok(text) = std::str::from_utf8(content) else {
                continue;
            };
            if !pleach_sops::is_encrypted(text) {
                continue;
            }
            match texts.decrypted_text(tree, path, text.to_owned()) {
                Ok(text) => *content = Bytes::from(text),
                Err(found) => self.findings.extend(found),
            }
        }
        Some(files)
    }

    /// Reads all files below a folder, by their path in the repository.
    fn folder(
        &mut self,
        tree: &dyn FileTree,
        folder: &str,
        excluded: &[String],
    ) -> Option<EngineFiles> {
        let mut files = EngineFiles::new();
        let (mut entries, mut bytes) = (0, 0);
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            let listed = tree.list(&folder).map_err(|error| {
                self.refuse("file-unreadable", &folder, error.to_string());
            });
            for entry in listed.ok()? {
                let path = format!("{folder}/{}", entry.name);
                if excluded.contains(&path) {
                    continue;
                }
                entries += 1;
                if entries > MOST_ENTRIES || bytes > MOST_BYTES || is_too_deep(&path) {
                    let message = "too many, too large or too deep files";
                    self.refuse("too-many-files", &path, message.to_owned());
                    return None;
                }
                match entry.kind {
                    TreeKind::Folder => folders.push(path),
                    TreeKind::File => {
                        let content = self.file(tree, &path)?;
                        bytes += content.len();
                        files.insert(path, content);
                    }
                    TreeKind::Link | TreeKind::Submodule => {
                        let message = "links and submodules are not followed";
                        self.refuse("not-a-file", &path, message.to_owned());
                        return None;
                    }
                }
            }
        }
        Some(files)
    }

    fn file(&mut self, tree: &dyn FileTree, path: &str) -> Option<Bytes> {
        self.read.insert(path.to_owned());
        match tree.read(path) {
            Ok(content) => Some(content),
            Err(error) => {
                self.refuse("file-unreadable", path, error.to_string());
                None
            }
        }
    }

    fn refuse(&mut self, code: &str, path: &str, message: String) {
        let finding = Finding::error(Kind::Repository, code, message);
        self.findings.push(finding.at(Origin::new(path, 0)));
    }

    /// Builds the requests. `engine` renders templates of values.
    pub(crate) fn prepare(
        self,
        release: &'r ResolvedRelease,
        engine: Option<&Engine>,
        capabilities: &Capabilities,
    ) -> Prepared<'r> {
        let mut prepared = Prepared {
            findings: self.findings,
            inputs: self.read,
            ..Prepared::default()
        };
        for chart in self.charts {
            match chart.request(release, engine, capabilities) {
                Ok(request) => prepared.charts.push((chart.source, request)),
                Err(found) => prepared.findings.extend(found),
            }
        }
        prepared
            .inputs
            .extend(engine.into_iter().flat_map(Engine::requested));
        prepared.overlay = self.overlay.map(|(overlay, files)| {
            let path = overlay.path.clone();
            (overlay, KustomizeRequest { path, files })
        });
        prepared
    }

    /// Returns whether a chart has a template of its values.
    pub(crate) fn has_templates(release: &ResolvedRelease) -> bool {
        let mut charts = release.charts.iter();
        charts.any(|chart| matches!(&chart.values, ChartValues::File(file) if is_template(file)))
    }
}

impl Chart<'_> {
    fn request(
        &self,
        release: &ResolvedRelease,
        engine: Option<&Engine>,
        capabilities: &Capabilities,
    ) -> Result<ChartRequest, Vec<Finding>> {
        let source = self.source;
        let Some(namespace) = source.namespace.as_ref().or(release.namespace.as_ref()) else {
            let message = format!("chart `{}` needs a namespace", source.name);
            let finding = Finding::error(Kind::Repository, "namespace-missing", message);
            let hint = "set `namespace` of the release or of the chart";
            return Err(vec![finding.at(source.origin.clone()).hint(hint)]);
        };
        let values = self.values(engine)?;
        self.check(&values)?;
        Ok(ChartRequest {
            name: source.name.clone(),
            namespace: namespace.clone(),
            files: self.files.clone(),
            values: values.merged,
            kubernetes: capabilities.kubernetes.clone(),
            api_versions: capabilities.api_versions.clone(),
            lookups: source.lookups,
        })
    }

    fn values(&self, engine: Option<&Engine>) -> Result<Values, Vec<Finding>> {
        let file = match &self.source.values {
            ChartValues::Merged(values) => return Ok((**values).clone()),
            ChartValues::File(file) => file,
        };
        let text = self.values.as_deref().unwrap_or_default();
        let rendered = match engine.filter(|_| is_template(file)) {
            Some(engine) => {
                let rendered = engine.render_text(file, text);
                rendered.map_err(|finding| vec![*finding])?
            }
            None => text.to_owned(),
        };
        let line = |line: usize| if is_template(file) { 0 } else { line };
        let error = |message: String, at: usize| {
            let finding = Finding::error(Kind::Repository, "yaml", message);
            finding.at(Origin::new(file, line(at)))
        };
        let documents = yaml::parse_documents(&rendered).map_err(|errors| {
            let found = errors.into_iter();
            let found = found.map(|one| {
                let message = format!("the values of the chart are not YAML: {}", one.message);
                error(message, one.line)
            });
            found.collect::<Vec<Finding>>()
        })?;
        let mut documents = documents.into_iter().map(|document| document.value);
        let mut merged = match (documents.next(), documents.next()) {
            (None | Some(Value::Null), None) => Value::Object(Map::new()),
            (Some(values @ Value::Object(_)), None) => values,
            _ => {
                let message = "the values of a chart are one map";
                return Err(vec![error(message.to_owned(), 0)]);
            }
        };
        if let Value::Object(values) = &mut merged
            && pleach_sops::is_encrypted(text)
        {
            values.shift_remove(pleach_sops::METADATA);
        }
        Ok(Values {
            merged,
            files: vec![file.clone()],
            ..Values::merge(&[])
        })
    }

    /// Checks the values, merged over those of the chart, against the schema of the chart.
    fn check(&self, values: &Values) -> Result<(), Vec<Finding>> {
        let Some(schema) = self.files.get(SCHEMA) else {
            return Ok(());
        };
        let source = self.source;
        let path = format!("{}/{SCHEMA}", source.path);
        let text = String::from_utf8_lossy(schema);
        let as_chart = |mut finding: Finding| {
            "chart-schema".clone_into(&mut finding.code);
            finding
        };
        let checked = ValuesSchema::read(&path, &text).map(|schema| {
            let defaults = self
                .files
                .get(DEFAULTS)
                .map(|text| String::from_utf8_lossy(text));
            let defaults = defaults.and_then(|text| yaml::parse_documents(&text).ok());
            let defaults = defaults.and_then(|mut all| all.pop()).map(|one| one.value);
            let merged = merge(defaults.unwrap_or_default(), &values.merged);
            let place = match &source.values {
                ChartValues::Merged(_) => source.origin.clone(),
                ChartValues::File(file) => Origin::new(file, 0),
            };
            let values = Values {
                merged,
                ..values.clone()
            };
            schema.check(&values, &place)
        });
        let found = checked.unwrap_or_else(|found| found);
        if found.is_empty() {
            Ok(())
        } else {
            Err(found.into_iter().map(as_chart).collect())
        }
    }
}

/// Merges values over those of a chart, as Helm does. Null deletes a value.
fn merge(below: Value, above: &Value) -> Value {
    let (Value::Object(mut merged), Value::Object(above)) = (below, above) else {
        return above.clone();
    };
    for (key, value) in above {
        let below = merged.shift_remove(key);
        if !value.is_null() {
            merged.insert(key.clone(), merge(below.unwrap_or_default(), value));
        }
    }
    Value::Object(merged)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_merge_as_in_helm() {
        let below = json!({"a": 1, "b": {"c": 2, "d": [1]}, "e": {"f": 1}});
        let above = json!({"a": null, "b": {"c": 3, "d": [2]}, "e": 7, "g": {}});
        assert_eq!(
            merge(below, &above),
            json!({"b": {"c": 3, "d": [2]}, "e": 7, "g": {}})
        );
        assert_eq!(merge(Value::Null, &json!({"a": 1})), json!({"a": 1}));
    }

    #[test]
    fn the_version_of_kubernetes_has_three_numbers() {
        for (declared, expected) in [
            (Some("1.35"), "v1.35.0"),
            (Some("v1.35.2"), "v1.35.2"),
            (None, "v1.36.0"),
        ] {
            let capabilities = Capabilities::new(declared, "1.36", Vec::new());
            assert_eq!(capabilities.kubernetes, expected);
        }
    }
}
