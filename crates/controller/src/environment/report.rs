//! Reports about an environment: conditions on the records of its releases and, for releases
//! without a task, notifications.

use std::time::Duration;

use jiff::Timestamp;
use pleach_reconciler::{hold::Hold, state_changes::Item};
use pleach_state::inventory::{Condition, ConditionKind, HEARTBEAT, ReleaseSummary, Source, Store};
use tokio::time::Instant;

use super::Environment;
use crate::{
    ControllerEvent, Listener, SourcePolicy, assignment::Assigned, state_changes::announcement,
};
use pleach_cluster::{Class, Cluster};
use pleach_engine::{
    sync::{is_cluster, state},
    words,
};

fn condition(kind: ConditionKind, reason: &str, message: &str) -> Condition {
    Condition {
        kind,
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}

/// Report about releases without a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Untasked {
    /// The release; `None` for all releases of the environment.
    release: Option<String>,
    conditions: Vec<Condition>,
    hold: Option<Hold>,
}

impl Untasked {
    /// Creates the report about one release.
    pub(super) fn one(release: &str, conditions: Vec<Condition>, hold: Option<Hold>) -> Self {
        Self {
            release: Some(release.to_owned()),
            conditions,
            hold,
        }
    }

    fn is_about(&self, release: &str) -> bool {
        self.release.as_ref().is_none_or(|named| named == release)
    }
}

impl Environment {
    /// Returns the conditions of the environment for each record: that the controller follows the
    /// release, and the reason of a stall if any. The CLI reads them.
    pub(super) fn conditions(assigned: &Assigned, hold: Option<&Hold>) -> Vec<Condition> {
        let stalled = hold.map(|hold| (ConditionKind::Stalled, &hold.reason, &hold.message));
        let unreachable = "Unreachable".to_owned();
        let source = assigned.source.as_ref();
        let source = source.map(|why| (ConditionKind::SourceUnavailable, &unreachable, why));
        let troubles = stalled.into_iter().chain(source);
        std::iter::once(condition(ConditionKind::Followed, "Loop", &assigned.by))
            .chain(troubles.map(|(kind, reason, message)| condition(kind, reason, message)))
            .collect()
    }

    /// Reports about all releases of the environment while none of them has a task.
    pub(super) async fn report(&mut self, assigned: &Assigned) -> Result<(), String> {
        if self.hold.is_none() && assigned.source.is_none() {
            self.told = None;
            return Ok(());
        }
        let all = Untasked {
            release: None,
            conditions: Self::conditions(assigned, self.hold.as_ref()),
            hold: self.hold.clone(),
        };
        self.tell_untasked(assigned, vec![all]).await
    }

    /// Reports about releases without a task.
    pub(super) async fn tell_untasked(
        &mut self,
        assigned: &Assigned,
        untasked: Vec<Untasked>,
    ) -> Result<(), String> {
        if self.is_reported(&untasked) {
            return Ok(());
        }
        // After a failure, everything is reported again.
        self.told = None;
        let loaded = self.loaded.as_ref();
        let context = loaded.and_then(|loaded| loaded.environment.cluster.context.clone());
        let connected = self.connect(&assigned.grant, context).await?;
        let (cluster, search) = (connected.cluster.clone(), connected.search());
        let id = assigned.grant.cluster.clone();
        let id = id.or_else(|| assigned.grant.fallback.clone());
        let listener = &self.shared.listener;
        let clock = self.shared.clock;
        let grant = &assigned.grant;
        let source = grant.source(&self.key.environment);
        let telling = async {
            let records = match state::releases(&cluster, &search).await {
                Ok(records) => records.releases,
                // Without permission to list records, no release is known.
                Err(error) if error.class() == Some(&Class::Forbidden) => Vec::new(),
                Err(error) => return Err(words(&error)),
            };
            for release in records {
                if release.name.environment != self.key.environment
                    || !is_of_repository(&release, source.as_ref())
                    || !is_allowed(grant, &release.store)
                {
                    continue;
                }
                let name = &release.name.release;
                let Some(one) = untasked.iter().find(|one| one.is_about(name)) else {
                    continue;
                };
                let hold = one.hold.as_ref();
                let is_meant = match &id {
                    // Another cluster can have a release of the same name.
                    Some(id) => is_cluster(&cluster, &release.store, &id.0).await == Some(true),
                    None => true,
                };
                if is_meant {
                    let written =
                        state::report(&cluster, &release.name, &release.store, &one.conditions);
                    written.await.map_err(|error| words(&error))?;
                    let news = self.news.entry(release.name.release.clone());
                    let news = news.or_default().of_hold(hold, clock.now());
                    if let Some(item) = news {
                        Box::pin(spread(listener, &cluster, &release, &item, hold)).await;
                    }
                }
            }
            Ok::<_, String>(())
        };
        let stop = self.shared.stop.clone();
        if let Some(reported) = stop.run_until_cancelled(telling).await {
            reported?;
            self.told = Some(untasked);
            self.renewed = Instant::now();
        }
        Ok(())
    }

    /// Returns whether exactly this was reported of releases without a task, less than a heartbeat
    /// ago.
    pub(super) fn is_reported(&self, untasked: &[Untasked]) -> bool {
        self.told.as_deref() == Some(untasked) && self.renewed.elapsed() < HEARTBEAT
    }

    /// Returns the time until the report on releases without a task is renewed. `None`: there is no
    /// report.
    pub(super) fn renewal(&self) -> Option<Duration> {
        let is_told = self.told.is_some();
        is_told.then(|| HEARTBEAT.saturating_sub(self.renewed.elapsed()))
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

fn is_allowed(grant: &SourcePolicy, store: &Store) -> bool {
    let allow = grant.allow.as_ref();
    allow.is_none_or(|allow| allow.refuse_store(store).is_none())
}

/// Sends the notification about a hold.
async fn spread(
    listener: &Listener,
    cluster: &Cluster,
    release: &ReleaseSummary,
    item: &Item,
    hold: Option<&Hold>,
) {
    let name = &release.name;
    let installed = release.record.as_ref().ok();
    let installed = installed.and_then(|record| record.installed.as_ref());
    let (version, previous) = installed
        .map(|one| (one.version.as_str(), one.revision.as_str()))
        .unwrap_or_default();
    let held = hold.and_then(|hold| hold.revision.as_deref());
    let revision = held.unwrap_or(previous);
    if let Some(news) = item.news(name, (version, revision), Timestamp::now()) {
        listener.report(ControllerEvent::StateChanged(news));
    }
    let announcement = announcement(item, revision);
    if let Err(error) = state::announce(cluster, name, &release.store, announcement).await {
        tracing::debug!(release = %name, error = %words(&error), "failed to write an Event");
    }
}
