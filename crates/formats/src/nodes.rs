//! Change of the nodes of a cluster, one after the other.
//!
//! The decisions are pure: the order of the nodes, the mark that remembers what was changed on a
//! node, the patches, the pods to evict, and the Job of a node.

mod capacity;
mod cleanup;
mod drain;
pub mod driver;
mod job;
mod mark;
mod patch;
mod taint;

use std::collections::BTreeMap;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::sequence::Count;
use pleach_model::cel::{Expression, Subject, Unevaluable};

pub use capacity::{NodeCapacity, Resources, Shortage, Usage, shortage};
pub use cleanup::{CleanupRule, FORMER_IMAGES, FormerImages};
pub use drain::{Budget, DrainRule, NodePod, overlapping};
pub use driver::DriverRule;
pub use job::{NODE_UPGRADE, job_of};
pub use mark::{MARK, Mark};
pub use patch::{MetadataPatch, is_reserved};
pub use taint::Taint;

/// Change of nodes that a stage declares.
#[derive(Debug, Clone, PartialEq, Hash)]
pub struct NodesRule {
    /// Labels of the nodes to change.
    pub select: BTreeMap<String, String>,
    /// Labels of the groups that are changed first.
    pub first: Vec<BTreeMap<String, String>>,
    /// Nodes at a time, after those of `first`.
    pub parallel: Count,
    /// Condition on `node` that holds when the node is changed.
    pub done: Expression,
    /// Actions before the node is cordoned.
    pub before: Vec<NodeAction>,
    /// Eviction of pods. `None`: pods stay.
    pub drain: Option<DrainRule>,
    /// Controller that cordons and drains the nodes. `None`: pleach does.
    pub driver: Option<DriverRule>,
    /// File of the Job that runs on the node.
    pub job: Option<String>,
    /// Actions after the node is uncordoned.
    pub after: Vec<NodeAction>,
    /// Removal of images at the end.
    pub cleanup: Option<CleanupRule>,
    /// Number of changed nodes after which a run ends.
    pub pause_after: Option<u32>,
    /// Whether a rollback changes nodes too.
    pub reverse: bool,
    /// Time limit for one node.
    pub timeout: SignedDuration,
}

/// Action on a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum NodeAction {
    /// Sets a taint until the node is changed.
    Taint(Taint),
    /// Sets or removes labels and annotations until the node is changed.
    Patch(MetadataPatch),
    /// Runs a Job on the node.
    Job {
        /// File of the Job.
        file: String,
        /// Time limit. `None`: that of the node.
        timeout: Option<SignedDuration>,
        /// Whether a failed Job is only reported.
        optional: bool,
    },
    /// Waits for a check.
    Check {
        /// Name of the check.
        name: String,
        /// Time limit. `None`: that of the node.
        timeout: Option<SignedDuration>,
        /// Whether a failed check is only reported.
        optional: bool,
    },
}

/// State of a node, as far as a plan needs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeState {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Whether condition Ready is True.
    pub ready: bool,
    /// Whether it is cordoned.
    pub cordoned: bool,
    /// The mark of the release that is changing it.
    pub in_work: Option<Mark>,
    /// Whether it is changed already.
    pub done: bool,
}

impl NodeState {
    /// Returns whether a release is changing the node.
    pub fn is_in_work_of(&self, release: &str) -> bool {
        self.in_work
            .as_ref()
            .is_some_and(|mark| mark.release == release)
    }

    /// Returns whether the Job of the node may have begun.
    pub fn has_begun(&self) -> bool {
        self.in_work.as_ref().is_some_and(|mark| mark.begun)
    }
}

impl NodesRule {
    /// Returns the names of the checks that the rule waits for.
    pub fn checks(&self) -> impl Iterator<Item = &str> {
        let actions = self.before.iter().chain(&self.after);
        actions.filter_map(|action| match action {
            NodeAction::Check { name, .. } => Some(name.as_str()),
            NodeAction::Taint(_) | NodeAction::Patch(_) | NodeAction::Job { .. } => None,
        })
    }

    /// Returns the files of the Jobs that run on each node.
    pub fn jobs(&self) -> impl Iterator<Item = &str> {
        let actions = self.before.iter().chain(&self.after);
        let of_actions = actions.filter_map(|action| match action {
            NodeAction::Job { file, .. } => Some(file.as_str()),
            NodeAction::Taint(_) | NodeAction::Patch(_) | NodeAction::Check { .. } => None,
        });
        self.job.as_deref().into_iter().chain(of_actions)
    }

    /// Returns whether a live node is changed already. A missing field means that it is not.
    pub fn is_done(&self, node: &Value) -> Result<bool, Unevaluable> {
        let subject = Subject::of(&Value::Null).with("node", node);
        match self.done.test(&subject) {
            Err(Unevaluable::Missing(_)) => Ok(false),
            answer => answer,
        }
    }

    /// Reads the state of a live node. `None` if the rule does not select it.
    pub fn state_of(&self, node: &Value) -> Option<Result<NodeState, Unevaluable>> {
        let labels = labels_of(node);
        if !has_all(&labels, &self.select) {
            return None;
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Some(self.is_done(node).map(|done| NodeState {
            name: text(&node["metadata"]["name"]),
            uid: text(&node["metadata"]["uid"]),
            ready: ready_since(node).is_some(),
            cordoned: is_cordoned(node),
            in_work: Mark::of(node),
            done,
            labels,
        }))
    }

    /// Returns the group of `first` that a node belongs to. `None` for the other nodes.
    pub fn group(&self, node: &NodeState) -> Option<usize> {
        let mut groups = self.first.iter();
        groups.position(|labels| has_all(&node.labels, labels))
    }

    /// Sorts nodes: the groups of `first` in their order, then the others; each by name.
    pub fn sort(&self, nodes: &mut [&NodeState]) {
        nodes.sort_by_cached_key(|node| {
            (
                self.group(node).unwrap_or(self.first.len()),
                node.name.clone(),
            )
        });
    }

    /// Returns everything that decides about the change of a node, except for its Job.
    pub fn content(&self) -> Value {
        let actions = |actions: &[NodeAction]| -> Vec<Value> {
            actions.iter().map(NodeAction::content).collect()
        };
        let drain = self.drain.as_ref();
        let drain = drain.map(|drain| (drain.empty_dir, drain.unmanaged, drain.timeout));
        let mut content = json!({
            "select": self.select,
            "first": self.first,
            "parallel": self.parallel,
            "done": self.done.text(),
            "before": actions(&self.before),
            "drain": drain,
            "after": actions(&self.after),
            "pauseAfter": self.pause_after,
            "timeout": self.timeout,
        });
        if let Some(driver) = &self.driver {
            content["driver"] = driver.content();
        }
        content
    }

    /// Describes the change of one node in one line.
    pub fn summary(&self) -> String {
        let mut parts: Vec<String> = self.before.iter().map(NodeAction::summary).collect();
        if self.driver.is_some() {
            parts.extend(["acknowledge", "drain by its driver"].map(str::to_owned));
        } else {
            parts.push("cordon".to_owned());
            parts.extend(self.drain.as_ref().map(|_| "drain".to_owned()));
        }
        parts.extend(self.job.as_ref().map(|file| format!("Job of {file}")));
        parts.extend(self.driver.is_none().then(|| "uncordon".to_owned()));
        parts.extend(self.after.iter().map(NodeAction::summary));
        parts.extend(self.driver.as_ref().map(|_| "acknowledge".to_owned()));
        parts.join(", ")
    }
}

impl NodeAction {
    fn content(&self) -> Value {
        match self {
            Self::Taint(taint) => json!(taint),
            Self::Patch(patch) => json!(patch),
            Self::Job {
                file: name,
                timeout,
                optional,
            }
            | Self::Check {
                name,
                timeout,
                optional,
            } => json!([name, timeout, optional]),
        }
    }

    fn summary(&self) -> String {
        match self {
            Self::Taint(taint) => format!("taint {taint}"),
            Self::Patch(patch) => format!("patch {patch}"),
            Self::Job { file, .. } => format!("Job of {file}"),
            Self::Check { name, .. } => format!("check {name}"),
        }
    }
}

fn labels_of(object: &Value) -> BTreeMap<String, String> {
    crate::check::Check::labels(object)
}

fn has_all(labels: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> bool {
    wanted
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

/// Returns whether a node is cordoned.
pub fn is_cordoned(node: &Value) -> bool {
    node["spec"]["unschedulable"] == true
}

/// Returns the time since which a node is ready, as in its condition. `None` if it is not ready.
pub fn ready_since(node: &Value) -> Option<&str> {
    let mut conditions = node["status"]["conditions"].as_array()?.iter();
    let ready = conditions.find(|one| one["type"] == "Ready" && one["status"] == "True")?;
    Some(ready["lastTransitionTime"].as_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(done: &str) -> NodesRule {
        let control_plane = [("role".to_owned(), "control-plane".to_owned())];
        NodesRule {
            select: BTreeMap::from([("os".to_owned(), "linux".to_owned())]),
            first: vec![BTreeMap::from(control_plane)],
            parallel: Count::Pods(1),
            done: Expression::compile(done, &["node"]).unwrap(),
            before: Vec::new(),
            drain: None,
            driver: None,
            job: None,
            after: Vec::new(),
            cleanup: None,
            pause_after: None,
            reverse: false,
            timeout: SignedDuration::from_secs(60),
        }
    }

    fn node(name: &str, role: &str, version: &str) -> Value {
        json!({"metadata": {"name": name, "uid": format!("{name}-1"),
            "labels": {"os": "linux", "role": role}},
            "status": {"nodeInfo": {"kubeletVersion": version},
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "t"}]}})
    }

    #[test]
    fn groups_come_first_and_the_rest_by_name() {
        let rule = rule("node.status.nodeInfo.kubeletVersion == 'v2'");
        let nodes = [
            node("c", "worker", "v1"),
            node("b", "control-plane", "v2"),
            node("a", "worker", "v1"),
        ];
        let states: Vec<NodeState> = nodes
            .iter()
            .map(|node| rule.state_of(node).unwrap().unwrap())
            .collect();
        let mut sorted: Vec<&NodeState> = states.iter().collect();
        rule.sort(&mut sorted);
        let names: Vec<(&str, bool)> = sorted
            .iter()
            .map(|node| (node.name.as_str(), node.done))
            .collect();
        assert_eq!(names, [("b", true), ("a", false), ("c", false)]);
        assert!(
            states
                .iter()
                .all(|node| node.ready && !node.cordoned && node.in_work.is_none())
        );
    }

    #[test]
    fn a_node_without_the_labels_is_not_selected() {
        let mut other = node("a", "worker", "v1");
        other["metadata"]["labels"] = json!({"os": "windows"});
        assert_eq!(rule("true").state_of(&other), None);
    }

    #[test]
    fn a_missing_field_means_that_a_node_is_not_done() {
        let rule = rule("node.status.nodeInfo.osImage == 'x'");
        assert_eq!(rule.is_done(&node("a", "worker", "v1")), Ok(false));
    }

    #[test]
    fn a_node_that_is_not_ready_has_no_time() {
        let mut node = node("a", "worker", "v1");
        assert_eq!(ready_since(&node), Some("t"));
        node["status"]["conditions"][0]["status"] = json!("Unknown");
        assert_eq!(ready_since(&node), None);
    }
}
