//! Workload context: nodes and disruption budgets around workloads to write.

use std::collections::BTreeSet;

use futures::stream::{self, StreamExt as _};
use pleach_model::object::{Manifest, ObjectId};
use pleach_planner::observe::{Budget, Node, WorkloadContext};
use pleach_planner::plan::Desired;
use serde_json::Value;

use super::CONCURRENCY;
use super::answers::Source;
use super::rbac_scope::RbacScope;
use pleach_cluster::{Cluster, Depth, ResourcePath, Selector};

impl Source<'_> {
    /// Reads disruption budgets and nodes around the workloads. Read errors cause no warning and
    /// stop nothing.
    pub(crate) async fn workload_context(&self) -> WorkloadContext {
        let rbac_scope = RbacScope::of(self.observed);
        let mut found = WorkloadContext {
            budgets: budgets(self.cluster, self.desired, &rbac_scope).await,
            ..WorkloadContext::default()
        };
        // Namespaced permissions do not include nodes.
        if !rbac_scope.is_restricted() {
            let path = ResourcePath::cluster_scoped("v1", "Node", "nodes");
            let read = |value: Value| Some(Node::of(&value));
            let everything = Selector::default();
            let nodes = self.cluster.pick(&path, &everything, Depth::Full, read);
            if let Ok(nodes) = nodes.await {
                found.count(nodes);
            }
        }
        found
    }
}

/// Returns the budgets in the namespaces of the workloads, sorted. Excludes budgets in git, because
/// the plan uses their desired state.
async fn budgets(cluster: &Cluster, desired: &Desired, rbac_scope: &RbacScope) -> Vec<Budget> {
    let path = ResourcePath::namespaced("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets");
    let namespaces: BTreeSet<String> = desired
        .manifests
        .iter()
        .filter(|manifest| manifest.facts().pod_labels.is_some())
        .map(Manifest::id)
        .filter_map(|id| id.namespace.clone())
        .collect();
    let of_git: BTreeSet<&ObjectId> = desired.manifests.iter().map(Manifest::id).collect();
    let path = &path;
    let lists: Vec<Vec<Budget>> = stream::iter(rbac_scope.scopes(path, &namespaces))
        .map(|scope| async move {
            let selector = Selector::namespace(scope.as_deref());
            let read = |mut value: Value| {
                let metadata = &value["metadata"];
                let id = path.id(metadata["namespace"].as_str(), metadata["name"].as_str()?);
                let spec = value["spec"].take();
                Some(Budget { id, spec })
            };
            let found = cluster.pick(path, &selector, Depth::Full, read).await;
            found.unwrap_or_default()
        })
        .buffer_unordered(CONCURRENCY)
        .collect()
        .await;
    let mut budgets: Vec<Budget> = lists.into_iter().flatten().collect();
    budgets.retain(|budget| {
        let namespace = budget.id.namespace.as_ref();
        namespace.is_some_and(|namespace| namespaces.contains(namespace))
            && !of_git.contains(&budget.id)
    });
    budgets.sort_by(|a, b| a.id.cmp(&b.id));
    budgets
}
