//! Eviction of pods (`policy/v1 Eviction`), which respects disruption budgets.

use bytes::Bytes;
use http::Method;
use pleach_model::object::ObjectId;
use serde_json::json;

use crate::{
    Class, Cluster, ClusterError, ResourcePath, Retry,
    classify::Verb,
    transport::{About, Call, JSON},
};

/// HTTP status of a refusal for now.
const TOO_MANY: u16 = 429;

/// Result of an eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evicted {
    /// The pod ends.
    Accepted,
    /// The pod, or the one with this uid, does not exist.
    Gone,
    /// A disruption budget or a webhook does not allow it now. Contains the message of the server.
    NotNow(String),
}

impl Cluster {
    /// Evicts a pod with a uid. Sends one request: a refusal for now is a result, and not repeated.
    pub async fn evict(&self, pod: &ObjectId, uid: &str) -> Result<Evicted, ClusterError> {
        let path = ResourcePath::namespaced("v1", "Pod", "pods");
        let body = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        });
        let url = path.object(pod.namespace.as_deref(), &pod.name, Some("eviction"))?;
        let mut call = Call::read(Verb::Delete, url, About::object(pod, false));
        call.conditional = true;
        let call = call.with_body(Method::POST, JSON, Bytes::from(body.to_string()));
        let once = self.clone().with_retry(Retry::never());
        let Err(error) = once.send(call).await else {
            return Ok(Evicted::Accepted);
        };
        match &error.class {
            Class::NotFound | Class::PreconditionFailed(_) => Ok(Evicted::Gone),
            Class::DisruptionBudget(cause) => Ok(Evicted::NotNow(cause.clone())),
            // A webhook starts a migration first, and refuses with this status until it is done.
            Class::WebhookDenied(_) if error.status == Some(TOO_MANY) => {
                Ok(Evicted::NotNow(error.message.clone()))
            }
            _ => Err(ClusterError::Delete {
                id: pod.clone(),
                source: error,
            }),
        }
    }
}
