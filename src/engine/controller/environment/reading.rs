//! Which commit of an environment is read, what came of it, and what holds it.

use std::sync::Arc;
use std::time::Duration;

use pleach_domain::observe::ClusterId;
use tokio::time::{Instant, timeout};

use super::{AGAIN, Environment, LIMIT};
use crate::engine::controller::assigned::{Assigned, Assignment};
use crate::engine::controller::held::{Former, complete, hold_of};
use crate::engine::controller::read::{Hold, Known, Read, Which};
use crate::engine::controller::{Grant, LoopEvent};
use crate::engine::load::Loaded;

impl Environment {
    /// Reads the environment, where its commit is another one. False where that has to
    /// be tried again: it is not the commit that is wrong.
    pub(super) async fn read(&mut self, assigned: &Assigned) -> bool {
        let is_followed = matches!(assigned.what, Assignment::Follow { .. });
        if !is_followed && self.beyond.take().is_some() {
            // There is nothing to read again, and whatever comes next is read.
            self.tried = None;
        }
        let (commit, reader) = match &assigned.what {
            Assignment::Follow { commit, reader } => (commit, reader),
            Assignment::Held { reason, message } => {
                self.loaded = None;
                self.formers.clear();
                self.tried = None;
                self.inputs = None;
                self.sought = None;
                self.held(assigned, Hold::new(reason, message.clone()), None);
                return true;
            }
            Assignment::Distrusted { commit, message } => {
                // The commit before it may come back, and is good then: it is
                // read, also where nothing of the environment is another.
                self.tried = None;
                self.inputs = None;
                let hold = Hold::new("UntrustedCommit", message.clone());
                self.held(assigned, hold, Some(commit));
                return true;
            }
            Assignment::Unknown => {
                // What held it is over, and its commit is still to come.
                self.hold.take_if(|hold| hold.revision.is_none());
                return true;
            }
        };
        if self.beyond.is_some_and(|since| since.elapsed() >= AGAIN) {
            self.beyond = None;
            self.tried = None;
        }
        if self.tried.as_ref() == Some(commit) {
            return true;
        }
        if let Some(hold) = self.attempt.hold(commit) {
            // The commit before it may come back, and is read then.
            self.tried = None;
            self.inputs = None;
            self.held(assigned, hold, Some(commit));
            return true;
        }
        let started = Instant::now();
        let which = Which {
            place: reader.place(),
            commit: commit.clone(),
            name: self.key.environment.clone(),
        };
        let Some(read) = self.read_in_time(which).await else {
            return true;
        };
        self.tried = Some(commit.clone());
        self.beyond = None;
        let unread = std::mem::take(&mut self.unread);
        let (inputs, read) = match read {
            Read::Same => {
                self.unaffected(commit, None);
                return true;
            }
            // One for another cluster is held as one that cannot be read.
            Read::From(inputs, read) => {
                let read = read.and_then(|loaded| for_cluster(*loaded, &assigned.grant));
                (Some(inputs), read)
            }
            Read::Beyond(hold) => {
                self.beyond = Some(Instant::now());
                (None, Err(hold))
            }
            Read::Not(hold) => {
                self.attempt.end();
                self.tried = None;
                self.unread = unread.saturating_add(1);
                if unread == 0 {
                    // It may be over in a moment, and each release would have to be
                    // looked at for the sake of it.
                    return false;
                }
                (None, Err(hold))
            }
        };
        self.inputs = inputs;
        let read = read.map(|mut loaded| {
            self.formers = complete(&mut loaded, |name| self.former(name, commit));
            loaded
        });
        self.adopt(assigned, commit, started, read);
        self.tried.is_some()
    }

    /// Takes what a commit holds as the environment, or what is wrong with the commit.
    fn adopt(
        &mut self,
        assigned: &Assigned,
        commit: &str,
        started: Instant,
        read: Result<Loaded, Hold>,
    ) {
        match read {
            // Read from other files, or in other words: nobody is woken.
            Ok(loaded) if self.is_wanted_already(&loaded) => {
                self.attempt.end();
                self.unaffected(commit, Some(started.elapsed()));
            }
            Ok(loaded) => {
                let releases = loaded.names().into_iter().chain(held_names(&loaded));
                self.shared.listener.tell(LoopEvent::Loaded {
                    repository: assigned.repository.clone(),
                    environment: self.key.environment.clone(),
                    cluster: self.key.cluster.clone(),
                    revision: commit.to_owned(),
                    releases: releases.map(str::to_owned).collect(),
                    held: (loaded.held.iter())
                        .map(|(name, held)| (name.clone(), hold_of(held, commit).message))
                        .collect(),
                    took: started.elapsed(),
                });
                let planned = loaded.names().into_iter().map(str::to_owned);
                self.attempt.end_with(planned.collect());
                self.hold = None;
                self.is_remembered = false;
                self.loaded = Some(Arc::new(loaded));
            }
            Err(hold) => {
                self.attempt.end();
                // What git has no more is left alone; what is only broken is
                // kept as it was last good.
                if hold.reason == "EnvironmentMissing" {
                    self.loaded = None;
                    self.formers.clear();
                }
                self.held(assigned, hold, Some(commit));
            }
        }
    }

    /// What a release was before a commit at which it is held.
    fn former(&self, name: &str, commit: &str) -> Former {
        let before = self.loaded.as_ref();
        let before = before.filter(|loaded| loaded.names().contains(&name));
        match (before, self.formers.get(name)) {
            (Some(loaded), _) => Former::Known(Arc::new(loaded.alone(name)), self.is_remembered),
            (None, Some(Former::Absent(at))) if at != commit => Former::Unknown,
            (None, Some(former)) => former.clone(),
            (None, None) => Former::Unknown,
        }
    }

    /// Whether the same is kept already as a commit wants.
    fn is_wanted_already(&self, loaded: &Loaded) -> bool {
        let known = self.loaded.as_ref();
        self.hold.is_none() && known.is_some_and(|known| known.wants_the_same(loaded))
    }

    /// Notes that a commit changes nothing; `took` is how long it took to read it,
    /// where that was necessary to know.
    fn unaffected(&self, commit: &str, took: Option<Duration>) {
        self.shared.listener.tell(LoopEvent::Unaffected {
            environment: self.key.environment.clone(),
            cluster: self.key.cluster.clone(),
            revision: commit.to_owned(),
            took,
        });
    }

    /// Notes why nothing newer is synced; `commit` where that is the reason.
    pub(super) fn held(&mut self, assigned: &Assigned, mut hold: Hold, commit: Option<&str>) {
        hold.revision = commit.map(str::to_owned);
        if self.hold.as_ref() != Some(&hold) {
            self.shared.listener.tell(LoopEvent::Held {
                repository: assigned.repository.clone(),
                revision: commit.map(str::to_owned),
                environment: self.key.environment.clone(),
                cluster: self.key.cluster.clone(),
                reason: hold.reason.clone(),
                message: hold.message.clone(),
            });
        }
        self.hold = Some(hold);
    }
}

fn held_names(loaded: &Loaded) -> impl Iterator<Item = &str> {
    loaded.held.keys().map(String::as_str)
}

/// An environment, where it may be synced to the cluster that is meant. Its policy is at
/// least as strict as the minimum of the grant.
pub(in crate::engine::controller) fn for_cluster(
    mut loaded: Loaded,
    grant: &Grant,
) -> Result<Loaded, Hold> {
    let named = loaded.environment.cluster.id.clone().map(ClusterId);
    match (&grant.cluster, named) {
        (Some(meant), Some(named)) if *meant != named => Err(wrong_cluster(meant, &named)),
        _ => {
            loaded.environment.demand(&grant.minimum);
            Ok(loaded)
        }
    }
}

pub(super) fn wrong_cluster(meant: &ClusterId, named: &ClusterId) -> Hold {
    Hold::new(
        "WrongCluster",
        format!(
            "the environment file names cluster {named}, and the loop may sync it to {meant} only"
        ),
    )
}

impl Environment {
    /// Reads the environment at a commit within the limit; none at the end of the loop.
    async fn read_in_time(&self, which: Which) -> Option<Read> {
        let replaced = self.loaded.as_ref();
        let known = Known {
            inputs: self.inputs.clone(),
            charge: replaced.and_then(|loaded| loaded.charge.clone()),
        };
        let reading = self.shared.reading.load(which, known, &self.attempt);
        let reading = timeout(LIMIT, reading);
        let read = self.shared.stop.run_until_cancelled(reading).await?;
        Some(read.unwrap_or_else(|_| {
            let message = format!("it was not read within {LIMIT:?}");
            Read::Not(Hold::new("Unread", message))
        }))
    }
}
