//! Reports about releases without a task: conditions on their records, and notifications.

use pleach_state::inventory::{Condition, ConditionKind, HEARTBEAT};

use super::{
    AssignmentFacts, Environment, Phase, Report, Reported, Round, StallNotification, Task,
};
use crate::Moment;
use crate::stall::Stall;

/// Returns the conditions of the environment for each record: that the controller follows the
/// release, and the reason of a stall if any. The CLI reads them.
pub(super) fn conditions(assignment: &AssignmentFacts, stall: Option<&Stall>) -> Vec<Condition> {
    let condition = |kind, reason: &str, message: &str| Condition {
        kind,
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    let followed = condition(ConditionKind::Followed, "Loop", &assignment.origin);
    let stalled =
        stall.map(|stall| condition(ConditionKind::Stalled, &stall.reason, &stall.message));
    let unreachable = assignment.unreachable.as_ref();
    let unreachable =
        unreachable.map(|why| condition(ConditionKind::SourceUnavailable, "Unreachable", why));
    let all = [Some(followed), stalled, unreachable];
    all.into_iter().flatten().collect()
}

/// Creates the report about one release.
pub(super) fn report_of(release: &str, conditions: Vec<Condition>, stall: Option<Stall>) -> Report {
    Report {
        release: Some(release.to_owned()),
        conditions,
        stall,
    }
}

impl Report {
    /// Returns whether it is about this release.
    pub fn is_about(&self, release: &str) -> bool {
        self.release.as_ref().is_none_or(|named| named == release)
    }
}

impl Environment {
    /// Reports about all releases of the environment while none of them has a task.
    pub(super) fn report_all(&mut self, round: Round, now: Moment) {
        if self.stall.is_none() && round.assignment.unreachable.is_none() {
            self.reported = None;
            return self.finish(&round, None, now);
        }
        let all = Report {
            release: None,
            conditions: conditions(&round.assignment, self.stall.as_ref()),
            stall: self.stall.clone(),
        };
        self.report(round, vec![all], now);
    }

    /// Reports about releases without a task, unless exactly this was reported less than a heartbeat
    /// ago.
    pub(super) fn report(&mut self, round: Round, reports: Vec<Report>, now: Moment) {
        let is_fresh = now.at < self.reported_at + HEARTBEAT;
        if is_fresh && self.reported.as_ref() == Some(&reports) {
            return self.finish(&round, None, now);
        }
        // After a failure, everything is reported again.
        self.reported = None;
        self.run(Task::Report {
            state: self.state.as_ref().map(|state| state.id),
            reports: reports.clone(),
        });
        self.phase = Phase::Reporting(round, reports);
    }

    /// Notifies about the stalls of the releases whose records were written.
    pub(super) fn on_reported(
        &mut self,
        round: Round,
        reports: Vec<Report>,
        reported: Reported,
        now: Moment,
    ) {
        let Reported {
            written,
            connection,
            error,
        } = reported;
        // The report reconnected, so the releases need the new connection.
        let mut running = self.releases.values();
        self.is_due |= connection.is_some_and(|id| running.any(|one| one.desired.connection != id));
        let mut notifications = Vec::new();
        for release in written {
            let report = reports.iter().find(|report| report.is_about(&release));
            let stall = report.and_then(|report| report.stall.as_ref());
            let state = self.notified.entry(release.clone()).or_default();
            if let Some(notice) = state.of_stall(stall, now.at) {
                notifications.push(StallNotification {
                    release,
                    revision: stall.and_then(|stall| stall.revision.clone()),
                    notice,
                });
            }
        }
        if error.is_none() {
            self.reported = Some(reports);
            self.reported_at = now.at;
        }
        if notifications.is_empty() {
            return self.finish(&round, error, now);
        }
        self.run(Task::Notify(notifications));
        self.phase = Phase::Notifying(round, error);
    }
}
