//! What stands around workloads and may keep them from getting on.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::object::ObjectId;

/// Disruption budgets and nodes, read before workloads are written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Surroundings {
    /// Disruption budgets in the namespaces of the release.
    pub budgets: Vec<Budget>,
    /// How many nodes there are; none where we may not look.
    pub nodes: Option<usize>,
    /// Nodes that are not ready, by name.
    pub not_ready: Vec<String>,
    /// Nodes on which nothing new is put, by name.
    pub cordoned: Vec<String>,
}

/// What a disruption budget allows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// The object.
    pub id: ObjectId,
    /// Its `spec`: selector and bounds.
    pub spec: Value,
}

/// What is looked at of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Whether its kubelet answers and can run pods.
    pub ready: bool,
    /// Whether somebody said that nothing new is put on it.
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

impl Surroundings {
    /// Returns whether a plan has nothing to point out here: it is the same as with nothing
    /// around its workloads.
    pub fn is_clear(&self) -> bool {
        // Their number only goes with the names of some.
        let Self {
            budgets,
            nodes: _,
            not_ready,
            cordoned,
        } = self;
        budgets.is_empty() && not_ready.is_empty() && cordoned.is_empty()
    }

    /// Takes what was read of the nodes.
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
