//! Whether the loop goes on: what the probes ask.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// How often the loop shows that its tasks get their turn.
const BEAT: Duration = Duration::from_secs(1);
/// How long it may miss that.
const MISSED: Duration = Duration::from_mins(1);

/// What is under way, and until when it has to be done. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Pulse(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    beat: Option<Instant>,
    work: BTreeMap<u64, (String, Instant)>,
    next: u64,
    ready: bool,
    draining: bool,
}

/// Something that has to come to an end in time.
#[derive(Debug)]
pub struct Work {
    pulse: Pulse,
    id: u64,
}

impl Drop for Work {
    fn drop(&mut self) {
        self.pulse.lock().work.remove(&self.id);
    }
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

    /// Begins something that is done within a limit, unless the loop hangs.
    pub(super) fn work(&self, what: String, limit: Duration) -> Work {
        let mut state = self.lock();
        let id = state.next;
        state.next += 1;
        state.work.insert(id, (what, Instant::now() + limit));
        Work {
            pulse: self.clone(),
            id,
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
        let overdue = state.work.values().find(|(_, until)| now > *until);
        overdue.map(|(what, _)| format!("{what} does not come to an end"))
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
    async fn what_does_not_end_in_time_is_named() {
        let pulse = Pulse::default();
        let work = pulse.work("to fetch fleet".to_owned(), Duration::from_secs(5));
        assert_eq!(pulse.hangs(), None);
        tokio::time::advance(Duration::from_secs(6)).await;
        assert_eq!(
            pulse.hangs().as_deref(),
            Some("to fetch fleet does not come to an end")
        );
        drop(work);
        assert_eq!(pulse.hangs(), None);
    }

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
