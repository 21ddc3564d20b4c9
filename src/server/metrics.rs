//! Metrics of the loop, for Prometheus: made from its events.

use std::sync::PoisonError;
use std::sync::{Mutex, atomic::AtomicU64};

use pleach_domain::inventory::ReleaseName;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::engine::controller::{End, LoopEvent};

/// Names of all metrics; docs/loop.md has them too.
pub const NAMES: [&str; 8] = [
    "pleach_looks",
    "pleach_look_duration_seconds",
    "pleach_release_synced",
    "pleach_release_seen_timestamp_seconds",
    "pleach_environment_held",
    "pleach_source_up",
    "pleach_source_fetch_timestamp_seconds",
    "pleach_hooks",
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReleaseLabels {
    environment: String,
    release: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LookLabels {
    environment: String,
    release: String,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EnvironmentLabels {
    environment: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RepositoryLabels {
    repository: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HookLabels {
    forge: String,
    code: u32,
}

type Time = Gauge<f64, AtomicU64>;

/// The numbers, and where they are registered.
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
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
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
        };
        {
            let mut registry = metrics
                .registry
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let r = &mut *registry;
            r.register(
                NAMES[0],
                "How often a release was looked at, and what came of it",
                metrics.looks.clone(),
            );
            r.register(
                NAMES[1],
                "How long it took to look at a release and to do what was to be done",
                metrics.durations.clone(),
            );
            r.register(
                NAMES[2],
                "Whether a release was as git says when it was last looked at",
                metrics.synced.clone(),
            );
            r.register(
                NAMES[3],
                "When a release was last looked at",
                metrics.seen.clone(),
            );
            r.register(
                NAMES[4],
                "Whether nothing newer of an environment is synced until somebody does something",
                metrics.held.clone(),
            );
            r.register(
                NAMES[5],
                "Whether a repository could be reached",
                metrics.sources.clone(),
            );
            r.register(
                NAMES[6],
                "When a repository was last reached",
                metrics.fetches.clone(),
            );
            r.register(
                NAMES[7],
                "Webhook requests, by the answer they got",
                metrics.hooks.clone(),
            );
        }
        metrics
    }
}

impl Metrics {
    /// Counts an event of the loop.
    pub fn count(&self, event: &LoopEvent) {
        let environment = |environment: &String| EnvironmentLabels {
            environment: environment.clone(),
        };
        let repository = |repository: &String| RepositoryLabels {
            repository: repository.clone(),
        };
        match event {
            LoopEvent::Fetched {
                repository: name, ..
            } => {
                self.sources.get_or_create(&repository(name)).set(1);
                self.fetches.get_or_create(&repository(name)).set(now());
            }
            LoopEvent::Unreachable {
                repository: name, ..
            } => {
                self.sources.get_or_create(&repository(name)).set(0);
            }
            LoopEvent::Loaded {
                environment: name, ..
            } => {
                self.held.get_or_create(&environment(name)).set(0);
            }
            LoopEvent::Held {
                environment: name, ..
            } => {
                self.held.get_or_create(&environment(name)).set(1);
            }
            LoopEvent::Unconnected { .. }
            | LoopEvent::Changed { .. }
            | LoopEvent::News(_)
            | LoopEvent::Unaffected { .. } => {}
            LoopEvent::Looked {
                release, end, took, ..
            } => {
                let ReleaseName {
                    environment,
                    release,
                } = release.clone();
                self.looks
                    .get_or_create(&LookLabels {
                        environment: environment.clone(),
                        release: release.clone(),
                        result: end.word(),
                    })
                    .inc();
                let labels = ReleaseLabels {
                    environment,
                    release,
                };
                if *end == End::Removed {
                    self.synced.remove(&labels);
                    self.seen.remove(&labels);
                    self.durations.remove(&labels);
                    return;
                }
                self.durations
                    .get_or_create(&labels)
                    .observe(took.as_secs_f64());
                self.seen.get_or_create(&labels).set(now());
                let synced = matches!(end, End::Deployed | End::Unchanged);
                self.synced.get_or_create(&labels).set(i64::from(synced));
            }
        }
    }

    /// Counts the answer to a webhook.
    pub(super) fn hook(&self, forge: &str, code: u16) {
        self.hooks
            .get_or_create(&HookLabels {
                forge: forge.to_owned(),
                code: code.into(),
            })
            .inc();
    }

    /// All of them, as Prometheus reads them.
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
