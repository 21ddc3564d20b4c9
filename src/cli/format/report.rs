//! How a sync ended, in words and for programs.

use std::fmt::Write as _;

use pleach_domain::plan::{Action, Plan};
use serde_json::{Value, json};

use super::findings::plain;
use super::style;
use crate::engine::sync::events::Outcome;
use crate::engine::sync::report::SyncResult;

/// One word for how a release ended.
pub(crate) fn verdict(plan: &Plan, result: &SyncResult) -> &'static str {
    if result.interrupted {
        "interrupted"
    } else if !result.is_success() || plan.count(Action::Blocked) > 0 {
        "failed"
    } else if plan.has_steps() && !plan.verifies() {
        "unverified"
    } else if plan.has_steps() {
        "deployed"
    } else {
        "unchanged"
    }
}

/// Failures with their hints, what did not happen because of them, what is
/// kept, and the summary.
pub(crate) fn text(plan: &Plan, result: &SyncResult) -> String {
    let mut text = String::new();
    for (object, failure) in result.failures(plan) {
        let _ = writeln!(
            text,
            "{}failed{:#} {}: {}",
            style::ERROR,
            style::ERROR,
            plain(&object.to_string()),
            plain(&failure.message)
        );
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
    let skipped = count(result, |outcome| matches!(outcome, Outcome::Skipped { .. }));
    if skipped > 0 {
        let _ = writeln!(text, "{skipped} steps were not carried out because of that");
    }
    let left = count(result, |outcome| *outcome == Outcome::Interrupted);
    if result.interrupted {
        let _ = writeln!(
            text,
            "interrupted: {left} steps were not carried out; running `pleach apply` again goes on from there"
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
    let _ = write!(
        text,
        "release {} {}: {} ({})",
        plan.release,
        plain(&plan.to),
        verdict(plan, result),
        done(plan, result)
    );
    text
}

fn count(result: &SyncResult, which: impl Fn(&Outcome) -> bool) -> usize {
    result
        .outcomes
        .values()
        .filter(|outcome| which(outcome))
        .count()
}

/// What was done; what was planned where not all of it was.
fn done(plan: &Plan, result: &SyncResult) -> String {
    if result.is_success() {
        pleach_domain::diff::text::summary_of_done(plan.changes.iter().map(|change| change.action))
    } else {
        format!("planned: {}", super::plan::summary(plan))
    }
}

/// The same for programs.
pub(crate) fn json(plan: &Plan, result: &SyncResult) -> Value {
    let failures: Vec<Value> = result
        .failures(plan)
        .map(|(object, failure)| {
            json!({ "object": object, "kind": failure.kind, "message": failure.message, "hint": failure.hint })
        })
        .collect();
    json!({
        "release": plan.release.to_string(),
        "from": plan.from,
        "to": plan.to,
        "result": verdict(plan, result),
        "failures": failures,
        "changes": plan.changes,
        "findings": plan.findings,
    })
}
