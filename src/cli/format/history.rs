//! Recorded results as text and JSON.

use jiff::SignedDuration;
use pleach_state::inventory::{AttemptResult, Installed, ReleaseSummary};
use serde_json::{Value, json};

use super::status::short;
use super::table::table;

/// Formats one line per result, newest first.
pub(crate) fn text(installed: &Installed) -> String {
    let rows: Vec<[String; 8]> = installed
        .history
        .iter()
        .map(|result| {
            [
                // Omit fractions of a second.
                format!("{:.0}", result.at),
                result.version.clone(),
                short(&result.revision),
                result.result.word().to_owned(),
                author(&result.run.by),
                result.run.seconds.map(took).unwrap_or_default(),
                result.run.changes.clone(),
                remarks(result),
            ]
        })
        .collect();
    if rows.is_empty() {
        return "no results yet".to_owned();
    }
    let headings = [
        "AT", "VERSION", "REVISION", "RESULT", "BY", "TOOK", "CHANGES", "MESSAGE",
    ];
    table(headings, &rows).join("\n")
}

/// Formats the author of a run: the user without the process, or the controller.
pub(super) fn author(by: &str) -> String {
    match by.split_once(" (") {
        Some((_, process)) if process.starts_with("controller") => "controller".to_owned(),
        Some((user, _)) => user.to_owned(),
        None => by.to_owned(),
    }
}

/// Formats a duration in seconds.
fn took(seconds: i64) -> String {
    format!("{:#}", SignedDuration::from_secs(seconds))
}

/// Formats the remarks of a result: failure, local run and overridden checks.
fn remarks(result: &AttemptResult) -> String {
    let local = (!result.local.is_empty()).then(|| format!("local run: {}", result.local));
    let overridden = result.overridden.iter();
    let overridden =
        overridden.map(|one| format!("check {} overridden: {}", one.check, one.reason));
    let message = (!result.message.is_empty()).then(|| result.message.clone());
    let approver = &result.run.approved_by;
    let approved = (!approver.is_empty()).then(|| format!("approved by {approver}"));
    message
        .into_iter()
        .chain(approved)
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

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    #[test]
    fn results_name_their_author_duration_and_extent() {
        let result = |value: Value| serde_json::from_value::<AttemptResult>(value).unwrap();
        let run = json!({"by": "ann@desk (pid 7)", "seconds": 72, "changes": "2 created",
            "approvedBy": "oidc:ann"});
        let installed = Installed {
            history: vec![
                result(
                    json!({"version": "v2", "revision": "abc", "result": "failed",
                    "at": "2026-07-01T11:00:00Z", "message": "no",
                    "run": {"by": "root@pod (controller, replica x)", "failures": ["notReady"]}}),
                ),
                result(
                    json!({"version": "v1", "revision": "abc", "result": "deployed",
                    "at": "2026-07-01T10:00:00Z", "run": run}),
                ),
                // Older records lack the facts.
                result(
                    json!({"version": "v0", "revision": "abc", "result": "deployed",
                    "at": "2026-07-01T09:00:00Z"}),
                ),
            ],
            ..Installed::default()
        };
        let text = anstream::adapter::strip_str(&text(&installed)).to_string();
        assert_snapshot!(text, @r"
        AT                    VERSION  REVISION  RESULT    BY          TOOK    CHANGES    MESSAGE
        2026-07-01T11:00:00Z  v2       abc       failed    controller                     no
        2026-07-01T10:00:00Z  v1       abc       deployed  ann@desk    1m 12s  2 created  approved by oidc:ann
        2026-07-01T09:00:00Z  v0       abc       deployed
        ");
    }
}
