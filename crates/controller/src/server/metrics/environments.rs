//! Metrics of the leader of an environment and of its progress.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{MutexGuard, PoisonError};

use pleach_model::object::ReleaseName;

use super::labels::{EnvironmentLabels, ReleaseLabels};
use super::{Metrics, now};

/// Progress of the newest commit of an environment.
#[derive(Debug, Default)]
pub(super) struct Progress {
    revision: String,
    releases: usize,
    reconciled: BTreeSet<String>,
}

impl Metrics {
    /// Records that this replica starts or stops syncing an environment on one of its clusters.
    pub(super) fn set_leader(&self, environment: &str, leads: bool) {
        let led_clusters = {
            let mut led_clusters = self
                .led_clusters
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let led_clusters = led_clusters.entry(environment.to_owned()).or_default();
            *led_clusters = if leads {
                *led_clusters + 1
            } else {
                led_clusters.saturating_sub(1)
            };
            *led_clusters
        };
        let labels = EnvironmentLabels {
            environment: environment.to_owned(),
        };
        let led = i64::from(led_clusters > 0);
        self.leader.get_or_create(&labels).set(led);
        if led_clusters == 0 {
            self.remove_environment(environment);
        }
    }

    /// Returns whether this replica no longer syncs an environment. Running reconciles still finish
    /// but do not change its metrics.
    pub(super) fn is_led_elsewhere(&self, environment: &str) -> bool {
        let led_clusters = self
            .led_clusters
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        led_clusters.get(environment) == Some(&0)
    }

    /// Removes the metrics of an environment that another replica took over and now reports.
    fn remove_environment(&self, environment: &str) {
        self.track_active(|active| active.retain(|release| release.environment != environment));
        self.progress().remove(environment);
        self.clear_pending(environment);
        let labels = EnvironmentLabels {
            environment: environment.to_owned(),
        };
        self.stalled.remove(&labels);
        self.clusters.remove(&labels);
        self.releases().retain(|labels| {
            let stays = labels.environment != environment;
            if !stays {
                self.forget(labels);
            }
            stays
        });
    }

    /// Records whether the cluster of an environment answered.
    pub(super) fn answered(&self, environment: &str, answered: bool) {
        if self.is_led_elsewhere(environment) {
            return;
        }
        let labels = EnvironmentLabels {
            environment: environment.to_owned(),
        };
        let clusters = self.clusters.get_or_create(&labels);
        clusters.set(i64::from(answered));
    }

    /// Records since when an environment has an unreconciled commit.
    fn set_pending_since(&self, environment: &str) {
        let labels = EnvironmentLabels {
            environment: environment.to_owned(),
        };
        let since = self.pending_since.get_or_create(&labels);
        if since.get() <= 0.0 {
            since.set(now());
        }
    }

    /// Records that an environment has a commit that cannot be reconciled.
    pub(super) fn stall(&self, environment: &str) {
        if self.is_led_elsewhere(environment) {
            return;
        }
        let labels = EnvironmentLabels {
            environment: environment.to_owned(),
        };
        self.stalled.get_or_create(&labels).set(1);
        self.set_pending_since(environment);
    }

    pub(super) fn count_health(&self, release: &ReleaseName, is_degraded: bool) {
        if self.is_led_elsewhere(&release.environment) {
            return;
        }
        let degraded = self.degraded.get_or_create(&ReleaseLabels::of(release));
        degraded.set(i64::from(is_degraded));
    }

    pub(super) fn count_contended(&self, release: &ReleaseName, fields: usize) {
        if self.is_led_elsewhere(&release.environment) {
            return;
        }
        let contended = self.contended.get_or_create(&ReleaseLabels::of(release));
        contended.set(fields.try_into().unwrap_or(i64::MAX));
    }

    /// Records the stalled releases of an environment whose other releases are synced.
    pub(super) fn set_stalled_releases<'a>(
        &self,
        environment: &str,
        releases: impl Iterator<Item = &'a String>,
    ) {
        let stalled = self.stalled_releases.lock();
        let mut stalled = stalled.unwrap_or_else(PoisonError::into_inner);
        stalled.retain(|release| release.environment != *environment);
        stalled.extend(releases.map(|release| ReleaseName {
            environment: environment.to_owned(),
            release: release.clone(),
        }));
    }

    /// Returns whether a release is stalled while other releases of its environment are synced.
    pub(super) fn is_stalled(&self, release: &ReleaseName) -> bool {
        let stalled = self.stalled_releases.lock();
        stalled
            .unwrap_or_else(PoisonError::into_inner)
            .contains(release)
    }

    pub(super) fn start_commit(&self, environment: &str, revision: &str, releases: usize) {
        if self.is_led_elsewhere(environment) {
            return;
        }
        let labels = EnvironmentLabels {
            environment: environment.to_owned(),
        };
        self.stalled.get_or_create(&labels).set(0);
        let progress = Progress {
            revision: revision.to_owned(),
            releases,
            reconciled: BTreeSet::new(),
        };
        let is_done = releases == 0;
        self.progress().insert(environment.to_owned(), progress);
        self.set_pending_since(environment);
        if is_done {
            self.clear_pending(environment);
        }
    }

    pub(super) fn record_reconciled(&self, environment: &str, release: &str, revision: &str) {
        let is_done = match self.progress().get_mut(environment) {
            Some(progress) if progress.revision == revision => {
                progress.reconciled.insert(release.to_owned());
                progress.reconciled.len() >= progress.releases
            }
            _ => false,
        };
        let labels = EnvironmentLabels {
            environment: environment.to_owned(),
        };
        // An unreadable commit is newer than the reconciled one.
        let is_stalled = || self.stalled.get_or_create(&labels).get() == 1;
        if is_done && !is_stalled() {
            self.clear_pending(environment);
        }
    }

    fn clear_pending(&self, environment: &str) {
        let labels = EnvironmentLabels {
            environment: environment.to_owned(),
        };
        self.pending_since.get_or_create(&labels).set(0.0);
    }

    fn progress(&self) -> MutexGuard<'_, BTreeMap<String, Progress>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
