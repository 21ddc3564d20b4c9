//! Plans as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pleach_model::object::ObjectId;
use pleach_model::order::StageName;
use pleach_planner::crd::is_crd;
use pleach_planner::plan::{Action, Body, Change, Edge, EdgeReason, Need, Op, Plan, Step, Until};

use super::change::Fields;
use super::findings::plain;
use super::status::short;
use super::style;

/// Formats the stages with their steps and the changed fields of their objects, then the objects
/// that the server has not verified, and the summary.
pub(crate) fn text(plan: &Plan, fields: &Fields) -> String {
    let mut text = headline(plan);
    let mut lines = Lines::of(plan, fields);
    let count = plan.steps.chunk_by(|a, b| a.stage == b.stage).count();
    for (index, steps) in plan.steps.chunk_by(|a, b| a.stage == b.stage).enumerate() {
        lines.stage(&mut text, steps, index > 0 && index + 1 == count);
    }
    for (name, action) in [("kept", Action::Skip), ("blocked", Action::Blocked)] {
        let mut left = plan
            .changes
            .iter()
            .filter(|change| change.action == action)
            .peekable();
        if left.peek().is_some() {
            section(&mut text, &name);
        }
        for change in left {
            let _ = writeln!(
                text,
                "  {}: {}",
                plain(&change.object.to_string()),
                plain(&change.reason)
            );
        }
    }
    text.push_str(&unverified(plan));
    text.push_str(&sum(plan));
    text
}

/// Maximum number of unverified objects that are named per reason.
const NAMED: usize = 3;

/// Formats the objects that the server has not verified: one line per reason.
fn unverified(plan: &Plan) -> String {
    let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for change in &plan.changes {
        if let Some(why) = &change.unverified {
            let object = plain(&change.object.to_string());
            reasons.entry(why).or_default().push(object);
        }
    }
    let lines = reasons.into_iter().map(|(why, objects)| {
        let more = objects.len().saturating_sub(NAMED);
        let mut names = objects[..objects.len() - more].join(", ");
        if more > 0 {
            let _ = write!(names, " and {more} more");
        }
        format!("not verified by the server: {} ({names})\n", plain(why))
    });
    lines.collect()
}

/// Formats the summary. A plan with changes always states the number of deletions.
fn sum(plan: &Plan) -> String {
    let summary = summary(plan);
    let is_change = |change: &Change| !matches!(change.action, Action::Unchanged);
    if plan.count(Action::Delete) == 0 && plan.changes.iter().any(is_change) {
        format!("{summary}, 0 to delete")
    } else {
        summary
    }
}

/// Longest part of a line before its fields, in characters.
const WIDEST: usize = 60;
/// Usual width of the column of verbs.
const VERB: usize = 7;

/// Layout of the steps of a plan.
struct Lines<'a> {
    changes: BTreeMap<&'a ObjectId, &'a Change>,
    /// Changed fields that are not shown yet.
    fields: Fields,
    /// Width of the column of verbs.
    verb: usize,
    /// Column of the changed fields: behind the longest line with fields, within limits.
    column: usize,
}

impl<'a> Lines<'a> {
    fn of(plan: &'a Plan, fields: &Fields) -> Self {
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
    fn stage(&mut self, text: &mut String, steps: &[Step], is_last: bool) {
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
pub(super) fn mark(action: Action) -> char {
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

fn section(text: &mut String, name: &impl std::fmt::Display) {
    let _ = writeln!(text, "{}{name}{:#}", style::PLACE, style::PLACE);
}

/// Returns the changes by object.
pub(super) fn by_object(plan: &Plan) -> BTreeMap<&ObjectId, &Change> {
    plan.changes
        .iter()
        .map(|change| (&change.object, change))
        .collect()
}

fn headline(plan: &Plan) -> String {
    let version = match &plan.from {
        _ if plan.removal.is_some() => format!("{} -> gone", version(plan)),
        Some(from) if *from != plan.to => plain(&format!("{} -> {}", short(from), short(&plan.to))),
        _ => version(plan),
    };
    format!(
        "{}release {}{:#} {version}\n",
        style::PLACE,
        plan.release,
        style::PLACE,
    )
}

/// Returns the target version, or the installed version if the release is removed.
pub(super) fn version(plan: &Plan) -> String {
    match (&plan.removal, &plan.from) {
        (None, _) => plain(&short(&plan.to)),
        (Some(_), Some(from)) => plain(&short(from)),
        (Some(_), None) => "unknown version".to_owned(),
    }
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

/// Explains one object: its change, its steps with their dependencies, and the steps that depend on
/// them.
pub(crate) fn explain(plan: &Plan, id: &ObjectId) -> Option<String> {
    let change = plan.changes.iter().find(|change| change.object == *id);
    let steps: Vec<&Step> = plan
        .steps
        .iter()
        .filter(|step| step.object == *id)
        .collect();
    if change.is_none() && steps.is_empty() {
        return None;
    }
    let mut text = format!("{}{id}{:#}\n", style::PLACE, style::PLACE);
    if let Some(change) = change {
        let _ = writeln!(text, "  {}: {}", change.action, plain(&change.reason));
        if let Some(why) = &change.unverified {
            let _ = writeln!(text, "  not verified by the server: {}", plain(why));
        }
    }
    for step in steps {
        let _ = writeln!(
            text,
            "  step {} in stage {}: {}",
            step.id.0,
            step.stage,
            plain(&step.reason)
        );
        for edge in &step.needs {
            let _ = writeln!(text, "    after {}", needed(plan, edge));
        }
        for other in &plan.steps {
            for edge in other.needs.iter().filter(|edge| edge.from == step.id) {
                let _ = writeln!(text, "    before {} ({})", named(other), why(&edge.why));
            }
        }
    }
    Some(text)
}

fn needed(plan: &Plan, edge: &Edge) -> String {
    let from = &plan.steps[edge.from.0];
    let state = match edge.state {
        Need::Applied => "done",
        Need::Ready => "ready",
        Need::Absent => "gone",
    };
    format!("{} is {state} ({})", named(from), why(&edge.why))
}

/// Names a step in a sentence. A pure ordering step has no meaningful object, so it is named by
/// number and reason.
fn named(step: &Step) -> String {
    if matches!(step.op, Op::Wait) && step.until.is_none() {
        return format!(
            "step {}, \u{201c}{}\u{201d},",
            step.id.0,
            plain(&step.reason)
        );
    }
    format!("{} {}", step.op.verb(), plain(&step.object.to_string()))
}

fn why(reason: &EdgeReason) -> &'static str {
    match reason {
        EdgeReason::Crd => "its CRD must be served",
        EdgeReason::Operator => "it can serve a kind that its release defines",
        EdgeReason::Api => "the server behind its API must answer",
        EdgeReason::Namespace => "it is in that namespace",
        EdgeReason::Role => "a binding needs its role",
        EdgeReason::Permissions => "its pods need these permissions",
        EdgeReason::Token => "the cluster deletes a token without its account",
        EdgeReason::Reference => "its pods need it",
        EdgeReason::Backend => "a registration needs its backend",
        EdgeReason::Selects => "a Service that selects other pods keeps ready endpoints",
        EdgeReason::Intercepts => "a webhook of the release intercepts it",
        EdgeReason::Policy => "an admission policy needs its parameters, its binding needs both",
        EdgeReason::After => "annotation pleach.dev/after",
        EdgeReason::Barrier => "a barrier between stages",
        EdgeReason::SameObject => "an earlier step on the same object",
        EdgeReason::Reverse => "deletions and rollbacks run in reverse order",
        EdgeReason::Leftover => "a dead registration is removed first",
        EdgeReason::Overlay => "a temporary change lasts from its first stage to its last",
        EdgeReason::Stage => "a stage declared by the bundle",
        EdgeReason::Once => "a Job that runs once finishes before the steps after it",
        EdgeReason::Rewritten => "stored objects are rewritten while the previous webhook converts",
        EdgeReason::Check => "checks must hold before a stage declared by the bundle",
    }
}

/// Formats the counts of a plan.
pub(crate) fn summary(plan: &Plan) -> String {
    pleach_planner::text_diff::summary(plan.changes.iter().map(|change| change.action))
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use jiff::SignedDuration;
    use pleach_model::order::StageName;
    use pleach_planner::plan::Until;

    use super::*;
    use crate::cli::format::samples;

    #[test]
    fn stages_show_their_steps_and_unverified_changes() {
        let mut plan = samples::plan(&[
            ("a", Action::Create),
            ("b", Action::Create),
            ("c", Action::Unchanged),
            ("d", Action::Skip),
            ("e", Action::Blocked),
        ]);
        plan.changes[1].unverified = Some("its namespace does not exist yet".to_owned());
        let mut wait = samples::step(2, "a", Op::Wait);
        wait.stage = StageName::Verify;
        wait.until = Some(Until::Absent { pods: None });
        plan.steps.push(wait);
        let text = anstream::adapter::strip_str(&text(&plan, &Fields::new())).to_string();
        assert_snapshot!(text, @"
        release dev.web v1.0.0
        config
          + create  ConfigMap/web/a
          + create  ConfigMap/web/b
        verify
          · wait    ConfigMap/web/a gone
        kept
          ConfigMap/web/d: reason of d
        blocked
          ConfigMap/web/e: reason of e
        not verified by the server: its namespace does not exist yet (ConfigMap/web/b)
        2 to create, 1 unchanged, 1 blocked, 1 kept, 0 to delete
        ");
    }

    #[test]
    fn waits_for_unchanged_objects_are_one_line() {
        let mut plan = samples::plan(&[
            ("a", Action::Recreate),
            ("b", Action::Unchanged),
            ("c", Action::Unchanged),
            ("d", Action::Adopt),
        ]);
        for name in ["b", "c", "all"] {
            let mut wait = samples::step(plan.steps.len(), name, Op::Wait);
            wait.stage = StageName::Verify;
            wait.until = (name != "all").then_some(Until::Ready {
                stable_for: SignedDuration::ZERO,
                optional: false,
            });
            plan.steps.push(wait);
        }
        let drawn =
            |plan: &Plan| anstream::adapter::strip_str(&text(plan, &Fields::new())).to_string();
        assert_snapshot!(drawn(&plan), @r"
        release dev.web v1.0.0
        config
          ± recreate ConfigMap/web/a
          ← adopt    ConfigMap/web/d
          · wait     2 unchanged objects ready
        1 to recreate, 1 to adopt, 2 unchanged, 0 to delete
        ");
        // A stage that follows depends on them.
        let mut shrink = plan.steps[0].clone();
        shrink.stage = StageName::Shrink;
        plan.steps.push(shrink);
        assert_snapshot!(drawn(&plan), @r"
        release dev.web v1.0.0
        config
          ± recreate ConfigMap/web/a
          ← adopt    ConfigMap/web/d
        verify
          · wait     2 unchanged objects ready
          · wait     for all previous steps  (reason of all)
        shrink
          ± recreate ConfigMap/web/a  (reason of a)
        1 to recreate, 1 to adopt, 2 unchanged, 0 to delete
        ");
    }

    #[test]
    fn changed_fields_are_beside_their_object() {
        let plan = samples::plan(&[
            ("a", Action::Update),
            ("much-longer-name", Action::Update),
            ("c", Action::Create),
        ]);
        let one = |text: &str| text.to_owned();
        let fields: Fields = [
            (
                "ConfigMap/web/a".parse().unwrap(),
                vec![one("data.x: 1 -> 2"), one("… and 4 more fields")],
            ),
            (
                "ConfigMap/web/much-longer-name".parse().unwrap(),
                vec![one("data.y: 1 -> 2")],
            ),
        ]
        .into();
        let colored = text(&plan, &fields);
        let yellow = style::of_action(Action::Update);
        assert!(colored.contains(&format!("{yellow}~ update")), "{colored}");
        let text = anstream::adapter::strip_str(&colored).to_string();
        assert_snapshot!(text, @r"
        release dev.web v1.0.0
        config
          ~ update  ConfigMap/web/a                 data.x: 1 -> 2
                                                    … and 4 more fields
          ~ update  ConfigMap/web/much-longer-name  data.y: 1 -> 2
          + create  ConfigMap/web/c
        1 to create, 2 to update, 0 to delete
        ");
    }

    #[test]
    fn a_plan_without_steps_is_its_summary() {
        let plan = samples::plan(&[("a", Action::Unchanged)]);
        let text = anstream::adapter::strip_str(&text(&plan, &Fields::new())).to_string();
        assert_snapshot!(text, @r"
        release dev.web v1.0.0
        1 unchanged
        ");
    }
}
