//! Clock of the controller.

use std::time::Duration;

use jiff::Timestamp;
use pleach_reconciler::Moment;
use tokio::time::{Instant, sleep_until};

use super::backoff;

/// Monotonic clock that starts with the controller.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the present time, and a random number.
    pub(super) fn moment(self) -> Moment {
        Moment {
            at: self.now(),
            wall: Timestamp::now(),
            random: backoff::random(),
        }
    }

    /// Returns the time since the start.
    pub(super) fn now(self) -> Duration {
        self.0.elapsed()
    }

    /// Returns the instant of a time since the start.
    pub(super) fn instant(self, at: Duration) -> Instant {
        self.0 + at
    }

    /// Waits until a time since the start. Without one it never ends.
    pub(super) async fn until(self, at: Option<Duration>) {
        match at {
            Some(at) => sleep_until(self.instant(at)).await,
            None => std::future::pending().await,
        }
    }

    /// Returns the time since the start of an instant.
    pub(super) fn time(self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.0)
    }
}
