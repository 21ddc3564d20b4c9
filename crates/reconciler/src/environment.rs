//! State machine of one environment: loads the newest commit of its branch, and gives each release
//! its desired state.
//!
//! The executor feeds it with [`Event`]s and executes its [`Command`]s. At most one task runs at a
//! time. An answer names its task, and answers of replaced tasks are ignored. Rendered environments
//! stay in the executor and are named by numbers.
//!
//! The machine works in rounds: load, look up previous states, connect, update the releases, report,
//! wait. A round is about one assignment, and the next round starts with the newest one.

mod load;
mod lookup;
mod protocol;
mod releases;
mod report;

use std::collections::BTreeMap;
use std::time::Duration;

use pleach_state::inventory::HEARTBEAT;

use self::lookup::Previous;
pub use self::protocol::{
    Answer, AssignmentFacts, ChangedFiles, Command, Commit, ConnectionId, Crash, Desired, Event,
    Load, LookedUp, PreviousState, RecordChange, RecordedCommit, ReleaseFacts, Report, Reported,
    StallNotification, StateFacts, StateId, Task,
};
use self::releases::Running;
use crate::stall::Stall;
use crate::state_changes::NotificationState;
use crate::{Moment, TaskId, backoff};

/// Delay before a commit is retried that exceeded the render limits.
const EXCEEDED_RETRY: Duration = Duration::from_mins(30);
/// Interval between checks for a changed kubeconfig or changed keys.
const FILES_INTERVAL: Duration = Duration::from_secs(15);

/// State of an environment.
#[derive(Debug)]
pub struct Environment {
    phase: Phase,
    /// The task whose answer is awaited.
    task: TaskId,
    /// Source of all numbers.
    next: u64,
    commands: Vec<Command>,
    /// The newest assignment.
    assignment: AssignmentFacts,
    /// Whether a round is due.
    is_due: bool,
    /// Number of consecutive rounds that failed.
    failures: u32,
    /// The last commit that was tried, with any outcome.
    tried: Option<String>,
    /// The last load whose inputs are known.
    inputs: Option<TaskId>,
    /// Time of the last failure to render within the limits. The machine can have been the cause.
    exceeded: Option<Duration>,
    /// Number of consecutive load failures that were not caused by the commit.
    load_failures: u32,
    /// The commit at which the controller crashed.
    crash: Option<Crash>,
    stall: Option<Stall>,
    /// The last loaded state that can be synced.
    state: Option<StateFacts>,
    /// Whether it came from a history lookup.
    is_from_records: bool,
    /// Previous states of its stalled releases.
    previous: BTreeMap<String, Previous>,
    /// The commit at which they are stalled. `state` can be an earlier one with the same content.
    stalled_at: String,
    /// The history lookup of the environment in progress.
    lookup: Option<TaskId>,
    /// The stalled commit at the last lookup of the environment.
    looked_up: Option<String>,
    /// Results of lookups that ended during a round.
    found: Vec<(TaskId, LookedUp)>,
    /// Releases with a running task.
    releases: BTreeMap<String, Running>,
    /// The present state of the uninstalls, if their task runs.
    uninstalls: Option<Desired>,
    /// Number of tasks that have not ended, including those of removed releases.
    tasks: usize,
    /// Last report about releases without a task.
    reported: Option<Vec<Report>>,
    /// Time of that report.
    reported_at: Duration,
    /// State of the notifications about each of them.
    notified: BTreeMap<String, NotificationState>,
}

#[derive(Debug)]
enum Phase {
    Loading(Round),
    ReadingRecords(Round),
    Connecting(Round),
    Reporting(Round, Vec<Report>),
    /// Notifications about a report are sent. The error ended the report.
    Notifying(Round, Option<String>),
    Waiting(Wait),
    CheckingFiles(Wait),
    /// The environment is not synced any more.
    Ended,
}

/// A round in progress.
#[derive(Debug)]
struct Round {
    assignment: AssignmentFacts,
    started: Duration,
    /// Whether the commit was loaded, or cannot be loaded for a reason in the commit.
    is_loaded: bool,
    /// Whether all records that were needed could be read.
    are_records_read: bool,
    /// Whether no task of a release was left when it started to report.
    are_tasks_ended: bool,
}

/// Wait for the next round.
#[derive(Debug, Clone, Copy)]
struct Wait {
    /// Time of the next round without an event.
    until: Option<Duration>,
    check_files_at: Duration,
}

impl Environment {
    /// Creates an environment with its first assignment. [`Environment::start`] returns its first
    /// commands. `crash` is from the previous process.
    pub fn new(assignment: AssignmentFacts, crash: Option<Crash>) -> Self {
        Self {
            phase: Phase::Ended,
            task: TaskId(0),
            next: 0,
            commands: Vec::new(),
            assignment,
            is_due: false,
            failures: 0,
            tried: None,
            inputs: None,
            exceeded: None,
            load_failures: 0,
            crash,
            stall: None,
            state: None,
            is_from_records: false,
            previous: BTreeMap::new(),
            stalled_at: String::new(),
            lookup: None,
            looked_up: None,
            found: Vec::new(),
            releases: BTreeMap::new(),
            uninstalls: None,
            tasks: 0,
            reported: None,
            reported_at: Duration::ZERO,
            notified: BTreeMap::new(),
        }
    }

    /// Starts the first round.
    pub fn start(&mut self, now: Moment) -> Vec<Command> {
        self.start_round(now);
        self.start_due_round(now);
        std::mem::take(&mut self.commands)
    }

    /// Decides about an event.
    pub fn on(&mut self, event: Event, now: Moment) -> Vec<Command> {
        if matches!(self.phase, Phase::Ended) {
            return Vec::new();
        }
        match event {
            Event::Assigned(assignment) => {
                self.assignment = *assignment;
                self.is_due = true;
            }
            Event::Stopped => self.end(),
            Event::LookedUp(id, found) if self.awaits_lookup(id) => self.found.push((id, found)),
            Event::Reconciled(release) => self.trigger_dependents(&release),
            Event::TaskEnded => self.tasks = self.tasks.saturating_sub(1),
            Event::Tick => self.on_tick(now),
            Event::Answer(task, answer) if task == self.task => self.on_answer(answer, now),
            // It comes too late.
            Event::LookedUp(..) | Event::Answer(..) => {}
        }
        self.start_due_round(now);
        std::mem::take(&mut self.commands)
    }

    /// Returns the time of the next [`Event::Tick`], if one is needed.
    pub fn wake_at(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Waiting(wait) => {
                let at = wait.check_files_at;
                Some(wait.until.map_or(at, |until| until.min(at)))
            }
            Phase::CheckingFiles(wait) => wait.until,
            _ => None,
        }
    }

    /// Returns a number for a state.
    pub fn new_state(&mut self) -> StateId {
        StateId(self.number())
    }

    /// Returns whether the environment can still name a state.
    pub fn uses(&self, id: StateId) -> bool {
        let found = self.found.iter().filter_map(|(_, found)| match found {
            LookedUp::State(state) => Some(state.id),
            LookedUp::Failed | LookedUp::Nothing => None,
        });
        let previous = self.previous.values().filter_map(Previous::state);
        let state = self.state.iter().map(|state| state.id);
        state.chain(previous).chain(found).any(|known| known == id)
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Starts a task. Only its answer counts from now on.
    fn run(&mut self, task: Task) {
        self.task = TaskId(self.number());
        self.commands.push(Command::Start(self.task, task));
    }

    fn end(&mut self) {
        self.phase = Phase::Ended;
        self.commands.push(Command::End);
    }

    fn start_round(&mut self, now: Moment) {
        self.is_due = false;
        self.commands.push(Command::StartRound);
        let round = Round {
            assignment: self.assignment.clone(),
            started: now.at,
            is_loaded: true,
            are_records_read: true,
            are_tasks_ended: false,
        };
        self.load(round, now);
    }

    /// Starts the next round if something happened that the last one did not see.
    fn start_due_round(&mut self, now: Moment) {
        while matches!(self.phase, Phase::Waiting(_) | Phase::CheckingFiles(_)) {
            for (id, found) in std::mem::take(&mut self.found) {
                self.on_found(id, found);
            }
            if !self.is_due {
                break;
            }
            self.start_round(now);
        }
    }

    fn on_tick(&mut self, now: Moment) {
        let (Phase::Waiting(wait) | Phase::CheckingFiles(wait)) = self.phase else {
            return;
        };
        if wait.until.is_some_and(|until| now.at >= until) {
            self.is_due = true;
        } else if matches!(self.phase, Phase::Waiting(_)) && now.at >= wait.check_files_at {
            self.run(Task::CheckFiles);
            self.phase = Phase::CheckingFiles(wait);
        }
    }

    fn on_answer(&mut self, answer: Answer, now: Moment) {
        match (std::mem::replace(&mut self.phase, Phase::Ended), answer) {
            (Phase::Loading(round), Answer::Loaded(load)) => self.on_load(round, load, now),
            (Phase::ReadingRecords(round), Answer::Records(records)) => {
                self.on_records(round, records, now);
            }
            (Phase::Connecting(round), Answer::Connected(Ok(connection))) => {
                self.sync_releases(round, connection, now);
            }
            (Phase::Connecting(round), Answer::Connected(Err(error))) => {
                self.finish(&round, Some(error), now);
            }
            (Phase::Reporting(round, reports), Answer::Reported(reported)) => {
                self.on_reported(round, reports, reported, now);
            }
            (Phase::Notifying(round, error), Answer::Notified) => self.finish(&round, error, now),
            (Phase::Waiting(wait), Answer::RecordsChanged(changes)) => {
                self.on_changes(changes);
                self.wait(wait);
            }
            (Phase::CheckingFiles(wait), Answer::FilesChecked(changed)) => {
                if changed.keys {
                    self.forget_load();
                }
                self.is_due |= changed.kubeconfig || changed.keys;
                self.wait(Wait {
                    check_files_at: now.at + FILES_INTERVAL,
                    ..wait
                });
            }
            // An answer of another kind is ignored.
            (phase, _) => self.phase = phase,
        }
    }

    /// Ends a round, and waits for the next one. `error`: the cluster cannot be reached.
    fn finish(&mut self, round: &Round, error: Option<String>, now: Moment) {
        let is_complete = round.is_loaded && round.are_records_read;
        let is_removed = round.assignment.is_removed;
        let is_failed = error.is_some() || !is_complete;
        self.failures = if is_failed {
            self.failures.saturating_add(1)
        } else {
            0
        };
        if let Some(error) = error {
            // Reported again only with the next attempt.
            self.reported = None;
            self.commands.push(Command::Unreachable(error));
        } else {
            if round.is_loaded {
                self.commands
                    .push(Command::Answered(round.assignment.answered));
            }
            if is_removed && is_complete && round.are_tasks_ended {
                return self.end();
            }
            if is_removed {
                // Reset, because unfinished work can still report something else.
                self.reported = None;
            }
        }
        let delay = backoff::after(self.failures.max(1), now.random);
        let retry = (is_failed || is_removed).then_some(now.at + delay);
        let exceeded = self.exceeded.map(|at| at + EXCEEDED_RETRY);
        let renewal = self.reported.as_ref().map(|_| self.reported_at + HEARTBEAT);
        let crash = self.crash.as_ref().map(|crash| crash.until);
        let crash = crash.filter(|until| now.at < *until);
        self.wait(Wait {
            until: [retry, exceeded, renewal, crash]
                .into_iter()
                .flatten()
                .min(),
            check_files_at: now.at + FILES_INTERVAL,
        });
    }

    fn wait(&mut self, wait: Wait) {
        self.run(Task::Wait);
        self.phase = Phase::Waiting(wait);
    }
}

#[cfg(test)]
mod invariants;
#[cfg(test)]
mod tests;
