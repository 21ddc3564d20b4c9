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
use super::{ControllerEvent, EventSender};
use pleach_cluster::{Class, Cluster, ClusterError, Retry};

/// Number of concurrent observations and plans, limited because their data uses memory. Execution
/// and waits need no permit.
const PERMITS: usize = 16;
/// Share of these permits per API server, so that others make progress while one is slow or not yet
/// known to be silent.
const PERMITS_PER_SERVER: usize = 10;
/// Number of concurrent probes of a silent API server.
const PROBES: usize = 4;
/// Time limit of such a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of releases in an environment from which reads are shared.
const LARGE_ENVIRONMENT: usize = 8;

/// Source of reconcile permits. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct ReconcilePermits {
    permits: Arc<Semaphore>,
    servers: Arc<Mutex<BTreeMap<String, Arc<Server>>>>,
    queue: Queue,
}

/// Counter of releases that wait for a permit.
#[derive(Debug, Clone)]
struct Queue {
    waiting: Arc<AtomicUsize>,
    events: EventSender,
}

/// One waiting release.
struct Queued<'a>(&'a Queue);

/// State of an API server.
#[derive(Debug)]
struct Server {
    permits: Arc<Semaphore>,
    probes: Semaphore,
    /// Whether the last request got no answer.
    is_silent: AtomicBool,
}

impl Queue {
    fn join(&self) -> Queued<'_> {
        self.report(self.waiting.fetch_add(1, Ordering::Relaxed) + 1);
        Queued(self)
    }

    fn report(&self, waiting: usize) {
        self.events
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
            permits: Arc::new(Semaphore::new(PERMITS_PER_SERVER)),
            probes: Semaphore::new(PROBES),
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
    _permits: [Option<OwnedSemaphorePermit>; 2],
}

impl ReconcilePermits {
    /// Creates the permits. The listener receives the queue depth.
    pub(super) fn new(events: EventSender) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(PERMITS)),
            servers: Arc::default(),
            queue: Queue {
                waiting: Arc::default(),
                events,
            },
        }
    }

    /// Waits for a permit. Shared answers must have been requested at `since` or later; `None`
    /// means now. A silent server is probed without a permit, and its error is returned.
    pub(super) async fn acquire(
        &self,
        desired: &Target,
        since: Option<Instant>,
    ) -> Result<ReconcilePermit, ClusterError> {
        let since = since.unwrap_or_else(Instant::now);
        let server = self.server(desired.cluster.server());
        let queued = self.queue.join();
        let permits = loop {
            server.probe_if_silent(&desired.cluster).await?;
            // The semaphores are never closed.
            let server_permits = Arc::clone(&server.permits).acquire_owned().await.ok();
            let permits = Arc::clone(&self.permits).acquire_owned().await.ok();
            if !server.is_silent.load(Ordering::Relaxed) {
                break [server_permits, permits];
            }
        };
        drop(queued);
        let cluster = desired.cluster.clone();
        let cluster = if desired.loaded.rendered.len() < LARGE_ENVIRONMENT {
            cluster
        } else {
            // Renew shared answers now and then, because runs keep writing.
            let oldest = Instant::now().checked_sub(STALE);
            cluster.as_of(oldest.map_or(since, |oldest| oldest.max(since)))
        };
        Ok(ReconcilePermit {
            cluster,
            server,
            _permits: permits,
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
    async fn probe_if_silent(&self, cluster: &Cluster) -> Result<(), ClusterError> {
        if !self.is_silent.load(Ordering::Relaxed) {
            return Ok(());
        }
        let _permit = self.probes.acquire().await;
        if !self.is_silent.load(Ordering::Relaxed) {
            return Ok(());
        }
        let retry = Retry::until(Instant::now() + PROBE_TIMEOUT);
        let answer = cluster.clone().with_retry(retry).ask_version().await;
        match answer {
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
    pub(super) fn record_answer(&self, error: Option<&ClusterError>) {
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
        let (events, mut receivers) = EventSender::new();
        let permits = ReconcilePermits::new(events);
        let first = permits.queue.join();
        let second = permits.queue.join();
        drop(first);
        drop(second);
        let mut depths = Vec::new();
        while let Ok(ControllerEvent::QueueChanged { waiting }) = receivers.events.try_recv() {
            depths.push(waiting);
        }
        assert_eq!(depths, [1, 2, 1, 0]);
    }
}
