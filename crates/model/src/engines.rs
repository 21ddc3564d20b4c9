//! Request to the program that renders Helm charts and kustomize overlays, and its answer.
//!
//! The program is a pure function of the request: it has no files, no network and no clock. A
//! [`FileTree`](crate::tree::FileTree) says how it is reached.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// Version of the format of requests and answers.
pub const FORMAT: u32 = 1;

/// Files by path.
pub type EngineFiles = BTreeMap<String, Bytes>;

/// Charts and overlays to render.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineRequest {
    /// Version of this format.
    pub format: u32,
    /// Charts.
    pub charts: Vec<ChartRequest>,
    /// Kustomize overlays.
    pub kustomizations: Vec<KustomizeRequest>,
}

/// A chart to render.
#[derive(Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ChartRequest {
    /// Helm's name of the release.
    pub name: String,
    /// Namespace of the release.
    pub namespace: String,
    /// Files of the chart.
    #[serde(serialize_with = "encoded")]
    pub files: EngineFiles,
    /// Values, a map. Those of the chart itself are not merged in.
    pub values: Value,
    /// Version of Kubernetes, such as `v1.36.0`.
    pub kubernetes: String,
    /// Served APIs, as `group/version` and `group/version/Kind`.
    pub api_versions: Vec<String>,
    /// Whether `lookup` finds nothing, instead of being reported.
    pub lookups: bool,
}

impl std::fmt::Debug for ChartRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never print values and files, which can contain secrets.
        f.debug_struct("ChartRequest")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A kustomize overlay to render.
#[derive(Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KustomizeRequest {
    /// Folder of the overlay.
    pub path: String,
    /// All files that it can read.
    #[serde(serialize_with = "encoded")]
    pub files: EngineFiles,
}

impl std::fmt::Debug for KustomizeRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KustomizeRequest")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

fn encoded<S: Serializer>(files: &EngineFiles, serializer: S) -> Result<S::Ok, S::Error> {
    let files = files.iter();
    serializer.collect_map(files.map(|(path, content)| (path, STANDARD.encode(content))))
}

/// Results in the order of the request.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineAnswer {
    /// Version of this format.
    pub format: u32,
    /// Version of the program.
    #[serde(default)]
    pub engines: String,
    /// Results of the charts.
    #[serde(default, deserialize_with = "or_default")]
    pub charts: Vec<ChartAnswer>,
    /// Results of the overlays.
    #[serde(default, deserialize_with = "or_default")]
    pub kustomizations: Vec<KustomizeAnswer>,
}

/// A rendered chart.
#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChartAnswer {
    /// Documents of its templates, in Helm's order.
    #[serde(default, deserialize_with = "or_default")]
    pub documents: Vec<ChartDocument>,
    /// Files of its folders `crds`.
    #[serde(default, deserialize_with = "or_default")]
    pub crds: Vec<ChartDocument>,
    /// Calls of `lookup`.
    #[serde(default, deserialize_with = "or_default")]
    pub lookups: Vec<Lookup>,
    /// Calls of functions whose result is not reproducible.
    #[serde(default, deserialize_with = "or_default")]
    pub calls: Vec<Call>,
    /// Fields that differ between two renderings.
    #[serde(default, deserialize_with = "or_default")]
    pub irreproducible: Vec<Irreproducible>,
    /// Uses of facts about Helm's release that pleach does not have.
    #[serde(default, deserialize_with = "or_default")]
    pub uses_release: Vec<ReleaseUse>,
    /// Errors. The documents are incomplete then.
    #[serde(default, deserialize_with = "or_default")]
    pub errors: Vec<EngineError>,
}

impl std::fmt::Debug for ChartAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChartAnswer")
            .field("documents", &self.documents.len())
            .field("errors", &self.errors.len())
            .finish_non_exhaustive()
    }
}

/// A YAML document of a chart.
#[derive(Clone, PartialEq, Deserialize)]
pub struct ChartDocument {
    /// File within the chart.
    pub source: String,
    /// Hook that it belongs to.
    #[serde(default)]
    pub hook: Option<Hook>,
    /// Its text.
    pub text: String,
}

impl std::fmt::Debug for ChartDocument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never print the text, which can contain secrets.
        f.debug_struct("ChartDocument")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// Hook of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// Events such as `pre-install`.
    #[serde(default, deserialize_with = "or_default")]
    pub events: Vec<String>,
    /// Position among the hooks of an event, ascending.
    #[serde(default)]
    pub weight: i64,
}

/// A call of `lookup`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Lookup {
    /// File within the chart.
    pub template: String,
    /// Line of the call; 0 if unknown.
    pub line: usize,
    /// API version that the chart looks for.
    pub api_version: String,
    /// Kind that the chart looks for.
    pub kind: String,
    /// Namespace of the object; empty for all.
    pub namespace: String,
    /// Name of the object; empty for all.
    pub name: String,
}

/// A call of a function whose result is not reproducible.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Call {
    /// Name of the function.
    pub function: String,
    /// File within the chart.
    pub template: String,
    /// Line of the call; 0 if unknown.
    pub line: usize,
}

/// A field that differs between two renderings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Irreproducible {
    /// File of the document within the chart.
    pub document: String,
    /// Index of the document within the output of the file, from 0.
    pub index: usize,
    /// Path of the field; empty if the documents do not correspond.
    pub field: String,
    /// Calls that are possible causes.
    #[serde(deserialize_with = "or_default")]
    pub calls: Vec<Call>,
}

/// Use of a fact about Helm's release.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReleaseUse {
    /// Name of the fact, such as `IsUpgrade`.
    pub field: String,
    /// File within the chart.
    pub template: String,
    /// Line of the use; 0 if unknown.
    pub line: usize,
}

/// A rendered overlay.
#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KustomizeAnswer {
    /// YAML documents.
    #[serde(default)]
    pub text: String,
    /// Errors.
    #[serde(default, deserialize_with = "or_default")]
    pub errors: Vec<EngineError>,
}

impl std::fmt::Debug for KustomizeAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KustomizeAnswer")
            .field("errors", &self.errors.len())
            .finish_non_exhaustive()
    }
}

/// An error in a chart or overlay.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EngineError {
    /// Code of the finding.
    pub code: String,
    /// Message of the program, which can quote values.
    pub message: String,
    /// File within the chart.
    pub template: String,
    /// File of an overlay.
    pub file: String,
    /// Line; 0 if unknown.
    pub line: usize,
    /// Field of a kustomization.
    pub field: String,
}

/// Reads null as an empty list, as Go writes one.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Reason why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnginesError {
    /// The program was not found. Contains the places that were searched.
    #[error("there is no `pleach-engines`: searched {0}")]
    Missing(String),
    /// The program failed, or exceeded a limit. A retry can succeed.
    #[error("`pleach-engines` failed: {0}")]
    Failed(String),
}

/// Runs the program.
pub trait Engines: Send + Sync {
    /// Renders charts and overlays. The answer has a result for each.
    fn run(&self, request: &EngineRequest) -> Result<EngineAnswer, EnginesError>;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_has_the_documented_form() {
        let files = EngineFiles::from([("Chart.yaml".to_owned(), Bytes::from("name: a\n"))]);
        let request = EngineRequest {
            format: FORMAT,
            charts: vec![ChartRequest {
                name: "web".to_owned(),
                namespace: "shop".to_owned(),
                files: files.clone(),
                values: json!({"secret": "hunter22"}),
                kubernetes: "v1.36.0".to_owned(),
                api_versions: vec!["v1".to_owned()],
                lookups: false,
            }],
            kustomizations: vec![KustomizeRequest {
                path: "a".to_owned(),
                files,
            }],
        };
        let files = json!({"Chart.yaml": "bmFtZTogYQo="});
        let chart = json!({
            "name": "web", "namespace": "shop", "files": files, "values": {"secret": "hunter22"},
            "kubernetes": "v1.36.0", "apiVersions": ["v1"], "lookups": false,
        });
        let overlay = json!({"path": "a", "files": files});
        assert_eq!(
            serde_json::to_value(&request).unwrap(),
            json!({"format": 1, "charts": [chart], "kustomizations": [overlay]})
        );
        assert!(!format!("{request:?}").contains("hunter22"));
    }

    #[test]
    fn an_answer_without_lists_is_read() {
        let answer = json!({
            "format": 1, "engines": "1.0.0", "added": true,
            "charts": [{"documents": null, "irreproducible": [{"document": "a", "calls": null}]}],
            "kustomizations": [{"errors": [{"code": "kustomize", "message": "m"}]}],
        });
        let answer: EngineAnswer = serde_json::from_value(answer).unwrap();
        assert!(answer.charts[0].documents.is_empty());
        assert_eq!(answer.charts[0].irreproducible[0].document, "a");
        assert_eq!(answer.kustomizations[0].errors[0].code, "kustomize");
    }
}
