//! Readiness of releases after they were reconciled.
//!
//! A metadata watch reports each write to an object, including status updates. The object is then
//! read and assessed by the readiness rules of runs. An object that stays unready for a while
//! degrades the release. No correction follows, because the cluster is in sync with git.

use std::collections::BTreeMap;
use std::time::Duration;

use pleach_formats::readiness::{Assessment, GiveUp, Readiness};
use pleach_model::object::ObjectId;
use pleach_state::inventory::{Condition, ConditionKind};

use crate::NAMED;

/// Time for which an object is allowed to be unready, because a change often causes that for a
/// moment.
const GRACE: Duration = Duration::from_mins(1);
/// Delay before a failed read is retried.
const RETRY: Duration = Duration::from_mins(1);
/// Delay between a write and its readiness check. An object that is still changing is written
/// repeatedly.
const DEBOUNCE: Duration = Duration::from_secs(10);
/// Upper bound of the delay. It doubles with each check without a change, because some controllers keep
/// writing to the status of ready objects.
const MAX_DEBOUNCE: Duration = Duration::from_mins(5);
/// Reason of the condition.
const NOT_READY: &str = "NotReady";

/// Readiness of a release. Times are monotonic, since the controller started.
#[derive(Debug, Default)]
pub struct Health {
    unready: BTreeMap<ObjectId, UnreadyObject>,
    /// Objects that could not be read, with the time of the attempt.
    unread: BTreeMap<ObjectId, Duration>,
    /// Message of a previous controller about the release.
    previous: Option<String>,
    /// Whether all objects need a check.
    needs_full_check: bool,
    /// Number of consecutive, closely spaced checks without a change.
    unchanged_checks: u32,
    checked: Option<Duration>,
}

/// State of an object at a readiness check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checked {
    /// The object was read.
    Assessed(Assessment),
    /// The object does not exist.
    Missing,
    /// The read failed.
    Unread,
    /// No API path is known for its kind.
    Unreadable,
}

/// An unready object.
#[derive(Debug)]
struct UnreadyObject {
    /// Time from which it degrades the release.
    degrades_at: Duration,
    message: String,
}

impl Health {
    /// Restores the message of a previous controller and schedules a check. Returns whether the
    /// message is new.
    pub fn restore(&mut self, degraded: Option<String>) -> bool {
        let is_new = degraded.is_some() && self.unready.is_empty();
        if is_new {
            self.previous = degraded;
            self.needs_full_check = true;
        }
        is_new
    }

    /// Schedules a check of all objects.
    pub fn request_full_check(&mut self) {
        self.needs_full_check = true;
    }

    /// Returns and clears whether all objects need a check.
    pub fn take_full_check(&mut self) -> bool {
        std::mem::take(&mut self.needs_full_check)
    }

    /// Resets the state after a run that waited for everything.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Returns the delay between a write and its check.
    pub fn debounce(&self) -> Duration {
        DEBOUNCE
            .saturating_mul(1 << self.unchanged_checks.min(5))
            .min(MAX_DEBOUNCE)
    }

    /// Records whether a check found a change.
    fn record_check(&mut self, has_changed: bool, now: Duration) {
        let debounce = self.debounce();
        let is_close = self
            .checked
            .is_some_and(|checked| now < checked + debounce * 2);
        self.unchanged_checks = if is_close && !has_changed {
            self.unchanged_checks.saturating_add(1)
        } else {
            0
        };
        self.checked = Some(now);
    }

    /// Returns the time of the next check without a write, or `None`.
    pub fn due(&self, now: Duration) -> Option<Duration> {
        let unready = self.unready.values().map(|one| one.degrades_at);
        let unready = unready.filter(|at| *at > now);
        let unread = self.unread.values().map(|tried| *tried + RETRY);
        unready.chain(unread).min()
    }

    /// Returns the objects that need a repeated check.
    pub fn pending(&self) -> impl Iterator<Item = &ObjectId> {
        self.unready.keys().chain(self.unread.keys())
    }

    /// Evaluates a check of these objects, which include the pending ones.
    pub fn check(&mut self, read: impl IntoIterator<Item = (ObjectId, Checked)>, now: Duration) {
        let mut has_changed = false;
        for (id, read) in read {
            let was_unread = self.unread.remove(&id).is_some();
            let was_unready = self.unready.contains_key(&id);
            match read {
                Checked::Assessed(found) => self.assess(id.clone(), found, now),
                // A deleted object is drift, and handled elsewhere.
                Checked::Missing => drop(self.unready.remove(&id)),
                Checked::Unread => {
                    has_changed |= was_unread;
                    self.unread.insert(id, now);
                    continue;
                }
                Checked::Unreadable => {
                    self.unready.remove(&id);
                    continue;
                }
            }
            has_changed |= was_unread || was_unready != self.unready.contains_key(&id);
        }
        self.record_check(has_changed, now);
        self.previous = None;
    }

    fn assess(&mut self, id: ObjectId, found: Assessment, now: Duration) {
        let degrades_at = match found.readiness {
            Readiness::Failed if found.give_up != GiveUp::AtDeadline => now,
            // An unused claim can stay pending forever (`WaitForFirstConsumer`).
            _ if id.is("", "PersistentVolumeClaim") => {
                self.unready.remove(&id);
                return;
            }
            Readiness::Current => {
                self.unready.remove(&id);
                return;
            }
            // The previous controller already reported it.
            _ if self.previous.is_some() => now,
            _ => now + GRACE,
        };
        let known = self.unready.remove(&id);
        let unready_object = UnreadyObject {
            degrades_at: known.map_or(degrades_at, |known| known.degrades_at.min(degrades_at)),
            message: found.message,
        };
        self.unready.insert(id, unready_object);
    }

    /// Returns the condition to report, if degraded.
    pub fn condition(&self, now: Duration) -> Option<Condition> {
        let degrading = self
            .unready
            .iter()
            .filter(|(_, one)| one.degrades_at <= now);
        let mut degrading: Vec<String> = degrading
            .map(|(id, one)| format!("{id}: {}", one.message))
            .collect();
        let more = degrading.len().saturating_sub(NAMED);
        degrading.truncate(NAMED);
        if more > 0 {
            degrading.push(format!("and {more} more"));
        }
        let message = match (degrading.is_empty(), &self.previous) {
            (false, _) => degrading.join("; "),
            (true, Some(previous)) => previous.clone(),
            (true, None) => return None,
        };
        Some(Condition {
            kind: ConditionKind::Degraded,
            reason: NOT_READY.to_owned(),
            message,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(readiness: Readiness) -> Assessment {
        Assessment::new(readiness, "0 of 1 replicas ready")
    }

    fn deployment() -> ObjectId {
        ObjectId::new("apps", "Deployment", Some("shop"), "web")
    }

    fn message(health: &Health, now: Duration) -> Option<String> {
        health.condition(now).map(|condition| condition.message)
    }

    #[test]
    fn an_object_that_stays_unready_degrades_the_release() {
        let mut now = Duration::ZERO;
        let mut health = Health::default();
        health.assess(deployment(), found(Readiness::InProgress), now);
        assert_eq!(message(&health, now), None);
        assert_eq!(health.due(now), Some(now + GRACE));
        now += GRACE / 2;
        // Still unready: the first time counts.
        health.assess(deployment(), found(Readiness::InProgress), now);
        now += GRACE / 2;
        let words = "Deployment.apps/shop/web: 0 of 1 replicas ready";
        assert_eq!(message(&health, now).as_deref(), Some(words));
        assert_eq!(health.due(now), None);
        health.assess(deployment(), found(Readiness::Current), now);
        assert_eq!(message(&health, now), None);
    }

    #[test]
    fn a_failed_object_degrades_the_release_immediately_and_an_unused_volume_claim_never() {
        let mut now = Duration::ZERO;
        let mut health = Health::default();
        health.assess(deployment(), found(Readiness::Failed), now);
        assert!(message(&health, now).is_some());
        health.reset();
        assert_eq!(message(&health, now), None);
        let claim = ObjectId::new("", "PersistentVolumeClaim", Some("shop"), "data");
        health.assess(claim.clone(), found(Readiness::InProgress), now);
        now += GRACE * 2;
        assert_eq!(message(&health, now), None);
        health.assess(claim, found(Readiness::Failed), now);
        assert!(message(&health, now).is_some());
    }

    #[test]
    fn frequent_status_writes_are_checked_less_often() {
        let mut now = Duration::ZERO;
        let mut health = Health::default();
        for expected in [10, 20, 40, 80, 160, 300, 300] {
            assert_eq!(health.debounce(), Duration::from_secs(expected));
            health.record_check(false, now);
            if expected == 10 {
                // The first check is not close to an earlier one.
                health.record_check(false, now);
            }
            now += health.debounce();
        }
        // A check with a change, or a quiet period, resets the delay.
        health.record_check(true, now);
        assert_eq!(health.debounce(), DEBOUNCE);
        health.record_check(false, now);
        assert!(health.debounce() > DEBOUNCE);
        now += MAX_DEBOUNCE * 2;
        health.record_check(false, now);
        assert_eq!(health.debounce(), DEBOUNCE);
    }

    #[test]
    fn the_message_of_a_previous_controller_is_retained_until_a_check() {
        let now = Duration::ZERO;
        let mut health = Health::default();
        assert!(health.restore(Some("web is down".to_owned())));
        assert_eq!(message(&health, now).as_deref(), Some("web is down"));
        health.assess(deployment(), found(Readiness::InProgress), now);
        health.previous = None;
        // Present knowledge replaces the inherited message, without another check.
        assert!(!health.restore(Some("web is down".to_owned())));
        assert!(message(&health, now).unwrap().starts_with("Deployment"));
    }
}
