//! Notifications about releases: one per state change, with a rate limit.

use std::time::Duration;

use jiff::Timestamp;
use pleach_formats::file::NotificationCause;
use pleach_model::object::{Digest, ReleaseName};
use pleach_state::inventory::Condition;

use crate::config::StateChange;
use crate::outcome::{ReconcileOutcome, Retained};
use crate::stall::Stall;

/// Largest burst of notifications about one release.
const BURST: u32 = 20;
/// Interval at which one more notification is allowed.
const REFILL: Duration = Duration::from_mins(5);
/// Longest message, in bytes.
const LONGEST: usize = 1024;

/// State of the notifications about a release.
///
/// Times are monotonic, since the controller started.
#[derive(Debug)]
pub struct NotificationState {
    /// Last reported outcome.
    last: Option<Digest>,
    /// Last state reported about a revision that is retained while another one waits.
    retained: Option<Digest>,
    /// Last reported stall of the environment.
    stall: Option<Digest>,
    /// Whether lost readiness was reported.
    is_degraded: bool,
    /// Whether contended fields were reported.
    is_contended: bool,
    left: u32,
    refilled: Duration,
}

/// A notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// One word, for the Event.
    pub reason: &'static str,
    /// Whether a user must act.
    pub is_warning: bool,
    /// Cause by which subscribers filter; `None` for Events only.
    pub cause: Option<NotificationCause>,
    /// One line.
    pub message: String,
}

impl Default for NotificationState {
    fn default() -> Self {
        Self {
            last: None,
            retained: None,
            stall: None,
            is_degraded: false,
            is_contended: false,
            left: BURST,
            refilled: Duration::ZERO,
        }
    }
}

impl NotificationState {
    /// Returns the notification about the retained revision while a newer one waits.
    pub fn of_retained(&mut self, retained: Option<&Retained>, now: Duration) -> Option<Notice> {
        let Some(retained) = retained else {
            self.retained = None;
            return None;
        };
        let (revision, report) = (&retained.revision, &retained.report);
        // Waiting and refusals are reported for the newer revision.
        if !matches!(
            report.outcome,
            ReconcileOutcome::Deployed | ReconcileOutcome::Drifted | ReconcileOutcome::Failed
        ) {
            return None;
        }
        std::mem::swap(&mut self.last, &mut self.retained);
        let notice = self.of_outcome(report.outcome, true, revision, &report.message, now);
        std::mem::swap(&mut self.last, &mut self.retained);
        notice
    }

    /// Returns the notification about a stall of the environment; `None` if it was already sent. A
    /// stall that ended is reported again when it returns.
    pub fn of_stall(&mut self, stall: Option<&Stall>, now: Duration) -> Option<Notice> {
        let state = stall.map(|stall| {
            let commit = stall.revision.as_deref().unwrap_or_default();
            Digest::of(format!("{} {commit}", stall.reason).as_bytes())
        });
        let was_reported = std::mem::replace(&mut self.stall, state) == state;
        let stall = stall?;
        if was_reported || !self.take_permit(now) {
            return None;
        }
        Some(Notice {
            reason: "SyncFailed",
            is_warning: true,
            cause: Some(NotificationCause::Failed),
            message: line(&stall.message),
        })
    }

    /// Records that lost readiness was reported before.
    pub fn set_degraded(&mut self) {
        self.is_degraded = true;
    }

    /// Returns the notification about lost or regained readiness.
    pub fn of_health(&mut self, degraded: Option<&Condition>, now: Duration) -> Option<Notice> {
        if self.is_degraded == degraded.is_some() || !self.take_permit(now) {
            return None;
        }
        self.is_degraded = degraded.is_some();
        Some(match degraded {
            Some(condition) => Notice {
                reason: "Degraded",
                is_warning: true,
                cause: Some(NotificationCause::Degraded),
                message: line(&condition.message),
            },
            None => Notice {
                reason: "Recovered",
                is_warning: false,
                cause: None,
                message: "all objects are ready again".to_owned(),
            },
        })
    }

    /// Returns the notification about fields that other clients keep writing to. `None` if it was
    /// already sent and the contention has not ended since.
    pub fn of_contended(&mut self, fields: &[String], now: Duration) -> Option<Notice> {
        if fields.is_empty() {
            self.is_contended = false;
            return None;
        }
        if self.is_contended || !self.take_permit(now) {
            return None;
        }
        self.is_contended = true;
        let fields = fields.join("; ");
        Some(Notice {
            reason: "Contended",
            is_warning: true,
            cause: Some(NotificationCause::Drifted),
            message: line(&format!(
                "drift is not corrected, because other clients keep writing to fields: {fields}"
            )),
        })
    }

    /// Records that the environment is no longer stalled.
    pub fn clear_stall(&mut self) {
        self.stall = None;
    }

    /// Returns the notification about a reconcile. `None` if it was already sent or the rate limit
    /// is reached. `was_reconciled`: the same content was reconciled before.
    pub fn of_outcome(
        &mut self,
        outcome: ReconcileOutcome,
        was_reconciled: bool,
        revision: &str,
        message: &str,
        now: Duration,
    ) -> Option<Notice> {
        let warning = |reason, cause| Some((reason, true, cause));
        let normal = |reason, cause| Some((reason, false, cause));
        let (reason, is_warning, cause) = match outcome {
            ReconcileOutcome::Deployed if was_reconciled => {
                // Each correction is a separate event, so it is complete once reported.
                self.last = None;
                normal("DriftCorrected", Some(NotificationCause::Drifted))
            }
            ReconcileOutcome::Deployed => normal("Deployed", Some(NotificationCause::Deployed)),
            ReconcileOutcome::Removed => normal("Removed", None),
            ReconcileOutcome::Drifted => warning("Drifted", Some(NotificationCause::Drifted)),
            ReconcileOutcome::Failed if was_reconciled => {
                warning("Degraded", Some(NotificationCause::Degraded))
            }
            ReconcileOutcome::Failed => warning("SyncFailed", Some(NotificationCause::Failed)),
            ReconcileOutcome::Refused => warning("Refused", Some(NotificationCause::Failed)),
            ReconcileOutcome::Unapproved => normal("AwaitingApproval", None),
            ReconcileOutcome::Waiting => normal("Waiting", None),
            ReconcileOutcome::Suspended => normal("Suspended", None),
            // In sync: the next change is reported again.
            ReconcileOutcome::Unchanged => {
                self.last = None;
                None
            }
            ReconcileOutcome::Superseded | ReconcileOutcome::Interrupted => None,
        }?;
        // Ignore the message: retries of one failure can have different messages.
        let state = match outcome {
            ReconcileOutcome::Unapproved => format!("{reason} {revision} {message}"),
            _ => format!("{reason} {revision}"),
        };
        let state = Digest::of(state.as_bytes());
        if self.last.replace(state) == Some(state) || !self.take_permit(now) {
            return None;
        }
        Some(Notice {
            reason,
            is_warning,
            cause,
            message: line(message),
        })
    }

    fn take_permit(&mut self, now: Duration) -> bool {
        while self.left < BURST && now >= self.refilled + REFILL {
            self.refilled += REFILL;
            self.left += 1;
        }
        if self.left == BURST {
            self.refilled = now;
        }
        let is_allowed = self.left > 0;
        self.left = self.left.saturating_sub(1);
        is_allowed
    }
}

/// Returns a message in one line, truncated to the limit.
fn line(message: &str) -> String {
    let mut message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    if message.len() > LONGEST {
        message.truncate(message.floor_char_boundary(LONGEST));
        message.push('…');
    }
    message
}

impl Notice {
    /// Returns the notification for subscribers, with version and commit of the release.
    pub fn state_change(
        &self,
        name: &ReleaseName,
        (version, revision): (&str, &str),
        now: Timestamp,
    ) -> Option<StateChange> {
        Some(StateChange {
            cause: self.cause?,
            environment: name.environment.clone(),
            release: name.release.clone(),
            version: version.to_owned(),
            revision: revision.to_owned(),
            message: self.message.clone(),
            at: format!("{now:.0}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn reasons(
        notifications: &mut NotificationState,
        outcomes: &[(ReconcileOutcome, bool)],
        now: Duration,
    ) -> Vec<&'static str> {
        outcomes
            .iter()
            .filter_map(|(outcome, was_reconciled)| {
                notifications.of_outcome(*outcome, *was_reconciled, "abc", "why", now)
            })
            .map(|notice| notice.reason)
            .collect()
    }

    #[test]
    fn each_state_change_is_notified_once() {
        let mut notifications = NotificationState::default();
        let outcomes = [
            (ReconcileOutcome::Failed, false),
            (ReconcileOutcome::Failed, false),
            (ReconcileOutcome::Superseded, false),
            (ReconcileOutcome::Failed, false),
            (ReconcileOutcome::Deployed, false),
            (ReconcileOutcome::Unchanged, true),
            (ReconcileOutcome::Unchanged, true),
            (ReconcileOutcome::Failed, true),
            (ReconcileOutcome::Failed, true),
            (ReconcileOutcome::Unchanged, true),
            (ReconcileOutcome::Failed, true),
        ];
        assert_eq!(
            reasons(&mut notifications, &outcomes, NOW),
            ["SyncFailed", "Deployed", "Degraded", "Degraded"]
        );
        // Another commit is another failure.
        assert!(
            notifications
                .of_outcome(ReconcileOutcome::Failed, false, "abc", "why", NOW)
                .is_some()
        );
        assert!(
            notifications
                .of_outcome(ReconcileOutcome::Failed, false, "def", "why", NOW)
                .is_some()
        );
        assert!(
            notifications
                .of_outcome(ReconcileOutcome::Failed, false, "def", "other words", NOW)
                .is_none()
        );
        // Another plan needs another approval.
        assert!(
            notifications
                .of_outcome(ReconcileOutcome::Unapproved, false, "def", "a", NOW)
                .is_some()
        );
        assert!(
            notifications
                .of_outcome(ReconcileOutcome::Unapproved, false, "def", "a", NOW)
                .is_none()
        );
        assert!(
            notifications
                .of_outcome(ReconcileOutcome::Unapproved, false, "def", "b", NOW)
                .is_some()
        );
    }

    #[test]
    fn a_stall_of_the_environment_is_notified_once() {
        let stall = |commit: &str| Stall {
            revision: Some(commit.to_owned()),
            ..Stall::new("InvalidRepository", "it cannot\nbe rendered")
        };
        let mut notifications = NotificationState::default();
        let notice = notifications.of_stall(Some(&stall("abc")), NOW).unwrap();
        assert_eq!(notice.cause, Some(NotificationCause::Failed));
        assert_eq!(
            (notice.reason, notice.message.as_str()),
            ("SyncFailed", "it cannot be rendered")
        );
        assert!(notifications.of_stall(Some(&stall("abc")), NOW).is_none());
        // Another commit is another failure, and so is the same one after a good commit.
        assert!(notifications.of_stall(Some(&stall("def")), NOW).is_some());
        assert!(notifications.of_stall(None, NOW).is_none());
        assert!(notifications.of_stall(Some(&stall("def")), NOW).is_some());
        notifications.clear_stall();
        assert!(notifications.of_stall(Some(&stall("def")), NOW).is_some());
    }

    #[test]
    fn contention_over_fields_is_reported_once() {
        let fields = [".data.k of ConfigMap/web/a with ann".to_owned()];
        let mut notifications = NotificationState::default();
        assert!(notifications.of_contended(&[], NOW).is_none());
        let notice = notifications.of_contended(&fields, NOW).unwrap();
        assert_eq!((notice.reason, notice.is_warning), ("Contended", true));
        assert!(notice.message.ends_with(&fields[0]), "{}", notice.message);
        assert!(notifications.of_contended(&fields, NOW).is_none());
        // The contention ended and started again.
        assert!(notifications.of_contended(&[], NOW).is_none());
        assert!(notifications.of_contended(&fields, NOW).is_some());
    }

    #[test]
    fn notifications_are_rate_limited() {
        let mut notifications = NotificationState::default();
        let drift = vec![(ReconcileOutcome::Deployed, true); 100];
        for (periods, expected) in [(0, BURST), (2, 2), (1002, BURST)] {
            let sent = reasons(&mut notifications, &drift, REFILL * periods);
            assert_eq!(sent.len(), expected as usize, "{periods}");
        }
    }

    #[test]
    fn a_message_is_one_line_and_short() {
        let mut notifications = NotificationState::default();
        let notice = notifications
            .of_outcome(
                ReconcileOutcome::Failed,
                false,
                "abc",
                &"a\nb ".repeat(1000),
                NOW,
            )
            .unwrap();
        assert!(notice.message.starts_with("a b a b"), "{}", notice.message);
        assert!(notice.message.len() <= LONGEST + '…'.len_utf8());
    }
}
