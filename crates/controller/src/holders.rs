//! Resolution of contested environments: the branch that synced an environment before keeps it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pleach_reconciler::config::{Claim, ClaimKey, Claimant};
use pleach_state::inventory::Source;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::known_environments::sources;
use super::{Repository, SourcePolicy};

/// Backoff after a cluster did not answer.
const PAUSE: Duration = Duration::from_secs(30);

/// Recorded source branches of contested environments. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Holders(Arc<Mutex<BTreeMap<ClaimKey, Holder>>>);

/// State of a lookup.
#[derive(Debug)]
enum Holder {
    /// The first query is in progress.
    Asked,
    /// The cluster did not answer.
    Failed,
    /// A repeated query is in progress or waits for its backoff.
    Retried,
    /// Records name these branches.
    Known {
        sources: BTreeSet<Source>,
        /// Whether the environment was contested at the time of the query.
        was_contested: bool,
    },
}

/// Input of a lookup.
pub(super) struct Lookup<'a> {
    pub(super) repositories: &'a [Repository],
    /// Branches of repositories that were not reached yet.
    pub(super) rivals: &'a BTreeMap<ClaimKey, Vec<Claimant>>,
    pub(super) stop: &'a CancellationToken,
}

impl Lookup<'_> {
    fn grant(&self, claimant: &Claimant) -> &Arc<SourcePolicy> {
        &self.repositories[claimant.repository].grants[claimant.grant]
    }

    /// Returns whether records name the branch of a claimant.
    fn is_named(&self, claimant: &Claimant, sources: &BTreeSet<Source>) -> bool {
        sources.contains(&Source {
            url: self.grant(claimant).url.clone(),
            branch: claimant.branch.clone(),
        })
    }

    /// Assigns an environment to the branch that records name.
    fn keep(&self, key: &ClaimKey, claim: &Claim, sources: &BTreeSet<Source>) -> Claim {
        let Claim::Held(holder) = claim else {
            let claim = claim.clone();
            return claim.kept_by(|one| self.is_named(one, sources));
        };
        let rivals = self.rivals.get(key).into_iter().flatten();
        let mut named = rivals.filter(|one| self.is_named(one, sources));
        match named.next() {
            Some(rival) if !self.is_named(holder, sources) => Claim::Held(rival.clone()),
            _ => claim.clone(),
        }
    }
}

impl Holders {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ClaimKey, Holder>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns contested environments to their recorded branches. Starts tasks that look up unknown
    /// records, and which end with the answer. Returns the environments that must stay unchanged
    /// until then.
    pub(super) fn settle(
        &self,
        claims: &mut BTreeMap<ClaimKey, Claim>,
        lookup: &Lookup<'_>,
        is_led: impl Fn(&ClaimKey) -> bool,
        tasks: &mut JoinSet<()>,
    ) -> BTreeSet<ClaimKey> {
        let mut open = BTreeSet::new();
        let mut holders = self.lock();
        let is_unclear = |key: &ClaimKey, claim: &Claim| {
            matches!(claim, Claim::Contested(_)) || lookup.rivals.contains_key(key)
        };
        holders.retain(|key, _| claims.get(key).is_some_and(|claim| is_unclear(key, claim)));
        for (key, claim) in claims.iter_mut().filter(|(key, _)| is_led(key)) {
            let (asked, is_contested) = match &*claim {
                Claim::Contested(claimants) => (claimants[0].clone(), true),
                Claim::Held(holder) if lookup.rivals.contains_key(key) => (holder.clone(), false),
                Claim::Held(_) => continue,
            };
            let pause = match holders.get(key) {
                Some(Holder::Known {
                    sources,
                    was_contested,
                }) if *was_contested || !is_contested => {
                    *claim = lookup.keep(key, claim, sources);
                    continue;
                }
                Some(Holder::Retried) if is_contested => continue,
                Some(Holder::Asked | Holder::Retried) => {
                    open.insert(key.clone());
                    continue;
                }
                Some(Holder::Failed) => {
                    holders.insert(key.clone(), Holder::Retried);
                    if !is_contested {
                        open.insert(key.clone());
                    }
                    PAUSE
                }
                // The first branch can have synced since.
                Some(Holder::Known { .. }) | None => {
                    holders.insert(key.clone(), Holder::Asked);
                    open.insert(key.clone());
                    Duration::ZERO
                }
            };
            let grant = Arc::clone(lookup.grant(&asked));
            let asking = self.clone().ask(key.clone(), grant, is_contested, pause);
            let stop = lookup.stop.clone();
            tasks.spawn_local(async move {
                stop.run_until_cancelled(asking).await;
            });
        }
        open
    }

    /// Records the source branches of a contested environment.
    #[cfg(test)]
    pub(super) fn know(&self, key: &ClaimKey, sources: BTreeSet<Source>) {
        let known = Holder::Known {
            sources,
            was_contested: true,
        };
        self.lock().insert(key.clone(), known);
    }

    async fn ask(
        self,
        key: ClaimKey,
        grant: Arc<SourcePolicy>,
        was_contested: bool,
        pause: Duration,
    ) {
        tokio::time::sleep(pause).await;
        let holder = match Box::pin(sources(&grant, &key.environment)).await {
            Ok(sources) => Holder::Known {
                sources,
                was_contested,
            },
            Err(error) => {
                let environment = &key.environment;
                tracing::debug!(environment, %error, "failed to look up the source branch of an environment");
                Holder::Failed
            }
        };
        self.lock().insert(key, holder);
    }
}
