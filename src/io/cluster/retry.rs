//! How long a request is tried again, and who hears of it.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use tokio::time::Instant;

use super::{ApiError, Class};

/// First pause; doubles with every attempt.
const FIRST: Duration = Duration::from_millis(100);
/// Longest pause that is ours to choose.
const LONGEST: Duration = Duration::from_secs(5);
/// Longest pause that a server may ask for.
const LONGEST_ASKED: Duration = Duration::from_hours(1);

/// An attempt that failed and will be repeated.
#[derive(Debug, Clone)]
pub struct Retrying {
    /// How it failed.
    pub error: ApiError,
    /// The pause before the next attempt.
    pub pause: Duration,
}

/// Whether a failure is known to pass.
type Passing = dyn Fn(&Class) -> bool + Send + Sync;
/// Who hears of repetitions.
type Listener = dyn Fn(Retrying) + Send + Sync;

/// What ends the repetitions.
type Ending = dyn Fn() -> BoxFuture<'static, ()> + Send + Sync;

/// What passes while the next attempt is waited for.
type Pausing = dyn Fn(Duration) -> BoxFuture<'static, ()> + Send + Sync;

/// Until when failed requests are repeated.
#[derive(Clone)]
pub struct Retry {
    limit: Limit,
    also: Option<Arc<Passing>>,
    notify: Option<Arc<Listener>>,
    ending: Option<Arc<Ending>>,
    pausing: Option<Arc<Pausing>>,
}

#[derive(Debug, Clone, Copy)]
enum Limit {
    Until(Instant),
    Within(Duration),
}

impl Retry {
    /// One attempt only.
    pub fn never() -> Self {
        Self::within(Duration::ZERO)
    }

    /// Every request for this long from its start.
    pub fn within(duration: Duration) -> Self {
        Self {
            limit: Limit::Within(duration),
            also: None,
            notify: None,
            ending: None,
            pausing: None,
        }
    }

    /// All requests until a deadline, such as that of a step.
    pub fn until(deadline: Instant) -> Self {
        Self {
            limit: Limit::Until(deadline),
            also: None,
            notify: None,
            ending: None,
            pausing: None,
        }
    }

    /// Repeats these failures too: what the caller knows to be passing, such as
    /// a 404 of a kind whose CRD it has just created.
    #[must_use]
    pub fn also(mut self, passing: impl Fn(&Class) -> bool + Send + Sync + 'static) -> Self {
        self.also = Some(Arc::new(passing));
        self
    }

    /// Tells of every repetition before its pause.
    #[must_use]
    pub fn notify(mut self, listener: impl Fn(Retrying) + Send + Sync + 'static) -> Self {
        self.notify = Some(Arc::new(listener));
        self
    }

    /// Repeats nothing any more once such a future is ready; what is under way
    /// then comes to its end.
    #[must_use]
    pub fn unless<F>(mut self, ending: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.ending = Some(Arc::new(move || ending().boxed()));
        self
    }

    /// Lets the caller wait in its own way before the next attempt: for at least as
    /// long as it is told.
    #[must_use]
    pub fn pausing<F>(mut self, pausing: impl Fn(Duration) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.pausing = Some(Arc::new(move |pause| pausing(pause).boxed()));
        self
    }

    /// Waits before the next attempt; false when there shall be none.
    pub(super) async fn pause(&self, pause: Duration) -> bool {
        let wait = match &self.pausing {
            Some(pausing) => pausing(pause),
            None => tokio::time::sleep(pause).boxed(),
        };
        let Some(ending) = &self.ending else {
            wait.await;
            return true;
        };
        tokio::select! {
            biased;
            () = ending() => false,
            () = wait => true,
        }
    }

    /// When a request that starts now is given up.
    pub(super) fn deadline(&self) -> Instant {
        match self.limit {
            Limit::Until(deadline) => deadline,
            Limit::Within(duration) => Instant::now() + duration,
        }
    }

    /// How long one attempt may take. A deadline of the caller cuts it short, the
    /// patience for repetitions does not; the last attempt gets at least a second.
    pub(super) fn limit(&self, request: Duration) -> Duration {
        match self.limit {
            Limit::Within(_) => request,
            Limit::Until(deadline) => deadline
                .saturating_duration_since(Instant::now())
                .max(Duration::from_secs(1))
                .min(request),
        }
    }

    pub(super) fn forgives(&self, class: &Class) -> bool {
        self.also.as_ref().is_some_and(|passing| passing(class))
    }

    pub(super) fn tell(&self, error: &ApiError, pause: Duration) {
        if let Some(notify) = &self.notify {
            notify(Retrying {
                error: error.clone(),
                pause,
            });
        }
    }
}

impl fmt::Debug for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry")
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// The pause after attempt number `attempt` (from 1): exponential with jitter,
/// never shorter than what the server asked for, within reason.
pub(super) fn pause(attempt: u32, asked: Option<Duration>) -> Duration {
    let whole = FIRST
        .saturating_mul(1 << attempt.saturating_sub(1).min(10))
        .min(LONGEST);
    // Half of it is random, so that 32 requests that failed together do not
    // come back together. The hasher's keys are randomness enough.
    let random = RandomState::new().hash_one(attempt) % 1024;
    let jitter = whole
        .mul_f64(0.5)
        .mul_f64(f64::from(u32::try_from(random).unwrap_or_default()) / 1024.0);
    let own = whole.mul_f64(0.5) + jitter;
    asked.map_or(own, |asked| asked.min(LONGEST_ASKED).max(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit() {
        for attempt in 1..40 {
            let pause = pause(attempt, None);
            assert!(pause >= FIRST / 2, "{attempt}: {pause:?}");
            assert!(pause <= LONGEST, "{attempt}: {pause:?}");
        }
        assert!(pause(7, None) > pause(1, None));
    }

    #[test]
    fn the_server_may_ask_for_more() {
        assert_eq!(
            pause(1, Some(Duration::from_secs(7))),
            Duration::from_secs(7)
        );
        assert!(pause(9, Some(Duration::from_millis(1))) > Duration::from_secs(2));
        // What nobody can mean.
        assert_eq!(pause(1, Some(Duration::MAX)), LONGEST_ASKED);
    }
}
