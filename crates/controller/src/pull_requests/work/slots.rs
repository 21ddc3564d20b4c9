//! Permits for previews, distributed by author: an author with many pull requests does not delay
//! those of other authors.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Author of a pull request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Author {
    /// Account ids are only unique per forge.
    pub repository: String,
    /// Account id; `None` for a deleted account.
    pub account: Option<u64>,
}

/// Pool of permits. Authors take turns, and requests of one author are served in order.
#[derive(Debug, Clone)]
pub(crate) struct Slots(Arc<Mutex<Queue>>);

#[derive(Debug)]
struct Queue {
    free: usize,
    /// Authors in the order of their turns, each with at least one request.
    waiting: VecDeque<(Author, VecDeque<oneshot::Sender<Permit>>)>,
}

/// Permit for one preview, returned on drop.
#[derive(Debug)]
pub(crate) struct Permit {
    /// `None` after the permit was handed on.
    slots: Option<Slots>,
}

impl Slots {
    pub(crate) fn new(permits: usize) -> Self {
        Self(Arc::new(Mutex::new(Queue {
            free: permits,
            waiting: VecDeque::new(),
        })))
    }

    /// Waits for a permit. Returns `None` if the pool is gone.
    pub(crate) async fn acquire(&self, author: &Author) -> Option<Permit> {
        let waiting = {
            let mut queue = self.lock();
            if queue.free > 0 {
                queue.free -= 1;
                return Some(self.permit());
            }
            let (sender, receiver) = oneshot::channel();
            match queue.waiting.iter_mut().find(|(one, _)| one == author) {
                Some((_, waiting)) => waiting.push_back(sender),
                None => queue.waiting.push_back((author.clone(), [sender].into())),
            }
            receiver
        };
        waiting.await.ok()
    }

    /// Hands a permit to the next waiting request.
    fn release(&self) {
        while let Some(next) = self.next_or_free() {
            match next.send(self.permit()) {
                Ok(()) => return,
                // The request was dropped.
                Err(mut permit) => permit.slots = None,
            }
        }
    }

    fn next_or_free(&self) -> Option<oneshot::Sender<Permit>> {
        let mut queue = self.lock();
        let Some((author, mut waiting)) = queue.waiting.pop_front() else {
            queue.free += 1;
            return None;
        };
        let next = waiting.pop_front();
        if !waiting.is_empty() {
            queue.waiting.push_back((author, waiting));
        }
        next
    }

    fn permit(&self) -> Permit {
        Permit {
            slots: Some(self.clone()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(slots) = self.slots.take() {
            slots.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc;
    use tokio::time::{sleep, timeout};

    use super::*;

    fn author(account: u64) -> Author {
        Author {
            repository: "fleet".to_owned(),
            account: Some(account),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn permits_are_distributed_by_author() {
        let slots = Slots::new(2);
        let (sender, mut acquired) = mpsc::unbounded_channel();
        // One author opens six pull requests before two other authors open one and two.
        let pulls = [(1, 6), (2, 1), (3, 2)];
        let mut tasks = tokio::task::JoinSet::new();
        for (account, count) in pulls {
            for number in 0..count {
                let (slots, sender) = (slots.clone(), sender.clone());
                tasks.spawn(async move {
                    let _permit = slots.acquire(&author(account)).await.unwrap();
                    sender.send(format!("{account}.{number}")).unwrap();
                    sleep(Duration::from_mins(1)).await;
                });
                // Makes them arrive in this order.
                tokio::task::yield_now().await;
            }
        }
        drop(sender);
        let mut order = Vec::new();
        while let Some(one) = acquired.recv().await {
            order.push(one);
        }
        assert_eq!(
            order,
            [
                "1.0", "1.1", "1.2", "2.0", "3.0", "1.3", "3.1", "1.4", "1.5"
            ]
        );
        assert_eq!(slots.lock().free, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_abandoned_request_passes_its_permit_on() {
        let slots = Slots::new(1);
        let permit = slots.acquire(&author(1)).await.unwrap();
        let soon = Duration::from_secs(1);
        let given_up = timeout(soon, slots.acquire(&author(2))).await;
        assert!(given_up.is_err());
        drop(permit);
        let next = timeout(soon, slots.acquire(&author(3))).await;
        drop(next.unwrap().unwrap());
        assert_eq!(slots.lock().free, 1);
    }
}
