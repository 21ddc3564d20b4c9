//! Comment on a pull request. It starts with the essential facts, which are never truncated. Diffs
//! follow, up to the size limit.

mod space;
mod stated;

use std::fmt::Write as _;

use super::next_steps::next_steps;
use super::rehearsal::Rehearsal;
use super::words::{
    about, as_shown, compared, in_cluster, lint, other_than, refused, unknown, without_effect,
};
use super::{EnvironmentPreview, Preview, ReleasePreview, SubjectChange};
use crate::labels::versions;
use crate::markdown::{escaped, meanwhile_list};
use pleach_model::finding::Finding;
use pleach_model::sanitize::clipped;
use pleach_planner::text_diff::ObjectDiff;

use space::{Entry, Space};
pub use stated::{Stated, stated};

/// Bytes reserved for the note about omitted content.
const END: usize = 600;
/// Maximum number of findings per release.
const FINDINGS: usize = 20;
/// Maximum length of a message, in characters.
const MESSAGE: usize = 600;
/// Maximum number of bindings per release.
const SUBJECTS: usize = 20;

/// Parameters of a comment in addition to the preview.
#[derive(Debug, Clone)]
pub struct Comment<'a> {
    /// Base and head revision, as shown to people.
    pub revisions: (&'a str, &'a str),
    /// Line by which the comment is found again for an update.
    pub marker: &'a str,
    /// Command that shows the full preview.
    pub command: &'a str,
    /// Results of rehearsals of the change.
    pub rehearsals: &'a [Rehearsal],
    /// Maximum length of a comment, in bytes.
    pub limit: usize,
}

/// Formats an invisible line.
fn hidden(text: &str) -> String {
    format!("<!-- {} -->", text.replace(['<', '>', '\n'], " "))
}

/// Renders the comment.
pub fn comment(preview: &Preview, about: &Comment<'_>) -> String {
    let (base, head) = about.revisions;
    let mut text = format!(
        "{}\n{}## pleach: {}\n\n{}\n",
        about.marker,
        stated::lines(preview),
        escaped(&preview.summary),
        escaped(&compared(preview, base, head))
    );
    text.push_str(&rehearsals(preview, about));
    text.push_str(&table(preview, about.limit / 2));
    for line in without_effect(preview) {
        let _ = write!(text, "\n{}\n", escaped(&line));
    }
    let sections: Vec<Section<'_>> = preview.environments.iter().flat_map(sections).collect();
    let left = about.limit.saturating_sub(text.len() + END);
    let footer = footer(preview, left / 4);
    let mut space = Space::new(left - footer.len());
    let heads: Vec<String> = sections.iter().map(|one| space.take(&one.head)).collect();
    let entries: Vec<Entry<'_>> = sections
        .iter()
        .enumerate()
        .flat_map(|(section, one)| {
            one.objects
                .iter()
                .map(move |object| Entry { section, object })
        })
        .collect();
    let (bodies, left_out) = space.fill(sections.len(), &entries);
    for (head, body) in heads.iter().zip(&bodies) {
        text.push_str(head);
        text.push_str(body);
    }
    let cut = heads.iter().zip(&sections);
    let cut = cut.filter(|(head, section)| head.is_empty() && !section.head.is_empty());
    let cut = cut.count();
    if left_out + cut > 0 {
        let mut what = Vec::new();
        if left_out > 0 {
            what.push(format!("{left_out} more objects are not shown"));
        }
        if cut > 0 {
            what.push(format!("the details of {cut} releases are not shown"));
        }
        let _ = write!(
            text,
            "\n**{}**: the comment would be too long. `{}` shows all of it.\n",
            what.join(", "),
            about.command.replace('`', "")
        );
    }
    text.push_str(&footer);
    text
}

/// Renders the results of rehearsals, with all their refusals up to a quarter of the limit.
fn rehearsals(preview: &Preview, about: &Comment<'_>) -> String {
    let share = about.limit / 4 / about.rehearsals.len().max(1);
    let results = about.rehearsals.iter();
    results.map(|it| it.markdown(preview, share)).collect()
}

/// Renders the next steps as a list, up to a number of bytes.
fn footer(preview: &Preview, limit: usize) -> String {
    let mut text = String::from("\n### Next steps\n\n");
    let title = text.len();
    for step in next_steps(preview) {
        let command = step.command.replace(['`', '\n'], "");
        let line = format!("- {}: `{command}`\n", escaped(&step.goal));
        if text.len() + line.len() > limit {
            break;
        }
        text.push_str(&line);
    }
    if text.len() == title {
        return String::new();
    }
    text
}

/// Renders a table with one row per release. Above the limit, one row per environment. Empty if no
/// release changes.
fn table(preview: &Preview, limit: usize) -> String {
    let rows: Vec<Row> = preview.environments.iter().flat_map(rows).collect();
    if rows.is_empty() {
        return String::new();
    }
    let is_live = preview
        .environments
        .iter()
        .any(|environment| environment.cluster.is_some());
    let mut text = String::from(if is_live {
        "\n| release | version | changes | in the cluster | risk |\n|---|---|---|---|---|\n"
    } else {
        "\n| release | version | changes | risk |\n|---|---|---|---|\n"
    });
    for row in rows {
        let Row {
            name,
            version,
            changes,
            cluster,
            risk,
        } = row;
        let cluster = if is_live {
            format!(" {cluster} |")
        } else {
            String::new()
        };
        let _ = writeln!(text, "| {name} | {version} | {changes} |{cluster} {risk} |");
    }
    if text.len() <= limit {
        return text;
    }
    let mut text = String::from("\n| environment | releases |\n|---|---|\n");
    let mut left_out = 0;
    for environment in &preview.environments {
        let count = environment.releases.len();
        let row = format!("| {} | {count} |\n", escaped(&environment.environment));
        if text.len() + row.len() > limit {
            left_out += 1;
        } else {
            text.push_str(&row);
        }
    }
    if left_out > 0 {
        let _ = writeln!(text, "| and {left_out} more | |");
    }
    text
}

/// A row of the table.
struct Row {
    name: String,
    version: String,
    changes: String,
    cluster: String,
    risk: String,
}

fn rows(environment: &EnvironmentPreview) -> Vec<Row> {
    let mut rows = Vec::new();
    let has_errors = environment.lint.iter().any(Finding::is_error);
    let lint = lint(environment).filter(|_| has_errors);
    let reasons = refused(environment).into_iter().chain(lint);
    for why in reasons.chain(unknown(environment)) {
        rows.push(Row {
            name: escaped(&environment.environment),
            version: String::new(),
            changes: format!("**{}**", escaped(&why)),
            cluster: String::new(),
            risk: String::new(),
        });
    }
    let cluster = |live: Option<&ReleasePreview>| match (live, &environment.cluster) {
        (Some(live), _) => in_cluster(live),
        (None, Some(_)) => "**not known**".to_owned(),
        (None, None) => String::new(),
    };
    let row = |release: &ReleasePreview, changes: String, live: Option<&ReleasePreview>| Row {
        name: escaped(&release.diff.release),
        version: arrow(release),
        changes,
        cluster: cluster(live),
        risk: risks(live.unwrap_or(release)),
    };
    rows.extend(environment.releases.iter().map(|release| {
        let live = environment.in_cluster(&release.diff.release);
        row(release, release.diff.summary.clone(), live)
    }));
    rows.extend(
        environment
            .only_in_cluster()
            .map(|live| row(live, "–".to_owned(), Some(live))),
    );
    rows
}

/// Lists the risks by level.
fn risks(release: &ReleasePreview) -> String {
    let lines = release.risk_lines().into_iter();
    let lines: Vec<String> = lines
        .map(|(level, line)| format!("**{}:** {line}", level.word()))
        .collect();
    if lines.is_empty() {
        return "–".to_owned();
    }
    lines.join("; ")
}

fn arrow(release: &ReleasePreview) -> String {
    escaped(&versions(&release.diff).replace("->", "→"))
}

/// A section of the comment: introductory text, and objects.
struct Section<'a> {
    head: String,
    objects: Vec<&'a ObjectDiff>,
}

fn sections(environment: &EnvironmentPreview) -> Vec<Section<'_>> {
    let name = escaped(&environment.environment);
    let mut sections = Vec::new();
    let mut add = |title: &str, found: &[Finding]| {
        let list = findings(found);
        if !list.is_empty() {
            sections.push(Section {
                head: format!("\n### {title}\n\n{list}"),
                objects: Vec::new(),
            });
        }
    };
    add(
        &format!("Refused by the API server in {name}"),
        &environment.refusals,
    );
    add(&format!("Lint findings in {name}"), &environment.lint);
    add(&format!("Environment {name}"), &environment.findings);
    if let Some(cluster) = &environment.cluster {
        add(&format!("The cluster of {name}"), &cluster.findings);
    }
    for release in &environment.releases {
        let title = format!(
            "\n### {} {}\n\n",
            escaped(&release.diff.release),
            arrow(release)
        );
        sections.push(Section {
            head: title + &head(release),
            objects: release.diff.objects.iter().collect(),
        });
        if let Some(live) = environment.in_cluster(&release.diff.release) {
            sections.push(in_the_cluster(live, Some(release)));
        }
    }
    for live in environment.only_in_cluster() {
        let title = format!("\n### {} {}\n", escaped(&live.diff.release), arrow(live));
        let mut section = in_the_cluster(live, None);
        section.head.insert_str(0, &title);
        sections.push(section);
    }
    sections
}

/// Builds the section about the cluster, with the differences from the base section.
fn in_the_cluster<'a>(live: &'a ReleasePreview, base: Option<&ReleasePreview>) -> Section<'a> {
    let (objects, same) = other_than(live, base);
    let mut head = format!("\n#### In the cluster: {}\n\n", in_cluster(live));
    head.push_str(&self::head(live));
    if let Some(shown) = as_shown(same) {
        let _ = writeln!(head, "{shown}\n");
    }
    Section { head, objects }
}

/// Renders the introductory text of a release.
fn head(release: &ReleasePreview) -> String {
    let mut head = String::new();
    for (what, line) in about(release) {
        let _ = writeln!(head, "**{what}:** {}\n", escaped(&line));
    }
    head.push_str(&findings(&release.diff.findings));
    head.push_str(&meanwhile_list(&release.diff));
    head.push_str(&subjects(&release.subjects));
    head
}

/// Renders the role changes as a table.
fn subjects(changes: &[SubjectChange]) -> String {
    if changes.is_empty() {
        return String::new();
    }
    let mut text =
        String::from("\n| binding | role | subjects before | after |\n|---|---|---|---|\n");
    for change in changes.iter().take(SUBJECTS) {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            escaped(&super::words::binding(change)),
            escaped(&change.role),
            escaped(&super::words::subjects(&change.before)),
            escaped(&super::words::subjects(&change.after))
        );
    }
    if changes.len() > SUBJECTS {
        let _ = writeln!(text, "| and {} more | | | |", changes.len() - SUBJECTS);
    }
    text
}

/// Renders findings as a list.
fn findings(found: &[Finding]) -> String {
    let mut text = String::new();
    let mut sorted: Vec<&Finding> = found.iter().collect();
    sorted.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    for finding in sorted.into_iter().take(FINDINGS) {
        let _ = write!(text, "- **{}** ", finding.severity);
        if let Some(object) = &finding.object {
            let _ = write!(text, "{}: ", escaped(&object.to_string()));
        }
        if let Some(place) = &finding.place {
            let _ = write!(text, "{}: ", escaped(&place.to_string()));
        }
        text.push_str(&escaped(&clipped(&finding.message, MESSAGE)));
        if let Some(hint) = &finding.hint {
            let _ = write!(text, " ({})", escaped(&clipped(hint, MESSAGE)));
        }
        text.push('\n');
    }
    if found.len() > FINDINGS {
        let _ = writeln!(text, "- and {} more", found.len() - FINDINGS);
    }
    text
}

#[cfg(test)]
pub(super) mod tests;
