//! Grace periods for custom resources: controllers recover from failures, and need time for the
//! first status.

use std::time::Duration;

use pleach_formats::readiness::GiveUp;
use tokio::time::Instant;

/// Time that a failure must last.
const LASTING: Duration = Duration::from_mins(1);
/// Time to wait for a status.
const SILENCE: Duration = Duration::from_secs(30);

/// Grace periods of one wait.
#[derive(Debug)]
pub(super) struct Grace {
    started: Instant,
    deadline: Instant,
    failed_since: Option<Instant>,
}

impl Grace {
    pub(super) fn new(started: Instant, deadline: Instant) -> Self {
        Self {
            started,
            deadline,
            failed_since: None,
        }
    }

    /// Returns when to give up on a failed object; `None`: now.
    pub(super) fn of_failure(&mut self, give_up: GiveUp) -> Option<Instant> {
        let now = Instant::now();
        let since = match give_up {
            GiveUp::AtOnce => return None,
            GiveUp::AtDeadline => {
                self.failed_since = None;
                return Some(self.deadline);
            }
            GiveUp::AfterGrace => *self.failed_since.get_or_insert(now),
        };
        let end = since + LASTING;
        (now < end).then_some(end)
    }

    /// Resets the period after a recovery.
    pub(super) fn recovered(&mut self) {
        self.failed_since = None;
    }

    /// Returns until when to wait for a status; `None`: no longer.
    pub(super) fn of_silence(&self) -> Option<Instant> {
        let end = self.deadline.min(self.started + SILENCE);
        (Instant::now() < end).then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grace(minutes: u64) -> Grace {
        let now = Instant::now();
        Grace::new(now, now + Duration::from_mins(minutes))
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_lasting_failure_counts() {
        let mut grace = grace(10);
        let started = Instant::now();
        assert_eq!(grace.of_failure(GiveUp::AtOnce), None);
        assert_eq!(
            grace.of_failure(GiveUp::AfterGrace),
            Some(started + LASTING)
        );
        tokio::time::advance(LASTING / 2).await;
        assert_eq!(
            grace.of_failure(GiveUp::AfterGrace),
            Some(started + LASTING)
        );
        tokio::time::advance(LASTING / 2).await;
        assert_eq!(grace.of_failure(GiveUp::AfterGrace), None);
        // A repeated failure starts a new period.
        grace.recovered();
        let again = Instant::now();
        assert_eq!(grace.of_failure(GiveUp::AfterGrace), Some(again + LASTING));
        // The controller retries, so wait until the deadline.
        tokio::time::advance(LASTING).await;
        let deadline = started + Duration::from_mins(10);
        assert_eq!(grace.of_failure(GiveUp::AtDeadline), Some(deadline));
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_is_waited_for_a_while() {
        let long = grace(10);
        let started = Instant::now();
        assert_eq!(long.of_silence(), Some(started + SILENCE));
        tokio::time::advance(SILENCE).await;
        assert_eq!(long.of_silence(), None);
        // An earlier deadline is no failure.
        let now = Instant::now();
        let short = Grace::new(now, now + SILENCE / 2);
        assert_eq!(short.of_silence(), Some(now + SILENCE / 2));
        tokio::time::advance(SILENCE / 2).await;
        assert_eq!(short.of_silence(), None);
    }
}
