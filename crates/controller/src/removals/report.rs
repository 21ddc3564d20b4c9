//! Reports about releases that left git: conditions on their records, and notifications.

use jiff::Timestamp;
use pleach_model::object::ReleaseName;
use pleach_state::inventory::{Condition, Store};

use super::Ends;
use crate::{
    ControllerEvent, ReconcileOutcome, outcome::ReconcileReport, run::Target, state_changes::Told,
};
use pleach_engine::{sync::state, words};

/// Last report about a release that left git.
pub(super) struct Leaving {
    conditions: Option<Vec<Condition>>,
    news: Told,
}

impl Default for Leaving {
    fn default() -> Self {
        Self {
            conditions: None,
            news: Told::new(),
        }
    }
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
        let item = leaving.news.of(desired, report.end, false, &report.message);
        if report.end == ReconcileOutcome::Removed {
            self.leaving.remove(name);
        }
        let Some(item) = item else { return };
        let revision = desired.revision();
        if let Some(news) = item.news(name, (version, &revision), Timestamp::now()) {
            self.shared
                .listener
                .report(ControllerEvent::StateChanged(news));
        }
        let announcement = item.announcement(&revision);
        if let Err(error) = state::announce(&cluster, name, store, announcement).await {
            tracing::debug!(release = %name, error = %words(&error), "failed to write an Event");
        }
    }
}
