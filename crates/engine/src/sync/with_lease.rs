//! Execution under the Lease of the release, which the CLI and the controller share.

use std::fmt::Write as _;
use std::time::Duration;

use pleach_model::object::{ObjectId, ReleaseName};
use pleach_state::inventory::Store;

use super::error::SyncError;
use super::state::State;
use super::unanswered::explained;
use crate::stop::Cause;
use crate::{
    lease::{Holder, Lease, LeaseError, Patience, Peers, Terms},
    stop::Stop,
};
use pleach_cluster::Cluster;

/// Lease identity of runs, and their patience.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Name for other clients that wait: a user on a host, or a pod.
    pub who: String,
    /// Longest wait for another client that executes a plan.
    pub patience: Duration,
    /// The replicas to share work with. Leases of dead replicas are not waited for.
    pub peers: Peers,
    /// User and reason of a local run that overrides the controller, for the recorded result.
    pub local: Option<String>,
    /// User who approved the plan, for the recorded result. `None` if no user is known.
    pub approved_by: Option<String>,
}

/// Runs `work` while we hold the Lease of a release, and if the record is unchanged since the plan
/// was made. The Lease is released in any case. If the Lease is lost, the work is dropped at once
/// and nothing more is written. While a node is in its change, the work pauses during an outage of
/// the API server instead.
///
/// The inner error is the cause of a stop before the Lease was acquired.
pub async fn with_lease<T>(
    claim: &Claim,
    state: &mut State,
    stop: &Stop,
    waiting: impl FnMut(&Holder),
    work: impl AsyncFnOnce(&mut State) -> Result<T, SyncError>,
) -> Result<Result<T, Cause>, SyncError> {
    if let Some(cause) = stop.cause() {
        return Ok(Err(cause));
    }
    let id = state.lease();
    let identity = identity(&claim.peers.name(&claim.who))?;
    let nodes = state.nodes_in_change().clone();
    let patience = Patience {
        limit: claim.patience,
        stop,
        peers: &claim.peers,
        nodes: &nodes,
    };
    let acquired = Lease::acquire(
        state.cluster(),
        &id,
        &identity,
        Terms::default(),
        patience,
        waiting,
    )
    .await;
    let lease = match acquired {
        Ok(lease) => lease,
        Err(LeaseError::Stopped(cause)) => return Ok(Err(cause)),
        Err(LeaseError::Cluster(error)) => {
            let apply_set = state.apply_set();
            return Err(explained(state.cluster(), error, &apply_set).await);
        }
        Err(LeaseError::Taken { lease, holder }) => {
            return Err(SyncError::LeaseTaken {
                release: state.name().to_string(),
                lease: Box::new(lease),
                holder: Box::new(holder),
                patience: claim.patience,
            });
        }
    };
    let checked = async {
        state.ensure_unmoved().await?;
        work(state).await
    };
    let done = lease.while_held(stop, checked).await;
    lease.release().await;
    match done {
        // A webhook can also reject the write of the record.
        Some(Err(SyncError::Cluster(error))) => {
            let apply_set = state.apply_set();
            Err(explained(state.cluster(), error, &apply_set).await)
        }
        Some(result) => result.map(Ok),
        None => Err(SyncError::LeaseLost {
            release: state.name().to_string(),
            lease: Box::new(id),
        }),
    }
}

/// Deletes the Lease of a release that is not installed, as left by a run that was killed after its
/// last write. Waits for a holder that could still be at work. Does nothing without a Lease.
pub async fn clear_lease(
    claim: &Claim,
    cluster: &Cluster,
    (name, store): (&ReleaseName, &Store),
    stop: &Stop,
    waiting: impl FnMut(&Holder),
) -> Result<(), SyncError> {
    let mut state = State::unread(cluster, name, store);
    if !Lease::exists(cluster, &state.lease()).await? {
        return Ok(());
    }
    let cleared = with_lease(claim, &mut state, stop, waiting, async |_| Ok(())).await;
    cleared.map(drop)
}

/// Builds the identity of one attempt: the name of the client, and a random part to distinguish
/// attempts of the same process.
fn identity(who: &str) -> Result<String, SyncError> {
    let mut random = [0; 4];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut random)
        .map_err(|_| SyncError::Random)?;
    let mut identity = format!("{who} ");
    for byte in random {
        // Writing to a String cannot fail.
        let _ = write!(identity, "{byte:02x}");
    }
    Ok(identity)
}

impl State {
    /// Returns the id of the release Lease.
    fn lease(&self) -> ObjectId {
        ObjectId::new(
            "coordination.k8s.io",
            "Lease",
            Some(self.namespace()),
            &self.name().to_string(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_attempts_never_have_the_same_name() {
        let names = [identity("ann@host").unwrap(), identity("ann@host").unwrap()];
        assert_ne!(names[0], names[1]);
        for name in names {
            let (who, random) = name.split_once(' ').unwrap();
            assert_eq!((who, random.len()), ("ann@host", 8));
        }
    }
}
