//! Reports about a release: conditions on its record, and notifications.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use pleach_model::object::ObjectId;
use pleach_state::inventory::{Condition, HEARTBEAT, Orders};
use tokio::time::Instant;

use super::{ReconcileReport, Release, Target};
use crate::{ControllerEvent, ReconcileOutcome, state_changes::Item};
use pleach_engine::{
    sync::{is_cluster, state},
    words,
};

impl Release {
    /// Writes these conditions to the record, unless they are already there.
    pub(super) async fn say(&mut self, wanted: &Target, said: Vec<Condition>) {
        let name = &wanted.release().0.name;
        let store = &wanted.loaded.environment.store;
        let cluster = wanted.planner(false).cluster_for(name);
        let is_due = self.renewed.elapsed() >= HEARTBEAT;
        if is_due || self.told.as_ref() != Some(&said) {
            match state::tell(&cluster, name, store, &said).await {
                Ok(()) => {
                    self.told = Some(said);
                    self.renewed = Instant::now();
                }
                // The next reconcile reports it again.
                Err(error) => {
                    (self.told, self.renewed) = (None, Instant::now());
                    tracing::debug!(release = %name, error = %words(&error), "nothing could be told");
                }
            }
        }
    }

    /// Sends notifications about changes of the state, or of the hold of the environment.
    pub(super) async fn spread(&mut self, wanted: &Target, looked: &ReconcileReport) {
        let revision = wanted.revision();
        let hold = wanted.hold.as_ref();
        if let Some(item) = self.news.of_hold(hold) {
            let held = hold.and_then(|hold| hold.revision.as_deref());
            let at = held.unwrap_or(&revision);
            self.hand_on(wanted, &item, at).await;
        }
        let kept = looked.kept.as_deref();
        if let (Some(item), Some(kept)) = (self.news.of_kept(kept), kept) {
            let revision = kept.wanted.revision();
            self.hand_on(&kept.wanted, &item, &revision).await;
        }
        // Only the retained state was reconciled, not the waiting one.
        let was_reached = kept.is_none() && self.was_reached;
        let item = self
            .news
            .of(wanted, looked.end, was_reached, &looked.message);
        if let Some(item) = item {
            self.hand_on(wanted, &item, &revision).await;
        }
        self.spread_contended(wanted).await;
        self.spread_health(wanted).await;
    }

    /// Reports the number of contended fields, and sends a notification when contention starts.
    async fn spread_contended(&mut self, wanted: &Target) {
        self.shared.listener.tell(ControllerEvent::Contended {
            release: wanted.release().0.name.clone(),
            fields: self.contended.len(),
        });
        if let Some(item) = self.news.of_contended(&self.contended) {
            self.hand_on(wanted, &item, &wanted.revision()).await;
        }
    }

    /// Checks the readiness of written objects, and reports it with the other conditions.
    pub(super) async fn check(
        &mut self,
        wanted: &Arc<Target>,
        written: BTreeSet<ObjectId>,
        said: Vec<Condition>,
    ) {
        let Some(subscription) = &self.subscription else {
            return;
        };
        let kept = self.reached.as_ref().unwrap_or(wanted);
        let (release, _) = kept.release();
        let cluster = wanted.planner(false).cluster_for(&release.name);
        let rules = &release.sequence.readiness;
        let path = |id: &ObjectId| subscription.path(&id.group_kind());
        self.health.look(&cluster, rules, written, path).await;
        if self.is_ours {
            let said = self.with_health(said);
            self.say(wanted, said).await;
        }
        self.spread_health(wanted).await;
    }

    /// Adds the readiness condition, if any.
    pub(super) fn with_health(&self, mut said: Vec<Condition>) -> Vec<Condition> {
        said.extend(self.health.condition());
        said
    }

    /// Sends a notification about lost or regained readiness.
    async fn spread_health(&mut self, wanted: &Target) {
        let condition = self.health.condition();
        self.shared.listener.tell(ControllerEvent::HealthChecked {
            release: wanted.release().0.name.clone(),
            is_degraded: condition.is_some(),
        });
        let item = self.news.of_health(condition.as_ref());
        if let Some(item) = item {
            self.hand_on(wanted, &item, &wanted.revision()).await;
        }
    }

    /// Sends a notification about the release at a commit.
    async fn hand_on(&self, wanted: &Target, item: &Item, revision: &str) {
        let (release, _) = wanted.release();
        let name = &release.name;
        let version = wanted.loaded.version(release);
        if let Some(news) = item.news(name, (version.as_str(), revision), Timestamp::now()) {
            self.shared
                .listener
                .tell(ControllerEvent::StateChanged(news));
        }
        if !self.is_ours {
            return;
        }
        let cluster = wanted.planner(false).cluster_for(name);
        let store = &wanted.loaded.environment.store;
        let said = item.announcement(revision);
        if let Err(error) = state::announce(&cluster, name, store, said).await {
            tracing::debug!(release = %name, error = %words(&error), "no Event could be written");
        }
    }

    /// Reports the outcome, and withdraws fulfilled requests.
    pub(super) async fn tell(&mut self, wanted: &Target, looked: &ReconcileReport) {
        let is_lasting = looked.end == ReconcileOutcome::Failed && looked.condition.is_some();
        if !self.is_ours && is_lasting {
            // No plan has verified the record yet.
            self.is_ours = has_record(wanted).await;
        }
        if !self.is_ours {
            return;
        }
        let said = self.with_health(looked.conditions(&wanted.conditions));
        self.say(wanted, said).await;
        let name = &wanted.release().0.name;
        let store = &wanted.loaded.environment.store;
        let cluster = wanted.planner(false).cluster_for(name);
        if let Some(request) = &looked.request {
            let done = |orders: &mut Orders| {
                if orders.sync.as_ref() == Some(request) {
                    orders.sync = None;
                }
            };
            if let Err(error) = state::order(&cluster, name, store, done).await {
                tracing::debug!(release = %name, error = %words(&error), "a request could not be taken back");
            }
        }
    }
}

/// Returns whether the expected cluster has a record of this release from this repository. False if
/// that cannot be read.
async fn has_record(wanted: &Target) -> bool {
    let environment = &wanted.loaded.environment;
    let (name, store) = (&wanted.release().0.name, &environment.store);
    let cluster = wanted.planner(false).cluster_for(name);
    if let Some(id) = &wanted.cluster_id
        && is_cluster(&cluster, store, &id.0).await != Some(true)
    {
        return false;
    }
    match state::is_of(&cluster, name, store, &environment.repository).await {
        Ok(is_ours) => is_ours,
        Err(error) => {
            tracing::debug!(release = %name, error = %words(&error), "nobody knows whose record it is");
            false
        }
    }
}
