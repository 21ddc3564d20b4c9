//! What an environment was before the loop started, while nothing newer can be
//! synced: drift is corrected to it.
//!
//! The records of its releases name the commits that they were brought to. They lie
//! in the cluster, and whoever may write there decides nothing about git: a commit
//! counts only where the branch that the configuration names has it in its history,
//! and where it is signed as commits have to be. A release that is not as that commit
//! says is left alone: it is made neither newer nor older by what a record says.

use std::collections::BTreeSet;
use std::sync::Arc;

use pleach_domain::inventory::Source;
use pleach_domain::observe::ClusterId;
use tokio::time::timeout;

use super::reading::for_cluster;
use super::{Environment, LIMIT};
use crate::engine::controller::assigned::Assigned;
use crate::engine::controller::read::load;
use crate::engine::load::Loaded;
use crate::engine::sync::is_cluster;
use crate::engine::sync::state::{self, Search};
use crate::engine::words;
use crate::io::git::former::former;
use crate::io::git::mirror::Remote;

impl Environment {
    /// Looks up what the environment was, where a commit is held and nothing is
    /// known of it; once for each such commit. False where that has to be tried
    /// again.
    pub(super) async fn remember(&mut self, assigned: &Assigned) -> bool {
        let held = self.hold.as_ref().filter(|_| self.loaded.is_none());
        // What git has no more is left alone, also what is there of it.
        let held = held.filter(|hold| hold.reason != "EnvironmentMissing");
        let Some(held) = held.and_then(|hold| hold.revision.clone()) else {
            return true;
        };
        let Some(source) = assigned.grant.source(&self.key.environment) else {
            return true;
        };
        if self.sought.as_ref() == Some(&held) {
            return true;
        }
        let name = self.key.environment.clone();
        let work = format!("to look up what environment {name} was");
        // The cluster is asked first, and then git.
        let _work = self.shared.pulse.work(work, LIMIT * 2);
        let stop = self.shared.stop.clone();
        let looking = Box::pin(self.look_up(assigned, &source));
        let loaded = match stop.run_until_cancelled(looking).await {
            None => return true,
            Some(Ok(loaded)) => loaded,
            Some(Err(error)) => {
                tracing::warn!(environment = %name, %error, "what was synced last cannot be looked up");
                return false;
            }
        };
        self.sought = Some(held);
        let loaded = loaded.and_then(|loaded| for_cluster(loaded, &assigned.grant).ok());
        if let Some(loaded) = loaded {
            tracing::info!(environment = %name, revision = %loaded.revision, "what was synced last is kept as it is");
            self.is_remembered = true;
            self.loaded = Some(Arc::new(loaded));
        }
        true
    }

    /// The environment at the newest commit that its records name, if there is one
    /// that counts.
    async fn look_up(
        &mut self,
        assigned: &Assigned,
        source: &Source,
    ) -> Result<Option<Loaded>, String> {
        let named = self.recorded(assigned, source).await?;
        if named.is_empty() {
            return Ok(None);
        }
        let (remote, branch) = (assigned.remote.clone(), source.branch.clone());
        let name = self.key.environment.clone();
        let reading = tokio::task::spawn_blocking(move || newest(&remote, &branch, &named, &name));
        match timeout(LIMIT, reading).await {
            Ok(Ok(read)) => read,
            Ok(Err(_)) => Err("a commit could not be read; this is a bug".to_owned()),
            Err(_) => Err(format!("git did not answer within {LIMIT:?}")),
        }
    }

    /// The commits of a branch that the records of the releases name.
    async fn recorded(
        &mut self,
        assigned: &Assigned,
        source: &Source,
    ) -> Result<BTreeSet<String>, String> {
        let connected = self.connect(&assigned.grant, None).await?;
        let cluster = connected.cluster.clone();
        let grant = &assigned.grant;
        let meant = grant.cluster.as_ref().or(grant.fallback.as_ref());
        let records = state::releases(&cluster, &Search::Everywhere).await;
        let mut named = BTreeSet::new();
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
                named.insert(installed.revision.clone());
            }
        }
        Ok(named)
    }
}

/// An environment at the newest of some commits at which it can be read. Blocks.
fn newest(
    remote: &Remote,
    branch: &str,
    named: &BTreeSet<String>,
    environment: &str,
) -> Result<Option<Loaded>, String> {
    let former = former(remote, branch, named).map_err(|error| words(&error))?;
    for commit in &former.commits {
        if let Some((Ok(loaded), _)) = load(&former.reader, commit, environment, None) {
            return Ok(Some(loaded));
        }
    }
    Ok(None)
}
