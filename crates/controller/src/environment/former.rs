//! Restores the last applied state of an environment after a restart, while no newer commit can be
//! synced. Drift is corrected to that state.
//!
//! The records of its releases name the commits, but clients with write access to the cluster must
//! not decide about git. So a commit counts only if it is in the history of the configured branch,
//! and carries the required signatures. A release in another state than that commit is left alone:
//! a record never causes an upgrade or a downgrade.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pleach_planner::observe::ClusterId;
use pleach_state::inventory::Source;
use tokio::sync::oneshot;
use tokio::task::JoinError;

use super::Environment;
use crate::{
    assignment::Assigned,
    held::{Former, complete},
    history_lookup::{Question, Recalled},
};
use pleach_engine::{
    sync::{
        is_cluster,
        state::{self, Search},
    },
    words,
};

impl Environment {
    /// Starts a lookup of the previous state if a commit is stalled and none is loaded, once per
    /// stalled commit. Returns false to ask for a retry.
    pub(super) async fn remember(&mut self, assigned: &Assigned) -> bool {
        let held = self.hold.as_ref().filter(|_| self.loaded.is_none());
        // An environment that left git is not touched.
        let held = held.filter(|hold| hold.reason != "EnvironmentMissing");
        let Some(held) = held.and_then(|hold| hold.revision.clone()) else {
            self.remembering = None;
            return true;
        };
        let Some(source) = assigned.grant.source(&self.key.environment) else {
            return true;
        };
        if self.sought.as_ref() == Some(&held) {
            return true;
        }
        let stop = self.shared.stop.clone();
        let named = stop.run_until_cancelled(Box::pin(self.recorded(assigned, &source)));
        let commits: BTreeSet<String> = match named.await {
            None => return true,
            Some(Ok(named)) => named.into_iter().map(|(_, commit)| commit).collect(),
            Some(Err(error)) => {
                let environment = &self.key.environment;
                tracing::warn!(%environment, %error, "failed to read the last applied revisions");
                return false;
            }
        };
        self.sought = Some(held);
        if !commits.is_empty() {
            let (answer, answered) = oneshot::channel();
            self.remembering = Some(answered);
            let question = Question {
                commits,
                release: None,
                answer,
            };
            // The receiver is gone only at shutdown.
            drop(self.questions.send(question));
        }
        true
    }

    /// Adopts the result of the lookup if nothing else is loaded. The outer `None`: the lookup
    /// failed.
    pub(super) fn remembers(&mut self, found: Option<Recalled>) {
        self.remembering = None;
        match found {
            Some(Some(loaded)) if self.loaded.is_none() && self.sought.is_some() => {
                let (environment, revision) = (&self.key.environment, &loaded.revision);
                tracing::info!(%environment, %revision, "the last applied revision is retained");
                self.is_remembered = true;
                let mut loaded = Arc::unwrap_or_clone(loaded);
                self.formers = complete(&mut loaded, |_| Former::Unknown);
                self.loaded = Some(Arc::new(loaded));
            }
            Some(_) => {}
            None => self.sought = None,
        }
    }

    /// Starts lookups of the unknown previous states of stalled releases, all at once. Returns
    /// false to ask for a retry.
    pub(super) async fn remember_held(&mut self, assigned: &Assigned) -> bool {
        let is_unknown = |previous: &Former| matches!(previous, Former::Unknown);
        let (Some(source), Some(loaded)) = (
            assigned.grant.source(&self.key.environment),
            self.loaded.clone(),
        ) else {
            return true;
        };
        if !self.asked.is_empty() || !self.formers.values().any(is_unknown) {
            return true;
        }
        let stop = self.shared.stop.clone();
        let named = stop.run_until_cancelled(Box::pin(self.recorded(assigned, &source)));
        let named: BTreeMap<String, String> = match named.await {
            None => return true,
            Some(Ok(named)) => named.into_iter().collect(),
            Some(Err(error)) => {
                let environment = &self.key.environment;
                tracing::warn!(%environment, %error, "failed to read the last applied revisions of stalled releases");
                return false;
            }
        };
        for (name, previous) in &mut self.formers {
            if !is_unknown(previous) {
                continue;
            }
            *previous = Former::Asked;
            let (answer, answered) = oneshot::channel();
            match named.get(name) {
                Some(commit) => {
                    let question = Question {
                        commits: BTreeSet::from([commit.clone()]),
                        release: Some(name.clone()),
                        answer,
                    };
                    // The receiver is gone only at shutdown.
                    drop(self.questions.send(question));
                }
                // The release was never installed from this branch.
                None => drop(answer.send(None)),
            }
            let name = name.clone();
            self.asked
                .spawn_local(async move { (name, answered.await.ok()) });
        }
        tracing::debug!(revision = %loaded.revision, "looking up the last applied revisions of stalled releases");
        true
    }

    /// Records the previous state of a stalled release. Returns true if no lookup is left, so that
    /// the environment is loaded again.
    pub(super) fn remembers_held(
        &mut self,
        found: Result<(String, Option<Recalled>), JoinError>,
    ) -> bool {
        if let Ok((name, found)) = found
            && let Some(previous) = self.formers.get_mut(&name)
        {
            let commit = self
                .loaded
                .as_ref()
                .map(|loaded| loaded.revision.to_string());
            *previous = match found {
                Some(Some(loaded)) if loaded.names() == [name.as_str()] => {
                    Former::Known(loaded, true)
                }
                Some(_) => Former::Absent(commit.unwrap_or_default()),
                None => Former::Unknown,
            };
        }
        let is_over = self.asked.is_empty();
        if is_over {
            self.tried = None;
            self.inputs = None;
        }
        is_over
    }

    /// Returns the recorded commits of a branch, with the names of their releases.
    async fn recorded(
        &mut self,
        assigned: &Assigned,
        source: &Source,
    ) -> Result<Vec<(String, String)>, String> {
        let loaded = self.loaded.as_ref();
        let context = loaded.and_then(|loaded| loaded.environment.cluster.context.clone());
        let connected = self.connect(&assigned.grant, context).await?;
        let cluster = connected.cluster.clone();
        let grant = &assigned.grant;
        let meant = grant.cluster.as_ref().or(grant.fallback.as_ref());
        let records = state::releases(&cluster, &Search::Everywhere).await;
        let mut named = Vec::new();
        for release in records.map_err(|error| words(&error))?.releases {
            if release.name.environment != self.key.environment {
                continue;
            }
            let Ok(record) = &release.record else {
                continue;
            };
            let Some(installed) = &record.installed else {
                continue;
            };
            if record.source.as_ref() != Some(source) {
                continue;
            }
            let is_meant = match meant {
                // Another cluster can have a release of the same name.
                Some(ClusterId(id)) => is_cluster(&cluster, &release.store, id).await == Some(true),
                None => true,
            };
            if is_meant {
                named.push((release.name.release.clone(), installed.revision.clone()));
            }
        }
        Ok(named)
    }
}
