//! Intervals and backoffs of the controller.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pleach_reconciler::config::ClaimKey;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Backoff after the first failure. It doubles with each further failure.
const FIRST: Duration = Duration::from_secs(2);
/// Longest backoff after failures.
const LONGEST: Duration = Duration::from_mins(5);
/// Largest age of an answer that is shared between releases.
pub(super) const STALE: Duration = Duration::from_secs(30);
/// Shortest interval that a branch can configure.
const SHORTEST: Duration = Duration::from_secs(1);

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
    interval.max(SHORTEST).mul_f64(0.9 + random() * 0.2)
}

/// Returns the oldest time of shared answers to use after a pause. Answers cover everything that
/// was done before the pause.
pub(super) fn not_before(pause: Duration) -> Option<Instant> {
    Instant::now().checked_sub((pause / 10).min(STALE))
}

/// Returns the backoff after consecutive failures, with jitter.
pub(super) fn after(failures: u32) -> Duration {
    let doubled = FIRST.saturating_mul(1_u32 << failures.saturating_sub(1).min(20));
    doubled.min(LONGEST).mul_f64(0.9 + random() * 0.2)
}

/// Rate-limited trigger of fetches. Any number of webhooks, including redelivered ones, causes one
/// fetch per period.
#[derive(Debug)]
pub(super) struct Triggered {
    wake: Arc<Notify>,
    is_woken: bool,
}

/// Shortest time between two triggered fetches.
const SPACING: Duration = Duration::from_secs(1);
/// Longest such time, after slow fetches.
const LONGEST_SPACING: Duration = Duration::from_secs(30);

impl Triggered {
    pub(super) fn new(wake: Arc<Notify>) -> Self {
        Self {
            wake,
            is_woken: false,
        }
    }

    /// Clears the trigger: the fetch that starts now answers it.
    pub(super) fn is_answered(&mut self) {
        self.is_woken = false;
    }

    /// Waits for a trigger and until a fetch is due, by start and duration of the last one.
    /// Cancel-safe: it can be dropped and called again.
    pub(super) async fn is_due(&mut self, (began, took): (Instant, Duration)) {
        if !self.is_woken {
            self.wake.notified().await;
            self.is_woken = true;
        }
        let spacing = took.saturating_mul(3).clamp(SPACING, LONGEST_SPACING);
        tokio::time::sleep_until(began + spacing).await;
    }
}

/// Fetch intervals of the environments of a repository, and their requests for an immediate fetch.
#[derive(Debug, Clone, Default)]
pub(super) struct Paces(Arc<PacesInner>);

#[derive(Debug, Default)]
struct PacesInner {
    intervals: Mutex<BTreeMap<ClaimKey, Duration>>,
    /// Signals a changed interval.
    changed: Notify,
    /// Signals a request for an immediate fetch.
    asked: Notify,
    /// Number of requests so far.
    questions: AtomicU64,
}

impl Paces {
    pub(super) fn set(&self, key: &ClaimKey, interval: Duration) {
        let mut intervals = self.lock();
        if intervals.insert(key.clone(), interval) != Some(interval) {
            self.0.changed.notify_one();
        }
    }

    /// Removes an environment that is no longer synced.
    pub(super) fn forget(&self, key: &ClaimKey) {
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
    pub(super) fn ask(&self) -> u64 {
        let question = self.0.questions.fetch_add(1, Ordering::Relaxed) + 1;
        self.0.asked.notify_one();
        question
    }

    /// Returns the number of requests so far. A fetch that starts afterwards answers all of them.
    pub(super) fn questions(&self) -> u64 {
        self.0.questions.load(Ordering::Relaxed)
    }

    /// Waits for a request.
    pub(super) async fn asked(&self) {
        self.0.asked.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ClaimKey, Duration>> {
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
    fn intervals_vary_by_a_tenth() {
        for _ in 0..1000 {
            let pause = interval(Duration::from_secs(100)).as_secs_f64();
            assert!((90.0..=110.0).contains(&pause), "{pause}");
        }
        assert!(interval(Duration::ZERO) >= SHORTEST.mul_f64(0.9));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_done_before_a_pause_is_seen_after_it() {
        tokio::time::advance(Duration::from_hours(1)).await;
        for (pause, age) in [(2, 0.2), (100, 10.0), (3600, 30.0)] {
            let since = not_before(Duration::from_secs(pause)).unwrap();
            assert!(
                (since.elapsed().as_secs_f64() - age).abs() < 0.01,
                "{pause}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_webhook_that_is_sent_again_and_again_costs_one_fetch_per_period() {
        for (took, seconds) in [(0, 1), (1, 3), (60, 30)] {
            let took = Duration::from_secs(took);
            let wake = Arc::new(Notify::new());
            let mut triggered = Triggered::new(Arc::clone(&wake));
            let mut sending = tokio::task::JoinSet::new();
            sending.spawn(async move {
                loop {
                    wake.notify_one();
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            });
            let began = Instant::now();
            let mut last = began;
            for _ in 0..10 {
                // The wait is interrupted, and no trigger gets lost.
                let moment = Duration::from_millis(100);
                let early = tokio::time::timeout(moment, triggered.is_due((last, took)));
                assert!(early.await.is_err());
                triggered.is_due((last, took)).await;
                triggered.is_answered();
                last = Instant::now();
            }
            let passed = began.elapsed().as_secs_f64();
            assert!((passed - 10.0 * f64::from(seconds)).abs() < 0.5, "{passed}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_webhook_after_a_while_is_answered_at_once() {
        let began = Instant::now();
        tokio::time::advance(Duration::from_mins(1)).await;
        let wake = Arc::new(Notify::new());
        let mut triggered = Triggered::new(Arc::clone(&wake));
        wake.notify_one();
        let asked = Instant::now();
        triggered.is_due((began, Duration::from_secs(1))).await;
        assert_eq!(asked.elapsed(), Duration::ZERO);
    }

    #[test]
    fn failures_wait_longer_and_longer() {
        let about = |failures, seconds: f64| {
            let pause = after(failures).as_secs_f64() / seconds;
            assert!((0.89..=1.11).contains(&pause), "{failures}: {pause}");
        };
        about(1, 2.0);
        about(2, 4.0);
        about(5, 32.0);
        about(9, 300.0);
        about(u32::MAX, 300.0);
    }
}
