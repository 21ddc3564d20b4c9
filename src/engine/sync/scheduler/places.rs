//! How many operations of a plan are under way at once.
//!
//! An operation that waits before it tries again gives its place to the next one:
//! objects behind a webhook that is down hold up nothing that has no need of it.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The places of one run.
pub(super) struct Places {
    first: Arc<Semaphore>,
    again: Arc<Semaphore>,
}

impl Places {
    /// So many for operations that begin, and a quarter of that beside it for those
    /// that try again: however many there are, what begins has its places.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            first: Arc::new(Semaphore::new(limit)),
            again: Arc::new(Semaphore::new(limit.div_ceil(4))),
        }
    }

    /// A place for an operation, if one is free.
    pub(super) fn take(&self) -> Option<Place> {
        let taken = self.first.clone().try_acquire_owned().ok()?;
        Some(Place(Arc::new(Held {
            taken: Mutex::new(Some(taken)),
            again: self.again.clone(),
        })))
    }

    /// Returns when one is free.
    pub(super) async fn free(&self) {
        drop(self.first.acquire().await);
    }
}

/// The place of one operation, until the last copy of it is gone.
#[derive(Clone)]
pub(in crate::engine::sync) struct Place(Arc<Held>);

struct Held {
    taken: Mutex<Option<OwnedSemaphorePermit>>,
    again: Arc<Semaphore>,
}

impl Place {
    /// Waits for something without taking a place, and then for a place of those
    /// that try again.
    pub(in crate::engine::sync) async fn aside<T>(&self, wait: impl Future<Output = T>) -> T {
        self.give_back();
        let done = wait.await;
        let taken = self.0.again.clone().acquire_owned().await.ok();
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) = taken;
        done
    }

    /// The operation is over.
    pub(super) fn give_back(&self) {
        let taken = &self.0.taken;
        drop(taken.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
