//! Whether what was brought about stays ready.
//!
//! A watch of metadata says that something was written to an object, be it only its
//! status. Then it is read, and by the rules that a run waits by it is ready or not. What
//! is not ready for a while degrades the release; nothing is done about it, as git says
//! nothing else than what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use pleach_domain::inventory::{Condition, ConditionKind};
use pleach_domain::object::ObjectId;
use pleach_domain::readiness::{Assessment, GiveUp, Readiness, Rules};
use tokio::time::Instant;

use super::NAMED;
use crate::io::cluster::{Cluster, ResourcePath, Retry};

/// How long something may not be ready: what changes gets ready by itself.
const GRACE: Duration = Duration::from_mins(1);
/// When an object is read again that could not be read.
const AGAIN: Duration = Duration::from_mins(1);
/// How long answers are waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// After this time it is looked whether what was written to is ready: what is on its way
/// writes again and again.
const CALM: Duration = Duration::from_secs(10);
/// That time at most: it doubles with every look that finds nothing else, as some write
/// without end to the status of what is ready.
const CALMEST: Duration = Duration::from_mins(5);
/// How many objects are read at once.
const CONCURRENCY: usize = 4;
/// Reason of the condition.
const NOT_READY: &str = "NotReady";

/// What is known of the readiness of a release.
#[derive(Debug, Default)]
pub(super) struct Health {
    ailing: BTreeMap<ObjectId, Ailment>,
    /// What could not be read, and when it was tried.
    unread: BTreeMap<ObjectId, Instant>,
    /// What a loop said of it before this one looked.
    former: Option<String>,
    /// Whether all of it is to be looked at.
    is_uncertain: bool,
    /// How many looks in a row found nothing else, soon after each other.
    fruitless: u32,
    looked: Option<Instant>,
}

/// Something that is not ready.
#[derive(Debug)]
struct Ailment {
    /// From when on it degrades the release.
    counts_at: Instant,
    message: String,
}

impl Health {
    /// Takes what was said of the release before, which is looked at; whether it says
    /// anything that is not known.
    pub(super) fn said_before(&mut self, degraded: Option<String>) -> bool {
        let is_new = degraded.is_some() && self.ailing.is_empty();
        if is_new {
            self.former = degraded;
            self.is_uncertain = true;
        }
        is_new
    }

    /// All of it is to be looked at.
    pub(super) fn doubt(&mut self) {
        self.is_uncertain = true;
    }

    /// Whether all of it is to be looked at: that is done now.
    pub(super) fn is_uncertain(&mut self) -> bool {
        std::mem::take(&mut self.is_uncertain)
    }

    /// It was brought about, with all that is waited for.
    pub(super) fn is_well(&mut self) {
        *self = Self::default();
    }

    /// How long nothing is looked at after something was written to.
    pub(super) fn calm(&self) -> Duration {
        CALM.saturating_mul(1 << self.fruitless.min(5)).min(CALMEST)
    }

    /// Notes whether a look found anything else than before.
    fn note(&mut self, is_other: bool, now: Instant) {
        let calm = self.calm();
        let is_soon = self.looked.is_some_and(|looked| now < looked + calm * 2);
        self.fruitless = if is_soon && !is_other {
            self.fruitless.saturating_add(1)
        } else {
            0
        };
        self.looked = Some(now);
    }

    /// When something is to be looked at without being written to.
    pub(super) fn due(&self) -> Option<Instant> {
        let now = Instant::now();
        let ailing = self.ailing.values().map(|one| one.counts_at);
        let ailing = ailing.filter(|at| *at > now);
        let unread = self.unread.values().map(|tried| *tried + AGAIN);
        ailing.chain(unread).min()
    }

    /// Reads objects, and those that are to be read again.
    pub(super) async fn look(
        &mut self,
        cluster: &Cluster,
        rules: &Rules,
        mut written: BTreeSet<ObjectId>,
        path: impl Fn(&ObjectId) -> Option<ResourcePath>,
    ) {
        let now = Instant::now();
        written.extend(self.ailing.keys().cloned());
        written.extend(self.unread.keys().cloned());
        // What nobody serves any more cannot be read, now or later.
        written.retain(|id| path(id).is_some());
        self.ailing.retain(|id, _| written.contains(id));
        self.unread.retain(|id, _| written.contains(id));
        let cluster = &cluster.clone().with_retry(Retry::until(now + PATIENCE));
        let places = written.into_iter();
        let places = places.filter_map(|id| Some((path(&id)?, id)));
        let read: Vec<_> = stream::iter(places)
            .map(|(path, id)| async move {
                let read = cluster.get_id(&path, &id).await;
                (id, read)
            })
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
        let mut is_other = false;
        for (id, read) in read {
            is_other |= self.unread.remove(&id).is_some();
            let was_ailing = self.ailing.contains_key(&id);
            match read {
                Ok(Some(value)) => self.judge(id.clone(), rules.assess(&value), now),
                // Who took it away is drift.
                Ok(None) => drop(self.ailing.remove(&id)),
                Err(_) => {
                    self.unread.insert(id, now);
                    continue;
                }
            }
            is_other |= was_ailing != self.ailing.contains_key(&id);
        }
        self.note(is_other, now);
        self.former = None;
    }

    fn judge(&mut self, id: ObjectId, found: Assessment, now: Instant) {
        let counts_at = match found.readiness {
            Readiness::Failed if found.give_up != GiveUp::AtDeadline => now,
            // A claim that no pod uses yet may wait for that without end.
            _ if id.is("", "PersistentVolumeClaim") => {
                self.ailing.remove(&id);
                return;
            }
            Readiness::Current => {
                self.ailing.remove(&id);
                return;
            }
            // It was said before, and still is so.
            _ if self.former.is_some() => now,
            _ => now + GRACE,
        };
        let known = self.ailing.remove(&id);
        let ailment = Ailment {
            counts_at: known.map_or(counts_at, |known| known.counts_at.min(counts_at)),
            message: found.message,
        };
        self.ailing.insert(id, ailment);
    }

    /// What there is to say of it.
    pub(super) fn condition(&self) -> Option<Condition> {
        let now = Instant::now();
        let degrading = self.ailing.iter().filter(|(_, one)| one.counts_at <= now);
        let mut degrading: Vec<String> = degrading
            .map(|(id, one)| format!("{id}: {}", one.message))
            .collect();
        let more = degrading.len().saturating_sub(NAMED);
        degrading.truncate(NAMED);
        if more > 0 {
            degrading.push(format!("and {more} more"));
        }
        let message = match (degrading.is_empty(), &self.former) {
            (false, _) => degrading.join("; "),
            (true, Some(former)) => former.clone(),
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

    fn said(health: &Health) -> Option<String> {
        health.condition().map(|condition| condition.message)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_ready_for_a_while_degrades_the_release() {
        let mut health = Health::default();
        health.judge(deployment(), found(Readiness::InProgress), Instant::now());
        assert_eq!(said(&health), None);
        assert_eq!(health.due(), Some(Instant::now() + GRACE));
        tokio::time::advance(GRACE / 2).await;
        // It still is not: from when it was not first.
        health.judge(deployment(), found(Readiness::InProgress), Instant::now());
        tokio::time::advance(GRACE / 2).await;
        let words = "Deployment.apps/shop/web: 0 of 1 replicas ready";
        assert_eq!(said(&health).as_deref(), Some(words));
        assert_eq!(health.due(), None);
        health.judge(deployment(), found(Readiness::Current), Instant::now());
        assert_eq!(said(&health), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_failed_degrades_it_at_once_and_an_unused_claim_does_not() {
        let mut health = Health::default();
        health.judge(deployment(), found(Readiness::Failed), Instant::now());
        assert!(said(&health).is_some());
        health.is_well();
        assert_eq!(said(&health), None);
        let claim = ObjectId::new("", "PersistentVolumeClaim", Some("shop"), "data");
        health.judge(claim.clone(), found(Readiness::InProgress), Instant::now());
        tokio::time::advance(GRACE * 2).await;
        assert_eq!(said(&health), None);
        health.judge(claim, found(Readiness::Failed), Instant::now());
        assert!(said(&health).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_writes_a_status_without_end_is_read_less_and_less() {
        let mut health = Health::default();
        for expected in [10, 20, 40, 80, 160, 300, 300] {
            assert_eq!(health.calm(), Duration::from_secs(expected));
            health.note(false, Instant::now());
            if expected == 10 {
                // The first look is soon after nothing.
                health.note(false, Instant::now());
            }
            tokio::time::advance(health.calm()).await;
        }
        // Something comes of it, or it was quiet for a while.
        health.note(true, Instant::now());
        assert_eq!(health.calm(), CALM);
        health.note(false, Instant::now());
        assert!(health.calm() > CALM);
        tokio::time::advance(CALMEST * 2).await;
        health.note(false, Instant::now());
        assert_eq!(health.calm(), CALM);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_said_before_stands_until_somebody_looked() {
        let mut health = Health::default();
        assert!(health.said_before(Some("web is down".to_owned())));
        assert_eq!(said(&health).as_deref(), Some("web is down"));
        health.judge(deployment(), found(Readiness::InProgress), Instant::now());
        health.former = None;
        // What is known is said in its place, and not looked at again for that.
        assert!(!health.said_before(Some("web is down".to_owned())));
        assert!(said(&health).unwrap().starts_with("Deployment"));
    }
}
