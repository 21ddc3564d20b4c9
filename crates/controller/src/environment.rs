//! Task of one environment: executes the commands of its state machine, [`Environment`].

mod report;
mod states;
mod tasks;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pleach_reconciler::TaskId;
use pleach_reconciler::config::EnvironmentKey;
use pleach_reconciler::environment::{Answer, Command, Desired, Environment, Event, Load, Task};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use self::states::States;
use self::tasks::{Executor, TaskResult};
use super::Shared;
use super::assignment::{Assigned, AssignedCommit};
use super::backoff::FetchSchedule;
use super::history_lookup::{HistoryLookup, LookupResult};
use super::release::{ReleaseChannels, ReleaseTask};
use super::removals::{PresentState, UninstallTask};
use super::run::Target;

/// Time limit for loading an environment.
pub(super) const LIMIT: Duration = Duration::from_mins(10);

/// Task of an environment.
pub(super) struct EnvironmentTask {
    machine: Environment,
    inbox: Inbox,
    states: States,
    releases: Releases,
    executor: Executor,
}

/// Received events of an environment.
struct Inbox {
    environment: String,
    assigned: watch::Receiver<Assigned>,
    stop: CancellationToken,
    /// History lookups in progress.
    lookups: JoinSet<(TaskId, Option<LookupResult>)>,
    lookup_handles: BTreeMap<TaskId, AbortHandle>,
    /// Tasks of the releases, the uninstalls and the history lookups.
    tasks: JoinSet<()>,
    /// Names of releases that were reconciled to a commit.
    reconciled: mpsc::UnboundedReceiver<String>,
}

/// A received event.
enum Received {
    LookedUp(TaskId, Option<LookupResult>),
    Other(Event),
}

/// Handles of the running tasks.
struct Releases {
    running: BTreeMap<String, ReleaseHandle>,
    uninstalls: Option<watch::Sender<PresentState>>,
    /// Triggered by user requests on a release without a task: its uninstall might be allowed now.
    uninstalls_trigger: Arc<Notify>,
    reconciled: mpsc::UnboundedSender<String>,
}

/// A release with a running task.
struct ReleaseHandle {
    desired: watch::Sender<Arc<Target>>,
    trigger: Arc<Notify>,
    /// Signals that a dependency might have become ready.
    ready: Arc<Notify>,
}

impl EnvironmentTask {
    pub(super) fn new(
        key: EnvironmentKey,
        assigned: watch::Receiver<Assigned>,
        fetch_schedule: FetchSchedule,
        shared: Shared,
    ) -> Self {
        let current = assigned.borrow().clone();
        let (reconciled, reconciled_releases) = mpsc::unbounded_channel();
        let inbox = Inbox {
            environment: key.environment.clone(),
            assigned,
            stop: shared.stop.clone(),
            lookups: JoinSet::new(),
            lookup_handles: BTreeMap::new(),
            tasks: JoinSet::new(),
            reconciled: reconciled_releases,
        };
        let releases = Releases {
            running: BTreeMap::new(),
            uninstalls: None,
            uninstalls_trigger: Arc::default(),
            reconciled,
        };
        let facts = current.facts(&key.environment);
        let clock = shared.clock;
        let executor = Executor::new(key, current, fetch_schedule, shared);
        Self {
            machine: Environment::new(facts, executor.attempt.crash(clock)),
            inbox,
            states: States::default(),
            releases,
            executor,
        }
    }

    /// Runs until shutdown, until another replica syncs the environment, or until git no longer
    /// contains it and that is reported.
    pub(super) async fn run(mut self) {
        let _ending = self.executor.attempt.end_on_drop();
        let (lookups, received) = mpsc::unbounded_channel();
        self.executor.lookups = lookups;
        let history = HistoryLookup {
            environment: self.inbox.environment.clone(),
            assigned: self.inbox.assigned.clone(),
            requests: received,
            shared: self.executor.shared.clone(),
            attempt: self.executor.attempt.clone(),
            limit: LIMIT,
        };
        let history = self.inbox.tasks.spawn_local(history.run());
        let mut commands = self.machine.start(self.executor.shared.clock.moment());
        while let Some((id, task)) = self.execute(commands) {
            commands = Box::pin(self.follow(id, task)).await;
        }
        self.stop_sync();
        history.abort();
        while let Some(ended) = self.inbox.tasks.join_next().await {
            propagate_panic(ended);
        }
    }

    /// Executes commands that need no wait. Returns the next task, or `None` at the end.
    fn execute(&mut self, commands: Vec<Command>) -> Option<(TaskId, Task)> {
        let mut next = None;
        for command in commands {
            match command {
                Command::Start(id, task) => next = Some((id, task)),
                Command::End => return None,
                Command::StartRound => self.executor.current = self.inbox.assigned.borrow().clone(),
                Command::Unchanged(commit, took) => self.executor.unchanged(commit, took),
                Command::Loaded(state, took) => self.executor.loaded(*state, took),
                Command::Retained(revision) => self.executor.retained(&revision),
                Command::Stalled(stall) => self.executor.stalled(stall),
                Command::Unreachable(message) => self.executor.unreachable(message),
                Command::EndAttempt(releases) => self.executor.attempt.end_with(releases),
                Command::Answered(fetches) => self.executor.requests.record_answered(fetches),
                Command::LookUp {
                    id,
                    commits,
                    release,
                } => {
                    let found = self.executor.look_up(commits, release);
                    self.inbox.await_lookup(id, found);
                }
                Command::Extract { id, from, release } => self.states.extract(id, from, &release),
                Command::StartRelease(name, desired) => self.start_release(name, &desired),
                Command::UpdateRelease(name, desired) => {
                    let running = self.releases.running.get(&name);
                    if let Some((running, target)) = running.zip(self.target(&desired)) {
                        running.desired.send_replace(Arc::new(target));
                    }
                }
                Command::RemoveRelease(name) => drop(self.releases.running.remove(&name)),
                Command::Uninstall { first, is_changed } => self.uninstall(&first, is_changed),
                Command::StopUninstalls => self.releases.uninstalls = None,
                Command::StopSync => self.stop_sync(),
                Command::TriggerDependent(name) => self.releases.trigger_dependent(&name),
                Command::TriggerRelease(name) => {
                    if let Some(running) = self.releases.running.get(&name) {
                        running.trigger.notify_one();
                    }
                }
                Command::TriggerUninstalls => self.releases.uninstalls_trigger.notify_one(),
                Command::Fetch(release, request) => {
                    self.executor.requests.request_fetch(&release, &request);
                }
            }
        }
        self.states.retain(|id| self.machine.uses(id));
        self.inbox.cancel_lookups(&self.machine);
        next
    }

    /// Runs a task until the state machine replaces it.
    async fn follow(&mut self, id: TaskId, task: Task) -> Vec<Command> {
        let clock = self.executor.shared.clock;
        let performing = self.executor.perform(id, task, self.states.all());
        let mut performing = Box::pin(performing);
        loop {
            let tick = clock.until(self.machine.wake_at());
            let event = tokio::select! {
                // Events come first, so that the next round is about the newest assignment.
                biased;
                received = self.inbox.receive() => match received {
                    Received::LookedUp(id, found) => {
                        // It comes too late.
                        if !self.machine.awaits_lookup(id) {
                            continue;
                        }
                        let state = self.machine.new_state();
                        Event::LookedUp(id, self.states.found(state, found))
                    }
                    Received::Other(event) => event,
                },
                result = &mut performing => Event::Answer(id, match result {
                    TaskResult::Loaded { loaded, is_same } => {
                        let state = self.machine.new_state();
                        let state = Box::new(self.states.insert(state, Arc::new(*loaded)));
                        Answer::Loaded(Load::Loaded { state, is_same })
                    }
                    TaskResult::Answer(answer) => answer,
                }),
                () = tick => Event::Tick,
            };
            let is_answer = matches!(event, Event::Answer(..));
            let commands = self.machine.on(event, clock.moment());
            let is_replaced = |one: &Command| matches!(one, Command::Start(..) | Command::End);
            if is_answer || commands.iter().any(is_replaced) {
                return commands;
            }
            // Without a new task, there is nothing else.
            for command in commands {
                if let Command::TriggerDependent(name) = command {
                    self.releases.trigger_dependent(&name);
                }
            }
        }
    }

    /// Stops syncing the environment. Work in progress ends at its next safe point.
    fn stop_sync(&mut self) {
        self.releases.running.clear();
        self.releases.uninstalls = None;
        self.executor.attempt.end();
        self.executor.fetch_schedule.forget(&self.executor.key);
    }

    /// Builds the desired state of a release. Returns `None` without a connection.
    fn target(&self, desired: &Desired) -> Option<Target> {
        let connected = self.executor.connected.as_ref()?;
        let loaded = self.states.get(desired.state)?;
        let source_policy = &self.executor.current.source_policy;
        Some(Target {
            loaded: Arc::clone(loaded),
            index: desired.index,
            cluster: connected.cluster.clone(),
            cluster_id: desired.cluster.clone(),
            members: connected.members.clone(),
            source_policy: Arc::clone(source_policy),
            source: source_policy.source(&loaded.environment.name),
            conditions: desired.conditions.clone(),
            stall: desired.stall.clone(),
            is_stalled: desired.is_stalled,
            is_from_records: desired.is_from_records,
            is_retained: false,
        })
    }

    fn start_release(&mut self, name: String, desired: &Desired) {
        let Some(target) = self.target(desired) else {
            return;
        };
        let (sender, receiver) = watch::channel(Arc::new(target));
        let trigger = Arc::new(Notify::new());
        let ready = Arc::new(Notify::new());
        let channels = ReleaseChannels {
            ready: Arc::clone(&ready),
            reconciled: self.releases.reconciled.clone(),
            lookups: self.executor.lookups.clone(),
            requests: self.executor.requests.clone(),
            attempt: self.executor.attempt.clone(),
        };
        let shared = self.executor.shared.clone();
        let task = ReleaseTask::new(receiver, Arc::clone(&trigger), channels, shared);
        self.inbox.tasks.spawn_local(task.run());
        let running = ReleaseHandle {
            desired: sender,
            trigger,
            ready,
        };
        self.releases.running.insert(name, running);
    }

    /// Gives the present state to the uninstall task.
    fn uninstall(&mut self, first: &Desired, is_changed: bool) {
        let AssignedCommit::Followed { commit, reader } = &self.executor.current.commit else {
            return;
        };
        let Some(target) = self.target(first) else {
            return;
        };
        let present = PresentState {
            target: Arc::new(target),
            reader: reader.clone(),
            commit: commit.clone(),
        };
        if let Some(uninstalls) = &self.releases.uninstalls {
            uninstalls.send_if_modified(|known| {
                *known = present;
                is_changed
            });
            return;
        }
        let (sender, receiver) = watch::channel(present);
        let trigger = Arc::clone(&self.releases.uninstalls_trigger);
        let requests = self.executor.requests.clone();
        let uninstalls =
            UninstallTask::new(receiver, trigger, requests, self.executor.shared.clone());
        self.inbox.tasks.spawn_local(uninstalls.run());
        self.releases.uninstalls = Some(sender);
    }
}

impl Inbox {
    /// Waits for an event. Cancel-safe.
    async fn receive(&mut self) -> Received {
        loop {
            let event = tokio::select! {
                biased;
                () = self.stop.cancelled() => Event::Stopped,
                changed = self.assigned.changed() => if changed.is_ok() {
                    let facts = self.assigned.borrow_and_update().facts(&self.environment);
                    Event::Assigned(Box::new(facts))
                } else {
                    Event::Stopped
                },
                Some(ended) = self.lookups.join_next() => match ended {
                    Ok((id, found)) => return Received::LookedUp(id, found),
                    // It was canceled.
                    Err(_) => continue,
                },
                Some(ended) = self.tasks.join_next() => {
                    propagate_panic(ended);
                    Event::TaskEnded
                }
                Some(name) = self.reconciled.recv() => Event::Reconciled(name),
            };
            return Received::Other(event);
        }
    }

    fn await_lookup(&mut self, id: TaskId, found: oneshot::Receiver<LookupResult>) {
        let lookup = self
            .lookups
            .spawn_local(async move { (id, found.await.ok()) });
        self.lookup_handles.insert(id, lookup);
    }

    /// Cancels the lookups whose results do not matter any more.
    fn cancel_lookups(&mut self, machine: &Environment) {
        self.lookup_handles.retain(|id, lookup| {
            let is_awaited = machine.awaits_lookup(*id);
            if !is_awaited {
                lookup.abort();
            }
            is_awaited
        });
    }
}

impl Releases {
    fn trigger_dependent(&self, name: &str) {
        if let Some(running) = self.running.get(name) {
            running.ready.notify_one();
        }
    }
}

/// Propagates the panic of a task. The controller then exits and is restarted by its supervisor.
pub(super) fn propagate_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests;
