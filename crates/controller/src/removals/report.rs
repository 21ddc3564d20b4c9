//! Reports about releases that left git: conditions on their records, and notifications.

use jiff::Timestamp;
use pleach_model::object::ReleaseName;
use pleach_reconciler::{outcome::ReconcileReport, state_changes::Told};
use pleach_state::inventory::{Condition, Store};

use super::Ends;
use crate::{ControllerEvent, ReconcileOutcome, run::Target, state_changes::announcement};
use pleach_engine::{sync::state, words};

/// Last report about a release that left git.
#[derive(Default)]
pub(super) struct Leaving {
    conditions: Option<Vec<Condition>>,
    news: Told,
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
            report.end,
            ReconcileOutcome::Interrupted | ReconcileOutcome::Superseded
        ) {
            return;
        }
        let cluster = desired.planner(false).cluster_for(name);
        let leaving = self.leaving.entry(name.clone()).or_default();
        let conditions = report.conditions(&desired.conditions);
        if report.end != ReconcileOutcome::Removed
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
        let item = leaving.news.of(report.end, false, &revision, message, now);
        if report.end == ReconcileOutcome::Removed {
            self.leaving.remove(name);
        }
        let Some(item) = item else { return };
        if let Some(news) = item.news(name, (version, &revision), Timestamp::now()) {
            self.shared
                .listener
                .report(ControllerEvent::StateChanged(news));
        }
        let announcement = announcement(&item, &revision);
        if let Err(error) = state::announce(&cluster, name, store, announcement).await {
            tracing::debug!(release = %name, error = %words(&error), "failed to write an Event");
        }
    }
}
