//! Loading of the commits of an environment, and its holds.

use std::sync::Arc;
use std::time::Duration;

use pleach_planner::observe::ClusterId;
use pleach_reconciler::hold::Hold;
use tokio::time::{Instant, timeout};

use super::{AGAIN, Environment, LIMIT};
use crate::{
    ControllerEvent, SourcePolicy,
    assignment::{Assigned, Assignment},
    held::{Former, complete, hold_of},
    read::{Read, Which},
};
use pleach_engine::load::Loaded;

impl Environment {
    /// Loads the environment if its commit changed. Returns false to ask for a retry for a reason
    /// other than the commit.
    pub(super) async fn read(&mut self, assigned: &Assigned) -> bool {
        let is_followed = matches!(assigned.what, Assignment::Follow { .. });
        if !is_followed && self.beyond.take().is_some() {
            // There is no commit to retry. The next one is loaded in any case.
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
                // Forget the inputs: if the previous commit returns, it is trusted and must be
                // loaded even without changes.
                self.tried = None;
                self.inputs = None;
                let hold = Hold::new("UntrustedCommit", message.clone());
                self.held(assigned, hold, Some(commit));
                return true;
            }
            Assignment::Unknown => {
                // A hold without a commit is over. The first commit is still expected.
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
            // Forget the inputs, so that the previous commit is loaded if it returns.
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
            // An environment for another cluster is stalled like an invalid one.
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
                    // Publish only repeated failures: the first can pass quickly, and each
                    // publication makes every release report.
                    return false;
                }
                (None, Err(hold))
            }
        };
        self.inputs = inputs;
        let read = read.map(|mut loaded| {
            self.formers = complete(&mut loaded, |name| self.previous(name, commit));
            loaded
        });
        self.adopt(assigned, commit, started, read);
        self.tried.is_some()
    }

    /// Adopts the environment of a commit, or the hold of an invalid commit.
    fn adopt(
        &mut self,
        assigned: &Assigned,
        commit: &str,
        started: Instant,
        read: Result<Loaded, Hold>,
    ) {
        match read {
            // Only irrelevant files or formatting changed, so no release is triggered.
            Ok(loaded) if self.is_desired_already(&loaded) => {
                self.attempt.end();
                self.unaffected(commit, Some(started.elapsed()));
            }
            Ok(loaded) => {
                let releases = loaded.names().into_iter().chain(held_names(&loaded));
                self.shared
                    .listener
                    .report(ControllerEvent::EnvironmentLoaded {
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
                // An environment that left git is no longer touched. An invalid one keeps its last
                // good state.
                if hold.reason == "EnvironmentMissing" {
                    self.loaded = None;
                    self.formers.clear();
                }
                self.held(assigned, hold, Some(commit));
            }
        }
    }

    /// Returns the state of a release before the commit at which it is stalled.
    fn previous(&self, name: &str, commit: &str) -> Former {
        let before = self.loaded.as_ref();
        let before = before.filter(|loaded| loaded.names().contains(&name));
        match (before, self.formers.get(name)) {
            (Some(loaded), _) => Former::Known(Arc::new(loaded.alone(name)), self.is_remembered),
            (None, Some(Former::Absent(at))) if at != commit => Former::Unknown,
            (None, Some(previous)) => previous.clone(),
            (None, None) => Former::Unknown,
        }
    }

    /// Returns whether the loaded state already equals that of a commit.
    fn is_desired_already(&self, loaded: &Loaded) -> bool {
        let known = self.loaded.as_ref();
        self.hold.is_none() && known.is_some_and(|known| known.wants_the_same(loaded))
    }

    /// Reports that a commit changes nothing. `took` is the duration of the load, if one was
    /// necessary.
    fn unaffected(&self, commit: &str, took: Option<Duration>) {
        self.shared
            .listener
            .report(ControllerEvent::EnvironmentUnchanged {
                environment: self.key.environment.clone(),
                cluster: self.key.cluster.clone(),
                revision: commit.to_owned(),
                took,
            });
    }

    /// Records and reports a hold. `commit` is the cause, if one is.
    pub(super) fn held(&mut self, assigned: &Assigned, mut hold: Hold, commit: Option<&str>) {
        hold.revision = commit.map(str::to_owned);
        if self.hold.as_ref() != Some(&hold) {
            self.shared
                .listener
                .report(ControllerEvent::EnvironmentStalled {
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

/// Checks that an environment names the expected cluster. Makes its sync policy at least as
/// strict as the minimum of the source policy.
pub(crate) fn for_cluster(mut loaded: Loaded, grant: &SourcePolicy) -> Result<Loaded, Hold> {
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
            "the environment file names cluster {named}, and the controller is allowed to sync it to {meant} only"
        ),
    )
}

impl Environment {
    /// Loads the environment at a commit within the time limit. Returns `None` at shutdown.
    async fn read_in_time(&self, which: Which) -> Option<Read> {
        let known = self.inputs.clone();
        let reading = self.shared.reading.load(which, known, &self.attempt);
        let reading = timeout(LIMIT, reading);
        let read = self.shared.stop.run_until_cancelled(reading).await?;
        Some(read.unwrap_or_else(|_| {
            let message = format!("the environment was not loaded within {LIMIT:?}");
            Read::Not(Hold::new("Unread", message))
        }))
    }
}
