//! Recorded results in words and for programs.

use pleach_domain::inventory::{AttemptResult, Installed, ReleaseSummary};
use serde_json::{Value, json};

use super::status::short;
use super::table::table;

/// One line per result, the newest first.
pub(crate) fn text(installed: &Installed) -> String {
    let rows: Vec<[String; 5]> = installed
        .history
        .iter()
        .map(|result| {
            [
                // Fractions of a second say nothing here.
                format!("{:.0}", result.at),
                result.version.clone(),
                short(&result.revision),
                result.result.clone(),
                remarks(result),
            ]
        })
        .collect();
    if rows.is_empty() {
        return "no results yet".to_owned();
    }
    table(["AT", "VERSION", "REVISION", "RESULT", "MESSAGE"], &rows).join("\n")
}

/// What is worth knowing of a result: what failed, who went ahead from a desk,
/// and what was overridden.
fn remarks(result: &AttemptResult) -> String {
    let local = (!result.local.is_empty()).then(|| format!("from the desk: {}", result.local));
    let overridden = result.overridden.iter();
    let overridden =
        overridden.map(|one| format!("check {} overridden: {}", one.check, one.reason));
    let said = (!result.message.is_empty()).then(|| result.message.clone());
    said.into_iter()
        .chain(local)
        .chain(overridden)
        .collect::<Vec<_>>()
        .join("; ")
}

/// The same for programs, with whole revisions.
pub(crate) fn json(summary: &ReleaseSummary, installed: &Installed) -> Value {
    json!({
        "format": 1,
        "environment": summary.name.environment,
        "release": summary.name.release,
        "results": installed.history,
    })
}
