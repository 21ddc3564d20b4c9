//! Diffs as markdown for comments on pull requests.
//!
//! Content of manifests is escaped. It cannot produce fences, HTML, links, images or mentions.

use std::fmt::Write as _;

use crate::labels::{meanwhile, remarks, verb, versions};
use pleach_model::object::ObjectId;
use pleach_model::sanitize::{clipped, plain};
use pleach_planner::plan::Action;
use pleach_planner::text_diff::ObjectDiff;
use pleach_planner::view::ReleaseDiff;

/// Renders the diff of a release. Objects with hunks come first, each collapsed under its name. All
/// other objects follow as a list.
pub fn markdown(diff: &ReleaseDiff) -> String {
    let mut text = format!(
        "### Release {} {}\n\n{}\n",
        diff.release,
        escaped(&versions(diff).replace("->", "→")),
        diff.summary
    );
    let (drawn, listed): (Vec<_>, Vec<_>) = diff
        .objects
        .iter()
        .partition(|object| !object.hunks.is_empty());
    for object in drawn {
        text.push('\n');
        text.push_str(&drawn_object(object, usize::MAX));
    }
    if !listed.is_empty() {
        text.push('\n');
    }
    for object in listed {
        text.push_str(&listed_object(object));
    }
    text
}

/// Maximum length of a line in bytes.
const LINE: usize = 1_000;

/// Renders an object with its hunks, collapsed under its name.
///
/// At most `limit` bytes of lines are rendered. The fence is longer than any run of backticks in
/// the text, so that a manifest cannot end it.
pub fn drawn_object(object: &ObjectDiff, limit: usize) -> String {
    let (body, left_out) = lines(object, limit);
    let longest = body
        .split(|character| character != '`')
        .map(str::len)
        .max()
        .unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    let mut about: Vec<String> = remarks(object);
    if let Some(why) = &object.note.unverified {
        about.push(format!("not verified by the server: {why}"));
    }
    if left_out > 0 {
        about.push(format!("{left_out} more lines are not shown"));
    }
    let mut list = String::new();
    for remark in &about {
        let _ = writeln!(list, "- {}", escaped(remark));
    }
    if !list.is_empty() {
        list.push('\n');
    }
    format!(
        "<details><summary>{}</summary>\n\n{list}{fence}diff\n{body}{fence}\n\n</details>\n",
        heading(object, in_html),
    )
}

/// Returns the first lines of the hunks, and the number of lines left out.
fn lines(object: &ObjectDiff, limit: usize) -> (String, usize) {
    let (mut body, mut left_out) = (String::new(), 0);
    for hunk in &object.hunks {
        let header = clipped(&plain(&hunk.header()), LINE);
        let mut is_begun = false;
        for line in &hunk.lines {
            let drawn = format!("{}{}\n", line.tag.sign(), clipped(&plain(&line.text), LINE));
            let before = if is_begun { 0 } else { header.len() + 1 };
            if left_out > 0 || body.len() + before + drawn.len() > limit {
                left_out += 1;
                continue;
            }
            if !is_begun {
                let _ = writeln!(body, "{header}");
                is_begun = true;
            }
            body.push_str(&drawn);
        }
    }
    (body, left_out)
}

/// Renders an object as a list item without its hunks.
pub fn listed_object(object: &ObjectDiff) -> String {
    let mut text = format!("- {}\n", heading(object, escaped));
    for remark in remarks(object) {
        let _ = writeln!(text, "  - {}", escaped(&remark));
    }
    text
}

/// Renders the temporary changes of a release as a list.
pub fn meanwhile_list(diff: &ReleaseDiff) -> String {
    let lines = diff.overlays.iter().flat_map(meanwhile);
    lines.fold(String::new(), |mut text, line| {
        let indent = if line.starts_with(' ') { "  " } else { "" };
        let _ = writeln!(text, "{indent}- {}", escaped(line.trim_start()));
        text
    })
}

/// Returns the action, the object's id and the reason. `escape` must match the surrounding markup.
fn heading(diff: &ObjectDiff, escape: fn(&str) -> String) -> String {
    let code = |id: &ObjectId| format!("<code>{}</code>", escape(&id.to_string()));
    let name = match &diff.previous {
        Some(previous) => format!(
            "{} {} → {}",
            previous.how.verb(),
            code(&previous.object),
            code(&diff.object)
        ),
        None => format!("{} {}", verb(diff.action), code(&diff.object)),
    };
    match diff.action {
        Action::Create => name,
        _ => format!("{name}: {}", escape(&diff.note.reason)),
    }
}

/// Escapes text so that it contains no active markdown, HTML, mentions or links.
pub fn escaped(text: &str) -> String {
    escape(text, |character| {
        matches!(
            character,
            '*' | '_' | '[' | ']' | '`' | '!' | '|' | '#' | '\\' | '~'
        )
    })
}

/// Escapes text between HTML tags, where a backslash would be shown literally.
fn in_html(text: &str) -> String {
    escape(text, |_| false)
}

/// Word joiner, an invisible character. It prevents mentions, links and references.
const JOINER: char = '\u{2060}';

fn escape(text: &str, is_markup: fn(char) -> bool) -> String {
    let text = plain(text);
    let mut escaped = String::with_capacity(text.len());
    for (place, character) in text.char_indices() {
        if is_markup(character) {
            escaped.push('\\');
        }
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            // A line break could start a heading, a list or a fence.
            '\n' => escaped.push(' '),
            other => escaped.push(other),
        }
        let links = match character {
            '@' | '#' => true,
            ':' => text[place..].starts_with("://"),
            'w' | 'W' => place
                .checked_sub(2)
                .and_then(|start| text.get(start..=place))
                .is_some_and(|word| word.eq_ignore_ascii_case("www")),
            _ => false,
        };
        if links {
            escaped.push(JOINER);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::markup(
        "*a* _b_ [c](d) `e` ![f] |g",
        "\\*a\\* \\_b\\_ \\[c\\](d) \\`e\\` \\!\\[f\\] \\|g"
    )]
    #[case::html("<b>&amp;", "&lt;b&gt;&amp;amp;")]
    #[case::mention("@team", "@\u{2060}team")]
    #[case::issue("#1 org/repo#2", "\\#\u{2060}1 org/repo\\#\u{2060}2")]
    #[case::link("see https://x and WWW.y", "see https:\u{2060}//x and WWW\u{2060}.y")]
    #[case::another_line("a\n# b", "a \\#\u{2060} b")]
    #[case::cursor("\u{1b}[0m\u{202e}", "\\\\u{1b}\\[0m\\\\u{202e}")]
    fn markdown_in_text_is_escaped(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(escaped(text), expected);
    }

    #[test]
    fn between_tags_a_backslash_is_not_needed() {
        assert_eq!(in_html("a_b <c> @d"), "a_b &lt;c&gt; @\u{2060}d");
    }
}
