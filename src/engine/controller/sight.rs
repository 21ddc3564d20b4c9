//! How releases look at a cluster: a few at a time, and those of a large
//! environment together. A cluster that does not answer holds up its own releases
//! only.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::pace::STALE;
use super::run::Wanted;
use super::{Listener, LoopEvent};
use crate::io::cluster::{Class, Cluster, ClusterError, Retry};

/// How many releases are observed and planned at the same time: what is known of
/// a cluster takes memory. What is carried out, and what waits, takes no room.
const ROOM: usize = 16;
/// How many of those may look at the same API server, so that others have room while
/// one is slow, or was not yet found to be silent.
const SHARE: usize = 10;
/// How many ask an API server at the same time that did not answer the last time.
const ASKING: usize = 4;
/// How long such a one is given for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// From how many releases of an environment on they ask together.
const MANY: usize = 8;

/// Room for those who look. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Sights {
    room: Arc<Semaphore>,
    servers: Arc<Mutex<BTreeMap<String, Arc<Server>>>>,
    queue: Queue,
}

/// Those who wait for room.
#[derive(Debug, Clone)]
struct Queue {
    waiting: Arc<AtomicUsize>,
    listener: Listener,
}

/// One of them.
struct Queued<'a>(&'a Queue);

/// What is known of an API server.
#[derive(Debug)]
struct Server {
    share: Arc<Semaphore>,
    asking: Semaphore,
    /// Whether it did not answer the last time.
    is_silent: AtomicBool,
}

impl Queue {
    fn join(&self) -> Queued<'_> {
        self.tell(self.waiting.fetch_add(1, Ordering::Relaxed) + 1);
        Queued(self)
    }

    fn tell(&self, waiting: usize) {
        self.listener.tell(LoopEvent::Queued { waiting });
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let Self(queue) = self;
        queue.tell(queue.waiting.fetch_sub(1, Ordering::Relaxed) - 1);
    }
}

impl Default for Server {
    fn default() -> Self {
        Self {
            share: Arc::new(Semaphore::new(SHARE)),
            asking: Semaphore::new(ASKING),
            is_silent: AtomicBool::new(false),
        }
    }
}

/// One that looks, until this is dropped: also while it notes what it saw, as
/// that takes memory too.
#[derive(Debug)]
pub(super) struct Sight {
    /// What it asks.
    pub(super) cluster: Cluster,
    server: Arc<Server>,
    _room: [Option<OwnedSemaphorePermit>; 2],
}

impl Sights {
    /// Room for all, and who hears how many wait for it.
    pub(super) fn new(listener: Listener) -> Self {
        Self {
            room: Arc::new(Semaphore::new(ROOM)),
            servers: Arc::default(),
            queue: Queue {
                waiting: Arc::default(),
                listener,
            },
        }
    }

    /// Waits for room. Answers count that others asked for at a moment or later;
    /// from now on where none is said. Whom nobody hears of is asked without room,
    /// and the error is why there is nothing to look at.
    pub(super) async fn begin(
        &self,
        wanted: &Wanted,
        since: Option<Instant>,
    ) -> Result<Sight, ClusterError> {
        let since = since.unwrap_or_else(Instant::now);
        let server = self.server(wanted.cluster.server());
        let queued = self.queue.join();
        let room = loop {
            server.answers(&wanted.cluster).await?;
            // They are never closed.
            let share = Arc::clone(&server.share).acquire_owned().await.ok();
            let room = Arc::clone(&self.room).acquire_owned().await.ok();
            if !server.is_silent.load(Ordering::Relaxed) {
                break [share, room];
            }
        };
        drop(queued);
        let cluster = wanted.cluster.clone();
        let cluster = if wanted.loaded.rendered.len() < MANY {
            cluster
        } else {
            // While much is written, it is looked at anew now and then.
            let oldest = Instant::now().checked_sub(STALE);
            cluster.as_of(oldest.map_or(since, |oldest| oldest.max(since)))
        };
        Ok(Sight {
            cluster,
            server,
            _room: room,
        })
    }

    fn server(&self, address: &str) -> Arc<Server> {
        let servers = self.servers.lock();
        let mut servers = servers.unwrap_or_else(PoisonError::into_inner);
        match servers.get(address) {
            Some(server) => Arc::clone(server),
            None => Arc::clone(servers.entry(address.to_owned()).or_default()),
        }
    }
}

impl Server {
    /// Returns once it is heard of, where it was silent; the error is that it still
    /// is.
    async fn answers(&self, cluster: &Cluster) -> Result<(), ClusterError> {
        if !self.is_silent.load(Ordering::Relaxed) {
            return Ok(());
        }
        let _turn = self.asking.acquire().await;
        if !self.is_silent.load(Ordering::Relaxed) {
            return Ok(());
        }
        let retry = Retry::until(Instant::now() + PATIENCE);
        let asked = cluster.clone().with_retry(retry).ask_version().await;
        match asked {
            Err(error) if is_silence(&error) => Err(error),
            Ok(_) | Err(_) => {
                self.is_silent.store(false, Ordering::Relaxed);
                Ok(())
            }
        }
    }
}

impl Sight {
    /// Notes that the API server did not answer.
    pub(super) fn heard(&self, error: Option<&ClusterError>) {
        let is_silent = error.is_some_and(is_silence);
        self.server.is_silent.store(is_silent, Ordering::Relaxed);
    }
}

/// Whether nobody is there to answer.
pub(super) fn is_silence(error: &ClusterError) -> bool {
    matches!(
        error.class(),
        Some(Class::Unreachable | Class::Timeout | Class::Tls | Class::Interrupted)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_how_many_wait() {
        let (listener, mut heard) = Listener::new();
        let sights = Sights::new(listener);
        let first = sights.queue.join();
        let second = sights.queue.join();
        drop(first);
        drop(second);
        let mut told = Vec::new();
        while let Ok(LoopEvent::Queued { waiting }) = heard.events.try_recv() {
            told.push(waiting);
        }
        assert_eq!(told, [1, 2, 1, 0]);
    }
}
