//! Descriptions of the steps of a plan, shared by all output formats for people.

use pleach_model::order::StageName;
use pleach_model::sanitize::plain;
use pleach_planner::crd::is_crd;
use pleach_planner::plan::{Action, Body, Change, Op, Step, Until};

/// Mark and verb of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sign {
    /// Mark of one character.
    pub mark: char,
    /// Verb, in lower case.
    pub verb: String,
    /// Action that decides the color; `None` for an operation without one.
    pub action: Option<Action>,
}

impl Sign {
    /// Returns the sign of a step. `change` is the change of its object.
    pub fn of(step: &Step, change: Option<&Change>) -> Self {
        let plain = |mark, verb: &str| Self {
            mark,
            verb: verb.to_owned(),
            action: None,
        };
        match (&step.op, change) {
            (Op::Apply { .. } | Op::Create { .. }, Some(change)) => Self {
                mark: mark(change.action),
                verb: change.action.to_string(),
                action: Some(change.action),
            },
            (Op::Delete(_), _) => Self {
                mark: mark(Action::Delete),
                verb: step.op.verb().to_owned(),
                action: Some(Action::Delete),
            },
            (op @ (Op::Wait | Op::Pause), _) => plain('\u{b7}', op.verb()),
            (Op::Own(_) | Op::Patch { .. }, _) => plain('~', "patch"),
            (op @ (Op::Copy { .. } | Op::Create { .. }), _) => plain('+', op.verb()),
            (
                op @ (Op::Apply { .. }
                | Op::Set { .. }
                | Op::Close { .. }
                | Op::Lift
                | Op::Restart { .. }
                | Op::Replace { .. }
                | Op::Migrate { .. }
                | Op::UpgradeNode { .. }
                | Op::Preload { .. }
                | Op::RememberImages { .. }
                | Op::CleanNode { .. }),
                _,
            ) => plain('~', op.verb()),
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

/// Returns the object of a step, or the state that it waits for.
pub fn subject(step: &Step) -> String {
    let id = plain(&step.object.to_string());
    match (&step.op, &step.until) {
        (Op::Wait, Some(until)) => waits_for(&id, until),
        (Op::Wait, None) => "for all previous steps".to_owned(),
        (Op::Pause, _) => format!("after {id}"),
        _ => id,
    }
}

/// Returns the reason of a step, if verb and subject do not explain it.
pub fn explanation(step: &Step) -> Option<String> {
    let is_shown = match &step.op {
        Op::Delete(_)
        | Op::Copy { .. }
        | Op::Patch { .. }
        | Op::Set { .. }
        | Op::Close { .. }
        | Op::Lift
        | Op::Restart { .. }
        | Op::Replace { .. }
        | Op::Migrate { .. }
        | Op::UpgradeNode { .. }
        | Op::Pause
        | Op::Preload { .. }
        | Op::RememberImages { .. }
        | Op::CleanNode { .. } => true,
        // One object has two steps, so describe each.
        Op::Apply { .. } => is_a_part(step),
        Op::Wait => is_explained(step),
        Op::Own(_) | Op::Create { .. } => false,
    };
    is_shown.then(|| plain(&step.reason))
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
pub fn is_a_part(step: &Step) -> bool {
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
