//! Objects that describe a task. They are ready when the task has finished.

use serde_json::Value;

use super::Trouble;
use super::status;
use super::words::words;
use crate::readiness::conditions::Condition;

/// Last words of kinds that describe a task.
const TASKS: &[&str] = &[
    "backup",
    "benchmark",
    "clone",
    "export",
    "import",
    "job",
    "migration",
    "restore",
    "run",
    "scan",
    "task",
    "test",
    "workflow",
];

/// State words of a task that has not finished, but of a ready service.
const RUNNING: &[&str] = &["running", "started"];

/// Last words of condition types for a finished task.
const FINISHED: &[&str] = &[
    "complete",
    "completed",
    "done",
    "finished",
    "succeeded",
    "successful",
];

fn ends_with(text: &str, endings: &[&str]) -> bool {
    let words = words(text);
    words
        .last()
        .is_some_and(|last| endings.contains(&last.as_str()))
}

/// Finds the state word or condition of a task that still runs.
pub(super) fn running(value: &Value, conditions: &[Condition<'_>]) -> Option<Trouble> {
    let is_finished =
        |condition: &Condition<'_>| condition.is_true() && ends_with(condition.name(), FINISHED);
    let kind = value["kind"].as_str()?;
    if !ends_with(kind, TASKS) || conditions.iter().any(is_finished) {
        return None;
    }
    let mut states = status::states(value).chain(status::states_of_parts(value));
    let state = states.find(|state| state.is_any(RUNNING));
    let mut conditions = conditions.iter();
    let line = state.map(|state| state.line(value)).or_else(|| {
        conditions
            .find(|condition| condition.is_true() && condition.name() == "Running")
            .map(|condition| condition.line())
    });
    line.map(Trouble::in_progress)
}
