//! Lookups of the last applied state, after a restart: of the environment, while no newer commit can
//! be synced, and of releases that are stalled at the newest commit. Drift is corrected to that
//! state.
//!
//! The records of the releases name the commits, but clients with write access to the cluster must
//! not decide about git. So the executor accepts a commit only if it is in the history of the
//! configured branch, and carries the required signatures. A release in another state than that
//! commit is not changed: a record never causes an upgrade or a downgrade.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Command, Environment, LookedUp, Phase, RecordedCommit, ReleaseFacts, Round, StateFacts,
    StateId, Task,
};
use crate::stall::ENVIRONMENT_MISSING;
use crate::{Moment, TaskId};

/// State of a stalled release at its last usable commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Previous {
    /// A lookup is needed.
    Unknown,
    /// The lookup in progress.
    LookingUp(TaskId),
    /// No usable commit was found; the commit at which the release was stalled.
    Absent(String),
    /// The release alone.
    Known {
        state: StateId,
        release: ReleaseFacts,
        /// Whether only its record named that commit.
        is_from_records: bool,
    },
}

impl Previous {
    pub(super) fn state(&self) -> Option<StateId> {
        match self {
            Self::Known { state, .. } => Some(*state),
            Self::Unknown | Self::LookingUp(_) | Self::Absent(_) => None,
        }
    }

    fn is_looking_up(&self) -> bool {
        matches!(self, Self::LookingUp(_))
    }
}

impl Environment {
    /// Returns whether the result of a history lookup still matters.
    pub fn awaits_lookup(&self, id: TaskId) -> bool {
        let mut previous = self.previous.values();
        self.lookup == Some(id) || previous.any(|one| *one == Previous::LookingUp(id))
    }

    /// Reads the records if a lookup needs their commits.
    pub(super) fn look_up(&mut self, round: Round, now: Moment) {
        let is_needed = if self.state.is_some() {
            self.lookup = None;
            // All at once.
            let is_unknown = |one: &Previous| *one == Previous::Unknown;
            self.previous.values().any(is_unknown)
                && !self.previous.values().any(Previous::is_looking_up)
        } else if let Some(commit) = self.stalled_commit() {
            // Once per stalled commit.
            self.looked_up.as_ref() != Some(commit)
        } else {
            self.lookup = None;
            false
        };
        if !is_needed || !round.assignment.has_branch {
            return self.connect(round, now);
        }
        let state = self.state.as_ref().map(|state| state.id);
        self.run(Task::ReadRecords { state });
        self.phase = Phase::ReadingRecords(round);
    }

    /// Returns the stalled commit of an environment that git still contains.
    fn stalled_commit(&self) -> Option<&String> {
        let stall = self.stall.as_ref();
        let stall = stall.filter(|stall| stall.reason != ENVIRONMENT_MISSING);
        stall.and_then(|stall| stall.revision.as_ref())
    }

    /// Starts the lookups of the recorded commits.
    pub(super) fn on_records(
        &mut self,
        mut round: Round,
        records: Option<Vec<RecordedCommit>>,
        now: Moment,
    ) {
        match (records, &self.state) {
            (None, _) => round.are_records_read = false,
            (Some(records), None) => {
                self.looked_up = self.stalled_commit().cloned();
                let commits: BTreeSet<String> = records.into_iter().map(|one| one.commit).collect();
                if !commits.is_empty() {
                    self.lookup = Some(self.start_lookup(commits, None));
                }
            }
            (Some(records), Some(_)) => self.look_up_releases(records),
        }
        self.connect(round, now);
    }

    fn look_up_releases(&mut self, records: Vec<RecordedCommit>) {
        let records = records.into_iter().map(|one| (one.release, one.commit));
        let mut records: BTreeMap<String, String> = records.collect();
        let unknown = self.previous.iter();
        let unknown = unknown.filter(|(_, previous)| **previous == Previous::Unknown);
        let unknown: Vec<String> = unknown.map(|(name, _)| name.clone()).collect();
        for name in unknown {
            let previous = match records.remove(&name) {
                Some(commit) => {
                    let id = self.start_lookup([commit].into(), Some(name.clone()));
                    Previous::LookingUp(id)
                }
                // The release was never installed from this branch.
                None => Previous::Absent(self.stalled_at.clone()),
            };
            self.previous.insert(name, previous);
        }
        self.load_with_found();
    }

    fn start_lookup(&mut self, commits: BTreeSet<String>, release: Option<String>) -> TaskId {
        let id = TaskId(self.number());
        self.commands.push(Command::LookUp {
            id,
            commits,
            release,
        });
        id
    }

    /// Loads the environment again once no lookup is left.
    fn load_with_found(&mut self) {
        if !self.previous.values().any(Previous::is_looking_up) {
            self.forget_load();
            self.is_due = true;
        }
    }

    pub(super) fn on_found(&mut self, id: TaskId, found: LookedUp) {
        if self.lookup == Some(id) {
            self.lookup = None;
            self.on_found_environment(found);
            return;
        }
        let mut previous = self.previous.iter_mut();
        let waiting = previous.find(|(_, one)| **one == Previous::LookingUp(id));
        let Some((name, previous)) = waiting else {
            return;
        };
        let absent = Previous::Absent(self.stalled_at.clone());
        *previous = match found {
            LookedUp::Failed => Previous::Unknown,
            LookedUp::State(state) => match <[ReleaseFacts; 1]>::try_from(state.releases) {
                Ok([release]) if release.name == *name => Previous::Known {
                    state: state.id,
                    release,
                    is_from_records: true,
                },
                Ok(_) | Err(_) => absent,
            },
            LookedUp::Nothing => absent,
        };
        self.load_with_found();
    }

    /// Adopts the result of the lookup, if nothing else is loaded.
    fn on_found_environment(&mut self, found: LookedUp) {
        self.is_due = true;
        match found {
            LookedUp::Failed => self.looked_up = None,
            LookedUp::Nothing => {}
            LookedUp::State(state) => {
                if self.state.is_none() && self.looked_up.is_some() {
                    self.commands
                        .push(Command::Retained(state.revision.clone()));
                    self.is_from_records = true;
                    let stalled = state.stalled.keys();
                    let unknown = stalled.map(|name| (name.clone(), Previous::Unknown));
                    self.previous = unknown.collect();
                    self.stalled_at.clone_from(&state.revision);
                    self.state = Some(*state);
                }
            }
        }
    }

    /// Determines the previous states of the releases that are stalled in a new state.
    pub(super) fn replace_previous(&mut self, new: &StateFacts, commit: &str) {
        let mut known = std::mem::take(&mut self.previous);
        for name in new.stalled.keys() {
            let previous = match (self.extract(name), known.remove(name)) {
                (Some(extracted), _) => extracted,
                (None, Some(Previous::Absent(at))) if at != commit => Previous::Unknown,
                (None, Some(previous)) => previous,
                (None, None) => Previous::Unknown,
            };
            self.previous.insert(name.clone(), previous);
        }
        commit.clone_into(&mut self.stalled_at);
    }

    /// Extracts a release from the present state, if that contains it.
    fn extract(&mut self, name: &str) -> Option<Previous> {
        let state = self.state.as_ref()?;
        let release = state.releases.iter().find(|one| one.name == name)?.clone();
        let (from, id) = (state.id, self.new_state());
        self.commands.push(Command::Extract {
            id,
            from,
            release: name.to_owned(),
        });
        Some(Previous::Known {
            state: id,
            release,
            is_from_records: self.is_from_records,
        })
    }
}
