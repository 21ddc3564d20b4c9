//! Prometheus metrics of the controller, derived from its events.

mod environments;
mod labels;
mod nodes;
mod page;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pleach_model::object::ReleaseName;
use pleach_planner::plan::Action;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::{ControllerEvent as Event, ReconcileOutcome};
use environments::Progress;
use labels::{
    EnvironmentLabels, HookLabels, ObjectLabels, PhaseLabels, PreviewLabels, ReconcileLabels,
    ReleaseLabels, RepositoryLabels,
};
use nodes::NodeMetrics;
use page::PageMetrics;
pub use page::{EventStream, SignInResult};

/// Names of all metrics, as documented in docs/reference/metrics.md.
pub const NAMES: [&str; 29] = [
    "pleach_reconcile",
    "pleach_reconcile_duration_seconds",
    "pleach_release_synced",
    "pleach_release_last_reconcile_timestamp_seconds",
    "pleach_environment_stalled",
    "pleach_source_up",
    "pleach_source_last_fetch_timestamp_seconds",
    "pleach_webhook_requests",
    "pleach_reconcile_pending_since_timestamp_seconds",
    "pleach_reconcile_phase_duration_seconds",
    "pleach_object_changes",
    "pleach_drift_objects",
    "pleach_release_drifted",
    "pleach_reconcile_active",
    "pleach_environment_leader",
    "pleach_replicas",
    "pleach_previews",
    "pleach_reconcile_queue_depth",
    "pleach_cluster_up",
    "pleach_release_degraded",
    "pleach_release_contended_fields",
    "pleach_ui_requests",
    "pleach_ui_request_duration_seconds",
    "pleach_ui_event_streams",
    "pleach_ui_actions",
    "pleach_ui_sign_ins",
    "pleach_nodes",
    "pleach_node_phase_duration_seconds",
    "pleach_evictions",
];

type Time = Gauge<f64, AtomicU64>;

/// Metrics and their registry.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    reconciles: Family<ReconcileLabels, Counter>,
    durations: Family<ReleaseLabels, Histogram>,
    synced: Family<ReleaseLabels, Gauge>,
    last_reconcile: Family<ReleaseLabels, Time>,
    stalled: Family<EnvironmentLabels, Gauge>,
    sources: Family<RepositoryLabels, Gauge>,
    fetches: Family<RepositoryLabels, Time>,
    webhook_requests: Family<HookLabels, Counter>,
    pending_since: Family<EnvironmentLabels, Time>,
    phases: Family<PhaseLabels, Histogram>,
    objects: Family<ObjectLabels, Counter>,
    drift: Family<ReleaseLabels, Counter>,
    drifted: Family<ReleaseLabels, Gauge>,
    degraded: Family<ReleaseLabels, Gauge>,
    contended: Family<ReleaseLabels, Gauge>,
    active: Gauge,
    leader: Family<EnvironmentLabels, Gauge>,
    replicas: Gauge,
    queue_depth: Gauge,
    clusters: Family<EnvironmentLabels, Gauge>,
    previews: Family<PreviewLabels, Counter>,
    page: PageMetrics,
    nodes: NodeMetrics,
    progress: Mutex<BTreeMap<String, Progress>>,
    in_progress: Mutex<BTreeSet<ReleaseName>>,
    /// Releases with state metrics.
    releases: Mutex<BTreeSet<ReleaseLabels>>,
    /// Releases that are stalled while the rest of their environment is synced.
    stalled_releases: Mutex<BTreeSet<ReleaseName>>,
    /// Number of clusters on which this replica syncs each environment.
    led_clusters: Mutex<BTreeMap<String, usize>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Mutex::default(),
            reconciles: Family::default(),
            durations: Family::new_with_constructor(|| {
                Histogram::new([0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0])
            }),
            synced: Family::default(),
            last_reconcile: Family::default(),
            stalled: Family::default(),
            sources: Family::default(),
            fetches: Family::default(),
            webhook_requests: Family::default(),
            pending_since: Family::default(),
            phases: Family::new_with_constructor(|| {
                Histogram::new([
                    0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0,
                ])
            }),
            objects: Family::default(),
            drift: Family::default(),
            drifted: Family::default(),
            degraded: Family::default(),
            contended: Family::default(),
            active: Gauge::default(),
            leader: Family::default(),
            replicas: Gauge::default(),
            queue_depth: Gauge::default(),
            clusters: Family::default(),
            previews: Family::default(),
            page: PageMetrics::default(),
            nodes: NodeMetrics::default(),
            progress: Mutex::default(),
            in_progress: Mutex::default(),
            releases: Mutex::default(),
            stalled_releases: Mutex::default(),
            led_clusters: Mutex::default(),
        };
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        metrics.register_sharing(&mut registry);
        metrics.page.register(&mut registry);
        metrics.nodes.register(&mut registry);
        metrics.registry = Mutex::new(registry);
        metrics
    }
}

impl Metrics {
    fn register(&self, r: &mut Registry) {
        r.register(
            NAMES[0],
            "Reconciles of a release, by outcome",
            self.reconciles.clone(),
        );
        r.register(
            NAMES[1],
            "Duration of a reconcile, with the run that it caused",
            self.durations.clone(),
        );
        r.register(
            NAMES[2],
            "Whether a release was in sync with git at the last reconcile",
            self.synced.clone(),
        );
        r.register(
            NAMES[3],
            "Time of the last reconcile of a release",
            self.last_reconcile.clone(),
        );
        r.register(
            NAMES[4],
            "Whether an environment syncs no newer commit until a user acts",
            self.stalled.clone(),
        );
        r.register(
            NAMES[5],
            "Whether the last fetch of a repository succeeded",
            self.sources.clone(),
        );
        r.register(
            NAMES[6],
            "Time of the last successful fetch of a repository",
            self.fetches.clone(),
        );
        r.register(
            NAMES[7],
            "Webhook requests, by response",
            self.webhook_requests.clone(),
        );
        r.register(
            NAMES[8],
            "Time at which the oldest unreconciled commit was first seen; 0 if there is none",
            self.pending_since.clone(),
        );
        r.register(
            NAMES[9],
            "Duration of each phase of the work",
            self.phases.clone(),
        );
        r.register(
            NAMES[10],
            "Changes of objects, by action",
            self.objects.clone(),
        );
        r.register(
            NAMES[11],
            "Objects that another client changed, by their metadata",
            self.drift.clone(),
        );
        r.register(
            NAMES[12],
            "Whether a release differs from git and the policy is to report it only",
            self.drifted.clone(),
        );
        r.register(
            NAMES[13],
            "Active reconciles, with their runs",
            self.active.clone(),
        );
    }

    /// Registers the metrics of replicas, previews, clusters and release failures.
    fn register_sharing(&self, r: &mut Registry) {
        r.register(
            NAMES[14],
            "Whether this replica is the leader of an environment",
            self.leader.clone(),
        );
        r.register(
            NAMES[15],
            "Number of replicas that share the work; 0 while this one is alone or cut off",
            self.replicas.clone(),
        );
        r.register(
            NAMES[16],
            "Previews of pull requests, by outcome",
            self.previews.clone(),
        );
        r.register(
            NAMES[17],
            "Releases that wait for a reconcile permit",
            self.queue_depth.clone(),
        );
        r.register(
            NAMES[18],
            "Whether the cluster of an environment answered the last request",
            self.clusters.clone(),
        );
        r.register(
            NAMES[19],
            "Whether an object of a release was ready and is not ready now",
            self.degraded.clone(),
        );
        r.register(
            NAMES[20],
            "Fields of a release that pleach leaves alone because other clients keep writing to them",
            self.contended.clone(),
        );
    }

    /// Records an event of the controller.
    pub fn count(&self, event: &Event) {
        let repository = |repository: &String| RepositoryLabels {
            repository: repository.clone(),
        };
        match event {
            Event::Fetched {
                repository: name,
                took,
                ..
            } => {
                self.took("fetch", *took);
                self.sources.get_or_create(&repository(name)).set(1);
                self.fetches.get_or_create(&repository(name)).set(now());
            }
            Event::SourceUnreachable {
                repository: name, ..
            } => {
                self.sources.get_or_create(&repository(name)).set(0);
            }
            Event::EnvironmentLoaded {
                environment: name,
                revision,
                releases,
                stalled,
                took,
                ..
            } => {
                self.took("render", *took);
                self.start_commit(name, revision, releases.len());
                self.set_stalled_releases(name, stalled.keys());
            }
            Event::EnvironmentUnchanged { took, .. } => {
                if let Some(took) = took {
                    self.took("render", *took);
                }
            }
            Event::EnvironmentStalled {
                environment: name, ..
            } => self.stall(name),
            Event::ReconcileStarted { release } => self.track_active(|active| {
                active.insert(release.clone());
            }),
            Event::QueueChanged { waiting } => {
                self.queue_depth
                    .set((*waiting).try_into().unwrap_or(i64::MAX));
            }
            Event::Planned {
                release,
                answered,
                took,
                ..
            } => {
                self.took("plan", *took);
                self.answered(&release.environment, *answered);
            }
            Event::HealthChecked {
                release,
                is_degraded,
            } => self.count_health(release, *is_degraded),
            Event::Contended { release, fields } => self.count_contended(release, *fields),
            Event::ClusterUnreachable { environment, .. } => self.answered(environment, false),
            Event::PlanExecuted {
                release,
                objects,
                took,
            } => {
                self.took("apply", *took);
                self.count_objects(release, objects);
            }
            Event::DriftDetected { release, objects } => self.count_drift(release, *objects),
            Event::ReplicasChanged { replicas } => {
                self.replicas
                    .set((*replicas).try_into().unwrap_or(i64::MAX));
            }
            Event::LeadershipChanged {
                environment: name,
                leads,
            } => self.set_leader(name, *leads),
            Event::Previewed {
                repository,
                previewed,
                ..
            } => self.count_preview(repository, previewed.as_str()),
            Event::Applying { .. }
            | Event::Recorded { .. }
            | Event::Unobserved { .. }
            | Event::OwnerChanged { .. }
            | Event::ForgeUnreachable { .. }
            | Event::StateChanged(_) => {}
            Event::ReconcileFinished {
                release,
                outcome,
                took,
                revision,
                retained,
                ..
            } => {
                let retained = retained.as_ref().map(|retained| retained.outcome);
                self.count_reconcile(release, (*outcome, retained), *took, revision);
            }
        }
    }

    fn count_preview(&self, repository: &str, result: &'static str) {
        let labels = PreviewLabels {
            repository: repository.to_owned(),
            result,
        };
        self.previews.get_or_create(&labels).inc();
    }

    /// Records a reconcile of the desired revision, and of the last applied revision if the desired
    /// one is waiting.
    fn count_reconcile(
        &self,
        release: &ReleaseName,
        (outcome, retained): (ReconcileOutcome, Option<ReconcileOutcome>),
        took: Duration,
        revision: &str,
    ) {
        self.track_active(|active| {
            active.remove(release);
        });
        // A release with reported drift is otherwise at this commit.
        if matches!(
            outcome,
            ReconcileOutcome::Deployed | ReconcileOutcome::Unchanged | ReconcileOutcome::Drifted
        ) {
            self.record_reconciled(&release.environment, &release.release, revision);
        }
        let labels = ReleaseLabels::of(release);
        self.count_end(release, outcome);
        if let Some(retained) = retained.filter(|retained| *retained != ReconcileOutcome::Unchanged)
        {
            self.count_end(release, retained);
        }
        if outcome == ReconcileOutcome::Removed {
            self.releases().remove(&labels);
            self.forget(&labels);
            self.durations.remove(&labels);
            return;
        }
        self.durations
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
        if self.is_led_elsewhere(&release.environment) {
            return;
        }
        let drifted = i64::from(retained.unwrap_or(outcome) == ReconcileOutcome::Drifted);
        self.drifted.get_or_create(&labels).set(drifted);
        self.last_reconcile.get_or_create(&labels).set(now());
        let is_reconciled = matches!(
            outcome,
            ReconcileOutcome::Deployed | ReconcileOutcome::Unchanged
        );
        let synced = is_reconciled && !self.is_stalled(release);
        self.synced.get_or_create(&labels).set(i64::from(synced));
        self.releases().insert(labels);
    }

    fn count_objects(&self, release: &ReleaseName, objects: &[(Action, usize)]) {
        for (action, count) in objects.iter().filter(|(_, count)| *count > 0) {
            let labels = ObjectLabels {
                environment: release.environment.clone(),
                release: release.release.clone(),
                action: action.to_string(),
            };
            self.objects.get_or_create(&labels).inc_by(*count as u64);
        }
    }

    fn count_drift(&self, release: &ReleaseName, objects: usize) {
        let drift = self.drift.get_or_create(&ReleaseLabels::of(release));
        drift.inc_by(objects as u64);
    }

    fn count_end(&self, release: &ReleaseName, outcome: ReconcileOutcome) {
        let labels = ReconcileLabels {
            environment: release.environment.clone(),
            release: release.release.clone(),
            result: outcome.as_str(),
        };
        self.reconciles.get_or_create(&labels).inc();
    }

    fn track_active(&self, change: impl FnOnce(&mut BTreeSet<ReleaseName>)) {
        let mut active = self
            .in_progress
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        change(&mut active);
        self.active.set(active.len().try_into().unwrap_or(i64::MAX));
    }

    /// Removes the state metrics of a release.
    fn forget(&self, labels: &ReleaseLabels) {
        self.synced.remove(labels);
        self.last_reconcile.remove(labels);
        self.drifted.remove(labels);
        self.degraded.remove(labels);
        self.contended.remove(labels);
        self.nodes.forget(labels);
    }

    fn took(&self, phase: &'static str, took: Duration) {
        let labels = PhaseLabels { phase };
        self.phases
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    fn releases(&self) -> MutexGuard<'_, BTreeSet<ReleaseLabels>> {
        self.releases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the answer to a webhook.
    pub fn hook(&self, forge: &str, code: u16) {
        self.webhook_requests
            .get_or_create(&HookLabels {
                forge: forge.to_owned(),
                code: code.into(),
            })
            .inc();
    }

    /// Returns all metrics in the text format of `OpenMetrics`.
    pub fn text(&self) -> String {
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _written = encode(&mut text, &registry);
        text
    }
}

fn now() -> f64 {
    jiff::Timestamp::now().as_duration().as_secs_f64()
}

#[cfg(test)]
mod tests;
