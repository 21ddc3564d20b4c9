//! Whether the loop goes on: what the probes ask.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// How often the loop shows that its tasks get their turn.
const BEAT: Duration = Duration::from_secs(1);
/// How long it may miss that.
const MISSED: Duration = Duration::from_mins(1);

/// When the loop last showed that it goes on. Clones are the same. Whatever takes long has
/// a limit of its own: a slow cluster or repository is no reason to end the loop of all.
#[derive(Debug, Clone, Default)]
pub struct Pulse(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    beat: Option<Instant>,
    ready: bool,
    draining: bool,
}

impl Pulse {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows that tasks get their turn, until the loop ends.
    pub(super) async fn beat(self, stop: CancellationToken) {
        loop {
            self.lock().beat = Some(Instant::now());
            if stop.run_until_cancelled(sleep(BEAT)).await.is_none() {
                return;
            }
        }
    }

    pub(super) fn is_ready(&self) {
        self.lock().ready = true;
    }

    pub(super) fn is_draining(&self) {
        self.lock().draining = true;
    }

    /// What hangs; nothing while the loop goes on.
    pub fn hangs(&self) -> Option<String> {
        let state = self.lock();
        let now = Instant::now();
        if state.draining {
            return None;
        }
        if let Some(beat) = state.beat
            && now > beat + MISSED
        {
            return Some(format!("no task had its turn for {:?}", now - beat));
        }
        None
    }

    /// Whether every repository was asked once, and the loop does not end. What
    /// came of it does not matter: git decides nothing about readiness.
    pub fn takes_work(&self) -> bool {
        let state = self.lock();
        state.ready && !state.draining
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_without_turns_hangs() {
        let pulse = Pulse::default();
        let stop = CancellationToken::new();
        stop.cancel();
        pulse.clone().beat(stop).await;
        tokio::time::advance(MISSED + BEAT).await;
        assert!(pulse.hangs().is_some());
    }

    #[test]
    fn it_is_ready_until_it_ends() {
        let pulse = Pulse::default();
        assert!(!pulse.takes_work());
        pulse.is_ready();
        assert!(pulse.takes_work());
        pulse.is_draining();
        assert!(!pulse.takes_work());
    }
}
