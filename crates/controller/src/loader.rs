//! Loading of environments at commits, skipped if nothing changed.

use std::collections::BTreeSet;
use std::fmt::Display;

use pleach_config::{CachingTree, Record, RecordingTree, ResolvedRelease};
use pleach_model::tree::FileTree;
use pleach_planner::observe::ClusterId;
use pleach_reconciler::stall::{ENVIRONMENT_MISSING, Stall};
use pleach_render::answer::AnswerError;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use super::SourcePolicy;
use super::crash::Attempt;
use super::inputs::Inputs;
use pleach_engine::{
    bounded_render::{Answer, BoundedRenderError, EnvironmentAt, RenderSlots},
    load::{Loaded, each_loaded, is_unknown, loaded, resolve, resolve_partly},
    words,
};
use pleach_git::Revision;

/// Result of loading an environment.
#[derive(Debug)]
pub(super) enum LoadResult {
    /// The inputs are unchanged.
    Unchanged,
    /// The inputs, with the environment or the reason why it cannot be synced.
    Loaded(Inputs, Result<Box<Loaded>, Stall>),
    /// The commit exceeds the limits. Only a later retry can show otherwise.
    Exceeded(Stall),
    /// A retry can succeed soon.
    Failed(Stall),
}

/// Loader of environments. Blocking work runs on threads.
#[derive(Debug, Clone)]
pub(super) struct Loader {
    pub(super) slots: RenderSlots,
    /// Cancels long loads.
    pub(super) stop: CancellationToken,
}

impl Loader {
    /// Loads an environment at a commit. Skips the load if the inputs are those of `known`, the
    /// inputs of the last load. Starts the attempt before rendering.
    pub(super) async fn load(
        &self,
        at: EnvironmentAt,
        known: Option<Inputs>,
        attempt: &Attempt,
    ) -> LoadResult {
        let owned = at.clone();
        let checking = spawn_blocking(move || -> Result<bool, Stall> {
            let tree = owned.place.tree(&owned.commit);
            let tree = tree.map_err(|error| Stall::new("InvalidRepository", words(&error)))?;
            Ok(known.is_some_and(|known| known.are_those_of(&tree)))
        });
        match checking.await {
            Ok(Ok(true)) => return LoadResult::Unchanged,
            Ok(Ok(false)) => {}
            Ok(Err(stall)) => return LoadResult::Failed(stall),
            Err(_) => return panicked(&at.commit),
        }
        // A suspect waits without a render slot.
        let permit = attempt.permit().await;
        let _permit = self.slots.permit().await;
        attempt.begin(&at.commit, permit).await;
        let answer = match self.render(&at).await {
            Ok(answer) => answer,
            Err(error @ BoundedRenderError::Beyond(_)) => {
                let words = of_commit(&at.commit, &error);
                return LoadResult::Exceeded(Stall::new("InvalidRepository", words));
            }
            Err(error @ BoundedRenderError::Passing(_)) => {
                return LoadResult::Failed(Stall::new("Unread", of_commit(&at.commit, &error)));
            }
        };
        let owned = at.clone();
        let loading = spawn_blocking(move || {
            let tree = match owned.place.tree(&owned.commit) {
                Ok(tree) => tree,
                Err(error) => {
                    return LoadResult::Failed(Stall::new("InvalidRepository", words(&error)));
                }
            };
            let Some(charge) = answer.charge() else {
                return LoadResult::Failed(out_of_memory(&owned.commit));
            };
            let recording = RecordingTree::new(&tree);
            let (rendered_from, read) = match load_from(&recording, &owned, &answer) {
                Ok(read) => read,
                Err(error) => return LoadResult::Exceeded(invalid_answer(&owned.commit, &error)),
            };
            let mut record = recording.record();
            record.extend(rendered_from);
            let read = read.map(|loaded| Box::new(loaded.charged(charge)));
            LoadResult::Loaded(Inputs::of(&tree, record), read)
        });
        loading.await.unwrap_or_else(|_| panicked(&at.commit))
    }

    /// Loads an environment at a commit, without comparing it to a previous load. The outer error
    /// asks for a retry. Blocks.
    pub(super) fn load_blocking(
        &self,
        at: &EnvironmentAt,
    ) -> Result<Result<Loaded, Stall>, String> {
        let invalid = |words| Ok(Err(Stall::new("InvalidRepository", words)));
        let tree = match at.place.tree(&at.commit) {
            Ok(tree) => tree,
            Err(error) => return invalid(words(&error)),
        };
        match self.render_here(at) {
            Ok(answer) => {
                let charge = answer.charge();
                let charge = charge.ok_or_else(|| out_of_memory(&at.commit).message)?;
                Ok(match load_from(&tree, at, &answer) {
                    Ok((_, read)) => read.map(|loaded| loaded.charged(charge)),
                    Err(error) => Err(invalid_answer(&at.commit, &error)),
                })
            }
            Err(error @ BoundedRenderError::Beyond(_)) => invalid(error.to_string()),
            Err(error @ BoundedRenderError::Passing(_)) => Err(error.to_string()),
        }
    }

    /// Renders another environment of the same commit. Returns `None` on errors. Blocks.
    pub(super) fn load_other(&self, at: &EnvironmentAt) -> Option<Loaded> {
        let tree = at.place.tree(&at.commit).ok()?;
        let answer = self.render_here(at).ok()?;
        let charge = answer.charge()?;
        let cached = CachingTree::new(&tree);
        let environment = resolve(&cached, &at.name).ok()?;
        let (_, rendered) = answer.read(&environment).ok()?;
        let revision = Revision::Commit(at.commit.clone());
        Some(loaded(&cached, revision, environment, rendered).charged(charge))
    }

    fn render_here(&self, at: &EnvironmentAt) -> Result<Answer, BoundedRenderError> {
        Handle::current().block_on(async {
            let waiting = self.stop.run_until_cancelled(self.slots.permit());
            let _permit = waiting.await;
            self.render(at).await
        })
    }

    async fn render(&self, at: &EnvironmentAt) -> Result<Answer, BoundedRenderError> {
        let rendering = self.slots.render(at);
        let ended = self.stop.run_until_cancelled(rendering).await;
        ended.unwrap_or_else(|| {
            Err(BoundedRenderError::Passing(
                "the controller is shutting down".to_owned(),
            ))
        })
    }
}

/// Returns the result of a load that panicked.
fn panicked(commit: &str) -> LoadResult {
    let words = of_commit(commit, &"loading the environment panicked; this is a bug");
    LoadResult::Exceeded(Stall::new("Internal", words))
}

/// Prefixes a text with a short commit id.
pub(super) fn of_commit(commit: &str, words: &dyn Display) -> String {
    format!("commit {}: {words}", commit.get(..7).unwrap_or(commit))
}

/// Checks that an environment names the expected cluster. Makes its sync policy at least as
/// strict as the minimum of the source policy.
pub(super) fn check_cluster(
    mut loaded: Loaded,
    source_policy: &SourcePolicy,
) -> Result<Loaded, Stall> {
    let named = loaded.environment.cluster.id.clone().map(ClusterId);
    match (&source_policy.cluster, named) {
        (Some(intended), Some(named)) if *intended != named => {
            Err(Stall::wrong_cluster(intended, &named))
        }
        _ => {
            loaded.environment.demand(&source_policy.minimum);
            Ok(loaded)
        }
    }
}

/// Returns the hold of a commit that does not fit into memory beside retained environments.
fn out_of_memory(commit: &str) -> Stall {
    let words = "the controller has too little memory for its objects, beside those of other environments and of retained commits";
    Stall::new("MemoryExhausted", of_commit(commit, &words))
}

/// Returns the hold of a commit whose render process gave an invalid answer.
fn invalid_answer(commit: &str, error: &AnswerError) -> Stall {
    let words = format!("the render process returned an invalid answer: {error}");
    Stall::new("Internal", of_commit(commit, &words))
}

/// Builds an environment from its files and the answer of a render process. Also returns the files
/// that the process read. The outer error is about the process.
fn load_from(
    tree: &dyn FileTree,
    at: &EnvironmentAt,
    answer: &Answer,
) -> Result<(Record, Result<Loaded, Stall>), AnswerError> {
    let EnvironmentAt {
        place: _,
        commit,
        name,
        keys: _,
    } = at;
    let invalid =
        |reason: &str, errors: &[String]| Stall::new(reason, of_commit(commit, &errors.join("; ")));
    // A takeover would let one branch seize objects of another branch.
    let takes_over = |release: &ResolvedRelease| {
        let previous = release.moved_from.as_ref()?;
        let (origin, release) = (&release.origin, &release.name.release);
        (previous.environment != *name).then(|| {
            format!("{origin}: release {release} takes ownership of objects of another environment, which only the CLI does: run `pleach apply {name}`")
        })
    };
    let cached = CachingTree::new(tree);
    let partial = match resolve_partly(&cached, name) {
        Ok(partial) => partial,
        Err(findings) => {
            let reason = if is_unknown(&findings) {
                ENVIRONMENT_MISSING
            } else {
                "InvalidRepository"
            };
            let errors = findings.iter().filter(|finding| finding.is_error());
            let errors: Vec<String> = errors.map(ToString::to_string).collect();
            return Ok((Record::default(), Err(invalid(reason, &errors))));
        }
    };
    let (record, rendered) = answer.read(&partial.environment)?;
    let revision = Revision::Commit(commit.clone());
    let loaded = each_loaded(&cached, revision, partial, rendered, &takes_over);
    if loaded.rendered.is_empty() && !loaded.stalled.is_empty() {
        // Every release is stalled.
        let reasons = loaded
            .stalled
            .values()
            .flat_map(|stalled| stalled.reasons.clone());
        let reasons: BTreeSet<String> = reasons.collect();
        let reasons: Vec<String> = reasons.into_iter().collect();
        return Ok((record, Err(invalid("InvalidRepository", &reasons))));
    }
    Ok((record, Ok(loaded)))
}

#[cfg(test)]
mod tests;
