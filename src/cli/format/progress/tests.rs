use std::io::Write;
use std::sync::{Arc, Mutex};

use jiff::SignedDuration;
use pleach_model::order::StageName;
use pleach_planner::plan::Action;

use super::*;
use crate::cli::{format::samples, ui::Verbosity};
use pleach_engine::sync::report::{Failure, FailureKind};

#[derive(Clone, Default)]
struct Tape(Arc<Mutex<Vec<u8>>>);

impl Write for Tape {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns a plan with two CRDs and two ConfigMaps.
fn plan() -> Plan {
    let names = ["a", "b", "c", "d"];
    let mut plan = samples::plan(&names.map(|name| (name, Action::Create)));
    for step in &mut plan.steps[..2] {
        step.stage = StageName::Definitions;
    }
    plan
}

/// Returns the lines after all these events.
fn lines(events: Vec<EventKind>) -> Vec<String> {
    let (plan, err) = (plan(), Tape::default());
    let mut ui = Ui::with_streams(Tape::default(), err.clone(), None, Verbosity::Normal);
    let mut progress = Progress::new(&mut ui, &plan, false);
    for kind in events {
        let release = plan.release.clone();
        progress.show(&mut ui, &SyncEvent { release, kind });
    }
    let text = String::from_utf8(err.0.lock().unwrap().clone()).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn started(id: usize) -> EventKind {
    EventKind::Started(StepId(id))
}

fn applied(id: usize) -> EventKind {
    EventKind::Applied(StepId(id))
}

fn waiting(id: usize, seconds: u64, message: &str) -> EventKind {
    let state = WaitState {
        object: "Deployment.apps/web/api".parse().unwrap(),
        message: message.to_owned(),
        since: Duration::from_secs(seconds),
    };
    EventKind::Waiting(StepId(id), state)
}

fn done(id: usize, outcome: StepOutcome) -> EventKind {
    EventKind::Done(StepId(id), plan().steps[id].object.clone(), outcome)
}

#[test]
fn stages_are_reported_in_order_when_applied() {
    let all = || (0..4).map(started);
    // Both waits of the first stage finish much later.
    let mut events: Vec<EventKind> = all().collect();
    events.extend([applied(2), applied(1), applied(3), applied(0)]);
    assert_eq!(
        lines(events),
        [
            "definitions: applied ConfigMap/web/b",
            "definitions: applied ConfigMap/web/a",
            "config: applied ConfigMap/web/c",
            "config: applied ConfigMap/web/d",
        ]
    );
    // Neither a retried nor a failed operation blocks later lines.
    for end in [
        EventKind::Retrying(StepId(0), "busy".to_owned()),
        done(
            0,
            StepOutcome::Failed(Failure::new(FailureKind::Other, "no")),
        ),
    ] {
        let mut events: Vec<EventKind> = all().collect();
        events.extend([applied(1), applied(2), end]);
        let lines = lines(events);
        assert_eq!(lines.last().unwrap(), "config: applied ConfigMap/web/c");
    }
    // At the end, all lines are written.
    let mut events: Vec<EventKind> = all().collect();
    events.extend([applied(3), EventKind::Phase(Verb::Report)]);
    assert_eq!(lines(events), ["config: applied ConfigMap/web/d"]);
}

#[test]
fn a_wait_has_a_line_when_its_reason_changes_and_now_and_then() {
    let failure = Failure::new(FailureKind::NotReady, "not ready after 75 s: 1 of 2");
    let events = vec![
        waiting(0, 1, "0 of 2"),
        waiting(0, 6, "0 of 2"),
        waiting(0, 16, "0 of 2"),
        waiting(0, 26, "1 of 2"),
        waiting(0, 36, "1 of 2"),
        waiting(0, 56, "1 of 2"),
        waiting(0, 66, "1 of 2"),
        // The report shows the failure once.
        done(0, StepOutcome::Failed(failure)),
    ];
    let wait = |rest: &str| format!("waiting for Deployment.apps/web/api: {rest}");
    assert_eq!(
        lines(events),
        [
            wait("0 of 2 (6 s)"),
            wait("1 of 2 (26 s)"),
            wait("1 of 2 (56 s)")
        ]
    );
}

#[test]
fn the_block_shows_the_ready_objects_and_the_longest_waits() {
    let mut plan = plan();
    plan.steps[0].op = Op::Wait;
    plan.steps[0].until = Some(Until::Ready {
        stable_for: SignedDuration::ZERO,
        optional: false,
    });
    let mut ui = Ui::with_streams(Tape::default(), Tape::default(), None, Verbosity::Normal);
    let mut progress = Progress::new(&mut ui, &plan, false);
    let release = || plan.release.clone();
    let mut events: Vec<EventKind> = (0..4)
        .map(|id| waiting(id, 10 + 3 * id as u64, &"long ".repeat(40)))
        .collect();
    let object = plan.steps[0].object.clone();
    events.push(EventKind::Done(StepId(0), object, StepOutcome::Done));
    for kind in events {
        progress.show(
            &mut ui,
            &SyncEvent {
                release: release(),
                kind,
            },
        );
    }
    assert_eq!(progress.headline(), "web  definitions");
    let block = progress.block(60);
    let block = anstream::adapter::strip_str(&block).to_string();
    let lines: Vec<&str> = block.lines().collect();
    assert_eq!(lines[..2], ["", "  ✓ 1 ready   a"]);
    assert_eq!(lines.len(), 5, "{block}");
    assert!(lines[2].contains(" Deployment api  long long "), "{block}");
    assert!(lines[2].ends_with("  19s"), "{block}");
    assert!(
        lines.iter().all(|line| line.chars().count() <= 60),
        "{block}"
    );
}
