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
    said: Option<Vec<Condition>>,
    news: Told,
}

impl Default for Leaving {
    fn default() -> Self {
        Self {
            said: None,
            news: Told::new(),
        }
    }
}

/// A release that left git: name, store of its record, and last version.
pub(super) type Former<'a> = (&'a ReleaseName, &'a Store, &'a str);

impl Ends {
    /// Reports the outcome for a release that left git, if it changed.
    pub(super) async fn tell(
        &mut self,
        wanted: &Target,
        (name, store, version): Former<'_>,
        looked: &ReconcileReport,
    ) {
        if matches!(
            looked.end,
            ReconcileOutcome::Interrupted | ReconcileOutcome::Superseded
        ) {
            return;
        }
        let cluster = wanted.planner(false).cluster_for(name);
        let leaving = self.leaving.entry(name.clone()).or_default();
        let said = looked.conditions(&wanted.conditions);
        if looked.end != ReconcileOutcome::Removed && leaving.said.as_ref() != Some(&said) {
            match state::tell(&cluster, name, store, &said).await {
                Ok(()) => leaving.said = Some(said),
                // The next reconcile reports it again.
                Err(error) => {
                    tracing::debug!(release = %name, error = %words(&error), "nothing could be told");
                }
            }
        }
        let item = leaving.news.of(wanted, looked.end, false, &looked.message);
        if looked.end == ReconcileOutcome::Removed {
            self.leaving.remove(name);
        }
        let Some(item) = item else { return };
        let revision = wanted.revision();
        if let Some(news) = item.news(name, (version, &revision), Timestamp::now()) {
            self.shared
                .listener
                .tell(ControllerEvent::StateChanged(news));
        }
        let said = item.announcement(&revision);
        if let Err(error) = state::announce(&cluster, name, store, said).await {
            tracing::debug!(release = %name, error = %words(&error), "no Event could be written");
        }
    }
}
