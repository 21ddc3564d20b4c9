//! What releases were brought to before the loop started, for those whose newest
//! commit waits: drift is corrected to it.
//!
//! The record of a release names the commit that it was brought to. It lies in the
//! cluster, and whoever may write there decides nothing about git: a commit counts
//! only where the branch that the configuration names has it in its history, and
//! where it is signed as commits have to be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use super::Shared;
use super::assigned::Assigned;
use super::environment::{LIMIT, for_cluster};
use super::read::load;
use crate::engine::load::Loaded;
use crate::engine::words;
use crate::io::git::former::former;
use crate::io::git::mirror::Remote;

/// What an environment was at a commit; none where that commit does not count.
pub(super) type Recalled = Option<Arc<Loaded>>;

/// Asks what an environment was at a commit. Nothing is answered where that could
/// not be looked up now.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) commit: String,
    pub(super) answer: oneshot::Sender<Recalled>,
}

impl Question {
    fn answer(self, recalled: Recalled) {
        // Who asked may have something newer to look at by now.
        drop(self.answer.send(recalled));
    }
}

/// Looks up what an environment was; one such task per environment.
pub(super) struct Recollection {
    pub(super) environment: String,
    pub(super) assigned: watch::Receiver<Assigned>,
    pub(super) questions: mpsc::UnboundedReceiver<Question>,
    pub(super) shared: Shared,
}

impl Recollection {
    /// Answers until the environment is no longer followed, or the loop ends.
    pub(super) async fn run(mut self) {
        let stop = self.shared.stop.clone();
        // Those who asked keep it: it is given to others as long as they do.
        let mut known: BTreeMap<String, Weak<Loaded>> = BTreeMap::new();
        while let Some(Some(first)) = stop.run_until_cancelled(self.questions.recv()).await {
            let mut asked = vec![first];
            while let Ok(question) = self.questions.try_recv() {
                asked.push(question);
            }
            known.retain(|_, loaded| loaded.strong_count() > 0);
            let mut open = Vec::new();
            for question in asked {
                match known.get(&question.commit).and_then(Weak::upgrade) {
                    Some(loaded) => question.answer(Some(loaded)),
                    None => open.push(question),
                }
            }
            let named: BTreeSet<String> = open.iter().map(|one| one.commit.clone()).collect();
            if named.is_empty() {
                continue;
            }
            let found = match stop.run_until_cancelled(self.look_up(named)).await {
                None => return,
                Some(Ok(found)) => found,
                Some(Err(error)) => {
                    tracing::warn!(environment = %self.environment, %error, "what was synced last cannot be looked up");
                    continue;
                }
            };
            for question in open {
                let loaded = found.get(&question.commit).cloned();
                if let Some(loaded) = &loaded {
                    known.insert(question.commit.clone(), Arc::downgrade(loaded));
                }
                question.answer(loaded);
            }
        }
    }

    /// The environment at those of the commits that count.
    async fn look_up(
        &self,
        named: BTreeSet<String>,
    ) -> Result<BTreeMap<String, Arc<Loaded>>, String> {
        let assigned = self.assigned.borrow().clone();
        let name = self.environment.clone();
        let Some(source) = assigned.grant.source(&name) else {
            return Ok(BTreeMap::new());
        };
        let work = format!("to look up what environment {name} was");
        let _work = self.shared.pulse.work(work, LIMIT);
        let (remote, branch) = (assigned.remote, source.branch);
        let reading = tokio::task::spawn_blocking(move || all(&remote, &branch, &named, &name));
        let read = match timeout(LIMIT, reading).await {
            Ok(Ok(read)) => read?,
            Ok(Err(_)) => return Err("a commit could not be read; this is a bug".to_owned()),
            Err(_) => return Err(format!("git did not answer within {LIMIT:?}")),
        };
        let fitting = read.into_iter().filter_map(|(commit, loaded)| {
            let loaded = for_cluster(loaded, &assigned.grant).ok()?;
            Some((commit, Arc::new(loaded)))
        });
        Ok(fitting.collect())
    }
}

/// An environment at all of some commits at which it can be read. Blocks.
fn all(
    remote: &Remote,
    branch: &str,
    named: &BTreeSet<String>,
    environment: &str,
) -> Result<Vec<(String, Loaded)>, String> {
    let former = former(remote, branch, named).map_err(|error| words(&error))?;
    let read = |commit: &String| match load(&former.reader, commit, environment, None) {
        Some((Ok(loaded), _)) => Some((commit.clone(), loaded)),
        _ => None,
    };
    Ok(former.commits.iter().filter_map(read).collect())
}
