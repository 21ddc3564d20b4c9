//! Reports about a release: conditions on its record, and notifications.

use jiff::Timestamp;
use pleach_reconciler::release::{Answer, Notification, Ownership, StatusReport};
use pleach_state::inventory::{Condition, SyncRequest, UserRequests};

use super::Targets;
use super::tasks::Executor;
use crate::{ControllerEvent, kubernetes_events::announcement, run::Target};
use pleach_engine::{
    sync::{is_cluster, state},
    words,
};

impl Executor {
    /// Writes the conditions before a run, unless the observed record already has them.
    pub(super) async fn write_conditions(
        &mut self,
        status: StatusReport,
        targets: &Targets,
    ) -> Answer {
        let conditions = status.conditions.as_deref().unwrap_or_default();
        if self.are_written(conditions) {
            return Answer::Reported {
                is_ours: true,
                written: None,
            };
        }
        self.report(status, targets).await
    }

    /// Writes conditions, withdraws a request and sends notifications.
    pub(super) async fn report(&self, status: StatusReport, targets: &Targets) -> Answer {
        let StatusReport {
            ownership,
            conditions,
            unless: _,
            fulfilled,
            notifications,
            contended,
            is_degraded,
        } = status;
        let is_ours = match ownership {
            Ownership::Ours => true,
            Ownership::Foreign => false,
            Ownership::Ask => has_record(&self.current).await,
        };
        let mut written = None;
        if is_ours {
            if let Some(conditions) = &conditions {
                written = Some(self.write(conditions).await);
            }
            if let Some(request) = &fulfilled {
                self.withdraw(request).await;
            }
        }
        for notification in notifications {
            self.notify(&notification, targets, is_ours).await;
        }
        let release = &self.current.release().0.name;
        if let Some(fields) = contended {
            let release = release.clone();
            let event = ControllerEvent::Contended { release, fields };
            self.shared.events.report(event);
        }
        if let Some(is_degraded) = is_degraded {
            self.shared.events.report(ControllerEvent::HealthChecked {
                release: release.clone(),
                is_degraded,
            });
        }
        Answer::Reported { is_ours, written }
    }

    /// Writes these conditions to the record. Returns false if that failed.
    async fn write(&self, conditions: &[Condition]) -> bool {
        let name = &self.current.release().0.name;
        let store = &self.current.loaded.environment.store;
        let cluster = self.current.planner(false).cluster_for(name);
        let written = state::report(&cluster, name, store, conditions).await;
        if let Err(error) = &written {
            tracing::debug!(release = %name, error = %words(error), "failed to write the conditions");
        }
        written.is_ok()
    }

    /// Withdraws a fulfilled sync request, unless a newer one replaced it.
    async fn withdraw(&self, request: &SyncRequest) {
        let name = &self.current.release().0.name;
        let store = &self.current.loaded.environment.store;
        let cluster = self.current.planner(false).cluster_for(name);
        let done = |requests: &mut UserRequests| {
            if requests.sync.as_ref() == Some(request) {
                requests.sync = None;
            }
        };
        if let Err(error) = state::order(&cluster, name, store, done).await {
            tracing::debug!(release = %name, error = %words(&error), "failed to withdraw a sync request");
        }
    }

    /// Sends a notification, and writes it as an Event if the record is ours.
    async fn notify(&self, notification: &Notification, targets: &Targets, is_ours: bool) {
        let Notification {
            target,
            revision,
            notice,
        } = notification;
        let target = targets.get(target).unwrap_or(&self.current);
        let (release, _) = target.release();
        let name = &release.name;
        let version = target.loaded.version(release);
        if let Some(change) =
            notice.state_change(name, (version.as_str(), revision), Timestamp::now())
        {
            let event = ControllerEvent::StateChanged(change);
            self.shared.events.report(event);
        }
        if !is_ours {
            return;
        }
        let cluster = target.planner(false).cluster_for(name);
        let store = &target.loaded.environment.store;
        let announcement = announcement(notice, revision);
        if let Err(error) = state::announce(&cluster, name, store, announcement).await {
            tracing::debug!(release = %name, error = %words(&error), "failed to write an Event");
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
