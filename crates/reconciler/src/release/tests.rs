//! Tables of events with a fake clock.

mod outcomes;
mod requeue;
mod waiting;

use jiff::{SignedDuration, Timestamp};
use pleach_formats::sync::SyncPolicy;
use pleach_model::object::ObjectId;
use pleach_state::inventory::SyncRequest;

use super::*;
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

pub(super) fn target(id: u64, content: u64) -> TargetFacts {
    TargetFacts {
        id: TargetId(id),
        content: ContentId(content),
        revision: format!("commit-{content}"),
        sync: SyncPolicy {
            interval: SignedDuration::try_from(INTERVAL).unwrap(),
            ..SyncPolicy::default()
        },
        is_stalled: false,
        is_from_records: false,
        conditions: Vec::new(),
        stall: None,
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
        covers_all_objects: true,
        ..PlanSummary::default()
    }
}

/// Returns a plan that corrects drift.
fn correction() -> PlanSummary {
    PlanSummary {
        is_new: false,
        is_reconciled: true,
        has_drifted: true,
        drift: "ConfigMap/web/a: changed by ann".to_owned(),
        ..plan()
    }
}

fn reasons(text: &str) -> Reasons {
    Reasons {
        message: text.to_owned(),
        public_message: text.to_owned(),
    }
}

fn refusal(waits: bool) -> Refusal {
    Refusal {
        reasons: reasons("no"),
        waits,
        requeue_after: waits.then_some(Duration::from_secs(30)),
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
        after_fetch: false,
        nodes: false,
    }
}

impl Bench {
    fn new() -> Self {
        Self::of(target(0, 0))
    }

    fn of(target: TargetFacts) -> Self {
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

    fn fail(&mut self, is_transient: bool) {
        self.admit();
        let reasons = reasons("why");
        self.answer(Answer::Planned(Err(Failure {
            reasons,
            is_transient,
        })));
    }

    /// Answers reports until another task is awaited.
    fn report(&mut self) {
        while let Task::Report(status) = self.task() {
            let written = status.conditions.as_ref().map(|_| true);
            let is_ours = status.ownership == Ownership::Ours;
            self.answer(Answer::Reported { is_ours, written });
        }
    }

    fn executed(&mut self, outcome: ReconcileOutcome) {
        self.report();
        assert!(
            matches!(self.task(), Task::Execute { .. }),
            "{:?}",
            self.task()
        );
        let reasons = reasons("done");
        self.answer(Answer::Executed(RunSummary { outcome, reasons }));
    }

    /// Plans and executes, until the release rests.
    fn deploy(&mut self, summary: PlanSummary) {
        self.plan(summary);
        self.executed(ReconcileOutcome::Deployed);
        self.requeue();
    }

    fn requeue(&mut self) -> Wait {
        self.report();
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

    /// Answers the last report.
    fn report_last(&mut self) {
        let is_ours = true;
        let written = Some(true);
        self.answer(Answer::Reported { is_ours, written });
    }
}
