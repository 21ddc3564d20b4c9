//! Reports after a reconcile, and the wait for the next one.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::SignedDuration;
use pleach_model::object::ObjectId;
use pleach_state::inventory::{Condition, HEARTBEAT, SyncRequest};

use super::reconcile::Work;
use super::{
    Answer, Command, Finished, LookupState, Notification, Ownership, Phase, Release, TargetFacts,
    Task, Tell, Wait,
};
use crate::outcome::{ReconcileOutcome, ReconcileReport};
use crate::state_changes::Item;
use crate::{Moment, backoff};

/// Delay after a change that required no action. It doubles with each further one.
const CALM: Duration = Duration::from_secs(1);
/// Longest such delay.
const CALMEST: Duration = Duration::from_mins(1);
/// Interval of an environment whose own is no valid duration.
const INTERVAL: Duration = Duration::from_mins(15);

/// The wait for the next reconcile.
#[derive(Debug)]
pub(super) struct Rest {
    pub(super) desired: TargetFacts,
    /// The state that was retained while `desired` waits.
    pub(super) kept: Option<TargetFacts>,
    report: ReconcileReport,
    /// Time of the next reconcile without an event.
    pub(super) until: Duration,
    /// Requeue delay.
    pause: Duration,
    /// Time from which changes trigger a reconcile.
    calm_at: Duration,
    /// Whether the present state is maintained: drift triggers a reconcile.
    is_kept: bool,
    /// Whether a sync request is still open.
    is_open: bool,
}

/// A report that is being written.
#[derive(Debug)]
pub(super) struct Telling {
    pub(super) rest: Rest,
    /// The conditions, if they are written.
    conditions: Option<Vec<Condition>>,
    /// Whether it reports the outcome of a reconcile.
    is_outcome: bool,
}

impl Release {
    /// Ends a reconcile: reports its outcome.
    pub(super) fn finish(&mut self, work: Work, mut report: ReconcileReport, now: Moment) {
        if self.makes_way(&report) {
            // Keep the request for the next reconcile, which is unblocked now.
            report.request = None;
        }
        let fetch = work.fetch.as_ref();
        let lasts = report.request.as_ref();
        let lasts = lasts.is_some_and(SyncRequest::needs_fetch);
        // The commit at the time of the request has not arrived yet.
        let is_open = lasts
            && fetch.is_some_and(|fetch| work.answered < fetch.number && now.at < fetch.until);
        if is_open {
            report.request = None;
        }
        let done = report.in_the_end();
        let changed = work.changes.objects.len();
        let is_by_change = changed > 0;
        self.fruitless = match done {
            ReconcileOutcome::Unchanged | ReconcileOutcome::Drifted if is_by_change => {
                self.fruitless.saturating_add(1)
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
            check_all: self.health.is_uncertain(),
        })));
        self.failures = if report.failed() {
            self.failures.saturating_add(1)
        } else {
            0
        };
        if self.is_stopping || done == ReconcileOutcome::Interrupted {
            return self.end();
        }
        let rest = Rest {
            calm_at: now.at + calm(self.fruitless),
            // States that are out of sync or not managed now are not maintained.
            is_kept: matches!(
                done,
                ReconcileOutcome::Deployed
                    | ReconcileOutcome::Unchanged
                    | ReconcileOutcome::Drifted
            ),
            is_open,
            until: now.at,
            pause: Duration::ZERO,
            desired: work.desired,
            kept: work.kept,
            report,
        };
        self.tell_outcome(rest, now);
    }

    /// Returns whether the first of several drift corrections could have unblocked a waiting
    /// revision.
    fn makes_way(&self, report: &ReconcileReport) -> bool {
        report.made_way() && self.made_way == 0
    }

    /// Reports the outcome, withdraws a fulfilled request, and sends notifications.
    fn tell_outcome(&mut self, rest: Rest, now: Moment) {
        let report = &rest.report;
        let is_lasting = report.end == ReconcileOutcome::Failed && report.condition.is_some();
        let ownership = match self.is_ours {
            true => Ownership::Ours,
            false if is_lasting => Ownership::Ask,
            false => Ownership::Foreign,
        };
        let conditions = self.with_health(report.conditions(&rest.desired.conditions), now);
        let must_write = self.must_write(&conditions, now);
        let conditions = Some(conditions).filter(|_| must_write);
        let tell = Tell {
            ownership,
            conditions: conditions.clone(),
            unless: None,
            fulfilled: report.request.clone(),
            notifications: self.notifications(&rest, now),
            contended: Some(self.contended.len()),
            is_degraded: Some(self.health.condition(now.at).is_some()),
        };
        self.tell(rest, tell, conditions, true);
    }

    fn tell(
        &mut self,
        rest: Rest,
        tell: Tell,
        conditions: Option<Vec<Condition>>,
        is_outcome: bool,
    ) {
        self.run(Task::Tell(Box::new(tell)));
        self.phase = Phase::Telling(Box::new(Telling {
            rest,
            conditions,
            is_outcome,
        }));
    }

    /// Returns the notifications about changes of the state, or of the hold of the environment.
    fn notifications(&mut self, rest: &Rest, now: Moment) -> Vec<Notification> {
        let Rest {
            desired, report, ..
        } = rest;
        let revision = &desired.revision;
        let about = |target, revision: &str, item: Option<Item>| {
            item.map(|item| Notification {
                target,
                revision: revision.to_owned(),
                item,
            })
        };
        let hold = desired.hold.as_ref();
        let held = hold.and_then(|hold| hold.revision.as_ref());
        let of_hold = self.news.of_hold(hold, now.at);
        let of_hold = about(desired.id, held.unwrap_or(revision), of_hold);
        let kept = report.kept.as_deref();
        let of_kept = self.news.of_kept(kept, now.at);
        let of_kept = kept.and_then(|kept| about(kept.target, &kept.revision, of_kept));
        // Only the retained state was reconciled, not the waiting one.
        let was_reached = kept.is_none() && self.was_reached;
        let (end, message) = (report.end, &report.message);
        let others = [
            self.news.of(end, was_reached, revision, message, now.at),
            self.news.of_contended(&self.contended, now.at),
            self.health_item(now),
        ];
        let others = others.map(|item| about(desired.id, revision, item));
        let all = [of_hold, of_kept].into_iter().chain(others);
        all.flatten().collect()
    }

    fn health_item(&mut self, now: Moment) -> Option<Item> {
        let condition = self.health.condition(now.at);
        self.news.of_health(condition.as_ref(), now.at)
    }

    /// Continues after a report.
    pub(super) fn on_told(&mut self, telling: Telling, answer: &Answer, now: Moment) {
        let Telling {
            mut rest,
            conditions,
            is_outcome,
        } = telling;
        let (is_ours, written) = match answer {
            Answer::Told { is_ours, written } => (*is_ours, *written),
            // The next reconcile reports it again.
            _ => (self.is_ours, Some(false)),
        };
        self.is_ours = is_ours;
        if let Some(conditions) = conditions.filter(|_| is_ours) {
            self.was_written(conditions, written, now);
        }
        if is_outcome {
            rest.pause = self.pause(&rest, now);
            rest.until = now.at + rest.pause;
            self.made_way = if rest.report.made_way() {
                self.made_way.saturating_add(1)
            } else {
                0
            };
            self.since = None;
        }
        if self.is_gone {
            return self.end();
        }
        self.rest(rest, now);
    }

    /// Returns the requeue delay without events.
    fn pause(&self, rest: &Rest, now: Moment) -> Duration {
        let Rest {
            desired, report, ..
        } = rest;
        let interval = positive(desired.sync.interval).unwrap_or(INTERVAL);
        let interval = backoff::interval(interval, now.random);
        let pause = match report.in_the_end() {
            ReconcileOutcome::Superseded => Duration::ZERO,
            _ if self.makes_way(report) => CALM,
            _ if report.failed() => backoff::after(self.failures, now.random),
            _ => report.pause.unwrap_or(interval).min(interval),
        };
        let until_verify = self.verify_at.saturating_sub(now.at);
        if rest.is_kept {
            pause.min(until_verify.max(CALM))
        } else {
            pause
        }
    }

    fn rest(&mut self, rest: Rest, now: Moment) {
        self.run(Task::Wait(Wait {
            drift_from: rest.is_kept.then_some(rest.calm_at),
            calm: self.health.calm(),
            check_at: self.health.due(now.at).filter(|_| rest.is_kept),
            for_dependencies: rest.report.waits,
            for_fetch: rest.is_open,
        }));
        self.phase = Phase::Resting(Box::new(rest));
    }

    /// Starts a reconcile if something happened that the last one did not see.
    pub(super) fn wake(&mut self) {
        let Phase::Resting(rest) = &self.phase else {
            return;
        };
        let is_found = self.lookup.as_ref().is_some_and(
            |lookup| matches!(lookup.state, LookupState::Found(_, is_fresh) if is_fresh),
        );
        let is_due = self.is_new_target
            || is_found
            || self.is_requested
            || rest.report.waits && self.is_dependency_reconciled
            || rest.is_kept && !self.changes.objects.is_empty();
        if is_due {
            self.begin(None);
        }
    }

    /// Returns the time of the next heartbeat.
    pub(super) fn renewal_at(&self) -> Option<Duration> {
        self.is_ours.then_some(self.renewed + HEARTBEAT)
    }

    pub(super) fn on_tick(&mut self, now: Moment) {
        let Phase::Resting(rest) = &self.phase else {
            return;
        };
        if now.at >= rest.until {
            let since = backoff::not_before(now.at, rest.pause);
            self.begin(Some(since));
        } else if self.renewal_at().is_some_and(|at| now.at >= at)
            && let Phase::Resting(rest) = std::mem::replace(&mut self.phase, Phase::Ended)
        {
            self.tell_change(*rest, None, now);
        }
    }

    /// Reports the conditions again, with the readiness that was checked if it was.
    fn tell_change(&mut self, rest: Rest, is_degraded: Option<bool>, now: Moment) {
        let desired = &rest.desired;
        let conditions = self.with_health(rest.report.conditions(&desired.conditions), now);
        let must_write = self.is_ours && self.must_write(&conditions, now);
        let conditions = Some(conditions).filter(|_| must_write);
        let item = is_degraded.and_then(|_| self.health_item(now));
        let notification = item.map(|item| Notification {
            target: desired.id,
            revision: desired.revision.clone(),
            item,
        });
        let tell = Tell {
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
        self.tell(rest, tell, conditions, false);
    }

    /// Handles the answer to the wait.
    pub(super) fn on_rest(&mut self, rest: Rest, answer: Answer) {
        match answer {
            Answer::Changed(changes) => {
                self.changes.extend(changes);
                self.begin(None);
            }
            Answer::Written(written) => self.check(rest, written),
            _ => self.begin(None),
        }
    }

    fn check(&mut self, rest: Rest, mut written: BTreeSet<ObjectId>) {
        written.extend(self.health.pending().cloned());
        self.run(Task::Check {
            rules: self.reached.as_ref().unwrap_or(&rest.desired).id,
            objects: written,
        });
        self.phase = Phase::Checking(Box::new(rest));
    }

    pub(super) fn on_checked(&mut self, rest: Rest, answer: Answer, now: Moment) {
        if let Answer::Checked(read) = answer {
            self.health.check(read, now.at);
        }
        let is_degraded = self.health.condition(now.at).is_some();
        self.tell_change(rest, Some(is_degraded), now);
    }
}

fn positive(interval: SignedDuration) -> Option<Duration> {
    interval.try_into().ok()
}

/// Returns the delay before changes trigger a reconcile, after consecutive ones without an action.
/// Some clients keep writing to objects.
fn calm(fruitless: u32) -> Duration {
    match fruitless.checked_sub(1) {
        None => Duration::ZERO,
        Some(more) => CALM.saturating_mul(1 << more.min(10)).min(CALMEST),
    }
}
