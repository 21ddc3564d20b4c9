//! Differences in words.

use std::fmt::Write as _;

use pleach_domain::diff::text::{ObjectDiff, Tag};
use pleach_domain::plan::{Action, Change, Plan};
use serde_json::{Value, json};

use super::findings::plain;
use super::style;

/// One release: each object under its name, then the summary.
pub(crate) fn text(plan: &Plan, differences: &[ObjectDiff]) -> String {
    let mut text = String::new();
    for difference in differences {
        let style = style_of(difference.action);
        let _ = writeln!(
            text,
            "{style}{} {}{style:#}{}",
            difference.action,
            plain(&difference.object.to_string()),
            note(plan, difference)
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

fn note(plan: &Plan, difference: &ObjectDiff) -> String {
    let Some(change) = plan
        .changes
        .iter()
        .find(|change| change.object == difference.object)
    else {
        return String::new();
    };
    let mut note = format!("  ({})", plain(&change.reason));
    if let Some(why) = &change.unverified {
        let _ = write!(note, "  [not verified by the server: {}]", plain(why));
    }
    note
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
        let _ = write!(
            text,
            "\n<details><summary>{} <code>{}</code></summary>\n\n{fence}diff\n{}{fence}\n\n</details>\n",
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
