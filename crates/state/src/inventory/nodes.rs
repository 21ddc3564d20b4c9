//! Progress of the nodes that a run changes, as the status of a release shows it.
//!
//! It is for users only: nothing decides by it, so no seal covers it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::release::{config_map_data, status_of};
use super::{ReleaseSummary, Store};

/// Number of nodes in a status.
const SHOWN: usize = 100;

/// Longest message of a node, in characters.
const LONGEST: usize = 300;

/// Phase of a node, in the order of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NodePhase {
    /// Not begun yet.
    Pending,
    /// Images are pulled.
    Preloading,
    /// The actions before the cordon.
    Evacuating,
    /// Pods are evicted.
    Draining,
    /// The Job of the node runs.
    Upgrading,
    /// The node must meet its condition and be ready, then the last actions follow.
    Verifying,
    /// Changed.
    Done,
    /// Its change failed.
    Failed,
}

impl NodePhase {
    /// All phases.
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Preloading,
        Self::Evacuating,
        Self::Draining,
        Self::Upgrading,
        Self::Verifying,
        Self::Done,
        Self::Failed,
    ];

    /// Returns the name, as in a status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Preloading => "Preloading",
            Self::Evacuating => "Evacuating",
            Self::Draining => "Draining",
            Self::Upgrading => "Upgrading",
            Self::Verifying => "Verifying",
            Self::Done => "Done",
            Self::Failed => "Failed",
        }
    }

    /// Returns whether the node is in work.
    pub fn is_in_work(self) -> bool {
        match self {
            Self::Preloading
            | Self::Evacuating
            | Self::Draining
            | Self::Upgrading
            | Self::Verifying => true,
            Self::Pending | Self::Done | Self::Failed => false,
        }
    }

    /// Returns the position in a status of limited size.
    fn rank(self) -> u8 {
        match self {
            Self::Preloading
            | Self::Evacuating
            | Self::Draining
            | Self::Upgrading
            | Self::Verifying => 0,
            Self::Failed => 1,
            Self::Pending => 2,
            Self::Done => 3,
        }
    }
}

/// Progress of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeProgress {
    /// Its name.
    pub name: String,
    /// Its phase.
    pub phase: NodePhase,
    /// Begin of the phase.
    pub since: Timestamp,
    /// Reason of a wait or failure, in one line. Empty without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Progress of all nodes of a run, with the most important ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodesReport {
    /// Nodes in work, then failed, pending and changed ones; at most 100.
    pub nodes: Vec<NodeProgress>,
    /// Number of nodes by phase, without those of no node.
    pub counts: BTreeMap<NodePhase, usize>,
}

impl NodesReport {
    /// Selects the nodes to show. Nodes of the same rank keep their order; of the changed ones, the
    /// newest come first.
    pub fn of(nodes: &[NodeProgress]) -> Self {
        let mut counts = BTreeMap::new();
        for node in nodes {
            *counts.entry(node.phase).or_default() += 1;
        }
        let mut shown: Vec<&NodeProgress> = nodes.iter().collect();
        shown.sort_by_key(|node| {
            let newest = (node.phase == NodePhase::Done).then_some(node.since);
            (node.phase.rank(), std::cmp::Reverse(newest))
        });
        let cut = |node: &NodeProgress| NodeProgress {
            message: node.message.chars().take(LONGEST).collect(),
            ..node.clone()
        };
        Self {
            nodes: shown.into_iter().take(SHOWN).map(cut).collect(),
            counts,
        }
    }

    /// Reads the nodes in the status of an object with a record. Unreadable ones are left out.
    pub fn read(parent: &Value) -> Self {
        let status = status_of(parent).unwrap_or_default();
        let nodes = status["nodes"].as_array().into_iter().flatten();
        let nodes = nodes.filter_map(|node| serde_json::from_value(node.clone()).ok());
        let count = |phase: NodePhase| {
            let count = status["nodeCounts"][phase.as_str()].as_u64()?;
            Some((
                phase,
                usize::try_from(count).ok().filter(|count| *count > 0)?,
            ))
        };
        Self {
            nodes: nodes.take(SHOWN).collect(),
            counts: NodePhase::ALL.into_iter().filter_map(count).collect(),
        }
    }

    /// Returns whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty() && self.nodes.is_empty()
    }

    /// Returns the number of all nodes, and of changed ones.
    pub fn totals(&self) -> (usize, usize) {
        let done = self.counts.get(&NodePhase::Done);
        (self.counts.values().sum(), done.copied().unwrap_or(0))
    }

    /// Adds the fields to a status. Without nodes they become null, because a merge patch keeps
    /// fields that it does not name.
    pub fn add_to(&self, status: &mut Value) {
        if self.is_empty() {
            status["nodes"] = Value::Null;
            status["nodeCounts"] = Value::Null;
            return;
        }
        // A merge patch keeps the counts that it does not name.
        let count = |phase: NodePhase| self.counts.get(&phase).copied().unwrap_or(0);
        let counts: BTreeMap<&str, usize> = NodePhase::ALL
            .into_iter()
            .map(|phase| (phase.as_str(), count(phase)))
            .collect();
        status["nodes"] = json!(self.nodes);
        status["nodeCounts"] = json!(counts);
    }

    /// Builds the merge patch that writes only the nodes, guarded by the version of `live`.
    pub fn patch(&self, store: &Store, live: &Value) -> Value {
        let version = &live["metadata"]["resourceVersion"];
        let mut change = json!({ "metadata": { "resourceVersion": version } });
        match store {
            Store::Release => {
                change["status"] = json!({});
                self.add_to(&mut change["status"]);
            }
            Store::ConfigMap { .. } => {
                let mut status = status_of(live).unwrap_or_default().into_owned();
                if !status.is_object() {
                    status = json!({});
                }
                self.add_to(&mut status);
                change["data"] = config_map_data(&status);
            }
        }
        change
    }
}

/// Copies the nodes of a status into the next one, which does not name them.
pub(super) fn carry_over_nodes(before: &Value, status: &mut Value) {
    for key in ["nodes", "nodeCounts"] {
        if status.get(key).is_none() && !before[key].is_null() {
            status[key] = before[key].clone();
        }
    }
}

impl ReleaseSummary {
    /// Returns the number of changed nodes and of all nodes. `None` if no run changes nodes.
    pub fn node_totals(&self) -> Option<(usize, usize)> {
        let (all, done) = self.nodes.totals();
        (all > 0).then_some((done, all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, phase: NodePhase, since: i64) -> NodeProgress {
        NodeProgress {
            name: name.to_owned(),
            phase,
            since: Timestamp::from_second(since).unwrap(),
            message: String::new(),
        }
    }

    #[test]
    fn nodes_in_work_and_failed_ones_come_first() {
        let nodes = [
            node("a", NodePhase::Done, 1),
            node("b", NodePhase::Done, 2),
            node("c", NodePhase::Failed, 3),
            node("d", NodePhase::Upgrading, 3),
            node("e", NodePhase::Pending, 0),
            node("f", NodePhase::Pending, 0),
        ];
        let report = NodesReport::of(&nodes);
        let names: Vec<&str> = report.nodes.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["d", "c", "e", "f", "b", "a"]);
        assert_eq!(report.totals(), (6, 2));
    }

    #[test]
    fn a_status_is_bounded() {
        let nodes: Vec<NodeProgress> = (0..1000)
            .map(|number| NodeProgress {
                message: "ä".repeat(1000),
                ..node(&format!("node-{number}"), NodePhase::Pending, 0)
            })
            .collect();
        let report = NodesReport::of(&nodes);
        assert_eq!((report.nodes.len(), report.totals().0), (100, 1000));
        let mut status = json!({});
        report.add_to(&mut status);
        assert!(status.to_string().len() < 80 * 1024);
    }

    #[test]
    fn nodes_round_trip_through_both_kinds_of_record() {
        let report = NodesReport::of(&[node("a", NodePhase::Draining, 1)]);
        let record =
            json!({"version": "v1", "nodes": [], "nodeCounts": {"Draining": 4, "Done": 1}});
        for (store, mut live) in [
            (
                Store::Release,
                json!({"kind": "Release", "status": record.clone()}),
            ),
            (
                Store::ConfigMap {
                    namespace: "n".to_owned(),
                },
                json!({"kind": "ConfigMap", "data": {"status": record.to_string()}}),
            ),
        ] {
            let patch = report.patch(&store, &live);
            json_patch::merge(&mut live, &patch);
            assert_eq!(NodesReport::read(&live), report, "{store:?}");
            let status = status_of(&live).unwrap();
            assert_eq!(status["version"], "v1", "{store:?}");
            let patch = NodesReport::default().patch(&store, &live);
            json_patch::merge(&mut live, &patch);
            assert!(NodesReport::read(&live).is_empty(), "{store:?}");
        }
    }

    #[test]
    fn a_write_without_nodes_keeps_them() {
        let live = json!({"nodes": [1], "nodeCounts": {"Done": 1}});
        let mut silent = json!({"version": "v1"});
        carry_over_nodes(&live, &mut silent);
        assert_eq!(
            silent,
            json!({"version": "v1", "nodes": [1], "nodeCounts": {"Done": 1}})
        );
        let mut removed = json!({});
        NodesReport::default().add_to(&mut removed);
        carry_over_nodes(&live, &mut removed);
        assert_eq!(removed, json!({"nodes": null, "nodeCounts": null}));
    }

    #[test]
    fn unreadable_nodes_are_left_out() {
        let live = json!({"kind": "Release", "status": {
            "nodes": [{"name": "a", "phase": "Rebooting", "since": "1970-01-01T00:00:00Z"}, 3],
            "nodeCounts": {"Done": -1, "Failed": "x"}}});
        assert!(NodesReport::read(&live).is_empty());
    }
}
