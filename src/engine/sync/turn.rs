//! Whose turn it is: a plan with steps is carried out under the Lease of its
//! release, which the desk and the loop share.

use std::fmt::Write as _;
use std::time::Duration;

use pleach_domain::inventory::{ReleaseName, Store};
use pleach_domain::object::ObjectId;

use super::error::SyncError;
use super::state::State;
use super::unanswered::explained;
use crate::engine::lease::{Holder, Lease, LeaseError, Patience, Peers, Terms};
use crate::engine::stop::{Cause, Stop};
use crate::io::cluster::Cluster;

/// Who carries plans out, and how long others are waited for.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Who it is, for others who wait: a user on a host, a pod.
    pub who: String,
    /// How long somebody else who carries out a plan is waited for.
    pub patience: Duration,
    /// The replicas that it shares work with: those that are gone are not waited for.
    pub peers: Peers,
    /// Who goes ahead from the desk although a loop follows the release, and
    /// why: for the result that is recorded.
    pub local: Option<String>,
}

/// Does something while the Lease of a release is ours, and the record is still
/// what it was when the plan was made. The Lease is given back whatever comes of
/// it. When it is lost, the work is dropped where it stands: nothing more is
/// written.
///
/// The inner error says that we were asked to stop before it was our turn.
pub(in crate::engine) async fn in_turn<T>(
    claim: &Claim,
    state: &mut State,
    stop: &Stop,
    waiting: impl FnMut(&Holder),
    work: impl AsyncFnOnce(&mut State) -> Result<T, SyncError>,
) -> Result<Result<T, Cause>, SyncError> {
    if let Some(cause) = stop.asked() {
        return Ok(Err(cause));
    }
    let id = state.lease();
    let identity = identity(&claim.peers.name(&claim.who))?;
    let patience = Patience {
        limit: claim.patience,
        stop,
        peers: &claim.peers,
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
        Err(LeaseError::Held { lease, holder }) => {
            return Err(SyncError::Held {
                release: state.name().to_string(),
                lease: Box::new(lease),
                holder: Box::new(holder),
                patience: claim.patience,
            });
        }
    };
    let lost = lease.lost().clone();
    let checked = async {
        state.ensure_unmoved().await?;
        work(state).await
    };
    let done = lost.run_until_cancelled(checked).await;
    lease.release().await;
    match done {
        // The record is written like any other object.
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

/// Takes away the Lease of a release that is not there: a run that was killed
/// after its last write left it. Whoever holds it may still be at work, and is
/// waited for. Does nothing where there is none.
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
    let cleared = in_turn(claim, &mut state, stop, waiting, async |_| Ok(())).await;
    cleared.map(drop)
}

/// The name of one attempt: who it is, and what tells two attempts of the same
/// process apart.
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
    /// The Lease of the release.
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
        let names = [identity("ann@desk").unwrap(), identity("ann@desk").unwrap()];
        assert_ne!(names[0], names[1]);
        for name in names {
            let (who, random) = name.split_once(' ').unwrap();
            assert_eq!((who, random.len()), ("ann@desk", 8));
        }
    }
}
