//! Resolution of a bundle's charts and of its kustomize overlay.

use std::collections::BTreeSet;

use super::{Source, check_label};
use crate::resolved::{ChartSource, ChartValues, KustomizeSource};
use crate::values::{Layer, Values};
use pleach_formats::file::{Chart, StageSelector};
use pleach_model::finding::Finding;
use pleach_model::object::{Located, Places};
use pleach_model::oci::SCHEME;
use pleach_model::tree::{FileTree, TreeKind};

/// Maximum length of Helm's name of a release.
const LONGEST_NAME: usize = 53;

/// Checker of paths in a bundle.
struct Paths<'a> {
    tree: &'a dyn FileTree,
    findings: &'a mut Vec<Finding>,
}

/// Resolves the charts. `layers` are the values of bundle, version and release.
pub(super) fn charts(
    tree: &dyn FileTree,
    source: &Source,
    release: &str,
    layers: &[Layer],
    findings: &mut Vec<Finding>,
) -> Vec<ChartSource> {
    let charts = source.body.charts.as_deref().unwrap_or_default();
    let mut names = BTreeSet::new();
    let mut resolved = Vec::new();
    for chart in charts {
        let places = &chart.places;
        let name = chart.name.as_deref().unwrap_or(release);
        check_chart(chart, name, findings);
        if !names.insert(name) {
            let message = format!("a second chart `{name}`");
            findings.push(places.refuse(message, "give one of them another `name`"));
        }
        let mut paths = Paths { tree, findings };
        let Some(path) = paths.within(&source.folder, "path", &chart.path, places) else {
            continue;
        };
        let values = match &chart.values {
            Some(file) => {
                let file = paths.within(&source.folder, "values", file, places);
                file.map(ChartValues::File)
            }
            None if charts.len() > 1 => {
                let message = format!("chart `{name}` needs `values`");
                let hint = "with several charts, each has a file with its values";
                findings.push(places.error("missing-field", message).hint(hint));
                None
            }
            None => Some(ChartValues::Merged(Box::new(Values::merge(layers)))),
        };
        resolved.extend(values.map(|values| ChartSource {
            name: name.to_owned(),
            path,
            digest: chart.digest.clone(),
            from: chart.from.clone(),
            namespace: chart.namespace.clone(),
            values,
            lookups: chart.lookups.is_some(),
            stage: stage(source, name),
            origin: places.origin.clone(),
        }));
    }
    resolved
}

fn check_chart(chart: &Located<Chart>, name: &str, findings: &mut Vec<Finding>) {
    let places = &chart.places;
    check_label("chart", name, Some(&places.key("name")), findings);
    if name.len() > LONGEST_NAME {
        let message = format!("the name of a chart has at most {LONGEST_NAME} characters");
        findings.push(places.error_at("name", "invalid-name", message));
    }
    if let Some(namespace) = &chart.namespace {
        let place = places.key("namespace");
        check_label("namespace", namespace, Some(&place), findings);
    }
    match &chart.digest {
        Some(digest) if !is_digest(digest) => {
            let message = format!("`digest: {digest}` is not a digest");
            let hint = "write `sha256:` and 64 hexadecimal digits; `pleach vendor` prints it";
            let finding = places.error_at("digest", "invalid-value", message);
            findings.push(finding.hint(hint));
        }
        None if chart.from.is_some() => {
            let message = "`from` needs `digest`";
            let hint = "`pleach vendor` writes it";
            findings.push(places.error("missing-field", message).hint(hint));
        }
        _ => {}
    }
    if chart.verify.is_some()
        && !chart
            .from
            .as_deref()
            .is_some_and(|from| from.starts_with(SCHEME))
    {
        let message = "`verify`: only charts in a registry have signatures of cosign";
        let finding = places.error_at("verify", "invalid-value", message);
        findings.push(finding.hint("remove `verify`, or set `from: oci://…`"));
    }
    let schemes = ["https://", SCHEME];
    let is_known = |from: &String| schemes.iter().any(|scheme| from.starts_with(scheme));
    if chart.from.as_ref().is_some_and(|from| !is_known(from)) {
        let finding = places.error_at("from", "invalid-value", "`from` is not a chart repository");
        findings.push(finding.hint("write `https://…` or `oci://…`"));
    }
}

fn is_digest(text: &str) -> bool {
    let is_hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    text.strip_prefix("sha256:")
        .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(is_hex))
}

/// Returns the first declared stage that selects a chart.
fn stage(source: &Source, name: &str) -> Option<String> {
    let mut stages = source.body.stages.iter().flatten();
    let is_of = |select: &StageSelector| select.chart.as_deref() == Some(name);
    let stage = stages.find(|stage| stage.select.iter().flatten().any(is_of))?;
    Some(stage.name.clone())
}

/// Resolves the kustomize overlay.
pub(super) fn kustomize(
    tree: &dyn FileTree,
    source: &Source,
    findings: &mut Vec<Finding>,
) -> Option<KustomizeSource> {
    let kustomize = source.body.kustomize.as_ref()?;
    let places = &kustomize.places;
    let mut paths = Paths { tree, findings };
    let path = paths.folder(&source.folder, "path", &kustomize.path, places);
    let bases = kustomize.bases.iter().flatten();
    let bases = bases.filter_map(|base| paths.folder("", "bases", base, places));
    let bases = bases.collect();
    Some(KustomizeSource {
        path: path?,
        bases,
        excluded: source.own.clone(),
        origin: places.origin.clone(),
    })
}

impl Paths<'_> {
    /// Returns a path that exists below a folder.
    fn within(&mut self, folder: &str, key: &str, path: &str, places: &Places) -> Option<String> {
        self.kind(folder, key, path, places).map(|(path, _)| path)
    }

    /// Returns the path of a folder below another.
    fn folder(&mut self, folder: &str, key: &str, path: &str, places: &Places) -> Option<String> {
        let (path, kind) = self.kind(folder, key, path, places)?;
        if kind == TreeKind::Folder {
            return Some(path);
        }
        let message = format!("`{key}`: {path} is not a folder");
        self.findings
            .push(places.error_at(key, "invalid-value", message));
        None
    }

    fn kind(
        &mut self,
        folder: &str,
        key: &str,
        path: &str,
        places: &Places,
    ) -> Option<(String, TreeKind)> {
        let path = path.strip_suffix('/').unwrap_or(path);
        if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
            let message = format!("`{key}: {path}` is not a path within its folder");
            let hint = "write it without `.`, `..` and a leading `/`";
            let finding = places.error_at(key, "invalid-value", message);
            self.findings.push(finding.hint(hint));
            return None;
        }
        let full = if folder.is_empty() {
            path.to_owned()
        } else {
            format!("{folder}/{path}")
        };
        let (parent, name) = full.rsplit_once('/').unwrap_or(("", &full));
        match self.tree.kind(parent, name) {
            Some(kind @ (TreeKind::File | TreeKind::Folder)) => Some((full, kind)),
            Some(TreeKind::Link | TreeKind::Submodule) => {
                let message = format!("{full} is a link or a submodule, which is not followed");
                let finding = places.error_at(key, "not-a-file", message);
                self.findings.push(finding.hint("copy the files"));
                None
            }
            None => {
                let message = format!("`{key}`: {full} does not exist");
                let finding = places.error_at(key, "missing-file", message);
                self.findings
                    .push(if key == "path" && full.strip_suffix(".tgz").is_some() {
                        finding.hint("`pleach vendor BUNDLE` downloads a chart with `from`")
                    } else {
                        finding
                    });
                None
            }
        }
    }
}
