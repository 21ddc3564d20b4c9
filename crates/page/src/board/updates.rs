//! Changes of the board. One writer applies them in the order of the events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use pleach_model::object::ReleaseName;
use pleach_reconciler::outcome::ReconcileOutcome;

use super::{Board, Environment, Outcome, Release, Run, Stalled, Unreachable};
use crate::facts::{ReleaseFacts, text};

/// Maximum size of the differences of all releases together, in bytes.
const DIFFERENCES: usize = 32 * 1024 * 1024;
/// Number of recent outcomes per release.
const RECENT: usize = 10;

/// A load of an environment at a commit.
#[derive(Debug)]
pub struct LoadedEnvironment<'a> {
    /// Name of the repository.
    pub repository: &'a str,
    /// Name of the environment.
    pub environment: &'a str,
    /// Id of its cluster, if the configuration declares one.
    pub cluster: Option<&'a str>,
    /// The commit.
    pub revision: &'a str,
    /// Names of its releases, including stalled ones.
    pub releases: &'a [String],
    /// Reasons of stalled releases.
    pub stalled: &'a BTreeMap<String, String>,
}

impl Board {
    pub(super) fn next(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }

    pub(super) fn environment(&mut self, name: &str) -> &mut Environment {
        let changed = self.next();
        let environment = self.environments.entry(name.to_owned()).or_default();
        let environment = Arc::make_mut(environment);
        environment.changed = changed;
        environment
    }

    /// Changes a release that the board has and this replica reconciles.
    fn release(&mut self, name: &ReleaseName, change: impl FnOnce(&mut Release)) {
        let changed = self.next();
        let Some(environment) = self.environments.get_mut(&name.environment) else {
            return;
        };
        if let Some(release) = Arc::make_mut(environment).releases.get_mut(&name.release)
            && release.recorded.is_none()
        {
            let release = Arc::make_mut(release);
            change(release);
            release.changed = changed;
        }
    }

    /// Records a fetch of a repository, or its error.
    pub fn fetched(&mut self, repository: &str, result: Result<Timestamp, &str>) {
        let changed = self.next();
        let known = self.repositories.entry(repository.to_owned()).or_default();
        let error = result.err().map(text);
        if known.error != error {
            known.changed = changed;
        }
        known.error = error;
        if let Ok(at) = result {
            known.fetched = Some(at);
        }
    }

    /// Records the number of replicas; 0 while this one is not connected to the others.
    pub fn set_replicas(&mut self, replicas: usize) {
        self.replicas = Some(replicas);
    }

    /// Records that this replica starts or stops to reconcile an environment. Releases that another
    /// replica reconciles come from their objects, see [`Self::recorded`].
    pub fn set_leader(&mut self, environment: &str, leads: bool) {
        let environment = self.environment(environment);
        environment.led_clusters = if leads {
            environment.led_clusters + 1
        } else {
            environment.led_clusters.saturating_sub(1)
        };
        environment.led = environment.led_clusters > 0;
        environment.leader = None;
        if !environment.led {
            environment.releases.clear();
            (environment.stalled, environment.unreachable) = (None, None);
        }
    }

    /// Records a load of an environment: adds its releases and removes those that git no longer
    /// contains.
    pub fn loaded(&mut self, loaded: &LoadedEnvironment<'_>) {
        let environment = self.environment(loaded.environment);
        // A load that began before another replica became the leader.
        if environment.leader.is_some() {
            return;
        }
        environment.repository = Some(loaded.repository.to_owned());
        environment.cluster = loaded.cluster.map(str::to_owned);
        environment.revision = Some(text(loaded.revision));
        environment.stalled = None;
        let names: BTreeSet<&String> = loaded.releases.iter().collect();
        // A release that leaves git stays until its removal is reported. States of the time before
        // this replica was the leader end.
        environment.releases.retain(|name, release| {
            release.recorded.is_none() && (names.contains(name) || release.facts.is_some())
        });
        for name in names {
            let release = environment.releases.entry(name.clone());
            let release = release.or_insert_with(|| {
                Arc::new(Release::new(ReleaseName {
                    environment: loaded.environment.to_owned(),
                    release: name.clone(),
                }))
            });
            let stalled = loaded.stalled.get(name).map(|reason| text(reason));
            if release.stalled != stalled {
                let release = Arc::make_mut(release);
                release.stalled = stalled;
                release.changed = environment.changed;
            }
        }
    }

    /// Records a commit that does not change an environment.
    pub fn unchanged(&mut self, environment: &str, revision: &str) {
        let environment = self.environment(environment);
        environment.revision = Some(text(revision));
        environment.stalled = None;
    }

    /// Records that an environment is stalled.
    pub fn stalled(&mut self, environment: &str, stalled: &Stalled) {
        let environment = self.environment(environment);
        environment.stalled = Some(Stalled {
            revision: stalled.revision.as_deref().map(text),
            reason: text(&stalled.reason),
            message: text(&stalled.message),
        });
    }

    /// Records that the cluster of an environment answered, or its error. An empty error is one
    /// whose text is not known. A repeated answer or error is no change that a reader has to see.
    pub fn answered(&mut self, name: &str, at: Timestamp, error: Option<&str>) {
        let Some(known) = self.environments.get_mut(name) else {
            return;
        };
        let before = known.unreachable.clone();
        let unreachable = error.map(|error| Unreachable {
            message: match &before {
                Some(before) if error.is_empty() => before.message.clone(),
                _ => text(error),
            },
            since: before.as_ref().map_or(at, |before| before.since),
        });
        let is_change = unreachable != before;
        let environment = if is_change {
            self.environment(name)
        } else {
            Arc::make_mut(known)
        };
        environment.unreachable = unreachable;
        if error.is_none() {
            environment.answered = Some(at);
        }
    }

    /// Records the facts of a new plan.
    pub fn planned(&mut self, name: &ReleaseName, facts: &Arc<ReleaseFacts>) {
        self.release(name, |release| {
            let mut facts = Arc::clone(facts);
            if facts.is_partial
                && let Some(before) = &release.facts
            {
                Arc::make_mut(&mut facts).complete(before);
            }
            release.remember_plan(&facts);
            release.facts = Some(facts);
            if release.running().is_none() {
                release.run = None;
            }
        });
        if let Some(branch) = &facts.branch
            && let Some(environment) = self.environments.get_mut(&name.environment)
            && environment.branch.as_ref() != Some(branch)
        {
            Arc::make_mut(environment).branch = Some(branch.clone());
        }
        if facts.plan.size > 0 {
            self.bound_differences();
        }
    }

    /// Drops the oldest differences, so that all of them together stay within their limit.
    fn bound_differences(&mut self) {
        let mut sizes: Vec<(Timestamp, ReleaseName, usize)> = Vec::new();
        for release in self
            .environments
            .values()
            .flat_map(|one| one.releases.values())
        {
            if let Some(facts) = &release.facts {
                let size = facts.plan.size;
                if size > 0 {
                    sizes.push((facts.at, release.name.clone(), size));
                }
            }
        }
        let mut all: usize = sizes.iter().map(|(_, _, size)| size).sum();
        if all <= DIFFERENCES {
            return;
        }
        sizes.sort();
        for (_, name, size) in sizes {
            if all <= DIFFERENCES {
                break;
            }
            all -= size;
            self.release(&name, |release| {
                if let Some(facts) = &mut release.facts {
                    let plan = &mut Arc::make_mut(facts).plan;
                    (plan.changes, plan.size) = (None, 0);
                }
            });
        }
    }

    /// Records that the execution of a plan is about to start.
    pub fn applying(&mut self, name: &ReleaseName, at: Timestamp, changes: &str) {
        self.release(name, |release| {
            let ended = release.run.take_if(|run| run.ended.is_some());
            drop(ended);
            let run = release.run.get_or_insert_with(|| Run::new(at));
            run.changes = text(changes);
        });
    }

    /// Records progress of a run. Progress of a run that ended is ignored.
    pub fn progress(&mut self, name: &ReleaseName, at: Timestamp, change: impl FnOnce(&mut Run)) {
        self.release(name, |release| {
            let run = release.run.get_or_insert_with(|| Run::new(at));
            if run.ended.is_none() {
                change(run);
            }
        });
    }

    /// Records whether the objects of a release are ready.
    pub fn health(&mut self, name: &ReleaseName, is_degraded: bool) {
        self.release(name, |release| release.is_degraded = is_degraded);
    }

    /// Records the number of fields that pleach leaves alone.
    pub fn contended(&mut self, name: &ReleaseName, fields: usize) {
        self.release(name, |release| release.contended = fields);
    }

    /// Records the outcome of a reconcile. A removed release leaves the board.
    pub fn finished(&mut self, name: &ReleaseName, outcome: Outcome) {
        if outcome.outcome == ReconcileOutcome::Removed {
            if self.environments.contains_key(&name.environment) {
                self.environment(&name.environment)
                    .releases
                    .remove(&name.release);
            }
            return;
        }
        let outcome = Outcome {
            message: text(&outcome.message),
            revision: text(&outcome.revision),
            ..outcome
        };
        self.release(name, |release| {
            if let Some(run) = &mut release.run {
                run.ended = run.ended.or(Some(outcome.at));
                run.waits.clear();
            }
            let is_news = |before: &Outcome| {
                before.outcome != outcome.outcome || before.message != outcome.message
            };
            let is_change = release.outcome.as_ref().is_none_or(is_news);
            if is_change && outcome.outcome != ReconcileOutcome::Unchanged {
                release.recent.insert(0, outcome.clone());
                release.recent.truncate(RECENT);
            }
            release.outcome = Some(outcome);
        });
    }
}
