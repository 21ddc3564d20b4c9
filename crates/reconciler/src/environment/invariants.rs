//! Invariants of an environment under random orders of events, answers and clock jumps.

use std::collections::BTreeSet;

use fastrand::Rng;
use proptest::prelude::*;

use super::tests::{assignment, moment, release, stall, state};
use super::*;
use crate::backoff::LONGEST;
use crate::stall::ENVIRONMENT_MISSING;
use crate::state_changes::Notice;

/// Number of events of a case.
const EVENTS: usize = 200;
const NAMES: [&str; 3] = ["api", "db", "web"];

/// An environment with a random executor, which checks the invariants.
struct World {
    environment: Environment,
    random: Rng,
    now: Moment,
    newest: AssignmentFacts,
    /// The assignment of the round.
    current: AssignmentFacts,
    commits: u64,
    /// The awaited task, and the earlier ones.
    task: Option<(TaskId, Task)>,
    earlier: Vec<TaskId>,
    /// Lookups in progress, and those that ended.
    lookups: Vec<(TaskId, Option<String>)>,
    ended_lookups: Vec<TaskId>,
    /// States that the executor stores.
    states: BTreeSet<StateId>,
    is_stalled: bool,
    running: BTreeMap<String, Desired>,
    has_uninstalls: bool,
    /// Number of tasks that were asked to end.
    ending: usize,
    is_ended: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let (now, newest) = (moment(), assignment("c0"));
        let mut environment = Environment::new(newest.clone(), None);
        let commands = environment.start(now);
        let mut world = Self {
            environment,
            random: Rng::with_seed(seed),
            now,
            current: newest.clone(),
            newest,
            commits: 0,
            task: None,
            earlier: Vec::new(),
            lookups: Vec::new(),
            ended_lookups: Vec::new(),
            states: BTreeSet::new(),
            is_stalled: false,
            running: BTreeMap::new(),
            has_uninstalls: false,
            ending: 0,
            is_ended: false,
        };
        world.take(commands);
        world
    }

    /// Returns the name of a random release.
    fn name(&mut self) -> String {
        let name = self.random.choice(NAMES);
        name.unwrap_or_default().to_owned()
    }

    fn on(&mut self, event: Event) {
        if let (Event::Answer(answered, _), Some((id, _))) = (&event, &self.task)
            && answered == id
        {
            self.earlier.extend(self.task.take().map(|(id, _)| id));
        }
        let was_awaited = self.task.is_some();
        let commands = self.environment.on(event, self.now);
        assert!(!self.is_ended || commands.is_empty(), "the end is final");
        let is_task = |one: &Command| matches!(one, Command::Start(..) | Command::End);
        let is_trigger = |one: &Command| matches!(one, Command::TriggerDependent(_));
        assert!(
            !was_awaited || commands.iter().any(is_task) || commands.iter().all(is_trigger),
            "only triggers leave the present task running"
        );
        self.take(commands);
        self.check();
    }

    fn take(&mut self, commands: Vec<Command>) {
        // The machine is at the last round of the commands.
        let last = commands.iter().rposition(|one| *one == Command::StartRound);
        for (at, command) in commands.into_iter().enumerate() {
            let is_last = last.is_none_or(|last| at > last);
            match command {
                Command::Start(id, task) => self.start_task(id, task),
                Command::End => {
                    self.is_ended = true;
                    self.task = None;
                }
                Command::StartRound => self.current = self.newest.clone(),
                Command::LookUp { id, release, .. } => self.lookups.push((id, release)),
                Command::StartRelease(name, desired) => {
                    assert!(self.states.contains(&desired.state), "{name}");
                    let known = self.running.insert(name, desired);
                    assert_eq!(known, None, "one task per release");
                }
                Command::UpdateRelease(name, desired) => {
                    assert!(self.states.contains(&desired.state), "{name}");
                    let known = self.running.insert(name, desired.clone());
                    assert!(known.is_some_and(|known| known != desired), "it changed");
                }
                Command::RemoveRelease(name) => {
                    // So a stalled environment removes none of its releases.
                    let mut releases = self.environment.state.iter().flat_map(|one| &one.releases);
                    let is_there = releases.any(|one| one.name == name);
                    assert!(!is_last || !is_there, "git contains {name}");
                    self.ending += usize::from(self.running.remove(&name).is_some());
                }
                Command::Uninstall { first, .. } => {
                    assert!(
                        !self.is_stalled,
                        "a stalled environment uninstalls no release"
                    );
                    assert!(!first.is_from_records, "a record uninstalls no release");
                    self.has_uninstalls = true;
                }
                Command::StopUninstalls => self.stop_uninstalls(),
                Command::StopSync => {
                    let is_synced = self.environment.state.is_some();
                    assert!(!is_last || !is_synced, "it can be synced");
                    self.ending += std::mem::take(&mut self.running).len();
                    self.stop_uninstalls();
                }
                Command::TriggerRelease(name) | Command::TriggerDependent(name) => {
                    assert!(self.running.contains_key(&name), "{name} runs");
                }
                Command::Stalled(_) => self.is_stalled = true,
                Command::Loaded(..) => self.is_stalled = false,
                Command::Extract { id, from, .. } => {
                    assert!(self.states.contains(&from), "the executor holds {from:?}");
                    self.states.insert(id);
                }
                Command::Unchanged(..)
                | Command::Retained(_)
                | Command::Unreachable(_)
                | Command::EndAttempt(_)
                | Command::Answered(_)
                | Command::TriggerUninstalls
                | Command::Fetch(..) => {}
            }
        }
        self.states.retain(|id| self.environment.uses(*id));
    }

    /// Adds a state like the executor.
    fn new_state(&mut self) -> StateId {
        let id = self.environment.new_state();
        self.states.insert(id);
        id
    }

    fn stop_uninstalls(&mut self) {
        self.ending += usize::from(std::mem::take(&mut self.has_uninstalls));
    }

    fn start_task(&mut self, id: TaskId, task: Task) {
        self.earlier.extend(self.task.take().map(|(id, _)| id));
        if let Task::Load { commit, .. } = &task {
            let newest = Commit::Followed(commit.clone());
            assert_eq!(self.current.commit, newest, "the newest commit wins");
        }
        self.task = Some((id, task));
    }

    /// Checks the invariants that hold after every event.
    fn check(&self) {
        if self.is_ended {
            return;
        }
        assert!(self.task.is_some(), "nothing is awaited");
        let Phase::Waiting(wait) = &self.environment.phase else {
            return;
        };
        let at = self.environment.wake_at();
        assert!(
            at.is_some_and(|at| at <= self.now.at + FILES_INTERVAL),
            "every wait ends"
        );
        let longest = self.now.at + LONGEST.mul_f64(1.2);
        let is_retried = wait.until.is_some_and(|until| until <= longest);
        assert!(
            is_retried || self.environment.failures == 0,
            "a failure is retried"
        );
        assert!(self.environment.found.is_empty());
        let handled = self.environment.releases.keys();
        assert!(
            handled.eq(self.running.keys()),
            "the executor has the same releases"
        );
    }

    /// Lets a random event happen.
    fn act(&mut self) {
        match self.random.u64(..24) {
            0..12 => {
                if let Some((id, task)) = self.task.clone()
                    && let Some(answer) = self.answer(&task)
                {
                    self.on(Event::Answer(id, answer));
                }
            }
            12 => self.answer_late(),
            13..16 => self.assign(),
            16..18 => self.look_up(),
            18 => {
                let name = self.name();
                self.on(Event::Reconciled(name));
            }
            19 => {
                if self.ending > 0 {
                    self.ending -= 1;
                    self.on(Event::TaskEnded);
                }
            }
            20 => {
                let jump = self.random.choice([0, 1, 60, 3600]).unwrap_or_default();
                self.now.at += Duration::from_secs(jump);
            }
            _ => {
                if self
                    .environment
                    .wake_at()
                    .is_some_and(|at| at <= self.now.at)
                {
                    self.on(Event::Tick);
                }
            }
        }
    }

    /// Answers an earlier task or lookup again. Nothing changes.
    fn answer_late(&mut self) {
        let task = self.random.choice(&self.earlier).copied();
        let lookup = self.random.choice(&self.ended_lookups).copied();
        let is_pending = |id: &TaskId| self.environment.found.iter().any(|(known, _)| known == id);
        let lookup = lookup.filter(|id| !is_pending(id));
        let before = format!("{:?}", self.environment);
        for event in [
            task.map(|id| Event::Answer(id, Answer::Loaded(Load::Invalid(stall("Late"))))),
            task.map(|id| Event::Answer(id, Answer::Connected(Ok(ConnectionId(99))))),
            lookup.map(|id| Event::LookedUp(id, LookedUp::Failed)),
        ] {
            let Some(event) = event else { continue };
            let commands = self.environment.on(event, self.now);
            assert_eq!(commands, [], "a late answer has no effect");
        }
        assert_eq!(format!("{:?}", self.environment), before);
    }

    fn assign(&mut self) {
        let reason = |reason: &str| Commit::Stalled {
            reason: reason.to_owned(),
            message: "why".to_owned(),
        };
        self.commits += u64::from(self.random.u64(..4) > 0);
        let commit = format!("c{}", self.commits);
        let commit = match self.random.u64(..8) {
            0 => reason("Contested"),
            1 => Commit::Untrusted {
                reason: "UntrustedCommit".to_owned(),
                commit,
                message: "why".to_owned(),
            },
            2 => Commit::Unknown,
            _ => Commit::Followed(commit),
        };
        self.newest = AssignmentFacts {
            commit,
            unreachable: (self.random.u64(..4) == 0).then(|| "no route".to_owned()),
            ..assignment("")
        };
        self.on(Event::Assigned(Box::new(self.newest.clone())));
    }

    fn look_up(&mut self) {
        let Some((id, name)) = self.lookups.pop() else {
            return;
        };
        self.ended_lookups.push(id);
        let found = match self.random.u64(..4) {
            0 => LookedUp::Failed,
            1 => LookedUp::Nothing,
            _ => {
                let id = self.new_state();
                let state = match &name {
                    Some(name) => state(id, "past", &[name], &[]),
                    None => self.state(id, "past"),
                };
                LookedUp::State(Box::new(state))
            }
        };
        self.on(Event::LookedUp(id, found));
    }

    /// Returns a state with random releases, some of them stalled.
    fn state(&mut self, id: StateId, commit: &str) -> StateFacts {
        let (mut sound, mut stalled) = (Vec::new(), Vec::new());
        for name in NAMES {
            match self.random.u64(..4) {
                0 => stalled.push(name),
                1 => {}
                _ => sound.push(name),
            }
        }
        let mut state = state(id, commit, &sound, &stalled);
        for release in &mut state.releases {
            release.depends_on = [self.name()].into();
        }
        state
    }

    fn answer(&mut self, task: &Task) -> Option<Answer> {
        let is_good = self.random.u64(..5) < 4;
        Some(match task {
            Task::Load { commit, .. } => Answer::Loaded(match self.random.u64(..10) {
                0 => Load::Unchanged,
                1 => Load::Invalid(stall("Bad")),
                2 => Load::Invalid(stall(ENVIRONMENT_MISSING)),
                3 => Load::Exceeded(stall("Big")),
                4 => Load::Failed(stall("Unread")),
                5 => match self.environment.state.clone() {
                    Some(same) => Load::Loaded {
                        state: Box::new(StateFacts {
                            id: self.new_state(),
                            revision: commit.clone(),
                            ..same
                        }),
                        is_same: true,
                    },
                    None => Load::Unchanged,
                },
                _ => {
                    let id = self.new_state();
                    let state = Box::new(self.state(id, commit));
                    Load::Loaded {
                        state,
                        is_same: false,
                    }
                }
            }),
            Task::ReadRecords { .. } => {
                let recorded = NAMES.iter().filter(|_| self.random.u64(..2) == 0);
                let recorded = recorded.map(|name| RecordedCommit {
                    release: (*name).to_owned(),
                    commit: "past".to_owned(),
                });
                let recorded = recorded.collect();
                Answer::Records(is_good.then_some(recorded))
            }
            Task::Connect { .. } => Answer::Connected(if is_good {
                Ok(ConnectionId(self.random.u64(..2)))
            } else {
                Err("no route".to_owned())
            }),
            Task::Report { .. } => Answer::Reported(Reported {
                connection: None,
                written: vec!["db".to_owned()],
                error: (!is_good).then(|| "no route".to_owned()),
            }),
            Task::Notify(notifications) => {
                let notices = notifications.iter().map(|one| &one.notice);
                assert!(notices.clone().all(|Notice { is_warning, .. }| *is_warning));
                Answer::Notified
            }
            Task::CheckFiles => Answer::FilesChecked(ChangedFiles {
                kubeconfig: !is_good,
                keys: !is_good,
            }),
            Task::Wait if is_good => return None,
            Task::Wait => Answer::RecordsChanged(vec![RecordChange {
                release: self.name(),
                affects_dependents: self.random.u64(..2) == 0,
                is_requested: self.random.u64(..2) == 0,
                fetch: None,
            }]),
        })
    }

    /// Returns an answer by which a task succeeds.
    fn succeed(&mut self, task: &Task) -> Answer {
        match task {
            Task::Load { commit, .. } => {
                let id = self.new_state();
                let releases = NAMES.iter().map(|name| release(name));
                let state = StateFacts {
                    releases: releases.collect(),
                    ..state(id, commit, &[], &[])
                };
                Answer::Loaded(Load::Loaded {
                    state: Box::new(state),
                    is_same: false,
                })
            }
            Task::ReadRecords { .. } => Answer::Records(Some(Vec::new())),
            Task::Connect { .. } => Answer::Connected(Ok(ConnectionId(5))),
            Task::Report { .. } => Answer::Reported(Reported {
                connection: None,
                written: Vec::new(),
                error: None,
            }),
            Task::Notify(_) => Answer::Notified,
            Task::CheckFiles => Answer::FilesChecked(ChangedFiles::default()),
            Task::Wait => Answer::RecordsChanged(Vec::new()),
        }
    }

    /// Lets everything succeed from now on, and checks that the newest commit is synced.
    fn converge(&mut self) {
        self.newest = assignment("newest");
        self.on(Event::Assigned(Box::new(self.newest.clone())));
        for _ in 0..40 {
            let (id, task) = self.task.clone().unwrap();
            if task == Task::Wait && self.current == self.newest {
                break;
            }
            let answer = self.succeed(&task);
            self.on(Event::Answer(id, answer));
        }
        let state = self.environment.state.as_ref().unwrap();
        assert_eq!(state.revision, "newest", "the newest commit is synced");
        assert_eq!(self.environment.stall, None);
        assert!(self.running.keys().eq(NAMES));
        let mut desired = self.running.values();
        assert!(desired.all(|desired| desired.state == state.id && desired.stall.is_none()));
        assert!(self.has_uninstalls);
    }

    /// Removes the environment from git, and checks that its task ends.
    fn give_up(&mut self) {
        self.newest = AssignmentFacts {
            commit: Commit::Stalled {
                reason: "BranchMissing".to_owned(),
                message: "why".to_owned(),
            },
            is_removed: true,
            ..assignment("")
        };
        self.on(Event::Assigned(Box::new(self.newest.clone())));
        for _ in 0..80 {
            if self.is_ended {
                break;
            }
            while self.ending > 0 && self.current == self.newest {
                self.ending -= 1;
                self.on(Event::TaskEnded);
            }
            let Some((id, task)) = self.task.clone() else {
                break;
            };
            if task == Task::Wait {
                self.now.at = self.environment.wake_at().unwrap().max(self.now.at);
                self.on(Event::Tick);
            } else {
                let answer = self.succeed(&task);
                self.on(Event::Answer(id, answer));
            }
        }
        assert!(self.is_ended, "{:?}", self.environment);
        assert!(self.running.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_invariants_hold_for_any_order_of_events(
        seed in any::<u64>(),
        events in EVENTS / 2..EVENTS * 3 / 2,
        end in 0..3,
    ) {
        let mut world = World::new(seed);
        for _ in 0..events {
            world.act();
        }
        match end {
            0 => world.converge(),
            1 => world.give_up(),
            _ => {
                world.on(Event::Stopped);
                assert!(world.is_ended);
            }
        }
    }
}
