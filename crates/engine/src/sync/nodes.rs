//! Nodes that a stage changes, with the pods and budgets that their drain meets.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use pleach_formats::nodes::{
    Budget, CleanupRule, FormerImages, Mark, NodeCapacity, NodePod, NodeState, NodesRule, Usage,
};
use pleach_formats::preload::{Images, PreloadRule};
use pleach_model::object::{GroupKind, Manifest, ObjectId, pod_template};
use pleach_planner::observe::{MarkedNode, MarkedNodes, ObservedNodes};
use serde_json::Value;

use super::answers::Source;
use pleach_cluster::{Cluster, ClusterError, Depth, ResourcePath, Selector};

impl Source<'_> {
    /// Reads the nodes of a stage, and what their drain meets.
    pub(crate) async fn nodes(&self, stage: &str) -> ObservedNodes {
        let mut stages = self.desired.sequence.stages.iter();
        let stage = stages.find(|rule| rule.stage.as_str() == stage);
        if let Some(rule) = stage.and_then(|stage| stage.preload.as_ref()) {
            return self.nodes_to_preload(rule).await;
        }
        let Some(rule) = stage.and_then(|stage| stage.nodes.as_ref()) else {
            return ObservedNodes::Unknown("the bundle does not have the stage".to_owned());
        };
        let (nodes, mut capacity) = match nodes(self.cluster, rule).await {
            Ok(found) => found,
            Err(why) => return ObservedNodes::Unknown(why),
        };
        // A node whose Job may have begun is not drained again.
        let open = nodes.iter().filter(|node| !node.done && !node.has_begun());
        let open: BTreeSet<&str> = open.map(|node| node.name.as_str()).collect();
        let (pods, budgets) = if rule.drain.is_some() && !open.is_empty() {
            match obstacles(self.cluster, &open).await {
                Ok((pods, budgets, usage)) => {
                    usage.apply(&mut capacity);
                    (pods, budgets)
                }
                Err(error) => return ObservedNodes::Unknown(super::op::failure(&error).message),
            }
        } else {
            capacity.clear();
            (Vec::new(), Vec::new())
        };
        let former = match &rule.cleanup {
            Some(cleanup) => self.former_images(cleanup).await,
            None => Ok(BTreeSet::new()),
        };
        match former {
            Ok(former) => ObservedNodes::Read {
                nodes,
                pods,
                budgets,
                capacity,
                former,
            },
            Err(why) => ObservedNodes::Unknown(why),
        }
    }

    /// Reads the images that only the replaced version uses: those of live members, and those that
    /// an earlier run remembered.
    async fn former_images(&self, rule: &CleanupRule) -> Result<BTreeSet<String>, String> {
        let Some(job) = self.desired.cleanup_job(rule) else {
            return Ok(BTreeSet::new());
        };
        let describe = |error: ClusterError| super::op::failure(&error).message;
        let id = FormerImages::id(job.id().namespace.as_deref());
        let path = ResourcePath::namespaced("v1", "ConfigMap", "configmaps");
        let remembered = self.cluster.get_id(&path, &id).await.map_err(describe)?;
        let release = self.desired.name.to_string();
        if remembered
            .as_ref()
            .is_some_and(|one| !FormerImages::is_of(&release, one))
        {
            return Err(format!("{id} belongs to another release or a user"));
        }
        let recorded = self.observed.inventory.entries.keys();
        let desired = self.desired.manifests.iter().map(Manifest::id);
        let members: BTreeSet<&ObjectId> = recorded
            .chain(desired)
            .filter(|id| pod_template(id, &Value::Null).is_some())
            .collect();
        let lists: BTreeSet<(GroupKind, Option<&str>)> = members
            .iter()
            .map(|id| (id.group_kind(), id.namespace.as_deref()))
            .collect();
        let mut live = Images::default();
        for (kind, namespace) in lists {
            let Some(path) = ResourcePath::preferred(&self.observed.discovery, &kind) else {
                continue;
            };
            let read = |object: Value| {
                let id = path.id(namespace, object["metadata"]["name"].as_str()?);
                let mut images = Images::default();
                if members.contains(&id) {
                    images.add(&id, &object, None);
                }
                Some(images.references)
            };
            let selector = Selector::namespace(namespace);
            let found = self.cluster.pick(&path, &selector, Depth::Full, read).await;
            live.references
                .extend(found.map_err(describe)?.into_iter().flatten());
        }
        Ok(FormerImages::of(
            &live,
            remembered.as_ref(),
            &self.desired.images(),
        ))
    }

    /// Reads the nodes with a mark of the release.
    pub(crate) async fn marked_nodes(&self) -> MarkedNodes {
        let release = self.desired.name.to_string();
        let path = ResourcePath::cluster_scoped("v1", "Node", "nodes");
        let everything = Selector::default();
        let read = |node: Value| {
            let mark = Mark::of(&node).filter(|mark| mark.release == release)?;
            Some(MarkedNode {
                name: node["metadata"]["name"].as_str()?.to_owned(),
                stage: mark.stage,
            })
        };
        let found = self
            .cluster
            .pick(&path, &everything, Depth::Metadata, read)
            .await;
        match found {
            Ok(mut nodes) => {
                nodes.sort();
                MarkedNodes::Read(nodes)
            }
            Err(error) => MarkedNodes::Unknown(super::op::failure(&error).message),
        }
    }

    /// Reads the nodes of a stage that preloads.
    async fn nodes_to_preload(&self, rule: &PreloadRule) -> ObservedNodes {
        let images = self.desired.images();
        let preloading = self.desired.preloading(rule, &images);
        let now = Timestamp::now();
        let path = ResourcePath::cluster_scoped("v1", "Node", "nodes");
        let everything = Selector::default();
        let read = |node: Value| rule.state_of(&node, &images, &preloading, now);
        match self
            .cluster
            .pick(&path, &everything, Depth::Full, read)
            .await
        {
            Ok(nodes) => ObservedNodes::Read {
                nodes,
                pods: Vec::new(),
                budgets: Vec::new(),
                capacity: Vec::new(),
                former: BTreeSet::new(),
            },
            Err(error) => ObservedNodes::Unknown(super::op::failure(&error).message),
        }
    }
}

/// Reads the nodes that a rule selects, and the capacity of all nodes without their pods.
async fn nodes(
    cluster: &Cluster,
    rule: &NodesRule,
) -> Result<(Vec<NodeState>, Vec<NodeCapacity>), String> {
    let path = ResourcePath::cluster_scoped("v1", "Node", "nodes");
    let everything = Selector::default();
    let read = |node: Value| Some((rule.state_of(&node), NodeCapacity::of(&node)?));
    let found = cluster.pick(&path, &everything, Depth::Full, read).await;
    let found = found.map_err(|error| super::op::failure(&error).message)?;
    let (nodes, capacity): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    let nodes: Result<Vec<NodeState>, _> = nodes.into_iter().flatten().collect();
    let nodes = nodes.map_err(|error| format!("`done` cannot be evaluated: {error}"))?;
    Ok((nodes, capacity))
}

async fn obstacles(
    cluster: &Cluster,
    nodes: &BTreeSet<&str>,
) -> Result<(Vec<NodePod>, Vec<Budget>, Usage), ClusterError> {
    let path = ResourcePath::namespaced("v1", "Pod", "pods");
    let everything = Selector::default();
    let siblings: RefCell<BTreeMap<String, usize>> = RefCell::default();
    let usage: RefCell<Usage> = RefCell::default();
    let on_nodes = |pod: Value| {
        usage.borrow_mut().add(&pod);
        let pod = NodePod::of(&pod)?;
        if let Some(controller) = &pod.controller {
            let mut siblings = siblings.borrow_mut();
            *siblings.entry(controller.clone()).or_default() += 1;
        }
        nodes.contains(pod.node.as_str()).then_some(pod)
    };
    let mut pods = cluster
        .pick(&path, &everything, Depth::Full, on_nodes)
        .await?;
    let siblings = siblings.into_inner();
    for pod in &mut pods {
        let controller = pod.controller.as_ref();
        pod.alone = controller.is_some_and(|controller| siblings.get(controller) == Some(&1));
    }
    pods.sort_by(|a, b| a.id.cmp(&b.id));
    let path = ResourcePath::namespaced("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets");
    let read = |budget: Value| Budget::of(&budget);
    let mut budgets = cluster.pick(&path, &everything, Depth::Full, read).await?;
    budgets.sort_by(|a, b| a.id.cmp(&b.id));
    Ok((pods, budgets, usage.into_inner()))
}
