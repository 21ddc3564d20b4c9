//! What keeps an object from getting ready, as its pods and events tell: read
//! now and then while it is waited for, and when the wait ends.

use std::time::Duration;

use pleach_domain::object::ObjectId;
use pleach_domain::readiness::symptoms::{self, PodState};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::io::cluster::{Class, Cluster, ClusterError, Depth, ResourcePath, Selector};

/// When it is looked for the first time: most objects are ready by then.
const FIRST: Duration = Duration::from_secs(2);
/// Longest time for a look: what it is about has its own deadline.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest pause between two looks.
const LONGEST: Duration = Duration::from_secs(10);

/// What was seen of one object, and when it is looked for again.
pub(super) struct Symptoms<'a> {
    cluster: &'a Cluster,
    places: &'a Semaphore,
    id: &'a ObjectId,
    next: Instant,
    pause: Duration,
    last: Option<String>,
    /// We may not look, so it is not tried again.
    closed: bool,
}

impl<'a> Symptoms<'a> {
    pub(super) fn new(cluster: &'a Cluster, places: &'a Semaphore, id: &'a ObjectId) -> Self {
        Self {
            cluster,
            places,
            id,
            next: Instant::now() + FIRST,
            pause: FIRST,
            last: None,
            closed: false,
        }
    }

    /// When it is worth to look again.
    pub(super) fn again(&self) -> Instant {
        if self.closed {
            return Instant::now() + LONGEST;
        }
        self.next
    }

    /// A message about the object, with what its pods and events say.
    pub(super) async fn beside(&mut self, message: String, value: &Value) -> String {
        if Instant::now() >= self.next {
            self.look(value).await;
        }
        self.joined(message)
    }

    /// The same when it is over.
    pub(super) async fn at_last(&mut self, message: String, value: &Value) -> String {
        self.look(value).await;
        self.joined(message)
    }

    fn joined(&self, message: String) -> String {
        match &self.last {
            // Some objects say the same themselves.
            Some(seen) if !message.contains(seen.as_str()) => format!("{message}; {seen}"),
            _ => message,
        }
    }

    async fn look(&mut self, value: &Value) {
        if self.closed {
            return;
        }
        self.pause = (self.pause * 2).min(LONGEST);
        self.next = Instant::now() + self.pause;
        let _place = self.places.acquire().await;
        match tokio::time::timeout(PATIENCE, self.find(value)).await {
            Ok(Ok(seen)) => self.last = seen,
            Ok(Err(error)) => self.closed = error.class() == Some(&Class::Forbidden),
            Err(_) => {}
        }
    }

    async fn find(&self, value: &Value) -> Result<Option<String>, ClusterError> {
        let mut asked = vec![
            value["metadata"]["uid"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        ];
        if let Some(labels) = symptoms::pod_selector(self.id, value) {
            let pods = self.pods(&labels).await?;
            if let Some(trouble) = symptoms::of_pods(&pods) {
                return Ok(Some(trouble));
            }
            asked.extend(symptoms::pending(&pods).map(str::to_owned));
        }
        // What happens to the pod is closer to the cause than what happens to
        // the object it is for.
        for uid in asked.iter().rev().filter(|uid| !uid.is_empty()) {
            let fields = format!("involvedObject.uid={uid},type=Warning");
            let selector = Selector {
                namespace: self.id.namespace.as_deref(),
                fields: Some(&fields),
                ..Selector::default()
            };
            let path = ResourcePath::namespaced("v1", "Event", "events");
            let events = self.cluster.list(&path, &selector).await?.items;
            if let Some(warning) = symptoms::newest(&events) {
                return Ok(Some(warning));
            }
        }
        Ok(None)
    }

    async fn pods(&self, labels: &str) -> Result<Vec<PodState>, ClusterError> {
        let path = ResourcePath::namespaced("v1", "Pod", "pods");
        let selector = Selector {
            namespace: self.id.namespace.as_deref(),
            labels: Some(labels),
            ..Selector::default()
        };
        let read = |pod: Value| Some(PodState::of(&pod));
        self.cluster.pick(&path, &selector, Depth::Full, read).await
    }
}
