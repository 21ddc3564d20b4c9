//! Limits of the diagnosis: unreadable parts of the cluster and missing permissions.

use super::{Code, Diagnosis, Observations};
use pleach_model::finding::Severity;
use pleach_planner::observe::rules;

/// Reports the parts that could not be read, because the diagnosis is incomplete without them.
pub(super) fn gaps(observations: &Observations, found: &mut Vec<Diagnosis>) {
    for gap in &observations.gaps {
        let severity = if gap.forbidden {
            Severity::Note
        } else {
            Severity::Warning
        };
        let message = format!("{} could not be checked: {}", gap.what, gap.why);
        found.push(Diagnosis::new(Code::NotExamined, severity, None, message));
    }
}

/// Adds one note per resource with missing permissions.
pub(super) fn permissions(observations: &Observations, found: &mut Vec<Diagnosis>) {
    for rule in rules(&observations.missing) {
        let mut note = Diagnosis::new(Code::RightMissing, Severity::Note, None, rule.explain());
        note.hint = Some(rule.hint());
        let option = rule
            .namespace
            .as_ref()
            .map_or_else(String::new, |namespace| format!(" -n {namespace}"));
        let resource = match rule.group.as_str() {
            "" => rule.resource.clone(),
            group => format!("{}.{group}", rule.resource),
        };
        note.command = rule
            .verbs
            .first()
            .map(|verb| format!("kubectl auth can-i {verb} {resource}{option}"));
        found.push(note);
    }
}
