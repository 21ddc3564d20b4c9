//! Supervisor of environments: assigns branches to their tasks, while this replica is the leader.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pleach_reconciler::config::{
    BranchAssignment, BranchCandidate, EnvironmentKey, Heads, assign_branches, contenders,
};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use super::assignment::{Assigned, AssignedCommit};
use super::backoff::FetchSchedule;
use super::environment::EnvironmentTask;
use super::observed::{Leaders, Observers};
use super::recorded_sources::{Lookup, RecordedSources};
use super::replicas::Leadership;
use super::source::SourceState;
use super::{ControllerEvent, EnvironmentOwner, Repository, Shared};
use pleach_git::mirror::Fetched;

/// Supervisor of the environment tasks.
pub(super) struct Supervisor<'a> {
    repositories: &'a [Repository],
    fetch_schedules: Vec<FetchSchedule>,
    shared: Shared,
    environments: BTreeMap<EnvironmentKey, LedEnvironment>,
    /// Environments that other replicas lead now, while their last run ends here.
    draining: BTreeMap<EnvironmentKey, AbortHandle>,
    /// Led environments whose branch is gone. Their tasks have reported that and ended.
    ended: BTreeSet<EnvironmentKey>,
    /// Environments that were reported as synced by this replica from one branch.
    owned: BTreeSet<EnvironmentKey>,
    /// Recorded source branches of contested environments.
    recorded_sources: RecordedSources,
    /// Releases of other replicas. `None` without a web page.
    observers: Option<Observers>,
}

/// An environment whose leader is this replica.
struct LedEnvironment {
    assigned: watch::Sender<Assigned>,
    /// Index of the repository whose intervals apply.
    repository: usize,
    task: AbortHandle,
}

impl<'a> Supervisor<'a> {
    pub(super) fn new(
        repositories: &'a [Repository],
        fetch_schedules: Vec<FetchSchedule>,
        shared: Shared,
    ) -> Self {
        let has_page = shared.events.has_facts;
        Self {
            observers: has_page.then(|| Observers::new(shared.events.clone(), shared.stop.clone())),
            repositories,
            fetch_schedules,
            shared,
            environments: BTreeMap::new(),
            draining: BTreeMap::new(),
            ended: BTreeSet::new(),
            owned: BTreeSet::new(),
            recorded_sources: RecordedSources::default(),
        }
    }

    /// Assigns the present content to each environment, and gives up those that other replicas
    /// lead.
    pub(super) fn assign(
        &mut self,
        states: &[SourceState],
        leadership: &Leadership,
        tasks: &mut JoinSet<()>,
    ) {
        self.release_lost(leadership);
        let is_removed = |_: &EnvironmentKey, led: &mut LedEnvironment| led.task.is_finished();
        let ended = self.environments.extract_if(.., is_removed);
        self.ended.extend(ended.map(|(key, _)| key));
        let (mut assignments, contenders) = self.assignments(states);
        let names = assignments.keys().map(|key| key.environment.clone());
        let names: BTreeSet<String> = names.collect();
        for fetch_schedule in &self.fetch_schedules {
            fetch_schedule.set_followed(names.clone());
        }
        let led = |key: &EnvironmentKey| leadership.leads(key);
        let lookup = Lookup {
            repositories: self.repositories,
            contenders: &contenders,
            stop: &self.shared.stop,
        };
        let undecided = self
            .recorded_sources
            .resolve(&mut assignments, &lookup, led, tasks);
        let is_led = |key: &EnvironmentKey| leadership.leads(key) && !undecided.contains(key);
        for (key, assignment) in assignments.iter().filter(|(key, _)| is_led(key)) {
            let (candidate, assignment, origin) = match assignment {
                BranchAssignment::One(candidate) => {
                    let state = &states[candidate.repository];
                    let distrusted = state
                        .fetched
                        .as_ref()
                        .and_then(|fetched| fetched.distrusted.get(&candidate.branch));
                    let assignment = match (&candidate.commit, distrusted, &state.fetched) {
                        (Some(commit), Some(message), _) => AssignedCommit::Untrusted {
                            reason: self.repositories[candidate.repository].untrusted(),
                            commit: commit.clone(),
                            message: message.clone(),
                        },
                        (Some(commit), None, Some(fetched)) => AssignedCommit::Followed {
                            commit: commit.clone(),
                            reader: fetched.reader.clone(),
                        },
                        // The branch exists, but its first commit is not fetched yet.
                        (None, _, Some(fetched))
                            if fetched.behind.contains_key(&candidate.branch) =>
                        {
                            AssignedCommit::Unknown
                        }
                        (None, _, Some(_)) => missing(&candidate.branch),
                        (_, _, None) => AssignedCommit::Unknown,
                    };
                    (candidate, assignment, self.describe(candidate))
                }
                BranchAssignment::Contested(candidates) => {
                    let who: Vec<String> =
                        candidates.iter().map(|one| self.describe(one)).collect();
                    let who = who.join(", ");
                    let assignment = AssignedCommit::Stalled {
                        reason: "Contested",
                        message: format!(
                            "several branches contain the environment, so it is synced from none of them: {who}"
                        ),
                    };
                    (&candidates[0], assignment, who)
                }
            };
            let repository = &self.repositories[candidate.repository];
            let state = &states[candidate.repository];
            let fetched = state.fetched.as_ref();
            let behind = fetched.and_then(|fetched| fetched.behind.get(&candidate.branch));
            let assigned = Assigned {
                repository: repository.name.clone(),
                remote: repository.remote.clone(),
                has_history: repository.artifact.is_none(),
                source_policy: Arc::clone(&repository.source_policies[candidate.source_policy]),
                origin,
                commit: assignment,
                source: state.error.as_ref().or(behind).cloned(),
                answered: state.answered,
                is_removed: false,
            };
            self.assign_one(key, candidate.repository, assigned, tasks);
        }
        // A deleted branch suspends its environment, and nothing is deleted.
        for (
            key,
            LedEnvironment {
                assigned: sender, ..
            },
        ) in &self.environments
        {
            if !assignments.contains_key(key) {
                let mut assigned = sender.borrow().clone();
                assigned.commit = missing(&format!("of environment {}", key.environment));
                assigned.is_removed = true;
                sender.send_if_modified(|known| replace(known, assigned));
            }
        }
        self.report_owners(&assignments);
        self.observe_others(&assignments, leadership, tasks);
    }

    /// Observes the releases of environments that other replicas lead.
    fn observe_others(
        &mut self,
        assignments: &BTreeMap<EnvironmentKey, BranchAssignment>,
        leadership: &Leadership,
        tasks: &mut JoinSet<()>,
    ) {
        let Some(observers) = &mut self.observers else {
            return;
        };
        let mut clusters = BTreeMap::<&String, usize>::new();
        for key in assignments.keys() {
            *clusters.entry(&key.environment).or_default() += 1;
        }
        let mut wanted = BTreeMap::<_, Leaders>::new();
        // The page has one state per release, not one per cluster.
        let assignments = assignments
            .iter()
            .filter(|(key, _)| clusters[&key.environment] == 1);
        for (key, assignment) in assignments {
            if let BranchAssignment::One(candidate) = assignment
                && let Some(leader) = leadership.other_leader(key)
            {
                let policy = (candidate.repository, candidate.source_policy);
                let leaders = wanted.entry(policy).or_default();
                leaders.insert(key.environment.clone(), leader.to_owned());
            }
        }
        let repositories = self.repositories;
        let policy = |(repository, policy): (usize, usize)| {
            Arc::clone(&repositories[repository].source_policies[policy])
        };
        observers.observe(wanted, policy, tasks);
    }

    /// Reports which environments this replica syncs, if that changed.
    fn report_owners(&mut self, assignments: &BTreeMap<EnvironmentKey, BranchAssignment>) {
        let has_branch =
            |key: &EnvironmentKey| matches!(assignments.get(key), Some(BranchAssignment::One(_)));
        let keys = self.environments.keys();
        let now: BTreeSet<EnvironmentKey> = keys.filter(|key| has_branch(key)).cloned().collect();
        let report = |key: &EnvironmentKey, owner| {
            self.shared.events.report(ControllerEvent::OwnerChanged {
                environment: key.environment.clone(),
                cluster: key.cluster.clone(),
                owner,
            });
        };
        for key in self.owned.difference(&now) {
            let owner = if has_branch(key) {
                EnvironmentOwner::Other
            } else {
                EnvironmentOwner::None
            };
            report(key, owner);
        }
        for key in now.difference(&self.owned) {
            report(key, EnvironmentOwner::ThisReplica);
        }
        self.owned = now;
    }

    /// Returns the branch of each environment, and the branches of unfetched repositories that could
    /// contain the same ones.
    fn assignments(
        &self,
        states: &[SourceState],
    ) -> (
        BTreeMap<EnvironmentKey, BranchAssignment>,
        BTreeMap<EnvironmentKey, Vec<BranchCandidate>>,
    ) {
        let source_policies: Vec<Vec<_>> = self
            .repositories
            .iter()
            .map(|repository| {
                let source_policies = repository.source_policies.iter();
                source_policies
                    .map(|source_policy| {
                        let cluster = source_policy.cluster.as_ref().map(|id| id.0.clone());
                        (source_policy.branches.clone(), cluster)
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
        let mut assignments = assign_branches(&source_policies, &heads);
        let is_absent = |repository: usize| states[repository].fetched.is_none();
        let contenders = contenders(&source_policies, &assignments, is_absent);
        // Recorded environments of branch patterns whose repository is still unreachable.
        for (repository, state) in states.iter().enumerate() {
            for recorded in &state.recorded {
                let (_, cluster) = &source_policies[repository][recorded.source_policy];
                let key = EnvironmentKey {
                    environment: recorded.environment.clone(),
                    cluster: cluster.clone(),
                };
                let candidate = BranchCandidate {
                    repository,
                    source_policy: recorded.source_policy,
                    branch: recorded.branch.clone(),
                    commit: None,
                };
                assignments
                    .entry(key)
                    .or_insert(BranchAssignment::One(candidate));
            }
        }
        (assignments, contenders)
    }

    /// Gives up environments that other replicas lead. Work in progress continues to its next safe
    /// point, unless another replica could be the leader already.
    fn release_lost(&mut self, leadership: &Leadership) {
        let lost: Vec<EnvironmentKey> = self
            .environments
            .keys()
            .filter(|key| !leadership.leads(key))
            .cloned()
            .collect();
        for key in lost {
            if let Some(LedEnvironment { task, .. }) = self.environments.remove(&key) {
                self.report(&key, false);
                self.draining.insert(key, task);
            }
        }
        let ended = self.ended.extract_if(.., |key| !leadership.leads(key));
        for key in ended.collect::<Vec<_>>() {
            self.report(&key, false);
        }
        self.draining.retain(|_, task| !task.is_finished());
        if *leadership == Leadership::Nothing {
            self.draining.values().for_each(AbortHandle::abort);
        }
    }

    fn report(&self, key: &EnvironmentKey, leads: bool) {
        self.shared
            .events
            .report(ControllerEvent::LeadershipChanged {
                environment: key.environment.clone(),
                leads,
            });
    }

    /// Describes a branch with its repository.
    fn describe(&self, candidate: &BranchCandidate) -> String {
        let repository = &self.repositories[candidate.repository].name;
        format!("{} of {repository}", candidate.branch)
    }

    fn assign_one(
        &mut self,
        key: &EnvironmentKey,
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
                self.draining.insert(key.clone(), led.task);
            }
            None => {}
        }
        if self.draining.contains_key(key) {
            // Leadership returned quickly. The previous task must end first, and its end triggers
            // another assignment.
            return;
        }
        let (sender, receiver) = watch::channel(assigned);
        let environment = EnvironmentTask::new(
            key.clone(),
            receiver,
            self.fetch_schedules[repository].clone(),
            self.shared.clone(),
        );
        let task = tasks.spawn_local(environment.run());
        if !self.ended.remove(key) {
            self.report(key, true);
        }
        let led = LedEnvironment {
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

fn missing(branch: &str) -> AssignedCommit {
    AssignedCommit::Stalled {
        reason: "BranchMissing",
        message: format!(
            "branch {branch} is gone: the environment is stalled, and nothing is applied or deleted"
        ),
    }
}

#[cfg(test)]
mod tests;
