//! Supervisor of environments: assigns branches to their tasks, while this replica leads them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pleach_reconciler::config::{Claim, ClaimKey, Claimant, Heads, claims, rivals};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use super::assignment::{Assigned, Assignment};
use super::backoff::Paces;
use super::environment::EnvironmentTask;
use super::holders::{Holders, Lookup};
use super::replicas::Standing;
use super::source::SourceState;
use super::{Claimed, ControllerEvent, Repository, Shared};
use pleach_git::mirror::Fetched;

/// Supervisor of the environment tasks.
pub(super) struct Supervisor<'a> {
    repositories: &'a [Repository],
    paces: Vec<Paces>,
    shared: Shared,
    environments: BTreeMap<ClaimKey, Led>,
    /// Environments that other replicas lead now, while their last run ends here.
    leaving: BTreeMap<ClaimKey, AbortHandle>,
    /// Led environments whose branch is gone. Their tasks have reported that and ended.
    over: BTreeSet<ClaimKey>,
    /// Environments that were reported as synced by this replica from one branch.
    claimed: BTreeSet<ClaimKey>,
    /// Recorded source branches of contested environments.
    holders: Holders,
}

/// An environment that this replica leads.
struct Led {
    assigned: watch::Sender<Assigned>,
    /// Index of the repository whose intervals apply.
    repository: usize,
    task: AbortHandle,
}

impl<'a> Supervisor<'a> {
    pub(super) fn new(repositories: &'a [Repository], paces: Vec<Paces>, shared: Shared) -> Self {
        Self {
            repositories,
            paces,
            shared,
            environments: BTreeMap::new(),
            leaving: BTreeMap::new(),
            over: BTreeSet::new(),
            claimed: BTreeSet::new(),
            holders: Holders::default(),
        }
    }

    /// Assigns the present content to each environment, and gives up those that other replicas
    /// lead.
    pub(super) fn assign(
        &mut self,
        states: &[SourceState],
        stand: &Standing,
        tasks: &mut JoinSet<()>,
    ) {
        self.give_up(stand);
        let is_removed = |_: &ClaimKey, led: &mut Led| led.task.is_finished();
        let over = self.environments.extract_if(.., is_removed);
        self.over.extend(over.map(|(key, _)| key));
        let (mut claims, rivals) = self.claims(states);
        let led = |key: &ClaimKey| stand.leads(key);
        let lookup = Lookup {
            repositories: self.repositories,
            rivals: &rivals,
            stop: &self.shared.stop,
        };
        let open = self.holders.settle(&mut claims, &lookup, led, tasks);
        let is_led = |key: &ClaimKey| stand.leads(key) && !open.contains(key);
        for (key, claim) in claims.iter().filter(|(key, _)| is_led(key)) {
            let (claimant, assignment, origin) = match claim {
                Claim::Held(claimant) => {
                    let state = &states[claimant.repository];
                    let distrust = state
                        .fetched
                        .as_ref()
                        .and_then(|fetched| fetched.distrusted.get(&claimant.branch));
                    let assignment = match (&claimant.commit, distrust, &state.fetched) {
                        (Some(commit), Some(message), _) => Assignment::Distrusted {
                            commit: commit.clone(),
                            message: message.clone(),
                        },
                        (Some(commit), None, Some(fetched)) => Assignment::Follow {
                            commit: commit.clone(),
                            reader: fetched.reader.clone(),
                        },
                        // The branch exists, but its first commit is not fetched yet.
                        (None, _, Some(fetched))
                            if fetched.behind.contains_key(&claimant.branch) =>
                        {
                            Assignment::Unknown
                        }
                        (None, _, Some(_)) => missing(&claimant.branch),
                        (_, _, None) => Assignment::Unknown,
                    };
                    (claimant, assignment, self.words(claimant))
                }
                Claim::Contested(claimants) => {
                    let who: Vec<String> = claimants.iter().map(|one| self.words(one)).collect();
                    let who = who.join(", ");
                    let assignment = Assignment::Held {
                        reason: "Contested",
                        message: format!(
                            "several branches contain the environment, so it is synced from none of them: {who}"
                        ),
                    };
                    (&claimants[0], assignment, who)
                }
            };
            let repository = &self.repositories[claimant.repository];
            let state = &states[claimant.repository];
            let fetched = state.fetched.as_ref();
            let behind = fetched.and_then(|fetched| fetched.behind.get(&claimant.branch));
            let assigned = Assigned {
                repository: repository.name.clone(),
                remote: repository.remote.clone(),
                grant: Arc::clone(&repository.grants[claimant.grant]),
                origin,
                what: assignment,
                source: state.trouble.as_ref().or(behind).cloned(),
                answered: state.answered,
                is_removed: false,
            };
            self.give(key, claimant.repository, assigned, tasks);
        }
        // A deleted branch suspends its environment, and nothing is deleted.
        for (
            key,
            Led {
                assigned: sender, ..
            },
        ) in &self.environments
        {
            if !claims.contains_key(key) {
                let mut assigned = sender.borrow().clone();
                assigned.what = missing(&format!("of environment {}", key.environment));
                assigned.is_removed = true;
                sender.send_if_modified(|known| replace(known, assigned));
            }
        }
        self.tell_claims(&claims);
    }

    /// Reports which environments this replica syncs, if that changed.
    fn tell_claims(&mut self, claims: &BTreeMap<ClaimKey, Claim>) {
        let has_branch = |key: &ClaimKey| matches!(claims.get(key), Some(Claim::Held(_)));
        let keys = self.environments.keys();
        let now: BTreeSet<ClaimKey> = keys.filter(|key| has_branch(key)).cloned().collect();
        let report = |key: &ClaimKey, by| {
            self.shared.listener.report(ControllerEvent::Claimed {
                environment: key.environment.clone(),
                cluster: key.cluster.clone(),
                by,
            });
        };
        for key in self.claimed.difference(&now) {
            let by = if has_branch(key) {
                Claimed::Elsewhere
            } else {
                Claimed::Nobody
            };
            report(key, by);
        }
        for key in now.difference(&self.claimed) {
            report(key, Claimed::Ours);
        }
        self.claimed = now;
    }

    /// Returns the claims of branches to environments, and the branches of unreached repositories
    /// that could claim the same ones.
    fn claims(
        &self,
        states: &[SourceState],
    ) -> (BTreeMap<ClaimKey, Claim>, BTreeMap<ClaimKey, Vec<Claimant>>) {
        let grants: Vec<Vec<_>> = self
            .repositories
            .iter()
            .map(|repository| {
                let grants = repository.grants.iter();
                grants
                    .map(|grant| {
                        let cluster = grant.cluster.as_ref().map(|id| id.0.clone());
                        (grant.branches.clone(), cluster)
                    })
                    .collect()
            })
            .collect();
        let heads: Vec<Heads> = states
            .iter()
            .map(|state| {
                let fetched = state.fetched.iter();
                fetched.flat_map(|fetched| heads(fetched)).collect()
            })
            .collect();
        let mut claims = claims(&grants, &heads);
        let is_absent = |repository: usize| states[repository].fetched.is_none();
        let rivals = rivals(&grants, &claims, is_absent);
        // Recorded environments of branch patterns whose repository is still unreachable.
        for (repository, state) in states.iter().enumerate() {
            for recalled in &state.recalled {
                let (_, cluster) = &grants[repository][recalled.grant];
                let key = ClaimKey {
                    environment: recalled.environment.clone(),
                    cluster: cluster.clone(),
                };
                let claimant = Claimant {
                    repository,
                    grant: recalled.grant,
                    branch: recalled.branch.clone(),
                    commit: None,
                };
                claims.entry(key).or_insert(Claim::Held(claimant));
            }
        }
        (claims, rivals)
    }

    /// Gives up environments that other replicas lead. Work in progress continues to its next safe
    /// point, unless another replica could have taken over already.
    fn give_up(&mut self, stand: &Standing) {
        let lost: Vec<ClaimKey> = self
            .environments
            .keys()
            .filter(|key| !stand.leads(key))
            .cloned()
            .collect();
        for key in lost {
            if let Some(Led { task, .. }) = self.environments.remove(&key) {
                self.report(&key, false);
                self.leaving.insert(key, task);
            }
        }
        let over = self.over.extract_if(.., |key| !stand.leads(key));
        for key in over.collect::<Vec<_>>() {
            self.report(&key, false);
        }
        self.leaving.retain(|_, task| !task.is_finished());
        if *stand == Standing::Out {
            self.leaving.values().for_each(AbortHandle::abort);
        }
    }

    fn report(&self, key: &ClaimKey, leads: bool) {
        self.shared
            .listener
            .report(ControllerEvent::LeadershipChanged {
                environment: key.environment.clone(),
                leads,
            });
    }

    /// Describes a branch with its repository.
    fn words(&self, claimant: &Claimant) -> String {
        let repository = &self.repositories[claimant.repository].name;
        format!("{} of {repository}", claimant.branch)
    }

    fn give(
        &mut self,
        key: &ClaimKey,
        repository: usize,
        assigned: Assigned,
        tasks: &mut JoinSet<()>,
    ) {
        match self.environments.remove(key) {
            Some(led) if led.repository == repository => {
                led.assigned
                    .send_if_modified(|known| replace(known, assigned));
                self.environments.insert(key.clone(), led);
                return;
            }
            // The environment moved to another repository, with other intervals.
            Some(led) => {
                self.report(key, false);
                self.leaving.insert(key.clone(), led.task);
            }
            None => {}
        }
        if self.leaving.contains_key(key) {
            // Leadership returned quickly. The previous task must end first, and its end triggers
            // another assignment.
            return;
        }
        let (sender, receiver) = watch::channel(assigned);
        let environment = EnvironmentTask::new(
            key.clone(),
            receiver,
            self.paces[repository].clone(),
            self.shared.clone(),
        );
        let task = tasks.spawn_local(environment.run());
        if !self.over.remove(key) {
            self.report(key, true);
        }
        let led = Led {
            assigned: sender,
            repository,
            task,
        };
        self.environments.insert(key.clone(), led);
    }
}

/// Returns the commits of the followed branches; `None` if not fetched yet.
fn heads(fetched: &Fetched) -> Heads {
    let behind = fetched.behind.keys().map(|branch| (branch.clone(), None));
    let here = fetched.heads.iter();
    let here = here.map(|(branch, commit)| (branch.clone(), Some(commit.clone())));
    behind.chain(here).collect()
}

fn replace(known: &mut Assigned, assigned: Assigned) -> bool {
    let differs = !known.is_same(&assigned);
    *known = assigned;
    differs
}

fn missing(branch: &str) -> Assignment {
    Assignment::Held {
        reason: "BranchMissing",
        message: format!(
            "branch {branch} is gone: the environment is stalled, and nothing is applied or deleted"
        ),
    }
}

#[cfg(test)]
mod tests;
