//! What could not be looked at, and what pleach itself may not do.

use std::collections::BTreeMap;

use super::{Code, Diagnosis, Observations};
use crate::finding::Severity;

/// A view that is incomplete finds less: that has to be said.
pub(super) fn gaps(observations: &Observations, found: &mut Vec<Diagnosis>) {
    for gap in &observations.gaps {
        let severity = if gap.forbidden {
            Severity::Note
        } else {
            Severity::Warning
        };
        let message = format!("{} could not be looked at: {}", gap.what, gap.why);
        found.push(Diagnosis::new(Code::NotExamined, severity, None, message));
    }
}

/// One note per resource.
pub(super) fn rights(observations: &Observations, found: &mut Vec<Diagnosis>) {
    let mut by_resource: BTreeMap<(String, Option<&str>), Vec<&str>> = BTreeMap::new();
    for missing in &observations.missing {
        let resource = match missing.kind.group.as_str() {
            "" => missing.resource.clone(),
            group => format!("{}.{group}", missing.resource),
        };
        by_resource
            .entry((resource, missing.namespace.as_deref()))
            .or_default()
            .push(&missing.verb);
    }
    for ((resource, namespace), verbs) in by_resource {
        let within = namespace.map_or_else(
            || " in the whole cluster".to_owned(),
            |namespace| format!(" in namespace {namespace}"),
        );
        let mut note = Diagnosis::new(
            Code::RightMissing,
            Severity::Note,
            None,
            format!("pleach may not {} {resource}{within}", verbs.join(", ")),
        );
        let option = namespace.map_or_else(String::new, |namespace| format!(" -n {namespace}"));
        note.command = verbs
            .first()
            .map(|verb| format!("kubectl auth can-i {verb} {resource}{option}"));
        found.push(note);
    }
}
