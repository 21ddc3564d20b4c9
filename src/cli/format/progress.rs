//! Events of a sync as lines and as a block below them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use pleach_domain::inventory::ReleaseName;
use pleach_domain::plan::{Op, Plan, Step, StepId};

use super::findings::plain;
use crate::cli::Ui;
use crate::engine::lease::Holder;
use crate::engine::sync::events::{EventKind, Outcome, SyncEvent, Verb, WaitState};

/// A wait that ends before this gets no line.
const SHORT: Duration = Duration::from_secs(5);
/// Time after which a wait gets another line although nothing changed.
const REMINDER: Duration = Duration::from_secs(30);
/// Waits that the block shows.
const SHOWN: usize = 8;

/// Consumes the events of one release.
pub(crate) struct Progress<'a> {
    plan: &'a Plan,
    /// Whether failures get lines: where no report in words follows.
    tells_failures: bool,
    done: usize,
    /// Operations under way.
    operating: BTreeSet<StepId>,
    /// Lines of operations that are done, until those of the stages before are.
    applied: BTreeMap<StepId, String>,
    waiting: BTreeMap<StepId, Wait>,
}

/// A wait that goes on.
struct Wait {
    line: String,
    since: Duration,
    /// The last line that was written, and how long the wait was then.
    told: Option<(String, Duration)>,
}

impl<'a> Progress<'a> {
    /// Starts the block.
    pub(crate) fn new(ui: &mut Ui, plan: &'a Plan, tells_failures: bool) -> Self {
        ui.start_progress(plan.steps.len());
        Self {
            plan,
            tells_failures,
            done: 0,
            operating: BTreeSet::new(),
            applied: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// Shows one event.
    pub(crate) fn show(&mut self, ui: &mut Ui, event: &SyncEvent) {
        match &event.kind {
            EventKind::Queued(holder) => ui.status(queued(&event.release, holder)),
            EventKind::Started(id) => drop(self.operating.insert(*id)),
            EventKind::Applied(id) => {
                self.operating.remove(id);
                if let Some(line) = self.line(*id) {
                    self.applied.insert(*id, line);
                }
            }
            EventKind::Done(id, _, outcome) => self.done(ui, *id, outcome),
            EventKind::Waiting(id, state) => self.wait(ui, *id, state),
            EventKind::Retrying(id, message) => {
                // It may take long: others do not wait for its line.
                self.operating.remove(id);
                ui.status(format!("retrying {}: {}", self.object(*id), plain(message)));
            }
            EventKind::Warning(finding) => ui.findings(std::slice::from_ref(finding)),
            EventKind::Phase(Verb::Report) | EventKind::Finished(_) => {
                self.operating.clear();
                self.flush(ui);
                ui.end_progress();
            }
            EventKind::Phase(_) => {}
        }
        self.flush(ui);
        ui.progress(self.done, &self.block());
    }

    /// Writes the lines of operations whose stage, and all stages before, have none under
    /// way that is earlier.
    fn flush(&mut self, ui: &mut Ui) {
        let earliest = self.operating.first().copied();
        let stage = |id: StepId| &self.step(id).stage;
        let is_due =
            |id: StepId| earliest.is_none_or(|first| id < first || stage(id) == stage(first));
        let due: Vec<StepId> = self
            .applied
            .keys()
            .copied()
            .take_while(|id| is_due(*id))
            .collect();
        for id in due {
            if let Some(line) = self.applied.remove(&id) {
                ui.status(line);
            }
        }
    }

    /// The waits, those that take longest first.
    fn block(&self) -> String {
        let mut waits: Vec<&Wait> = self.waiting.values().collect();
        waits.sort_by_key(|wait| std::cmp::Reverse(wait.since));
        let more = waits.len().saturating_sub(SHOWN);
        let mut block = String::new();
        for wait in waits.iter().take(SHOWN) {
            block.push_str("\n  ");
            block.push_str(&wait.line);
        }
        if more > 0 {
            // Writing to a String cannot fail.
            let _ = write!(block, "\n  … and {more} more");
        }
        block
    }

    fn step(&self, id: StepId) -> &'a Step {
        &self.plan.steps[id.0]
    }

    fn object(&self, id: StepId) -> String {
        plain(&self.step(id).object.to_string())
    }

    /// The line about an operation that is done; none about a mere wait.
    fn line(&self, id: StepId) -> Option<String> {
        let step = self.step(id);
        let done = match &step.op {
            Op::Wait => return None,
            Op::Lift if self.plan.is_of_gate(step) => "lifted",
            op => past(op),
        };
        Some(format!("{}: {done} {}", step.stage, self.object(id)))
    }

    fn wait(&mut self, ui: &mut Ui, id: StepId, state: &WaitState) {
        let object = plain(&state.object.to_string());
        let message = plain(&state.message);
        let seconds = state.since.as_secs();
        let told = self.waiting.remove(&id).and_then(|wait| wait.told);
        let is_due = state.since >= SHORT
            && told
                .as_ref()
                .is_none_or(|(last, at)| *last != message || state.since >= *at + REMINDER);
        // The block shows it all the time.
        let told = if is_due && !ui.has_block() {
            ui.status(format!("waiting for {object}: {message} ({seconds} s)"));
            Some((message.clone(), state.since))
        } else {
            ui.detail(format!("waiting for {object}: {message}"));
            told
        };
        let wait = Wait {
            line: format!("{object}: {message} ({seconds} s)"),
            since: state.since,
            told,
        };
        self.waiting.insert(id, wait);
    }

    fn done(&mut self, ui: &mut Ui, id: StepId, outcome: &Outcome) {
        self.done += 1;
        self.operating.remove(&id);
        self.waiting.remove(&id);
        match outcome {
            Outcome::Failed(failure) if self.tells_failures => {
                ui.status(format!(
                    "{}: failed {}: {}",
                    self.step(id).stage,
                    self.object(id),
                    plain(&failure.message)
                ));
            }
            Outcome::Done
            | Outcome::Failed(_)
            | Outcome::Skipped { .. }
            | Outcome::Stopped { .. } => {}
        }
    }
}

/// Says that somebody else is waited for.
pub(crate) fn queued(release: &ReleaseName, holder: &Holder) -> String {
    format!(
        "waiting for {}, who applies release {release}",
        plain(&holder.to_string())
    )
}

fn past(op: &Op) -> &'static str {
    match op {
        Op::Apply { .. } => "applied",
        Op::Create { .. } => "created",
        Op::Own(_) | Op::Patch { .. } => "patched",
        Op::Set { .. } => "changed for a while",
        Op::Close { .. } => "closed",
        Op::Lift => "took back the change of",
        Op::Restart { .. } => "restarted",
        Op::Replace { .. } => "replaced pods of",
        Op::Delete(_) => "deleted",
        Op::Copy { .. } => "saw to the copy",
        Op::Migrate { .. } => "migrated",
        Op::Wait => "waited for",
    }
}

#[cfg(test)]
mod tests;
