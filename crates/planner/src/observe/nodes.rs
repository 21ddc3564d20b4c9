//! Nodes that a stage changes.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use pleach_formats::nodes::{Budget, NodeCapacity, NodePod, NodeState};

/// Nodes that a stage selects, with the pods and budgets that their drain meets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ObservedNodes {
    /// All were read.
    Read {
        /// Selected nodes, also those that are changed already.
        nodes: Vec<NodeState>,
        /// Pods that a drain must remove from the nodes to change.
        pods: Vec<NodePod>,
        /// Budgets in all namespaces.
        budgets: Vec<Budget>,
        /// Capacity of all nodes of the cluster. Empty without a drain.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        capacity: Vec<NodeCapacity>,
        /// Images of the members in the cluster and those that an earlier run remembered, without
        /// those of the version in git. Read only for a cleanup.
        #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
        former: BTreeSet<String>,
    },
    /// Not all could be read. Contains the reason.
    Unknown(String),
}

impl ObservedNodes {
    /// Returns the names of the selected nodes.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let nodes = match self {
            Self::Read { nodes, .. } => nodes.as_slice(),
            Self::Unknown(_) => &[],
        };
        nodes.iter().map(|node| node.name.as_str())
    }
}

/// Nodes with a mark of the release, selected or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MarkedNodes {
    /// All were read; sorted by name.
    Read(Vec<MarkedNode>),
    /// They could not be read. Contains the reason.
    Unknown(String),
}

/// A node with a mark of the release.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MarkedNode {
    /// Its name.
    pub name: String,
    /// Stage that began its change.
    pub stage: String,
}
