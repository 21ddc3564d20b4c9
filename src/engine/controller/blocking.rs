//! Calls that block, and that may never return: git talks to servers of others.

use std::time::Duration;

use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

/// Runs blocking calls, one at a time. A call that takes too long cannot be ended: its thread is
/// left alone, and no other call is begun until it has returned. So each owner leaves at most
/// one thread behind.
#[derive(Debug, Default)]
pub(super) struct Blocking {
    left: Option<JoinHandle<()>>,
}

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum BlockingError {
    /// It took too long, or the call before it still does.
    #[error("it did not answer within {0:?}")]
    TimedOut(Duration),
    /// It panicked.
    #[error("it broke down; this is a bug")]
    Failed,
}

impl Blocking {
    /// Runs a call for so long at most. After that its result is dropped when it returns.
    pub(super) async fn run<T: Send + 'static>(
        &mut self,
        limit: Duration,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, BlockingError> {
        if let Some(left) = &mut self.left {
            if timeout(limit, left).await.is_err() {
                return Err(BlockingError::TimedOut(limit));
            }
            self.left = None;
        }
        let (answer, answered) = tokio::sync::oneshot::channel();
        let mut calling = spawn_blocking(move || drop(answer.send(call())));
        if timeout(limit, &mut calling).await.is_err() {
            self.left = Some(calling);
            return Err(BlockingError::TimedOut(limit));
        }
        answered.await.map_err(|_| BlockingError::Failed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_mins(1);

    #[tokio::test]
    async fn no_second_thread_is_left_behind() {
        let mut blocking = Blocking::default();
        let (release, hanging) = mpsc::channel::<()>();
        let waits = move || hanging.recv().is_ok();
        let hangs = blocking.run(SHORT, waits).await;
        assert!(matches!(hangs, Err(BlockingError::TimedOut(_))));
        let (begun, begins) = mpsc::channel();
        let second = blocking.run(SHORT, move || begun.send(()).is_ok()).await;
        assert!(matches!(second, Err(BlockingError::TimedOut(_))));
        assert!(begins.try_recv().is_err());
        release.send(()).unwrap();
        assert_eq!(blocking.run(LONG, || 1).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn a_panic_is_an_error_of_its_call() {
        let mut blocking = Blocking::default();
        let failed = blocking.run(LONG, || panic!("a bug")).await;
        assert!(matches!(failed, Err::<(), _>(BlockingError::Failed)));
        assert!(blocking.run(LONG, || ()).await.is_ok());
    }
}
