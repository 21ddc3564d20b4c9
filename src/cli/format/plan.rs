//! Plans as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pleach_model::object::ObjectId;
use pleach_planner::plan::{Action, Change, Edge, EdgeReason, Need, Op, Plan, Step};

use super::change::Fields;
use super::findings::plain;
use super::status::short;
use super::style;

mod steps;

use steps::Lines;

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
        EdgeReason::Node => "nodes are changed one after the other",
        EdgeReason::Check => "checks must hold before a stage declared by the bundle",
    }
}

/// Formats the counts of a plan. Nodes are no objects of the release.
pub(crate) fn summary(plan: &Plan) -> String {
    let objects =
        pleach_planner::text_diff::summary(plan.changes.iter().map(|change| change.action));
    let is_node = |step: &&Step| matches!(step.op, Op::UpgradeNode { .. });
    match plan.steps.iter().filter(is_node).count() {
        0 => objects,
        1 => format!("1 node to upgrade, {objects}"),
        nodes => format!("{nodes} nodes to upgrade, {objects}"),
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use jiff::SignedDuration;
    use pleach_model::object::Digest;
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
    fn nodes_are_counted_beside_objects() {
        let mut plan = samples::plan(&[("a", Action::Unchanged)]);
        let upgrade = Op::UpgradeNode {
            content: Digest::of(b"x"),
            jobs: Vec::new(),
            driver: None,
        };
        plan.steps.push(samples::step(0, "b", upgrade.clone()));
        assert_eq!(summary(&plan), "1 node to upgrade, 1 unchanged");
        plan.steps.push(samples::step(1, "c", upgrade));
        assert_eq!(summary(&plan), "2 nodes to upgrade, 1 unchanged");
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
