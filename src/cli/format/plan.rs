//! Plans as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pleach_model::object::ObjectId;
use pleach_model::order::StageName;
use pleach_planner::crd::is_crd;
use pleach_planner::plan::{Action, Body, Change, Edge, EdgeReason, Need, Op, Plan, Step, Until};

use super::change::Fields;
use super::findings::plain;
use super::style;

/// Formats the stages with their steps and the changed fields of their objects, then the unchanged
/// objects and the summary.
pub(crate) fn text(plan: &Plan, fields: &Fields) -> String {
    let changes = by_object(plan);
    let mut text = headline(plan);
    let mut fields = fields.clone();
    let column = column(plan, &fields);
    for steps in plan.steps.chunk_by(|a, b| a.stage == b.stage) {
        section(&mut text, &steps[0].stage);
        for step in steps {
            let line = line(&changes, step);
            let _ = write!(text, "  {line}");
            let is_whole = matches!(step.op, Op::Apply { .. } | Op::Create { .. });
            let shown = (is_whole && !is_a_part(step)).then(|| fields.remove(&step.object));
            for (index, field) in shown.flatten().into_iter().flatten().enumerate() {
                if index > 0 {
                    text.push_str("\n  ");
                }
                let width = if index == 0 { visible(&line) } else { 0 };
                let space = column.saturating_sub(width).max(2);
                let _ = write!(text, "{:space$}{field}", "");
            }
            text.push('\n');
        }
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
    let _ = write!(text, "\n{}", summary(plan));
    text
}

/// Longest part of a line before its fields, in characters.
const WIDEST: usize = 60;

/// Returns the column of the changed fields: behind the longest line with fields, within limits.
fn column(plan: &Plan, fields: &Fields) -> usize {
    let changed = plan.steps.iter();
    let changed = changed.filter(|step| fields.contains_key(&step.object));
    // The action takes ten characters, and two spaces come before the fields.
    let widths = changed.map(|step| step.object.to_string().chars().count() + 12);
    widths
        .filter(|width| *width <= WIDEST)
        .max()
        .unwrap_or(WIDEST)
}

/// Returns the width of a text without its colors.
fn visible(text: &str) -> usize {
    anstream::adapter::strip_str(text)
        .to_string()
        .chars()
        .count()
}

fn section(text: &mut String, name: &impl std::fmt::Display) {
    let _ = writeln!(text, "\n{}{name}{:#}", style::PLACE, style::PLACE);
}

/// Returns the changes by object.
pub(super) fn by_object(plan: &Plan) -> BTreeMap<&ObjectId, &Change> {
    plan.changes
        .iter()
        .map(|change| (&change.object, change))
        .collect()
}

/// Returns a suffix for objects that the server has not verified.
pub(super) fn unverified(change: &Change) -> String {
    match &change.unverified {
        Some(why) => format!("  [not verified by the server: {}]", plain(why)),
        None => String::new(),
    }
}

fn headline(plan: &Plan) -> String {
    let version = match &plan.from {
        _ if plan.removal.is_some() => format!("{} -> gone", version(plan)),
        Some(from) if *from != plan.to => plain(&format!("{from} -> {}", plan.to)),
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
        (None, _) => plain(&plan.to),
        (Some(_), Some(from)) => plain(from),
        (Some(_), None) => "unknown version".to_owned(),
    }
}

fn line(changes: &BTreeMap<&ObjectId, &Change>, step: &Step) -> String {
    let id = plain(&step.object.to_string());
    let what = match &step.op {
        Op::Wait => match &step.until {
            Some(until) => format!("{:<9} {}", "wait", waits_for(&id, until)),
            None => format!("{:<9} for all previous steps", "wait"),
        },
        Op::Own(_) | Op::Patch { .. } => format!("{:<9} {id}", "patch"),
        op @ (Op::Apply { .. } | Op::Create { .. }) => match changes.get(&step.object) {
            Some(change) => {
                let action = change.action.to_string();
                let style = style::of_action(change.action);
                format!("{style}{action:<9}{style:#} {id}{}", unverified(change))
            }
            None => format!("{:<9} {id}", op.verb()),
        },
        op @ (Op::Set { .. }
        | Op::Close { .. }
        | Op::Lift
        | Op::Restart { .. }
        | Op::Replace { .. }
        | Op::Delete(_)
        | Op::Copy { .. }
        | Op::Migrate { .. }) => {
            let style = match op {
                Op::Delete(_) => style::of_action(Action::Delete),
                _ => anstyle::Style::new(),
            };
            format!("{style}{:<9}{style:#} {id}", op.verb())
        }
    };
    format!("{what}{}", because(step))
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

/// Formats the last line of each diff, plan and report.
pub(crate) fn summary(plan: &Plan) -> String {
    let mut summary =
        pleach_planner::text_diff::summary(plan.changes.iter().map(|change| change.action));
    let unverified = plan
        .changes
        .iter()
        .filter(|change| change.unverified.is_some())
        .count();
    if unverified > 0 {
        // They are already included in the counts above.
        let _ = write!(summary, "; {unverified} not verified by the server");
    }
    summary
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
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
        assert_snapshot!(text, @r"
        release dev.web v1.0.0

        config
          create    ConfigMap/web/a
          create    ConfigMap/web/b  [not verified by the server: its namespace does not exist yet]

        verify
          wait      ConfigMap/web/a gone

        kept
          ConfigMap/web/d: reason of d

        blocked
          ConfigMap/web/e: reason of e

        2 to create, 1 unchanged, 1 blocked, 1 kept; 1 not verified by the server
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
        assert!(colored.contains(&format!("{yellow}update")), "{colored}");
        let text = anstream::adapter::strip_str(&colored).to_string();
        assert_snapshot!(text, @r"
        release dev.web v1.0.0

        config
          update    ConfigMap/web/a                 data.x: 1 -> 2
                                                    … and 4 more fields
          update    ConfigMap/web/much-longer-name  data.y: 1 -> 2
          create    ConfigMap/web/c

        1 to create, 2 to update
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
