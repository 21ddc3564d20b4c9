//! What forges are told of the commits that environments are synced to: one
//! state per environment, once per change of it. Where an environment is on several
//! clusters, it is as it is where it is worst.
//!
//! It listens to what happens in the loop and keeps the newest state of each
//! environment. Whatever is not told yet is told again and again; what became
//! old meanwhile never is. One replica leads an environment on all of its clusters,
//! and only that one tells of it. What it knows of an environment on a cluster ends
//! when it leads it no longer, or no branch holds it any more.

mod telling;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pleach_domain::repo::controller::ClaimKey;
use tokio::sync::watch;

use super::{Claimed, End, LoopEvent};
use crate::io::forge::{Forge, State, Status};

/// What is known of the environments of all repositories.
#[derive(Debug)]
pub struct Statuses {
    /// By the name of the repository.
    teller: BTreeMap<String, watch::Sender<Wanted>>,
    environments: BTreeMap<ClaimKey, Environment>,
    /// Those that this replica syncs.
    claimed: BTreeSet<ClaimKey>,
    /// Repositories whose states of commits quote clusters.
    quoting: BTreeSet<String>,
    /// How many claims ended so far.
    ended: u64,
    /// How many commits were taken up so far.
    taken_up: u64,
}

/// What a forge is to know: the newest commit and its state, by the context.
type Wanted = BTreeMap<String, Said>;

/// What is to be said of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Said {
    commit: String,
    status: Status,
    /// The commit before it, and how that ended.
    former: Option<(String, Status)>,
    /// How many claims had ended before: another replica may have told something else
    /// until then.
    since: u64,
}

/// One environment at its newest commit.
#[derive(Debug)]
struct Environment {
    repository: String,
    commit: String,
    /// The how many-th of all commits that were taken up this is.
    taken_up: u64,
    /// The commit that it was read at, where later ones change nothing of it.
    read_at: String,
    /// What came of looking at each release; none until then.
    releases: BTreeMap<String, Option<(End, String)>>,
    /// What is in the way of the end of releases that the commit does not have.
    leaving: BTreeMap<String, (End, String)>,
    /// Why it cannot be synced to this commit.
    held: Option<String>,
    /// Releases that cannot be synced to it, and why.
    held_releases: BTreeMap<String, String>,
}

/// What tells the forges.
#[derive(Debug)]
pub struct Tellers(Vec<(Arc<Forge>, watch::Receiver<Wanted>)>);

impl Statuses {
    /// Of the repositories whose forges are told, by their names. States of commits of
    /// the `quoting` ones have words of servers too.
    pub fn new(forges: BTreeMap<String, Arc<Forge>>, quoting: BTreeSet<String>) -> (Self, Tellers) {
        let mut tellers = Vec::new();
        let mut teller = BTreeMap::new();
        for (repository, forge) in forges {
            let (sender, receiver) = watch::channel(Wanted::new());
            tellers.push((forge, receiver));
            teller.insert(repository, sender);
        }
        let statuses = Self {
            teller,
            environments: BTreeMap::new(),
            claimed: BTreeSet::new(),
            quoting,
            ended: 0,
            taken_up: 0,
        };
        (statuses, Tellers(tellers))
    }

    /// Takes notice of something that happened.
    pub fn hear(&mut self, event: &LoopEvent) {
        match event {
            LoopEvent::Claimed {
                environment,
                cluster,
                by,
            } => {
                let key = key(environment, cluster.as_ref());
                if *by == Claimed::Ours {
                    self.claimed.insert(key);
                } else {
                    self.claimed.remove(&key);
                    self.end(&key, *by);
                }
            }
            LoopEvent::Loaded {
                repository,
                environment,
                cluster,
                revision,
                releases,
                held,
                ..
            } => {
                let looked = |name: &String| {
                    let reason = held.get(name)?;
                    Some((End::Refused, reason.clone()))
                };
                let releases = releases.iter().map(|name| (name.clone(), looked(name)));
                let mut now = self.taken_up(repository, revision, releases.collect(), None);
                now.held_releases.clone_from(held);
                self.follow(&key(environment, cluster.as_ref()), now);
            }
            LoopEvent::Held {
                repository,
                environment,
                cluster,
                revision: Some(revision),
                message,
                ..
            } => {
                let held = Some(message.clone());
                let now = self.taken_up(repository, revision, BTreeMap::new(), held);
                self.follow(&key(environment, cluster.as_ref()), now);
            }
            LoopEvent::Unaffected {
                environment,
                cluster,
                revision,
                ..
            } => {
                let key = key(environment, cluster.as_ref());
                if let Some(known) = self.environments.get_mut(&key) {
                    self.taken_up += 1;
                    known.taken_up = self.taken_up;
                    known.commit.clone_from(revision);
                    self.tell(&key);
                }
            }
            LoopEvent::Looked {
                release,
                cluster,
                revision,
                end,
                message,
                about,
                ..
            } => {
                let key = key(&release.environment, cluster.as_ref());
                let Some(known) = self.environments.get_mut(&key) else {
                    return;
                };
                if known.read_at != *revision {
                    return;
                }
                if matches!(end, End::Superseded | End::Interrupted) {
                    return;
                }
                let quotes = self.quoting.contains(&known.repository);
                let now = (*end, if quotes { message } else { about }.clone());
                if let Some(looked) = known.releases.get_mut(&release.release) {
                    *looked = Some(now);
                } else if matches!(end, End::Failed | End::Refused | End::Unapproved) {
                    known.leaving.insert(release.release.clone(), now);
                } else if known.leaving.remove(&release.release).is_none() {
                    // It stays, or went, as everybody expects.
                    return;
                }
                self.tell(&key);
            }
            _ => {}
        }
    }

    /// An environment at a commit that is taken up now.
    fn taken_up(
        &mut self,
        repository: &str,
        commit: &str,
        releases: BTreeMap<String, Option<(End, String)>>,
        held: Option<String>,
    ) -> Environment {
        self.taken_up += 1;
        Environment {
            repository: repository.to_owned(),
            commit: commit.to_owned(),
            taken_up: self.taken_up,
            read_at: commit.to_owned(),
            releases,
            leaving: BTreeMap::new(),
            held,
            held_releases: BTreeMap::new(),
        }
    }

    fn follow(&mut self, key: &ClaimKey, now: Environment) {
        if !self.claimed.contains(key) {
            // It was read before the claim ended.
            return;
        }
        if let Some(known) = self.environments.get_mut(key)
            && known.is_same(&now)
        {
            // It is read once more, by a replica that got it back.
            known.read_at = now.read_at;
            return;
        }
        self.environments.insert(key.clone(), now);
        self.tell(key);
    }

    /// Forgets an environment on a cluster. The others decide about its commit from now
    /// on; what waits for it alone is over where nobody will say more.
    fn end(&mut self, key: &ClaimKey, by: Claimed) {
        let Some(ended) = self.environments.remove(key) else {
            return;
        };
        self.ended += 1;
        let mut others = self.environments.iter();
        let other = others.find(|(other, environment)| {
            other.environment == key.environment && environment.repository == ended.repository
        });
        if let Some((other, _)) = other {
            self.tell(other);
            return;
        }
        let Some(teller) = self.teller.get(&ended.repository) else {
            return;
        };
        let context = context(&key.environment);
        teller.send_if_modified(|wanted| {
            let pending = wanted
                .get_mut(&context)
                .filter(|said| said.status.state == State::Pending);
            match pending {
                Some(said) if by == Claimed::Nobody => {
                    said.status.state = State::Error;
                    "no branch holds the environment any more, or several do"
                        .clone_into(&mut said.status.description);
                }
                _ => drop(wanted.remove(&context)),
            }
            true
        });
    }

    /// Hands on what is to be said of an environment, where that is news.
    fn tell(&self, key: &ClaimKey) {
        let Some(known) = self.environments.get(key) else {
            return;
        };
        let Some(teller) = self.teller.get(&known.repository) else {
            return;
        };
        let is_it = |(one, other): &(&ClaimKey, &Environment)| {
            one.environment == key.environment && other.repository == known.repository
        };
        let everywhere: Vec<&Environment> = self
            .environments
            .iter()
            .filter(is_it)
            .map(|(_, environment)| environment)
            .collect();
        let newest = everywhere.iter().max_by_key(|one| one.taken_up);
        let commit = newest.map_or(&known.commit, |newest| &newest.commit);
        let status = status(&key.environment, commit, &everywhere);
        teller.send_if_modified(|wanted| {
            let former = match wanted.remove(&status.context) {
                Some(said) if said.commit == *commit => {
                    if is_same(&said.status, &status) {
                        wanted.insert(said.status.context.clone(), said);
                        return false;
                    }
                    said.former
                }
                Some(said) => {
                    let end = match said.status.state {
                        State::Pending => superseded(&status.context, commit),
                        _ => said.status,
                    };
                    Some((said.commit, end))
                }
                None => None,
            };
            let said = Said {
                commit: commit.clone(),
                status: status.clone(),
                former,
                since: self.ended,
            };
            wanted.insert(status.context.clone(), said);
            true
        });
    }
}

fn key(environment: &str, cluster: Option<&String>) -> ClaimKey {
    ClaimKey {
        environment: environment.to_owned(),
        cluster: cluster.cloned(),
    }
}

/// The state of a commit of an environment, which is on these clusters.
fn status(environment: &str, commit: &str, everywhere: &[&Environment]) -> Status {
    let judged = everywhere.iter().map(|one| {
        if one.commit == commit {
            one.judge()
        } else {
            let message = "it is not yet followed on all clusters".to_owned();
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

/// What states of an environment are about.
fn context(environment: &str) -> String {
    format!("pleach/{environment}")
}

/// What came of a release, with what there is to say of it.
fn told(what: &str, message: &str) -> String {
    if message.is_empty() {
        what.to_owned()
    } else {
        format!("{what}: {message}")
    }
}

/// How a commit ends that another one took the place of.
fn superseded(context: &str, by: &str) -> Status {
    let short = by.get(..7).unwrap_or(by);
    Status {
        context: context.to_owned(),
        state: State::Error,
        description: format!("superseded by {short} before it was there"),
    }
}

/// Whether there is nothing new in it. How far it got is no news.
fn is_same(a: &Status, b: &Status) -> bool {
    a.state == b.state && (a.state != State::Failure || a.description == b.description)
}

impl Environment {
    /// Whether it is the same commit, whatever is known of it.
    fn is_same(&self, other: &Self) -> bool {
        let is_of_it = self.commit == other.commit && self.repository == other.repository;
        let is_held_alike = self.held == other.held && self.held_releases == other.held_releases;
        is_of_it && is_held_alike && self.releases.keys().eq(other.releases.keys())
    }

    fn judge(&self) -> (State, String) {
        if let Some(held) = &self.held {
            return (State::Failure, held.clone());
        }
        let looked = || {
            self.releases
                .iter()
                .filter_map(|(name, looked)| Some((name, looked.as_ref()?)))
                .chain(&self.leaving)
        };
        let bad: Vec<_> = looked()
            .filter(|(_, (end, _))| matches!(end, End::Failed | End::Refused))
            .collect();
        if let [(name, (end, message)), more @ ..] = bad.as_slice() {
            let others = match more.len() {
                0 => String::new(),
                more => format!(" (and {more} more)"),
            };
            let word = end.word();
            return (
                State::Failure,
                told(&format!("{name} {word}{others}"), message),
            );
        }
        let all = self.releases.len();
        let there = looked()
            .filter(|(_, (end, _))| {
                matches!(
                    end,
                    End::Unchanged | End::Deployed | End::Removed | End::Drifted
                )
            })
            .count();
        if there == all && self.leaving.is_empty() {
            let plural = if all == 1 { "release" } else { "releases" };
            return (State::Success, format!("{all} {plural} as git says"));
        }
        let held = looked()
            .find(|(_, (end, _))| matches!(end, End::Suspended | End::Waiting | End::Unapproved));
        let description = match held {
            Some((name, (end, message))) => told(&format!("{name} {}", end.word()), message),
            None => format!("{there} of {all} releases as git says"),
        };
        (State::Pending, description)
    }
}

#[cfg(test)]
mod tests;
