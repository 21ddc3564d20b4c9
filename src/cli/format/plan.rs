//! A plan in words.

use std::fmt::Write as _;

use pleach_domain::object::ObjectId;
use pleach_domain::plan::{Action, Change, Edge, EdgeReason, Need, Op, Plan, Step, Until};

use super::findings::plain;
use super::style;

/// The stages with their steps, then what stays as it is.
pub(crate) fn text(plan: &Plan) -> String {
    let mut text = headline(plan);
    for stage in &plan.stages {
        let _ = writeln!(text, "\n{}{}{:#}", style::PLACE, stage.name, style::PLACE);
        for step in plan.steps.iter().filter(|step| step.stage == stage.name) {
            let _ = writeln!(text, "  {}", line(plan, step));
        }
    }
    let kept: Vec<&Change> = plan
        .changes
        .iter()
        .filter(|change| change.action == Action::Skip)
        .collect();
    if !kept.is_empty() {
        let _ = writeln!(text, "\n{}kept{:#}", style::PLACE, style::PLACE);
        for change in kept {
            let _ = writeln!(
                text,
                "  {}: {}",
                plain(&change.object.to_string()),
                plain(&change.reason)
            );
        }
    }
    let blocked: Vec<&Change> = plan
        .changes
        .iter()
        .filter(|change| change.action == Action::Blocked)
        .collect();
    if !blocked.is_empty() {
        let _ = writeln!(text, "\n{}blocked{:#}", style::PLACE, style::PLACE);
        for change in blocked {
            let _ = writeln!(
                text,
                "  {}: {}",
                plain(&change.object.to_string()),
                plain(&change.reason)
            );
        }
    }
    text
}

fn headline(plan: &Plan) -> String {
    let version = match &plan.from {
        Some(from) if *from != plan.to => format!("{from} -> {}", plan.to),
        _ => plan.to.clone(),
    };
    format!(
        "{}release {}{:#} {}\n",
        style::PLACE,
        plan.release,
        style::PLACE,
        plain(&version)
    )
}

fn line(plan: &Plan, step: &Step) -> String {
    let id = plain(&step.object.to_string());
    let what = match &step.op {
        Op::Wait => match &step.until {
            Some(until) => format!("{:<9} {}", "wait", waits_for(&id, until)),
            None => format!("{:<9} for all steps before", "wait"),
        },
        Op::Patch { .. } => format!("{:<9} {id}", "patch"),
        Op::Apply { .. } | Op::Create { .. } => {
            format!("{:<9} {id}", action_of(plan, &step.object))
        }
        op @ (Op::Delete(_) | Op::Copy { .. } | Op::Migrate { .. }) => {
            format!("{:<9} {id}", op.verb())
        }
    };
    format!("{what}{}", because(step))
}

fn because(step: &Step) -> String {
    match &step.op {
        Op::Delete(_) | Op::Patch { .. } => format!("  ({})", plain(&step.reason)),
        Op::Wait if step.until.is_none() => format!("  ({})", plain(&step.reason)),
        _ => String::new(),
    }
}

fn action_of(plan: &Plan, id: &ObjectId) -> String {
    plan.changes
        .iter()
        .find(|change| change.object == *id)
        .map_or_else(|| "apply".to_owned(), |change| change.action.to_string())
}

fn waits_for(id: &str, until: &Until) -> String {
    match until {
        Until::Ready { .. } => format!("{id} ready"),
        Until::Absent { .. } => format!("{id} gone"),
        Until::Served(gvk) => format!("{} served", gvk.group_kind()),
        Until::Endpoints { service, ready } => {
            format!("Service {service} with {ready} ready endpoints")
        }
        Until::Registered { kind, service } => format!("{kind} that points at Service {service}"),
        Until::Exists { any_of } => {
            let names: Vec<String> = any_of.iter().map(ToString::to_string).collect();
            format!("{} exists", names.join(" or "))
        }
    }
}

/// Why one object is where it is: what happens to it, its steps, what each of
/// them waits for, and who waits for them.
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
                let _ = writeln!(
                    text,
                    "    before {} {} ({})",
                    other.op.verb(),
                    plain(&other.object.to_string()),
                    why(&edge.why)
                );
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
    format!(
        "{} {} is {state} ({})",
        from.op.verb(),
        plain(&from.object.to_string()),
        why(&edge.why)
    )
}

fn why(reason: &EdgeReason) -> &'static str {
    match reason {
        EdgeReason::Definition => "its definition must be served",
        EdgeReason::Namespace => "it lies in that namespace",
        EdgeReason::Role => "a binding needs its role",
        EdgeReason::Rights => "its pods need these rights",
        EdgeReason::Reference => "its pods need it",
        EdgeReason::Backend => "a registration needs its backend",
        EdgeReason::Intercepts => "the registration intercepts it",
        EdgeReason::After => "annotation pleach.dev/after",
        EdgeReason::Barrier => "a barrier between stages",
        EdgeReason::SameObject => "an earlier step on the same object",
        EdgeReason::Reverse => "deletions go in reverse",
        EdgeReason::Leftover => "a dead registration goes first",
    }
}

/// The last line of every diff, plan and report.
pub(crate) fn summary(plan: &Plan) -> String {
    pleach_domain::diff::text::summary(plan.changes.iter().map(|change| change.action))
}
