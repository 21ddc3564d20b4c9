//! Intervals and backoffs of the controller.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pleach_reconciler::{backoff, config::EnvironmentKey};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Returns a random number in [0, 1).
pub(super) fn random() -> f64 {
    // Each hasher of the standard library has random keys.
    let bits = RandomState::new().hash_one(0) >> 11;
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    let fraction = bits as f64 / (1_u64 << 53) as f64;
    fraction
}

/// Adds up to 10 % jitter to an interval, so that work is spread.
pub(super) fn interval(interval: Duration) -> Duration {
    backoff::interval(interval, random())
}

/// Returns the backoff after consecutive failures, with jitter.
pub(super) fn after(failures: u32) -> Duration {
    backoff::after(failures, random())
}

/// Rate-limited trigger of fetches. Any number of webhooks, including redelivered ones, causes one
/// fetch per period.
#[derive(Debug)]
pub(super) struct FetchTrigger {
    trigger: Arc<Notify>,
    is_triggered: bool,
}

/// Shortest time between two triggered fetches.
const SPACING: Duration = Duration::from_secs(1);
/// Longest such time, after slow fetches.
const LONGEST_SPACING: Duration = Duration::from_secs(30);

impl FetchTrigger {
    pub(super) fn new(trigger: Arc<Notify>) -> Self {
        Self {
            trigger,
            is_triggered: false,
        }
    }

    /// Clears the trigger: the fetch that starts now answers it.
    pub(super) fn clear(&mut self) {
        self.is_triggered = false;
    }

    /// Waits for a trigger and until a fetch is due, by start and duration of the last one.
    /// Cancel-safe: it can be dropped and called again.
    pub(super) async fn wait_until_due(&mut self, (began, took): (Instant, Duration)) {
        if !self.is_triggered {
            self.trigger.notified().await;
            self.is_triggered = true;
        }
        let spacing = took.saturating_mul(3).clamp(SPACING, LONGEST_SPACING);
        tokio::time::sleep_until(began + spacing).await;
    }
}

/// Fetch intervals of the environments of a repository, and their requests for an immediate fetch.
#[derive(Debug, Clone, Default)]
pub(super) struct FetchSchedule(Arc<FetchScheduleInner>);

#[derive(Debug, Default)]
struct FetchScheduleInner {
    intervals: Mutex<BTreeMap<EnvironmentKey, Duration>>,
    /// Signals a changed interval.
    changed: Notify,
    /// Signals a request for an immediate fetch.
    requested: Notify,
    /// Number of requests so far.
    requests: AtomicU64,
    /// Requests that the other replicas receive: their number by repository, and the index of this
    /// repository. `None`: there are no other replicas.
    shared: Option<(watch::Sender<Vec<u64>>, usize)>,
    /// Names of the environments that have a branch, of all repositories.
    followed: Mutex<BTreeSet<String>>,
}

impl FetchSchedule {
    /// Creates the schedule of the repository at this index. Its requests are added to those that
    /// the other replicas receive, because any of them can lead a new environment.
    pub(super) fn sharing(requests: watch::Sender<Vec<u64>>, repository: usize) -> Self {
        Self(Arc::new(FetchScheduleInner {
            shared: Some((requests, repository)),
            ..FetchScheduleInner::default()
        }))
    }

    /// Sets the names of the environments that have a branch.
    pub(super) fn set_followed(&self, environments: BTreeSet<String>) {
        let followed = self.0.followed.lock();
        *followed.unwrap_or_else(PoisonError::into_inner) = environments;
    }

    /// Returns whether an environment has a branch, also if another replica leads it.
    pub(super) fn is_followed(&self, environment: &str) -> bool {
        let followed = self.0.followed.lock();
        let followed = followed.unwrap_or_else(PoisonError::into_inner);
        followed.contains(environment)
    }

    pub(super) fn set(&self, key: &EnvironmentKey, interval: Duration) {
        let mut intervals = self.lock();
        if intervals.insert(key.clone(), interval) != Some(interval) {
            self.0.changed.notify_one();
        }
    }

    /// Removes an environment that is no longer synced.
    pub(super) fn forget(&self, key: &EnvironmentKey) {
        if self.lock().remove(key).is_some() {
            self.0.changed.notify_one();
        }
    }

    pub(super) fn shortest(&self) -> Option<Duration> {
        self.lock().values().min().copied()
    }

    pub(super) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    /// Requests an immediate fetch. Returns the sequence number of the request.
    pub(super) fn request_fetch(&self) -> u64 {
        let request = self.0.requests.fetch_add(1, Ordering::Relaxed) + 1;
        self.0.requested.notify_one();
        if let Some((shared, repository)) = &self.0.shared {
            shared.send_modify(|requests| requests[*repository] += 1);
        }
        request
    }

    /// Returns the number of requests so far. A fetch that starts afterwards answers all of them.
    pub(super) fn requests(&self) -> u64 {
        self.0.requests.load(Ordering::Relaxed)
    }

    /// Waits for a request.
    pub(super) async fn requested(&self) {
        self.0.requested.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<EnvironmentKey, Duration>> {
        self.0
            .intervals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fetch_request_reaches_the_other_replicas() {
        let requests = watch::Sender::new(vec![0, 0]);
        let schedule = FetchSchedule::sharing(requests.clone(), 1);
        assert_eq!((schedule.request_fetch(), schedule.request_fetch()), (1, 2));
        assert_eq!(*requests.borrow(), [0, 2]);
    }

    #[test]
    fn intervals_have_ten_percent_jitter() {
        for _ in 0..1000 {
            let delay = interval(Duration::from_secs(100)).as_secs_f64();
            assert!((90.0..=110.0).contains(&delay), "{delay}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn repeated_webhooks_cause_one_fetch_per_period() {
        for (took, seconds) in [(0, 1), (1, 3), (60, 30)] {
            let took = Duration::from_secs(took);
            let trigger = Arc::new(Notify::new());
            let mut triggered = FetchTrigger::new(Arc::clone(&trigger));
            let mut sending = tokio::task::JoinSet::new();
            sending.spawn(async move {
                loop {
                    trigger.notify_one();
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            });
            let began = Instant::now();
            let mut last = began;
            for _ in 0..10 {
                // The wait is interrupted, and no trigger gets lost.
                let moment = Duration::from_millis(100);
                let early = tokio::time::timeout(moment, triggered.wait_until_due((last, took)));
                assert!(early.await.is_err());
                triggered.wait_until_due((last, took)).await;
                triggered.clear();
                last = Instant::now();
            }
            let passed = began.elapsed().as_secs_f64();
            assert!((passed - 10.0 * f64::from(seconds)).abs() < 0.5, "{passed}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_webhook_after_a_pause_is_answered_immediately() {
        let began = Instant::now();
        tokio::time::advance(Duration::from_mins(1)).await;
        let trigger = Arc::new(Notify::new());
        let mut triggered = FetchTrigger::new(Arc::clone(&trigger));
        trigger.notify_one();
        let requested = Instant::now();
        triggered
            .wait_until_due((began, Duration::from_secs(1)))
            .await;
        assert_eq!(requested.elapsed(), Duration::ZERO);
    }
}
