//! Previews of git changes as text and HTML page. Comments on pull requests are in
//! `pleach_report::preview::comment`, because the controller writes them too.

mod page;

use std::fmt::Write as _;

use pleach_model::finding::Severity;
use pleach_planner::plan::Action;
use pleach_planner::view::ReleaseDiff;
use pleach_report::preview::{
    Preview, ReleasePreview,
    next_steps::next_steps,
    words::{
        about, as_shown, binding, in_cluster, lint, other_than, refused, subjects, unknown,
        without_effect,
    },
};

use super::findings::plain;
use super::{diff, findings, style};

pub(crate) use page::page;

/// Formats a preview as text: each release with its risks, stages and changes.
pub(crate) fn text(preview: &Preview) -> String {
    let mut text = String::new();
    for environment in &preview.environments {
        if environment.refusals.is_empty() {
            continue;
        }
        let what = refused(environment)
            .unwrap_or_else(|| "the API server would refuse objects, as at the base".to_owned());
        let _ = writeln!(
            text,
            "{}environment {}{:#}: {what}",
            style::PLACE,
            environment.environment,
            style::PLACE
        );
        text.push_str(&findings::text(&environment.refusals, Severity::Note));
    }
    for environment in &preview.environments {
        if let Some(found) = lint(environment) {
            let _ = writeln!(
                text,
                "{}environment {}{:#}: {found}",
                style::PLACE,
                environment.environment,
                style::PLACE
            );
            text.push_str(&findings::text(&environment.lint, Severity::Note));
        }
    }
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
            text.push_str(&diff::text(&without_deletions(&release.diff), true));
            notes(&mut text, release);
            if let Some(live) = environment.in_cluster(&release.diff.release) {
                beside(&mut text, live, Some(release));
            }
        }
        for live in environment.only_in_cluster() {
            beside(&mut text, live, None);
        }
    }
    for line in without_effect(preview) {
        let _ = writeln!(text, "{}", plain(&line));
    }
    for step in next_steps(preview) {
        let _ = writeln!(text, "to {}: {}", plain(&step.goal), plain(&step.command));
    }
    text
}

/// Returns the diff without the content of deleted objects, which text cannot fold.
fn without_deletions(diff: &ReleaseDiff) -> ReleaseDiff {
    let mut diff = diff.clone();
    for object in &mut diff.objects {
        if object.action == Action::Delete {
            object.hunks.clear();
        }
    }
    diff
}

/// Formats the effect on a release in the cluster, without changes that are already shown.
fn beside(text: &mut String, live: &ReleasePreview, base: Option<&ReleasePreview>) {
    let _ = writeln!(
        text,
        "{}in the cluster, release {}{:#}: {}",
        style::PLACE,
        live.diff.release,
        style::PLACE,
        in_cluster(live)
    );
    let (objects, same) = other_than(live, base);
    for object in objects {
        text.push_str(&diff::object(object));
    }
    text.push_str(&diff::overlays(&live.diff));
    if let Some(shown) = as_shown(same) {
        let _ = writeln!(text, "{shown}");
    }
    notes(text, live);
}

fn notes(text: &mut String, release: &ReleasePreview) {
    for change in &release.subjects {
        let _ = writeln!(
            text,
            "{}: {} is granted to {}, previously to {}",
            plain(&binding(change).replace('→', "->")),
            plain(&change.role),
            plain(&subjects(&change.after)),
            plain(&subjects(&change.before))
        );
    }
    for (what, line) in about(release) {
        let _ = writeln!(text, "{what}: {}", plain(&line));
    }
}
