//! Lines of the steps of a plan.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pleach_model::object::ObjectId;
use pleach_model::order::StageName;
use pleach_planner::crd::is_crd;
use pleach_planner::plan::{Action, Body, Change, Op, Plan, Step, Until};

use super::{by_object, section};
use crate::cli::format::change::Fields;
use crate::cli::format::findings::plain;
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
        let id = plain(&step.object.to_string());
        let Sign { mark, verb, style } = Sign::of(step, self.changes.get(&step.object).copied());
        let subject = match (&step.op, &step.until) {
            (Op::Wait, Some(until)) => waits_for(&id, until),
            (Op::Wait, None) => "for all previous steps".to_owned(),
            _ => id,
        };
        let width = self.verb;
        format!(
            "{style}{mark} {verb:<width$}{style:#} {subject}{}",
            because(step)
        )
    }
}

/// Mark, verb and color of a step.
struct Sign {
    mark: char,
    verb: String,
    style: anstyle::Style,
}

impl Sign {
    fn of(step: &Step, change: Option<&Change>) -> Self {
        let uncolored = anstyle::Style::new();
        match (&step.op, change) {
            (Op::Apply { .. } | Op::Create { .. }, Some(change)) => Self {
                mark: mark(change.action),
                verb: change.action.to_string(),
                style: style::of_action(change.action),
            },
            (Op::Delete(_), _) => Self {
                mark: mark(Action::Delete),
                verb: step.op.verb().to_owned(),
                style: style::of_action(Action::Delete),
            },
            (Op::Wait, _) => Self {
                mark: '\u{b7}',
                verb: "wait".to_owned(),
                style: uncolored,
            },
            (Op::Own(_) | Op::Patch { .. }, _) => Self {
                mark: '~',
                verb: "patch".to_owned(),
                style: uncolored,
            },
            (op @ (Op::Copy { .. } | Op::Create { .. }), _) => Self {
                mark: '+',
                verb: op.verb().to_owned(),
                style: uncolored,
            },
            (
                op @ (Op::Apply { .. }
                | Op::Set { .. }
                | Op::Close { .. }
                | Op::Lift
                | Op::Restart { .. }
                | Op::Replace { .. }
                | Op::Migrate { .. }),
                _,
            ) => Self {
                mark: '~',
                verb: op.verb().to_owned(),
                style: uncolored,
            },
        }
    }
}

/// Returns the mark of an action.
fn mark(action: Action) -> char {
    match action {
        Action::Create => '+',
        Action::Update => '~',
        Action::Recreate => '\u{b1}',
        Action::Adopt => '\u{2190}',
        Action::Delete => '-',
        Action::Blocked => '\u{2717}',
        Action::Unchanged | Action::Skip => '\u{b7}',
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
    match &step.op {
        Op::Delete(_)
        | Op::Copy { .. }
        | Op::Patch { .. }
        | Op::Set { .. }
        | Op::Close { .. }
        | Op::Lift
        | Op::Restart { .. }
        | Op::Replace { .. }
        | Op::Migrate { .. } => format!("  ({})", plain(&step.reason)),
        // One object has two steps, so describe each.
        Op::Apply { .. } if is_a_part(step) => {
            format!("  ({})", plain(&step.reason))
        }
        Op::Wait if is_explained(step) => format!("  ({})", plain(&step.reason)),
        _ => String::new(),
    }
}

/// Returns whether the reason of a wait must be shown, because its target does not explain it.
fn is_explained(step: &Step) -> bool {
    matches!(
        step.until,
        None | Some(Until::Finished | Until::Registered { optional: true, .. })
    )
}

/// Returns whether the step is one of several applies of the same object: temporary extra
/// permissions, retained CRD versions, or their end.
fn is_a_part(step: &Step) -> bool {
    let is_ours = matches!(
        &step.op,
        Op::Apply {
            body: Body::Inline(_),
            ..
        }
    );
    is_ours
        || step.stage == StageName::Shrink
        || (step.stage == StageName::Registrations && is_crd(&step.object))
}

fn waits_for(id: &str, until: &Until) -> String {
    match until {
        Until::Ready { .. } => format!("{id} ready"),
        Until::Absent { .. } => format!("{id} gone"),
        Until::Finished => format!("{id} finished"),
        Until::RolledOut {
            pods: Some(pods), ..
        } => format!("{pods} new pods of {id} ready"),
        Until::RolledOut { pods: None, .. } => format!("{id} rolled out"),
        Until::Emptied { .. } => format!("{id} without pods"),
        Until::Probe { denied: true, .. } => format!("{id} in force"),
        Until::Probe { denied: false, .. } => format!("{id} no longer in force"),
        Until::Served(gvk) => format!("{} served", gvk.group_kind()),
        Until::Endpoints {
            service,
            ready,
            pods,
        } => {
            let whose = if pods.is_some() {
                " of its newly selected pods"
            } else {
                ""
            };
            format!("Service {service} with {ready} ready endpoints{whose}")
        }
        Until::Registered { kind, service, .. } => {
            format!("{kind} that points at Service {service}")
        }
        Until::Holds { check } => format!("check {check} holds"),
        Until::Exists { any_of } => {
            let names: Vec<String> = any_of.iter().map(ToString::to_string).collect();
            format!("{} exists", names.join(" or "))
        }
    }
}
