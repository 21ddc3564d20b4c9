//! Desired states of the releases, and their triggers.

use std::collections::{BTreeMap, BTreeSet};

use super::lookup::Previous;
use super::report::{conditions, report_of};
use super::{
    Command, Commit, ConnectionId, Desired, Environment, Phase, RecordChange, ReleaseFacts, Report,
    Round, StateFacts, Task,
};
use crate::Moment;
use crate::stall::Stall;
use crate::state_changes::NotificationState;

/// A release with a running task.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) desired: Desired,
    /// Releases that it depends on.
    depends_on: BTreeSet<String>,
}

impl Environment {
    /// Connects to the cluster of the present state, if it can be synced. Otherwise reports.
    pub(super) fn connect(&mut self, mut round: Round, now: Moment) {
        round.are_tasks_ended = self.tasks == 0;
        let Some(state) = &self.state else {
            self.stop_sync();
            return self.report_all(round, now);
        };
        if let (Some(intended), Some(named)) = (&round.assignment.cluster, &state.cluster)
            && intended != named
        {
            // Errors of a newer commit have priority.
            if self.stall.is_none() {
                let (stall, commit) = (
                    Stall::wrong_cluster(intended, named),
                    state.revision.clone(),
                );
                self.stall(stall, Some(&commit));
            }
            self.stop_sync();
            return self.report_all(round, now);
        }
        let state = state.id;
        self.run(Task::Connect { state });
        self.phase = Phase::Connecting(round);
    }

    /// Stops syncing the environment. Work in progress ends at its next safe point.
    fn stop_sync(&mut self) {
        self.releases = BTreeMap::new();
        self.uninstalls = None;
        self.commands.push(Command::StopSync);
    }

    /// Gives the present state to the releases, and reports about those without a usable state.
    pub(super) fn sync_releases(&mut self, round: Round, connection: ConnectionId, now: Moment) {
        let Some(state) = self.state.take() else {
            return self.report_all(round, now);
        };
        let first = self.desired(&round, &state, connection);
        let mut reports = Vec::new();
        let mut all = BTreeMap::new();
        for (index, release) in state.releases.iter().enumerate() {
            let desired = Desired {
                index,
                ..first.clone()
            };
            all.insert(release.name.clone(), running(desired, release));
        }
        for (name, previous) in &self.previous {
            let stall = self.stall.as_ref().or_else(|| state.stalled.get(name));
            let conditions = conditions(&round.assignment, stall);
            let stall = stall.cloned();
            if let Previous::Known {
                state,
                release,
                is_from_records,
            } = previous
            {
                let desired = Desired {
                    state: *state,
                    conditions,
                    stall,
                    is_stalled: true,
                    is_from_records: *is_from_records,
                    ..first.clone()
                };
                all.insert(name.clone(), running(desired, release));
            } else {
                reports.push(report_of(name, conditions, stall));
            }
        }
        self.state = Some(state);
        self.update_releases(all);
        self.update_uninstalls(&round, first);
        self.report_stalled(round, reports, now);
    }

    /// Returns the desired state of the first release.
    fn desired(&self, round: &Round, state: &StateFacts, connection: ConnectionId) -> Desired {
        let assignment = &round.assignment;
        let cluster = assignment.cluster.as_ref().or(state.cluster.as_ref());
        Desired {
            state: state.id,
            index: 0,
            connection,
            cluster: cluster.or(assignment.fallback.as_ref()).cloned(),
            conditions: conditions(assignment, self.stall.as_ref()),
            stall: self.stall.clone(),
            is_stalled: false,
            is_from_records: self.is_from_records,
        }
    }

    fn update_releases(&mut self, all: BTreeMap<String, Running>) {
        let mut known = std::mem::take(&mut self.releases);
        for (name, running) in &all {
            let desired = || (name.clone(), running.desired.clone());
            match known.remove(name) {
                Some(known) if known.desired == running.desired => {}
                Some(_) => {
                    let (name, desired) = desired();
                    self.commands.push(Command::UpdateRelease(name, desired));
                }
                None => {
                    self.tasks += 1;
                    let (name, desired) = desired();
                    self.commands.push(Command::StartRelease(name, desired));
                }
            }
        }
        let removed = known.into_keys().map(Command::RemoveRelease);
        self.commands.extend(removed);
        self.releases = all;
    }

    /// Uninstalls follow the newest commit only: a release can be back in a commit that cannot be
    /// loaded.
    fn update_uninstalls(&mut self, round: &Round, first: Desired) {
        if self.stall.is_some() {
            if self.uninstalls.take().is_some() {
                self.commands.push(Command::StopUninstalls);
            }
        } else if matches!(round.assignment.commit, Commit::Followed(_)) {
            let known = self.uninstalls.replace(first.clone());
            self.tasks += usize::from(known.is_none());
            let is_changed = known.as_ref() != Some(&first);
            self.commands.push(Command::Uninstall { first, is_changed });
        }
    }

    fn report_stalled(&mut self, round: Round, reports: Vec<Report>, now: Moment) {
        if reports.is_empty() {
            self.reported = None;
            self.notified
                .values_mut()
                .for_each(NotificationState::clear_stall);
            return self.finish(&round, None, now);
        }
        self.report(round, reports, now);
    }

    /// Triggers the releases that could wait for this one.
    pub(super) fn trigger_dependents(&mut self, name: &str) {
        let dependents = self.releases.iter();
        let dependents = dependents.filter(|(_, running)| running.depends_on.contains(name));
        let triggers = dependents.map(|(name, _)| Command::TriggerDependent(name.clone()));
        self.commands.extend(triggers);
    }

    /// Triggers the releases with changed user requests, and those that depend on changed ones.
    pub(super) fn on_changes(&mut self, changes: Vec<RecordChange>) {
        let mut providers = Vec::new();
        for change in changes {
            let RecordChange {
                release,
                affects_dependents,
                is_requested,
                fetch,
            } = change;
            if let Some(request) = fetch {
                // A push without a webhook is followed as soon as it is fetched.
                self.commands.push(Command::Fetch(release.clone(), request));
            }
            if is_requested {
                self.commands.push(if self.releases.contains_key(&release) {
                    Command::TriggerRelease(release.clone())
                } else {
                    // Its uninstall might be allowed now.
                    Command::TriggerUninstalls
                });
            }
            if affects_dependents {
                providers.push(release);
            }
        }
        for name in providers {
            self.trigger_dependents(&name);
        }
    }
}

fn running(desired: Desired, release: &ReleaseFacts) -> Running {
    Running {
        desired,
        depends_on: release.depends_on.clone(),
    }
}
