//! Symptoms in pods and events that explain an unready object, for waits and for status commands.

use std::time::Duration;

use pleach_formats::readiness::symptoms::{self, PodState};
use pleach_model::object::ObjectId;
use serde_json::Value;

use pleach_cluster::{Cluster, ClusterError, Depth, ResourcePath, Selector};

/// Time limit of a read. Waits have their own deadline.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// An unready object whose symptoms can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unready {
    id: ObjectId,
    uid: String,
    /// Label selector of its pods. `None`: it has none.
    pods: Option<String>,
}

/// Symptoms of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Symptoms {
    /// The symptoms in one line.
    pub(super) message: Option<String>,
    /// Reason of a pod that cannot start without a change in git.
    pub(super) stuck: Option<&'static str>,
    /// Whether the kubelet has restarted a container that has no readiness probe.
    pub(super) restarted: bool,
}

impl Unready {
    /// Extracts the subject from a live object.
    pub(super) fn of(id: &ObjectId, live: &Value) -> Self {
        let uid = live["metadata"]["uid"].as_str();
        Self {
            id: id.clone(),
            uid: uid.unwrap_or_default().to_owned(),
            pods: symptoms::pod_selector(id, live),
        }
    }

    /// Reads the symptoms: the pods, then the warnings about a pod and about the object.
    pub(super) async fn read(&self, cluster: &Cluster) -> Result<Symptoms, ClusterError> {
        let mut found = Symptoms::default();
        if let Some(labels) = &self.pods {
            let pods = self.pods(cluster, labels).await?;
            found.stuck = symptoms::stuck(&pods);
            found.restarted = symptoms::restarted(&pods);
            found.message = symptoms::of_pods(&pods);
            // Events of the pod are closer to the cause than events of its owner.
            if found.message.is_none()
                && let Some(pod) = symptoms::waiting(&pods)
            {
                let warnings = self.warnings(cluster, pod.uid()).await?;
                found.message = symptoms::of_waiting(pod, &pods, &warnings);
            }
        }
        if found.message.is_none() {
            let warnings = self.warnings(cluster, &self.uid).await?;
            found.message = symptoms::newest(&warnings);
        }
        Ok(found)
    }

    async fn pods(&self, cluster: &Cluster, labels: &str) -> Result<Vec<PodState>, ClusterError> {
        let path = ResourcePath::namespaced("v1", "Pod", "pods");
        let selector = Selector {
            namespace: self.id.namespace.as_deref(),
            labels: Some(labels),
            ..Selector::default()
        };
        let read = |pod: Value| Some(PodState::of(&pod));
        cluster.pick(&path, &selector, Depth::Full, read).await
    }

    /// Returns the warnings about the object with this uid.
    async fn warnings(&self, cluster: &Cluster, uid: &str) -> Result<Vec<Value>, ClusterError> {
        if uid.is_empty() {
            return Ok(Vec::new());
        }
        let fields = format!("involvedObject.uid={uid},type=Warning");
        let selector = Selector {
            namespace: self.id.namespace.as_deref(),
            fields: Some(&fields),
            ..Selector::default()
        };
        let path = ResourcePath::namespaced("v1", "Event", "events");
        Ok(cluster.list(&path, &selector).await?.items)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sync::serving::serving;

    #[tokio::test]
    async fn a_failing_probe_is_named_with_pod_and_container() {
        let cluster = serving(|path| {
            let items = match path {
                "/api/v1/namespaces/shop/pods" => json!([{
                    "metadata": {"name": "web-1", "uid": "p", "creationTimestamp": "1"},
                    "spec": {"containers": [{"name": "web"}]},
                    "status": {"phase": "Running",
                        "conditions": [{"type": "Ready", "status": "False"}],
                        "containerStatuses": [{"name": "web", "ready": false, "restartCount": 1,
                            "state": {"running": {}}}]}}]),
                "/api/v1/namespaces/shop/events" => json!([{
                    "reason": "Unhealthy", "message": "Readiness probe failed: 503"}]),
                _ => return None,
            };
            Some(json!({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}))
        });
        let id: ObjectId = "Deployment.apps/shop/web".parse().unwrap();
        let live = json!({"metadata": {"uid": "w"}, "spec": {"selector": {"matchLabels": {"app": "web"}}}});
        let found = Unready::of(&id, &live).read(&cluster).await.unwrap();
        let message = "pod web-1: container web: not ready: Readiness probe failed: 503";
        let expected = Symptoms {
            message: Some(message.to_owned()),
            stuck: None,
            restarted: true,
        };
        assert_eq!(found, expected);
    }
}
