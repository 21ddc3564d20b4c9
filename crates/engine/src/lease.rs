//! Mutual exclusion of writers: a Lease that the CLI and the controller share.
//!
//! The Lease is advisory. A lost race is harmless because of optimistic locking of the record and
//! the preconditions of every step. The Lease only keeps two writers from interfering with each
//! other.
//!
//! The expiry rule is that of client-go: a holder is considered gone if its `renewTime` has not
//! *changed* for the duration of the Lease. Our own monotonic clock measures that, so clocks of two
//! machines are never compared. A holder that could not renew for two thirds of the duration stops
//! by itself, before another client is allowed to take over.
//!
//! While a node is in its change, the holder waits for the API server instead, because the change of
//! a node can restart it ([`outage`]).

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use pleach_model::object::{ObjectId, canonical_json, managers};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

mod outage;

use self::outage::{Certainty, certainty, is_ours};
use super::stop::Stop;
use crate::stop::Cause;
use pleach_cluster::{
    ApplyOptions, Class, Cluster, ClusterError, DeleteOptions, Patch, PatchOptions, Propagation,
    ResourcePath, Retry,
};

pub use outage::{NodeInChange, NodesInChange};

/// Timing of a Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Time without a renewal after which another client is allowed to take it.
    pub duration: Duration,
    /// Interval between renewals.
    pub renew: Duration,
    /// Interval between polls of a Lease that another client holds, and between retries of a failed
    /// renewal.
    pub retry: Duration,
}

impl Terms {
    /// Time after which a holder without a renewal gives up.
    fn grace(self) -> Duration {
        self.duration * 2 / 3
    }
}

impl Default for Terms {
    /// Returns the timing of leader election in client-go.
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            renew: Duration::from_secs(5),
            retry: Duration::from_secs(1),
        }
    }
}

/// Holder of a Lease, as read from the Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Identity of the holder.
    pub identity: String,
    /// Time of acquisition, by the clock of the holder.
    pub since: Option<Timestamp>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.identity)?;
        match self.since {
            Some(since) => write!(f, " since {since:.0}"),
            None => Ok(()),
        }
    }
}

/// Reason why a Lease was not acquired.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The Lease could not be read or written.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Another client holds the Lease and keeps renewing it.
    #[error("{holder} holds {lease}")]
    Taken {
        /// The Lease.
        lease: ObjectId,
        /// Its holder.
        holder: Holder,
    },
    /// A stop was requested while another client had the Lease.
    #[error("stopped while waiting for a Lease")]
    Stopped(Cause),
}

/// Upper bound of a duration declared by another holder, as a multiple of our own.
const MOST_DURATIONS: u32 = 10;

/// Limit on the number of remembered dead replicas and observed Leases.
const REMEMBERED: usize = 256;

/// Knowledge of a replica about itself and its peers. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Peers(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// Identities of replicas that are known to have stopped, oldest first.
    gone: VecDeque<String>,
    /// Number of times that this replica was considered gone and came back.
    returns: u32,
    /// Leases of other holders as last read, with the time (by our clock) since when they are
    /// unchanged. Covers several attempts to acquire them.
    seen: BTreeMap<ObjectId, (Value, Instant)>,
}

impl Peers {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers that a replica is gone, by the rule of this module. Leases that it still holds
    /// need not be waited for.
    pub fn are_without(&self, holder: &str) {
        let mut known = self.lock();
        if known.gone.len() == REMEMBERED {
            known.gone.pop_front();
        }
        known.gone.push_back(holder.to_owned());
    }

    /// Returns whether `holder` is the identity of a run of a replica that is gone.
    fn are_known_without(&self, holder: &str) -> bool {
        self.lock().gone.iter().any(|gone| {
            let rest = holder.strip_prefix(gone.as_str());
            rest.is_some_and(|rest| rest.starts_with(' '))
        })
    }

    /// Returns how long a Lease has not changed, as far as this process has observed.
    fn unchanged_for(&self, lease: &ObjectId, spec: &Value, read_at: Instant) -> Duration {
        let mut known = self.lock();
        if let Some((last, since)) = known.seen.get(lease)
            && last == spec
        {
            return since.elapsed();
        }
        if known.seen.len() >= REMEMBERED {
            // Safe: a forgotten entry only makes the wait longer.
            known.seen.clear();
        }
        known.seen.insert(lease.clone(), (spec.clone(), read_at));
        read_at.elapsed()
    }

    /// Forgets a Lease that no other client holds.
    fn forget(&self, lease: &ObjectId) {
        self.lock().seen.remove(lease);
    }

    /// Returns the present name of this replica among its peers.
    pub fn name(&self, holder: &str) -> String {
        match self.lock().returns {
            0 => holder.to_owned(),
            returns => format!("{holder}#{returns}"),
        }
    }

    /// Continues under a new name after the peers considered this replica gone. All its work has
    /// stopped: peers can take Leases of the old name, but not those of the new one.
    pub fn return_as_another(&self, holder: &str) {
        self.are_without(&self.name(holder));
        self.lock().returns += 1;
    }
}

/// Conditions under which to wait for another holder of a Lease.
#[derive(Debug, Clone, Copy)]
pub struct Patience<'a> {
    /// Longest wait.
    pub limit: Duration,
    /// Also ends the wait.
    pub stop: &'a Stop,
    /// Replicas, some of which are known to be gone and not waited for.
    pub peers: &'a Peers,
    /// Nodes in their change. Then the acquired Lease outlives an outage of the API server.
    pub nodes: &'a NodesInChange,
}

/// A Lease that we hold. On drop, renewals stop and the Lease expires. [`Lease::release`] deletes
/// it at once.
#[derive(Debug)]
pub struct Lease {
    cluster: Cluster,
    id: ObjectId,
    identity: String,
    lost: CancellationToken,
    /// Whether the last renewal is so old that another client can take the Lease.
    doubtful: watch::Receiver<bool>,
    renewals: JoinSet<()>,
}

/// Sleeps before the next request. Fails if the run is stopped meanwhile.
async fn pause(stop: &Stop, duration: Duration) -> Result<(), LeaseError> {
    tokio::select! {
        biased;
        cause = stop.wait() => Err(LeaseError::Stopped(cause)),
        () = tokio::time::sleep(duration) => Ok(()),
    }
}

impl Lease {
    /// Acquires a Lease, and waits for its present holder as long as `patience` allows. `identity`
    /// must be unique to this attempt. Calls `waiting` each time that a different holder is in the
    /// way.
    pub async fn acquire(
        cluster: &Cluster,
        id: &ObjectId,
        identity: &str,
        terms: Terms,
        patience: Patience<'_>,
        mut waiting: impl FnMut(&Holder),
    ) -> Result<Self, LeaseError> {
        let give_up = Instant::now() + patience.limit;
        let mut reported: Option<Holder> = None;
        let mut races = 0;
        let mut vanished = 0;
        let is_over = || Instant::now() + terms.retry > give_up;
        loop {
            // Usually the Lease does not exist, and this is the only request.
            let attempted = Instant::now();
            match create(cluster, id, identity, terms).await {
                Ok(live) if attempted.elapsed() < terms.renew => {
                    return Ok(Self::acquired(
                        cluster, id, &live, terms, patience, attempted,
                    ));
                }
                // The attempt took so long that the Lease can already count as lost. Acquire it
                // again.
                Ok(_) => {}
                Err(error) if matches!(error.class(), Some(Class::AlreadyExists { .. })) => {
                    // Deleted between the two requests. This usually happens only once.
                    if vanished > 1 {
                        if is_over() {
                            return Err(error.into());
                        }
                        pause(patience.stop, terms.retry).await?;
                    }
                }
                Err(error) => return Err(error.into()),
            }
            // Loops until we acquire the Lease or it is deleted.
            loop {
                let attempted = Instant::now();
                let Some(live) = cluster.get_id(&leases(), id).await? else {
                    vanished += 1;
                    break;
                };
                let spec = &live["spec"];
                let holder = spec["holderIdentity"].as_str().unwrap_or_default();
                let unchanged_for = patience.peers.unchanged_for(id, spec, attempted);
                // An earlier attempt of ours that lost its answer is taken again: other clients can
                // have observed the Lease for longer than we know.
                let is_free = holder.is_empty()
                    || holder == identity
                    || patience.peers.are_known_without(holder);
                if is_free || unchanged_for >= duration_of(spec, terms) {
                    let attempted = Instant::now();
                    match take(cluster, id, &live, identity, terms).await {
                        Ok(live) => {
                            return Ok(Self::acquired(
                                cluster, id, &live, terms, patience, attempted,
                            ));
                        }
                        // Another client was faster. Retry the first such race at once.
                        Err(error) if error.is_race() && races == 0 => {
                            races += 1;
                            continue;
                        }
                        Err(error) if error.is_race() && !is_over() => {}
                        Err(error) => return Err(error.into()),
                    }
                } else {
                    let holder = Holder {
                        identity: holder.to_owned(),
                        since: spec["acquireTime"]
                            .as_str()
                            .and_then(|since| since.parse().ok()),
                    };
                    if is_over() {
                        return Err(LeaseError::Taken {
                            lease: id.clone(),
                            holder,
                        });
                    }
                    if reported.as_ref() != Some(&holder) {
                        waiting(&holder);
                        reported = Some(holder);
                    }
                }
                // Stop only between requests, so that no Lease is left behind.
                pause(patience.stop, terms.retry).await?;
            }
        }
    }

    fn acquired(
        cluster: &Cluster,
        id: &ObjectId,
        live: &Value,
        terms: Terms,
        patience: Patience<'_>,
        renewed: Instant,
    ) -> Self {
        patience.peers.forget(id);
        let identity = text(&live["spec"]["holderIdentity"]);
        let lost = CancellationToken::new();
        let (doubt, doubtful) = watch::channel(false);
        let mut renewals = JoinSet::new();
        renewals.spawn(keep(
            Renewal {
                cluster: cluster.clone().with_retry(Retry::never()),
                id: id.clone(),
                identity: identity.clone(),
                version: text(&live["metadata"]["resourceVersion"]),
                terms,
                nodes: patience.nodes.clone(),
            },
            renewed,
            (lost.clone(), doubt),
        ));
        Self {
            cluster: cluster.clone(),
            id: id.clone(),
            identity,
            lost,
            doubtful,
            renewals,
        }
    }

    /// Returns whether the Lease exists: it has a holder, or had one that could not delete it.
    pub async fn exists(cluster: &Cluster, id: &ObjectId) -> Result<bool, ClusterError> {
        Ok(cluster.get_id(&leases(), id).await?.is_some())
    }

    /// Returns a token that fires when the Lease is lost. Nothing must be written afterwards.
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Runs `work` while we hold the Lease. During an outage that is tolerated, `work` is not polled,
    /// so that it sends no request. Returns `None` if the Lease is lost, or if a stop is requested
    /// during an outage; nothing must be written afterwards.
    pub async fn while_held<T>(&self, stop: &Stop, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        let mut doubtful = self.doubtful.clone();
        loop {
            tokio::select! {
                biased;
                () = self.lost.cancelled() => return None,
                () = becomes(&mut doubtful, true) => {}
                done = &mut work => return Some(done),
            }
            tracing::warn!(lease = %self.id, "no answer while a node is changed; the run waits for the API server");
            tokio::select! {
                biased;
                () = self.lost.cancelled() => return None,
                _ = stop.wait() => return None,
                () = becomes(&mut doubtful, false) => {}
            }
            tracing::info!(lease = %self.id, "the API server answers; the run continues");
        }
    }

    /// Sets an annotation of the Lease, for other clients to read.
    pub async fn annotate(&self, key: &str, value: &str) -> Result<(), ClusterError> {
        let body = json!({ "metadata": { "annotations": { key: value } } });
        patch(&self.cluster, &self.id, body).await?;
        Ok(())
    }

    /// Deletes the Lease if we still hold it. If that fails, the Lease expires.
    pub async fn release(mut self) {
        let was_lost = self.lost.is_cancelled();
        self.renewals.shutdown().await;
        if was_lost {
            return;
        }
        if let Err(error) = self.delete().await {
            tracing::debug!(lease = %self.id, %error, "failed to release the lease");
        }
    }

    /// Deletes the Lease as just read. The last renewal can have come too late or have lost its
    /// answer, so the holder is checked and the deletion has preconditions.
    async fn delete(&self) -> Result<(), ClusterError> {
        let cluster = self.cluster.clone().with_retry(Retry::never());
        let Some(live) = cluster.get_id(&leases(), &self.id).await? else {
            return Ok(());
        };
        if !is_ours(&live, &self.identity) {
            return Ok(());
        }
        let options = DeleteOptions {
            uid: live["metadata"]["uid"].as_str(),
            resource_version: live["metadata"]["resourceVersion"].as_str(),
            propagation: Propagation::Background,
            dry_run: false,
        };
        cluster.delete(&leases(), &self.id, &options).await?;
        Ok(())
    }
}

/// Waits until the channel has a value. Waits forever if its sender is gone, which cancels the
/// Lease.
async fn becomes(channel: &mut watch::Receiver<bool>, value: bool) {
    if channel.wait_for(|now| *now == value).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// State of the task that renews a Lease.
struct Renewal {
    cluster: Cluster,
    id: ObjectId,
    identity: String,
    version: String,
    terms: Terms,
    nodes: NodesInChange,
}

/// Outcome of a renewal.
enum Renewed {
    Yes,
    /// Not renewed this time. We can still hold the Lease.
    NotNow,
    /// Another client holds the Lease, or it is deleted.
    Lost,
}

/// Renews until the Lease is lost: to another client, or because the server was unreachable for too
/// long. Reports meanwhile whether it is in doubt.
async fn keep(
    mut renewal: Renewal,
    mut renewed: Instant,
    (lost, doubt): (CancellationToken, watch::Sender<bool>),
) {
    // On every exit, signal that the Lease is no longer renewed.
    let _lost = lost.drop_guard();
    let terms = renewal.terms;
    let mut next = renewed + terms.renew;
    loop {
        let end = renewed + terms.grace();
        let is_past = Instant::now() >= end;
        tokio::time::sleep_until(if is_past { next } else { next.min(end) }).await;
        let attempted = Instant::now();
        match certainty(attempted - renewed, terms.grace(), renewal.nodes.any()) {
            Certainty::Held => {}
            Certainty::Doubtful => {
                doubt.send_replace(true);
            }
            Certainty::Lost => break,
        }
        let limit = if attempted < end {
            end
        } else {
            attempted + terms.renew
        };
        match tokio::time::timeout_at(limit, renewal.renew()).await {
            Ok(Renewed::Yes) => {
                renewed = attempted;
                next = attempted + terms.renew;
                doubt.send_replace(false);
            }
            Ok(Renewed::NotNow) => next = Instant::now() + terms.retry,
            Err(_) => next = Instant::now(),
            Ok(Renewed::Lost) => break,
        }
    }
}

impl Renewal {
    async fn renew(&mut self) -> Renewed {
        let body = json!({
            "metadata": { "resourceVersion": self.version },
            "spec": { "renewTime": now() },
        });
        match patch(&self.cluster, &self.id, body).await {
            Ok(live) => {
                self.version = text(&live["metadata"]["resourceVersion"]);
                Renewed::Yes
            }
            Err(error) if error.is_race() => match self.cluster.get_id(&leases(), &self.id).await {
                // Another client edited the metadata, or our renewal succeeded and its answer was
                // lost.
                Ok(Some(live)) if is_ours(&live, &self.identity) => {
                    self.version = text(&live["metadata"]["resourceVersion"]);
                    Renewed::NotNow
                }
                Ok(_) => Renewed::Lost,
                Err(_) => Renewed::NotNow,
            },
            Err(_) => Renewed::NotNow,
        }
    }
}

async fn create(
    cluster: &Cluster,
    id: &ObjectId,
    identity: &str,
    terms: Terms,
) -> Result<Value, ClusterError> {
    let object = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": id.name, "namespace": id.namespace },
        "spec": spec(identity, terms, 0),
    });
    let body = Bytes::from(canonical_json(&object));
    let options = ApplyOptions::new(managers::STATE);
    let created = cluster.create(&leases(), id, body, &options).await?;
    Ok(created.value)
}

async fn take(
    cluster: &Cluster,
    id: &ObjectId,
    live: &Value,
    identity: &str,
    terms: Terms,
) -> Result<Value, ClusterError> {
    let transitions = live["spec"]["leaseTransitions"].as_i64().unwrap_or(0);
    let is_other = live["spec"]["holderIdentity"] != identity;
    let body = json!({
        "metadata": { "resourceVersion": live["metadata"]["resourceVersion"] },
        "spec": spec(identity, terms, transitions + i64::from(is_other)),
    });
    patch(cluster, id, body).await
}

async fn patch(cluster: &Cluster, id: &ObjectId, body: Value) -> Result<Value, ClusterError> {
    let options = PatchOptions::new(managers::STATE);
    let patch = Patch::Merge(body);
    let patched = cluster.patch(&leases(), id, &patch, &options).await?;
    Ok(patched.value)
}

fn spec(identity: &str, terms: Terms, transitions: i64) -> Value {
    let now = now();
    json!({
        "holderIdentity": identity,
        "leaseDurationSeconds": terms.duration.as_secs(),
        "acquireTime": now,
        "renewTime": now,
        "leaseTransitions": transitions,
    })
}

/// Returns the current time as a `MicroTime` of the API.
fn now() -> String {
    Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%S.%6fZ")
        .to_string()
}

/// Returns the duration that the holder declares, which can be another version of pleach. It is
/// capped: any client with write access to Leases could otherwise block a release forever.
fn duration_of(spec: &Value, terms: Terms) -> Duration {
    let declared = spec["leaseDurationSeconds"]
        .as_u64()
        .map_or(terms.duration, Duration::from_secs);
    declared.min(terms.duration * MOST_DURATIONS)
}

/// Returns the path of the Lease kind.
pub fn leases() -> ResourcePath {
    ResourcePath::namespaced("coordination.k8s.io/v1", "Lease", "leases")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
