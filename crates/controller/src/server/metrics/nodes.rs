//! Metrics of nodes that runs change.

use pleach_engine::sync::events::{EventKind, SyncEvent};
use pleach_engine::sync::node_progress::Evictions;
use pleach_state::inventory::{NodePhase, NodeProgress};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::labels::{PhaseLabels, ReleaseLabels};
use super::{Metrics, NAMES};

/// Metrics of nodes.
#[derive(Debug)]
pub(super) struct NodeMetrics {
    nodes: Family<NodeLabels, Gauge>,
    durations: Family<PhaseLabels, Histogram>,
    evictions: Family<EvictionLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NodeLabels {
    environment: String,
    release: String,
    phase: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EvictionLabels {
    result: &'static str,
}

impl Default for NodeMetrics {
    fn default() -> Self {
        Self {
            nodes: Family::default(),
            durations: Family::new_with_constructor(|| {
                Histogram::new([
                    1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0,
                ])
            }),
            evictions: Family::default(),
        }
    }
}

impl NodeMetrics {
    pub(super) fn register(&self, r: &mut Registry) {
        r.register(
            NAMES[26],
            "Nodes that the last run of a release changes, by phase",
            self.nodes.clone(),
        );
        r.register(
            NAMES[27],
            "Duration of each phase of the change of a node",
            self.durations.clone(),
        );
        r.register(
            NAMES[28],
            "Eviction requests, by result",
            self.evictions.clone(),
        );
    }

    fn gauge(&self, release: &ReleaseLabels, phase: NodePhase, change: impl FnOnce(&Gauge)) {
        let labels = NodeLabels {
            environment: release.environment.clone(),
            release: release.release.clone(),
            phase: phase.as_str(),
        };
        change(&self.nodes.get_or_create(&labels));
    }

    /// Sets the nodes of a run that begins.
    fn begin(&self, release: &ReleaseLabels, nodes: &[NodeProgress]) {
        for phase in NodePhase::ALL {
            let count = nodes.iter().filter(|node| node.phase == phase).count();
            self.gauge(release, phase, |gauge| {
                gauge.set(count.try_into().unwrap_or(i64::MAX));
            });
        }
    }

    fn evicted(&self, evictions: Evictions) {
        let Evictions {
            accepted,
            refused,
            failed,
        } = evictions;
        for (result, count) in [
            ("accepted", accepted),
            ("refused", refused),
            ("failed", failed),
        ] {
            let counter = self.evictions.get_or_create(&EvictionLabels { result });
            counter.inc_by(count as u64);
        }
    }

    /// Removes the nodes of a release.
    pub(super) fn forget(&self, release: &ReleaseLabels) {
        for phase in NodePhase::ALL {
            self.nodes.remove(&NodeLabels {
                environment: release.environment.clone(),
                release: release.release.clone(),
                phase: phase.as_str(),
            });
        }
    }
}

impl Metrics {
    /// Records an event of a run.
    pub fn count_sync(&self, event: &SyncEvent) {
        let release = ReleaseLabels::of(&event.release);
        match &event.kind {
            EventKind::Nodes(nodes) => self.nodes.begin(&release, nodes),
            EventKind::Node(change) => {
                // The node left a phase that a former event reported.
                self.nodes.gauge(&release, change.before, |gauge| {
                    if gauge.get() > 0 {
                        gauge.dec();
                    }
                });
                self.nodes.gauge(&release, change.node.phase, |gauge| {
                    gauge.inc();
                });
                if change.before.is_in_work() {
                    let labels = PhaseLabels {
                        phase: change.before.as_str(),
                    };
                    let durations = self.nodes.durations.get_or_create(&labels);
                    durations.observe(change.took.as_secs_f64());
                }
            }
            EventKind::Evicted(evictions) => self.nodes.evicted(*evictions),
            EventKind::Phase(_)
            | EventKind::Queued(_)
            | EventKind::Started(_)
            | EventKind::Applied(_)
            | EventKind::Waiting(..)
            | EventKind::Retrying(..)
            | EventKind::Done(..)
            | EventKind::Warning(_)
            | EventKind::Finished(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use pleach_engine::sync::node_progress::NodeChange;
    use pleach_model::object::ReleaseName;

    use super::*;

    #[test]
    fn nodes_are_counted_by_phase() {
        let metrics = Metrics::default();
        let release = ReleaseName {
            environment: "prod".to_owned(),
            release: "web".to_owned(),
        };
        let node = |name: &str, phase: NodePhase| NodeProgress {
            name: name.to_owned(),
            phase,
            since: Timestamp::UNIX_EPOCH,
            message: String::new(),
        };
        let change = |before: NodePhase, phase: NodePhase| {
            EventKind::Node(NodeChange {
                node: node("a", phase),
                before,
                took: Duration::from_secs(7),
            })
        };
        let pending = [node("a", NodePhase::Pending), node("b", NodePhase::Pending)];
        for kind in [
            EventKind::Nodes(pending.into()),
            change(NodePhase::Pending, NodePhase::Draining),
            EventKind::Evicted(Evictions {
                accepted: 2,
                refused: 1,
                failed: 0,
            }),
            change(NodePhase::Draining, NodePhase::Failed),
        ] {
            metrics.count_sync(&SyncEvent {
                release: release.clone(),
                kind,
            });
        }
        let text = metrics.text();
        for line in [
            "pleach_nodes{environment=\"prod\",release=\"web\",phase=\"Pending\"} 1",
            "pleach_nodes{environment=\"prod\",release=\"web\",phase=\"Draining\"} 0",
            "pleach_nodes{environment=\"prod\",release=\"web\",phase=\"Failed\"} 1",
            "pleach_node_phase_duration_seconds_sum{phase=\"Draining\"} 7.0",
            "pleach_node_phase_duration_seconds_count{phase=\"Draining\"} 1",
            "pleach_evictions_total{result=\"accepted\"} 2",
            "pleach_evictions_total{result=\"refused\"} 1",
            "pleach_evictions_total{result=\"failed\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        // No node is in this phase before a run.
        assert!(!text.contains("phase=\"Pending\",le"), "{text}");
        metrics.nodes.forget(&ReleaseLabels::of(&release));
        assert!(!metrics.text().contains("pleach_nodes{"));
    }
}
