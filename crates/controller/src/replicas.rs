//! Replicas of the controller, which share its environments.
//!
//! Each replica has a Lease in a common namespace and watches the Leases of the others. From the
//! names of the live replicas, each one computes the leader of each environment. So nothing is
//! negotiated or handed over. Views can differ for a moment. Then two replicas reconcile the same
//! release, and the Lease of the release lets only one of them write.
//!
//! A replica that could not renew its Lease drops all work before the others take over. A replica
//! that shuts down deletes its Lease after its last run has finished, and others take over at once.
//! Webhook pushes are counted in an annotation of the Lease, which the other replicas watch.

mod view;

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use futures::StreamExt as _;
use pleach_model::object::ObjectId;
use pleach_reconciler::config::ClaimKey;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use self::view::{View, leader};
use super::{ControllerEvent, Repository, Shared, Trigger, Wakes, backoff};
use pleach_cluster::{
    Cluster, Connection, DeleteOptions, Depth, Propagation, ResourcePath, Retry, Selector,
};
use pleach_engine::stop::Cause;
use pleach_engine::{
    lease::{Lease, Patience, Peers, Terms, leases},
    stop::Stop,
    words,
};

/// Name prefix of the replica Leases.
const PREFIX: &str = "pleach-replica-";
/// Annotation of a replica Lease: number of received pushes by repository.
const PUSHED: &str = "pleach.dev/pushed";
/// Timing of the Leases. Others take over from a killed replica within eleven seconds: the
/// duration, plus the delay until the next event.
const TERMS: Terms = Terms {
    duration: Duration::from_secs(9),
    renew: Duration::from_secs(2),
    retry: Duration::from_millis(500),
};
/// Time limit for the deletion of a Lease.
const FAREWELL: Duration = Duration::from_secs(5);
/// Delay in which pushes are combined before they are passed on.
const GATHER: Duration = Duration::from_millis(100);

/// Location where replicas find each other.
#[derive(Debug, Clone)]
pub struct Sharing {
    /// Connection to the cluster with their Leases.
    pub connection: Connection,
    /// Namespace of their Leases.
    pub namespace: String,
    /// Unique id of this replica process.
    pub replica: String,
}

impl Sharing {
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
pub(super) enum Standing {
    /// Leads everything, because there are no other replicas.
    Alone,
    /// Leads its share.
    Among {
        /// Its name.
        own: String,
        /// Names of all live replicas.
        replicas: Vec<String>,
    },
    /// Leads nothing, because other replicas could have taken over.
    Out,
}

impl Standing {
    /// Returns whether this replica leads an environment: on all of its clusters, so that one
    /// replica knows the status of a commit.
    pub(super) fn leads(&self, key: &ClaimKey) -> bool {
        match self {
            Self::Alone => true,
            Self::Among { own, replicas } => {
                leader(replicas, &format!("{}\n", key.environment)) == Some(own)
            }
            Self::Out => false,
        }
    }

    /// Returns whether this replica previews the pull requests of a repository.
    pub(super) fn leads_previews(&self, repository: &str) -> bool {
        match self {
            Self::Alone => true,
            // The line break keeps the key distinct from any environment name.
            Self::Among { own, replicas } => {
                leader(replicas, &format!("previews of\n{repository}")) == Some(own)
            }
            Self::Out => false,
        }
    }
}

/// A replica in a group.
pub(super) struct Replica {
    sharing: Sharing,
    shared: Shared,
    /// Receivers of its leadership.
    standing: watch::Sender<Standing>,
    /// Received pushes by repository index.
    pushes: watch::Receiver<Vec<u64>>,
    /// Names of the repositories, and their triggers.
    repositories: Vec<(String, Wakes)>,
}

impl Replica {
    pub(super) fn new(
        sharing: Sharing,
        shared: Shared,
        standing: watch::Sender<Standing>,
        (repositories, trigger): (&[Repository], &Trigger),
    ) -> Self {
        let names = repositories.iter().map(|one| one.name.clone());
        Self {
            sharing,
            shared,
            standing,
            pushes: trigger.asked.subscribe(),
            repositories: names.zip(trigger.wakes.iter().cloned()).collect(),
        }
    }

    /// Participates until `leave`, which fires after all runs have ended.
    pub(super) async fn run(mut self, leave: CancellationToken) {
        let mut failures = 0;
        let mut attempt = 0_u32;
        while !leave.is_cancelled() {
            let name = format!("{PREFIX}{}-{attempt}", self.sharing.replica);
            if attempt > 0 {
                // All work under the previous name is dropped by now.
                let claim = &self.shared.claim;
                claim.peers.return_as_another(&claim.who);
            }
            attempt += 1;
            match leave.run_until_cancelled(self.join(&name)).await {
                None => return,
                Some(Ok((cluster, lease))) => {
                    failures = 0;
                    self.take_part(&name, &cluster, lease, &leave).await;
                }
                Some(Err(message)) => {
                    failures += 1;
                    tracing::error!(error = %message, "cannot join the replica group");
                }
            }
            self.stand(Standing::Out);
            let pause = backoff::after(failures);
            let _ended = leave.run_until_cancelled(sleep(pause)).await;
        }
    }

    fn stand(&self, standing: Standing) {
        self.standing.send_if_modified(|known| {
            let differs = *known != standing;
            if differs {
                let there = match &standing {
                    Standing::Among { replicas, .. } => replicas.len(),
                    Standing::Alone | Standing::Out => 0,
                };
                self.shared
                    .listener
                    .report(ControllerEvent::ReplicasChanged { there });
                *known = standing;
            }
            differs
        });
    }

    /// Creates the Lease of this replica.
    async fn join(&self, name: &str) -> Result<(Cluster, Lease), String> {
        let cluster = Cluster::connect(&self.sharing.connection);
        let cluster = cluster.await.map_err(|error| words(&error))?;
        let stop = Stop::on(Cause::Interrupted, self.shared.stop.clone());
        let patience = Patience {
            limit: Duration::ZERO,
            stop: &stop,
            peers: &Peers::default(),
        };
        let id = self.id(name);
        let claim = &self.shared.claim;
        let who = claim.peers.name(&claim.who);
        let acquiring = Lease::acquire(&cluster, &id, &who, TERMS, patience, |_| {});
        let lease = acquiring.await.map_err(|error| words(&error))?;
        Ok((cluster, lease))
    }

    fn id(&self, name: &str) -> ObjectId {
        let namespace = Some(self.sharing.namespace.as_str());
        ObjectId::new("coordination.k8s.io", "Lease", namespace, name)
    }

    /// Watches the other replicas until our Lease is lost or deleted.
    async fn take_part(
        &mut self,
        name: &str,
        cluster: &Cluster,
        lease: Lease,
        leave: &CancellationToken,
    ) {
        let selector = Selector::namespace(Some(&self.sharing.namespace));
        let events = cluster.follow(&leases(), &selector, Depth::Full);
        let mut events = std::pin::pin!(events);
        let mut view = View::new(name, tokio::time::Instant::now());
        loop {
            tokio::select! {
                biased;
                () = lease.lost().cancelled() => {
                    tracing::error!(lease = name, "this replica lost its Lease: it drops its work, and other replicas take over");
                    return self.stand(Standing::Out);
                }
                () = leave.cancelled() => {
                    drop(timeout(FAREWELL, lease.release()).await);
                    return;
                }
                followed = events.next() => match followed {
                    Some(Ok(followed)) => {
                        let news = view.take(followed, tokio::time::Instant::now());
                        for holder in &news.departed {
                            tracing::warn!(replica = %holder, "a replica stopped renewing its Lease");
                            self.shared.claim.peers.are_without(holder);
                        }
                        for (name, wakes) in &self.repositories {
                            if news.pushed.contains(name) {
                                wakes.source.notify_one();
                                wakes.pull_requests.notify_one();
                            }
                        }
                        // Our own Lease arrives through the watch too. Until then, others can lead
                        // environments that look like ours.
                        if let Some(replicas) = view.there() {
                            self.stand(Standing::Among { own: name.to_owned(), replicas });
                        }
                        let clearing = clear(cluster, &self.sharing.namespace, view.stale());
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
                    let passing = self.pass_on(&lease);
                    let _passed = lease.lost().run_until_cancelled(passing).await;
                }
            }
        }
    }

    /// Passes a push on to the other replicas. If that fails, they find the change at their next
    /// interval.
    async fn pass_on(&mut self, lease: &Lease) {
        let pushed: BTreeMap<&String, u64> = {
            let counts = self.pushes.borrow_and_update();
            let names = self.repositories.iter().map(|(name, _)| name);
            names.zip(counts.iter().copied()).collect()
        };
        let counts = json!(pushed).to_string();
        let telling = lease.annotate(PUSHED, &counts);
        match timeout(TERMS.renew, telling).await {
            Ok(Ok(())) => sleep(GATHER).await,
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
        let standing = |own: &str| Standing::Among {
            own: own.to_owned(),
            replicas: names.map(str::to_owned).to_vec(),
        };
        for number in 0..20 {
            let key = |cluster: Option<&str>| ClaimKey {
                environment: format!("team-{number}"),
                cluster: cluster.map(str::to_owned),
            };
            let leaders = |key: &ClaimKey| names.map(|own| standing(own).leads(key));
            let led = leaders(&key(None));
            assert_eq!(led.iter().filter(|leads| **leads).count(), 1);
            for cluster in ["east", "west", "north"] {
                assert_eq!(leaders(&key(Some(cluster))), led, "{number} {cluster}");
            }
        }
    }
}
