//! Prometheus metrics of the controller, derived from its events.

mod environments;
mod labels;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pleach_domain::inventory::ReleaseName;
use pleach_domain::plan::Action;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::engine::controller::{End, LoopEvent};
use environments::Progress;
use labels::{
    EnvironmentLabels, HookLabels, LookLabels, ObjectLabels, PreviewLabels, ReleaseLabels,
    RepositoryLabels, VerbLabels,
};

/// Names of all metrics, as documented in docs/reference/metrics.md.
pub const NAMES: [&str; 21] = [
    "pleach_looks",
    "pleach_look_duration_seconds",
    "pleach_release_synced",
    "pleach_release_seen_timestamp_seconds",
    "pleach_environment_held",
    "pleach_source_up",
    "pleach_source_fetch_timestamp_seconds",
    "pleach_hooks",
    "pleach_revision_unreconciled_timestamp_seconds",
    "pleach_verb_duration_seconds",
    "pleach_objects",
    "pleach_drift_objects",
    "pleach_release_drifted",
    "pleach_looks_in_progress",
    "pleach_environment_led",
    "pleach_replicas",
    "pleach_previews",
    "pleach_looks_waiting",
    "pleach_cluster_up",
    "pleach_release_degraded",
    "pleach_release_contended_fields",
];

type Time = Gauge<f64, AtomicU64>;

/// Metrics and their registry.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    looks: Family<LookLabels, Counter>,
    durations: Family<ReleaseLabels, Histogram>,
    synced: Family<ReleaseLabels, Gauge>,
    seen: Family<ReleaseLabels, Time>,
    held: Family<EnvironmentLabels, Gauge>,
    sources: Family<RepositoryLabels, Gauge>,
    fetches: Family<RepositoryLabels, Time>,
    hooks: Family<HookLabels, Counter>,
    unreconciled: Family<EnvironmentLabels, Time>,
    verbs: Family<VerbLabels, Histogram>,
    objects: Family<ObjectLabels, Counter>,
    drift: Family<ReleaseLabels, Counter>,
    drifted: Family<ReleaseLabels, Gauge>,
    degraded: Family<ReleaseLabels, Gauge>,
    contended: Family<ReleaseLabels, Gauge>,
    looking: Gauge,
    led: Family<EnvironmentLabels, Gauge>,
    replicas: Gauge,
    waiting: Gauge,
    clusters: Family<EnvironmentLabels, Gauge>,
    previews: Family<PreviewLabels, Counter>,
    progress: Mutex<BTreeMap<String, Progress>>,
    in_progress: Mutex<BTreeSet<ReleaseName>>,
    /// Releases with state metrics.
    releases: Mutex<BTreeSet<ReleaseLabels>>,
    /// Releases that are stalled while the rest of their environment is synced.
    held_releases: Mutex<BTreeSet<ReleaseName>>,
    /// Number of clusters on which this replica syncs each environment.
    here: Mutex<BTreeMap<String, usize>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Mutex::default(),
            looks: Family::default(),
            durations: Family::new_with_constructor(|| {
                Histogram::new([0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0])
            }),
            synced: Family::default(),
            seen: Family::default(),
            held: Family::default(),
            sources: Family::default(),
            fetches: Family::default(),
            hooks: Family::default(),
            unreconciled: Family::default(),
            verbs: Family::new_with_constructor(|| {
                Histogram::new([
                    0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0,
                ])
            }),
            objects: Family::default(),
            drift: Family::default(),
            drifted: Family::default(),
            degraded: Family::default(),
            contended: Family::default(),
            looking: Gauge::default(),
            led: Family::default(),
            replicas: Gauge::default(),
            waiting: Gauge::default(),
            clusters: Family::default(),
            previews: Family::default(),
            progress: Mutex::default(),
            in_progress: Mutex::default(),
            releases: Mutex::default(),
            held_releases: Mutex::default(),
            here: Mutex::default(),
        };
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        metrics.register_sharing(&mut registry);
        metrics.registry = Mutex::new(registry);
        metrics
    }
}

impl Metrics {
    fn register(&self, r: &mut Registry) {
        r.register(
            NAMES[0],
            "How often a release was looked at, and what came of it",
            self.looks.clone(),
        );
        r.register(
            NAMES[1],
            "How long it took to look at a release and to do what was to be done",
            self.durations.clone(),
        );
        r.register(
            NAMES[2],
            "Whether a release was as git says when it was last looked at",
            self.synced.clone(),
        );
        r.register(
            NAMES[3],
            "When a release was last looked at",
            self.seen.clone(),
        );
        r.register(
            NAMES[4],
            "Whether nothing newer of an environment is synced until somebody does something",
            self.held.clone(),
        );
        r.register(
            NAMES[5],
            "Whether a repository could be reached",
            self.sources.clone(),
        );
        r.register(
            NAMES[6],
            "When a repository was last reached",
            self.fetches.clone(),
        );
        r.register(
            NAMES[7],
            "Webhook requests, by the answer they got",
            self.hooks.clone(),
        );
        r.register(
            NAMES[8],
            "When the oldest commit was seen that is not brought about yet; 0 where all are",
            self.unreconciled.clone(),
        );
        r.register(
            NAMES[9],
            "How long each part of the work took",
            self.verbs.clone(),
        );
        r.register(
            NAMES[10],
            "Objects, by what was done to them",
            self.objects.clone(),
        );
        r.register(
            NAMES[11],
            "Objects that somebody changed, as their metadata told",
            self.drift.clone(),
        );
        r.register(
            NAMES[12],
            "Whether a release differs from git and is left so",
            self.drifted.clone(),
        );
        r.register(
            NAMES[13],
            "How many releases are being looked at, with what is done about them",
            self.looking.clone(),
        );
    }

    /// Registers the metrics of replicas, previews, clusters and release failures.
    fn register_sharing(&self, r: &mut Registry) {
        r.register(
            NAMES[14],
            "Whether this replica syncs an environment",
            self.led.clone(),
        );
        r.register(
            NAMES[15],
            "How many replicas share the work; 0 while this one is alone or cut off",
            self.replicas.clone(),
        );
        r.register(
            NAMES[16],
            "Previews of pull requests, by what came of them",
            self.previews.clone(),
        );
        r.register(
            NAMES[17],
            "How many releases wait until there is room to look at them",
            self.waiting.clone(),
        );
        r.register(
            NAMES[18],
            "Whether the cluster of an environment answered when it was last asked",
            self.clusters.clone(),
        );
        r.register(
            NAMES[19],
            "Whether something of a release was ready and is not any more",
            self.degraded.clone(),
        );
        r.register(
            NAMES[20],
            "Fields of a release that other clients keep writing to, and that are left alone",
            self.contended.clone(),
        );
    }

    /// Records an event of the controller.
    pub fn count(&self, event: &LoopEvent) {
        let repository = |repository: &String| RepositoryLabels {
            repository: repository.clone(),
        };
        match event {
            LoopEvent::Fetched {
                repository: name,
                took,
                ..
            } => {
                self.took("fetch", *took);
                self.sources.get_or_create(&repository(name)).set(1);
                self.fetches.get_or_create(&repository(name)).set(now());
            }
            LoopEvent::Unreachable {
                repository: name, ..
            } => {
                self.sources.get_or_create(&repository(name)).set(0);
            }
            LoopEvent::Loaded {
                environment: name,
                revision,
                releases,
                held,
                took,
                ..
            } => {
                self.took("render", *took);
                self.begin(name, revision, releases.len());
                self.hold_releases(name, held.keys());
            }
            LoopEvent::Unaffected { took, .. } => {
                if let Some(took) = took {
                    self.took("render", *took);
                }
            }
            LoopEvent::Held {
                environment: name, ..
            } => self.hold(name),
            LoopEvent::Looking { release } => self.looking(|looked_at| {
                looked_at.insert(release.clone());
            }),
            LoopEvent::Queued { waiting } => {
                self.waiting.set((*waiting).try_into().unwrap_or(i64::MAX));
            }
            LoopEvent::Planned {
                release,
                answered,
                took,
            } => {
                self.took("plan", *took);
                self.answered(&release.environment, *answered);
            }
            LoopEvent::Health {
                release,
                is_degraded,
            } => self.count_health(release, *is_degraded),
            LoopEvent::Contended { release, fields } => self.count_contended(release, *fields),
            LoopEvent::Unconnected { environment, .. } => self.answered(environment, false),
            LoopEvent::Carried {
                release,
                objects,
                took,
            } => {
                self.took("apply", *took);
                self.count_objects(release, objects);
            }
            LoopEvent::Changed { release, objects } => {
                let labels = ReleaseLabels::of(release);
                self.drift.get_or_create(&labels).inc_by(*objects as u64);
            }
            LoopEvent::Sharing { there } => {
                self.replicas.set((*there).try_into().unwrap_or(i64::MAX));
            }
            LoopEvent::Led {
                environment: name,
                leads,
            } => self.lead(name, *leads),
            LoopEvent::Previewed {
                repository,
                previewed,
                ..
            } => self.count_preview(repository, previewed.word()),
            LoopEvent::Applying { .. }
            | LoopEvent::Claimed { .. }
            | LoopEvent::Untold { .. }
            | LoopEvent::News(_) => {}
            LoopEvent::Looked {
                release,
                end,
                took,
                revision,
                kept,
                ..
            } => {
                let kept = kept.as_ref().map(|kept| kept.end);
                self.count_look(release, (*end, kept), *took, revision);
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
    fn count_look(
        &self,
        release: &ReleaseName,
        (end, kept): (End, Option<End>),
        took: Duration,
        revision: &str,
    ) {
        self.looking(|looked_at| {
            looked_at.remove(release);
        });
        // A release with reported drift is otherwise at this commit.
        if matches!(end, End::Deployed | End::Unchanged | End::Drifted) {
            self.reach(&release.environment, &release.release, revision);
        }
        let labels = ReleaseLabels::of(release);
        self.count_end(release, end);
        if let Some(kept) = kept.filter(|kept| *kept != End::Unchanged) {
            self.count_end(release, kept);
        }
        if end == End::Removed {
            self.releases().remove(&labels);
            self.forget(&labels);
            self.durations.remove(&labels);
            return;
        }
        self.durations
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
        if self.is_left(&release.environment) {
            return;
        }
        let drifted = i64::from(kept.unwrap_or(end) == End::Drifted);
        self.drifted.get_or_create(&labels).set(drifted);
        self.seen.get_or_create(&labels).set(now());
        let is_reached = matches!(end, End::Deployed | End::Unchanged);
        let synced = is_reached && !self.is_held(release);
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

    fn count_end(&self, release: &ReleaseName, end: End) {
        let looks = LookLabels {
            environment: release.environment.clone(),
            release: release.release.clone(),
            result: end.word(),
        };
        self.looks.get_or_create(&looks).inc();
    }

    fn looking(&self, change: impl FnOnce(&mut BTreeSet<ReleaseName>)) {
        let mut looked_at = self
            .in_progress
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        change(&mut looked_at);
        self.looking
            .set(looked_at.len().try_into().unwrap_or(i64::MAX));
    }

    /// Removes the state metrics of a release.
    fn forget(&self, labels: &ReleaseLabels) {
        self.synced.remove(labels);
        self.seen.remove(labels);
        self.drifted.remove(labels);
        self.degraded.remove(labels);
        self.contended.remove(labels);
    }

    fn took(&self, verb: &'static str, took: Duration) {
        let labels = VerbLabels { verb };
        self.verbs
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    fn releases(&self) -> MutexGuard<'_, BTreeSet<ReleaseLabels>> {
        self.releases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the answer to a webhook.
    pub fn hook(&self, forge: &str, code: u16) {
        self.hooks
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
mod tests {
    use super::*;

    fn text(text: &str) -> String {
        text.to_owned()
    }

    fn loaded(revision: &str, releases: usize) -> LoopEvent {
        LoopEvent::Loaded {
            repository: text("fleet"),
            environment: text("prod"),
            cluster: None,
            revision: text(revision),
            releases: (0..releases).map(|number| number.to_string()).collect(),
            held: BTreeMap::new(),
            took: Duration::ZERO,
        }
    }

    fn looked(release: &str, revision: &str, end: End) -> LoopEvent {
        LoopEvent::Looked {
            release: ReleaseName {
                environment: text("prod"),
                release: text(release),
            },
            cluster: None,
            revision: text(revision),
            end,
            message: String::new(),
            is_correction: false,
            about: String::new(),
            kept: None,
            took: Duration::ZERO,
        }
    }

    fn since(metrics: &Metrics) -> f64 {
        let labels = EnvironmentLabels {
            environment: text("prod"),
        };
        metrics.unreconciled.get_or_create(&labels).get()
    }

    #[test]
    fn how_an_environment_is_is_told_by_who_leads_it() {
        let told = |metrics: &Metrics| {
            let text = metrics.text();
            let lines = text.lines().filter(|line| {
                let is = |name: &str| line.starts_with(name);
                (is("pleach_release_") || is("pleach_environment_held")) && line.contains("prod")
            });
            lines.count()
        };
        let metrics = Metrics::default();
        let led = |leads| LoopEvent::Led {
            environment: text("prod"),
            leads,
        };
        metrics.count(&led(true));
        metrics.count(&loaded("a", 1));
        metrics.count(&looked("web", "a", End::Deployed));
        assert_eq!(told(&metrics), 4);
        metrics.count(&led(false));
        // A running reconcile still finishes.
        metrics.count(&looked("web", "a", End::Unchanged));
        assert_eq!(told(&metrics), 0);
        // The metrics reappear with the first reconcile.
        metrics.count(&led(true));
        metrics.count(&loaded("a", 1));
        metrics.count(&looked("web", "a", End::Unchanged));
        assert_eq!(told(&metrics), 4);
    }

    #[test]
    fn a_cluster_that_does_not_answer_is_told_of_who_leads_what_is_on_it() {
        let metrics = Metrics::default();
        let up = |metrics: &Metrics| {
            let text = metrics.text();
            let line = text
                .lines()
                .find(|line| line.starts_with("pleach_cluster_up{"));
            line.map(|line| line.rsplit(' ').next().unwrap_or_default().to_owned())
        };
        let planned = |answered| LoopEvent::Planned {
            release: ReleaseName {
                environment: text("prod"),
                release: text("web"),
            },
            answered,
            took: Duration::ZERO,
        };
        let led = |leads| LoopEvent::Led {
            environment: text("prod"),
            leads,
        };
        metrics.count(&led(true));
        assert_eq!(up(&metrics), None);
        metrics.count(&planned(true));
        assert_eq!(up(&metrics).as_deref(), Some("1"));
        metrics.count(&planned(false));
        assert_eq!(up(&metrics).as_deref(), Some("0"));
        metrics.count(&planned(true));
        metrics.count(&LoopEvent::Unconnected {
            environment: text("prod"),
            message: String::new(),
        });
        assert_eq!(up(&metrics).as_deref(), Some("0"));
        metrics.count(&led(false));
        metrics.count(&planned(true));
        assert_eq!(up(&metrics), None);
    }

    #[test]
    fn the_oldest_commit_counts_until_all_releases_are_at_the_newest() {
        let metrics = Metrics::default();
        metrics.count(&loaded("a", 2));
        let first = since(&metrics);
        assert!(first > 0.0);
        metrics.count(&looked("web", "a", End::Deployed));
        metrics.count(&looked("web", "a", End::Unchanged));
        metrics.count(&looked("api", "a", End::Failed));
        assert_eq!(since(&metrics).to_bits(), first.to_bits());
        // A newer commit arrives before the first one is reconciled.
        metrics.count(&loaded("b", 2));
        metrics.count(&looked("api", "a", End::Deployed));
        metrics.count(&looked("web", "b", End::Unchanged));
        assert_eq!(since(&metrics).to_bits(), first.to_bits());
        // A release with reported drift is not at an older commit.
        metrics.count(&looked("api", "b", End::Drifted));
        assert_eq!(since(&metrics).to_bits(), 0.0_f64.to_bits());
        // Reconciling the last good commit does not reconcile an unreadable one.
        metrics.count(&LoopEvent::Held {
            repository: text("fleet"),
            revision: Some(text("c")),
            environment: text("prod"),
            cluster: None,
            reason: text("InvalidRepository"),
            message: String::new(),
        });
        let held = since(&metrics);
        assert!(held > 0.0);
        metrics.count(&looked("web", "b", End::Unchanged));
        metrics.count(&looked("api", "b", End::Unchanged));
        assert_eq!(since(&metrics).to_bits(), held.to_bits());
        metrics.count(&loaded("c", 0));
        assert_eq!(since(&metrics).to_bits(), 0.0_f64.to_bits());
    }
}
