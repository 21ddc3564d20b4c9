//! Results of releases as text and JSON.

use std::fmt::Write as _;

use pleach_model::object::ReleaseName;
use pleach_planner::plan::{Action, Plan};
use pleach_state::inventory::RunOutcome;
use pleach_state::overlay::OverlayKind;
use serde_json::{Value, json};

use super::findings::plain;
use super::style;
use crate::cli::CliError;
use pleach_engine::stop::Cause;
use pleach_engine::sync::{
    events::StepOutcome, interrupted_summary::Remainder, report::SyncResult,
};

/// Maximum number of objects that are listed.
const LINES: usize = 10;

/// Result of the plan of one release.
pub(crate) struct Report<'a> {
    pub(crate) plan: &'a Plan,
    /// Result of the steps. `Err` has one word if the run was not started or its result is unknown.
    pub(crate) result: Result<&'a SyncResult, &'static str>,
    /// Reason why it was not started or not recorded.
    pub(crate) error: Option<&'a CliError>,
    /// Command that continues a stopped run.
    pub(crate) go_on: &'a str,
}

impl Report<'_> {
    /// Returns one word for the result.
    pub(crate) fn verdict(&self) -> &str {
        match self.result {
            Ok(result) => result.outcome.word(),
            Err(word) => word,
        }
    }

    /// Formats the failures with hints, their consequences, the retained objects and the summary.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        if let Ok(result) = self.result {
            outcomes(&mut text, self.plan, result, self.go_on);
        }
        let _ = write!(
            text,
            "release {} {}: {} ({})",
            self.plan.release,
            super::plan::version(self.plan),
            self.verdict(),
            self.done()
        );
        text
    }

    /// Formats the executed actions, or the planned ones after a partial run.
    fn done(&self) -> String {
        let actions = self.plan.changes.iter().map(|change| change.action);
        match self.result {
            Ok(result) if result.is_success() => {
                pleach_planner::text_diff::summary_of_done(actions)
            }
            _ => format!("planned: {}", super::plan::summary(self.plan)),
        }
    }

    /// Formats the result as JSON.
    pub(crate) fn json(&self) -> Value {
        let failures: Vec<Value> = self
            .result
            .iter()
            .flat_map(|result| result.failures(self.plan))
            .map(|(object, failure)| {
                json!({ "object": object, "kind": failure.kind, "message": failure.message, "hint": failure.hint })
            })
            .collect();
        json!({
            "release": self.plan.release.to_string(),
            "from": self.plan.from,
            "to": self.plan.to,
            "result": self.verdict(),
            "error": self.error.map(reason),
            "failures": failures,
            "stopped": self.result.ok().and_then(|result| stopped(self.plan, result, self.go_on)),
            "standing": self.result.map_or(&[][..], |result| result.standing.as_slice()),
            "changes": self.plan.changes,
            "released": self.plan.removal.as_ref().map(|outgoing| &outgoing.released),
            "findings": self.plan.findings,
        })
    }
}

/// Formats a release without a plan as JSON.
pub(crate) fn unplanned(release: &ReleaseName, error: &CliError) -> Value {
    json!({
        "release": release.to_string(),
        "result": "failed",
        "error": reason(error),
    })
}

fn reason(error: &CliError) -> Value {
    json!({
        "message": error.to_string(),
        "causes": error.causes(),
        "hints": error.hints(),
    })
}

/// Formats the progress of a stopped run as JSON.
fn stopped(plan: &Plan, result: &SyncResult, go_on: &str) -> Option<Value> {
    let cause = result.stopped?;
    let remainder = Remainder::of(plan, result);
    let left: Vec<Value> = remainder
        .left
        .iter()
        .map(|left| json!({ "object": left.object, "action": left.action, "begun": left.begun }))
        .collect();
    Some(json!({
        "cause": cause.outcome(),
        "made": remainder.made,
        "unsettled": remainder.unsettled,
        "left": left,
        "goOn": go_on,
    }))
}

/// Formats the progress of a stopped run as text.
fn how_far(text: &mut String, plan: &Plan, result: &SyncResult, cause: Cause, go_on: &str) {
    let remainder = Remainder::of(plan, result);
    let _ = writeln!(text, "{}: {}", cause.outcome().word(), remainder.summary());
    let unsettled = remainder.unsettled.iter().map(|id| plain(&id.to_string()));
    some_of(text, "not waited for", unsettled);
    let left = remainder.left.iter().map(|left| {
        let begun = if left.begun { " (started)" } else { "" };
        format!("{} {}{begun}", left.action, plain(&left.object.to_string()))
    });
    some_of(text, "remaining", left);
    let _ = writeln!(text, "`{go_on}` continues from there");
}

/// Formats the first lines of a list.
fn some_of(text: &mut String, what: &str, lines: impl ExactSizeIterator<Item = String>) {
    let more = lines.len().saturating_sub(LINES);
    for line in lines.take(LINES) {
        let _ = writeln!(text, "{what}: {line}");
    }
    if more > 0 {
        let _ = writeln!(text, "{what}: {more} more");
    }
}

fn outcomes(text: &mut String, plan: &Plan, result: &SyncResult, go_on: &str) {
    for (object, failure) in result.failures(plan) {
        let message = plain(&failure.message);
        let (condition, pod) = match message.split_once("; pod ") {
            Some((condition, pod)) => (condition, Some(pod)),
            None => (message.as_str(), None),
        };
        let _ = writeln!(
            text,
            "{}failed{:#} {}: {condition}",
            style::ERROR,
            style::ERROR,
            plain(&object.to_string()),
        );
        if let Some(pod) = pod {
            let _ = writeln!(text, "  pod {pod}");
        }
        if let Some(hint) = &failure.hint {
            let _ = writeln!(
                text,
                "  {}hint{:#}: {}",
                style::HINT,
                style::HINT,
                plain(hint)
            );
        }
    }
    for (is_applied, what) in [(false, "not executed"), (true, "no longer waited for")] {
        let skipped = count(
            result,
            |outcome| matches!(outcome, StepOutcome::Skipped { applied, .. } if *applied == is_applied),
        );
        let steps = match skipped {
            0 => continue,
            1 => "1 step was".to_owned(),
            skipped => format!("{skipped} steps were"),
        };
        let _ = writeln!(text, "{steps} {what} because of that");
    }
    if let Some(cause) = result.stopped {
        how_far(text, plan, result, cause, go_on);
    }
    for standing in &result.standing {
        let (state, what) = if standing.kind == OverlayKind::Gate {
            ("still closed", "gate")
        } else {
            ("still temporarily changed", "overlay")
        };
        let _ = writeln!(
            text,
            "{state}: {} ({what} {}: {})",
            plain(&standing.object.to_string()),
            standing.overlay,
            plain(standing.trouble.as_ref().unwrap_or(&standing.rule))
        );
    }
    for change in plan
        .changes
        .iter()
        .filter(|change| change.action == Action::Skip)
    {
        let _ = writeln!(
            text,
            "kept {}: {}",
            plain(&change.object.to_string()),
            plain(&change.reason)
        );
    }
    if result.outcome == RunOutcome::Uninstalled && plan.count(Action::Skip) > 0 {
        let _ = writeln!(
            text,
            "kept objects no longer belong to a release; delete them by hand if they are not needed"
        );
    }
}

fn count(result: &SyncResult, which: impl Fn(&StepOutcome) -> bool) -> usize {
    result
        .outcomes
        .values()
        .filter(|outcome| which(outcome))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{error::Kind, format::samples};

    #[test]
    fn a_run_that_did_not_start_reports_the_reason() {
        let plan = samples::plan(&[("a", Action::Update)]);
        let error = CliError::new(Kind::Conflict, "the plan changed").hint("run it again");
        let report = Report {
            plan: &plan,
            result: Err("failed"),
            error: Some(&error),
            go_on: "pleach apply dev/web",
        };
        assert_eq!(
            report.text(),
            "release dev.web v1.0.0: failed (planned: 1 to update)"
        );
        let expected =
            json!({ "message": "the plan changed", "causes": [], "hints": ["run it again"] });
        assert_eq!(report.json()["error"], expected);
        assert_eq!(
            unplanned(&plan.release, &error),
            json!({ "release": "dev.web", "result": "failed", "error": expected })
        );
    }
}
