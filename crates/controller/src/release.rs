//! Task of one release: executes the commands of its state machine, [`Release`].

mod report;
mod tasks;

use std::collections::BTreeMap;
use std::sync::Arc;

use pleach_reconciler::release::{
    Command, ContentId, Event, Found, Release, TargetFacts, TargetId, Task, TaskId,
};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use self::tasks::Executor;
use super::catch_panic::catch_panic;
use super::crash::Attempt;
use super::history_lookup::{LookupRequest, LookupResult};
use super::requests::Requests;
use super::run::Target;
use super::{Shared, backoff};

/// Desired states that the state machine can name.
pub(super) type Targets = BTreeMap<TargetId, Arc<Target>>;

/// Task of a release.
pub(super) struct ReleaseTask {
    machine: Release,
    inbox: Inbox,
    desired: Desired,
    executor: Executor,
}

/// Channels between the releases of an environment.
#[derive(Debug, Clone)]
pub(super) struct ReleaseChannels {
    /// Signals that a dependency might have become ready.
    pub(super) ready: Arc<Notify>,
    /// Channel to report, by name, that the release was reconciled.
    pub(super) reconciled: mpsc::UnboundedSender<String>,
    /// Channel for history lookups.
    pub(super) lookups: mpsc::UnboundedSender<LookupRequest>,
    /// The user requests.
    pub(super) requests: Requests,
    /// The commit in progress, until all releases are planned.
    pub(super) attempt: Attempt,
}

/// Received events of a release.
struct Inbox {
    desired_receiver: watch::Receiver<Arc<Target>>,
    is_removed: bool,
    /// Triggered by user requests.
    trigger: Arc<Notify>,
    ready: Arc<Notify>,
    stop: CancellationToken,
    is_stopped: bool,
    /// The history lookup in progress.
    lookup: Option<(TaskId, oneshot::Receiver<LookupResult>)>,
}

/// A received event.
enum Received {
    Target(Arc<Target>),
    LookedUp(TaskId, Option<LookupResult>),
    Other(Event),
}

/// Desired states, with the numbers of their contents.
struct Desired {
    targets: Targets,
    contents: BTreeMap<TargetId, ContentId>,
    next: u64,
    /// The state that is reconciled.
    current: TargetId,
}

impl ReleaseTask {
    pub(super) fn new(
        mut desired_receiver: watch::Receiver<Arc<Target>>,
        trigger: Arc<Notify>,
        channels: ReleaseChannels,
        shared: Shared,
    ) -> Self {
        let target = Arc::clone(&desired_receiver.borrow_and_update());
        let mut desired = Desired {
            targets: Targets::new(),
            contents: BTreeMap::new(),
            next: 0,
            current: TargetId(0),
        };
        let facts = desired.insert(TargetId(0), Arc::clone(&target));
        Self {
            machine: Release::new(facts, shared.clock.moment()),
            inbox: Inbox {
                desired_receiver,
                is_removed: false,
                trigger,
                ready: Arc::clone(&channels.ready),
                stop: shared.stop.clone(),
                is_stopped: false,
                lookup: None,
            },
            desired,
            executor: Executor::new(target, channels, shared),
        }
    }

    /// Runs until shutdown, or until git no longer contains the release. A panic affects no other
    /// release.
    pub(super) async fn run(mut self) {
        let mut panics = 0;
        while catch_panic(Box::pin(self.live())).await.is_none() {
            panics += 1;
            if !self.restart(panics).await {
                return;
            }
        }
    }

    /// Starts again after a panic and a backoff, like a restarted controller. Returns false at
    /// shutdown, or if git no longer contains the release.
    async fn restart(&mut self, panics: u32) -> bool {
        self.executor.panicked();
        tokio::select! {
            biased;
            () = self.inbox.stop.cancelled() => return false,
            changed = self.inbox.desired_receiver.changed() => if changed.is_err() {
                return false;
            },
            () = sleep(backoff::after(panics)) => {}
        }
        *self = Self::new(
            self.inbox.desired_receiver.clone(),
            Arc::clone(&self.inbox.trigger),
            self.executor.channels.clone(),
            self.executor.shared.clone(),
        );
        true
    }

    async fn live(&mut self) {
        let mut commands = self.machine.start();
        while let Some((id, task)) = self.execute(commands) {
            commands = Box::pin(self.follow(id, task)).await;
        }
    }

    /// Executes commands that need no wait. Returns the next task, or `None` at the end.
    fn execute(&mut self, commands: Vec<Command>) -> Option<(TaskId, Task)> {
        let mut next = None;
        for command in commands {
            match command {
                Command::Start(id, task) => {
                    if let Task::Admit { target, .. } = &task {
                        self.desired.current = *target;
                        self.executor.current = self.desired.current()?;
                    }
                    self.executor.cancel = CancellationToken::new();
                    next = Some((id, task));
                }
                Command::Started => self.executor.started(),
                Command::Finished(finished) => self.executor.finished(*finished),
                Command::NotifyDependents => self.executor.notify_dependents(),
                Command::LookUp(id, commit) => {
                    self.inbox.lookup = Some((id, self.executor.look_up(commit)));
                }
                Command::Retain { id, from } => self.desired.retain(id, from),
                Command::RetainPlan(id) => self.executor.retain_plan(id),
                Command::Cancel => self.executor.cancel.cancel(),
                Command::End => return None,
            }
        }
        self.desired.forget_unused(&self.machine);
        if !self.machine.awaits_lookup() {
            self.inbox.lookup = None;
        }
        next
    }

    /// Runs a task until the state machine replaces it.
    async fn follow(&mut self, id: TaskId, task: Task) -> Vec<Command> {
        let clock = self.executor.shared.clock;
        let cancel = self.executor.cancel.clone();
        let performing = self
            .executor
            .perform(id, task, self.desired.targets.clone());
        let mut performing = Box::pin(performing);
        loop {
            let tick = clock.until(self.machine.wake_at());
            let received = tokio::select! {
                // Events come first, so that an answer is about the newest desired state.
                biased;
                received = self.inbox.receive() => received,
                answer = &mut performing => Received::Other(Event::Answer(id, answer)),
                () = tick => Received::Other(Event::Tick),
            };
            let event = match received {
                Received::Target(target) => {
                    let id = self.machine.new_target();
                    Event::Target(Box::new(self.desired.insert(id, target)))
                }
                Received::LookedUp(task, found) => {
                    let id = self.machine.new_target();
                    Event::LookedUp(task, self.desired.found(id, found))
                }
                Received::Other(event) => event,
            };
            let is_answer = matches!(event, Event::Answer(..));
            let commands = self.machine.on(event, clock.moment());
            let is_replaced = |one: &Command| matches!(one, Command::Start(..) | Command::End);
            if is_answer || commands.iter().any(is_replaced) {
                return commands;
            }
            if commands.contains(&Command::Cancel) {
                cancel.cancel();
            }
            // A task can take long, and many commits can arrive meanwhile.
            self.desired.forget_unused(&self.machine);
        }
    }
}

impl Inbox {
    /// Waits for an event. Cancel-safe.
    async fn receive(&mut self) -> Received {
        let lookup = async {
            match &mut self.lookup {
                Some((id, answered)) => (*id, answered.await.ok()),
                None => std::future::pending().await,
            }
        };
        let received = tokio::select! {
            // Shutdown has priority, so that a release that left git is not reconciled again.
            biased;
            () = self.stop.cancelled(), if !self.is_stopped => {
                self.is_stopped = true;
                Received::Other(Event::Stopped)
            }
            changed = self.desired_receiver.changed(), if !self.is_removed => if changed.is_ok() {
                Received::Target(Arc::clone(&self.desired_receiver.borrow_and_update()))
            } else {
                self.is_removed = true;
                Received::Other(Event::Removed)
            },
            (id, found) = lookup => Received::LookedUp(id, found),
            () = self.trigger.notified() => Received::Other(Event::Requested),
            () = self.ready.notified() => Received::Other(Event::DependencyReconciled),
        };
        if matches!(received, Received::LookedUp(..)) {
            self.lookup = None;
        }
        received
    }
}

impl Desired {
    /// Adds a desired state, and returns its facts.
    fn insert(&mut self, id: TargetId, target: Arc<Target>) -> TargetFacts {
        let mut known = self.targets.iter();
        let same = known.find(|(_, known)| known.is_same(&target));
        let same = same.and_then(|(id, _)| self.contents.get(id));
        let content = same.copied().unwrap_or_else(|| {
            self.next += 1;
            ContentId(self.next)
        });
        let facts = TargetFacts {
            id,
            content,
            revision: target.revision(),
            sync: target.loaded.environment.sync.clone(),
            is_stalled: target.is_stalled,
            is_from_records: target.is_from_records,
            conditions: target.conditions.clone(),
            stall: target.stall.clone(),
        };
        self.contents.insert(id, content);
        self.targets.insert(id, target);
        facts
    }

    fn current(&self) -> Option<Arc<Target>> {
        self.targets.get(&self.current).map(Arc::clone)
    }

    /// Adds the result of a history lookup.
    fn found(&mut self, id: TargetId, found: Option<LookupResult>) -> Found {
        let Some(found) = found else {
            return Found::Failed;
        };
        let target = found.and_then(|loaded| self.current()?.retained_at(loaded));
        match target {
            Some(target) => Found::Target(Box::new(self.insert(id, Arc::new(target)))),
            None => Found::Nothing,
        }
    }

    /// Adds a desired state with the content of another one, under the present restrictions.
    fn retain(&mut self, id: TargetId, from: TargetId) {
        let (Some(current), Some(from)) = (self.current(), self.targets.get(&from)) else {
            return;
        };
        let loaded = &from.loaded;
        // Retain only this release: the wait can be long, and releases can be at different commits.
        let is_large = loaded.rendered.len() > 1 && !Arc::ptr_eq(loaded, &current.loaded);
        let loaded = if is_large {
            Arc::new(loaded.alone(&current.release().0.name.release))
        } else {
            Arc::clone(loaded)
        };
        if let Some(target) = current.retained_at(loaded) {
            self.insert(id, Arc::new(target));
        }
    }

    /// Removes the desired states that the state machine names no more.
    fn forget_unused(&mut self, machine: &Release) {
        self.targets.retain(|id, _| machine.uses(*id));
        let Self {
            targets, contents, ..
        } = self;
        contents.retain(|id, _| targets.contains_key(id));
    }
}
