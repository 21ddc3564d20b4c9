//! What an environment was before the loop started, while nothing newer can be
//! synced: drift is corrected to it.
//!
//! The records of its releases name the commits that they were brought to. They lie
//! in the cluster, and whoever may write there decides nothing about git: a commit
//! counts only where the branch that the configuration names has it in its history,
//! and where it is signed as commits have to be. A release that is not as that commit
//! says is left alone: it is made neither newer nor older by what a record says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pleach_domain::inventory::Source;
use pleach_domain::observe::ClusterId;
use tokio::sync::oneshot;
use tokio::task::JoinError;

use super::Environment;
use crate::engine::controller::assigned::Assigned;
use crate::engine::controller::held::{Former, complete};
use crate::engine::controller::recollection::{Question, Recalled};
use crate::engine::sync::is_cluster;
use crate::engine::sync::state::{self, Search};
use crate::engine::words;

impl Environment {
    /// Asks what the environment was, where a commit is held and nothing is known of it;
    /// once for each such commit. False where that has to be tried again.
    pub(super) async fn remember(&mut self, assigned: &Assigned) -> bool {
        let held = self.hold.as_ref().filter(|_| self.loaded.is_none());
        // What git has no more is left alone, also what is there of it.
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
                tracing::warn!(%environment, %error, "what was synced last is not known");
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
            // Nobody answers any more when the loop ends.
            drop(self.questions.send(question));
        }
        true
    }

    /// Takes what was found, where nothing is known otherwise; nothing where it could
    /// not be looked up.
    pub(super) fn remembers(&mut self, found: Option<Recalled>) {
        self.remembering = None;
        match found {
            Some(Some(loaded)) if self.loaded.is_none() && self.sought.is_some() => {
                let (environment, revision) = (&self.key.environment, &loaded.revision);
                tracing::info!(%environment, %revision, "what was synced last is kept as it is");
                self.is_remembered = true;
                let mut loaded = Arc::unwrap_or_clone(loaded);
                self.formers = complete(&mut loaded, |_| Former::Unknown);
                self.loaded = Some(Arc::new(loaded));
            }
            Some(_) => {}
            None => self.sought = None,
        }
    }

    /// Asks what held releases were of which that is not known, by their records; all of them
    /// at once. False where that has to be tried again.
    pub(super) async fn remember_held(&mut self, assigned: &Assigned) -> bool {
        let is_unknown = |former: &Former| matches!(former, Former::Unknown);
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
                tracing::warn!(%environment, %error, "what held releases were is not known");
                return false;
            }
        };
        for (name, former) in &mut self.formers {
            if !is_unknown(former) {
                continue;
            }
            *former = Former::Asked;
            let (answer, answered) = oneshot::channel();
            match named.get(name) {
                Some(commit) => {
                    let question = Question {
                        commits: BTreeSet::from([commit.clone()]),
                        release: Some(name.clone()),
                        answer,
                    };
                    // Nobody answers any more when the loop ends.
                    drop(self.questions.send(question));
                }
                // It was never installed from this branch.
                None => drop(answer.send(None)),
            }
            let name = name.clone();
            self.asked
                .spawn_local(async move { (name, answered.await.ok()) });
        }
        tracing::debug!(revision = %loaded.revision, "held releases are looked up");
        true
    }

    /// Takes what a held release was. True where all answers are there: the environment is
    /// read again with them.
    pub(super) fn remembers_held(
        &mut self,
        found: Result<(String, Option<Recalled>), JoinError>,
    ) -> bool {
        if let Ok((name, found)) = found
            && let Some(former) = self.formers.get_mut(&name)
        {
            let commit = self
                .loaded
                .as_ref()
                .map(|loaded| loaded.revision.to_string());
            *former = match found {
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

    /// The commits of a branch that the records of the releases name, by the names of these.
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
                // Another cluster may have a release of the same name.
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
