//! Sync events as log lines and a progress block.

mod block;
mod nodes;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use pleach_model::object::{ObjectId, ReleaseName};
use pleach_planner::plan::{Op, Plan, Step, StepId, Until};

use self::nodes::Nodes;
use super::findings::plain;
use crate::cli::{Ui, ui};
use pleach_engine::{
    lease::Holder,
    sync::events::{EventKind, StepOutcome, SyncEvent, Verb, WaitState},
};

/// Minimum duration of a wait to be logged.
const SHORT: Duration = Duration::from_secs(5);
/// Interval at which an unchanged wait is logged again.
const REMINDER: Duration = Duration::from_secs(30);

/// Formatter for the events of one release.
pub(crate) struct Progress<'a> {
    plan: &'a Plan,
    /// Whether failures are logged here because no text report follows.
    logs_failures: bool,
    done: usize,
    /// Running operations.
    operating: BTreeSet<StepId>,
    /// Lines of finished operations that wait for earlier stages.
    applied: BTreeMap<StepId, String>,
    waiting: BTreeMap<StepId, Wait>,
    /// Names of the objects that became ready, in this order.
    ready: Vec<String>,
    /// Nodes that the run changes.
    nodes: Nodes,
}

/// Current wait.
struct Wait {
    object: ObjectId,
    message: String,
    /// Start of the wait.
    started: Instant,
    /// Last logged line with the duration of the wait at that time.
    logged: Option<(String, Duration)>,
}

impl<'a> Progress<'a> {
    /// Starts the block.
    pub(crate) fn new(ui: &mut Ui, plan: &'a Plan, logs_failures: bool) -> Self {
        ui.start_progress(plan.steps.len(), &plan.release.release);
        Self {
            plan,
            logs_failures,
            done: 0,
            operating: BTreeSet::new(),
            applied: BTreeMap::new(),
            waiting: BTreeMap::new(),
            ready: Vec::new(),
            nodes: Nodes::default(),
        }
    }

    /// Shows an event.
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
                // A retry can take long, so later lines do not wait for this operation.
                self.operating.remove(id);
                ui.status(format!("retrying {}: {}", self.object(*id), plain(message)));
            }
            EventKind::Warning(finding) => ui.findings(std::slice::from_ref(finding)),
            EventKind::Phase(Verb::Report) | EventKind::Finished(_) => {
                self.operating.clear();
                self.flush(ui);
                ui.end_progress();
            }
            EventKind::Nodes(nodes) => self.nodes = Nodes::of(nodes, Instant::now()),
            EventKind::Node(change) => {
                if let Some(line) = self.nodes.change(change, Instant::now())
                    && !ui.has_block()
                {
                    ui.status(line);
                }
            }
            EventKind::Phase(_) | EventKind::Evicted(_) => {}
        }
        self.flush(ui);
        if ui.has_block() {
            let block = self.block(ui::columns());
            ui.progress(self.done, &self.headline(), &block);
        }
    }

    /// Writes the lines of finished operations, as long as no operation of an earlier stage is
    /// running.
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

    /// Formats the release and the stage of its first running step.
    fn headline(&self) -> String {
        let running = self.operating.iter().chain(self.waiting.keys());
        let stage = running
            .min()
            .map(|id| format!("  {}", self.step(*id).stage));
        let nodes = self.nodes.totals();
        let nodes = nodes.map(|(done, all)| format!("  {done}/{all} nodes"));
        format!(
            "{}{}{}",
            self.plan.release.release,
            stage.unwrap_or_default(),
            nodes.unwrap_or_default()
        )
    }

    /// Formats the ready objects and the waits, for a terminal with this number of columns.
    fn block(&self, width: usize) -> String {
        let is_of_node = |id: &StepId| self.nodes.has(&self.step(*id).object);
        let (of_nodes, others): (Vec<_>, Vec<_>) =
            self.waiting.iter().partition(|(id, _)| is_of_node(id));
        let waits = others.into_iter().map(|(_, wait)| block::Waiting {
            object: &wait.object,
            message: &wait.message,
            since: wait.started.elapsed(),
        });
        let waits: Vec<block::Waiting<'_>> = waits.collect();
        let messages = of_nodes.into_iter().map(|(id, wait)| {
            let node = self.step(*id).object.name.as_str();
            (node, wait.message.as_str())
        });
        let nodes = self.nodes.lines(&messages.collect(), Instant::now(), width);
        let nodes = nodes.iter().map(|line| format!("\n  {line}"));
        block::block(&self.ready, &waits, width) + &nodes.collect::<String>()
    }

    fn step(&self, id: StepId) -> &'a Step {
        &self.plan.steps[id.0]
    }

    fn object(&self, id: StepId) -> String {
        plain(&self.step(id).object.to_string())
    }

    /// Returns the line for a finished operation. `None` for a wait.
    fn line(&self, id: StepId) -> Option<String> {
        let step = self.step(id);
        let done = match &step.op {
            Op::Wait | Op::Pause => return None,
            Op::Lift if self.plan.is_of_gate(step) => "lifted",
            op => past(op),
        };
        Some(format!("{}: {done} {}", step.stage, self.object(id)))
    }

    fn wait(&mut self, ui: &mut Ui, id: StepId, state: &WaitState) {
        let object = plain(&state.object.to_string());
        let message = plain(&state.message);
        let seconds = state.since.as_secs();
        let logged = self.waiting.remove(&id).and_then(|wait| wait.logged);
        let is_due = state.since >= SHORT
            && logged
                .as_ref()
                .is_none_or(|(last, at)| *last != message || state.since >= *at + REMINDER);
        // The block already shows the wait.
        let logged = if is_due && !ui.has_block() {
            ui.status(format!("waiting for {object}: {message} ({seconds} s)"));
            Some((message.clone(), state.since))
        } else {
            ui.detail(format!("waiting for {object}: {message}"));
            logged
        };
        let wait = Wait {
            object: state.object.clone(),
            message,
            started: Instant::now()
                .checked_sub(state.since)
                .unwrap_or_else(Instant::now),
            logged,
        };
        self.waiting.insert(id, wait);
    }

    fn done(&mut self, ui: &mut Ui, id: StepId, outcome: &StepOutcome) {
        self.done += 1;
        self.operating.remove(&id);
        self.waiting.remove(&id);
        let step = self.step(id);
        if *outcome == StepOutcome::Done && matches!(step.until, Some(Until::Ready { .. })) {
            self.ready.push(step.object.name.clone());
        }
        match outcome {
            StepOutcome::Failed(failure) if self.logs_failures => {
                ui.status(format!(
                    "{}: failed {}: {}",
                    self.step(id).stage,
                    self.object(id),
                    plain(&failure.message)
                ));
            }
            StepOutcome::Done
            | StepOutcome::Failed(_)
            | StepOutcome::Skipped { .. }
            | StepOutcome::Stopped { .. } => {}
        }
    }
}

/// Formats the message about waiting for another lease holder.
pub(crate) fn queued(release: &ReleaseName, holder: &Holder) -> String {
    format!(
        "waiting for {}, which applies release {release}",
        plain(&holder.to_string())
    )
}

fn past(op: &Op) -> &'static str {
    match op {
        Op::Apply { .. } => "applied",
        Op::Create { .. } => "created",
        Op::Own(_) | Op::Patch { .. } => "patched",
        Op::Set { .. } => "temporarily changed",
        Op::Close { .. } => "closed",
        Op::Lift => "reverted the change of",
        Op::Restart { .. } => "restarted",
        Op::Replace { .. } => "replaced pods of",
        Op::Delete(_) => "deleted",
        Op::Copy { .. } => "ensured the copy",
        Op::Migrate { .. } => "migrated",
        Op::UpgradeNode { .. } => "upgraded",
        Op::Pause => "paused at",
        Op::Preload { .. } => "preloaded",
        Op::RememberImages { .. } => "remembered",
        Op::CleanNode { .. } => "cleaned",
        Op::Wait => "waited for",
    }
}

#[cfg(test)]
mod tests;
