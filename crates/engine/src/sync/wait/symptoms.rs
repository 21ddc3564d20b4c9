//! Symptoms in pods and events that explain an unready object. They are read at intervals during a
//! wait, and at its end.

use std::time::Duration;

use pleach_formats::readiness::symptoms::{self, PodState};
use pleach_model::object::ObjectId;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use pleach_cluster::{Class, Cluster, ClusterError, Depth, ResourcePath, Selector};

/// Delay before the first read, because most objects are ready by then.
const FIRST: Duration = Duration::from_secs(2);
/// Time limit of a read. The wait has its own deadline.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest interval between reads.
const LONGEST: Duration = Duration::from_secs(10);

/// Symptoms in one line, and the reason of a pod that cannot start.
type Found = (Option<String>, Option<&'static str>);

/// Symptoms of one object, with the time of the next read.
pub(super) struct Symptoms<'a> {
    cluster: &'a Cluster,
    permits: &'a Semaphore,
    id: &'a ObjectId,
    next: Instant,
    pause: Duration,
    last: Option<String>,
    /// Reason of a pod that cannot start without a change in git, and the time since when it is
    /// reported.
    stuck: Option<(&'static str, Instant)>,
    /// Whether reads are forbidden, and not retried.
    closed: bool,
}

impl<'a> Symptoms<'a> {
    pub(super) fn new(cluster: &'a Cluster, permits: &'a Semaphore, id: &'a ObjectId) -> Self {
        Self {
            cluster,
            permits,
            id,
            next: Instant::now() + FIRST,
            pause: FIRST,
            last: None,
            stuck: None,
            closed: false,
        }
    }

    /// Returns the time of the next read.
    pub(super) fn again(&self) -> Instant {
        if self.closed {
            return Instant::now() + LONGEST;
        }
        self.next
    }

    /// Returns the reason of a pod that cannot start without a change in git, by the last read.
    pub(super) fn stuck(&self) -> Option<&'static str> {
        self.stuck.map(|(reason, _)| reason)
    }

    /// Returns when the wait ends because a pod cannot start; `None` without a limit or such a pod.
    pub(super) fn over_at(&self, limit: Option<Duration>) -> Option<Instant> {
        let (_, since) = self.stuck?;
        Some(since + limit?)
    }

    /// Returns whether a pod has been unable to start for longer than the limit.
    pub(super) fn is_over(&self, limit: Option<Duration>) -> bool {
        self.over_at(limit).is_some_and(|at| Instant::now() >= at)
    }

    /// Records the reason of a pod that cannot start. The reasons alternate while the kubelet
    /// retries, so the time continues.
    fn note(&mut self, reason: Option<&'static str>) {
        let since = self.stuck.map_or_else(Instant::now, |(_, since)| since);
        self.stuck = reason.map(|reason| (reason, since));
    }

    /// Adds the symptoms to a message about the object.
    pub(super) async fn beside(&mut self, message: String, value: &Value) -> String {
        if Instant::now() >= self.next {
            self.inspect(value).await;
        }
        self.joined(message)
    }

    /// Like [`Self::beside`], with a final read.
    pub(super) async fn at_last(&mut self, message: String, value: &Value) -> String {
        self.inspect(value).await;
        self.joined(message)
    }

    fn joined(&self, message: String) -> String {
        match &self.last {
            // Some objects report the same message themselves.
            Some(seen) if !message.contains(seen.as_str()) => format!("{message}; {seen}"),
            _ => message,
        }
    }

    async fn inspect(&mut self, value: &Value) {
        if self.closed {
            return;
        }
        self.pause = (self.pause * 2).min(LONGEST);
        self.next = Instant::now() + self.pause;
        let _permit = self.permits.acquire().await;
        match tokio::time::timeout(PATIENCE, self.find(value)).await {
            Ok(Ok((seen, stuck))) => {
                self.last = seen;
                self.note(stuck);
            }
            Ok(Err(error)) => self.closed = error.class() == Some(&Class::Forbidden),
            Err(_) => {}
        }
    }

    /// Reads the symptoms from pods and events, and the reason of a pod that cannot start.
    async fn find(&self, value: &Value) -> Result<Found, ClusterError> {
        let mut requested = vec![
            value["metadata"]["uid"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
        ];
        if let Some(labels) = symptoms::pod_selector(self.id, value) {
            let pods = self.pods(&labels).await?;
            if let Some(trouble) = symptoms::of_pods(&pods) {
                return Ok((Some(trouble), symptoms::stuck(&pods)));
            }
            requested.extend(symptoms::pending(&pods).map(str::to_owned));
        }
        // Events of the pod are closer to the cause than events of its owner.
        for uid in requested.iter().rev().filter(|uid| !uid.is_empty()) {
            let fields = format!("involvedObject.uid={uid},type=Warning");
            let selector = Selector {
                namespace: self.id.namespace.as_deref(),
                fields: Some(&fields),
                ..Selector::default()
            };
            let path = ResourcePath::namespaced("v1", "Event", "events");
            let events = self.cluster.list(&path, &selector).await?.items;
            if let Some(warning) = symptoms::newest(&events) {
                return Ok((Some(warning), None));
            }
        }
        Ok((None, None))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::serving::serving;

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_cannot_start_fails_the_wait_after_the_limit() {
        let (cluster, permits) = (serving(|_| None), Semaphore::new(1));
        let id: ObjectId = "Deployment.apps/shop/web".parse().unwrap();
        let mut symptoms = Symptoms::new(&cluster, &permits, &id);
        let limit = Some(Duration::from_mins(2));
        assert_eq!(symptoms.over_at(limit), None);
        symptoms.note(Some("ErrImagePull"));
        tokio::time::advance(Duration::from_secs(90)).await;
        symptoms.note(Some("ImagePullBackOff"));
        assert!(!symptoms.is_over(limit));
        tokio::time::advance(Duration::from_secs(30)).await;
        assert!(symptoms.is_over(limit));
        assert_eq!(symptoms.stuck(), Some("ImagePullBackOff"));
        // The setting `never`.
        assert!(!symptoms.is_over(None));
        // A read without the reason resets the time.
        symptoms.note(None);
        symptoms.note(Some("ErrImagePull"));
        assert!(!symptoms.is_over(limit));
    }
}
