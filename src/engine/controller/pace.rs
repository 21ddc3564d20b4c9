//! How long the loop waits where nothing wakes it.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pleach_domain::repo::controller::ClaimKey;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Pause after the first failure; doubles with every further one.
const FIRST: Duration = Duration::from_secs(2);
/// Longest pause after failures.
const LONGEST: Duration = Duration::from_mins(5);
/// How old an answer may be that is taken from others.
pub(super) const STALE: Duration = Duration::from_secs(30);
/// A branch cannot ask for more than this.
const SHORTEST: Duration = Duration::from_secs(1);

/// A random number from 0 up to 1.
pub(super) fn random() -> f64 {
    // Every hasher of the standard library has random keys.
    let bits = RandomState::new().hash_one(0) >> 11;
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    let fraction = bits as f64 / (1_u64 << 53) as f64;
    fraction
}

/// An interval as it is kept: give or take a tenth, so that not everything
/// happens at once.
pub(super) fn interval(interval: Duration) -> Duration {
    interval.max(SHORTEST).mul_f64(0.9 + random() * 0.2)
}

/// From when on answers count that others asked for, for who looks only because
/// a pause is over: what was done before that pause is seen.
pub(super) fn not_before(pause: Duration) -> Option<Instant> {
    Instant::now().checked_sub((pause / 10).min(STALE))
}

/// The pause after so many failures in a row.
pub(super) fn after(failures: u32) -> Duration {
    let doubled = FIRST.saturating_mul(1_u32 << failures.saturating_sub(1).min(20));
    doubled.min(LONGEST).mul_f64(0.9 + random() * 0.2)
}

/// What makes the loop fetch a repository, as often as it may. However often a webhook
/// is sent, also one that is sent again, the loop fetches once per period.
#[derive(Debug)]
pub(super) struct Triggered {
    wake: Arc<Notify>,
    is_woken: bool,
}

/// The shortest time from one fetch to the next one that a webhook asks for.
const SPACING: Duration = Duration::from_secs(1);
/// The longest one, after a fetch that took long.
const LONGEST_SPACING: Duration = Duration::from_secs(30);

impl Triggered {
    pub(super) fn new(wake: Arc<Notify>) -> Self {
        Self {
            wake,
            is_woken: false,
        }
    }

    /// What was asked for before is answered by the fetch that begins now.
    pub(super) fn is_answered(&mut self) {
        self.is_woken = false;
    }

    /// Waits until somebody asks for a fetch and it is time for one, after the last
    /// one that began and took so long. It may be dropped and called again meanwhile.
    pub(super) async fn is_due(&mut self, (began, took): (Instant, Duration)) {
        if !self.is_woken {
            self.wake.notified().await;
            self.is_woken = true;
        }
        let spacing = took.saturating_mul(3).clamp(SPACING, LONGEST_SPACING);
        tokio::time::sleep_until(began + spacing).await;
    }
}

/// How often the environments of a repository want it to be looked at, and whether
/// one of them wants it at once.
#[derive(Debug, Clone, Default)]
pub(super) struct Paces(Arc<PacesInner>);

#[derive(Debug, Default)]
struct PacesInner {
    intervals: Mutex<BTreeMap<ClaimKey, Duration>>,
    /// One of them is another now.
    changed: Notify,
    /// Somebody waits for what it has now.
    asked: Notify,
    /// How often that was so.
    questions: AtomicU64,
}

impl Paces {
    pub(super) fn set(&self, key: &ClaimKey, interval: Duration) {
        let mut intervals = self.lock();
        if intervals.insert(key.clone(), interval) != Some(interval) {
            self.0.changed.notify_one();
        }
    }

    /// An environment is not synced any more, and wants nothing.
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

    /// Wants it to be looked at now. Says how often that was wanted so far.
    pub(super) fn ask(&self) -> u64 {
        let question = self.0.questions.fetch_add(1, Ordering::Relaxed) + 1;
        self.0.asked.notify_one();
        question
    }

    /// How often it was wanted so far: who looks from now on answers all of these.
    pub(super) fn questions(&self) -> u64 {
        self.0.questions.load(Ordering::Relaxed)
    }

    /// Waits until it is wanted now.
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
                // Something else happens meanwhile, and nothing gets lost by that.
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
