//! Liveness of the controller, for the probes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Interval of the heartbeat.
const BEAT: Duration = Duration::from_secs(1);
/// Age of the heartbeat at which the controller counts as stuck.
const MISSED: Duration = Duration::from_mins(1);

/// Heartbeat of the controller. Clones share it. Slow clusters and repositories have their own time
/// limits and never affect it.
#[derive(Debug, Clone, Default)]
pub struct Liveness(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    last_beat: Option<Instant>,
    ready: bool,
    draining: bool,
}

impl Liveness {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the heartbeat until shutdown.
    pub(super) async fn run_heartbeat(self, stop: CancellationToken) {
        loop {
            self.lock().last_beat = Some(Instant::now());
            if stop.run_until_cancelled(sleep(BEAT)).await.is_none() {
                return;
            }
        }
    }

    pub(super) fn set_ready(&self) {
        self.lock().ready = true;
    }

    pub(super) fn set_draining(&self) {
        self.lock().draining = true;
    }

    /// Describes a stuck controller; `None` while it is live.
    pub fn stuck(&self) -> Option<String> {
        let state = self.lock();
        let now = Instant::now();
        if state.draining {
            return None;
        }
        if let Some(last_beat) = state.last_beat
            && now > last_beat + MISSED
        {
            return Some(format!(
                "the controller is stuck: no task ran for {:?}",
                now - last_beat
            ));
        }
        None
    }

    /// Returns readiness: every repository was tried once, and no shutdown is in progress. Failed
    /// fetches count too, because git does not affect readiness.
    pub fn is_ready(&self) -> bool {
        let state = self.lock();
        state.ready && !state.draining
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_controller_without_heartbeats_is_stuck() {
        let liveness = Liveness::default();
        let stop = CancellationToken::new();
        stop.cancel();
        liveness.clone().run_heartbeat(stop).await;
        tokio::time::advance(MISSED + BEAT).await;
        assert!(liveness.stuck().is_some());
    }

    #[test]
    fn the_controller_is_ready_until_it_drains() {
        let liveness = Liveness::default();
        assert!(!liveness.is_ready());
        liveness.set_ready();
        assert!(liveness.is_ready());
        liveness.set_draining();
        assert!(!liveness.is_ready());
    }
}
