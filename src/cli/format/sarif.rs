//! Findings as SARIF 2.1.0, which forges and editors show beside the source line.
//!
//! Hand-written, because only a small part of the format is needed. Existing crates are generated
//! from the full schema.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use pleach_model::finding::{Finding, Severity};
use pleach_render::lint::meaning;
use serde::Serialize;

/// Characters to escape in the path of a URI.
const RESERVED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// File for findings without a location.
const NOWHERE: &str = "pleach.yaml";

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Log {
    #[serde(rename = "$schema")]
    schema: &'static str,
    version: &'static str,
    runs: [Run; 1],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Run {
    tool: Tool,
    /// Unit of columns: characters.
    column_kind: &'static str,
    results: Vec<ResultOf>,
}

#[derive(Debug, Serialize)]
struct Tool {
    driver: Driver,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Driver {
    name: &'static str,
    semantic_version: &'static str,
    rules: Vec<Rule>,
}

/// Code of a finding.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    id: String,
    short_description: Text,
    full_description: Text,
    help: Text,
}

#[derive(Debug, Serialize)]
struct Text {
    text: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ResultOf {
    rule_id: String,
    rule_index: usize,
    level: &'static str,
    message: Text,
    locations: [Location; 1],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Location {
    physical_location: PhysicalLocation,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PhysicalLocation {
    artifact_location: ArtifactLocation,
    region: Region,
}

#[derive(Debug, Serialize)]
struct ArtifactLocation {
    uri: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Region {
    start_line: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_column: Option<usize>,
}

/// Returns the findings of one lint run as a SARIF log.
pub(crate) fn log(findings: &[Finding]) -> Log {
    let mut codes: Vec<&str> = findings.iter().map(|one| one.code.as_str()).collect();
    codes.sort_unstable();
    codes.dedup();
    let results = findings
        .iter()
        .map(|finding| ResultOf {
            rule_id: finding.code.clone(),
            rule_index: codes
                .iter()
                .position(|code| *code == finding.code)
                .unwrap_or_default(),
            level: level(finding.severity),
            message: text(message(finding)),
            locations: [location(finding)],
        })
        .collect();
    Log {
        schema: "https://json.schemastore.org/sarif-2.1.0.json",
        version: "2.1.0",
        runs: [Run {
            tool: Tool {
                driver: Driver {
                    name: "pleach",
                    semantic_version: env!("CARGO_PKG_VERSION"),
                    rules: codes.into_iter().map(rule).collect(),
                },
            },
            column_kind: "unicodeCodePoints",
            results,
        }],
    }
}

fn text(text: impl Into<String>) -> Text {
    Text { text: text.into() }
}

fn rule(code: &str) -> Rule {
    let meaning = meaning(code).unwrap_or(code);
    let first = meaning.split_inclusive(". ").next().unwrap_or(meaning);
    Rule {
        id: code.to_owned(),
        short_description: text(first.trim_end()),
        full_description: text(meaning),
        help: text(meaning),
    }
}

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    }
}

fn message(finding: &Finding) -> String {
    let mut text = match &finding.object {
        Some(object) => format!("{object}: {}", finding.message),
        None => finding.message.clone(),
    };
    if let Some(hint) = &finding.hint {
        text.push_str("\nhint: ");
        text.push_str(hint);
    }
    text
}

fn location(finding: &Finding) -> Location {
    let (file, line) = match &finding.place {
        Some(place) => (place.file.as_str(), place.line),
        None => (NOWHERE, 1),
    };
    Location {
        physical_location: PhysicalLocation {
            artifact_location: ArtifactLocation {
                uri: utf8_percent_encode(file, RESERVED).to_string(),
            },
            region: Region {
                // A finding about a whole file has no line.
                start_line: line.max(1),
                start_column: finding.column,
            },
        },
    }
}
