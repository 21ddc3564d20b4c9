//! Diagnoses as text and JSON.

use std::fmt::Write as _;

use anstyle::Style;
use pleach_model::finding::Severity;
use pleach_report::doctor::Diagnosis;
use serde_json::{Value, json};

use super::findings::plain;
use super::style::{ERROR, HINT, NOTE, PLACE, WARNING};

/// Formats all diagnoses grouped by severity, with a summary.
pub(crate) fn text(diagnoses: &[Diagnosis]) -> String {
    let mut text = String::new();
    for (severity, style, heading) in [
        (Severity::Error, ERROR, "errors"),
        (Severity::Warning, WARNING, "warnings"),
        (Severity::Note, NOTE, "notes"),
    ] {
        let mut found = diagnoses
            .iter()
            .filter(|diagnosis| diagnosis.severity == severity)
            .peekable();
        if found.peek().is_none() {
            continue;
        }
        let _ = writeln!(text, "{style}{heading}{style:#}");
        for diagnosis in found {
            one(&mut text, diagnosis);
        }
        text.push('\n');
    }
    text.push_str(&summary(diagnoses));
    text
}

/// Formats the number of diagnoses per severity.
fn summary(diagnoses: &[Diagnosis]) -> String {
    if diagnoses.is_empty() {
        return "nothing found".to_owned();
    }
    let count = |severity, name: &str| {
        let number = diagnoses
            .iter()
            .filter(|diagnosis| diagnosis.severity == severity)
            .count();
        let plural = if number == 1 { "" } else { "s" };
        (number > 0).then(|| format!("{number} {name}{plural}"))
    };
    let counts: Vec<String> = [
        count(Severity::Error, "error"),
        count(Severity::Warning, "warning"),
        count(Severity::Note, "note"),
    ]
    .into_iter()
    .flatten()
    .collect();
    counts.join(", ")
}

/// Formats one diagnosis: object, problem and details.
pub(crate) fn one(text: &mut String, diagnosis: &Diagnosis) {
    let object = match &diagnosis.object {
        Some(object) => format!("{PLACE}{}{PLACE:#}: ", plain(&object.to_string())),
        None => String::new(),
    };
    let _ = writeln!(
        text,
        "  {object}{} [{}]",
        indented(&diagnosis.message),
        diagnosis.code
    );
    if let Some(owner) = &diagnosis.owner {
        let owner = owner.to_string();
        if !owner.is_empty() {
            line(text, Style::new(), "owner", &owner);
        }
    }
    for effect in &diagnosis.breaks {
        line(text, Style::new(), "breaks", effect);
    }
    for related in &diagnosis.related {
        line(text, Style::new(), "see", &related.to_string());
    }
    if let Some(hint) = &diagnosis.hint {
        line(text, HINT, "hint", hint);
    }
    if let Some(command) = &diagnosis.command {
        line(text, HINT, "run", command);
    }
}

fn line(text: &mut String, style: Style, name: &str, value: &str) {
    let _ = writeln!(text, "    {style}{name}{style:#}: {}", indented(value));
}

fn indented(text: &str) -> String {
    plain(text).replace('\n', "\n      ")
}

/// Formats the diagnoses as JSON.
pub(crate) fn json(cluster: &str, diagnoses: &[Diagnosis]) -> Value {
    json!({ "format": 1, "server": cluster, "diagnoses": diagnoses })
}

#[cfg(test)]
mod tests {
    use pleach_report::doctor::{Gap, Leaving, Observations, diagnose};

    use super::*;

    #[test]
    fn diagnoses_are_grouped_by_severity() {
        let namespace = json!({
            "metadata": {"name": "a", "deletionTimestamp": "1970-01-01T00:00:00Z"},
            "status": {"conditions": [{"type": "NamespaceDeletionContentFailure", "status": "True", "message": "one\ntwo\u{7}"}]},
        });
        let diagnoses = diagnose(&Observations {
            namespaces: Leaving::read(&namespace).into_iter().collect(),
            gaps: vec![Gap {
                what: "the Services".to_owned(),
                why: "no".to_owned(),
                forbidden: true,
            }],
            ..Observations::default()
        });
        let shown = text(&diagnoses);
        insta::assert_snapshot!(anstream::adapter::strip_str(&shown).to_string(), @r"
        errors
          Namespace/a: has been terminating for 0s: NamespaceDeletionContentFailure: one
              two\u{7} [namespace-stuck]
            hint: the namespace controller cannot read or delete its content; a webhook or an API that does not answer is the usual cause
            run: kubectl get namespace a -o yaml

        notes
          the Services could not be checked: no [not-examined]

        1 error, 1 note
        ");
    }

    #[test]
    fn a_healthy_cluster_has_one_line() {
        assert_eq!(text(&[]), "nothing found");
    }
}
