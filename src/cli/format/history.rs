//! Recorded results as text and JSON.

use pleach_state::inventory::{AttemptResult, Installed, ReleaseSummary};
use serde_json::{Value, json};

use super::status::short;
use super::table::table;

/// Formats one line per result, newest first.
pub(crate) fn text(installed: &Installed) -> String {
    let rows: Vec<[String; 5]> = installed
        .history
        .iter()
        .map(|result| {
            [
                // Omit fractions of a second.
                format!("{:.0}", result.at),
                result.version.clone(),
                short(&result.revision),
                result.result.word().to_owned(),
                remarks(result),
            ]
        })
        .collect();
    if rows.is_empty() {
        return "no results yet".to_owned();
    }
    table(["AT", "VERSION", "REVISION", "RESULT", "MESSAGE"], &rows).join("\n")
}

/// Formats the remarks of a result: failure, local run and overridden checks.
fn remarks(result: &AttemptResult) -> String {
    let local = (!result.local.is_empty()).then(|| format!("local run: {}", result.local));
    let overridden = result.overridden.iter();
    let overridden =
        overridden.map(|one| format!("check {} overridden: {}", one.check, one.reason));
    let message = (!result.message.is_empty()).then(|| result.message.clone());
    message
        .into_iter()
        .chain(local)
        .chain(overridden)
        .collect::<Vec<_>>()
        .join("; ")
}

/// Formats the results as JSON, with full revisions.
pub(crate) fn json(summary: &ReleaseSummary, installed: &Installed) -> Value {
    json!({
        "format": 1,
        "environment": summary.name.environment,
        "release": summary.name.release,
        "results": installed.history,
    })
}
