//! Notifications about releases: one per state change, with a rate limit.

use std::time::Duration;

use jiff::Timestamp;
use pleach_formats::file::NotificationCause;
use pleach_model::object::{Digest, ReleaseName};
use pleach_reconciler::config::StateChange;
use pleach_state::inventory::Condition;
use tokio::time::Instant;

use super::ReconcileOutcome;
use super::outcome::Kept;
use super::read::Hold;
use super::run::Target;
use pleach_engine::sync::state::Announcement;

/// Largest burst of notifications about one release.
const BURST: u32 = 20;
/// Interval at which one more notification is allowed.
const REFILL: Duration = Duration::from_mins(5);
/// Longest message, in bytes.
const LONGEST: usize = 1024;

/// State of the notifications about a release.
#[derive(Debug)]
pub(super) struct Told {
    last: Option<Digest>,
    /// Last state reported about a revision that is retained while another one waits.
    kept: Option<Digest>,
    /// Last reported hold of the environment.
    hold: Option<Digest>,
    /// Whether lost readiness was reported.
    is_degraded: bool,
    /// Whether contended fields were reported.
    is_contended: bool,
    left: u32,
    refilled: Instant,
}

/// A notification.
#[derive(Debug)]
pub(super) struct Item {
    /// One word, for the Event.
    pub(super) reason: &'static str,
    /// Whether a user must act.
    pub(super) is_warning: bool,
    /// Cause by which subscribers filter; `None` for Events only.
    pub(super) cause: Option<NotificationCause>,
    /// One line.
    pub(super) message: String,
}

impl Told {
    pub(super) fn new() -> Self {
        Self {
            last: None,
            kept: None,
            hold: None,
            is_degraded: false,
            is_contended: false,
            left: BURST,
            refilled: Instant::now(),
        }
    }

    /// Returns the notification about a reconcile. `None` if it was already sent or the rate limit
    /// is reached. `was_reached`: the same content was reconciled before.
    pub(super) fn of(
        &mut self,
        desired: &Target,
        end: ReconcileOutcome,
        was_reached: bool,
        message: &str,
    ) -> Option<Item> {
        self.judge(end, was_reached, &desired.revision(), message)
    }

    /// Returns the notification about the retained revision while a newer one waits.
    pub(super) fn of_kept(&mut self, kept: Option<&Kept>) -> Option<Item> {
        let Some(kept) = kept else {
            self.kept = None;
            return None;
        };
        let (revision, report) = (kept.wanted.revision(), &kept.looked);
        // Waiting and refusals are reported for the newer revision.
        if !matches!(
            report.end,
            ReconcileOutcome::Deployed | ReconcileOutcome::Drifted | ReconcileOutcome::Failed
        ) {
            return None;
        }
        std::mem::swap(&mut self.last, &mut self.kept);
        let item = self.judge(report.end, true, &revision, &report.message);
        std::mem::swap(&mut self.last, &mut self.kept);
        item
    }

    /// Returns the notification about a hold of the environment; `None` if it was already sent. A
    /// hold that ended is reported again when it returns.
    pub(super) fn of_hold(&mut self, hold: Option<&Hold>) -> Option<Item> {
        let state = hold.map(|hold| {
            let commit = hold.revision.as_deref().unwrap_or_default();
            Digest::of(format!("{} {commit}", hold.reason).as_bytes())
        });
        let was_reported = std::mem::replace(&mut self.hold, state) == state;
        let hold = hold?;
        if was_reported || !self.take_permit(Instant::now()) {
            return None;
        }
        Some(Item {
            reason: "SyncFailed",
            is_warning: true,
            cause: Some(NotificationCause::Failed),
            message: line(&hold.message),
        })
    }

    /// Records that lost readiness was reported before.
    pub(super) fn was_degraded(&mut self) {
        self.is_degraded = true;
    }

    /// Returns the notification about lost or regained readiness.
    pub(super) fn of_health(&mut self, degraded: Option<&Condition>) -> Option<Item> {
        if self.is_degraded == degraded.is_some() || !self.take_permit(Instant::now()) {
            return None;
        }
        self.is_degraded = degraded.is_some();
        Some(match degraded {
            Some(condition) => Item {
                reason: "Degraded",
                is_warning: true,
                cause: Some(NotificationCause::Degraded),
                message: line(&condition.message),
            },
            None => Item {
                reason: "Recovered",
                is_warning: false,
                cause: None,
                message: "all objects are ready again".to_owned(),
            },
        })
    }

    /// Returns the notification about fields that other clients keep writing to. `None` if it was
    /// already sent and the contention has not ended since.
    pub(super) fn of_contended(&mut self, fields: &[String]) -> Option<Item> {
        if fields.is_empty() {
            self.is_contended = false;
            return None;
        }
        if self.is_contended || !self.take_permit(Instant::now()) {
            return None;
        }
        self.is_contended = true;
        let fields = fields.join("; ");
        Some(Item {
            reason: "Contended",
            is_warning: true,
            cause: Some(NotificationCause::Drifted),
            message: line(&format!(
                "drift is not corrected, because other clients keep writing to fields: {fields}"
            )),
        })
    }

    /// Records that the environment is no longer stalled.
    pub(super) fn free(&mut self) {
        self.hold = None;
    }

    fn judge(
        &mut self,
        end: ReconcileOutcome,
        was_reached: bool,
        revision: &str,
        message: &str,
    ) -> Option<Item> {
        let warning = |reason, cause| Some((reason, true, cause));
        let normal = |reason, cause| Some((reason, false, cause));
        let (reason, is_warning, cause) = match end {
            ReconcileOutcome::Deployed if was_reached => {
                // Each correction is a separate event, so it is complete once reported.
                self.last = None;
                normal("DriftCorrected", Some(NotificationCause::Drifted))
            }
            ReconcileOutcome::Deployed => normal("Deployed", Some(NotificationCause::Deployed)),
            ReconcileOutcome::Removed => normal("Removed", None),
            ReconcileOutcome::Drifted => warning("Drifted", Some(NotificationCause::Drifted)),
            ReconcileOutcome::Failed if was_reached => {
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
        let state = match end {
            ReconcileOutcome::Unapproved => format!("{reason} {revision} {message}"),
            _ => format!("{reason} {revision}"),
        };
        let state = Digest::of(state.as_bytes());
        if self.last.replace(state) == Some(state) || !self.take_permit(Instant::now()) {
            return None;
        }
        Some(Item {
            reason,
            is_warning,
            cause,
            message: line(message),
        })
    }

    fn take_permit(&mut self, now: Instant) -> bool {
        while self.left < BURST && now >= self.refilled + REFILL {
            self.refilled += REFILL;
            self.left += 1;
        }
        if self.left == BURST {
            self.refilled = now;
        }
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
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

impl Item {
    /// Returns the notification for subscribers, with version and commit of the release.
    pub(super) fn news(
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

    /// Returns the notification as a Kubernetes Event.
    pub(super) fn announcement<'a>(&'a self, revision: &'a str) -> Announcement<'a> {
        Announcement {
            reason: self.reason,
            is_warning: self.is_warning,
            message: &self.message,
            revision,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(told: &mut Told, ends: &[(ReconcileOutcome, bool)]) -> Vec<&'static str> {
        ends.iter()
            .filter_map(|(end, was_reached)| told.judge(*end, *was_reached, "abc", "why"))
            .map(|item| item.reason)
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn each_change_of_state_is_told_once() {
        let mut told = Told::new();
        let ends = [
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
            reasons(&mut told, &ends),
            ["SyncFailed", "Deployed", "Degraded", "Degraded"]
        );
        // Another commit is another failure.
        assert!(
            told.judge(ReconcileOutcome::Failed, false, "abc", "why")
                .is_some()
        );
        assert!(
            told.judge(ReconcileOutcome::Failed, false, "def", "why")
                .is_some()
        );
        assert!(
            told.judge(ReconcileOutcome::Failed, false, "def", "other words")
                .is_none()
        );
        // Another plan needs another approval.
        assert!(
            told.judge(ReconcileOutcome::Unapproved, false, "def", "a")
                .is_some()
        );
        assert!(
            told.judge(ReconcileOutcome::Unapproved, false, "def", "a")
                .is_none()
        );
        assert!(
            told.judge(ReconcileOutcome::Unapproved, false, "def", "b")
                .is_some()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_holds_the_environment_is_told_once() {
        let hold = |commit: &str| Hold {
            revision: Some(commit.to_owned()),
            ..Hold::new("InvalidRepository", "it cannot\nbe rendered")
        };
        let mut told = Told::new();
        let item = told.of_hold(Some(&hold("abc"))).unwrap();
        assert_eq!(item.cause, Some(NotificationCause::Failed));
        assert_eq!(
            (item.reason, item.message.as_str()),
            ("SyncFailed", "it cannot be rendered")
        );
        assert!(told.of_hold(Some(&hold("abc"))).is_none());
        // Another commit is another failure, and so is the same one after a good commit.
        assert!(told.of_hold(Some(&hold("def"))).is_some());
        assert!(told.of_hold(None).is_none());
        assert!(told.of_hold(Some(&hold("def"))).is_some());
        told.free();
        assert!(told.of_hold(Some(&hold("def"))).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_fight_over_fields_is_reported_once() {
        let fields = [".data.k of ConfigMap/web/a with ann".to_owned()];
        let mut told = Told::new();
        assert!(told.of_contended(&[]).is_none());
        let item = told.of_contended(&fields).unwrap();
        assert_eq!((item.reason, item.is_warning), ("Contended", true));
        assert!(item.message.ends_with(&fields[0]), "{}", item.message);
        assert!(told.of_contended(&fields).is_none());
        // The contention ended and started again.
        assert!(told.of_contended(&[]).is_none());
        assert!(told.of_contended(&fields).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_told_without_bounds() {
        let mut told = Told::new();
        let drift = vec![(ReconcileOutcome::Deployed, true); 100];
        assert_eq!(reasons(&mut told, &drift).len(), BURST as usize);
        tokio::time::advance(REFILL * 2).await;
        assert_eq!(reasons(&mut told, &drift).len(), 2);
        tokio::time::advance(REFILL * 1000).await;
        assert_eq!(reasons(&mut told, &drift).len(), BURST as usize);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_is_one_line_and_short() {
        let mut told = Told::new();
        let item = told
            .judge(
                ReconcileOutcome::Failed,
                false,
                "abc",
                &"a\nb ".repeat(1000),
            )
            .unwrap();
        assert!(item.message.starts_with("a b a b"), "{}", item.message);
        assert!(item.message.len() <= LONGEST + '…'.len_utf8());
    }
}
