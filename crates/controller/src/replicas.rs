//! Replicas of the controller, which share its environments.
//!
//! Each replica has a Lease in a common namespace and watches the Leases of the others. From the
//! names of the live replicas, each one computes the leader of each environment. So nothing is
//! negotiated or handed over. Views can differ for a moment. Then two replicas reconcile the same
//! release, and the Lease of the release lets only one of them write.
//!
//! A replica that could not renew its Lease drops all work before the others become leaders. A
//! replica that shuts down deletes its Lease after its last run has finished, and others become
//! leaders immediately. Webhook pushes are counted in an annotation of the Lease, which the
//! other replicas watch.

mod view;

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use futures::StreamExt as _;
use pleach_model::object::ObjectId;
use pleach_reconciler::config::EnvironmentKey;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use self::view::{View, leader};
use super::{ControllerEvent, Repository, RepositoryTriggers, Shared, Trigger, backoff};
use pleach_cluster::{
    Cluster, Connection, DeleteOptions, Depth, Propagation, ResourcePath, Retry, Selector,
};
use pleach_engine::stop::Cause;
use pleach_engine::{
    lease::{Lease, NodesInChange, Patience, Peers, Terms, leases},
    stop::Stop,
    words,
};

/// Name prefix of the replica Leases.
const PREFIX: &str = "pleach-replica-";
/// Annotation of a replica Lease: number of received pushes by repository.
const PUSHED: &str = "pleach.dev/pushed";
/// Timing of the Leases. Others replace a killed replica within eleven seconds: the
/// duration, plus the delay until the next event.
const TERMS: Terms = Terms {
    duration: Duration::from_secs(9),
    renew: Duration::from_secs(2),
    retry: Duration::from_millis(500),
};
/// Time limit for the deletion of a Lease.
const DELETE_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay in which pushes are combined before they are passed on.
const BATCH: Duration = Duration::from_millis(100);

/// Location where replicas find each other.
#[derive(Debug, Clone)]
pub struct ReplicaGroup {
    /// Connection to the cluster with their Leases.
    pub connection: Connection,
    /// Namespace of their Leases.
    pub namespace: String,
    /// Unique id of this replica process.
    pub replica: String,
}

impl ReplicaGroup {
    /// Creates the configuration of a replica with a random id.
    pub fn new(connection: Connection, namespace: String) -> Self {
        // Each hasher of the standard library has random keys.
        let random = RandomState::new().hash_one(0);
        Self {
            connection,
            namespace,
            replica: format!("{random:016x}"),
        }
    }
}

/// Leadership of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Leadership {
    /// Leads everything, because there are no other replicas.
    All,
    /// Leads its share.
    Shared {
        /// Its name.
        own: String,
        /// Names of all live replicas.
        replicas: Vec<String>,
    },
    /// Leads nothing, because other replicas could be the leaders.
    Nothing,
}

impl Leadership {
    /// Returns whether this replica leads an environment: on all of its clusters, so that one
    /// replica knows the status of a commit.
    pub(super) fn leads(&self, key: &EnvironmentKey) -> bool {
        match self {
            Self::All => true,
            Self::Shared { own, replicas } => {
                leader(replicas, &format!("{}\n", key.environment)) == Some(own)
            }
            Self::Nothing => false,
        }
    }

    /// Returns the name of the other replica that leads an environment.
    pub(super) fn other_leader(&self, key: &EnvironmentKey) -> Option<&str> {
        match self {
            Self::All | Self::Nothing => None,
            Self::Shared { own, replicas } => {
                let leader = leader(replicas, &format!("{}\n", key.environment));
                leader.filter(|leader| *leader != own).map(String::as_str)
            }
        }
    }

    /// Returns whether this replica previews the pull requests of a repository.
    pub(super) fn leads_previews(&self, repository: &str) -> bool {
        match self {
            Self::All => true,
            // The line break keeps the key distinct from any environment name.
            Self::Shared { own, replicas } => {
                leader(replicas, &format!("previews of\n{repository}")) == Some(own)
            }
            Self::Nothing => false,
        }
    }
}

/// A replica in a group.
pub(super) struct Replica {
    group: ReplicaGroup,
    shared: Shared,
    /// Receivers of its leadership.
    leadership: watch::Sender<Leadership>,
    /// Received pushes by repository index.
    pushes: watch::Receiver<Vec<u64>>,
    /// Names of the repositories, and their triggers.
    repositories: Vec<(String, RepositoryTriggers)>,
}

impl Replica {
    pub(super) fn new(
        group: ReplicaGroup,
        shared: Shared,
        leadership: watch::Sender<Leadership>,
        (repositories, trigger): (&[Repository], &Trigger),
    ) -> Self {
        let names = repositories.iter().map(|one| one.name.clone());
        Self {
            group,
            shared,
            leadership,
            pushes: trigger.requests.subscribe(),
            repositories: names.zip(trigger.triggers.iter().cloned()).collect(),
        }
    }

    /// Participates until `leave`, which fires after all runs have ended.
    pub(super) async fn run(mut self, leave: CancellationToken) {
        let mut failures = 0;
        let mut attempt = 0_u32;
        while !leave.is_cancelled() {
            let name = format!("{PREFIX}{}-{attempt}", self.group.replica);
            if attempt > 0 {
                // All work under the previous name is dropped by now.
                let lease_identity = &self.shared.lease_identity;
                lease_identity.peers.return_as_another(&lease_identity.who);
            }
            attempt += 1;
            match leave.run_until_cancelled(self.join(&name)).await {
                None => return,
                Some(Ok((cluster, lease))) => {
                    failures = 0;
                    self.participate(&name, &cluster, lease, &leave).await;
                }
                Some(Err(message)) => {
                    failures += 1;
                    tracing::error!(error = %message, "cannot join the replica group");
                }
            }
            self.set_leadership(Leadership::Nothing);
            let delay = backoff::after(failures);
            let _ended = leave.run_until_cancelled(sleep(delay)).await;
        }
    }

    fn set_leadership(&self, leadership: Leadership) {
        self.leadership.send_if_modified(|known| {
            let differs = *known != leadership;
            if differs {
                let count = match &leadership {
                    Leadership::Shared { replicas, .. } => replicas.len(),
                    Leadership::All | Leadership::Nothing => 0,
                };
                self.shared
                    .events
                    .report(ControllerEvent::ReplicasChanged { replicas: count });
                *known = leadership;
            }
            differs
        });
    }

    /// Creates the Lease of this replica.
    async fn join(&self, name: &str) -> Result<(Cluster, Lease), String> {
        let cluster = Cluster::connect(&self.group.connection);
        let cluster = cluster.await.map_err(|error| words(&error))?;
        let stop = Stop::on(Cause::Interrupted, self.shared.stop.clone());
        let patience = Patience {
            limit: Duration::ZERO,
            stop: &stop,
            peers: &Peers::default(),
            nodes: &NodesInChange::default(),
        };
        let id = self.id(name);
        let lease_identity = &self.shared.lease_identity;
        let identity = lease_identity.peers.name(&lease_identity.who);
        let acquiring = Lease::acquire(&cluster, &id, &identity, TERMS, patience, |_| {});
        let lease = acquiring.await.map_err(|error| words(&error))?;
        Ok((cluster, lease))
    }

    fn id(&self, name: &str) -> ObjectId {
        let namespace = Some(self.group.namespace.as_str());
        ObjectId::new("coordination.k8s.io", "Lease", namespace, name)
    }

    /// Watches the other replicas until our Lease is lost or deleted.
    async fn participate(
        &mut self,
        name: &str,
        cluster: &Cluster,
        lease: Lease,
        leave: &CancellationToken,
    ) {
        let selector = Selector::namespace(Some(&self.group.namespace));
        let events = cluster.follow(&leases(), &selector, Depth::Full);
        let mut events = std::pin::pin!(events);
        let mut view = View::new(name, tokio::time::Instant::now());
        loop {
            tokio::select! {
                biased;
                () = lease.lost().cancelled() => {
                    tracing::error!(lease = name, "this replica lost its Lease: it drops its work, and other replicas take over");
                    return self.set_leadership(Leadership::Nothing);
                }
                () = leave.cancelled() => {
                    drop(timeout(DELETE_TIMEOUT, lease.release()).await);
                    return;
                }
                followed = events.next() => match followed {
                    Some(Ok(followed)) => {
                        let changes = view.process(followed, tokio::time::Instant::now());
                        for holder in &changes.departed {
                            tracing::warn!(replica = %holder, "a replica stopped renewing its Lease");
                            self.shared.lease_identity.peers.are_without(holder);
                        }
                        for (name, triggers) in &self.repositories {
                            if changes.pushed.contains(name) {
                                triggers.source.notify_one();
                                triggers.pull_requests.notify_one();
                            }
                        }
                        // Our own Lease arrives through the watch too. Until then, others can lead
                        // environments that look like ours.
                        if let Some(replicas) = view.live() {
                            self.set_leadership(Leadership::Shared { own: name.to_owned(), replicas });
                        }
                        let clearing = clear(cluster, &self.group.namespace, view.stale());
                        // React to the loss of our Lease at once.
                        let _cleared = lease.lost().run_until_cancelled(clearing).await;
                    }
                    Some(Err(error)) => {
                        tracing::warn!(error = %words(&error), "the watch of the other replicas failed");
                    }
                    None => return,
                },
                changed = self.pushes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let passing = self.forward_pushes(&lease);
                    let _passed = lease.lost().run_until_cancelled(passing).await;
                }
            }
        }
    }

    /// Passes a push on to the other replicas. If that fails, they find the change at their next
    /// interval.
    async fn forward_pushes(&mut self, lease: &Lease) {
        let pushed: BTreeMap<&String, u64> = {
            let counts = self.pushes.borrow_and_update();
            let names = self.repositories.iter().map(|(name, _)| name);
            names.zip(counts.iter().copied()).collect()
        };
        let counts = json!(pushed).to_string();
        let annotating = lease.annotate(PUSHED, &counts);
        match timeout(TERMS.renew, annotating).await {
            Ok(Ok(())) => sleep(BATCH).await,
            Ok(Err(error)) => {
                tracing::warn!(error = %words(&error), "failed to pass a push on to the other replicas");
            }
            Err(_) => tracing::warn!("timed out passing a push on to the other replicas"),
        }
    }
}

/// Deletes Leases of replicas that are long gone. A failure is retried at the next event.
async fn clear(cluster: &Cluster, namespace: &str, stale: Vec<String>) {
    let cluster = cluster.clone().with_retry(Retry::never());
    let path: ResourcePath = leases();
    for name in stale {
        let id = ObjectId::new("coordination.k8s.io", "Lease", Some(namespace), &name);
        let clearing = async {
            let Some(live) = cluster.get_id(&path, &id).await? else {
                return Ok(());
            };
            let options = DeleteOptions {
                uid: live["metadata"]["uid"].as_str(),
                resource_version: live["metadata"]["resourceVersion"].as_str(),
                propagation: Propagation::Background,
                dry_run: false,
            };
            cluster.delete(&path, &id, &options).await.map(drop)
        };
        if let Ok(Err(error)) = timeout(TERMS.renew, clearing).await {
            tracing::debug!(lease = %id, error = %words(&error), "failed to delete a stale Lease");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_clusters_of_an_environment_are_led_by_one_replica() {
        let names = ["a", "b", "c"];
        let leadership = |own: &str| Leadership::Shared {
            own: own.to_owned(),
            replicas: names.map(str::to_owned).to_vec(),
        };
        for number in 0..20 {
            let key = |cluster: Option<&str>| EnvironmentKey {
                environment: format!("team-{number}"),
                cluster: cluster.map(str::to_owned),
            };
            let leaders = |key: &EnvironmentKey| names.map(|own| leadership(own).leads(key));
            let led = leaders(&key(None));
            assert_eq!(led.iter().filter(|leads| **leads).count(), 1);
            for cluster in ["east", "west", "north"] {
                assert_eq!(leaders(&key(Some(cluster))), led, "{number} {cluster}");
            }
        }
    }
}
