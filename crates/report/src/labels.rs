//! Descriptions of planned actions, shared by all output formats for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use pleach_fields::diff::{Cause, locate};
use pleach_formats::gate::Gate;
use pleach_model::object::FieldPath;
use pleach_model::sanitize::plain;
use pleach_planner::plan::{Action, Course};
use pleach_planner::text_diff::ObjectDiff;
use pleach_planner::view::{ReleaseDiff, Temporary};
use pleach_state::overlay::{self, OverlayContent};

/// Describes a temporary change: a headline, then one line per field.
pub fn meanwhile(temporary: &Temporary) -> Vec<String> {
    let Temporary {
        object,
        overlay,
        until,
        ..
    } = temporary;
    let (patch, original) = match &temporary.content {
        OverlayContent::Patch { patch, original } => (patch, original),
        OverlayContent::Gate(gate) => {
            let blocked = gate.as_ref().map(Gate::explain);
            let blocked = blocked.unwrap_or_else(|| format!("writes ({object})"));
            return vec![match temporary.course {
                Course::Made => format!("gate {overlay} blocks {blocked} until {until}"),
                Course::Kept => format!(
                    "gate {overlay} of a previous run still blocks {blocked}, until {until}"
                ),
                Course::Dropped => {
                    format!("gate {overlay} of a previous run still blocks {blocked} and is lifted")
                }
            }];
        }
        OverlayContent::Binding { .. } => {
            return vec![match temporary.course {
                Course::Made => format!("{object} exists temporarily, until {until} ({overlay})"),
                Course::Kept => {
                    format!("{object} of a previous run exists until {until} ({overlay})")
                }
                Course::Dropped => {
                    format!("{object} of a previous run is deleted ({overlay})")
                }
            }];
        }
    };
    let headline = match temporary.course {
        Course::Made => {
            format!("{object} is changed temporarily, until {until} (overlay {overlay})")
        }
        Course::Kept => format!(
            "{object} is still changed by a previous run, until {until} (overlay {overlay})"
        ),
        Course::Dropped => {
            format!(
                "{object} is still changed by a previous run and is reverted (overlay {overlay})"
            )
        }
    };
    let shown = |value: &Value, field: &FieldPath| match locate::find(value, field) {
        None | Some(Value::Null) => "nothing".to_owned(),
        Some(value) => value.to_string(),
    };
    let fields = overlay::fields(&patch.0).into_iter().map(|field| {
        format!(
            "  {field}: {} -> {}",
            shown(&original.0, &field),
            shown(&patch.0, &field)
        )
    });
    std::iter::once(headline).chain(fields).collect()
}

/// Returns the summary line for the objects of all releases.
pub fn summary<'a>(diffs: impl IntoIterator<Item = &'a ReleaseDiff>) -> String {
    pleach_planner::text_diff::summary(diffs.into_iter().flat_map(|diff| {
        diff.counts
            .iter()
            .flat_map(|(action, count)| std::iter::repeat_n(*action, *count))
    }))
}

/// Describes the version change of a release.
pub fn versions(diff: &ReleaseDiff) -> String {
    match &diff.from {
        // The release is being removed.
        Some(from) if diff.to.is_empty() => format!("{} -> gone", short(from)),
        Some(from) if *from != diff.to => format!("{} -> {}", short(from), short(&diff.to)),
        _ => short(&diff.to).to_owned(),
    }
}

/// Shortens a version that is a commit hash.
fn short(version: &str) -> &str {
    let is_commit = version.len() == 40 && version.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_commit { &version[..7] } else { version }
}

/// Returns the action and the object's id. For a moved object, both ids.
pub fn name(diff: &ObjectDiff) -> String {
    match &diff.previous {
        Some(previous) => format!(
            "{} {} -> {}",
            previous.how.verb(),
            previous.object,
            diff.object
        ),
        None => format!("{} {}", verb(diff.action), diff.object),
    }
}

/// Returns the action as a word.
pub(super) fn verb(action: Action) -> String {
    match action {
        Action::Skip => "kept".to_owned(),
        action => action.to_string(),
    }
}

/// Returns the reason for the action in parentheses, without control characters.
pub fn note(diff: &ObjectDiff) -> String {
    let reason = plain(&diff.note.reason);
    let mut note = match diff.action {
        // Blocked and skipped objects only make sense with their reason.
        Action::Blocked | Action::Skip => format!(": {reason}"),
        // For a renamed object, the title already contains the reason.
        Action::Create if diff.previous.is_some() => String::new(),
        _ => format!("  ({reason})"),
    };
    if let Some(why) = &diff.note.unverified {
        let _ = write!(note, "  [not verified by the server: {}]", plain(why));
    }
    note
}

/// Returns remarks on changes that the hunks do not show.
pub fn remarks(diff: &ObjectDiff) -> Vec<String> {
    let mut remarks: Vec<String> = diff
        .reordered()
        .map(|change| format!("only the order of {} changes", change.path))
        .collect();
    if diff.action == Action::Update && diff.hunks.is_empty() && remarks.is_empty() {
        remarks.push("no value changes".to_owned());
    }
    if diff.previous.is_some() && diff.hunks.is_empty() && diff.fields.is_empty() {
        remarks.push("nothing else changes".to_owned());
    }
    if matches!(diff.note.cause, Some(Cause::Both { .. })) {
        let mut fields: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for change in &diff.fields {
            let author = match &change.cause {
                Some(Cause::Git) => "git".to_owned(),
                Some(Cause::Drift { managers }) => managers.join(", "),
                _ => "git or the cluster".to_owned(),
            };
            let paths = fields.entry(author).or_default();
            paths.push(change.path.to_string());
        }
        let lines = fields.into_iter();
        remarks.extend(lines.map(|(author, paths)| format!("by {author}: {}", paths.join(", "))));
    }
    remarks
}

/// Returns the action, the object's id and the reason.
pub fn title(object: &ObjectDiff) -> String {
    format!("{}{}", name(object), note(object))
}
