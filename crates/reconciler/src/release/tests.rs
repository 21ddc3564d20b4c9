//! Tables of events with a fake clock.

use jiff::{SignedDuration, Timestamp};
use pleach_formats::file::Drift;
use pleach_formats::readiness::{Assessment, Readiness};
use pleach_formats::sync::SyncPolicy;
use pleach_formats::window::Windows;
use pleach_model::object::ObjectId;
use pleach_state::inventory::{ConditionKind, HEARTBEAT, SyncRequest};

use super::*;
use crate::health::Checked;
use crate::outcome::{ReconcileOutcome, ReconcileReport};

/// Interval of the tests.
pub(super) const INTERVAL: Duration = Duration::from_mins(5);

/// A release with a scripted executor.
struct Bench {
    release: Release,
    now: Moment,
    /// The awaited task.
    task: Option<(TaskId, Task)>,
    /// Outcomes since the last call of [`Bench::outcome`].
    finished: Vec<ReconcileReport>,
    /// Other commands since the last call of [`Bench::others`].
    others: Vec<Command>,
}

pub(super) fn target(id: u64, content: u64) -> Target {
    Target {
        id: TargetId(id),
        content: ContentId(content),
        revision: format!("commit-{content}"),
        sync: SyncPolicy {
            interval: SignedDuration::try_from(INTERVAL).unwrap(),
            ..SyncPolicy::default()
        },
        is_held: false,
        is_remembered: false,
        conditions: Vec::new(),
        hold: None,
    }
}

pub(super) fn moment() -> Moment {
    Moment {
        at: Duration::from_hours(1),
        wall: Timestamp::UNIX_EPOCH,
        random: 0.5,
    }
}

/// Returns a plan with steps for new content.
pub(super) fn plan() -> PlanSummary {
    PlanSummary {
        is_new: true,
        is_ours: true,
        has_steps: true,
        is_whole: true,
        ..PlanSummary::default()
    }
}

/// Returns a plan that corrects drift.
fn correction() -> PlanSummary {
    PlanSummary {
        is_new: false,
        is_reached: true,
        has_drifted: true,
        drift: "ConfigMap/web/a: changed by ann".to_owned(),
        ..plan()
    }
}

fn reasons(text: &str) -> Reasons {
    Reasons {
        message: text.to_owned(),
        about: text.to_owned(),
    }
}

fn refusal(waits: bool) -> Refusal {
    Refusal {
        reasons: reasons("no"),
        waits,
        pause: waits.then_some(Duration::from_secs(30)),
    }
}

fn objects() -> Changes {
    Changes {
        objects: [ObjectId::new("", "ConfigMap", Some("web"), "a")].into(),
        has_runtime: false,
    }
}

fn request(override_window: bool) -> SyncRequest {
    SyncRequest {
        at: Timestamp::UNIX_EPOCH,
        by: "ann".to_owned(),
        override_window,
    }
}

impl Bench {
    fn new() -> Self {
        Self::of(target(0, 0))
    }

    fn of(target: Target) -> Self {
        let now = moment();
        let mut release = Release::new(target, now);
        let commands = release.start();
        let mut bench = Self {
            release,
            now,
            task: None,
            finished: Vec::new(),
            others: Vec::new(),
        };
        bench.take(commands);
        bench
    }

    fn take(&mut self, commands: Vec<Command>) {
        for command in commands {
            match command {
                Command::Start(id, task) => self.task = Some((id, task)),
                Command::Finished(finished) => self.finished.push(finished.report),
                other => self.others.push(other),
            }
        }
    }

    fn on(&mut self, event: Event) {
        let commands = self.release.on(event, self.now);
        self.take(commands);
    }

    fn answer(&mut self, answer: Answer) {
        let (id, _) = self.task.clone().unwrap();
        self.on(Event::Answer(id, answer));
    }

    fn task(&self) -> &Task {
        &self.task.as_ref().unwrap().1
    }

    fn admit(&mut self) {
        assert!(
            matches!(self.task(), Task::Admit { .. }),
            "{:?}",
            self.task()
        );
        self.answer(Answer::Admitted {
            found: Changes::default(),
            answered: 0,
        });
    }

    /// Admits the release and answers its plan.
    fn plan(&mut self, summary: PlanSummary) {
        if matches!(self.task(), Task::Admit { .. }) {
            self.admit();
        }
        assert!(
            matches!(self.task(), Task::Plan { .. }),
            "{:?}",
            self.task()
        );
        self.answer(Answer::Planned(Ok(Some(Box::new(summary)))));
    }

    fn fail(&mut self, may_pass: bool) {
        self.admit();
        let reasons = reasons("why");
        self.answer(Answer::Planned(Err(Failure { reasons, may_pass })));
    }

    /// Answers reports until another task is awaited.
    fn tell(&mut self) {
        while let Task::Tell(tell) = self.task() {
            let written = tell.conditions.as_ref().map(|_| true);
            let is_ours = tell.ownership == Ownership::Ours;
            self.answer(Answer::Told { is_ours, written });
        }
    }

    fn executed(&mut self, end: ReconcileOutcome) {
        self.tell();
        assert!(
            matches!(self.task(), Task::Execute { .. }),
            "{:?}",
            self.task()
        );
        let reasons = reasons("done");
        self.answer(Answer::Executed(RunSummary { end, reasons }));
    }

    /// Plans and executes, until the release rests.
    fn deploy(&mut self, summary: PlanSummary) {
        self.plan(summary);
        self.executed(ReconcileOutcome::Deployed);
        self.rest();
    }

    fn rest(&mut self) -> Wait {
        self.tell();
        match self.task() {
            Task::Wait(wait) => wait.clone(),
            other => panic!("it does not rest: {other:?}"),
        }
    }

    fn outcome(&mut self) -> ReconcileReport {
        assert_eq!(self.finished.len(), 1, "{:?}", self.finished);
        self.finished.remove(0)
    }

    fn others(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.others)
    }

    /// Lets time pass until the next tick.
    fn tick(&mut self) -> Duration {
        let at = self.release.wake_at().unwrap();
        let waited = at.saturating_sub(self.now.at);
        self.now.at = self.now.at.max(at);
        self.on(Event::Tick);
        waited
    }

    fn is_admitting(&self) -> bool {
        matches!(self.task(), Task::Admit { .. })
    }
}

#[test]
fn a_release_is_planned_and_applied_then_reconciled_at_its_interval() {
    let mut bench = Bench::new();
    bench.deploy(plan());
    assert_eq!(bench.outcome().end, ReconcileOutcome::Deployed);
    assert!(bench.others().contains(&Command::NotifyDependents));
    assert_eq!(bench.rest().drift_from, Some(bench.now.at));
    assert_eq!(bench.tick(), INTERVAL);
    let since = bench.now.at.checked_sub(INTERVAL / 10);
    assert!(
        matches!(bench.task(), Task::Admit { needs_permit: true, since: at, .. } if *at == since)
    );
}

#[test]
fn a_plan_that_is_not_allowed_is_not_executed() {
    let closed = SyncPolicy {
        windows: Windows::recorded(&[vec![pleach_formats::file::Window {
            allow: None,
            deny: Some("00:00-24:00".to_owned()),
            time_zone: None,
        }]]),
        ..SyncPolicy::default()
    };
    let mut suspended = plan();
    suspended.requests.suspend = Some(pleach_state::inventory::Suspension {
        until: None,
        reason: String::new(),
        by: String::new(),
        at: None,
    });
    let remembered = Target {
        is_remembered: true,
        ..target(0, 0)
    };
    let cases = [
        (
            "suspended",
            suspended,
            target(0, 0),
            ReconcileOutcome::Suspended,
            None,
        ),
        (
            "remembered",
            plan(),
            remembered,
            ReconcileOutcome::Waiting,
            None,
        ),
        (
            "window",
            PlanSummary {
                policy: closed,
                ..plan()
            },
            target(0, 0),
            ReconcileOutcome::Waiting,
            Some("WindowClosed"),
        ),
        (
            "refused",
            PlanSummary {
                refused: Some(refusal(false)),
                ..plan()
            },
            target(0, 0),
            ReconcileOutcome::Refused,
            Some("Refused"),
        ),
        (
            "dependency",
            PlanSummary {
                refused: Some(refusal(true)),
                ..plan()
            },
            target(0, 0),
            ReconcileOutcome::Waiting,
            Some("DependencyNotReady"),
        ),
        (
            "blocked",
            PlanSummary {
                blocked: Some(reasons("no")),
                ..plan()
            },
            target(0, 0),
            ReconcileOutcome::Failed,
            Some("Blocked"),
        ),
    ];
    for (case, summary, target, end, reason) in cases {
        let mut bench = Bench::of(target);
        bench.plan(summary);
        let wait = bench.rest();
        let outcome = bench.outcome();
        assert_eq!(outcome.end, end, "{case}");
        let condition = outcome.condition.map(|condition| condition.reason);
        assert_eq!(condition.as_deref(), reason, "{case}");
        assert_eq!(wait.drift_from, None, "{case}");
        assert_eq!(wait.for_dependencies, case == "dependency", "{case}");
    }
}

#[test]
fn failures_back_off_until_a_new_commit() {
    let mut bench = Bench::new();
    for seconds in [2, 4, 8] {
        bench.fail(true);
        assert_eq!(bench.outcome().end, ReconcileOutcome::Failed);
        bench.rest();
        assert_eq!(bench.tick(), Duration::from_secs(seconds));
    }
    bench.on(Event::Target(Box::new(target(9, 9))));
    bench.fail(true);
    bench.rest();
    assert_eq!(bench.tick(), Duration::from_secs(2));
}

#[test]
fn a_lasting_failure_is_reported_the_second_time() {
    for (may_pass, expected) in [(false, Some(ConditionKind::Stalled)), (true, None)] {
        let mut bench = Bench::new();
        bench.fail(may_pass);
        assert_eq!(bench.outcome().condition, None);
        bench.rest();
        bench.tick();
        bench.fail(may_pass);
        let kind = bench.outcome().condition.map(|one| one.kind);
        assert_eq!(kind, expected);
        // No plan verified the record.
        let Task::Tell(tell) = bench.task() else {
            panic!()
        };
        let ask = if may_pass {
            Ownership::Foreign
        } else {
            Ownership::Ask
        };
        assert_eq!(tell.ownership, ask);
    }
}

#[test]
fn a_newer_commit_cancels_the_run_only_if_it_changes_the_release() {
    let held = Target {
        is_held: true,
        ..target(8, 0)
    };
    for (case, newer, is_cancelled) in [
        ("same content", target(8, 0), false),
        ("other content", target(8, 1), true),
        ("stalled", held, true),
    ] {
        let mut bench = Bench::new();
        bench.plan(plan());
        bench.tell();
        bench.others();
        for _ in 0..2 {
            bench.on(Event::Target(Box::new(newer.clone())));
        }
        let cancels = if is_cancelled {
            vec![Command::Cancel]
        } else {
            Vec::new()
        };
        assert_eq!(bench.others(), cancels, "{case}");
        bench.executed(ReconcileOutcome::Superseded);
        bench.tell();
        let admits = matches!(bench.task(), Task::Admit { target, .. } if *target == newer.id);
        assert!(admits, "{case}: {:?}", bench.task());
    }
}

#[test]
fn a_run_that_was_planned_for_an_old_commit_is_cancelled_at_once() {
    let mut bench = Bench::new();
    bench.admit();
    bench.on(Event::Target(Box::new(target(8, 1))));
    bench.plan(plan());
    bench.tell();
    assert!(bench.others().ends_with(&[Command::Cancel]));
}

#[test]
fn answers_of_replaced_tasks_are_ignored() {
    let mut bench = Bench::new();
    let (old, _) = bench.task.clone().unwrap();
    bench.on(Event::Target(Box::new(target(8, 1))));
    let (new, _) = bench.task.clone().unwrap();
    assert_ne!(old, new);
    bench.on(Event::Answer(old, Answer::Ready));
    assert!(bench.is_admitting());
    assert!(bench.finished.is_empty());
}

#[test]
fn drift_is_corrected_without_a_permit_and_later_if_it_is_none() {
    let mut bench = Bench::new();
    bench.deploy(plan());
    bench.outcome();
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
        bench.answer(Answer::Changed(objects()));
        assert!(matches!(
            bench.task(),
            Task::Admit {
                needs_permit: false,
                ..
            }
        ));
        bench.admit();
        let depth = Depth::Changed(objects().objects);
        assert!(matches!(bench.task(), Task::Plan { depth: now, .. } if *now == depth));
        // More than the changed objects is needed.
        bench.answer(Answer::Planned(Ok(None)));
        assert!(matches!(
            bench.task(),
            Task::Plan {
                depth: Depth::All { .. },
                ..
            }
        ));
        bench.plan(PlanSummary {
            has_steps: false,
            ..correction()
        });
        bench.executed(ReconcileOutcome::Unchanged);
        assert_eq!(bench.outcome().end, ReconcileOutcome::Unchanged);
        let wait = bench.rest();
        assert_eq!(
            wait.drift_from,
            Some(bench.now.at + Duration::from_secs(seconds))
        );
    }
    bench.answer(Answer::Changed(objects()));
    bench.deploy(correction());
    let outcome = bench.outcome();
    assert!(outcome.is_correction);
    assert_eq!(outcome.message, correction().drift);
    assert_eq!(bench.rest().drift_from, Some(bench.now.at));
}

#[test]
fn drift_is_only_reported_if_the_policy_says_so() {
    let mut target = target(0, 0);
    target.sync.drift = Drift::Report;
    let mut bench = Bench::of(target);
    bench.plan(correction());
    assert_eq!(bench.outcome().end, ReconcileOutcome::Drifted);
    bench.rest();
    bench.tick();
    // The record names another commit.
    bench.plan(PlanSummary {
        is_of_another_commit: true,
        ..correction()
    });
    assert!(matches!(bench.task(), Task::Affirm(_)));
    bench.answer(Answer::Recorded(Ok(())));
    assert_eq!(bench.outcome().end, ReconcileOutcome::Drifted);
}

/// Brings a release to commit 0, and lets a refused commit 1 wait behind it.
fn waiting() -> Bench {
    let mut bench = Bench::new();
    bench.deploy(plan());
    bench.outcome();
    bench.on(Event::Target(Box::new(target(90, 1))));
    bench.plan(PlanSummary {
        refused: Some(refusal(false)),
        is_left: true,
        ..plan()
    });
    bench
}

#[test]
fn the_last_applied_revision_is_retained_while_a_newer_one_waits() {
    let there = PlanSummary {
        was_there: true,
        ..correction()
    };
    let refused = PlanSummary {
        refused: Some(refusal(false)),
        ..there.clone()
    };
    for (case, summary, expected) in [
        ("drift", Some(there), Some(ReconcileOutcome::Deployed)),
        ("refused", Some(refused), Some(ReconcileOutcome::Refused)),
        ("another state", Some(correction()), None),
        ("unplanned", None, Some(ReconcileOutcome::Failed)),
    ] {
        let mut bench = waiting();
        let is_retained = |one: &Command| {
            matches!(
                one,
                Command::Retain {
                    from: TargetId(0),
                    ..
                }
            )
        };
        assert!(bench.others().iter().any(is_retained), "{case}");
        if let Some(summary) = summary {
            bench.plan(summary);
        } else {
            let reasons = reasons("why");
            let may_pass = true;
            bench.answer(Answer::Planned(Err(Failure { reasons, may_pass })));
        }
        bench.tell();
        if matches!(bench.task(), Task::Execute { .. }) {
            bench.executed(ReconcileOutcome::Deployed);
        }
        let outcome = bench.outcome();
        assert_eq!(outcome.end, ReconcileOutcome::Refused, "{case}");
        let kept = outcome.kept.map(|kept| (kept.revision, kept.report.end));
        let expected = expected.map(|end| ("commit-0".to_owned(), end));
        assert_eq!(kept, expected, "{case}");
    }
}

#[test]
fn a_correction_that_can_unblock_the_waiting_revision_is_followed_by_a_retry() {
    let mut bench = waiting();
    let there = || PlanSummary {
        was_there: true,
        ..correction()
    };
    let refused = || PlanSummary {
        refused: Some(refusal(false)),
        is_left: true,
        ..plan()
    };
    bench.plan(there());
    bench.executed(ReconcileOutcome::Deployed);
    bench.rest();
    assert_eq!(bench.tick(), Duration::from_secs(1));
    // Once only.
    bench.plan(refused());
    bench.plan(there());
    bench.executed(ReconcileOutcome::Deployed);
    bench.rest();
    assert_eq!(bench.tick(), INTERVAL);
}

#[test]
fn a_user_request_stops_the_correction_of_the_retained_revision() {
    let mut bench = waiting();
    bench.plan(PlanSummary {
        was_there: true,
        ..correction()
    });
    bench.tell();
    bench.others();
    bench.on(Event::Requested);
    assert_eq!(bench.others(), [Command::Cancel]);
    bench.executed(ReconcileOutcome::Superseded);
    bench.tell();
    assert!(bench.is_admitting());
}

#[test]
fn the_recorded_commit_is_looked_up_after_a_restart() {
    let recorded = || PlanSummary {
        refused: Some(refusal(false)),
        is_left: true,
        recorded: Some("commit-0".to_owned()),
        ..plan()
    };
    let lookup = |commands: Vec<Command>| {
        let mut all = commands.into_iter();
        all.find_map(|one| match one {
            Command::LookUp(id, commit) => Some((id, commit)),
            _ => None,
        })
    };
    let mut bench = Bench::of(target(0, 1));
    bench.plan(recorded());
    let (id, commit) = lookup(bench.others()).unwrap();
    assert_eq!(commit, "commit-0");
    assert_eq!(bench.outcome().kept, None);
    bench.rest();
    bench.on(Event::LookedUp(id, Found::Target(Box::new(target(70, 0)))));
    assert!(bench.is_admitting());
    bench.plan(recorded());
    assert!(bench.others().contains(&Command::Retain {
        id: TargetId(bench.release.next - 2),
        from: TargetId(70),
    }));
    bench.plan(correction());
    bench.rest();
    // It is used once, and no other lookup follows.
    assert_eq!(lookup(bench.others()), None);

    // A commit that does not count is looked up again after a newer one arrived.
    let mut bench = Bench::of(target(0, 1));
    bench.plan(recorded());
    bench.rest();
    let (id, _) = lookup(bench.others()).unwrap();
    bench.on(Event::LookedUp(id, Found::Nothing));
    bench.tick();
    bench.plan(recorded());
    bench.rest();
    assert_eq!(lookup(bench.others()), None);
    bench.on(Event::Target(Box::new(target(80, 2))));
    bench.plan(recorded());
    assert!(lookup(bench.others()).is_some());
}

fn unapproved_plan(effects: &str, covered_by: Option<TaskId>) -> PlanSummary {
    PlanSummary {
        policy: SyncPolicy {
            needs_approval: true,
            ..SyncPolicy::default()
        },
        approval: Some(Approval {
            effects: effects.to_owned(),
            covered_by,
            missing: Some(reasons("waits")),
        }),
        ..plan()
    }
}

#[test]
fn a_plan_waits_for_approval_and_drift_does_not_query_the_forge() {
    let mut bench = Bench::new();
    bench.plan(PlanSummary {
        is_unrecorded: true,
        ..unapproved_plan("a", None)
    });
    // The record comes first, so that an approval can be written to it.
    assert!(matches!(bench.task(), Task::Introduce(_)));
    bench.answer(Answer::Recorded(Ok(())));
    assert!(matches!(bench.task(), Task::Plan { since: None, .. }));
    let (plan, _) = bench.task.clone().unwrap();
    bench.plan(unapproved_plan("a", None));
    assert!(matches!(bench.task(), Task::Approve(id) if *id == plan));
    bench.answer(Answer::Approved(Some(reasons("missing"))));
    assert!(bench.others().contains(&Command::RetainPlan(plan)));
    let outcome = bench.outcome();
    assert_eq!(outcome.end, ReconcileOutcome::Unapproved);
    bench.rest();

    // A change of an object: the same effects are not queried again.
    bench.release.changes = objects();
    bench.tick();
    bench.plan(unapproved_plan("a", None));
    assert_eq!(bench.outcome().message, "missing");
    bench.rest();

    // An approved plan that does less is executed.
    bench.tick();
    let awaited = bench.release.awaited.as_ref().unwrap().plan;
    let mut approved = unapproved_plan("b", Some(awaited));
    approved.requests.approved = Some("a".to_owned());
    bench.deploy(approved);
    assert_eq!(bench.outcome().end, ReconcileOutcome::Deployed);
}

#[test]
fn a_request_stays_open_until_its_commits_have_arrived() {
    for (override_window, answered, is_open) in
        [(true, 6, true), (true, 7, false), (false, 6, false)]
    {
        let mut bench = Bench::new();
        let mut summary = plan();
        summary.requests.sync = Some(request(override_window));
        summary.fetch = Some(Fetch {
            number: 7,
            until: bench.now.at + Duration::from_mins(10),
        });
        bench.answer(Answer::Admitted {
            found: Changes::default(),
            answered,
        });
        bench.plan(summary);
        bench.executed(ReconcileOutcome::Deployed);
        let fulfilled = bench.outcome().request;
        assert_eq!(fulfilled.is_none(), is_open, "{override_window} {answered}");
        assert_eq!(
            bench.rest().for_fetch,
            is_open,
            "{override_window} {answered}"
        );
    }
}

#[test]
fn a_dependency_triggers_only_a_release_that_waits_for_it() {
    let mut bench = Bench::new();
    bench.on(Event::DependencyReconciled);
    bench.plan(PlanSummary {
        refused: Some(refusal(true)),
        ..plan()
    });
    bench.tell();
    // The reconcile could have read the dependency before.
    assert!(bench.is_admitting());
    let mut bench = Bench::new();
    bench.deploy(plan());
    bench.on(Event::DependencyReconciled);
    assert!(matches!(bench.task(), Task::Wait(_)));
}

#[test]
fn conditions_are_written_once_per_heartbeat() {
    let mut bench = Bench::new();
    bench.deploy(plan());
    bench.rest();
    let mut written = 0;
    let end = bench.now.at + HEARTBEAT * 4;
    while bench.now.at < end {
        match bench.task() {
            Task::Wait(_) => {
                bench.tick();
            }
            Task::Tell(tell) => {
                let is_written = tell.conditions.is_some();
                written += usize::from(is_written);
                let is_ours = true;
                let written = is_written.then_some(true);
                bench.answer(Answer::Told { is_ours, written });
            }
            Task::Execute { .. } => bench.executed(ReconcileOutcome::Unchanged),
            _ => bench.plan(PlanSummary {
                has_steps: false,
                ..correction()
            }),
        }
    }
    assert!((3..=5).contains(&written), "{written}");
}

#[test]
fn an_object_that_is_not_ready_degrades_the_release() {
    let mut bench = Bench::new();
    bench.deploy(plan());
    bench.rest();
    let Changes { objects, .. } = objects();
    let id = objects.first().unwrap().clone();
    bench.answer(Answer::Written(objects.clone()));
    assert!(matches!(bench.task(), Task::Check { objects: checked, .. } if *checked == objects));
    let failed = Assessment::new(Readiness::Failed, "it crashed");
    bench.answer(Answer::Checked(vec![(id, Checked::Assessed(failed))]));
    let Task::Tell(tell) = bench.task() else {
        panic!()
    };
    assert_eq!(tell.is_degraded, Some(true));
    assert_eq!(tell.notifications[0].item.reason, "Degraded");
    let kind = tell.conditions.as_ref().and_then(|all| all.last());
    assert_eq!(kind.map(|one| one.kind), Some(ConditionKind::Degraded));
    // It goes on to wait for the same time.
    let until = bench.release.wake_at();
    assert_eq!(until, None);
    bench.rest();
    assert_eq!(bench.release.wake_at(), Some(bench.now.at + INTERVAL));
}

#[test]
fn a_run_ends_before_the_release_does() {
    for event in [Event::Removed, Event::Stopped] {
        let mut bench = Bench::new();
        bench.deploy(plan());
        bench.on(event.clone());
        assert!(bench.others().ends_with(&[Command::End]), "{event:?}");

        let mut bench = Bench::new();
        bench.plan(plan());
        bench.tell();
        bench.others();
        bench.on(event.clone());
        let is_removed = event == Event::Removed;
        let cancels = if is_removed {
            vec![Command::Cancel]
        } else {
            Vec::new()
        };
        assert_eq!(bench.others(), cancels, "{event:?}");
        let end = if is_removed {
            ReconcileOutcome::Superseded
        } else {
            ReconcileOutcome::Interrupted
        };
        bench.executed(end);
        assert_eq!(bench.outcome().end, end);
        if is_removed {
            bench.tell_last();
        }
        assert!(bench.others().ends_with(&[Command::End]), "{event:?}");
    }
}

impl Bench {
    /// Answers the last report.
    fn tell_last(&mut self) {
        let is_ours = true;
        let written = Some(true);
        self.answer(Answer::Told { is_ours, written });
    }
}

#[test]
fn a_panic_fails_the_reconcile_and_everything_is_planned_again() {
    let mut bench = Bench::new();
    bench.deploy(plan());
    bench.outcome();
    bench.tick();
    bench.admit();
    bench.answer(Answer::Panicked);
    let outcome = bench.outcome();
    assert_eq!(
        (outcome.end, outcome.about.as_str()),
        (ReconcileOutcome::Failed, "internal")
    );
    assert!(bench.release.reached.is_none());
    bench.rest();
    assert_eq!(bench.tick(), Duration::from_secs(2));
}
