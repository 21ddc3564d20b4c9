//! Loads of commits, and stalls.

use std::collections::{BTreeMap, BTreeSet};

use super::lookup::Previous;
use super::{
    Command, Commit, EXCEEDED_RETRY, Environment, Load, Phase, PreviousState, Round, Task,
};
use crate::Moment;
use crate::stall::{ENVIRONMENT_MISSING, Stall};

impl Environment {
    /// Loads the commit of a round, unless it was tried already.
    pub(super) fn load(&mut self, round: Round, now: Moment) {
        let is_followed = matches!(round.assignment.commit, Commit::Followed(_));
        if !is_followed && self.exceeded.take().is_some() {
            // There is no commit to retry. The next one is loaded in any case.
            self.tried = None;
        }
        match &round.assignment.commit {
            Commit::Followed(commit) => {
                let exceeded = self.exceeded;
                if exceeded.is_some_and(|at| now.at >= at + EXCEEDED_RETRY) {
                    self.exceeded = None;
                    self.tried = None;
                }
                if self.tried.as_ref() == Some(commit) {
                    return self.look_up(round, now);
                }
                match self.crash_stall(commit, now) {
                    Some(stall) => {
                        self.forget_load();
                        self.stall(stall, Some(commit));
                    }
                    None => return self.start_load(commit.clone(), round),
                }
            }
            Commit::Stalled { reason, message } => {
                self.forget_load();
                self.forget_state();
                self.looked_up = None;
                self.stall(Stall::new(reason, message.clone()), None);
            }
            Commit::Untrusted {
                reason,
                commit,
                message,
            } => {
                self.forget_load();
                self.stall(Stall::new(reason, message.clone()), Some(commit));
            }
            Commit::Unknown => {
                // A stall without a commit is over. The first commit is still expected.
                self.stall.take_if(|stall| stall.revision.is_none());
            }
        }
        self.look_up(round, now);
    }

    fn start_load(&mut self, commit: String, round: Round) {
        let state = self.state.as_ref();
        let known = self.previous.iter().filter_map(|(name, previous)| {
            let known = match previous {
                Previous::Known { state, .. } => PreviousState::In(*state),
                Previous::Absent(at) if *at == commit => PreviousState::Absent,
                Previous::Unknown | Previous::LookingUp(_) | Previous::Absent(_) => return None,
            };
            Some((name.clone(), known))
        });
        let present = state.into_iter().flat_map(|state| {
            let names = state.releases.iter().map(|release| release.name.clone());
            names.map(|name| (name, PreviousState::In(state.id)))
        });
        let task = Task::Load {
            inputs: self.inputs,
            current: state.map(|state| state.id),
            previous: known.chain(present).collect(),
            commit,
        };
        self.run(task);
        self.phase = Phase::Loading(round);
    }

    /// Returns the stall of a commit at which the controller crashed, until the end of its backoff.
    fn crash_stall(&self, commit: &str, now: Moment) -> Option<Stall> {
        let crash = self.crash.as_ref();
        let crash = crash.filter(|crash| crash.commit == commit && now.at < crash.until);
        crash.map(|crash| crash.stall.clone())
    }

    pub(super) fn on_load(&mut self, mut round: Round, load: Load, now: Moment) {
        let Commit::Followed(commit) = round.assignment.commit.clone() else {
            return self.look_up(round, now);
        };
        let took = now.at.saturating_sub(round.started);
        self.tried = Some(commit.clone());
        self.exceeded = None;
        let failures = std::mem::take(&mut self.load_failures);
        match load {
            Load::Unchanged => self.commands.push(Command::Unchanged(commit, None)),
            Load::Loaded { state, is_same } => {
                self.inputs = Some(self.task);
                self.replace_previous(&state, &commit);
                if is_same && self.stall.is_none() {
                    // Only irrelevant files or formatting changed, so no release is triggered.
                    self.end_attempt();
                    self.commands.push(Command::Unchanged(commit, Some(took)));
                } else {
                    self.commands.push(Command::Loaded(state.clone(), took));
                    let planned = state.releases.iter().map(|release| release.name.clone());
                    self.commands.push(Command::EndAttempt(planned.collect()));
                    self.stall = None;
                    self.is_from_records = false;
                    self.state = Some(*state);
                }
            }
            Load::Invalid(stall) => {
                self.inputs = Some(self.task);
                self.reject(stall, &commit);
            }
            Load::Exceeded(stall) => {
                self.inputs = None;
                self.exceeded = Some(now.at);
                self.reject(stall, &commit);
            }
            Load::Failed(stall) => {
                self.tried = None;
                self.load_failures = failures.saturating_add(1);
                round.is_loaded = false;
                if failures == 0 {
                    // Report only repeated failures: the first can pass quickly, and each report
                    // triggers every release.
                    self.end_attempt();
                } else {
                    self.inputs = None;
                    self.reject(stall, &commit);
                }
            }
        }
        self.look_up(round, now);
    }

    /// Stalls the environment at a commit that was not loaded.
    fn reject(&mut self, stall: Stall, commit: &str) {
        self.end_attempt();
        // An environment that left git is no longer touched. An invalid one keeps its last good
        // state.
        if stall.reason == ENVIRONMENT_MISSING {
            self.forget_state();
        }
        self.stall(stall, Some(commit));
    }

    /// Records and reports a stall. `commit` is the cause, if one is.
    pub(super) fn stall(&mut self, mut stall: Stall, commit: Option<&str>) {
        stall.revision = commit.map(str::to_owned);
        if self.stall.as_ref() != Some(&stall) {
            self.commands.push(Command::Stalled(stall.clone()));
        }
        self.stall = Some(stall);
    }

    /// Forgets the last load. If its commit returns, it is loaded even without changes.
    pub(super) fn forget_load(&mut self) {
        self.tried = None;
        self.inputs = None;
    }

    fn forget_state(&mut self) {
        self.state = None;
        self.previous = BTreeMap::new();
    }

    fn end_attempt(&mut self) {
        self.commands.push(Command::EndAttempt(BTreeSet::new()));
    }
}
