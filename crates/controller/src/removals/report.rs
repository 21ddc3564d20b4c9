//! Reports about releases that left git: conditions on their records, and notifications.

use jiff::Timestamp;
use pleach_model::object::ReleaseName;
use pleach_reconciler::{outcome::ReconcileReport, state_changes::NotificationState};
use pleach_state::inventory::{Condition, Store};

use super::Ends;
use crate::{ControllerEvent, ReconcileOutcome, run::Target, state_changes::announcement};
use pleach_engine::{sync::state, words};

/// Last report about a release that left git.
#[derive(Default)]
pub(super) struct Leaving {
    conditions: Option<Vec<Condition>>,
    notifications: NotificationState,
}

/// A release that left git: name, store of its record, and last version.
pub(super) type Former<'a> = (&'a ReleaseName, &'a Store, &'a str);

impl Ends {
    /// Reports the outcome for a release that left git, if it changed.
    pub(super) async fn report(
        &mut self,
        desired: &Target,
        (name, store, version): Former<'_>,
        report: &ReconcileReport,
    ) {
        if matches!(
            report.outcome,
            ReconcileOutcome::Interrupted | ReconcileOutcome::Superseded
        ) {
            return;
        }
        let cluster = desired.planner(false).cluster_for(name);
        let leaving = self.leaving.entry(name.clone()).or_default();
        let conditions = report.conditions(&desired.conditions);
        if report.outcome != ReconcileOutcome::Removed
            && leaving.conditions.as_ref() != Some(&conditions)
        {
            match state::report(&cluster, name, store, &conditions).await {
                Ok(()) => leaving.conditions = Some(conditions),
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
            leaving
                .notifications
                .of_outcome(report.outcome, false, &revision, message, now);
        if report.outcome == ReconcileOutcome::Removed {
            self.leaving.remove(name);
        }
        let Some(notice) = notice else { return };
        if let Some(notifications) =
            notice.state_change(name, (version, &revision), Timestamp::now())
        {
            self.shared
                .listener
                .report(ControllerEvent::StateChanged(notifications));
        }
        let announcement = announcement(&notice, &revision);
        if let Err(error) = state::announce(&cluster, name, store, announcement).await {
            tracing::debug!(release = %name, error = %words(&error), "failed to write an Event");
        }
    }
}
