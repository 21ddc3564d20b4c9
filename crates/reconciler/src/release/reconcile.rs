//! A reconcile: plan, admit, execute.

use std::time::Duration;

use pleach_formats::file::Drift;
use pleach_state::inventory::{Condition, ConditionKind, DEPENDENCY_NOT_READY, HEARTBEAT};

use super::{
    Answer, Approval, AwaitedApproval, Changes, Command, Depth, Ownership, Phase, PlanSummary,
    Reasons, Release, RunSummary, StatusReport, TargetFacts, Task, TaskId, VERIFY,
};
use crate::Moment;
use crate::outcome::{
    ReconcileOutcome, ReconcileReport, is_window_closed, panicked, plan_failed, suspended,
    unapproved, window_closed,
};

/// Message for a drifted release whose last good commit is only known from records.
const OUT_OF_SYNC: &str =
    "the newest commit cannot be synced, and the release differs from the last good commit";
/// Condition reason of a release with nodes that fell behind its version.
const NODES_BEHIND: &str = "NodesBehind";

/// A reconcile in progress.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub(super) struct Work {
    pub(super) desired: TargetFacts,
    pub(super) step: Step,
    /// The changed objects that triggered it.
    pub(super) changes: Changes,
    pub(super) started: Duration,
    /// Sequence number of the last fetch that `desired` answers.
    pub(super) answered: u64,
    /// Whether only changes of objects triggered it.
    by_change: bool,
    /// Whether every object gets a dry run.
    pub(super) verify: bool,
    /// The newest plan.
    plan: TaskId,
    pub(super) summary: Box<PlanSummary>,
    /// Facts of the first plan, about the state that waits behind it.
    pub(super) is_last_started: bool,
    pub(super) recorded: Option<String>,
    pub(super) fetch: Option<super::Fetch>,
    /// Outcome for the desired state, if it waits while another one is retained.
    pub(super) waiting: Option<ReconcileReport>,
    /// The state that is retained meanwhile.
    pub(super) retained: Option<TargetFacts>,
    /// Conditions that are being written before the run.
    conditions: Vec<Condition>,
    is_cancelled: bool,
}

/// Awaited task of a reconcile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Queue,
    Plan,
    CreateRecord,
    /// A plan after the record was created.
    Replan,
    Approve,
    /// The plan of the retained state.
    PlanRetained,
    RecordRevision,
    /// Conditions are written before the run.
    WriteConditions,
    Execute,
}

impl Work {
    pub(super) fn new(desired: TargetFacts, changes: Changes) -> Self {
        Self {
            desired,
            step: Step::Queue,
            changes,
            started: Duration::ZERO,
            answered: 0,
            by_change: false,
            verify: false,
            plan: TaskId(0),
            summary: Box::default(),
            is_last_started: false,
            recorded: None,
            fetch: None,
            waiting: None,
            retained: None,
            conditions: Vec::new(),
            is_cancelled: false,
        }
    }

    /// Returns the state that is planned and applied.
    fn target(&self) -> &TargetFacts {
        self.retained.as_ref().unwrap_or(&self.desired)
    }
}

impl Release {
    /// Handles the answer to the present task of a reconcile.
    pub(super) fn on_work(&mut self, mut work: Work, answer: Answer, now: Moment) {
        match (work.step, answer) {
            (Step::Queue, Answer::Admitted { found, answered }) => {
                work.answered = answered;
                self.on_admitted(work, found, now);
            }
            (Step::Plan, Answer::Planned(Ok(Some(summary)))) => {
                work.summary = summary;
                self.on_planned(work, now);
            }
            (Step::Plan, Answer::Planned(Ok(None))) => {
                let depth = all(work.verify);
                self.plan(work, Step::Plan, depth);
            }
            (Step::Plan, Answer::Planned(Err(failure)))
            | (Step::RecordRevision, Answer::Recorded(Err(failure))) => {
                let report = plan_failed(&failure, self.failures);
                self.finish(work, report, now);
            }
            (Step::CreateRecord, Answer::Recorded(Ok(()))) => {
                self.reported_conditions = None;
                // Shared answers from before do not contain the record.
                self.since = None;
                let depth = all(work.verify);
                self.plan(work, Step::Replan, depth);
            }
            (Step::CreateRecord, Answer::Recorded(Err(failure)))
            | (Step::Replan, Answer::Planned(Err(failure))) => {
                let failed =
                    ReconcileReport::with_reasons(ReconcileOutcome::Failed, &failure.reasons);
                self.retain(work, failed, now);
            }
            (Step::Replan, Answer::Planned(Ok(Some(summary)))) => {
                work.summary = summary;
                work.fetch = work.summary.fetch;
                self.admit(work, now);
            }
            (Step::Approve, Answer::Approved(missing)) => match missing {
                None => self.admitted(work, now),
                Some(missing) => self.await_approval(work, missing, now),
            },
            (Step::PlanRetained, Answer::Planned(planned)) => {
                self.on_retained_plan(work, planned, now);
            }
            (Step::RecordRevision, Answer::Recorded(Ok(()))) => {
                self.reported_conditions = None;
                let report = reported(&work);
                self.done(work, report, now);
            }
            (Step::WriteConditions, Answer::Reported { written, .. }) => {
                let conditions = std::mem::take(&mut work.conditions);
                self.was_written(conditions, written, now);
                self.execute(work);
            }
            (Step::Execute, Answer::Executed(run)) => self.on_executed(work, run, now),
            // The task panicked, or its answer is of another kind.
            (_, _) => self.fail(work, now),
        }
    }

    /// Ends a reconcile after a panic. State that it could have left inconsistent is reset.
    fn fail(&mut self, mut work: Work, now: Moment) {
        self.reconciled = None;
        self.lookup = None;
        self.awaited = None;
        self.reported_conditions = None;
        self.is_partly_applied = true;
        work.retained = None;
        self.finish(work, panicked(), now);
    }

    pub(super) fn plan(&mut self, mut work: Work, step: Step, depth: Depth) {
        work.step = step;
        work.plan = self.run(Task::Plan {
            target: work.target().id,
            depth,
            since: self.since,
        });
        self.phase = Phase::Working(Box::new(work));
    }

    fn await_step(&mut self, mut work: Work, step: Step, task: Task) {
        work.step = step;
        self.run(task);
        self.phase = Phase::Working(Box::new(work));
    }

    fn on_admitted(&mut self, mut work: Work, found: Changes, now: Moment) {
        work.started = now.at;
        if !work.changes.objects.is_empty() {
            // Add changes that arrived while waiting for the slot.
            work.changes.extend(found);
        }
        self.commands.push(Command::Started);
        work.verify = now.at >= self.verify_at;
        let Changes {
            objects,
            has_runtime,
        } = &work.changes;
        // A new runtime object needs a plan of all objects.
        work.by_change = !objects.is_empty() && !work.verify && !has_runtime;
        let is_last_reconciled = self.is_last_reconciled(&work.desired);
        self.was_reconciled = !self.is_partly_applied && is_last_reconciled;
        let corrects = work.desired.sync.drift == Drift::Correct;
        let depth = if work.by_change && is_last_reconciled && corrects {
            Depth::Changed(objects.clone())
        } else {
            all(work.verify)
        };
        self.plan(work, Step::Plan, depth);
    }

    fn on_planned(&mut self, mut work: Work, now: Moment) {
        let summary = &mut work.summary;
        self.was_reconciled = !summary.is_new && (self.was_reconciled || summary.is_reconciled);
        self.is_ours = summary.is_ours;
        if self.is_ours && self.health.restore(summary.degraded.take()) {
            self.notification_state.set_degraded();
        }
        if work.verify {
            self.health.request_full_check();
        }
        self.contended = std::mem::take(&mut summary.contended);
        if summary.covers_all_objects {
            self.nodes_behind = std::mem::take(&mut summary.nodes_behind);
        }
        work.is_last_started = summary.is_last_started;
        work.recorded = summary.recorded.take();
        work.fetch = summary.fetch;
        self.admit(work, now);
    }

    /// Executes a plan, if it can be executed now.
    fn admit(&mut self, work: Work, now: Moment) {
        let summary = &work.summary;
        if let Some(suspension) = summary.requests.suspended(now.wall) {
            let report = suspended(suspension, now.wall);
            return self.finish(work, report, now);
        }
        // Maintaining the reconciled state needs neither a window nor an approval.
        let stopped = if summary.is_new && work.desired.is_from_records {
            let report = ReconcileReport::new(ReconcileOutcome::Waiting, OUT_OF_SYNC);
            Some(report.with_public_message(OUT_OF_SYNC))
        } else if summary.is_new
            && is_window_closed(&summary.policy.windows, &summary.requests, now.wall)
        {
            let windows = &summary.policy.windows;
            Some(window_closed(windows, &summary.requests, now.wall))
        } else {
            refused(summary)
        };
        match stopped {
            Some(report) => self.retain(work, report, now),
            None if !summary.is_new || !summary.policy.needs_approval => self.admitted(work, now),
            None if summary.is_unrecorded && summary.has_steps && work.step == Step::Plan => {
                // Create the record first, so that an approval can be written to it.
                let task = Task::CreateRecord(work.plan);
                self.await_step(work, Step::CreateRecord, task);
            }
            None => self.approve(work, now),
        }
    }

    /// Continues if the plan is approved, or queries the forge.
    fn approve(&mut self, work: Work, now: Moment) {
        let Some(Approval {
            effects,
            covered_by,
            missing: Some(_),
        }) = &work.summary.approval
        else {
            return self.admitted(work, now);
        };
        let awaited = self.awaited.as_ref();
        let approved = work.summary.requests.approved.as_ref();
        // The new plan can do less, because drift can have disappeared meanwhile.
        let is_approved = awaited.is_some_and(|awaited| {
            *covered_by == Some(awaited.plan) && approved == Some(&awaited.effects)
        });
        if is_approved {
            return self.admitted(work, now);
        }
        let is_known = |awaited: &&AwaitedApproval| {
            awaited.revision == work.desired.revision && awaited.effects == *effects
        };
        // Drift must not cause requests to the forge.
        let known = awaited.filter(|awaited| work.by_change && is_known(awaited));
        if let Some(missing) = known.map(|known| known.missing.clone()) {
            return self.await_approval(work, missing, now);
        }
        let task = Task::Approve(work.plan);
        self.await_step(work, Step::Approve, task);
    }

    fn await_approval(&mut self, work: Work, missing: Reasons, now: Moment) {
        let report = unapproved(&missing);
        let approval = work.summary.approval.as_ref();
        self.awaited = approval.map(|approval| AwaitedApproval {
            plan: work.plan,
            revision: work.desired.revision.clone(),
            effects: approval.effects.clone(),
            missing,
        });
        self.commands.push(Command::RetainPlan(work.plan));
        self.retain(work, report, now);
    }

    /// Executes an allowed plan, unless errors block all of its steps.
    fn admitted(&mut self, work: Work, now: Moment) {
        match blocked(&work.summary) {
            Some(report) => self.retain(work, report, now),
            None => self.prepare(work, now),
        }
    }

    /// Reports the conditions before the run, because the stall can be over and the run can take
    /// long.
    pub(super) fn prepare(&mut self, mut work: Work, now: Moment) {
        if work.verify {
            self.verify_at = now.at + VERIFY;
        }
        let summary = &work.summary;
        if summary.has_steps && work.retained.is_none() {
            // A remainder of the plan needs a new approval.
            self.awaited = None;
        }
        let only_reports = work.target().sync.drift == Drift::Report;
        if only_reports && summary.is_reconciled && !summary.is_new && summary.has_drifted {
            if summary.is_of_another_commit && work.retained.is_none() {
                let task = Task::RecordRevision(work.plan);
                return self.await_step(work, Step::RecordRevision, task);
            }
            let report = reported(&work);
            return self.done(work, report, now);
        }
        let of_environment = &work.desired.conditions;
        let conditions = match &work.waiting {
            Some(waiting) => waiting.conditions(of_environment),
            None => of_environment.clone(),
        };
        let conditions = self.with_health(conditions, now);
        if !self.must_write(&conditions, now) {
            return self.execute(work);
        }
        let status = StatusReport {
            ownership: Ownership::Ours,
            conditions: Some(conditions.clone()),
            unless: Some(work.plan),
            fulfilled: None,
            notifications: Vec::new(),
            contended: None,
            is_degraded: None,
        };
        work.conditions = conditions;
        self.await_step(work, Step::WriteConditions, Task::Report(Box::new(status)));
    }

    fn execute(&mut self, work: Work) {
        let task = Task::Execute {
            plan: work.plan,
            target: work.target().id,
        };
        self.await_step(work, Step::Execute, task);
        self.cancel_obsolete_run();
    }

    /// Cancels the run if a newer state is desired, or if a user request could unblock a waiting
    /// one.
    pub(super) fn cancel_obsolete_run(&mut self) {
        let Phase::Working(work) = &mut self.phase else {
            return;
        };
        let (newest, desired) = (&self.target, &work.desired);
        // Objects of a stalled release are never pruned.
        let is_unaffected =
            newest.is_stalled == desired.is_stalled && newest.content == desired.content;
        let is_unblocked = self.is_requested && work.retained.is_some();
        let is_obsolete = self.is_gone || !is_unaffected || is_unblocked;
        if work.step == Step::Execute && is_obsolete && !work.is_cancelled {
            work.is_cancelled = true;
            self.commands.push(Command::Cancel);
        }
    }

    fn on_executed(&mut self, work: Work, run: RunSummary, now: Moment) {
        let RunSummary { outcome, reasons } = run;
        let summary = &work.summary;
        let mut report = ReconcileReport::with_reasons(outcome, &reasons);
        // Notifications about a drift correction name the drift.
        if outcome == ReconcileOutcome::Deployed && self.was_reconciled && !summary.drift.is_empty()
        {
            report.is_correction = true;
            report.message.clone_from(&summary.drift);
        }
        if outcome != ReconcileOutcome::Unchanged {
            // The record can have been recreated.
            self.reported_conditions = None;
        }
        if outcome == ReconcileOutcome::Deployed && summary.covers_all_objects && summary.has_steps
        {
            // The run waited for all objects.
            self.health.reset();
        }
        if !matches!(
            outcome,
            ReconcileOutcome::Superseded | ReconcileOutcome::Interrupted
        ) {
            report.request.clone_from(&summary.requests.sync);
        }
        self.record_outcome(&work, outcome);
        self.done(work, report, now);
    }

    /// Records the outcome of a run. Notifies dependent releases if it succeeded.
    fn record_outcome(&mut self, work: &Work, outcome: ReconcileOutcome) {
        let target = work.target();
        if !matches!(
            outcome,
            ReconcileOutcome::Deployed | ReconcileOutcome::Unchanged
        ) {
            // Parts can be applied, so reverting to the previous state is no drift correction.
            self.is_partly_applied |= !self.is_last_reconciled(target);
            return;
        }
        self.is_partly_applied = false;
        let before = self
            .reconciled
            .as_ref()
            .map(|reconciled| &reconciled.revision);
        if outcome == ReconcileOutcome::Deployed || before != Some(&target.revision) {
            self.commands.push(Command::NotifyDependents);
        }
        if work.retained.is_none() {
            self.awaited = None;
        }
        self.reconciled = Some(target.clone());
        self.lookup = None;
    }

    /// Ends a reconcile with the outcome for the state that was planned last.
    pub(super) fn done(&mut self, work: Work, report: ReconcileReport, now: Moment) {
        if work.waiting.is_some() {
            self.finish_waiting(work, Some(report), now);
        } else {
            self.finish(work, report, now);
        }
    }

    /// Returns whether the same content was the last to be reconciled.
    fn is_last_reconciled(&self, target: &TargetFacts) -> bool {
        let reconciled = self.reconciled.as_ref();
        reconciled.is_some_and(|reconciled| reconciled.content == target.content)
    }

    /// Adds the conditions about readiness and about nodes that fell behind, if any.
    pub(super) fn with_health(
        &self,
        mut conditions: Vec<Condition>,
        now: Moment,
    ) -> Vec<Condition> {
        conditions.extend(self.health.condition(now.at));
        let has_drifted = |one: &Condition| one.kind == ConditionKind::Drifted;
        if !self.nodes_behind.is_empty() && !conditions.iter().any(has_drifted) {
            conditions.push(Condition {
                kind: ConditionKind::Drifted,
                reason: NODES_BEHIND.to_owned(),
                message: self.nodes_behind.clone(),
            });
        }
        conditions
    }

    /// Returns whether these conditions are not yet on the record, or a heartbeat is due.
    pub(super) fn must_write(&self, conditions: &[Condition], now: Moment) -> bool {
        now.at >= self.last_heartbeat + HEARTBEAT
            || self.reported_conditions.as_deref() != Some(conditions)
    }

    /// Records the result of a report. After a failure, the next one repeats it.
    pub(super) fn was_written(
        &mut self,
        conditions: Vec<Condition>,
        written: Option<bool>,
        now: Moment,
    ) {
        if written.is_some() {
            self.last_heartbeat = now.at;
        }
        self.reported_conditions = (written != Some(false)).then_some(conditions);
    }
}

pub(super) fn all(verify: bool) -> Depth {
    Depth::All { verify }
}

/// Returns the outcome of a refused plan, or `None` if the plan is allowed.
pub(super) fn refused(summary: &PlanSummary) -> Option<ReconcileReport> {
    let refusal = summary.refused.as_ref()?;
    if refusal.waits {
        let report = ReconcileReport::with_reasons(ReconcileOutcome::Waiting, &refusal.reasons);
        return Some(ReconcileReport {
            requeue_after: refusal.requeue_after,
            waits: true,
            ..report.with_condition(ConditionKind::Waiting, DEPENDENCY_NOT_READY)
        });
    }
    let report = ReconcileReport::with_reasons(ReconcileOutcome::Refused, &refusal.reasons);
    Some(ReconcileReport {
        request: summary.requests.sync.clone(),
        ..report.with_condition(ConditionKind::Stalled, "Refused")
    })
}

/// Returns the outcome if no step of a plan can be executed, or `None`. No run records that.
pub(super) fn blocked(summary: &PlanSummary) -> Option<ReconcileReport> {
    let reasons = summary.blocked.as_ref()?;
    let report = ReconcileReport::with_reasons(ReconcileOutcome::Failed, reasons);
    Some(ReconcileReport {
        request: summary.requests.sync.clone(),
        ..report.with_condition(ConditionKind::Stalled, "Blocked")
    })
}

/// Returns the outcome for drift that is only reported.
fn reported(work: &Work) -> ReconcileReport {
    let summary = &work.summary;
    let report = ReconcileReport::new(ReconcileOutcome::Drifted, summary.drift.clone());
    ReconcileReport {
        request: summary.requests.sync.clone(),
        ..report.with_condition(ConditionKind::Drifted, "ChangedByOthers")
    }
}
