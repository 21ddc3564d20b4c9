//! Resolution of contested environments: an environment stays on its recorded branch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pleach_reconciler::config::{BranchAssignment, BranchCandidate, EnvironmentKey};
use pleach_state::inventory::Source;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::known_environments::sources;
use super::{Repository, SourcePolicy};

/// Backoff after a cluster did not answer.
const RETRY_DELAY: Duration = Duration::from_secs(30);

/// Recorded source branches of contested environments. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct RecordedSources(Arc<Mutex<BTreeMap<EnvironmentKey, SourceLookup>>>);

/// State of a lookup.
#[derive(Debug)]
enum SourceLookup {
    /// The first query is in progress.
    InProgress,
    /// The cluster did not answer.
    Failed,
    /// A repeated query is in progress or waits for its backoff.
    Retrying,
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
    /// Branches of repositories that were not fetched yet.
    pub(super) contenders: &'a BTreeMap<EnvironmentKey, Vec<BranchCandidate>>,
    pub(super) stop: &'a CancellationToken,
}

impl Lookup<'_> {
    fn source_policy(&self, candidate: &BranchCandidate) -> &Arc<SourcePolicy> {
        &self.repositories[candidate.repository].source_policies[candidate.source_policy]
    }

    /// Returns whether records name the branch of a candidate.
    fn is_named(&self, candidate: &BranchCandidate, sources: &BTreeSet<Source>) -> bool {
        sources.contains(&Source {
            url: self.source_policy(candidate).url.clone(),
            branch: candidate.branch.clone(),
        })
    }

    /// Assigns an environment to the branch that records name.
    fn assign_recorded(
        &self,
        key: &EnvironmentKey,
        assignment: &BranchAssignment,
        sources: &BTreeSet<Source>,
    ) -> BranchAssignment {
        let BranchAssignment::One(assigned) = assignment else {
            let assignment = assignment.clone();
            return assignment.resolve_contest(|one| self.is_named(one, sources));
        };
        let contenders = self.contenders.get(key).into_iter().flatten();
        let mut named = contenders.filter(|one| self.is_named(one, sources));
        match named.next() {
            Some(contender) if !self.is_named(assigned, sources) => {
                BranchAssignment::One(contender.clone())
            }
            _ => assignment.clone(),
        }
    }
}

impl RecordedSources {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<EnvironmentKey, SourceLookup>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns contested environments to their recorded branches. Starts tasks that look up unknown
    /// records, and which end with the answer. Returns the environments that must stay unchanged
    /// until then.
    pub(super) fn resolve(
        &self,
        assignments: &mut BTreeMap<EnvironmentKey, BranchAssignment>,
        lookup: &Lookup<'_>,
        is_led: impl Fn(&EnvironmentKey) -> bool,
        tasks: &mut JoinSet<()>,
    ) -> BTreeSet<EnvironmentKey> {
        let mut undecided = BTreeSet::new();
        let mut lookups = self.lock();
        let is_unclear = |key: &EnvironmentKey, assignment: &BranchAssignment| {
            matches!(assignment, BranchAssignment::Contested(_))
                || lookup.contenders.contains_key(key)
        };
        lookups.retain(|key, _| {
            assignments
                .get(key)
                .is_some_and(|assignment| is_unclear(key, assignment))
        });
        for (key, assignment) in assignments.iter_mut().filter(|(key, _)| is_led(key)) {
            let (queried, is_contested) = match &*assignment {
                BranchAssignment::Contested(candidates) => (candidates[0].clone(), true),
                BranchAssignment::One(assigned) if lookup.contenders.contains_key(key) => {
                    (assigned.clone(), false)
                }
                BranchAssignment::One(_) => continue,
            };
            let delay = match lookups.get(key) {
                Some(SourceLookup::Known {
                    sources,
                    was_contested,
                }) if *was_contested || !is_contested => {
                    *assignment = lookup.assign_recorded(key, assignment, sources);
                    continue;
                }
                Some(SourceLookup::Retrying) if is_contested => continue,
                Some(SourceLookup::InProgress | SourceLookup::Retrying) => {
                    undecided.insert(key.clone());
                    continue;
                }
                Some(SourceLookup::Failed) => {
                    lookups.insert(key.clone(), SourceLookup::Retrying);
                    if !is_contested {
                        undecided.insert(key.clone());
                    }
                    RETRY_DELAY
                }
                // The first branch can have synced since.
                Some(SourceLookup::Known { .. }) | None => {
                    lookups.insert(key.clone(), SourceLookup::InProgress);
                    undecided.insert(key.clone());
                    Duration::ZERO
                }
            };
            let source_policy = Arc::clone(lookup.source_policy(&queried));
            let querying = self
                .clone()
                .query(key.clone(), source_policy, is_contested, delay);
            let stop = lookup.stop.clone();
            tasks.spawn_local(async move {
                stop.run_until_cancelled(querying).await;
            });
        }
        undecided
    }

    /// Records the source branches of a contested environment.
    #[cfg(test)]
    pub(super) fn set_known(&self, key: &EnvironmentKey, sources: BTreeSet<Source>) {
        let known = SourceLookup::Known {
            sources,
            was_contested: true,
        };
        self.lock().insert(key.clone(), known);
    }

    async fn query(
        self,
        key: EnvironmentKey,
        source_policy: Arc<SourcePolicy>,
        was_contested: bool,
        delay: Duration,
    ) {
        tokio::time::sleep(delay).await;
        let lookup = match Box::pin(sources(&source_policy, &key.environment)).await {
            Ok(sources) => SourceLookup::Known {
                sources,
                was_contested,
            },
            Err(error) => {
                let environment = &key.environment;
                tracing::debug!(environment, %error, "failed to look up the source branch of an environment");
                SourceLookup::Failed
            }
        };
        self.lock().insert(key, lookup);
    }
}
