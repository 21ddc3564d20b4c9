//! Differences of objects, masked and bounded.

use pleach_model::sanitize::{clipped, plain};
use pleach_planner::plan::Action;
use pleach_planner::text_diff::{ObjectDiff, Tag};
use pleach_report::labels::{remarks, title};
use pleach_report::preview::worst_risk;
use serde::Serialize;

/// Maximum number of lines per object, for the browser's sake.
const LINES: usize = 2_000;
/// Maximum number of characters per line.
pub(crate) const LINE: usize = 2_000;
/// Maximum number of lines of a deleted object.
const DELETED_LINES: usize = 500;

/// Limits of a page, which its objects use up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Number of lines of all objects together.
    pub lines: usize,
    /// Number of bytes of all lines together.
    pub bytes: usize,
}

/// Difference of one object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ObjectView {
    /// The action in its usual form, such as `update`.
    pub verb: String,
    /// The object and the reason.
    pub rest: String,
    /// The action, or the kind of move.
    pub action: String,
    /// Level of its highest risk.
    pub risk: Option<&'static str>,
    /// Whether it is expanded at first.
    pub is_open: bool,
    /// Remarks on changes that the lines do not show.
    pub remarks: Vec<String>,
    /// Number of lines that are left out.
    pub left_out: usize,
    /// The lines.
    pub lines: Vec<LineView>,
}

/// One line of a difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LineView {
    /// `added`, `removed`, `place`, or empty for context.
    pub class: &'static str,
    /// The text with its sign, in parts.
    pub parts: Vec<PartView>,
}

/// A part of a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartView {
    /// The text.
    pub text: String,
    /// Whether only this side has the words.
    pub is_changed: bool,
}

impl LineView {
    /// Returns the size of its text, in bytes.
    fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.text.len()).sum()
    }
}

/// Returns the view of an object. `is_open`: expand it at first, unless it is deleted.
pub fn object(object: &ObjectDiff, is_open: bool, budget: &mut Budget) -> ObjectView {
    let all: usize = object.hunks.iter().map(|hunk| hunk.lines.len() + 1).sum();
    let is_deleted = object.action == Action::Delete;
    let most = if is_deleted { DELETED_LINES } else { LINES };
    let lines = lines(object, most.min(budget.lines), &mut budget.bytes);
    budget.lines -= lines.len();
    let title = plain(&title(object));
    let (verb, rest) = title.split_once(' ').unwrap_or((&title, ""));
    ObjectView {
        verb: verb.to_owned(),
        rest: clipped(rest, LINE),
        action: object.previous.as_ref().map_or_else(
            || object.action.to_string(),
            |previous| previous.how.verb().to_owned(),
        ),
        risk: worst_risk(object).map(|risk| risk.level().word()),
        is_open: is_open && !is_deleted,
        remarks: remarks(object)
            .iter()
            .map(|remark| clipped(&plain(remark), LINE))
            .collect(),
        left_out: all.saturating_sub(lines.len()),
        lines,
    }
}

/// Returns the first lines of an object, within the limits.
fn lines(object: &ObjectDiff, most: usize, bytes: &mut usize) -> Vec<LineView> {
    let mut lines = Vec::new();
    for hunk in &object.hunks {
        if lines.len() >= most {
            break;
        }
        let header = clipped(&plain(&hunk.header()), LINE);
        let header = PartView {
            text: header,
            is_changed: false,
        };
        lines.push(LineView {
            class: "place",
            parts: vec![header],
        });
        let parts = hunk.parts(most - lines.len(), |text| clipped(&plain(text), LINE));
        let parts = parts.into_iter().map(|parts| {
            let parts = parts.into_iter();
            parts.map(|part| PartView {
                text: part.text,
                is_changed: part.is_changed,
            })
        });
        for (shown, parts) in hunk.lines.iter().zip(parts) {
            let shown = line(shown.tag, parts);
            let Some(left) = bytes.checked_sub(shown.bytes()) else {
                return lines;
            };
            *bytes = left;
            lines.push(shown);
        }
    }
    lines
}

/// Returns a line with its sign and its changed words.
fn line(tag: Tag, parts: impl Iterator<Item = PartView>) -> LineView {
    let class = match tag {
        Tag::Added => "added",
        Tag::Removed => "removed",
        Tag::Context => "",
    };
    let sign = PartView {
        text: tag.sign().to_string(),
        is_changed: false,
    };
    LineView {
        class,
        parts: std::iter::once(sign).chain(parts).collect(),
    }
}
