//! One writer at a time: a Lease that the desk and the loop share.
//!
//! It is advisory. What makes a lost race harmless is optimistic locking of
//! the record and the preconditions of every step; the Lease only keeps two
//! writers from getting in each other's way. By client-go's rule a holder is
//! taken for gone when its `renewTime` has not *changed* for the duration of
//! the Lease, measured by our own monotonic clock: clocks of two machines are
//! never compared. A holder that could not renew for two thirds of the duration
//! stops by itself, before anybody may take over.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use pleach_domain::object::{ObjectId, canonical_json, managers};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::stop::{Cause, Stop};
use crate::io::cluster::{
    ApplyOptions, Class, Cluster, ClusterError, DeleteOptions, Patch, PatchOptions, Propagation,
    ResourcePath, Retry,
};

/// How long a Lease holds, and how often it is renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// After this long without a renewal others may take it.
    pub duration: Duration,
    /// How often its holder renews it.
    pub renew: Duration,
    /// Pause between two looks at a Lease that somebody else holds, and between
    /// two attempts of a renewal that fails.
    pub retry: Duration,
}

impl Terms {
    /// How long a holder goes on without a renewal.
    fn grace(self) -> Duration {
        self.duration * 2 / 3
    }
}

impl Default for Terms {
    /// The terms of client-go's leader election.
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            renew: Duration::from_secs(5),
            retry: Duration::from_secs(1),
        }
    }
}

/// Who holds a Lease, as the Lease says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Name of the holder.
    pub identity: String,
    /// Since when, by the holder's clock.
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

/// Why a Lease was not got.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The Lease could not be read or written.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Somebody else holds it and goes on renewing it.
    #[error("{holder} holds {lease}")]
    Held {
        /// The Lease.
        lease: ObjectId,
        /// Who has it.
        holder: Holder,
    },
    /// We were asked to stop while somebody else had it.
    #[error("stopped while waiting for a Lease")]
    Stopped(Cause),
}

/// The longest duration that is believed of another holder, in durations of ours.
const MOST_DURATIONS: u32 = 10;

/// How many of those who are gone are remembered.
const REMEMBERED: usize = 256;

/// What a replica knows of itself and of the others that it shares work with.
/// Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Peers(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// Who is known to have stopped.
    gone: VecDeque<String>,
    /// How often this one was taken for gone, and came back.
    returns: u32,
    /// Leases of other holders, as they were last read, and since when they are
    /// like that: by our clock, and over several attempts to acquire them.
    seen: BTreeMap<ObjectId, (Value, Instant)>,
}

impl Peers {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers somebody of whom it was seen, by the rule of this module, that
    /// they are gone: what they still hold need not be waited for.
    pub fn are_without(&self, who: &str) {
        let mut known = self.lock();
        if known.gone.len() == REMEMBERED {
            known.gone.pop_front();
        }
        known.gone.push_back(who.to_owned());
    }

    /// Whether a holder was an attempt of somebody who is gone.
    fn are_known_without(&self, holder: &str) -> bool {
        self.lock().gone.iter().any(|who| {
            let rest = holder.strip_prefix(who.as_str());
            rest.is_some_and(|rest| rest.starts_with(' '))
        })
    }

    /// How long a Lease has not changed, as far as this process has seen.
    fn unchanged_for(&self, lease: &ObjectId, spec: &Value, read_at: Instant) -> Duration {
        let mut known = self.lock();
        if let Some((last, since)) = known.seen.get(lease)
            && last == spec
        {
            return since.elapsed();
        }
        if known.seen.len() >= REMEMBERED {
            // To forget one only costs a longer wait.
            known.seen.clear();
        }
        known.seen.insert(lease.clone(), (spec.clone(), read_at));
        read_at.elapsed()
    }

    /// Forgets a Lease that nobody else holds.
    fn forget(&self, lease: &ObjectId) {
        self.lock().seen.remove(lease);
    }

    /// What somebody is called among them by now.
    pub fn name(&self, who: &str) -> String {
        match self.lock().returns {
            0 => who.to_owned(),
            returns => format!("{who}#{returns}"),
        }
    }

    /// Somebody whom others take for gone has stopped all its work, and goes on
    /// under another name: what it held may be taken from it, and what it will
    /// hold may not.
    pub fn return_as_another(&self, who: &str) {
        self.are_without(&self.name(who));
        self.lock().returns += 1;
    }
}

/// How long somebody else who holds a Lease is waited for.
#[derive(Debug, Clone, Copy)]
pub struct Patience<'a> {
    /// At most this long.
    pub limit: Duration,
    /// Ends the wait too.
    pub stop: &'a Stop,
    /// Those of whom some are not waited for at all.
    pub peers: &'a Peers,
}

/// A Lease that is ours. Dropping it stops the renewals and leaves the Lease to
/// expire; [`Lease::release`] gives it back.
#[derive(Debug)]
pub struct Lease {
    cluster: Cluster,
    id: ObjectId,
    identity: String,
    lost: CancellationToken,
    renewals: JoinSet<()>,
}

/// Sleeps before the next request, unless the run is stopped.
async fn pause(stop: &Stop, duration: Duration) -> Result<(), LeaseError> {
    tokio::select! {
        biased;
        cause = stop.wait() => Err(LeaseError::Stopped(cause)),
        () = tokio::time::sleep(duration) => Ok(()),
    }
}

impl Lease {
    /// Gets a Lease, waiting for its holder for as long as `patience` says.
    /// `identity` must be unique to this attempt. `waiting` is told whenever
    /// the holder that is waited for is another one.
    pub async fn acquire(
        cluster: &Cluster,
        id: &ObjectId,
        identity: &str,
        terms: Terms,
        patience: Patience<'_>,
        mut waiting: impl FnMut(&Holder),
    ) -> Result<Self, LeaseError> {
        let give_up = Instant::now() + patience.limit;
        let mut told: Option<Holder> = None;
        let mut races = 0;
        let mut vanished = 0;
        let is_over = || Instant::now() + terms.retry > give_up;
        loop {
            // Nobody has it, as a rule: then this is the only request.
            let attempted = Instant::now();
            match create(cluster, id, identity, terms).await {
                Ok(live) if attempted.elapsed() < terms.renew => {
                    patience.peers.forget(id);
                    return Ok(Self::held(cluster, id, &live, terms, attempted));
                }
                // It was tried for so long that it may count as lost already.
                Ok(_) => {}
                Err(error) if matches!(error.class(), Some(Class::AlreadyExists { .. })) => {
                    // Deleted between the two requests, as a rule once.
                    if vanished > 1 {
                        if is_over() {
                            return Err(error.into());
                        }
                        pause(patience.stop, terms.retry).await?;
                    }
                }
                Err(error) => return Err(error.into()),
            }
            // Until it is gone.
            loop {
                let attempted = Instant::now();
                let Some(live) = cluster.get_id(&leases(), id).await? else {
                    vanished += 1;
                    break;
                };
                let spec = &live["spec"];
                let holder = spec["holderIdentity"].as_str().unwrap_or_default();
                let unchanged_for = patience.peers.unchanged_for(id, spec, attempted);
                // An attempt of ours whose answer was lost is taken once more: others
                // may have seen it for longer than we know.
                let is_free = holder.is_empty()
                    || holder == identity
                    || patience.peers.are_known_without(holder);
                if is_free || unchanged_for >= duration_of(spec, terms) {
                    let attempted = Instant::now();
                    match take(cluster, id, &live, identity, terms).await {
                        Ok(live) => {
                            patience.peers.forget(id);
                            return Ok(Self::held(cluster, id, &live, terms, attempted));
                        }
                        // Another client was faster, as a rule once.
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
                        return Err(LeaseError::Held {
                            lease: id.clone(),
                            holder,
                        });
                    }
                    if told.as_ref() != Some(&holder) {
                        waiting(&holder);
                        told = Some(holder);
                    }
                }
                // Between two requests, so that none is left behind.
                pause(patience.stop, terms.retry).await?;
            }
        }
    }

    fn held(
        cluster: &Cluster,
        id: &ObjectId,
        live: &Value,
        terms: Terms,
        renewed: Instant,
    ) -> Self {
        let identity = text(&live["spec"]["holderIdentity"]);
        let lost = CancellationToken::new();
        let mut renewals = JoinSet::new();
        renewals.spawn(keep(
            Renewal {
                cluster: cluster.clone().with_retry(Retry::never()),
                id: id.clone(),
                identity: identity.clone(),
                version: text(&live["metadata"]["resourceVersion"]),
                terms,
            },
            renewed,
            lost.clone(),
        ));
        Self {
            cluster: cluster.clone(),
            id: id.clone(),
            identity,
            lost,
            renewals,
        }
    }

    /// Whether anybody has it, or had it and could not give it back.
    pub async fn exists(cluster: &Cluster, id: &ObjectId) -> Result<bool, ClusterError> {
        Ok(cluster.get_id(&leases(), id).await?.is_some())
    }

    /// Fires when the Lease is no longer ours: nothing may be written after it.
    pub fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Writes an annotation of the Lease, for others who look at it.
    pub async fn annotate(&self, key: &str, value: &str) -> Result<(), ClusterError> {
        let body = json!({ "metadata": { "annotations": { key: value } } });
        patch(&self.cluster, &self.id, body).await?;
        Ok(())
    }

    /// Gives the Lease back by deleting it, if it is still ours. What fails is
    /// left to expire.
    pub async fn release(mut self) {
        let was_lost = self.lost.is_cancelled();
        self.renewals.shutdown().await;
        if was_lost {
            return;
        }
        if let Err(error) = self.delete().await {
            tracing::debug!(lease = %self.id, %error, "the lease could not be given back");
        }
    }

    /// The last renewal may have come too late, or may have lost its answer: what
    /// is deleted is what was seen to be ours.
    async fn delete(&self) -> Result<(), ClusterError> {
        let cluster = self.cluster.clone().with_retry(Retry::never());
        let Some(live) = cluster.get_id(&leases(), &self.id).await? else {
            return Ok(());
        };
        if live["spec"]["holderIdentity"] != self.identity.as_str() {
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

/// What renews a Lease.
struct Renewal {
    cluster: Cluster,
    id: ObjectId,
    identity: String,
    version: String,
    terms: Terms,
}

/// How a renewal went.
enum Renewed {
    Yes,
    /// Not now; it may still be ours.
    NotNow,
    /// It has another holder, or is gone.
    Lost,
}

/// Renews until the Lease is lost, by others or because nobody could be asked
/// for too long.
async fn keep(mut renewal: Renewal, mut renewed: Instant, lost: CancellationToken) {
    // However this ends, nobody renews from then on.
    let _lost = lost.drop_guard();
    let terms = renewal.terms;
    let mut next = renewed + terms.renew;
    loop {
        let end = renewed + terms.grace();
        tokio::time::sleep_until(next.min(end)).await;
        let attempted = Instant::now();
        if attempted >= end {
            break;
        }
        match tokio::time::timeout_at(end, renewal.renew()).await {
            Ok(Renewed::Yes) => {
                renewed = attempted;
                next = attempted + terms.renew;
            }
            Ok(Renewed::NotNow) => next = Instant::now() + terms.retry,
            Ok(Renewed::Lost) | Err(_) => break,
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
                // Somebody labelled it, or a renewal of ours lost its answer.
                Ok(Some(live)) if live["spec"]["holderIdentity"] == self.identity.as_str() => {
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

/// Now, as the API's `MicroTime` wants it.
fn now() -> String {
    Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%S.%6fZ")
        .to_string()
}

/// The duration that the holder declares, which may be another version of pleach.
/// It counts up to a limit: whoever may write Leases could block a release for ever.
fn duration_of(spec: &Value, terms: Terms) -> Duration {
    let declared = spec["leaseDurationSeconds"]
        .as_u64()
        .map_or(terms.duration, Duration::from_secs);
    declared.min(terms.duration * MOST_DURATIONS)
}

/// The kind.
pub(super) fn leases() -> ResourcePath {
    ResourcePath::namespaced("coordination.k8s.io/v1", "Lease", "leases")
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
