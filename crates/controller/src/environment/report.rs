//! Reports about releases without a task: conditions on their records, and notifications.

use jiff::Timestamp;
use pleach_reconciler::environment::{Report, Reported, StallNotification};
use pleach_state::inventory::{ReleaseSummary, Source, Store};

use super::tasks::Executor;
use crate::{ControllerEvent, SourcePolicy, kubernetes_events::announcement};
use pleach_cluster::Class;
use pleach_engine::{
    load::Loaded,
    sync::{is_cluster, state},
    words,
};

impl Executor {
    /// Writes reports to the records of the environment.
    pub(super) async fn report(&mut self, loaded: Option<&Loaded>, reports: &[Report]) -> Reported {
        self.reported.clear();
        let error = Box::pin(self.write(loaded, reports)).await.err();
        let names = self.reported.iter();
        Reported {
            written: names.map(|release| release.name.release.clone()).collect(),
            connection: self.connected.as_ref().map(|_| self.connection),
            error,
        }
    }

    async fn write(&mut self, loaded: Option<&Loaded>, reports: &[Report]) -> Result<(), String> {
        let connected = self.connect(loaded).await?;
        let (cluster, search) = (connected.cluster.clone(), connected.search());
        let source_policy = &self.current.source_policy;
        let id = source_policy
            .cluster
            .as_ref()
            .or(source_policy.fallback.as_ref());
        let source = source_policy.source(&self.key.environment);
        let records = match state::releases(&cluster, &search).await {
            Ok(records) => records.releases,
            // Without permission to list records, no release is known.
            Err(error) if error.class() == Some(&Class::Forbidden) => Vec::new(),
            Err(error) => return Err(words(&error)),
        };
        for release in records {
            if release.name.environment != self.key.environment
                || !is_of_repository(&release, source.as_ref())
                || !is_allowed(source_policy, &release.store)
            {
                continue;
            }
            let name = &release.name;
            let mut reports = reports.iter();
            let Some(report) = reports.find(|report| report.is_about(&name.release)) else {
                continue;
            };
            let is_intended = match id {
                // Another cluster can have a release of the same name.
                Some(id) => is_cluster(&cluster, &release.store, &id.0).await == Some(true),
                None => true,
            };
            if is_intended {
                let written = state::report(&cluster, name, &release.store, &report.conditions);
                written.await.map_err(|error| words(&error))?;
                self.reported.push(release);
            }
        }
        Ok(())
    }

    /// Sends notifications about holds, also as Kubernetes Events.
    pub(super) async fn notify(&self, notifications: Vec<StallNotification>) {
        for notification in notifications {
            let mut records = self.reported.iter();
            let release = records.find(|one| one.name.release == notification.release);
            if let Some(release) = release {
                Box::pin(self.notify_about(release, &notification)).await;
            }
        }
    }

    async fn notify_about(&self, release: &ReleaseSummary, notification: &StallNotification) {
        let StallNotification {
            release: _,
            revision,
            notice,
        } = notification;
        let name = &release.name;
        let installed = release.record.as_ref().ok();
        let installed = installed.and_then(|record| record.installed.as_ref());
        let (version, recorded) = installed
            .map(|one| (one.version.as_str(), one.revision.as_str()))
            .unwrap_or_default();
        let revision = revision.as_deref().unwrap_or(recorded);
        if let Some(change) = notice.state_change(name, (version, revision), Timestamp::now()) {
            let event = ControllerEvent::StateChanged(change);
            self.shared.events.report(event);
        }
        let Some(connected) = &self.connected else {
            return;
        };
        let announcement = announcement(notice, revision);
        let announced = state::announce(&connected.cluster, name, &release.store, announcement);
        if let Err(error) = announced.await {
            tracing::debug!(release = %name, error = %words(&error), "failed to write an Event");
        }
    }
}

/// Returns whether a release can belong to this repository. A record from another repository
/// excludes that, whatever the name.
fn is_of_repository(release: &ReleaseSummary, source: Option<&Source>) -> bool {
    let Some(ours) = source else { return true };
    release.record.as_ref().is_ok_and(|record| {
        let source = record.source.as_ref();
        source.is_none_or(|source| source.url == ours.url)
    })
}

fn is_allowed(source_policy: &SourcePolicy, store: &Store) -> bool {
    let allow = source_policy.allow.as_ref();
    allow.is_none_or(|allow| allow.refuse_store(store).is_none())
}
