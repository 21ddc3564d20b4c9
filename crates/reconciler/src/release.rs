//! State machine of one release: reconciles it whenever something could have changed.
//!
//! The executor feeds it with [`Event`]s and executes its [`Command`]s. At most one task runs at a
//! time. An answer names its task, and answers of replaced tasks are ignored. Large data (rendered
//! objects, plans) stays in the executor and is named by numbers.

mod protocol;
mod reconcile;
mod requeue;
mod retain;

use std::time::Duration;

use pleach_state::inventory::Condition;

pub use self::protocol::{
    Answer, Approval, Changes, Command, ContentId, Depth, Event, Failure, Fetch, Finished, Found,
    Notification, Ownership, PlanSummary, Reasons, Refusal, RunSummary, StatusReport, TargetFacts,
    TargetId, Task, TaskId, Wait,
};
use self::reconcile::{Step, Work};
use self::requeue::{Reporting, Requeue};
use crate::Moment;
use crate::health::Health;
use crate::outcome::{ReconcileOutcome, ReconcileReport};
use crate::state_changes::NotificationState;

/// Interval in which every object gets a dry run.
const VERIFY: Duration = Duration::from_hours(24);

/// State of a release.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct Release {
    phase: Phase,
    /// The task whose answer is awaited.
    task: TaskId,
    /// Source of all numbers.
    next: u64,
    commands: Vec<Command>,
    /// The newest desired state.
    target: TargetFacts,
    /// Whether it arrived after the last reconcile started.
    is_new_target: bool,
    /// Whether git no longer contains the release.
    is_gone: bool,
    /// Whether the controller shuts down.
    is_stopping: bool,
    /// Whether user requests changed since the last reconcile started.
    is_requested: bool,
    /// Whether a dependency was reconciled since then.
    is_dependency_reconciled: bool,
    /// Changed objects for the next reconcile.
    changes: Changes,
    /// Number of consecutive failures.
    failures: u32,
    /// The last reconciled state. Drift is corrected to it while a newer one waits.
    reconciled: Option<TargetFacts>,
    /// Lookup of the state at the recorded commit, until a reconcile succeeds.
    lookup: Option<Lookup>,
    /// The last plan that waited for approval.
    awaited: Option<AwaitedApproval>,
    /// Number of consecutive drift corrections that could unblock the waiting revision.
    unblocking_corrections: u32,
    /// Whether other content was started since and did not finish.
    is_partly_applied: bool,
    /// The last reported conditions; `None` before the first report.
    reported_conditions: Option<Vec<Condition>>,
    /// Time of the last heartbeat in the record that the controller follows the release.
    last_heartbeat: Duration,
    /// Whether the record verifiably belongs to this release on the expected cluster. Nothing is
    /// reported to other records.
    is_ours: bool,
    verify_at: Duration,
    /// Readiness since the last reconcile.
    health: Health,
    /// Fields that other clients keep writing to.
    contended: Vec<String>,
    /// Message about nodes that fell behind, from the last plan of all objects.
    nodes_behind: String,
    /// Number of consecutive changes that required no action.
    unneeded_triggers: u32,
    /// Whether the desired state was already reconciled before the last reconcile.
    was_reconciled: bool,
    /// State of the notifications.
    notification_state: NotificationState,
    /// Oldest shared answer to use. `None`: only answers requested from now on.
    since: Option<Duration>,
}

#[derive(Debug)]
enum Phase {
    /// A reconcile is in progress.
    Working(Box<Work>),
    /// The outcome of a reconcile, or a change since, is reported.
    Reporting(Box<Reporting>),
    /// Readiness is checked.
    Checking(Box<Requeue>),
    /// Nothing is done until an event.
    Waiting(Box<Requeue>),
    /// The release is not reconciled any more.
    Ended,
}

/// Lookup of a release at a commit.
#[derive(Debug)]
struct Lookup {
    task: TaskId,
    commit: String,
    state: LookupState,
}

#[derive(Debug)]
enum LookupState {
    Awaited,
    Nothing,
    /// The result, and whether no reconcile started since.
    Found(Box<TargetFacts>, bool),
}

/// A plan that was reported as waiting for approval.
#[derive(Debug)]
struct AwaitedApproval {
    plan: TaskId,
    revision: String,
    effects: String,
    missing: Reasons,
}

impl Release {
    /// Creates a release with its first desired state. [`Release::start`] returns its first
    /// commands.
    pub fn new(target: TargetFacts, now: Moment) -> Self {
        Self {
            phase: Phase::Ended,
            task: TaskId(0),
            next: target.id.0 + 1,
            commands: Vec::new(),
            target,
            is_new_target: false,
            is_gone: false,
            is_stopping: false,
            is_requested: false,
            is_dependency_reconciled: false,
            changes: Changes::default(),
            failures: 0,
            reconciled: None,
            lookup: None,
            awaited: None,
            unblocking_corrections: 0,
            is_partly_applied: false,
            reported_conditions: None,
            last_heartbeat: now.at,
            is_ours: false,
            // Random, to spread verification over the day.
            verify_at: now.at + VERIFY.mul_f64(now.random),
            health: Health::default(),
            contended: Vec::new(),
            nodes_behind: String::new(),
            unneeded_triggers: 0,
            was_reconciled: false,
            notification_state: NotificationState::default(),
            since: Some(now.at),
        }
    }

    /// Starts the first reconcile.
    pub fn start(&mut self) -> Vec<Command> {
        let since = self.since;
        self.start_reconcile(since);
        std::mem::take(&mut self.commands)
    }

    /// Decides about an event.
    pub fn on(&mut self, event: Event, now: Moment) -> Vec<Command> {
        match event {
            Event::Target(target) => {
                self.target = *target;
                self.is_new_target = true;
                self.on_target();
            }
            Event::Removed => {
                self.is_gone = true;
                self.on_end(now);
            }
            Event::Stopped => {
                self.is_stopping = true;
                self.on_end(now);
            }
            Event::Requested => {
                self.is_requested = true;
                self.cancel_obsolete_run();
            }
            Event::DependencyReconciled => self.is_dependency_reconciled = true,
            Event::LookedUp(task, found) => self.on_found(task, found),
            Event::Tick => self.on_tick(now),
            Event::Answer(task, answer) if task == self.task => self.on_answer(answer, now),
            // Drift is not forgotten.
            Event::Answer(_, Answer::Changed(changes)) => self.changes.extend(changes),
            Event::Answer(..) => {}
        }
        self.start_if_due();
        std::mem::take(&mut self.commands)
    }

    /// Returns the time of the next [`Event::Tick`], if one is needed.
    pub fn wake_at(&self) -> Option<Duration> {
        let Phase::Waiting(requeue) = &self.phase else {
            return None;
        };
        let heartbeat = self.next_heartbeat();
        Some(heartbeat.map_or(requeue.until, |at| at.min(requeue.until)))
    }

    /// Returns a number for a desired state.
    pub fn new_target(&mut self) -> TargetId {
        TargetId(self.number())
    }

    /// Returns whether the release can still name a desired state.
    pub fn uses(&self, id: TargetId) -> bool {
        let found = self.lookup.as_ref().and_then(Lookup::found);
        let work = match &self.phase {
            Phase::Working(work) => [Some(&work.desired), work.retained.as_ref()],
            Phase::Reporting(reporting) => [
                Some(&reporting.requeue.desired),
                reporting.requeue.retained.as_ref(),
            ],
            Phase::Checking(requeue) | Phase::Waiting(requeue) => [Some(&requeue.desired), None],
            Phase::Ended => [None, None],
        };
        let known = [Some(&self.target), self.reconciled.as_ref(), found];
        let mut all = known.into_iter().chain(work).flatten();
        all.any(|target| target.id == id)
    }

    /// Returns whether the answer of a history lookup still matters.
    pub fn awaits_lookup(&self) -> bool {
        let lookup = self.lookup.as_ref();
        lookup.is_some_and(|lookup| matches!(lookup.state, LookupState::Awaited))
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Starts a task. Only its answer counts from now on.
    fn run(&mut self, task: Task) -> TaskId {
        self.task = TaskId(self.number());
        self.commands.push(Command::Start(self.task, task));
        self.task
    }

    fn end(&mut self) {
        self.phase = Phase::Ended;
        self.commands.push(Command::End);
    }

    fn on_target(&mut self) {
        match &mut self.phase {
            Phase::Working(work) if work.step == Step::Queue => {
                work.desired = self.target.clone();
                self.take_target();
                self.queue();
            }
            _ => self.cancel_obsolete_run(),
        }
    }

    /// Ends at the next safe point: a run ends first, and its outcome is reported.
    fn on_end(&mut self, now: Moment) {
        match &self.phase {
            Phase::Working(work) if work.step == Step::Execute => self.cancel_obsolete_run(),
            Phase::Reporting(_) if !self.is_stopping => {}
            Phase::Ended => {}
            Phase::Working(work) if work.step != Step::Queue && !self.is_stopping => {
                // Its start was reported.
                let finished = Finished {
                    report: ReconcileReport::new(ReconcileOutcome::Superseded, ""),
                    took: now.at.saturating_sub(work.started),
                    drifted: None,
                    alert: false,
                    check_all: false,
                };
                self.commands.push(Command::Finished(Box::new(finished)));
                self.end();
            }
            _ => self.end(),
        }
    }

    fn on_answer(&mut self, answer: Answer, now: Moment) {
        match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Working(work) => self.on_work(*work, answer, now),
            Phase::Reporting(reporting) => self.on_reported(*reporting, &answer, now),
            Phase::Checking(requeue) => self.on_checked(*requeue, answer, now),
            Phase::Waiting(requeue) => self.on_wait_answer(*requeue, answer),
            Phase::Ended => {}
        }
    }

    /// Starts a reconcile of the newest desired state.
    fn start_reconcile(&mut self, since: Option<Duration>) {
        self.since = since;
        self.take_target();
        self.is_requested = false;
        // Shared answers can be older than that event.
        if since.is_none() {
            self.is_dependency_reconciled = false;
        }
        if let Some(LookupState::Found(_, is_fresh)) =
            self.lookup.as_mut().map(|one| &mut one.state)
        {
            *is_fresh = false;
        }
        let changes = std::mem::take(&mut self.changes);
        let work = Work::new(self.target.clone(), changes);
        self.phase = Phase::Working(Box::new(work));
        self.queue();
    }

    /// Resets state about the previous desired state, if there is a newer one.
    fn take_target(&mut self) {
        if !std::mem::take(&mut self.is_new_target) {
            return;
        }
        self.failures = 0;
        self.since = None;
        let is_without_result = |lookup: &mut Lookup| matches!(lookup.state, LookupState::Nothing);
        self.lookup.take_if(is_without_result);
    }

    /// Waits for the slot and the permit.
    fn queue(&mut self) {
        let Phase::Working(work) = &self.phase else {
            return;
        };
        let admit = Task::Admit {
            target: work.desired.id,
            // Changed objects are reconciled first, without a permit.
            needs_permit: work.changes.objects.is_empty(),
            reconciled: self.reconciled.as_ref().map(|reconciled| reconciled.id),
            since: self.since,
        };
        self.run(admit);
    }

    fn on_found(&mut self, task: TaskId, found: Found) {
        let Some(lookup) = self.lookup.as_mut().filter(|one| one.task == task) else {
            return;
        };
        match found {
            Found::Failed => self.lookup = None,
            Found::Nothing => lookup.state = LookupState::Nothing,
            Found::Target(target) => lookup.state = LookupState::Found(target, true),
        }
    }
}

impl Lookup {
    fn found(&self) -> Option<&TargetFacts> {
        match &self.state {
            LookupState::Found(target, _) => Some(target),
            LookupState::Awaited | LookupState::Nothing => None,
        }
    }
}

impl Changes {
    fn extend(&mut self, more: Self) {
        self.objects.extend(more.objects);
        self.has_runtime |= more.has_runtime;
    }
}

#[cfg(test)]
mod invariants;
#[cfg(test)]
mod tests;
