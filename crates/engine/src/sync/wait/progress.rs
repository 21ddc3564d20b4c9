//! Progress reports and failures of a wait.

use pleach_model::object::ReleaseName;
use pleach_planner::plan::Step;
use tokio::time::Instant;

use super::hint::WayOut;
use super::{REMINDER, Waiter};
use crate::sync::{
    events::{EventKind, Events, WaitState},
    report::{Failure, FailureKind},
};

/// Reporter of a wait: sends every change of its state, and reminders in between.
pub(in crate::sync) struct Progress<'a> {
    events: &'a Events,
    step: &'a Step,
    started: Instant,
    last: String,
    reported_at: Instant,
    /// State of the object, as last reported.
    state: String,
    /// Time of the last change of that state.
    moved: Instant,
    release: &'a ReleaseName,
    can_roll_back: bool,
    /// Whether the wait is for a deletion.
    pub(super) is_deletion: bool,
    /// Hint for a deletion that does not happen.
    pub(super) advice: Option<String>,
}

impl<'a> Progress<'a> {
    pub(in crate::sync) fn new(waiter: &Waiter<'a>, step: &'a Step, started: Instant) -> Self {
        Self {
            events: waiter.events,
            step,
            started,
            last: String::new(),
            reported_at: started,
            state: String::new(),
            moved: started,
            release: &waiter.desired.name,
            can_roll_back: waiter.can_roll_back,
            is_deletion: false,
            advice: None,
        }
    }

    /// Reports the state of the object.
    pub(in crate::sync) fn report(&mut self, message: String) {
        self.report_with_detail(&message.clone(), message);
    }

    /// Reports the state with a longer message. Only `state` counts as progress, because pods that
    /// crash repeatedly are none.
    pub(super) fn report_with_detail(&mut self, state: &str, message: String) {
        if state != self.state {
            self.moved = Instant::now();
            state.clone_into(&mut self.state);
        }
        if message == self.last && self.reported_at.elapsed() < REMINDER {
            return;
        }
        self.reported_at = Instant::now();
        self.events.send(EventKind::Waiting(
            self.step.id,
            WaitState {
                object: self.step.object.clone(),
                message: message.clone(),
                since: self.started.elapsed(),
            },
        ));
        self.last = message;
    }

    /// Builds the failure of a wait at its deadline. `stuck` is the reason of a pod that cannot
    /// start.
    pub(in crate::sync) fn timed_out(&self, stuck: Option<&'static str>) -> Failure {
        let waited = self.started.elapsed().as_secs();
        let last = if self.last.is_empty() {
            "the server reported no state"
        } else {
            &self.last
        };
        let state = if self.is_deletion { "gone" } else { "ready" };
        let hint = match &self.advice {
            Some(advice) => advice.clone(),
            None => self.way_out(stuck).hint(),
        };
        let message = format!("not {state} after {waited} s: {last}");
        Failure::new(FailureKind::NotReady, message).hint(hint)
    }

    /// Builds the failure of an object whose status excludes readiness.
    pub(super) fn failed(&self, message: String, stuck: Option<&'static str>) -> Failure {
        let way_out = WayOut {
            // Excludes the hint to wait longer.
            moved: self.started,
            ..self.way_out(stuck)
        };
        Failure::new(FailureKind::NotReady, message).hint(way_out.hint())
    }

    /// Builds the failure of an object whose pods cannot start, which ends all waits of the run.
    /// `stuck` is the reason.
    pub(in crate::sync) fn gave_up(&self, message: &str, stuck: Option<&'static str>) -> Failure {
        let waited = self.started.elapsed().as_secs();
        let message = format!("not ready after {waited} s: {message}");
        Failure {
            ends_waits: true,
            ..Failure::new(FailureKind::NotReady, message).hint(self.way_out(stuck).hint())
        }
    }

    fn way_out(&self, stuck: Option<&'static str>) -> WayOut<'_> {
        WayOut {
            release: self.release,
            stuck,
            can_roll_back: self.can_roll_back,
            is_end: self.is_deletion,
            moved: self.moved,
            started: self.started,
        }
    }
}
