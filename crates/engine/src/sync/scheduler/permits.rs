//! Permits for concurrent operations of a plan.
//!
//! An operation that waits for a retry returns its permit. So objects behind an unavailable webhook
//! do not delay unrelated ones.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Permits of one run.
pub(super) struct Permits {
    first: Arc<Semaphore>,
    again: Arc<Semaphore>,
}

impl Permits {
    /// Creates `limit` permits for new operations, and a quarter of that for retries. So retries
    /// never use up the permits of new operations.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            first: Arc::new(Semaphore::new(limit)),
            again: Arc::new(Semaphore::new(limit.div_ceil(4))),
        }
    }

    /// Takes a permit for an operation, if one is free.
    pub(super) fn take(&self) -> Option<Permit> {
        let taken = self.first.clone().try_acquire_owned().ok()?;
        Some(Permit(Arc::new(Shared {
            taken: Mutex::new(Some(taken)),
            again: self.again.clone(),
        })))
    }

    /// Waits until a permit is free.
    pub(super) async fn free(&self) {
        drop(self.first.acquire().await);
    }
}

/// Permit of one operation, released when its last clone is dropped.
#[derive(Clone)]
pub(in crate::sync) struct Permit(Arc<Shared>);

struct Shared {
    taken: Mutex<Option<OwnedSemaphorePermit>>,
    again: Arc<Semaphore>,
}

impl Permit {
    /// Waits for something without a permit, then for a permit for retries.
    pub(in crate::sync) async fn aside<T>(&self, wait: impl Future<Output = T>) -> T {
        self.release();
        let done = wait.await;
        let taken = self.0.again.clone().acquire_owned().await.ok();
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) = taken;
        done
    }

    /// Returns the permit.
    pub(in crate::sync) fn release(&self) {
        let taken = &self.0.taken;
        drop(taken.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
