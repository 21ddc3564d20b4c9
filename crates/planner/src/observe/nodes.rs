//! Nodes that a stage changes.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use pleach_formats::nodes::{Budget, NodePod, NodeState};

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
        /// Images of the members in the cluster and those that an earlier run remembered, without
        /// those of the version in git. Read only for a cleanup.
        #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
        former: BTreeSet<String>,
    },
    /// Not all could be read. Contains the reason.
    Unknown(String),
}
