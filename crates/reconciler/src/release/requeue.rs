//! Reports after a reconcile, and the wait for the next one.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::SignedDuration;
use pleach_model::object::ObjectId;
use pleach_state::inventory::{Condition, HEARTBEAT, SyncRequest};

use super::reconcile::Work;
use super::{
    Answer, Command, Finished, LookupState, Notification, Ownership, Phase, Release, StatusReport,
    TargetFacts, Task, Wait,
};
use crate::outcome::{ReconcileOutcome, ReconcileReport};
use crate::state_changes::Notice;
use crate::{Moment, backoff};

/// Delay after a change that required no action. It doubles with each further one.
const DEBOUNCE: Duration = Duration::from_secs(1);
/// Longest such delay.
const MAX_DEBOUNCE: Duration = Duration::from_mins(1);
/// Interval of an environment whose own is no valid duration.
const INTERVAL: Duration = Duration::from_mins(15);

/// The wait for the next reconcile.
#[derive(Debug)]
pub(super) struct Requeue {
    pub(super) desired: TargetFacts,
    /// The state that was retained while `desired` waits.
    pub(super) retained: Option<TargetFacts>,
    report: ReconcileReport,
    /// Time of the next reconcile without an event.
    pub(super) until: Duration,
    /// Requeue delay.
    delay: Duration,
    /// Time from which changes trigger a reconcile.
    debounce_until: Duration,
    /// Whether the present state is maintained: drift triggers a reconcile.
    is_maintained: bool,
    /// Whether a sync request is still open.
    is_request_open: bool,
}

/// A report that is being written.
#[derive(Debug)]
pub(super) struct Reporting {
    pub(super) requeue: Requeue,
    /// The conditions, if they are written.
    conditions: Option<Vec<Condition>>,
    /// Whether it reports the outcome of a reconcile.
    is_outcome: bool,
}

impl Release {
    /// Ends a reconcile: reports its outcome.
    pub(super) fn finish(&mut self, work: Work, mut report: ReconcileReport, now: Moment) {
        if self.is_first_unblock(&report) {
            // Keep the request for the next reconcile, which is unblocked now.
            report.request = None;
        }
        let fetch = work.fetch.as_ref();
        let lasts = report.request.as_ref();
        let lasts = lasts.is_some_and(SyncRequest::needs_fetch);
        // The commit at the time of the request has not arrived yet.
        let is_request_open = lasts
            && fetch.is_some_and(|fetch| work.answered < fetch.number && now.at < fetch.until);
        if is_request_open {
            report.request = None;
        }
        let done = report.effective_outcome();
        let changed = work.changes.objects.len();
        let is_by_change = changed > 0;
        self.unneeded_triggers = match done {
            ReconcileOutcome::Unchanged | ReconcileOutcome::Drifted if is_by_change => {
                self.unneeded_triggers.saturating_add(1)
            }
            _ => 0,
        };
        // Changes of fields that others manage, such as scaled replicas, are not drift.
        let is_drift = matches!(
            done,
            ReconcileOutcome::Deployed | ReconcileOutcome::Drifted | ReconcileOutcome::Failed
        );
        self.commands.push(Command::Finished(Box::new(Finished {
            report: report.clone(),
            took: now.at.saturating_sub(work.started),
            drifted: (is_drift && is_by_change).then_some(changed),
            // A reverted change is reported too.
            alert: done == ReconcileOutcome::Drifted,
            check_all: self.health.take_full_check(),
        })));
        self.failures = if report.failed() {
            self.failures.saturating_add(1)
        } else {
            0
        };
        if self.is_stopping || done == ReconcileOutcome::Interrupted {
            return self.end();
        }
        let requeue = Requeue {
            debounce_until: now.at + debounce(self.unneeded_triggers),
            // States that are out of sync or not managed now are not maintained.
            is_maintained: matches!(
                done,
                ReconcileOutcome::Deployed
                    | ReconcileOutcome::Unchanged
                    | ReconcileOutcome::Drifted
            ),
            is_request_open,
            until: now.at,
            delay: Duration::ZERO,
            desired: work.desired,
            retained: work.retained,
            report,
        };
        self.report_outcome(requeue, now);
    }

    /// Returns whether the first of several drift corrections could have unblocked a waiting
    /// revision.
    fn is_first_unblock(&self, report: &ReconcileReport) -> bool {
        report.could_unblock() && self.unblocking_corrections == 0
    }

    /// Reports the outcome, withdraws a fulfilled request, and sends notifications.
    fn report_outcome(&mut self, requeue: Requeue, now: Moment) {
        let report = &requeue.report;
        let is_persistent =
            report.outcome == ReconcileOutcome::Failed && report.condition.is_some();
        let ownership = match self.is_ours {
            true => Ownership::Ours,
            false if is_persistent => Ownership::Ask,
            false => Ownership::Foreign,
        };
        let conditions = self.with_health(report.conditions(&requeue.desired.conditions), now);
        let must_write = self.must_write(&conditions, now);
        let conditions = Some(conditions).filter(|_| must_write);
        let status = StatusReport {
            ownership,
            conditions: conditions.clone(),
            unless: None,
            fulfilled: report.request.clone(),
            notifications: self.notifications(&requeue, now),
            contended: Some(self.contended.len()),
            is_degraded: Some(self.health.condition(now.at).is_some()),
        };
        self.report(requeue, status, conditions, true);
    }

    fn report(
        &mut self,
        requeue: Requeue,
        status: StatusReport,
        conditions: Option<Vec<Condition>>,
        is_outcome: bool,
    ) {
        self.run(Task::Report(Box::new(status)));
        self.phase = Phase::Reporting(Box::new(Reporting {
            requeue,
            conditions,
            is_outcome,
        }));
    }

    /// Returns the notifications about changes of the state, or of the stall of the environment.
    fn notifications(&mut self, requeue: &Requeue, now: Moment) -> Vec<Notification> {
        let Requeue {
            desired, report, ..
        } = requeue;
        let revision = &desired.revision;
        let about = |target, revision: &str, notice: Option<Notice>| {
            notice.map(|notice| Notification {
                target,
                revision: revision.to_owned(),
                notice,
            })
        };
        let stall = desired.stall.as_ref();
        let stalled_revision = stall.and_then(|stall| stall.revision.as_ref());
        let of_stall = self.notification_state.of_stall(stall, now.at);
        let of_stall = about(desired.id, stalled_revision.unwrap_or(revision), of_stall);
        let retained = report.retained.as_deref();
        let of_retained = self.notification_state.of_retained(retained, now.at);
        let of_retained =
            retained.and_then(|retained| about(retained.target, &retained.revision, of_retained));
        // Only the retained state was reconciled, not the waiting one.
        let was_reconciled = retained.is_none() && self.was_reconciled;
        let (outcome, message) = (report.outcome, &report.message);
        let others = [
            self.notification_state
                .of_outcome(outcome, was_reconciled, revision, message, now.at),
            self.notification_state
                .of_contended(&self.contended, now.at),
            self.health_notice(now),
        ];
        let others = others.map(|notice| about(desired.id, revision, notice));
        let all = [of_stall, of_retained].into_iter().chain(others);
        all.flatten().collect()
    }

    fn health_notice(&mut self, now: Moment) -> Option<Notice> {
        let condition = self.health.condition(now.at);
        self.notification_state
            .of_health(condition.as_ref(), now.at)
    }

    /// Continues after a report.
    pub(super) fn on_reported(&mut self, reporting: Reporting, answer: &Answer, now: Moment) {
        let Reporting {
            mut requeue,
            conditions,
            is_outcome,
        } = reporting;
        let (is_ours, written) = match answer {
            Answer::Reported { is_ours, written } => (*is_ours, *written),
            // The next reconcile reports it again.
            _ => (self.is_ours, Some(false)),
        };
        self.is_ours = is_ours;
        if let Some(conditions) = conditions.filter(|_| is_ours) {
            self.was_written(conditions, written, now);
        }
        if is_outcome {
            requeue.delay = self.requeue_after(&requeue, now);
            requeue.until = now.at + requeue.delay;
            self.unblocking_corrections = if requeue.report.could_unblock() {
                self.unblocking_corrections.saturating_add(1)
            } else {
                0
            };
            self.since = None;
        }
        if self.is_gone {
            return self.end();
        }
        self.requeue(requeue, now);
    }

    /// Returns the requeue delay without events.
    fn requeue_after(&self, requeue: &Requeue, now: Moment) -> Duration {
        let Requeue {
            desired, report, ..
        } = requeue;
        let interval = positive(desired.sync.interval).unwrap_or(INTERVAL);
        let interval = backoff::interval(interval, now.random);
        let requeue_after = match report.effective_outcome() {
            ReconcileOutcome::Superseded => Duration::ZERO,
            _ if self.is_first_unblock(report) => DEBOUNCE,
            _ if report.failed() => backoff::after(self.failures, now.random),
            _ => report.requeue_after.unwrap_or(interval).min(interval),
        };
        let until_verify = self.verify_at.saturating_sub(now.at);
        if requeue.is_maintained {
            requeue_after.min(until_verify.max(DEBOUNCE))
        } else {
            requeue_after
        }
    }

    fn requeue(&mut self, requeue: Requeue, now: Moment) {
        self.run(Task::Wait(Wait {
            drift_from: requeue.is_maintained.then_some(requeue.debounce_until),
            debounce: self.health.debounce(),
            check_at: self.health.due(now.at).filter(|_| requeue.is_maintained),
            for_dependencies: requeue.report.waits,
            for_fetch: requeue.is_request_open,
        }));
        self.phase = Phase::Waiting(Box::new(requeue));
    }

    /// Starts a reconcile if something happened that the last one did not see.
    pub(super) fn start_if_due(&mut self) {
        let Phase::Waiting(requeue) = &self.phase else {
            return;
        };
        let is_found = self.lookup.as_ref().is_some_and(
            |lookup| matches!(lookup.state, LookupState::Found(_, is_fresh) if is_fresh),
        );
        let is_due = self.is_new_target
            || is_found
            || self.is_requested
            || requeue.report.waits && self.is_dependency_reconciled
            || requeue.is_maintained && !self.changes.objects.is_empty();
        if is_due {
            self.start_reconcile(None);
        }
    }

    /// Returns the time of the next heartbeat.
    pub(super) fn next_heartbeat(&self) -> Option<Duration> {
        self.is_ours.then_some(self.last_heartbeat + HEARTBEAT)
    }

    pub(super) fn on_tick(&mut self, now: Moment) {
        let Phase::Waiting(requeue) = &self.phase else {
            return;
        };
        if now.at >= requeue.until {
            let since = backoff::not_before(now.at, requeue.delay);
            self.start_reconcile(Some(since));
        } else if self.next_heartbeat().is_some_and(|at| now.at >= at)
            && let Phase::Waiting(requeue) = std::mem::replace(&mut self.phase, Phase::Ended)
        {
            self.report_change(*requeue, None, now);
        }
    }

    /// Reports the conditions again, with the readiness that was checked if it was.
    fn report_change(&mut self, requeue: Requeue, is_degraded: Option<bool>, now: Moment) {
        let desired = &requeue.desired;
        let conditions = self.with_health(requeue.report.conditions(&desired.conditions), now);
        let must_write = self.is_ours && self.must_write(&conditions, now);
        let conditions = Some(conditions).filter(|_| must_write);
        let notice = is_degraded.and_then(|_| self.health_notice(now));
        let notification = notice.map(|notice| Notification {
            target: desired.id,
            revision: desired.revision.clone(),
            notice,
        });
        let status = StatusReport {
            ownership: if self.is_ours {
                Ownership::Ours
            } else {
                Ownership::Foreign
            },
            conditions: conditions.clone(),
            unless: None,
            fulfilled: None,
            notifications: notification.into_iter().collect(),
            contended: None,
            is_degraded,
        };
        self.report(requeue, status, conditions, false);
    }

    /// Handles the answer to the wait.
    pub(super) fn on_wait_answer(&mut self, requeue: Requeue, answer: Answer) {
        match answer {
            Answer::Changed(changes) => {
                self.changes.extend(changes);
                self.start_reconcile(None);
            }
            Answer::Written(written) => self.check(requeue, written),
            _ => self.start_reconcile(None),
        }
    }

    fn check(&mut self, requeue: Requeue, mut written: BTreeSet<ObjectId>) {
        written.extend(self.health.pending().cloned());
        self.run(Task::Check {
            rules: self.reconciled.as_ref().unwrap_or(&requeue.desired).id,
            objects: written,
        });
        self.phase = Phase::Checking(Box::new(requeue));
    }

    pub(super) fn on_checked(&mut self, requeue: Requeue, answer: Answer, now: Moment) {
        if let Answer::Checked(read) = answer {
            self.health.check(read, now.at);
        }
        let is_degraded = self.health.condition(now.at).is_some();
        self.report_change(requeue, Some(is_degraded), now);
    }
}

fn positive(interval: SignedDuration) -> Option<Duration> {
    interval.try_into().ok()
}

/// Returns the delay before changes trigger a reconcile, after consecutive ones without an action.
/// Some clients keep writing to objects.
fn debounce(unneeded_triggers: u32) -> Duration {
    match unneeded_triggers.checked_sub(1) {
        None => Duration::ZERO,
        Some(more) => DEBOUNCE.saturating_mul(1 << more.min(10)).min(MAX_DEBOUNCE),
    }
}
