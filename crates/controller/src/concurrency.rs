//! Concurrency limits of reconciles: few at a time, with shared reads for large environments. An
//! unresponsive cluster delays only its own releases.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pleach_reconciler::backoff::STALE;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::run::Target;
use super::{ControllerEvent, Listener};
use pleach_cluster::{Class, Cluster, ClusterError, Retry};

/// Number of concurrent observations and plans, limited because their data uses memory. Execution
/// and waits need no permit.
const ROOM: usize = 16;
/// Share of these permits per API server, so that others make progress while one is slow or not yet
/// known to be silent.
const SHARE: usize = 10;
/// Number of concurrent probes of a silent API server.
const ASKING: usize = 4;
/// Time limit of such a probe.
const PATIENCE: Duration = Duration::from_secs(5);
/// Number of releases in an environment from which reads are shared.
const MANY: usize = 8;

/// Source of reconcile permits. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct ReconcilePermits {
    room: Arc<Semaphore>,
    servers: Arc<Mutex<BTreeMap<String, Arc<Server>>>>,
    queue: Queue,
}

/// Counter of releases that wait for a permit.
#[derive(Debug, Clone)]
struct Queue {
    waiting: Arc<AtomicUsize>,
    listener: Listener,
}

/// One waiting release.
struct Queued<'a>(&'a Queue);

/// State of an API server.
#[derive(Debug)]
struct Server {
    share: Arc<Semaphore>,
    asking: Semaphore,
    /// Whether the last request got no answer.
    is_silent: AtomicBool,
}

impl Queue {
    fn join(&self) -> Queued<'_> {
        self.report(self.waiting.fetch_add(1, Ordering::Relaxed) + 1);
        Queued(self)
    }

    fn report(&self, waiting: usize) {
        self.listener
            .report(ControllerEvent::QueueChanged { waiting });
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let Self(queue) = self;
        queue.report(queue.waiting.fetch_sub(1, Ordering::Relaxed) - 1);
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

/// Reconcile permit, released on drop. Reports also need it, because they use memory too.
#[derive(Debug)]
pub(super) struct ReconcilePermit {
    /// Client for reads.
    pub(super) cluster: Cluster,
    server: Arc<Server>,
    _room: [Option<OwnedSemaphorePermit>; 2],
}

impl ReconcilePermits {
    /// Creates the permits. The listener receives the queue depth.
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

    /// Waits for a permit. Shared answers must have been requested at `since` or later; `None`
    /// means now. A silent server is probed without a permit, and its error is returned.
    pub(super) async fn begin(
        &self,
        desired: &Target,
        since: Option<Instant>,
    ) -> Result<ReconcilePermit, ClusterError> {
        let since = since.unwrap_or_else(Instant::now);
        let server = self.server(desired.cluster.server());
        let queued = self.queue.join();
        let room = loop {
            server.answers(&desired.cluster).await?;
            // The semaphores are never closed.
            let share = Arc::clone(&server.share).acquire_owned().await.ok();
            let room = Arc::clone(&self.room).acquire_owned().await.ok();
            if !server.is_silent.load(Ordering::Relaxed) {
                break [share, room];
            }
        };
        drop(queued);
        let cluster = desired.cluster.clone();
        let cluster = if desired.loaded.rendered.len() < MANY {
            cluster
        } else {
            // Renew shared answers now and then, because runs keep writing.
            let oldest = Instant::now().checked_sub(STALE);
            cluster.as_of(oldest.map_or(since, |oldest| oldest.max(since)))
        };
        Ok(ReconcilePermit {
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
    /// Returns once the server answers. Fails if it is still silent.
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

impl ReconcilePermit {
    /// Records whether the API server answered.
    pub(super) fn heard(&self, error: Option<&ClusterError>) {
        let is_silent = error.is_some_and(is_silence);
        self.server.is_silent.store(is_silent, Ordering::Relaxed);
    }
}

/// Returns whether the error means that the server did not answer.
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
    fn the_queue_depth_is_reported() {
        let (listener, mut heard) = Listener::new();
        let sights = ReconcilePermits::new(listener);
        let first = sights.queue.join();
        let second = sights.queue.join();
        drop(first);
        drop(second);
        let mut told = Vec::new();
        while let Ok(ControllerEvent::QueueChanged { waiting }) = heard.events.try_recv() {
            told.push(waiting);
        }
        assert_eq!(told, [1, 2, 1, 0]);
    }
}
