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
const AGAIN: Duration = Duration::from_mins(1);
/// Delay between a write and its readiness check. An object that is still changing is written
/// repeatedly.
const CALM: Duration = Duration::from_secs(10);
/// Upper bound of the delay. It doubles with each check without news, because some controllers keep
/// writing to the status of ready objects.
const CALMEST: Duration = Duration::from_mins(5);
/// Reason of the condition.
const NOT_READY: &str = "NotReady";

/// Readiness of a release. Times are monotonic, since the controller started.
#[derive(Debug, Default)]
pub struct Health {
    ailing: BTreeMap<ObjectId, Ailment>,
    /// Objects that could not be read, with the time of the attempt.
    unread: BTreeMap<ObjectId, Duration>,
    /// Message of a previous controller about the release.
    previous: Option<String>,
    /// Whether all objects need a check.
    is_uncertain: bool,
    /// Number of consecutive, closely spaced checks without a change.
    fruitless: u32,
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
struct Ailment {
    /// Time from which it degrades the release.
    counts_at: Duration,
    message: String,
}

impl Health {
    /// Takes over the message of a previous controller and schedules a check. Returns whether the
    /// message is new.
    pub fn said_before(&mut self, degraded: Option<String>) -> bool {
        let is_new = degraded.is_some() && self.ailing.is_empty();
        if is_new {
            self.previous = degraded;
            self.is_uncertain = true;
        }
        is_new
    }

    /// Schedules a check of all objects.
    pub fn doubt(&mut self) {
        self.is_uncertain = true;
    }

    /// Returns and clears whether all objects need a check.
    pub fn is_uncertain(&mut self) -> bool {
        std::mem::take(&mut self.is_uncertain)
    }

    /// Resets the state after a run that waited for everything.
    pub fn is_well(&mut self) {
        *self = Self::default();
    }

    /// Returns the delay between a write and its check.
    pub fn calm(&self) -> Duration {
        CALM.saturating_mul(1 << self.fruitless.min(5)).min(CALMEST)
    }

    /// Records whether a check found a change.
    fn note(&mut self, is_other: bool, now: Duration) {
        let calm = self.calm();
        let is_soon = self.checked.is_some_and(|checked| now < checked + calm * 2);
        self.fruitless = if is_soon && !is_other {
            self.fruitless.saturating_add(1)
        } else {
            0
        };
        self.checked = Some(now);
    }

    /// Returns the time of the next check without a write, or `None`.
    pub fn due(&self, now: Duration) -> Option<Duration> {
        let ailing = self.ailing.values().map(|one| one.counts_at);
        let ailing = ailing.filter(|at| *at > now);
        let unread = self.unread.values().map(|tried| *tried + AGAIN);
        ailing.chain(unread).min()
    }

    /// Returns the objects that need a repeated check.
    pub fn pending(&self) -> impl Iterator<Item = &ObjectId> {
        self.ailing.keys().chain(self.unread.keys())
    }

    /// Evaluates a check of these objects, which include the pending ones.
    pub fn check(&mut self, read: impl IntoIterator<Item = (ObjectId, Checked)>, now: Duration) {
        let mut is_other = false;
        for (id, read) in read {
            let was_unread = self.unread.remove(&id).is_some();
            let was_ailing = self.ailing.contains_key(&id);
            match read {
                Checked::Assessed(found) => self.judge(id.clone(), found, now),
                // A deleted object is drift, and handled elsewhere.
                Checked::Missing => drop(self.ailing.remove(&id)),
                Checked::Unread => {
                    is_other |= was_unread;
                    self.unread.insert(id, now);
                    continue;
                }
                Checked::Unreadable => {
                    self.ailing.remove(&id);
                    continue;
                }
            }
            is_other |= was_unread || was_ailing != self.ailing.contains_key(&id);
        }
        self.note(is_other, now);
        self.previous = None;
    }

    fn judge(&mut self, id: ObjectId, found: Assessment, now: Duration) {
        let counts_at = match found.readiness {
            Readiness::Failed if found.give_up != GiveUp::AtDeadline => now,
            // An unused claim can stay pending forever (`WaitForFirstConsumer`).
            _ if id.is("", "PersistentVolumeClaim") => {
                self.ailing.remove(&id);
                return;
            }
            Readiness::Current => {
                self.ailing.remove(&id);
                return;
            }
            // The previous controller already reported it.
            _ if self.previous.is_some() => now,
            _ => now + GRACE,
        };
        let known = self.ailing.remove(&id);
        let ailment = Ailment {
            counts_at: known.map_or(counts_at, |known| known.counts_at.min(counts_at)),
            message: found.message,
        };
        self.ailing.insert(id, ailment);
    }

    /// Returns the condition to report, if degraded.
    pub fn condition(&self, now: Duration) -> Option<Condition> {
        let degrading = self.ailing.iter().filter(|(_, one)| one.counts_at <= now);
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

    fn said(health: &Health, now: Duration) -> Option<String> {
        health.condition(now).map(|condition| condition.message)
    }

    #[test]
    fn what_is_not_ready_for_a_while_degrades_the_release() {
        let mut now = Duration::ZERO;
        let mut health = Health::default();
        health.judge(deployment(), found(Readiness::InProgress), now);
        assert_eq!(said(&health, now), None);
        assert_eq!(health.due(now), Some(now + GRACE));
        now += GRACE / 2;
        // Still unready: the first time counts.
        health.judge(deployment(), found(Readiness::InProgress), now);
        now += GRACE / 2;
        let words = "Deployment.apps/shop/web: 0 of 1 replicas ready";
        assert_eq!(said(&health, now).as_deref(), Some(words));
        assert_eq!(health.due(now), None);
        health.judge(deployment(), found(Readiness::Current), now);
        assert_eq!(said(&health, now), None);
    }

    #[test]
    fn what_failed_degrades_it_at_once_and_an_unused_claim_does_not() {
        let mut now = Duration::ZERO;
        let mut health = Health::default();
        health.judge(deployment(), found(Readiness::Failed), now);
        assert!(said(&health, now).is_some());
        health.is_well();
        assert_eq!(said(&health, now), None);
        let claim = ObjectId::new("", "PersistentVolumeClaim", Some("shop"), "data");
        health.judge(claim.clone(), found(Readiness::InProgress), now);
        now += GRACE * 2;
        assert_eq!(said(&health, now), None);
        health.judge(claim, found(Readiness::Failed), now);
        assert!(said(&health, now).is_some());
    }

    #[test]
    fn who_writes_a_status_without_end_is_read_less_and_less() {
        let mut now = Duration::ZERO;
        let mut health = Health::default();
        for expected in [10, 20, 40, 80, 160, 300, 300] {
            assert_eq!(health.calm(), Duration::from_secs(expected));
            health.note(false, now);
            if expected == 10 {
                // The first check is not close to an earlier one.
                health.note(false, now);
            }
            now += health.calm();
        }
        // A check with a change, or a quiet period, resets the delay.
        health.note(true, now);
        assert_eq!(health.calm(), CALM);
        health.note(false, now);
        assert!(health.calm() > CALM);
        now += CALMEST * 2;
        health.note(false, now);
        assert_eq!(health.calm(), CALM);
    }

    #[test]
    fn what_was_said_before_stands_until_somebody_looked() {
        let now = Duration::ZERO;
        let mut health = Health::default();
        assert!(health.said_before(Some("web is down".to_owned())));
        assert_eq!(said(&health, now).as_deref(), Some("web is down"));
        health.judge(deployment(), found(Readiness::InProgress), now);
        health.previous = None;
        // Present knowledge replaces the inherited message, without another check.
        assert!(!health.said_before(Some("web is down".to_owned())));
        assert!(said(&health, now).unwrap().starts_with("Deployment"));
    }
}
