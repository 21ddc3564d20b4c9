//! Reports about a release: conditions on its record, and notifications.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use pleach_model::object::ObjectId;
use pleach_state::inventory::{Condition, HEARTBEAT, UserRequests};
use tokio::time::Instant;

use super::{ReconcileReport, Release, Target};
use crate::{ControllerEvent, ReconcileOutcome, state_changes::Item};
use pleach_engine::{
    sync::{is_cluster, state},
    words,
};

impl Release {
    /// Writes these conditions to the record, unless they are already there.
    pub(super) async fn say(&mut self, desired: &Target, conditions: Vec<Condition>) {
        let name = &desired.release().0.name;
        let store = &desired.loaded.environment.store;
        let cluster = desired.planner(false).cluster_for(name);
        let is_due = self.renewed.elapsed() >= HEARTBEAT;
        if is_due || self.told.as_ref() != Some(&conditions) {
            match state::report(&cluster, name, store, &conditions).await {
                Ok(()) => {
                    self.told = Some(conditions);
                    self.renewed = Instant::now();
                }
                // The next reconcile reports it again.
                Err(error) => {
                    (self.told, self.renewed) = (None, Instant::now());
                    tracing::debug!(release = %name, error = %words(&error), "failed to write the conditions");
                }
            }
        }
    }

    /// Sends notifications about changes of the state, or of the hold of the environment.
    pub(super) async fn spread(&mut self, desired: &Target, report: &ReconcileReport) {
        let revision = desired.revision();
        let hold = desired.hold.as_ref();
        if let Some(item) = self.news.of_hold(hold) {
            let held = hold.and_then(|hold| hold.revision.as_deref());
            let at = held.unwrap_or(&revision);
            self.hand_on(desired, &item, at).await;
        }
        let kept = report.kept.as_deref();
        if let (Some(item), Some(kept)) = (self.news.of_kept(kept), kept) {
            let revision = kept.wanted.revision();
            self.hand_on(&kept.wanted, &item, &revision).await;
        }
        // Only the retained state was reconciled, not the waiting one.
        let was_reached = kept.is_none() && self.was_reached;
        let item = self
            .news
            .of(desired, report.end, was_reached, &report.message);
        if let Some(item) = item {
            self.hand_on(desired, &item, &revision).await;
        }
        self.spread_contended(desired).await;
        self.spread_health(desired).await;
    }

    /// Reports the number of contended fields, and sends a notification when contention starts.
    async fn spread_contended(&mut self, desired: &Target) {
        self.shared.listener.report(ControllerEvent::Contended {
            release: desired.release().0.name.clone(),
            fields: self.contended.len(),
        });
        if let Some(item) = self.news.of_contended(&self.contended) {
            self.hand_on(desired, &item, &desired.revision()).await;
        }
    }

    /// Checks the readiness of written objects, and reports it with the other conditions.
    pub(super) async fn check(
        &mut self,
        desired: &Arc<Target>,
        written: BTreeSet<ObjectId>,
        conditions: Vec<Condition>,
    ) {
        let Some(subscription) = &self.subscription else {
            return;
        };
        let kept = self.reached.as_ref().unwrap_or(desired);
        let (release, _) = kept.release();
        let cluster = desired.planner(false).cluster_for(&release.name);
        let rules = &release.sequence.readiness;
        let path = |id: &ObjectId| subscription.path(&id.group_kind());
        self.health.inspect(&cluster, rules, written, path).await;
        if self.is_ours {
            let conditions = self.with_health(conditions);
            self.say(desired, conditions).await;
        }
        self.spread_health(desired).await;
    }

    /// Adds the readiness condition, if any.
    pub(super) fn with_health(&self, mut conditions: Vec<Condition>) -> Vec<Condition> {
        conditions.extend(self.health.condition());
        conditions
    }

    /// Sends a notification about lost or regained readiness.
    async fn spread_health(&mut self, desired: &Target) {
        let condition = self.health.condition();
        self.shared.listener.report(ControllerEvent::HealthChecked {
            release: desired.release().0.name.clone(),
            is_degraded: condition.is_some(),
        });
        let item = self.news.of_health(condition.as_ref());
        if let Some(item) = item {
            self.hand_on(desired, &item, &desired.revision()).await;
        }
    }

    /// Sends a notification about the release at a commit.
    async fn hand_on(&self, desired: &Target, item: &Item, revision: &str) {
        let (release, _) = desired.release();
        let name = &release.name;
        let version = desired.loaded.version(release);
        if let Some(news) = item.news(name, (version.as_str(), revision), Timestamp::now()) {
            self.shared
                .listener
                .report(ControllerEvent::StateChanged(news));
        }
        if !self.is_ours {
            return;
        }
        let cluster = desired.planner(false).cluster_for(name);
        let store = &desired.loaded.environment.store;
        let announcement = item.announcement(revision);
        if let Err(error) = state::announce(&cluster, name, store, announcement).await {
            tracing::debug!(release = %name, error = %words(&error), "failed to write an Event");
        }
    }

    /// Reports the outcome, and withdraws fulfilled requests.
    pub(super) async fn report(&mut self, desired: &Target, report: &ReconcileReport) {
        let is_lasting = report.end == ReconcileOutcome::Failed && report.condition.is_some();
        if !self.is_ours && is_lasting {
            // No plan has verified the record yet.
            self.is_ours = has_record(desired).await;
        }
        if !self.is_ours {
            return;
        }
        let conditions = self.with_health(report.conditions(&desired.conditions));
        self.say(desired, conditions).await;
        let name = &desired.release().0.name;
        let store = &desired.loaded.environment.store;
        let cluster = desired.planner(false).cluster_for(name);
        if let Some(request) = &report.request {
            let done = |orders: &mut UserRequests| {
                if orders.sync.as_ref() == Some(request) {
                    orders.sync = None;
                }
            };
            if let Err(error) = state::order(&cluster, name, store, done).await {
                tracing::debug!(release = %name, error = %words(&error), "failed to withdraw a sync request");
            }
        }
    }
}

/// Returns whether the expected cluster has a record of this release from this repository. False if
/// that cannot be read.
async fn has_record(desired: &Target) -> bool {
    let environment = &desired.loaded.environment;
    let (name, store) = (&desired.release().0.name, &environment.store);
    let cluster = desired.planner(false).cluster_for(name);
    if let Some(id) = &desired.cluster_id
        && is_cluster(&cluster, store, &id.0).await != Some(true)
    {
        return false;
    }
    match state::is_of(&cluster, name, store, &environment.repository).await {
        Ok(is_ours) => is_ours,
        Err(error) => {
            tracing::debug!(release = %name, error = %words(&error), "failed to read the repository of the record");
            false
        }
    }
}
