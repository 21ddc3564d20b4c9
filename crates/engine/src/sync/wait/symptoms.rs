//! Symptoms of an unready object, read at intervals during a wait, and at its end.

use std::time::Duration;

use pleach_formats::readiness::symptoms;
use pleach_model::object::ObjectId;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::sync::symptoms::{PATIENCE, Unready};
use pleach_cluster::{Class, Cluster};

/// Delay before the first read, because most objects are ready by then.
const FIRST: Duration = Duration::from_secs(2);
/// Longest interval between reads.
const LONGEST: Duration = Duration::from_secs(10);
/// Time for which a workload must stay ready after one of its containers crashed, because a
/// restarted container without a readiness probe is ready until it crashes again.
const AFTER_CRASH: Duration = Duration::from_secs(10);

/// Symptoms of one object, with the time of the next read.
pub(in crate::sync) struct Symptoms<'a> {
    cluster: &'a Cluster,
    permits: &'a Semaphore,
    id: &'a ObjectId,
    next: Instant,
    pause: Duration,
    last: Option<String>,
    /// Reason of a pod that cannot start without a change in git, and the time since when it is
    /// reported.
    stuck: Option<(&'static str, Instant)>,
    /// Whether a container without a readiness probe had been restarted at the last read.
    restarted: bool,
    /// Whether reads are forbidden, and not retried.
    closed: bool,
}

impl<'a> Symptoms<'a> {
    pub(in crate::sync) fn new(
        cluster: &'a Cluster,
        permits: &'a Semaphore,
        id: &'a ObjectId,
    ) -> Self {
        Self {
            cluster,
            permits,
            id,
            next: Instant::now() + FIRST,
            pause: FIRST,
            last: None,
            stuck: None,
            restarted: false,
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
    pub(in crate::sync) fn stuck(&self) -> Option<&'static str> {
        self.stuck.map(|(reason, _)| reason)
    }

    /// Returns when the wait ends because a pod cannot start; `None` without a limit or such a pod.
    pub(super) fn over_at(&self, limit: Option<Duration>) -> Option<Instant> {
        let (_, since) = self.stuck?;
        Some(since + limit?)
    }

    /// Returns whether a pod has been unable to start for longer than the limit.
    pub(in crate::sync) fn is_over(&self, limit: Option<Duration>) -> bool {
        self.over_at(limit).is_some_and(|at| Instant::now() >= at)
    }

    /// Records the reason of a pod that cannot start. The reasons alternate while the kubelet
    /// retries, so the time continues.
    fn note(&mut self, reason: Option<&'static str>) {
        let since = self.stuck.map_or_else(Instant::now, |(_, since)| since);
        self.stuck = reason.map(|reason| (reason, since));
    }

    /// Adds the symptoms to a message about the object.
    pub(in crate::sync) async fn beside(&mut self, message: String, value: &Value) -> String {
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

    /// Returns the time for which an object that is ready now must stay ready. Reads the pods again
    /// only if a container had been restarted at the last read.
    pub(super) async fn stable_for(&mut self, declared: Duration, value: &Value) -> Duration {
        if self.restarted {
            self.inspect(value).await;
        }
        if self.restarted {
            declared.max(AFTER_CRASH)
        } else {
            declared
        }
    }

    fn joined(&self, message: String) -> String {
        symptoms::beside(message, self.last.as_deref())
    }

    async fn inspect(&mut self, value: &Value) {
        if self.closed {
            return;
        }
        self.pause = (self.pause * 2).min(LONGEST);
        self.next = Instant::now() + self.pause;
        let _permit = self.permits.acquire().await;
        let unready = Unready::of(self.id, value);
        match tokio::time::timeout(PATIENCE, unready.read(self.cluster)).await {
            Ok(Ok(found)) => {
                self.last = found.message;
                self.restarted = found.restarted;
                self.note(found.stuck);
            }
            Ok(Err(error)) => self.closed = error.class() == Some(&Class::Forbidden),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
    #[tokio::test(start_paused = true)]
    async fn a_workload_that_crashed_must_stay_ready() {
        let pods = |restarts: u64| {
            serving(move |path| {
                let container = json!({"name": "a", "restartCount": restarts});
                let pod = json!({"spec": {"containers": [{"name": "a"}]},
                    "status": {"containerStatuses": [container]}});
                let items = if path.ends_with("/pods") {
                    json!([pod])
                } else {
                    json!([])
                };
                Some(json!({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}))
            })
        };
        let live =
            json!({"metadata": {"uid": "u"}, "spec": {"selector": {"matchLabels": {"a": "b"}}}});
        let id: ObjectId = "Deployment.apps/shop/web".parse().unwrap();
        let second = Duration::from_secs(1);
        for (before, restarts, declared, expected) in [
            (false, 1, Duration::ZERO, Duration::ZERO),
            (true, 1, Duration::ZERO, AFTER_CRASH),
            (true, 1, AFTER_CRASH * 2, AFTER_CRASH * 2),
            // The pods were replaced meanwhile.
            (true, 0, second, second),
        ] {
            let (cluster, permits) = (pods(restarts), Semaphore::new(1));
            let mut symptoms = Symptoms::new(&cluster, &permits, &id);
            symptoms.restarted = before;
            let stable_for = symptoms.stable_for(declared, &live).await;
            assert_eq!(stable_for, expected, "{before} {restarts}");
        }
    }
}
