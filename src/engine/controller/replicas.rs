//! Several replicas of the loop share its environments.
//!
//! Each replica has a Lease of its own in a namespace that they have in common,
//! and sees those of the others. From the names of those that are there every
//! replica works out by itself who leads which environment, so nothing is agreed
//! on and nothing has to be given back. Views may differ for a moment; then two
//! look at the same release, and the Lease of the release still lets only one of
//! them write.
//!
//! A replica that could not renew its Lease drops all its work before others
//! take it over. One that ends gives its Lease back when its last run has come
//! to its end, and is followed at once. A push that one is told of is written
//! on its Lease, where all others see it.

mod view;

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use futures::StreamExt as _;
use pleach_domain::object::ObjectId;
use pleach_domain::repo::controller::ClaimKey;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use self::view::{View, leader};
use super::{LoopEvent, Repository, Shared, Trigger, Wakes, pace};
use crate::engine::lease::{Lease, Patience, Peers, Terms, leases};
use crate::engine::stop::{Cause, Stop};
use crate::engine::words;
use crate::io::cluster::{
    Cluster, Connection, DeleteOptions, Depth, Propagation, ResourcePath, Retry, Selector,
};

/// What the names of their Leases start with.
const PREFIX: &str = "pleach-replica-";
/// On the Lease of a replica: how many pushes it was told of, by repository.
const PUSHED: &str = "pleach.dev/pushed";
/// A replica that was killed is followed within eleven seconds: the duration, and
/// the pause until something is heard again.
const TERMS: Terms = Terms {
    duration: Duration::from_secs(9),
    renew: Duration::from_secs(2),
    retry: Duration::from_millis(500),
};
/// How long it may take to give a Lease back.
const FAREWELL: Duration = Duration::from_secs(5);
/// Pause between two pushes that are passed on.
const GATHER: Duration = Duration::from_millis(100);

/// Where replicas find each other.
#[derive(Debug, Clone)]
pub struct Sharing {
    /// The way to the cluster with their Leases.
    pub connection: Connection,
    /// The namespace of their Leases.
    pub namespace: String,
    /// What tells this replica from all others, also from those before it.
    pub replica: String,
}

impl Sharing {
    /// A replica that finds the others there.
    pub fn new(connection: Connection, namespace: String) -> Self {
        // Every hasher of the standard library has random keys.
        let random = RandomState::new().hash_one(0);
        Self {
            connection,
            namespace,
            replica: format!("{random:016x}"),
        }
    }
}

/// What a replica leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    /// Everything: there are no others.
    Alone,
    /// Its part.
    Among {
        /// Its name.
        own: String,
        /// The names of all that are there.
        replicas: Vec<String>,
    },
    /// Nothing: others may have taken over.
    Out,
}

impl Standing {
    /// Whether an environment is ours to sync: on all of its clusters, so that one
    /// replica knows the state of a commit.
    pub(super) fn leads(&self, key: &ClaimKey) -> bool {
        match self {
            Self::Alone => true,
            Self::Among { own, replicas } => {
                leader(replicas, &format!("{}\n", key.environment)) == Some(own)
            }
            Self::Out => false,
        }
    }

    /// Whether the pull requests of a repository are ours to preview.
    pub(super) fn leads_previews(&self, repository: &str) -> bool {
        match self {
            Self::Alone => true,
            // No environment is called so.
            Self::Among { own, replicas } => {
                leader(replicas, &format!("previews of\n{repository}")) == Some(own)
            }
            Self::Out => false,
        }
    }
}

/// A replica among others.
pub(super) struct Replica {
    sharing: Sharing,
    shared: Shared,
    /// Who hears what it leads.
    standing: watch::Sender<Standing>,
    /// Pushes that it was told of, by the position of their repository.
    pushes: watch::Receiver<Vec<u64>>,
    /// What the repositories are called, and what makes the loop look at them.
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

    /// Takes part until `leave`, which comes when all runs have ended.
    pub(super) async fn run(mut self, leave: CancellationToken) {
        let mut failures = 0;
        let mut attempt = 0_u32;
        while !leave.is_cancelled() {
            let name = format!("{PREFIX}{}-{attempt}", self.sharing.replica);
            if attempt > 0 {
                // All that it did under its former name was dropped by now.
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
                    tracing::error!(error = %message, "no part can be taken among the replicas");
                }
            }
            self.stand(Standing::Out);
            let pause = pace::after(failures);
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
                self.shared.listener.tell(LoopEvent::Sharing { there });
                *known = standing;
            }
            differs
        });
    }

    /// Makes a Lease of our own.
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

    /// Sees who is there, until our own Lease is lost or given back.
    async fn take_part(
        &mut self,
        name: &str,
        cluster: &Cluster,
        lease: Lease,
        leave: &CancellationToken,
    ) {
        let selector = Selector::namespace(Some(&self.sharing.namespace));
        let heard = cluster.follow(&leases(), &selector, Depth::Full);
        let mut heard = std::pin::pin!(heard);
        let mut view = View::new(name, tokio::time::Instant::now());
        loop {
            tokio::select! {
                biased;
                () = lease.lost().cancelled() => {
                    tracing::error!(lease = name, "the lease of this replica is lost: its work is dropped, and others take it over");
                    return self.stand(Standing::Out);
                }
                () = leave.cancelled() => {
                    drop(timeout(FAREWELL, lease.release()).await);
                    return;
                }
                followed = heard.next() => match followed {
                    Some(Ok(followed)) => {
                        let news = view.take(followed, tokio::time::Instant::now());
                        for holder in &news.departed {
                            tracing::warn!(replica = %holder, "a replica is gone");
                            self.shared.claim.peers.are_without(holder);
                        }
                        for (name, wakes) in &self.repositories {
                            if news.pushed.contains(name) {
                                wakes.source.notify_one();
                                wakes.pull_requests.notify_one();
                            }
                        }
                        // What we know of ourselves comes the same way: before
                        // that, others may lead what looks like ours.
                        if let Some(replicas) = view.there() {
                            self.stand(Standing::Among { own: name.to_owned(), replicas });
                        }
                        let clearing = clear(cluster, &self.sharing.namespace, view.stale());
                        // The loss of our own Lease is heard at once, whatever is under way.
                        let _cleared = lease.lost().run_until_cancelled(clearing).await;
                    }
                    Some(Err(error)) => {
                        tracing::warn!(error = %words(&error), "the other replicas are not seen");
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

    /// Tells the others of a push. What gets lost on the way is found out at the
    /// next interval.
    async fn pass_on(&mut self, lease: &Lease) {
        let pushed: BTreeMap<&String, u64> = {
            let counts = self.pushes.borrow_and_update();
            let names = self.repositories.iter().map(|(name, _)| name);
            names.zip(counts.iter().copied()).collect()
        };
        let said = json!(pushed).to_string();
        let telling = lease.annotate(PUSHED, &said);
        match timeout(TERMS.renew, telling).await {
            Ok(Ok(())) => sleep(GATHER).await,
            Ok(Err(error)) => {
                tracing::warn!(error = %words(&error), "a push could not be passed on");
            }
            Err(_) => tracing::warn!("a push could not be passed on in time"),
        }
    }
}

/// Takes away what replicas left behind that are long gone. What fails is tried
/// again when something is heard.
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
            tracing::debug!(lease = %id, error = %words(&error), "a lease stays");
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
