//! Commit statuses on forges: one per environment, posted once per change. For an environment on
//! several clusters, it is the worst status of them.
//!
//! This module consumes controller events and retains the newest status of each environment. Failed
//! posts are retried, unless a newer status replaces them. One replica is the leader of an environment on
//! all of its clusters, and only that one posts. The state of an environment is dropped when this
//! replica stops leading it, or no branch contains it any more.

mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pleach_reconciler::config::EnvironmentKey;
use tokio::sync::watch;

use super::{ControllerEvent, EnvironmentOwner, ReconcileOutcome};
use pleach_forge::{Forge, State, Status};

/// Statuses of the environments of all repositories.
#[derive(Debug)]
pub struct Statuses {
    /// By repository name.
    senders: BTreeMap<String, watch::Sender<DesiredStatuses>>,
    environments: BTreeMap<EnvironmentKey, Environment>,
    /// Environments that this replica syncs.
    owned: BTreeSet<EnvironmentKey>,
    /// Repositories whose commit statuses quote errors of clusters.
    quoting: BTreeSet<String>,
    /// Number of environments so far that this replica stopped syncing.
    ended_ownerships: u64,
    /// Number of commits received so far.
    sequence: u64,
}

/// Statuses to post: the newest commit with its status, by context.
type DesiredStatuses = BTreeMap<String, StatusEntry>;

/// A commit status to post.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StatusEntry {
    commit: String,
    status: Status,
    /// The previous commit with its final status.
    previous: Option<(String, Status)>,
    /// Value of that number at the time of the entry. Other replicas can have posted in between.
    since: u64,
}

/// An environment at its newest commit.
#[derive(Debug)]
struct Environment {
    repository: String,
    commit: String,
    /// Sequence number of this commit, in order of arrival.
    sequence: u64,
    /// The commit at which it was loaded. Later ones did not change it.
    loaded_at: String,
    /// Outcome per release; `None` before its reconcile.
    releases: BTreeMap<String, Option<(ReconcileOutcome, String)>>,
    /// Problems with the uninstall of releases that the commit lacks.
    uninstalls: BTreeMap<String, (ReconcileOutcome, String)>,
    /// Reason why it cannot be synced to this commit.
    stalled: Option<String>,
    /// Releases that cannot be synced to this commit, with the reason.
    stalled_releases: BTreeMap<String, String>,
}

/// Tasks that post statuses, one per forge.
#[derive(Debug)]
pub struct StatusPosters(Vec<(Arc<Forge>, watch::Receiver<DesiredStatuses>)>);

impl Statuses {
    /// Creates statuses for repositories with a forge, by name. Those of `quoting` repositories
    /// quote errors of servers.
    pub fn new(
        forges: BTreeMap<String, Arc<Forge>>,
        quoting: BTreeSet<String>,
    ) -> (Self, StatusPosters) {
        let mut posters = Vec::new();
        let mut senders = BTreeMap::new();
        for (repository, forge) in forges {
            let (sender, receiver) = watch::channel(DesiredStatuses::new());
            posters.push((forge, receiver));
            senders.insert(repository, sender);
        }
        let statuses = Self {
            senders,
            environments: BTreeMap::new(),
            owned: BTreeSet::new(),
            quoting,
            ended_ownerships: 0,
            sequence: 0,
        };
        (statuses, StatusPosters(posters))
    }

    /// Processes an event.
    pub fn process(&mut self, event: &ControllerEvent) {
        match event {
            ControllerEvent::OwnerChanged {
                environment,
                cluster,
                owner,
            } => {
                let key = key(environment, cluster.as_ref());
                if *owner == EnvironmentOwner::ThisReplica {
                    self.owned.insert(key);
                } else {
                    self.owned.remove(&key);
                    self.end(&key, *owner);
                }
            }
            ControllerEvent::EnvironmentLoaded {
                repository,
                environment,
                cluster,
                revision,
                releases,
                stalled,
                ..
            } => {
                let outcome_of = |name: &String| {
                    let reason = stalled.get(name)?;
                    Some((ReconcileOutcome::Refused, reason.clone()))
                };
                let releases = releases.iter().map(|name| (name.clone(), outcome_of(name)));
                let mut now = self.receive(repository, revision, releases.collect(), None);
                now.stalled_releases.clone_from(stalled);
                self.update(&key(environment, cluster.as_ref()), now);
            }
            ControllerEvent::EnvironmentStalled {
                repository,
                environment,
                cluster,
                revision: Some(revision),
                message,
                ..
            } => {
                let stalled = Some(message.clone());
                let now = self.receive(repository, revision, BTreeMap::new(), stalled);
                self.update(&key(environment, cluster.as_ref()), now);
            }
            ControllerEvent::EnvironmentUnchanged {
                environment,
                cluster,
                revision,
                ..
            } => {
                let key = key(environment, cluster.as_ref());
                if let Some(known) = self.environments.get_mut(&key) {
                    self.sequence += 1;
                    known.sequence = self.sequence;
                    known.commit.clone_from(revision);
                    self.report(&key);
                }
            }
            ControllerEvent::ReconcileFinished {
                release,
                cluster,
                revision,
                outcome,
                message,
                public_message,
                ..
            } => {
                let key = key(&release.environment, cluster.as_ref());
                let Some(known) = self.environments.get_mut(&key) else {
                    return;
                };
                let quotes = self.quoting.contains(&known.repository);
                let now = (
                    *outcome,
                    if quotes { message } else { public_message }.clone(),
                );
                if known.finish(&release.release, revision, now) {
                    self.report(&key);
                }
            }
            _ => {}
        }
    }

    /// Creates the state of an environment at a newly received commit.
    fn receive(
        &mut self,
        repository: &str,
        commit: &str,
        releases: BTreeMap<String, Option<(ReconcileOutcome, String)>>,
        stalled: Option<String>,
    ) -> Environment {
        self.sequence += 1;
        Environment {
            repository: repository.to_owned(),
            commit: commit.to_owned(),
            sequence: self.sequence,
            loaded_at: commit.to_owned(),
            releases,
            uninstalls: BTreeMap::new(),
            stalled,
            stalled_releases: BTreeMap::new(),
        }
    }

    fn update(&mut self, key: &EnvironmentKey, now: Environment) {
        if !self.owned.contains(key) {
            // Loaded before this replica stopped syncing it.
            return;
        }
        if let Some(known) = self.environments.get_mut(key)
            && known.is_same(&now)
        {
            // Loaded again by a replica that became the leader again.
            known.loaded_at = now.loaded_at;
            return;
        }
        self.environments.insert(key.clone(), now);
        self.report(key);
    }

    /// Forgets an environment on a cluster. Its other clusters decide about the commit from now on.
    /// A pending status becomes final if no further reports are expected.
    fn end(&mut self, key: &EnvironmentKey, owner: EnvironmentOwner) {
        let Some(ended) = self.environments.remove(key) else {
            return;
        };
        self.ended_ownerships += 1;
        let mut others = self.environments.iter();
        let other = others.find(|(other, environment)| {
            other.environment == key.environment && environment.repository == ended.repository
        });
        if let Some((other, _)) = other {
            self.report(other);
            return;
        }
        let Some(senders) = self.senders.get(&ended.repository) else {
            return;
        };
        let context = context(&key.environment);
        senders.send_if_modified(|desired| {
            let pending = desired
                .get_mut(&context)
                .filter(|entry| entry.status.state == State::Pending);
            match pending {
                Some(entry) if owner == EnvironmentOwner::None => {
                    entry.status.state = State::Error;
                    "no branch contains the environment any more, or several do"
                        .clone_into(&mut entry.status.description);
                }
                _ => drop(desired.remove(&context)),
            }
            true
        });
    }

    /// Publishes the status of an environment if it changed.
    fn report(&self, key: &EnvironmentKey) {
        let Some(known) = self.environments.get(key) else {
            return;
        };
        let Some(senders) = self.senders.get(&known.repository) else {
            return;
        };
        let is_it = |(one, other): &(&EnvironmentKey, &Environment)| {
            one.environment == key.environment && other.repository == known.repository
        };
        let everywhere: Vec<&Environment> = self
            .environments
            .iter()
            .filter(is_it)
            .map(|(_, environment)| environment)
            .collect();
        let newest = everywhere.iter().max_by_key(|one| one.sequence);
        let commit = newest.map_or(&known.commit, |newest| &newest.commit);
        let status = status(&key.environment, commit, &everywhere);
        senders.send_if_modified(|desired| {
            let previous = match desired.remove(&status.context) {
                Some(entry) if entry.commit == *commit => {
                    if is_same(&entry.status, &status) {
                        desired.insert(entry.status.context.clone(), entry);
                        return false;
                    }
                    entry.previous
                }
                Some(entry) => {
                    let last = match entry.status.state {
                        State::Pending => superseded(&status.context, commit),
                        _ => entry.status,
                    };
                    Some((entry.commit, last))
                }
                None => None,
            };
            let entry = StatusEntry {
                commit: commit.clone(),
                status: status.clone(),
                previous,
                since: self.ended_ownerships,
            };
            desired.insert(status.context.clone(), entry);
            true
        });
    }
}

fn key(environment: &str, cluster: Option<&String>) -> EnvironmentKey {
    EnvironmentKey {
        environment: environment.to_owned(),
        cluster: cluster.cloned(),
    }
}

/// Returns the status of a commit of an environment, over its clusters.
fn status(environment: &str, commit: &str, everywhere: &[&Environment]) -> Status {
    let judged = everywhere.iter().map(|one| {
        if one.commit == commit {
            one.state()
        } else {
            let message = "not yet loaded on all clusters".to_owned();
            (State::Pending, message)
        }
    });
    let worst = judged.min_by_key(|(state, _)| match state {
        State::Failure | State::Error => 0,
        State::Pending => 1,
        State::Success => 2,
    });
    let (state, description) = worst.unwrap_or((State::Pending, String::new()));
    Status {
        context: context(environment),
        state,
        description,
    }
}

/// Returns the status context of an environment.
fn context(environment: &str) -> String {
    format!("pleach/{environment}")
}

/// Combines the outcome of a release with its message.
fn describe(what: &str, message: &str) -> String {
    if message.is_empty() {
        what.to_owned()
    } else {
        format!("{what}: {message}")
    }
}

/// Returns the final status of a commit that was superseded.
fn superseded(context: &str, by: &str) -> Status {
    let short = by.get(..7).unwrap_or(by);
    Status {
        context: context.to_owned(),
        state: State::Error,
        description: format!("superseded by {short} before it was reconciled"),
    }
}

/// Returns whether a status need not be posted again. Mere progress is no change.
fn is_same(a: &Status, b: &Status) -> bool {
    a.state == b.state && (a.state != State::Failure || a.description == b.description)
}

impl Environment {
    /// Records the outcome of a reconcile. Returns whether it affects the status.
    fn finish(&mut self, release: &str, revision: &str, now: (ReconcileOutcome, String)) -> bool {
        let (outcome, _) = now;
        let is_partial = matches!(
            outcome,
            ReconcileOutcome::Superseded | ReconcileOutcome::Interrupted
        );
        if self.loaded_at != revision || is_partial {
            return false;
        }
        if let Some(known) = self.releases.get_mut(release) {
            *known = Some(now);
            return true;
        }
        let is_problem = matches!(
            outcome,
            ReconcileOutcome::Failed | ReconcileOutcome::Refused | ReconcileOutcome::Unapproved
        );
        if is_problem {
            self.uninstalls.insert(release.to_owned(), now);
            return true;
        }
        // Otherwise the release stayed or was uninstalled, as expected.
        self.uninstalls.remove(release).is_some()
    }

    /// Returns whether both are the same commit with the same stalled releases.
    fn is_same(&self, other: &Self) -> bool {
        let is_of_it = self.commit == other.commit && self.repository == other.repository;
        let is_equally_stalled =
            self.stalled == other.stalled && self.stalled_releases == other.stalled_releases;
        is_of_it && is_equally_stalled && self.releases.keys().eq(other.releases.keys())
    }

    fn state(&self) -> (State, String) {
        if let Some(stalled) = &self.stalled {
            return (State::Failure, stalled.clone());
        }
        let outcomes = || {
            self.releases
                .iter()
                .filter_map(|(name, outcome)| Some((name, outcome.as_ref()?)))
                .chain(&self.uninstalls)
        };
        let bad: Vec<_> = outcomes()
            .filter(|(_, (outcome, _))| {
                matches!(
                    outcome,
                    ReconcileOutcome::Failed | ReconcileOutcome::Refused
                )
            })
            .collect();
        if let [(name, (outcome, message)), more @ ..] = bad.as_slice() {
            let others = match more.len() {
                0 => String::new(),
                more => format!(" (and {more} more)"),
            };
            let word = outcome.as_str();
            return (
                State::Failure,
                describe(&format!("{name} {word}{others}"), message),
            );
        }
        let all = self.releases.len();
        let there = outcomes()
            .filter(|(_, (outcome, _))| {
                matches!(
                    outcome,
                    ReconcileOutcome::Unchanged
                        | ReconcileOutcome::Deployed
                        | ReconcileOutcome::Removed
                        | ReconcileOutcome::Drifted
                )
            })
            .count();
        if there == all && self.uninstalls.is_empty() {
            let plural = if all == 1 { "release" } else { "releases" };
            return (State::Success, format!("{all} {plural} in sync"));
        }
        let stalled = outcomes().find(|(_, (outcome, _))| {
            matches!(
                outcome,
                ReconcileOutcome::Suspended
                    | ReconcileOutcome::Waiting
                    | ReconcileOutcome::Unapproved
            )
        });
        let description = match stalled {
            Some((name, (outcome, message))) => {
                describe(&format!("{name} {}", outcome.as_str()), message)
            }
            None => format!("{there} of {all} releases in sync"),
        };
        (State::Pending, description)
    }
}

#[cfg(test)]
mod tests;
