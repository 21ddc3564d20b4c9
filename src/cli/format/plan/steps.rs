//! Lines of the steps of a plan.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pleach_model::object::ObjectId;
use pleach_model::order::StageName;
use pleach_planner::plan::{Action, Change, Op, Plan, Step, Until};
use pleach_report::steps::{Sign, explanation, is_a_part, subject};

use super::{by_object, section};
use crate::cli::format::change::Fields;
use crate::cli::format::style;

/// Longest part of a line before its fields, in characters.
const WIDEST: usize = 60;
/// Usual width of the column of verbs.
const VERB: usize = 7;

/// Layout of the steps of a plan.
pub(super) struct Lines<'a> {
    changes: BTreeMap<&'a ObjectId, &'a Change>,
    /// Changed fields that are not shown yet.
    fields: Fields,
    /// Width of the column of verbs.
    verb: usize,
    /// Column of the changed fields: behind the longest line with fields, within limits.
    column: usize,
}

impl<'a> Lines<'a> {
    /// Lays out the steps of a plan, with these fields beside their objects.
    pub(super) fn of(plan: &'a Plan, fields: &Fields) -> Self {
        let changes = by_object(plan);
        let verbs = plan.steps.iter();
        let verbs = verbs.map(|step| {
            Sign::of(step, changes.get(&step.object).copied())
                .verb
                .len()
        });
        let verb = verbs.max().unwrap_or_default().max(VERB);
        let changed = plan.steps.iter();
        let changed = changed.filter(|step| fields.contains_key(&step.object));
        // The mark takes two characters. One space follows the verb, and two come before the fields.
        let widths = changed.map(|step| step.object.to_string().chars().count() + verb + 5);
        let column = widths.filter(|width| *width <= WIDEST).max();
        Self {
            changes,
            fields: fields.clone(),
            verb,
            column: column.unwrap_or(WIDEST),
        }
    }

    /// Formats the steps of a stage. `is_last`: other stages precede it, and none follows.
    pub(super) fn stage(&mut self, text: &mut String, steps: &[Step], is_last: bool) {
        let unchanged = |step: &&Step| self.is_unchanged(step);
        let tally = steps.iter().filter(unchanged).count();
        let is_implied = |step: &Step| self.is_unchanged(step) || is_barrier(step);
        let is_implied =
            is_last && steps[0].stage == StageName::Verify && steps.iter().all(is_implied);
        if !is_implied {
            section(text, &steps[0].stage);
        }
        let mut counted = false;
        for step in steps {
            if tally > 1 && self.is_unchanged(step) {
                if !counted {
                    let _ = writeln!(
                        text,
                        "  \u{b7} {:<1$} {tally} unchanged objects ready",
                        "wait", self.verb
                    );
                }
                counted = true;
            } else if !(is_implied && is_barrier(step)) {
                self.step(text, step);
            }
        }
    }

    /// Returns whether the step only waits until an unchanged object is ready.
    fn is_unchanged(&self, step: &Step) -> bool {
        let action = self.changes.get(&step.object).map(|change| change.action);
        matches!(step.op, Op::Wait)
            && matches!(step.until, Some(Until::Ready { .. }))
            && action == Some(Action::Unchanged)
    }

    fn step(&mut self, text: &mut String, step: &Step) {
        let line = self.line(step);
        let _ = write!(text, "  {line}");
        let is_whole = matches!(step.op, Op::Apply { .. } | Op::Create { .. });
        let shown = (is_whole && !is_a_part(step)).then(|| self.fields.remove(&step.object));
        for (index, field) in shown.flatten().into_iter().flatten().enumerate() {
            if index > 0 {
                text.push_str("\n  ");
            }
            let width = if index == 0 { visible(&line) } else { 0 };
            let space = self.column.saturating_sub(width).max(2);
            let _ = write!(text, "{:space$}{field}", "");
        }
        text.push('\n');
    }

    fn line(&self, step: &Step) -> String {
        let Sign { mark, verb, action } = Sign::of(step, self.changes.get(&step.object).copied());
        let style = action.map_or_else(anstyle::Style::new, style::of_action);
        let (subject, width) = (subject(step), self.verb);
        format!(
            "{style}{mark} {verb:<width$}{style:#} {subject}{}",
            because(step)
        )
    }
}

/// Returns whether the step only orders other steps.
fn is_barrier(step: &Step) -> bool {
    matches!(step.op, Op::Wait) && step.until.is_none()
}

/// Returns the width of a text without its colors.
fn visible(text: &str) -> usize {
    anstream::adapter::strip_str(text)
        .to_string()
        .chars()
        .count()
}

fn because(step: &Step) -> String {
    explanation(step).map_or_else(String::new, |reason| format!("  ({reason})"))
}
