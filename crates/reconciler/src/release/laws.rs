//! Laws of a release under random orders of events, answers and clock jumps.
//!
//! `PROPTEST_CASES=5000` runs a million events.

use std::collections::BTreeMap;

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

/// An act of the environment of a release.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// The present task ends. The number selects the answer.
    Answer(u16),
    /// An answer of an earlier task arrives.
    Stale(u16),
    /// A desired state arrives.
    Target {
        content: u64,
        flags: u8,
    },
    Requested,
    Dependency,
    LookedUp(u8),
    Drift,
    /// The clock jumps by this number of seconds.
    Jump(u32),
    Tick,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        12 => any::<u16>().prop_map(Act::Answer),
        1 => any::<u16>().prop_map(Act::Stale),
        2 => (0..3_u64, 0..8_u8).prop_map(|(content, flags)| Act::Target { content, flags }),
        1 => Just(Act::Requested),
        1 => Just(Act::Dependency),
        1 => (0..3_u8).prop_map(Act::LookedUp),
        1 => Just(Act::Drift),
        1 => prop_oneof![Just(0), Just(1), Just(60), Just(3600), Just(100_000)].prop_map(Act::Jump),
        3 => Just(Act::Tick),
    ];
    prop::collection::vec(act, EVENTS)
}

/// A release with a random executor, which checks the laws.
struct World {
    release: Release,
    now: Moment,
    newest: Target,
    /// All desired states. Retained ones never prune.
    targets: BTreeMap<TargetId, (Target, bool)>,
    /// The awaited task, and the earlier ones.
    task: Option<(TaskId, Task)>,
    earlier: Vec<TaskId>,
    plans: BTreeMap<TaskId, PlanSummary>,
    lookup: Option<TaskId>,
    is_cancelled: bool,
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
        self.take(commands);
        self.check();
    }

    fn take(&mut self, commands: Vec<Command>) {
        for command in commands {
            match command {
                Command::Start(id, task) => self.begin(id, task),
                Command::Cancel => self.is_cancelled = true,
                Command::LookUp(id, _) => self.lookup = Some(id),
                Command::Retain { id, from } => {
                    let (from, _) = self.targets[&from].clone();
                    self.targets.insert(id, (Target { id, ..from }, true));
                }
                Command::Finished(_)
                | Command::Begun
                | Command::NotifyDependents
                | Command::RetainPlan(_)
                | Command::End => {}
            }
        }
    }

    fn begin(&mut self, id: TaskId, task: Task) {
        self.earlier.extend(self.task.take().map(|(id, _)| id));
        self.is_cancelled = false;
        if let Task::Execute { plan, target } = &task {
            let plan = &self.plans[plan];
            let (target, is_retained) = &self.targets[target];
            let is_stopped = plan.refused.is_some() || plan.blocked.is_some();
            assert!(!is_stopped, "a refused plan is not executed");
            let is_allowed = *is_retained || !plan.is_new || !target.is_remembered;
            assert!(is_allowed, "a record starts no upgrade");
        }
        self.task = Some((id, task));
    }

    /// Checks the laws that hold after every event.
    fn check(&self) {
        let Some((_, task)) = &self.task else {
            panic!("nothing is awaited");
        };
        match task {
            Task::Execute { target, .. } if !self.is_cancelled => {
                let (target, is_retained) = &self.targets[target];
                let is_newest = target.content == self.newest.content;
                assert!(is_newest || *is_retained, "the newest commit wins");
                let prunes = !is_retained && !target.is_held;
                assert!(
                    !prunes || !self.newest.is_held,
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

    fn act(&mut self, act: Act) {
        match act {
            Act::Answer(number) => {
                if let Some((id, task)) = self.task.clone() {
                    let answer = self.answer(id, &task, number);
                    self.on(Event::Answer(id, answer));
                }
            }
            Act::Stale(number) => {
                let at = usize::from(number) % self.earlier.len().max(1);
                if let Some(id) = self.earlier.get(at) {
                    let answers = [Answer::Ready, Answer::Planned(Ok(None)), Answer::Panicked];
                    let answer = answers[usize::from(number) % 3].clone();
                    self.on(Event::Answer(*id, answer));
                }
            }
            Act::Target { content, flags } => self.desire(content, flags),
            Act::Requested => self.on(Event::Requested),
            Act::Dependency => self.on(Event::DependencyReconciled),
            Act::LookedUp(number) => self.look_up(number),
            Act::Drift => {
                if let Some((id, Task::Wait(wait))) = self.task.clone()
                    && wait.drift_from.is_some_and(|at| at <= self.now.at)
                {
                    self.on(Event::Answer(id, Answer::Changed(drift())));
                }
            }
            Act::Jump(seconds) => self.now.at += Duration::from_secs(seconds.into()),
            Act::Tick => {
                if self.release.wake_at().is_some_and(|at| at <= self.now.at) {
                    self.on(Event::Tick);
                }
            }
        }
    }

    fn desire(&mut self, content: u64, flags: u8) {
        let id = self.release.new_target().0;
        self.newest = Target {
            is_held: flags & 1 > 0,
            is_remembered: flags & 2 > 0,
            ..target(id, content)
        };
        let newest = self.newest.clone();
        self.targets.insert(newest.id, (newest.clone(), false));
        self.on(Event::Target(Box::new(newest)));
    }

    fn look_up(&mut self, number: u8) {
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

    fn answer(&mut self, id: TaskId, task: &Task, number: u16) -> Answer {
        if number % 50 == 49 {
            return Answer::Panicked;
        }
        let failed = || {
            let reasons = Reasons::default();
            let may_pass = number.is_multiple_of(2);
            Failure { reasons, may_pass }
        };
        let is_good = number % 5 < 4;
        match task {
            Task::Admit { .. } => Answer::Admitted {
                found: Changes::default(),
                answered: u64::from(number % 3),
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
            Task::Introduce(_) | Task::Affirm(_) => {
                Answer::Recorded(if is_good { Ok(()) } else { Err(failed()) })
            }
            Task::Approve(_) => Answer::Approved((!is_good).then(Reasons::default)),
            Task::Execute { target, .. } => {
                let ends = [
                    ReconcileOutcome::Deployed,
                    ReconcileOutcome::Unchanged,
                    ReconcileOutcome::Failed,
                ];
                let end = if self.is_cancelled {
                    ReconcileOutcome::Superseded
                } else {
                    ends[usize::from(number) % 3]
                };
                if end != ReconcileOutcome::Superseded && end != ReconcileOutcome::Failed {
                    self.applied = Some(self.targets[target].0.content);
                }
                let reasons = Reasons::default();
                Answer::Executed(RunSummary { end, reasons })
            }
            Task::Tell(tell) => Answer::Told {
                is_ours: tell.ownership != Ownership::Foreign && is_good,
                written: tell.conditions.is_some().then_some(is_good),
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

fn summary(number: u16, now: Duration) -> PlanSummary {
    let bit = |at: u16| number >> at & 1 > 0;
    let refused = (number % 7 == 3).then(|| Refusal {
        reasons: Reasons::default(),
        waits: bit(3),
        pause: None,
    });
    PlanSummary {
        is_new: bit(0),
        is_reached: !bit(0),
        is_left: bit(1),
        was_there: bit(2),
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

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_laws_hold_for_any_order_of_events(acts in acts()) {
        let mut world = World::new();
        for act in acts {
            world.act(act);
        }
        world.converge();
    }
}
