//! Reports about releases that left git: conditions on their records, and notifications.

use jiff::Timestamp;
use pleach_model::object::ReleaseName;
use pleach_reconciler::{outcome::ReconcileReport, state_changes::NotificationState};
use pleach_state::inventory::{Condition, Store};

use super::UninstallTask;
use crate::{ControllerEvent, ReconcileOutcome, kubernetes_events::announcement, run::Target};
use pleach_engine::{sync::state, words};

/// Last report about a release that left git.
#[derive(Default)]
pub(super) struct LastReport {
    conditions: Option<Vec<Condition>>,
    notifications: NotificationState,
}

/// A release that left git.
pub(super) struct RemovedRelease<'a> {
    pub(super) name: &'a ReleaseName,
    /// Store of its record.
    pub(super) store: &'a Store,
    /// Last installed version.
    pub(super) version: &'a str,
}

impl UninstallTask {
    /// Reports the outcome for a release that left git, if it changed.
    pub(super) async fn report(
        &mut self,
        desired: &Target,
        removed: RemovedRelease<'_>,
        report: &ReconcileReport,
    ) {
        let RemovedRelease {
            name,
            store,
            version,
        } = removed;
        if matches!(
            report.outcome,
            ReconcileOutcome::Interrupted | ReconcileOutcome::Superseded
        ) {
            return;
        }
        let cluster = desired.planner(false).cluster_for(name);
        let removed = self.removed.entry(name.clone()).or_default();
        let conditions = report.conditions(&desired.conditions);
        if report.outcome != ReconcileOutcome::Removed
            && removed.conditions.as_ref() != Some(&conditions)
        {
            match state::report(&cluster, name, store, &conditions).await {
                Ok(()) => removed.conditions = Some(conditions),
                // The next reconcile reports it again.
                Err(error) => {
                    tracing::debug!(release = %name, error = %words(&error), "failed to write the conditions");
                }
            }
        }
        let revision = desired.revision();
        let now = self.shared.clock.now();
        let message = &report.message;
        let notice =
            removed
                .notifications
                .of_outcome(report.outcome, false, &revision, message, now);
        if report.outcome == ReconcileOutcome::Removed {
            self.removed.remove(name);
        }
        let Some(notice) = notice else { return };
        if let Some(notifications) =
            notice.state_change(name, (version, &revision), Timestamp::now())
        {
            self.shared
                .events
                .report(ControllerEvent::StateChanged(notifications));
        }
        let announcement = announcement(&notice, &revision);
        if let Err(error) = state::announce(&cluster, name, store, announcement).await {
            tracing::debug!(release = %name, error = %words(&error), "failed to write an Event");
        }
    }
}
