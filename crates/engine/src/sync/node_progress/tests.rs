use jiff::SignedDuration;
use pleach_model::object::{Digest, ObjectId, ReleaseName};
use pleach_model::order::StageName;
use pleach_planner::plan::Step;

use super::*;
use crate::sync::events::WaitState;
use crate::sync::report::Failure;

const NODE: &str = "node-1";

fn step(id: usize, node: &str, op: Op) -> Step {
    Step {
        id: StepId(id),
        stage: StageName::Config,
        object: ObjectId::new("", "Node", None, node),
        op,
        needs: Vec::new(),
        require: Vec::new(),
        until: None,
        deadline: SignedDuration::from_secs(1),
        overlay: None,
        reason: String::new(),
    }
}

fn upgrade() -> Op {
    Op::UpgradeNode {
        content: Digest::of(b"content"),
        jobs: Vec::new(),
        driver: None,
    }
}

fn preload() -> Op {
    Op::Preload {
        content: Digest::of(b"content"),
        namespace: None,
        job: None,
    }
}

fn plan(steps: Vec<Step>) -> Plan {
    let name = ReleaseName {
        environment: "e".to_owned(),
        release: "r".to_owned(),
    };
    Plan {
        steps,
        ..Plan::new(name, "v1")
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn failed(failure: Failure) -> StepOutcome {
    StepOutcome::Failed(failure)
}

fn done(id: usize, outcome: StepOutcome) -> EventKind {
    EventKind::Done(StepId(id), ObjectId::new("", "Node", None, NODE), outcome)
}

#[test]
fn a_plan_without_nodes_has_no_roll_out() {
    let steps = vec![step(0, NODE, Op::Pause), step(1, NODE, Op::Wait)];
    assert!(RollOut::of(&plan(steps), at(0)).is_empty());
}

#[test]
fn a_node_goes_through_its_phases() {
    let steps = vec![
        step(0, NODE, preload()),
        step(1, NODE, upgrade()),
        step(2, "node-2", upgrade()),
    ];
    let mut roll_out = RollOut::of(&plan(steps), at(0));
    let mut seen = Vec::new();
    let mut add = |change: Option<NodeChange>| {
        seen.extend(change.map(|change| (change.node.phase, change.took.as_secs())));
    };
    add(roll_out.enter(StepId(0), NodePhase::Preloading, at(1)));
    add(roll_out.apply(&done(0, StepOutcome::Done), at(3)));
    add(roll_out.enter(StepId(1), NodePhase::Draining, at(4)));
    let wait = WaitState {
        object: ObjectId::new("", "Node", None, NODE),
        message: "2 pods\nare left".to_owned(),
        since: Duration::from_secs(1),
    };
    add(roll_out.apply(&EventKind::Waiting(StepId(1), wait), at(5)));
    assert_eq!(roll_out.nodes()[0].message, "2 pods are left");
    add(roll_out.enter(StepId(1), NodePhase::Draining, at(6)));
    add(roll_out.enter(StepId(1), NodePhase::Upgrading, at(8)));
    add(roll_out.enter(StepId(1), NodePhase::Verifying, at(9)));
    add(roll_out.apply(&done(1, StepOutcome::Done), at(11)));
    assert_eq!(
        seen,
        [
            (NodePhase::Preloading, 1),
            (NodePhase::Pending, 2),
            (NodePhase::Draining, 1),
            (NodePhase::Upgrading, 4),
            (NodePhase::Verifying, 1),
            (NodePhase::Done, 2),
        ]
    );
    let nodes = roll_out.nodes();
    let found: Vec<(&str, NodePhase, &str)> = nodes
        .iter()
        .map(|node| (node.name.as_str(), node.phase, node.message.as_str()))
        .collect();
    assert_eq!(
        found,
        [
            (NODE, NodePhase::Done, ""),
            ("node-2", NodePhase::Pending, "")
        ]
    );
}

#[test]
fn the_end_of_a_step_decides_the_phase() {
    let because = StepId(0);
    for (case, before, outcome, expected, message) in [
        (
            "failed",
            NodePhase::Draining,
            failed(Failure::new(FailureKind::NotReady, "not drained")),
            NodePhase::Failed,
            "not drained",
        ),
        (
            "a closed window",
            NodePhase::Pending,
            failed(Failure::new(FailureKind::Paused, "the window closed")),
            NodePhase::Pending,
            "the window closed",
        ),
        (
            "stopped while its Job runs",
            NodePhase::Upgrading,
            failed(Failure::stopped()),
            NodePhase::Upgrading,
            "the run was stopped",
        ),
        (
            "skipped after a failure",
            NodePhase::Pending,
            StepOutcome::Skipped {
                because,
                applied: false,
            },
            NodePhase::Pending,
            "",
        ),
        (
            "not begun before a stop",
            NodePhase::Pending,
            StepOutcome::Stopped { applied: false },
            NodePhase::Pending,
            "",
        ),
    ] {
        let mut roll_out = RollOut::of(&plan(vec![step(0, NODE, upgrade())]), at(0));
        roll_out.enter(StepId(0), before, at(0));
        let change = roll_out.apply(&done(0, outcome), at(5));
        assert_eq!(change.is_some(), before != expected, "{case}");
        let node = &roll_out.nodes()[0];
        assert_eq!(
            (node.phase, node.message.as_str()),
            (expected, message),
            "{case}"
        );
    }
}
