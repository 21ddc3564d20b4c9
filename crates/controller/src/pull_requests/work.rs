//! Preview of one pull request, and its report to the forge.

pub(crate) mod slots;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pleach_model::sanitize::one_line;
use pleach_reconciler::config::Disk;
use tokio::sync::{Mutex, Semaphore};

use self::slots::{Author, Slots};
use super::subject::{Depth, Subject};
use super::{Previewed, Previews};
use crate::{Repository, SourcePolicy};
use pleach_engine::{
    fetching::Fetcher,
    preview_process::{self, CONTEXT, Report, Request, Way, marker},
    words,
};
use pleach_forge::{ForgeError, ReportOutcome, State, Status};
use pleach_git::{
    change::{Change, ChangeError, ChangeMirror, FetchedChange},
    fetch::Carrier,
};

/// Longest comment in bytes, without its last lines.
const LONGEST: usize = 64_500;

/// Reported outcome of a preview.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) previewed: Previewed,
    /// One line.
    pub(super) message: String,
    /// Whether a cluster did not answer.
    pub(super) is_unanswered: bool,
}

/// Result of a preview to report.
struct PreviewResult {
    previewed: Previewed,
    state: Status,
    comment: String,
    /// Whether a cluster did not answer.
    is_unanswered: bool,
}

/// Resources that all pull requests of a repository share.
pub(super) struct Work {
    pub(super) repository: String,
    source_policies: Vec<Arc<SourcePolicy>>,
    pub(super) previews: Previews,
    /// Locked during a fetch.
    mirror: Arc<Mutex<ChangeMirror>>,
    fetcher: Fetcher,
    /// Limits concurrent previews.
    pub(super) slots: Slots,
    /// Single permit for repeated previews of unreachable clusters.
    pub(super) retries: Semaphore,
}

impl Work {
    pub(super) fn new(
        (repository, previews, disk): (&Repository, &Previews, Disk),
        slots: Slots,
    ) -> Self {
        let mirror = ChangeMirror::new(repository.remote.clone(), disk);
        Self {
            repository: repository.name.clone(),
            source_policies: repository.source_policies.clone(),
            previews: previews.clone(),
            mirror: Arc::new(Mutex::new(mirror)),
            fetcher: Fetcher::by(previews.program.clone()),
            slots,
            retries: Semaphore::new(1),
        }
    }

    /// Returns the author of a pull request.
    pub(super) fn author(&self, subject: &Subject) -> Author {
        Author {
            repository: self.repository.clone(),
            account: subject.author,
        }
    }

    /// Previews a commit and reports the result. Returns `None` if it was already reported.
    pub(super) async fn preview(&self, subject: &Subject) -> Result<Option<Outcome>, String> {
        let forge = &self.previews.forge;
        let failed = |error: ForgeError| words(&error);
        let environments = self.environments(&subject.base_branch);
        let marker = marker(&environments);
        let ways = self.ways(&subject.base_branch, &environments);
        let reported = self.last_reported(subject, &marker).await.map_err(failed)?;
        let depth = if ways.is_empty() {
            Depth::Offline
        } else if subject.awaits_consent() {
            let consented = forge.is_consented(subject.number, &subject.head).await;
            subject.depth(consented.map_err(failed)?)
        } else {
            subject.depth(false)
        };
        let is_reported = |depth: Depth| reported.as_ref() == Some(&subject.last_line(depth));
        let is_final = (is_reported(depth) || is_reported(Depth::Unanswered))
            && self.is_final(subject).await.map_err(failed)?;
        if is_final && is_reported(depth) {
            return Ok(None);
        }
        let none = BTreeMap::new();
        let ways = if depth == Depth::Live { &ways } else { &none };
        let (head, number) = (&subject.head, subject.number);
        let pending = status(State::Pending, "preview in progress");
        // Without permission to set a status, a comment can still work. A repeated preview keeps
        // its status until there is a new result.
        let marked = if is_final {
            Ok(())
        } else {
            forge.set_status(head, &pending).await
        };
        let found = match self.fetch(subject).await? {
            Ok(fetched) if fetched.head != *head => {
                // The commit changed, and the next list contains it.
                return Err(format!(
                    "the forge reports {head} as the newest commit, and git has {}",
                    fetched.head
                ));
            }
            Ok(fetched) => {
                let about = (&*marker, &*environments, ways);
                self.find(subject, about, &fetched).await?
            }
            Err(error @ ChangeError::TooLarge(_)) => failed_preview(&marker, &error),
            Err(error @ ChangeError::Passing(_)) => return Err(words(&error)),
        };
        let mut comment = found.comment;
        if depth == Depth::Unconsented {
            comment.push_str("\n\n");
            comment.push_str(&subject.how_to_consent(forge.has_reviews()));
        }
        let last_line = subject.last_line(match depth {
            Depth::Live if found.is_unanswered => Depth::Unanswered,
            depth => depth,
        });
        let comment = format!("{comment}\n\n{last_line}\n");
        let commented = forge.report(number, &marker, &comment).await;
        let marked = match commented {
            Ok(ReportOutcome::Unchanged) if is_final => marked,
            _ => marked.and(forge.set_status(head, &found.state).await),
        };
        commented.map_err(failed)?;
        marked.map_err(failed)?;
        Ok(Some(Outcome {
            previewed: found.previewed,
            message: found.state.description,
            is_unanswered: depth == Depth::Live && found.is_unanswered,
        }))
    }

    /// Runs the preview and builds the report.
    async fn find(
        &self,
        subject: &Subject,
        (marker, environments, ways): (&str, &[String], &BTreeMap<String, Way>),
        fetched: &FetchedChange,
    ) -> Result<PreviewResult, String> {
        let name = name(subject.number);
        let request = Request {
            program: &self.previews.program,
            folder: fetched.folder(),
            base: &subject.base_branch,
            head: &name,
            environments,
            ways,
            variables: self
                .previews
                .live
                .as_ref()
                .map_or(&[], |live| &live.variables),
            limit: LONGEST,
        };
        match preview_process::preview(&request).await {
            Ok(Report { head, .. }) if head != subject.head => Err(format!(
                "{head} was previewed instead of {}; this is a bug",
                subject.head
            )),
            Ok(report) => Ok(PreviewResult {
                previewed: report.verdict.into(),
                state: report.status(),
                comment: report.comment.trim_end().to_owned(),
                is_unanswered: report.unanswered,
            }),
            Err(error) if error.is_about_the_change() => Ok(failed_preview(marker, &error)),
            Err(error) => Err(words(&error)),
        }
    }

    /// Returns the last line of the existing comment.
    async fn last_reported(
        &self,
        subject: &Subject,
        marker: &str,
    ) -> Result<Option<String>, ForgeError> {
        let forge = &self.previews.forge;
        let account = forge.account().await?;
        let comment = forge.find_comment(subject.number, account, marker).await?;
        let last = |text: &str| text.trim_end().lines().next_back().map(str::to_owned);
        Ok(comment.and_then(|comment| last(&comment.body)))
    }

    /// Returns whether the commit status is final.
    async fn is_final(&self, subject: &Subject) -> Result<bool, ForgeError> {
        let forge = &self.previews.forge;
        let status = forge.status(&subject.head, CONTEXT).await?;
        Ok(status.is_none_or(|status| status.state != State::Pending))
    }

    /// Returns the cluster access for the environments of a branch, if configured. An environment
    /// of two branches is synced from neither, and excluded.
    fn ways(&self, branch: &str, environments: &[String]) -> BTreeMap<String, Way> {
        let Some(live) = &self.previews.live else {
            return BTreeMap::new();
        };
        let way = |environment: &String| {
            let mut names = self.source_policies.iter().filter(|source_policy| {
                source_policy.branches.environment(branch) == Some(environment.as_str())
            });
            let (source_policy, None) = (names.next()?, names.next()) else {
                return None;
            };
            let allow = source_policy
                .allow
                .as_ref()
                .map(|allow| allow.declared().clone());
            let cluster = source_policy.cluster.as_ref()?;
            let mut way = Way::of(&source_policy.connection, &cluster.0, allow);
            way.quotes = live.details;
            Some((environment.clone(), way))
        };
        environments.iter().filter_map(way).collect()
    }

    /// Returns the environments of a branch. Empty for a branch without environments: it is a
    /// source of promotions, and all environments are previewed.
    fn environments(&self, branch: &str) -> Vec<String> {
        let names = self.source_policies.iter();
        let names: BTreeSet<&str> = names
            .filter_map(|source_policy| source_policy.branches.environment(branch))
            .collect();
        names.into_iter().map(str::to_owned).collect()
    }

    async fn fetch(&self, subject: &Subject) -> Result<Result<FetchedChange, ChangeError>, String> {
        let mut mirror = Arc::clone(&self.mirror).lock_owned().await;
        let change = Change {
            branch: subject.base_branch.clone(),
            reference: self.previews.forge.reference(subject.number),
            head: subject.head.clone(),
            name: name(subject.number),
            is_fork: subject.is_fork(),
        };
        let fetching = move |carrier: &Carrier<'_>| mirror.fetch(carrier, &change);
        let fetched = self.fetcher.run(fetching).await;
        fetched.map_err(|error| words(&error))
    }
}

/// Builds the report of a preview that failed.
fn failed_preview(marker: &str, error: &dyn std::error::Error) -> PreviewResult {
    let why = words(error);
    // Show it as a code block, so that no markup takes effect.
    let shown = one_line(&why);
    PreviewResult {
        previewed: Previewed::GivenUp,
        state: status(State::Error, &why),
        comment: format!("{marker}\n## pleach: no preview\n\n    {shown}"),
        is_unanswered: false,
    }
}

/// Returns the name of a pull request in the mirror.
fn name(number: u64) -> String {
    format!("pull/{number}")
}

fn status(state: State, description: &str) -> Status {
    Status {
        context: CONTEXT.to_owned(),
        state,
        description: description.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn an_error_in_a_comment_is_one_visible_line() {
        let error = io::Error::other("no file a\u{200b}b\nc\u{202e}d");
        let found = failed_preview("<!-- marker -->", &error);
        assert!(
            found
                .comment
                .ends_with("\n\n    no file a\\u{200b}b c\\u{202e}d"),
            "{}",
            found.comment
        );
    }
}
