//! Gates of upgrades, and whether a client still executes those upgrades.

use std::collections::BTreeSet;
use std::time::Duration;

use pleach_report::doctor::{Gate, LeaseState, Observations};
use pleach_state::inventory::STATE_NAMESPACE;
use serde_json::Value;
use tokio::time::Instant;

use super::Take as _;
use pleach_cluster::{Cluster, ClusterError, Depth, ResourcePath, Selector};

/// Longest Lease duration to watch. Leases of pleach are much shorter.
const LONGEST_LEASE: Duration = Duration::from_mins(1);
/// Interval between reads of a Lease.
const PAUSE: Duration = Duration::from_secs(1);

/// Returns the path of admission policies, which `--fix` is allowed to delete.
pub(super) fn policies() -> ResourcePath {
    ResourcePath::cluster_scoped(
        "admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicy",
        "validatingadmissionpolicies",
    )
}

/// Returns the path of policy bindings, which are deleted with their policy.
pub(super) fn bindings() -> ResourcePath {
    ResourcePath::cluster_scoped(
        "admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
    )
}

/// Reads all gates.
pub(super) async fn all(cluster: &Cluster, observations: &mut Observations) {
    let read = |value: Value| Gate::read(&value);
    let listed = cluster
        .pick(&policies(), &Selector::default(), Depth::Full, read)
        .await;
    let gates = observations.take("the admission policies", listed);
    complete(cluster, gates.unwrap_or_default(), observations).await;
}

/// Adds the bindings of the gates, and whether a run still holds their Lease.
pub(super) async fn complete(
    cluster: &Cluster,
    mut gates: Vec<Gate>,
    observations: &mut Observations,
) {
    if gates.is_empty() {
        return;
    }
    let listed = cluster
        .pick(&bindings(), &Selector::default(), Depth::Full, Some)
        .await;
    let bindings: Vec<Value> = observations
        .take("the bindings of admission policies", listed)
        .unwrap_or_default();
    for gate in &mut gates {
        for binding in &bindings {
            gate.bind(binding);
        }
    }
    let holdings = gates.iter().map(|gate| async {
        let namespaces = lease_namespaces(observations, &gate.owner);
        let leases = namespaces
            .iter()
            .map(|namespace| lease_state(cluster, namespace, &gate.owner));
        futures::future::join_all(leases).await
    });
    let holdings = futures::future::join_all(holdings).await;
    for (gate, holdings) in gates.iter_mut().zip(holdings) {
        let what = format!("the Lease of {}", gate.owner);
        let seen = holdings
            .into_iter()
            .map(|lease_state| observations.take(&what, lease_state).unwrap_or_default());
        gate.lease_state = seen.min().unwrap_or_default();
    }
    observations.gates = gates;
}

/// Returns the namespaces that can contain the Lease of a release: those of its record. Releases
/// with the same name can exist in several namespaces. Empty if records could exist that we did not
/// see.
fn lease_namespaces(observations: &Observations, owner: &str) -> BTreeSet<String> {
    let known = observations
        .releases
        .iter()
        .map(|release| &release.summary)
        .filter(|summary| summary.name.to_string() == owner)
        .map(|summary| summary.store.namespace().to_owned());
    let mut namespaces: BTreeSet<String> = known.collect();
    if namespaces.is_empty() && observations.releases_are_complete {
        namespaces.insert(STATE_NAMESPACE.to_owned());
    }
    namespaces
}

/// Returns whether the Lease of a release is renewed. Polls until its `renewTime` changes or its
/// duration has passed, because clocks of two machines are never compared.
pub(super) async fn lease_state(
    cluster: &Cluster,
    namespace: &str,
    owner: &str,
) -> Result<LeaseState, ClusterError> {
    let path = ResourcePath::namespaced("coordination.k8s.io/v1", "Lease", "leases");
    let began = Instant::now();
    let mut first: Option<Value> = None;
    loop {
        let lease = cluster.get(&path, Some(namespace), owner).await?;
        let Some(spec) = lease.map(|lease| lease["spec"].clone()) else {
            return Ok(LeaseState::Free);
        };
        if spec["holderIdentity"].as_str().is_none_or(str::is_empty) {
            return Ok(LeaseState::Free);
        }
        let before = first.get_or_insert_with(|| spec.clone());
        if before["renewTime"] != spec["renewTime"] {
            return Ok(LeaseState::Active);
        }
        let duration = spec["leaseDurationSeconds"].as_u64().unwrap_or(15);
        let duration = Duration::from_secs(duration);
        if duration > LONGEST_LEASE {
            return Ok(LeaseState::Unknown);
        }
        if began.elapsed() > duration {
            return Ok(LeaseState::Expired);
        }
        tokio::time::sleep(PAUSE).await;
    }
}
