//! Differences in words.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pleach_domain::diff::text::{ObjectDiff, Tag};
use pleach_domain::object::ObjectId;
use pleach_domain::plan::{Action, Change, Plan};
use serde_json::{Value, json};

use super::findings::plain;
use super::style;

/// One release: each object under its name, then the summary.
pub(crate) fn text(plan: &Plan, differences: &[ObjectDiff]) -> String {
    let changes = super::plan::by_object(plan);
    let mut text = String::new();
    for difference in differences {
        let style = style_of(difference.action);
        let _ = writeln!(
            text,
            "{style}{} {}{style:#}{}",
            difference.action,
            plain(&difference.object.to_string()),
            note(&changes, difference)
        );
        for hunk in &difference.hunks {
            let _ = writeln!(text, "{}{}{:#}", style::HINT, hunk.header(), style::HINT);
            for line in &hunk.lines {
                let style = match line.tag {
                    Tag::Context => anstyle::Style::new(),
                    Tag::Removed => style::REMOVED,
                    Tag::Added => style::ADDED,
                };
                let _ = writeln!(
                    text,
                    "{style}{}{}{style:#}",
                    line.tag.sign(),
                    plain(&line.text)
                );
            }
        }
    }
    for change in others(plan) {
        let _ = writeln!(
            text,
            "{} {}: {}",
            change.action,
            plain(&change.object.to_string()),
            plain(&change.reason)
        );
    }
    let _ = write!(
        text,
        "release {}: {}",
        plan.release,
        super::plan::summary(plan)
    );
    text
}

/// What is not drawn and must be said all the same.
fn others(plan: &Plan) -> impl Iterator<Item = &Change> {
    plan.changes
        .iter()
        .filter(|change| matches!(change.action, Action::Blocked | Action::Skip))
}

fn note(changes: &BTreeMap<&ObjectId, &Change>, difference: &ObjectDiff) -> String {
    match changes.get(&difference.object) {
        Some(change) => format!(
            "  ({}){}",
            plain(&change.reason),
            super::plan::unverified(change)
        ),
        None => String::new(),
    }
}

fn style_of(action: Action) -> anstyle::Style {
    match action {
        Action::Create => style::ADDED.bold(),
        Action::Delete | Action::Recreate | Action::Blocked => style::REMOVED.bold(),
        Action::Update | Action::Adopt | Action::Unchanged | Action::Skip => style::WARNING,
    }
}

/// The same for programs.
pub(crate) fn json(plan: &Plan, differences: &[ObjectDiff]) -> Value {
    json!({
        "release": plan.release.to_string(),
        "from": plan.from,
        "to": plan.to,
        "summary": super::plan::summary(plan),
        "objects": differences,
        "changes": plan.changes,
        "findings": plan.findings,
    })
}

/// The same as markdown. The fence is longer than any run of backticks in the
/// text, so that no manifest can break out of it.
pub(crate) fn markdown(plan: &Plan, differences: &[ObjectDiff]) -> String {
    let changes = super::plan::by_object(plan);
    let mut text = format!(
        "### Release {}\n\n{}\n",
        plan.release,
        super::plan::summary(plan)
    );
    for difference in differences {
        let body = difference.unified();
        let longest = body
            .split(|character| character != '`')
            .map(str::len)
            .max()
            .unwrap_or(0);
        let fence = "`".repeat(longest.max(2) + 1);
        let unverified = changes
            .get(&difference.object)
            .and_then(|change| change.unverified.as_deref())
            .map(|why| format!("Not verified by the server: {}\n\n", escaped(why)))
            .unwrap_or_default();
        let _ = write!(
            text,
            "\n<details><summary>{} <code>{}</code></summary>\n\n{unverified}{fence}diff\n{}{fence}\n\n</details>\n",
            difference.action,
            escaped(&difference.object.to_string()),
            plain_lines(&body),
        );
    }
    for change in others(plan) {
        let _ = writeln!(
            text,
            "\n- {} `{}`: {}",
            change.action,
            plain(&change.object.to_string()).replace('`', "'"),
            escaped(&change.reason)
        );
    }
    text
}

fn plain_lines(text: &str) -> String {
    text.lines().fold(String::new(), |mut lines, line| {
        lines.push_str(&plain(line));
        lines.push('\n');
        lines
    })
}

/// Text that no markdown or HTML takes effect in, and that mentions nobody.
fn escaped(text: &str) -> String {
    plain(text)
        .chars()
        .fold(String::new(), |mut escaped, character| {
            match character {
                '&' => escaped.push_str("&amp;"),
                '<' => escaped.push_str("&lt;"),
                '>' => escaped.push_str("&gt;"),
                // A word joiner keeps forges from making a mention or a link of it.
                '@' => escaped.push_str("@\u{2060}"),
                '*' | '_' | '[' | ']' | '`' | '!' | '|' | '#' | '\\' | '~' => {
                    escaped.push('\\');
                    escaped.push(character);
                }
                other => escaped.push(other),
            }
            escaped
        })
}

#[cfg(test)]
mod tests {
    use pleach_domain::plan::Action;

    use super::*;
    use crate::cli::format::samples;

    #[test]
    fn what_nobody_checked_is_said_in_every_format() {
        let mut plan = samples::plan(&[("a", Action::Create), ("b", Action::Create)]);
        plan.changes[0].unverified = Some("its <namespace> is missing".to_owned());
        let differences: Vec<ObjectDiff> = plan
            .changes
            .iter()
            .map(|change| ObjectDiff {
                object: change.object.clone(),
                action: change.action,
                hunks: Vec::new(),
                fields: Vec::new(),
            })
            .collect();
        let text = anstream::adapter::strip_str(&text(&plan, &differences)).to_string();
        insta::assert_snapshot!(text, @r"
        create ConfigMap/web/a  (reason of a)  [not verified by the server: its <namespace> is missing]
        create ConfigMap/web/b  (reason of b)
        release dev.web: 2 to create; 1 not verified by the server
        ");
        insta::assert_snapshot!(markdown(&plan, &differences), @r"
        ### Release dev.web

        2 to create; 1 not verified by the server

        <details><summary>create <code>ConfigMap/web/a</code></summary>

        Not verified by the server: its &lt;namespace&gt; is missing

        ```diff
        ```

        </details>

        <details><summary>create <code>ConfigMap/web/b</code></summary>

        ```diff
        ```

        </details>
        ");
        assert_eq!(
            json(&plan, &differences)["changes"][0]["unverified"],
            "its <namespace> is missing"
        );
    }
}
