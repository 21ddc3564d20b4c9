//! Retry policy of requests and its listeners.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use tokio::time::Instant;

use super::{ApiError, Class};

/// First backoff; doubles with every attempt.
const FIRST: Duration = Duration::from_millis(100);
/// Longest backoff that we choose.
const LONGEST: Duration = Duration::from_secs(5);
/// Longest delay that a server can ask for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_hours(1);

/// Failed attempt that will be repeated.
#[derive(Debug, Clone)]
pub struct Retrying {
    /// Failure of the attempt.
    pub error: ApiError,
    /// Delay before the next attempt.
    pub pause: Duration,
}

/// Predicate for failures that the caller knows to be temporary.
type Passing = dyn Fn(&Class) -> bool + Send + Sync;
/// Callback for each repetition.
type Listener = dyn Fn(Retrying) + Send + Sync;

/// Future that ends the repetitions.
type Stopping = dyn Fn() -> BoxFuture<'static, ()> + Send + Sync;

/// Future that waits for the next attempt.
type Pausing = dyn Fn(Duration) -> BoxFuture<'static, ()> + Send + Sync;

/// Policy that limits the repetition of failed requests.
#[derive(Clone)]
pub struct Retry {
    limit: Limit,
    also: Option<Arc<Passing>>,
    notify: Option<Arc<Listener>>,
    stopping: Option<Arc<Stopping>>,
    pausing: Option<Arc<Pausing>>,
}

#[derive(Debug, Clone, Copy)]
enum Limit {
    Until(Instant),
    Within(Duration),
}

impl Retry {
    /// Returns a policy with a single attempt.
    pub fn never() -> Self {
        Self::within(Duration::ZERO)
    }

    /// Returns a policy that repeats each request for this long after its start.
    pub fn within(duration: Duration) -> Self {
        Self {
            limit: Limit::Within(duration),
            also: None,
            notify: None,
            stopping: None,
            pausing: None,
        }
    }

    /// Returns a policy that repeats all requests until a deadline, such as that of a step.
    pub fn until(deadline: Instant) -> Self {
        Self {
            limit: Limit::Until(deadline),
            also: None,
            notify: None,
            stopping: None,
            pausing: None,
        }
    }

    /// Also repeats failures that the caller knows to be temporary, such as a 404 for a kind whose
    /// CRD was just created.
    #[must_use]
    pub fn also(mut self, passing: impl Fn(&Class) -> bool + Send + Sync + 'static) -> Self {
        self.also = Some(Arc::new(passing));
        self
    }

    /// Reports every repetition to a listener before its delay.
    #[must_use]
    pub fn notify(mut self, listener: impl Fn(Retrying) + Send + Sync + 'static) -> Self {
        self.notify = Some(Arc::new(listener));
        self
    }

    /// Stops repeating once such a future is ready. A running attempt still completes.
    #[must_use]
    pub fn unless<F>(mut self, stopping: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.stopping = Some(Arc::new(move || stopping().boxed()));
        self
    }

    /// Replaces the wait before the next attempt. The future must take at least the given delay.
    #[must_use]
    pub fn pausing<F>(mut self, pausing: impl Fn(Duration) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.pausing = Some(Arc::new(move |pause| pausing(pause).boxed()));
        self
    }

    /// Waits before the next attempt. Returns `false` if the policy ends the repetitions.
    pub(super) async fn pause(&self, pause: Duration) -> bool {
        let wait = match &self.pausing {
            Some(pausing) => pausing(pause),
            None => tokio::time::sleep(pause).boxed(),
        };
        let Some(stopping) = &self.stopping else {
            wait.await;
            return true;
        };
        tokio::select! {
            biased;
            () = stopping() => false,
            () = wait => true,
        }
    }

    /// Returns the deadline of a request that starts now.
    pub(super) fn deadline(&self) -> Instant {
        match self.limit {
            Limit::Until(deadline) => deadline,
            Limit::Within(duration) => Instant::now() + duration,
        }
    }

    /// Returns the time-out of one attempt. A deadline of the caller shortens it, but to no less
    /// than one second. A limit on the repetitions does not.
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

    pub(super) fn report(&self, error: &ApiError, pause: Duration) {
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

/// Returns the delay after attempt number `attempt`, counted from 1. The delay is exponential with
/// jitter, and at least what the server asks for, up to [`LONGEST_RETRY_AFTER`].
pub(super) fn pause(attempt: u32, retry_after: Option<Duration>) -> Duration {
    let whole = FIRST
        .saturating_mul(1 << attempt.saturating_sub(1).min(10))
        .min(LONGEST);
    // Half of the delay is random, so that 32 requests that failed together do not repeat together.
    // The keys of the hasher are random enough.
    let random = RandomState::new().hash_one(attempt) % 1024;
    let jitter = whole
        .mul_f64(0.5)
        .mul_f64(f64::from(u32::try_from(random).unwrap_or_default()) / 1024.0);
    let own = whole.mul_f64(0.5) + jitter;
    retry_after.map_or(own, |retry_after| {
        retry_after.min(LONGEST_RETRY_AFTER).max(own)
    })
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
    fn the_server_can_request_a_longer_pause() {
        assert_eq!(
            pause(1, Some(Duration::from_secs(7))),
            Duration::from_secs(7)
        );
        assert!(pause(9, Some(Duration::from_millis(1))) > Duration::from_secs(2));
        // An absurd value.
        assert_eq!(pause(1, Some(Duration::MAX)), LONGEST_RETRY_AFTER);
    }
}
