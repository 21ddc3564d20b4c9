//! What a change in git does, as text, as a comment on a pull request, and as
//! a page.

mod comment;
mod page;

use std::fmt::Write as _;

use pleach_domain::finding::Finding;
use pleach_domain::preview::{EnvironmentPreview, Preview, ReleasePreview};

use super::findings::{plain, summary};
use super::{diff, style};

pub(crate) use comment::{Comment, comment};
pub(crate) use page::page;

/// For a terminal: each release with its risks, its stages and what changes.
pub(crate) fn text(preview: &Preview) -> String {
    let mut text = String::new();
    for environment in &preview.environments {
        if let Some(why) = unknown(environment) {
            let _ = writeln!(
                text,
                "{}environment {}{:#}: {why}",
                style::PLACE,
                environment.environment,
                style::PLACE
            );
        }
        for release in &environment.releases {
            text.push_str(&diff::text(&release.diff, true));
            for (what, line) in about(release) {
                let _ = writeln!(text, "{what}: {}", plain(&line));
            }
        }
    }
    for line in without_effect(preview) {
        let _ = writeln!(text, "{}", plain(&line));
    }
    text
}

/// Why there is nothing to show of an environment that may have changed.
fn unknown(environment: &EnvironmentPreview) -> Option<String> {
    let errors = environment.findings.iter().any(Finding::is_error);
    errors.then(|| format!("cannot be previewed: {}", summary(&environment.findings)))
}

/// What a reviewer should know before reading on: its name, and one line.
fn about(release: &ReleasePreview) -> Vec<(&'static str, String)> {
    let mut about = Vec::new();
    let risks = release.risk_line();
    if !risks.is_empty() {
        about.push(("risk", risks));
    }
    let stages: Vec<String> = release
        .stages
        .iter()
        .map(|stage| format!("{} ({})", stage.name, stage.steps))
        .collect();
    if !stages.is_empty() {
        about.push(("stages", stages.join(" → ")));
    }
    about
}

/// What a change does not do.
fn without_effect(preview: &Preview) -> Vec<String> {
    let mut lines = Vec::new();
    let releases: usize = preview
        .environments
        .iter()
        .map(|environment| environment.unchanged.len())
        .sum();
    if preview
        .environments
        .iter()
        .all(|one| one.releases.is_empty() && unknown(one).is_none())
    {
        lines.push("this change does nothing to any environment".to_owned());
    } else if releases > 0 {
        let plural = if releases == 1 { "release" } else { "releases" };
        lines.push(format!(
            "nothing happens to {releases} other {plural} of these environments"
        ));
    }
    if !preview.unchanged.is_empty() {
        lines.push(format!("not touched: {}", names(&preview.unchanged)));
    }
    lines
}

/// Names, as many as people read.
fn names(names: &[String]) -> String {
    const SHOWN: usize = 12;
    let mut text = names
        .iter()
        .take(SHOWN)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > SHOWN {
        let _ = write!(text, " and {} more", names.len() - SHOWN);
    }
    text
}
