//! Findings as text: `file:line: error: message`, then object and hint.
//!
//! They are sorted by file and line, as editors expect; findings without a location come last. If
//! possible, the source line is shown with a mark below the word.

use std::fmt::Write as _;

pub(crate) use pleach_model::finding::summary;
use pleach_model::finding::{Finding, Severity};
pub(crate) use pleach_model::sanitize::plain;

use super::style::{ERROR, HINT, NOTE, PLACE, WARNING};

/// Formats the findings of at least severity `least`. Appends the number of hidden findings.
pub(crate) fn text(findings: &[Finding], least: Severity) -> String {
    let mut shown: Vec<&Finding> = findings
        .iter()
        .filter(|finding| finding.severity >= least)
        .collect();
    shown.sort_by_key(|finding| {
        (
            finding.place.is_none(),
            &finding.place,
            std::cmp::Reverse(finding.severity),
            &finding.object,
            &finding.message,
        )
    });
    shown.dedup();
    let mut text = String::new();
    for finding in shown {
        one(&mut text, finding);
    }
    let notes = findings
        .iter()
        .filter(|finding| finding.severity == Severity::Note)
        .count();
    if least == Severity::Warning && notes > 0 {
        let plural = if notes == 1 { "note" } else { "notes" };
        line(
            &mut text,
            format_args!("{notes} {plural}, shown with --verbose"),
        );
    }
    text
}

fn one(text: &mut String, finding: &Finding) {
    if let Some(place) = &finding.place {
        let place = plain(&place.to_string());
        push(text, format_args!("{PLACE}{place}{PLACE:#}: "));
    }
    let (style, name) = match finding.severity {
        Severity::Error => (ERROR, "error"),
        Severity::Warning => (WARNING, "warning"),
        Severity::Note => (NOTE, "note"),
    };
    let message = indented(&finding.message);
    line(text, format_args!("{style}{name}{style:#}: {message}"));
    if let (Some(place), Some(excerpt)) = (&finding.place, &finding.excerpt) {
        source(text, place.line, excerpt, finding.column);
    }
    if let Some(object) = &finding.object {
        line(
            text,
            format_args!("  object: {}", plain(&object.to_string())),
        );
    }
    if let Some(hint) = &finding.hint {
        line(
            text,
            format_args!("  {HINT}hint{HINT:#}: {}", indented(hint)),
        );
    }
}

/// Writes the source line with a mark below the word at a column.
fn source(text: &mut String, number: usize, excerpt: &str, column: Option<usize>) {
    let excerpt = plain(excerpt);
    let number = number.to_string();
    line(text, format_args!("  {PLACE}{number} |{PLACE:#} {excerpt}"));
    let Some(before) = column.and_then(|column| column.checked_sub(1)) else {
        return;
    };
    let word = excerpt
        .chars()
        .skip(before)
        .take_while(|c| !c.is_whitespace() && !matches!(c, ':' | ',' | '}' | ']'))
        .count();
    if word == 0 {
        return;
    }
    // Keep tabs, so that the mark aligns with the word for any tab width.
    let indent: String = excerpt
        .chars()
        .take(before)
        .map(|c| if c == '\t' { c } else { ' ' })
        .collect();
    let margin = " ".repeat(number.len());
    let mark = "^".repeat(word);
    line(
        text,
        format_args!("  {PLACE}{margin} |{PLACE:#} {indent}{HINT}{mark}{HINT:#}"),
    );
}

fn push(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = text.write_fmt(arguments);
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    push(text, arguments);
    text.push('\n');
}

fn indented(text: &str) -> String {
    plain(text).replace('\n', "\n  ")
}

#[cfg(test)]
mod tests {
    use pleach_model::finding::Kind;
    use pleach_model::object::Origin;

    use super::*;

    fn findings() -> Vec<Finding> {
        let at = |finding: Finding, file: &str, line| finding.at(Origin::new(file, line));
        vec![
            Finding::error(Kind::Policy, "d", "without a place"),
            at(Finding::note(Kind::Repository, "a", "text"), "a.yaml", 9),
            at(Finding::warning(Kind::Repository, "b", "odd"), "a.yaml", 10)
                .on("Deployment.apps/web/web".parse().unwrap())
                .hint("do\nthat"),
            at(
                Finding::error(Kind::Repository, "c", "wrong\u{7}"),
                "a.yaml",
                2,
            ),
            at(
                Finding::error(Kind::Repository, "c", "wrong\u{7}"),
                "a.yaml",
                2,
            ),
            at(
                Finding::error(Kind::Repository, "c", "no line"),
                "b.yaml",
                0,
            ),
        ]
    }

    fn check(least: Severity, expected: &str) {
        let text = text(&findings(), least);
        assert_eq!(anstream::adapter::strip_str(&text).to_string(), expected);
    }

    #[test]
    fn findings_come_in_the_order_of_file_and_line() {
        check(
            Severity::Note,
            "a.yaml:2: error: wrong\\u{7}\n\
             a.yaml:9: note: text\n\
             a.yaml:10: warning: odd\n  object: Deployment.apps/web/web\n  hint: do\n  that\n\
             b.yaml: error: no line\n\
             error: without a place\n",
        );
    }

    #[test]
    fn omitted_findings_are_counted() {
        check(
            Severity::Warning,
            "a.yaml:2: error: wrong\\u{7}\n\
             a.yaml:10: warning: odd\n  object: Deployment.apps/web/web\n  hint: do\n  that\n\
             b.yaml: error: no line\n\
             error: without a place\n\
             1 note, shown with --verbose\n",
        );
        check(
            Severity::Error,
            "a.yaml:2: error: wrong\\u{7}\n\
             b.yaml: error: no line\n\
             error: without a place\n",
        );
        assert_eq!(summary(&findings()), "4 errors, 1 warning");
    }
}
