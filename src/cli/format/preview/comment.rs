//! A comment on a pull request: first what a reviewer must see, which is never
//! cut, then the differences, as many as there is room for.

use std::fmt::Write as _;

use pleach_domain::diff::text::Hunk;
use pleach_domain::finding::{Finding, Severity};
use pleach_domain::preview::{EnvironmentPreview, Preview, ReleasePreview};

use super::{about, unknown, without_effect};
use crate::cli::format::diff::{self, escaped};

/// Length of the differences of one object: a definition can have half a
/// megabyte of them, and nobody reads it in a comment.
const OBJECT: usize = 12_000;
/// What is kept for the words that say what was left out.
const END: usize = 600;
/// Findings that are shown of a release.
const FINDINGS: usize = 20;

/// What a comment says beside the preview.
#[derive(Debug, Clone)]
pub(crate) struct Comment<'a> {
    /// The revisions, for people.
    pub(crate) revisions: (&'a str, &'a str),
    /// The line by which the comment is found again, to update it.
    pub(crate) marker: &'a str,
    /// The command that shows all of it.
    pub(crate) command: &'a str,
    /// Length that a forge accepts, in bytes.
    pub(crate) limit: usize,
}

/// Writes it.
pub(crate) fn comment(preview: &Preview, about: &Comment<'_>) -> String {
    let (base, head) = about.revisions;
    let mut text = format!(
        "{}\n## pleach: {}\n\n{} → {}, without a cluster\n",
        about.marker,
        escaped(&preview.summary),
        escaped(base),
        escaped(head)
    );
    text.push_str(&table(preview, about.limit / 2));
    for line in without_effect(preview) {
        let _ = write!(text, "\n{}\n", escaped(&line));
    }
    let mut room = Room {
        left: about.limit.saturating_sub(text.len() + END),
        left_out: 0,
    };
    for environment in &preview.environments {
        text.push_str(&room.take(&problems(environment)));
        for release in &environment.releases {
            text.push_str(&section(release, &mut room));
        }
    }
    if room.left_out > 0 {
        let _ = write!(
            text,
            "\n**{} more objects are not shown**: the comment would be too long. `{}` shows them.\n",
            room.left_out,
            about.command.replace('`', "")
        );
    }
    text
}

/// A line per release; per environment where that would be too long.
fn table(preview: &Preview, limit: usize) -> String {
    if preview.environments.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n| release | version | changes | risk |\n|---|---|---|---|\n");
    for environment in &preview.environments {
        if let Some(why) = unknown(environment) {
            let _ = writeln!(
                text,
                "| {} | | **{}** | |",
                environment.environment,
                escaped(&why)
            );
        }
        for release in &environment.releases {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} |",
                escaped(&release.diff.release),
                versions(release),
                release.diff.summary,
                match release.risk_line() {
                    risks if risks.is_empty() => "–".to_owned(),
                    risks => format!("**{risks}**"),
                }
            );
        }
    }
    if text.len() <= limit {
        return text;
    }
    let mut text = String::from("\n| environment | releases |\n|---|---|\n");
    for environment in &preview.environments {
        let count = environment.releases.len();
        let _ = writeln!(text, "| {} | {count} |", environment.environment);
    }
    text
}

fn versions(release: &ReleasePreview) -> String {
    escaped(&diff::versions(&release.diff).replace("->", "→"))
}

/// What is wrong with the files of an environment.
fn problems(environment: &EnvironmentPreview) -> String {
    let list = findings(&environment.findings);
    if list.is_empty() {
        return list;
    }
    format!("\n### Environment {}\n\n{list}", environment.environment)
}

/// Errors and warnings as a list; notes are for those who ask.
fn findings(found: &[Finding]) -> String {
    let mut text = String::new();
    let told: Vec<&Finding> = found
        .iter()
        .filter(|finding| finding.severity >= Severity::Warning)
        .collect();
    for finding in told.iter().take(FINDINGS) {
        let _ = write!(text, "- **{}** ", finding.severity);
        if let Some(object) = &finding.object {
            let _ = write!(text, "{}: ", escaped(&object.to_string()));
        }
        if let Some(place) = &finding.place {
            let _ = write!(text, "{}: ", escaped(&place.to_string()));
        }
        text.push_str(&escaped(&finding.message));
        if let Some(hint) = &finding.hint {
            let _ = write!(text, " ({})", escaped(hint));
        }
        text.push('\n');
    }
    if told.len() > FINDINGS {
        let _ = writeln!(text, "- and {} more", told.len() - FINDINGS);
    }
    text
}

fn section(release: &ReleasePreview, room: &mut Room) -> String {
    let mut head = format!(
        "\n### {} {}\n\n",
        escaped(&release.diff.release),
        versions(release)
    );
    for (what, line) in about(release) {
        let _ = writeln!(head, "{what}: {}\n", escaped(&line));
    }
    head.push_str(&findings(&release.diff.findings));
    head.push_str(&diff::meanwhile_list(&release.diff));
    let mut text = room.take(&head);
    for object in &release.diff.objects {
        let places = readable(&object.hunks);
        let drawn = if places == 0 {
            String::new()
        } else {
            format!("\n{}", diff::drawn_object(object, places))
        };
        // Where that is too long, its name may still fit.
        let taken = match room.take(&drawn) {
            taken if taken.is_empty() => room.take(&diff::listed_object(object)),
            taken => taken,
        };
        if taken.is_empty() {
            room.left_out += 1;
        }
        text.push_str(&taken);
    }
    text
}

/// How many places of an object people read.
fn readable(hunks: &[Hunk]) -> usize {
    let mut length = 0;
    let fits = hunks.iter().take_while(|hunk| {
        length += hunk
            .lines
            .iter()
            .map(|line| line.text.len() + 2)
            .sum::<usize>();
        length <= OBJECT
    });
    fits.count()
}

/// What is left of the length of a comment.
struct Room {
    left: usize,
    left_out: usize,
}

impl Room {
    /// The text if it fits, else nothing.
    fn take(&mut self, text: &str) -> String {
        if text.len() > self.left {
            return String::new();
        }
        self.left -= text.len();
        text.to_owned()
    }
}
