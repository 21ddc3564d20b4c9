//! Workload context: conditions that can block a rollout.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use pleach_model::object::ObjectId;

/// Disruption budgets and nodes. Read before workloads are written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadContext {
    /// Disruption budgets in the namespaces of the release.
    pub budgets: Vec<Budget>,
    /// Number of nodes. `None` if pleach is not allowed to list nodes.
    pub nodes: Option<usize>,
    /// Names of nodes that are not ready, sorted.
    pub not_ready: Vec<String>,
    /// Names of ready but cordoned nodes, sorted.
    pub cordoned: Vec<String>,
}

/// A `PodDisruptionBudget`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// The object.
    pub id: ObjectId,
    /// Its `spec`: selector and bounds.
    pub spec: Value,
}

/// State of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Whether condition Ready is True.
    pub ready: bool,
    /// Whether the node is cordoned (`spec.unschedulable`).
    pub cordoned: bool,
}

impl Node {
    /// Reads a node.
    pub fn of(value: &Value) -> Self {
        let conditions = value["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        Self {
            name: value["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            ready: conditions.any(|one| one["type"] == "Ready" && one["status"] == "True"),
            cordoned: value["spec"]["unschedulable"] == true,
        }
    }
}

impl WorkloadContext {
    /// Returns whether the context contains no problem that a plan would report.
    pub fn is_clear(&self) -> bool {
        // The number of nodes is shown only beside problem nodes.
        let Self {
            budgets,
            nodes: _,
            not_ready,
            cordoned,
        } = self;
        budgets.is_empty() && not_ready.is_empty() && cordoned.is_empty()
    }

    /// Counts the nodes and collects those that are not ready or cordoned.
    pub fn count(&mut self, nodes: Vec<Node>) {
        self.nodes = Some(nodes.len());
        for node in nodes {
            if !node.ready {
                self.not_ready.push(node.name);
            } else if node.cordoned {
                self.cordoned.push(node.name);
            }
        }
        self.not_ready.sort();
        self.cordoned.sort();
    }
}
