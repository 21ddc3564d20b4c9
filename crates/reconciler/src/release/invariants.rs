//! Invariants of a release under random orders of events, answers and clock jumps.
//!
//! `PROPTEST_CASES=5000` runs a million events.

use std::collections::BTreeMap;

use fastrand::Rng;
use pleach_formats::sync::SyncPolicy;
use pleach_model::object::ObjectId;
use pleach_state::inventory::{SyncRequest, UserRequests};
use proptest::prelude::*;

use super::tests::{INTERVAL, moment, plan, target};
use super::*;
use crate::backoff::LONGEST;
use crate::health::Checked;
use crate::outcome::ReconcileOutcome;

/// Number of events of a case.
const EVENTS: usize = 200;

/// A release with a random executor, which checks the invariants.
struct World {
    release: Release,
    now: Moment,
    newest: TargetFacts,
    /// All desired states. Retained ones never prune.
    targets: BTreeMap<TargetId, (TargetFacts, bool)>,
    /// The awaited task, and the earlier ones.
    task: Option<(TaskId, Task)>,
    earlier: Vec<TaskId>,
    plans: BTreeMap<TaskId, PlanSummary>,
    lookup: Option<TaskId>,
    is_cancelled: bool,
    is_ended: bool,
    /// Content of the last finished run.
    applied: Option<ContentId>,
}

impl World {
    fn new() -> Self {
        let (now, newest) = (moment(), target(0, 0));
        let mut release = Release::new(newest.clone(), now);
        let commands = release.start();
        let mut world = Self {
            release,
            now,
            targets: [(newest.id, (newest.clone(), false))].into(),
            newest,
            task: None,
            earlier: Vec::new(),
            plans: BTreeMap::new(),
            lookup: None,
            is_cancelled: false,
            is_ended: false,
            applied: None,
        };
        world.take(commands);
        world
    }

    fn on(&mut self, event: Event) {
        let answered = match &event {
            Event::Answer(id, _) => self.task.as_ref().filter(|(task, _)| task == id).cloned(),
            _ => None,
        };
        let is_running = matches!(&self.task, Some((_, Task::Execute { .. })));
        if answered.is_some() {
            self.earlier.extend(self.task.take().map(|(id, _)| id));
        }
        let commands = self.release.on(event, self.now);
        let starts = commands.iter().any(|one| matches!(one, Command::Start(..)));
        assert!(
            !is_running || answered.is_some() || !starts,
            "one run at a time"
        );
        assert!(!self.is_ended || commands.is_empty(), "the end is final");
        self.take(commands);
        if !self.is_ended {
            self.check();
        }
    }

    fn take(&mut self, commands: Vec<Command>) {
        for command in commands {
            match command {
                Command::Start(id, task) => self.start_task(id, task),
                Command::Cancel => self.is_cancelled = true,
                Command::LookUp(id, _) => self.lookup = Some(id),
                Command::Retain { id, from } => {
                    let (from, _) = self.targets[&from].clone();
                    self.targets.insert(id, (TargetFacts { id, ..from }, true));
                }
                Command::Finished(_)
                | Command::Started
                | Command::NotifyDependents
                | Command::RetainPlan(_) => {}
                Command::End => {
                    let is_running = matches!(&self.task, Some((_, Task::Execute { .. })));
                    assert!(!is_running, "a run ends before its release");
                    self.task = None;
                    self.is_ended = true;
                }
            }
        }
    }

    fn start_task(&mut self, id: TaskId, task: Task) {
        self.earlier.extend(self.task.take().map(|(id, _)| id));
        self.is_cancelled = false;
        if let Task::Execute { plan, target } = &task {
            let plan = &self.plans[plan];
            let (target, is_retained) = &self.targets[target];
            let is_stopped = plan.refused.is_some() || plan.blocked.is_some();
            assert!(!is_stopped, "a refused plan is not executed");
            let is_allowed = *is_retained || !plan.is_new || !target.is_from_records;
            assert!(is_allowed, "a record starts no upgrade");
        }
        self.task = Some((id, task));
    }

    /// Checks the invariants that hold after every event.
    fn check(&self) {
        let Some((_, task)) = &self.task else {
            panic!("nothing is awaited");
        };
        match task {
            Task::Execute { target, .. } if !self.is_cancelled => {
                let (target, is_retained) = &self.targets[target];
                let is_newest = target.content == self.newest.content;
                assert!(is_newest || *is_retained, "the newest commit wins");
                let prunes = !is_retained && !target.is_stalled;
                assert!(
                    !prunes || !self.newest.is_stalled,
                    "nothing is deleted while stalled"
                );
            }
            Task::Wait(_) => {
                let at = self.release.wake_at();
                let longest = INTERVAL.max(LONGEST).mul_f64(1.2);
                let is_bounded = at.is_some_and(|at| at <= self.now.at + longest);
                assert!(is_bounded, "every wait ends: {at:?} at {:?}", self.now.at);
            }
            Task::Plan { target, .. } | Task::Admit { target, .. } => {
                assert!(self.release.uses(*target), "{target:?} is still needed");
            }
            _ => {}
        }
    }

    /// Lets a random event happen.
    fn act(&mut self, random: &mut Rng) {
        let number = random.u64(..);
        match number % 24 {
            0..12 => {
                if let Some((id, task)) = self.task.clone() {
                    let answer = self.answer(id, &task, number / 24);
                    self.on(Event::Answer(id, answer));
                }
            }
            // An answer of an earlier task arrives.
            12 => {
                let answers = [Answer::Ready, Answer::Planned(Ok(None)), Answer::Panicked];
                if let Some(id) = pick(&self.earlier, number / 24).copied() {
                    let answer = pick(&answers, random.u64(..)).cloned();
                    self.on(Event::Answer(id, answer.unwrap_or(Answer::Ready)));
                }
            }
            13..15 => self.desire(number / 24 % 3, number / 72),
            15 => self.on(Event::Requested),
            16 => self.on(Event::DependencyReconciled),
            17 => self.look_up(number / 24 % 3),
            18 => {
                if let Some((id, Task::Wait(wait))) = &self.task
                    && wait.drift_from.is_some_and(|at| at <= self.now.at)
                {
                    self.on(Event::Answer(*id, Answer::Changed(drift())));
                }
            }
            19 => {
                let jump = pick(&[0, 1, 60, 3600, 100_000], number / 24);
                self.now.at += Duration::from_secs(jump.copied().unwrap_or(0));
            }
            _ => {
                if self.release.wake_at().is_some_and(|at| at <= self.now.at) {
                    self.on(Event::Tick);
                }
            }
        }
    }

    fn desire(&mut self, content: u64, flags: u64) {
        let id = self.release.new_target().0;
        self.newest = TargetFacts {
            is_stalled: flags & 1 > 0,
            is_from_records: flags & 2 > 0,
            ..target(id, content)
        };
        let newest = self.newest.clone();
        self.targets.insert(newest.id, (newest.clone(), false));
        self.on(Event::Target(Box::new(newest)));
    }

    fn look_up(&mut self, number: u64) {
        let Some(id) = self.lookup.take() else { return };
        let found = match number {
            0 => Found::Failed,
            1 => Found::Nothing,
            _ => {
                let found = target(self.release.new_target().0, 7);
                self.targets.insert(found.id, (found.clone(), true));
                Found::Target(Box::new(found))
            }
        };
        self.on(Event::LookedUp(id, found));
    }

    fn answer(&mut self, id: TaskId, task: &Task, number: u64) -> Answer {
        if number % 50 == 49 {
            return Answer::Panicked;
        }
        let failed = || {
            let reasons = Reasons::default();
            let is_transient = number.is_multiple_of(2);
            Failure {
                reasons,
                is_transient,
            }
        };
        let is_good = number % 5 < 4;
        match task {
            Task::Admit { .. } => Answer::Admitted {
                found: Changes::default(),
                answered: number % 3,
            },
            Task::Plan { depth, .. } => match number % 16 {
                0 => Answer::Planned(Err(failed())),
                1 if matches!(depth, Depth::Changed(_)) => Answer::Planned(Ok(None)),
                _ => {
                    let summary = summary(number / 16, self.now.at);
                    self.plans.insert(id, summary.clone());
                    Answer::Planned(Ok(Some(Box::new(summary))))
                }
            },
            Task::CreateRecord(_) | Task::RecordRevision(_) => {
                Answer::Recorded(if is_good { Ok(()) } else { Err(failed()) })
            }
            Task::Approve(_) => Answer::Approved((!is_good).then(Reasons::default)),
            Task::Execute { target, .. } => {
                let ends = [
                    ReconcileOutcome::Deployed,
                    ReconcileOutcome::Unchanged,
                    ReconcileOutcome::Failed,
                ];
                let outcome = if self.is_cancelled {
                    ReconcileOutcome::Superseded
                } else {
                    *pick(&ends, number).unwrap_or(&ReconcileOutcome::Failed)
                };
                if outcome != ReconcileOutcome::Superseded && outcome != ReconcileOutcome::Failed {
                    self.applied = Some(self.targets[target].0.content);
                }
                let reasons = Reasons::default();
                Answer::Executed(RunSummary { outcome, reasons })
            }
            Task::Report(status) => Answer::Reported {
                is_ours: status.ownership != Ownership::Foreign && is_good,
                written: status.conditions.is_some().then_some(is_good),
            },
            Task::Check { objects, .. } => {
                let found = if is_good {
                    Checked::Missing
                } else {
                    Checked::Unread
                };
                let all = objects.iter().cloned().map(|id| (id, found.clone()));
                Answer::Checked(all.collect())
            }
            Task::Wait(wait) if wait.for_dependencies || wait.for_fetch => Answer::Ready,
            Task::Wait(_) => Answer::Written(drift().objects),
        }
    }

    /// Ends the release, and checks that only a run and its reports come before that.
    fn end(&mut self, event: Event) {
        let is_stopped = event == Event::Stopped;
        self.on(event);
        for _ in 0..3 {
            let Some((id, task)) = self.task.clone() else {
                break;
            };
            let answer = match &task {
                Task::Execute { .. } => self.answer(id, &task, 0),
                Task::Report(_) if !is_stopped => self.answer(id, &task, 0),
                other => panic!("{other:?} comes before the end"),
            };
            self.on(Event::Answer(id, answer));
        }
        assert!(self.is_ended, "every wait ends");
        self.on(Event::Requested);
        self.on(Event::Tick);
    }

    /// Lets everything succeed from now on, and checks that the newest state is applied.
    fn converge(&mut self) {
        self.newest = target(self.release.new_target().0, 9);
        let newest = self.newest.clone();
        self.targets.insert(newest.id, (newest.clone(), false));
        self.on(Event::Target(Box::new(newest)));
        for _ in 0..60 {
            let (id, task) = self.task.clone().unwrap();
            let answer = match &task {
                Task::Plan { .. } => {
                    self.plans.insert(id, plan());
                    Answer::Planned(Ok(Some(Box::new(plan()))))
                }
                Task::Wait(_) if self.applied == Some(self.newest.content) => return,
                Task::Wait(_) => {
                    self.now.at = self.release.wake_at().unwrap();
                    self.on(Event::Tick);
                    continue;
                }
                // Even numbers that are good answers of every kind of task.
                other => self.answer(id, other, 0),
            };
            self.on(Event::Answer(id, answer));
        }
        panic!("the newest state was not applied: {:?}", self.task);
    }
}

fn drift() -> Changes {
    Changes {
        objects: [ObjectId::new("", "ConfigMap", Some("web"), "a")].into(),
        has_runtime: false,
    }
}

fn summary(number: u64, now: Duration) -> PlanSummary {
    let bit = |at: u64| number >> at & 1 > 0;
    let refused = (number % 7 == 3).then(|| Refusal {
        reasons: Reasons::default(),
        waits: bit(3),
        requeue_after: None,
    });
    PlanSummary {
        is_new: bit(0),
        is_reconciled: !bit(0),
        is_last_started: bit(1),
        is_applied: bit(2),
        is_ours: !number.is_multiple_of(9),
        is_unrecorded: bit(4),
        has_steps: bit(5),
        has_drifted: bit(6),
        recorded: bit(7).then(|| "commit-7".to_owned()),
        requests: UserRequests {
            sync: bit(8).then(|| SyncRequest {
                at: moment().wall,
                by: String::new(),
                override_window: bit(9),
                after_fetch: bit(9),
                nodes: bit(12),
            }),
            ..UserRequests::default()
        },
        fetch: bit(9).then_some(Fetch {
            number: 1,
            until: now + Duration::from_mins(10),
        }),
        policy: SyncPolicy {
            needs_approval: bit(10),
            ..SyncPolicy::default()
        },
        blocked: (number % 11 == 5).then(Reasons::default),
        approval: bit(5).then(|| Approval {
            effects: (number % 3).to_string(),
            covered_by: None,
            missing: bit(11).then(Reasons::default),
        }),
        refused,
        ..plan()
    }
}

fn pick<T>(all: &[T], number: u64) -> Option<&T> {
    let at = number.checked_rem(all.len() as u64)?;
    all.get(usize::try_from(at).ok()?)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_invariants_hold_for_any_order_of_events(
        seed in any::<u64>(),
        events in EVENTS / 2..EVENTS * 3 / 2,
        outcome in 0..3,
    ) {
        let mut random = Rng::with_seed(seed);
        let mut world = World::new();
        for _ in 0..events {
            world.act(&mut random);
        }
        match outcome {
            0 => world.converge(),
            1 => world.end(Event::Removed),
            _ => world.end(Event::Stopped),
        }
    }
}
