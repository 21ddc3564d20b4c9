//! Pods of a `DaemonSet`, by the template revision that they run.

use pleach_model::object::ObjectId;
use serde_json::Value;

use pleach_cluster::{Cluster, ClusterError, ResourcePath, Selector};

/// Rollout state of a `DaemonSet`.
#[derive(Debug)]
pub(super) struct Daemon {
    /// Desired number of pods.
    pub(super) desired: usize,
    /// Number of available pods.
    pub(super) available: usize,
    /// Pods of the current revision.
    pub(super) updated: Vec<DaemonPod>,
    /// Pods of previous revisions.
    pub(super) previous: Vec<DaemonPod>,
}

/// A pod of a `DaemonSet`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DaemonPod {
    /// Labels and owner references.
    pub(super) metadata: Value,
    pub(super) name: String,
    pub(super) uid: String,
    /// Whether the pod is ready and not terminating.
    pub(super) is_ready: bool,
    pub(super) is_terminating: bool,
    /// Number of container restarts.
    pub(super) restarts: i64,
    /// Reason of the last container termination.
    pub(super) trouble: String,
}

impl Daemon {
    /// Reads a `DaemonSet` and its pods. The inner error describes why that is impossible, for
    /// example because the controller has not observed the latest spec.
    pub(super) async fn read(
        cluster: &Cluster,
        id: &ObjectId,
    ) -> Result<Result<Self, String>, ClusterError> {
        let path = ResourcePath::namespaced("apps/v1", "DaemonSet", "daemonsets");
        let Some(object) = cluster.get_id(&path, id).await? else {
            return Ok(Err("it does not exist".to_owned()));
        };
        let status = &object["status"];
        if status["observedGeneration"].as_i64() < object["metadata"]["generation"].as_i64() {
            let message = "its controller has not observed the change yet";
            return Ok(Err(message.to_owned()));
        }
        let labels = selector(&object);
        let within = Selector {
            namespace: id.namespace.as_deref(),
            labels: (!labels.is_empty()).then_some(labels.as_str()),
            ..Selector::default()
        };
        let revisions =
            ResourcePath::namespaced("apps/v1", "ControllerRevision", "controllerrevisions");
        let revisions = cluster.list(&revisions, &within).await?.items;
        let uid = &object["metadata"]["uid"];
        let newest = revisions
            .iter()
            .filter(|revision| is_owned(revision, uid))
            .max_by_key(|revision| revision["revision"].as_i64());
        let Some(newest) = newest else {
            return Ok(Err(
                "its controller has not created a ControllerRevision yet".to_owned(),
            ));
        };
        let hash = &newest["metadata"]["labels"][HASH];
        let pods = ResourcePath::namespaced("v1", "Pod", "pods");
        let pods = cluster.list(&pods, &within).await?.items;
        let (updated, previous): (Vec<&Value>, Vec<&Value>) = pods
            .iter()
            .filter(|pod| is_owned(pod, uid))
            .partition(|pod| pod["metadata"]["labels"][HASH] == *hash);
        let count = |key: &str| {
            let number = status[key].as_u64().unwrap_or_default();
            usize::try_from(number).unwrap_or(usize::MAX)
        };
        Ok(Ok(Self {
            desired: count("desiredNumberScheduled"),
            available: count("numberAvailable"),
            updated: updated.into_iter().map(DaemonPod::of).collect(),
            previous: previous.into_iter().map(DaemonPod::of).collect(),
        }))
    }

    /// Returns the old pods to replace, so that `target` pods run the current revision. Unready
    /// pods come first.
    pub(super) fn next(&self, target: usize) -> Vec<&DaemonPod> {
        let terminating = self
            .previous
            .iter()
            .filter(|pod| pod.is_terminating)
            .count();
        let missing = target.saturating_sub(self.updated.len() + terminating);
        let mut candidates: Vec<&DaemonPod> = self
            .previous
            .iter()
            .filter(|pod| !pod.is_terminating)
            .collect();
        candidates.sort_by_key(|pod| (pod.is_ready, &pod.name));
        candidates.truncate(missing);
        candidates
    }
}

/// Label of pods and revisions with the template hash.
const HASH: &str = "controller-revision-hash";

fn selector(object: &Value) -> String {
    let labels = object["spec"]["selector"]["matchLabels"].as_object();
    let pairs = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)));
    pairs.collect::<Vec<_>>().join(",")
}

fn is_owned(object: &Value, uid: &Value) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    let mut owners = owners.into_iter().flatten();
    owners.any(|owner| owner["controller"] == true && owner["uid"] == *uid)
}

impl DaemonPod {
    fn of(pod: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &pod["metadata"];
        let is_terminating = metadata["deletionTimestamp"].is_string();
        let conditions = pod["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let is_ready = conditions.any(|one| one["type"] == "Ready" && one["status"] == "True")
            && !is_terminating;
        let containers: Vec<&Value> = ["initContainerStatuses", "containerStatuses"]
            .into_iter()
            .flat_map(|key| pod["status"][key].as_array().into_iter().flatten())
            .collect();
        let restarts = containers
            .iter()
            .map(|container| container["restartCount"].as_i64().unwrap_or_default())
            .sum();
        let trouble = containers.iter().find_map(|container| {
            let ended = &container["lastState"]["terminated"];
            let reason = ended["reason"].as_str()?;
            Some(format!(
                "container {} ended with {reason} ({})",
                text(&container["name"]),
                ended["exitCode"]
            ))
        });
        Self {
            metadata: metadata.clone(),
            name: text(&metadata["name"]),
            uid: text(&metadata["uid"]),
            is_ready,
            is_terminating,
            restarts,
            trouble: trouble.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, is_ready: bool, is_terminating: bool) -> DaemonPod {
        let ended = is_terminating.then_some("2026-07-01T10:00:00Z");
        DaemonPod::of(&json!({
            "metadata": {"name": name, "uid": name, "deletionTimestamp": ended},
            "status": {"conditions": [{"type": "Ready", "status": if is_ready { "True" } else { "False" }}]},
        }))
    }

    fn next(updated: &[DaemonPod], previous: &[DaemonPod], target: usize) -> Vec<String> {
        let daemon = Daemon {
            desired: updated.len() + previous.len(),
            available: 0,
            updated: updated.to_vec(),
            previous: previous.to_vec(),
        };
        let next = daemon.next(target).into_iter();
        next.map(|pod| pod.name.clone()).collect()
    }

    #[test]
    fn unready_pods_are_replaced_first() {
        let previous = [
            pod("a", true, false),
            pod("b", false, false),
            pod("c", true, false),
        ];
        assert_eq!(next(&[], &previous, 1), ["b"]);
        assert_eq!(next(&[], &previous, 2), ["b", "a"]);
        assert_eq!(next(&[], &previous, 9), ["b", "a", "c"]);
    }

    #[test]
    fn terminating_pods_count_as_replaced() {
        let previous = [pod("a", true, true), pod("b", true, false)];
        assert!(next(&[], &previous, 1).is_empty());
        assert!(next(&[pod("c", true, false)], &previous, 2).is_empty());
        assert_eq!(next(&[pod("c", true, false)], &previous, 3), ["b"]);
        // A terminating pod counts as not ready.
        assert!(!pod("a", true, true).is_ready);
    }

    #[test]
    fn a_restart_is_reported_with_its_cause() {
        let pod = DaemonPod::of(&json!({
            "metadata": {"name": "a", "uid": "1"},
            "status": {"containerStatuses": [
                {"name": "x", "restartCount": 0},
                {"name": "y", "restartCount": 2, "lastState": {"terminated": {"reason": "Error", "exitCode": 3}}}]},
        }));
        assert_eq!(pod.restarts, 2);
        assert_eq!(pod.trouble, "container y ended with Error (3)");
    }
}
