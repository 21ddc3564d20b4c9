//! Sample plans for tests of the formats.

use jiff::SignedDuration;
use pleach_model::object::{DesiredDigest, Digest, ObjectId, ReleaseName};
use pleach_model::order::StageName;
use pleach_planner::plan::{Action, Body, Change, Op, Plan, Step, StepId};

/// Returns a plan with these actions on ConfigMaps, with one step per change.
pub(crate) fn plan(changes: &[(&str, Action)]) -> Plan {
    let changes: Vec<Change> = changes
        .iter()
        .map(|(name, action)| Change {
            reason: format!("reason of {name}"),
            ..Change::new(id(name), *action)
        })
        .collect();
    let steps = changes
        .iter()
        .filter(|change| {
            !matches!(
                change.action,
                Action::Unchanged | Action::Skip | Action::Blocked
            )
        })
        .enumerate()
        .map(|(position, change)| step(position, &change.object.name, apply()))
        .collect();
    let release = ReleaseName {
        environment: "dev".to_owned(),
        release: "web".to_owned(),
    };
    Plan {
        changes,
        steps,
        ..Plan::new(release, "v1.0.0")
    }
}

/// Returns a step on the ConfigMap with this name.
pub(crate) fn step(position: usize, name: &str, op: Op) -> Step {
    Step {
        id: StepId(position),
        stage: StageName::Config,
        object: id(name),
        op,
        needs: Vec::new(),
        require: Vec::new(),
        until: None,
        deadline: SignedDuration::from_secs(1),
        overlay: None,
        reason: format!("reason of {name}"),
    }
}

fn apply() -> Op {
    Op::Apply {
        body: Body::Rendered(DesiredDigest::Known(Digest::of(b"body"))),
        take_over: Vec::new(),
        leave: Vec::new(),
    }
}

fn id(name: &str) -> ObjectId {
    ObjectId::new("", "ConfigMap", Some("web"), name)
}
