//! Comparison of plans with an audit log.

use std::fmt::Write as _;

use pleach_report::audit::{Difference, LastPlan, Report};
use serde_json::{Value, json};

use super::findings::plain;
use super::style;

/// Plan and its comparison with the audit log.
pub(crate) struct Compared<'a> {
    pub(crate) plan: &'a LastPlan,
    pub(crate) report: Report,
}

impl Compared<'_> {
    /// Returns whether the recorded plan equals the logged writes.
    pub(crate) fn is_same(&self) -> bool {
        self.report.is_same() && self.plan.writes.is_some()
    }

    fn verdict(&self) -> String {
        let report = &self.report;
        if self.plan.writes.is_none() {
            return "its plan was too large to be recorded".to_owned();
        }
        if !report.found {
            return "the log does not contain its last run".to_owned();
        }
        let writes = match report.written {
            1 => "1 write".to_owned(),
            count => format!("{count} writes"),
        };
        match report.missing.len() + report.unplanned.len() {
            0 => format!("{writes}, as planned"),
            differences => format!("{writes}, {differences} not as planned"),
        }
    }
}

/// Formats the comparisons as text: one line per release, then its differences.
pub(crate) fn text(compared: &[Compared<'_>]) -> String {
    let mut text = String::new();
    for one in compared {
        let LastPlan {
            release,
            at,
            from,
            to,
            ..
        } = one.plan;
        let versions = match from {
            Some(from) if from != to => format!("{from} -> {to}"),
            _ => to.clone(),
        };
        let _ = writeln!(
            text,
            "{}release {release}{:#} {} at {at}: {}",
            style::PLACE,
            style::PLACE,
            plain(&versions),
            one.verdict()
        );
        let mut list = |what: &str, differences: &[Difference]| {
            for Difference { verb, object } in differences {
                let _ = writeln!(text, "  {what}: {} {}", verb.as_str(), plain(object));
            }
        };
        list("planned and not written", &one.report.missing);
        list("written and not planned", &one.report.unplanned);
        if one.report.unreadable > 0 {
            let _ = writeln!(
                text,
                "  {} lines of the log cannot be read",
                one.report.unreadable
            );
        }
    }
    text.trim_end().to_owned()
}

/// Formats the comparisons as JSON.
pub(crate) fn json(compared: &[Compared<'_>]) -> Value {
    let releases: Vec<Value> = compared
        .iter()
        .map(|one| {
            let mut value = json!(one.report);
            value["release"] = json!(one.plan.release.to_string());
            value["at"] = json!(one.plan.at);
            value["revision"] = json!(one.plan.revision);
            value["from"] = json!(one.plan.from);
            value["to"] = json!(one.plan.to);
            value["effects"] = json!(one.plan.effects);
            value["same"] = json!(one.is_same());
            value
        })
        .collect();
    json!({ "format": 1, "releases": releases })
}
