//! Clients for forges: pull requests, one comment of ours on each, and commit statuses.
//!
//! Each product has a dialect with its paths and formats. The sequence of requests is the same for
//! all products.

pub mod consent;
mod dialect;
pub mod download;
mod gitea;
mod github;
mod gitlab;
mod request;
mod token;
pub mod webhook;

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use pleach_formats::file::ForgeKind;
use pleach_model::sanitize::one_line;
use pleach_reconciler::config::ForgeAddress;

use self::dialect::Dialect;
use self::request::{Answer, Call, Sender};
use pleach_files::FileError;
use pleach_git::GitError;

pub use self::token::Token;

/// Maximum number of pages that are read of one list.
const PAGES: u32 = 100;

/// Errors of forge requests. None contains a token.
#[derive(Debug, thiserror::Error)]
pub enum ForgeError {
    /// The file with the token could not be read.
    #[error(transparent)]
    Token(#[from] FileError),
    /// The configured token has an invalid format.
    #[error("{place} does not contain a valid token")]
    UnusableToken {
        /// Source of the token.
        place: String,
    },
    /// The GitHub App got no token.
    #[error(transparent)]
    App(Box<GitError>),
    /// The HTTP client could not be built.
    #[error("failed to create the HTTP client")]
    Client {
        /// Cause.
        #[source]
        source: reqwest::Error,
    },
    /// The forge sent no complete answer.
    #[error("failed to {what} at {api}")]
    Unreachable {
        /// Operation.
        what: &'static str,
        /// Root of the API.
        api: String,
        /// Cause.
        #[source]
        source: reqwest::Error,
    },
    /// The answer exceeds the size limit.
    #[error("failed to {what}: the response is too long")]
    TooLarge {
        /// Operation.
        what: &'static str,
    },
    /// The forge refused the request.
    #[error("failed to {what}: the forge answered {status}: {message}")]
    Refused {
        /// Operation.
        what: &'static str,
        /// HTTP status.
        status: u16,
        /// Message of the forge.
        message: String,
    },
    /// A rate limit lasts longer than the caller is willing to wait.
    #[error("failed to {what}: the forge accepts no requests for {} seconds", after.as_secs())]
    TooMany {
        /// Operation.
        what: &'static str,
        /// Remaining time of the limit.
        after: Duration,
    },
    /// The answer has an unexpected format.
    #[error("failed to {what}: the response has an unexpected format")]
    NotUnderstood {
        /// Operation.
        what: &'static str,
        /// Cause.
        #[source]
        source: serde_json::Error,
    },
    /// The comment exceeds the limit of the forge.
    #[error("a comment of {length} characters exceeds the forge's limit of {limit}")]
    TooLong {
        /// Length in characters.
        length: usize,
        /// Limit in characters.
        limit: usize,
    },
}

impl ForgeError {
    /// Returns the next step for the user, if there is an obvious one.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Refused { status: 401, .. } => Some("the token is wrong, or it has expired"),
            Self::Refused { status: 403, .. } => Some(
                "the token is not allowed to do this: it must be able to write comments, commit statuses and pull requests; pipelines for forks have no such token",
            ),
            Self::Refused { status: 404, .. } => Some(
                "check the URL of the API and the name of the repository; forges answer the same if the token has no access to it",
            ),
            Self::Refused {
                status: 301 | 302 | 307 | 308,
                ..
            } => Some("the repository or the API has moved: configure the new location"),
            _ => None,
        }
    }

    /// Returns whether the token is the cause and must be replaced.
    pub fn is_about_token(&self) -> bool {
        match self {
            Self::Token(_) | Self::UnusableToken { .. } => true,
            Self::Refused { status, .. } => matches!(status, 401 | 403),
            _ => false,
        }
    }

    /// Returns whether a later attempt can succeed without intervention.
    pub fn is_passing(&self) -> bool {
        match self {
            // The token request of the app could have failed temporarily.
            Self::App(_) | Self::Unreachable { .. } | Self::TooMany { .. } => true,
            Self::Refused { status, .. } => *status >= 500 || *status == 408,
            _ => false,
        }
    }
}

/// Client for a repository on a forge, with its credentials.
#[derive(Debug)]
pub struct Forge {
    dialect: &'static dyn Dialect,
    project: String,
    sender: Sender,
}

/// Pull request or merge request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullRequest {
    /// Number of the pull request.
    pub number: u64,
    /// Whether it can still be merged.
    pub is_open: bool,
    /// Its newest commit.
    pub head: String,
    /// Target branch.
    pub base_branch: String,
    /// Whether the source is another repository.
    pub is_fork: bool,
    /// Account id of the author. `None` if the account was deleted.
    pub author: Option<u64>,
    /// Names of its labels.
    pub labels: Vec<String>,
    /// Time of the last update as sent by the forge. Only used for comparison.
    pub updated_at: Option<String>,
    /// Commits on the target branch if it was merged: the merge commit, or the rebased commits.
    pub merged_as: Vec<String>,
    /// Time of the merge, if the forge reports it.
    pub merged_at: Option<Timestamp>,
}

/// A comment on a pull request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comment {
    /// Id of the comment.
    pub id: u64,
    /// Account id of the author. `None` if the account was deleted.
    pub author: Option<u64>,
    /// Login of the author, if the forge looks up accounts by name.
    pub login: Option<String>,
    /// Its text.
    pub body: String,
    /// Time of the last change or of the creation. `None` if the forge does not report it.
    pub changed_at: Option<Timestamp>,
}

/// Commit status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Context. A newer status with the same context replaces this one.
    pub context: String,
    /// The state.
    pub state: State,
    /// Description, one line.
    pub description: String,
}

/// The state of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// The result is not known yet.
    Pending,
    /// The check succeeded.
    Success,
    /// The check found a problem in the commit.
    Failure,
    /// The check failed for a reason that is not in the commit.
    Error,
}

/// Pull request to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// Its title.
    pub title: String,
    /// Description.
    pub body: String,
    /// Source branch.
    pub head_branch: String,
    /// Target branch.
    pub base_branch: String,
}

/// Opened pull request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// Number of the pull request.
    pub number: u64,
    /// URL for humans.
    pub url: String,
}

/// Result of writing a comment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportOutcome {
    /// The comment was created.
    Created,
    /// The text of the comment changed.
    Updated,
    /// The comment already had this text.
    Unchanged,
}

impl Forge {
    /// Creates the client of a forge. `patience` limits the wait for the end of a rate limit.
    pub fn new(
        address: ForgeAddress,
        token: Token,
        patience: Duration,
    ) -> Result<Self, ForgeError> {
        let dialect: &'static dyn Dialect = match address.kind {
            ForgeKind::Github => &github::Github,
            ForgeKind::Gitlab => &gitlab::Gitlab,
            ForgeKind::Gitea => &gitea::Gitea,
        };
        Ok(Self {
            dialect,
            project: address.project,
            sender: Sender::new(address.api, token, patience)?,
        })
    }

    /// Returns the maximum length of a comment, in characters.
    pub fn longest_comment(&self) -> usize {
        self.dialect.longest_comment()
    }

    /// Returns the git reference of a pull request.
    pub fn reference(&self, number: u64) -> String {
        self.dialect.reference(number)
    }

    /// Reads a pull request.
    pub async fn pull_request(&self, number: u64) -> Result<PullRequest, ForgeError> {
        let path = self.dialect.pull_request(&self.project, number);
        let call = Call::get("read the pull request", path);
        let answer = self.send(&call).await?;
        read(&call, self.dialect.read_pull_request(&answer.body))
    }

    /// Reads all open pull requests.
    pub async fn pull_requests(&self) -> Result<Vec<PullRequest>, ForgeError> {
        let mut found = Vec::new();
        for page in 1..=PAGES {
            let path = self.dialect.pull_requests(&self.project, page);
            let call = Call::get("list the pull requests", path);
            let answer = self.send(&call).await?;
            found.extend(read(&call, self.dialect.read_pull_requests(&answer.body))?);
            if !answer.more {
                break;
            }
        }
        Ok(found)
    }

    /// Returns the pull requests that introduced a commit, as far as the forge knows them.
    pub async fn pull_requests_of(&self, commit: &str) -> Result<Vec<PullRequest>, ForgeError> {
        let path = self.dialect.pull_requests_of(&self.project, commit);
        let call = Call::get("find the pull request of a commit", path);
        match self.send(&call).await {
            Ok(answer) => read(&call, self.dialect.read_pull_requests_of(&answer.body)),
            // No pull request introduced the commit, or the forge does not know it yet.
            Err(ForgeError::Refused {
                status: 404 | 422, ..
            }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Returns the id of the account that owns the token.
    pub async fn account(&self) -> Result<u64, ForgeError> {
        let call = self.dialect.account(self.sender.api());
        let answer = self.send(&call).await?;
        read(&call, self.dialect.read_account(&answer.body))
    }

    /// Returns the comment of an account that begins with a marker. Comments of other accounts
    /// never match.
    pub async fn find_comment(
        &self,
        number: u64,
        account: u64,
        marker: &str,
    ) -> Result<Option<Comment>, ForgeError> {
        let mut found = self.own_comments(number, account, marker, 1).await?;
        Ok(found.pop())
    }

    /// Returns all comments of an account that begin with a text.
    pub async fn find_comments(
        &self,
        number: u64,
        account: u64,
        start: &str,
    ) -> Result<Vec<Comment>, ForgeError> {
        self.own_comments(number, account, start, usize::MAX).await
    }

    /// Returns up to `most` comments of an account that begin with a text.
    async fn own_comments(
        &self,
        number: u64,
        account: u64,
        start: &str,
        most: usize,
    ) -> Result<Vec<Comment>, ForgeError> {
        let is_ours = |comment: &Comment| {
            comment.author == Some(account) && comment.body.trim_start().starts_with(start)
        };
        self.some_comments(number, is_ours, most).await
    }

    /// Returns all comments on a pull request, oldest first.
    async fn comments(&self, number: u64) -> Result<Vec<Comment>, ForgeError> {
        self.some_comments(number, |_| true, usize::MAX).await
    }

    /// Returns up to `most` comments that match, oldest first.
    async fn some_comments(
        &self,
        number: u64,
        is_selected: impl Fn(&Comment) -> bool,
        most: usize,
    ) -> Result<Vec<Comment>, ForgeError> {
        let mut found = Vec::new();
        for page in 1..=PAGES {
            let path = self.dialect.comments(&self.project, number, page);
            let call = Call::get("list the comments", path);
            let answer = self.send(&call).await?;
            let comments = read(&call, self.dialect.read_comments(&answer.body))?;
            found.extend(comments.into_iter().filter(&is_selected));
            if !answer.more || found.len() >= most {
                found.truncate(most);
                return Ok(found);
            }
        }
        // A later page could contain a matching comment.
        Err(ForgeError::TooLarge {
            what: "list the comments",
        })
    }

    /// Writes a comment on a pull request. There is one comment per marker; it begins with the
    /// marker and is updated if its text changes.
    pub async fn report(
        &self,
        number: u64,
        marker: &str,
        body: &str,
    ) -> Result<ReportOutcome, ForgeError> {
        let (length, limit) = (body.chars().count(), self.longest_comment());
        if length > limit {
            return Err(ForgeError::TooLong { length, limit });
        }
        let account = self.account().await?;
        let Some(comment) = self.find_comment(number, account, marker).await? else {
            let call = self.dialect.create_comment(&self.project, number, body);
            self.send(&call).await?;
            return Ok(ReportOutcome::Created);
        };
        if is_same(&comment.body, body) {
            return Ok(ReportOutcome::Unchanged);
        }
        let call = self
            .dialect
            .update_comment(&self.project, number, comment.id, body);
        self.send(&call).await?;
        Ok(ReportOutcome::Updated)
    }

    /// Returns the newest status of a commit in a context.
    pub async fn status(&self, commit: &str, context: &str) -> Result<Option<Status>, ForgeError> {
        for page in 1..=PAGES {
            let path = self.dialect.statuses(&self.project, commit, page);
            let call = Call::get("list the statuses of the commit", path);
            let answer = self.send(&call).await?;
            let statuses = read(&call, self.dialect.read_statuses(&answer.body))?;
            // The list is sorted, newest first.
            if let Some(status) = statuses.into_iter().find(|one| one.context == context) {
                return Ok(Some(status));
            }
            if !answer.more {
                break;
            }
        }
        Ok(None)
    }

    /// Sets a commit status.
    pub async fn set_status(&self, commit: &str, status: &Status) -> Result<(), ForgeError> {
        let status = Status {
            description: shortened(&status.description, self.dialect.longest_description()),
            ..status.clone()
        };
        let call = self.dialect.set_status(&self.project, commit, &status);
        match self.send(&call.repeatable()).await {
            Err(error) if self.dialect.is_so_already(&error) => Ok(()),
            sent => sent.map(drop),
        }
    }

    /// Opens a pull request.
    pub async fn open(&self, proposal: &Proposal) -> Result<Opened, ForgeError> {
        let call = self.dialect.open(&self.project, proposal);
        let answer = self.send(&call).await?;
        read(&call, self.dialect.read_opened(&answer.body))
    }

    async fn send(&self, call: &Call) -> Result<Answer, ForgeError> {
        self.sender
            .send(call, |token| self.dialect.authorize(token))
            .await
    }
}

fn read<T>(call: &Call, read: Result<T, serde_json::Error>) -> Result<T, ForgeError> {
    read.map_err(|source| ForgeError::NotUnderstood {
        what: call.what,
        source,
    })
}

/// Compares texts without trailing whitespace, which forges change.
fn is_same(a: &str, b: &str) -> bool {
    let lines = |text: &'_ str| -> Vec<String> {
        let lines = text.trim_end().lines();
        lines.map(|line| line.trim_end().to_owned()).collect()
    };
    lines(a) == lines(b)
}

/// Shortens a text to one line of at most `limit` characters.
fn shortened(text: &str, limit: usize) -> String {
    let line = one_line(text);
    if line.chars().count() <= limit {
        return line;
    }
    let mut short: String = line.chars().take(limit - 1).collect();
    short.truncate(short.trim_end().len());
    short.push('…');
    short
}

/// Parses a timestamp of a forge. `None` if it is missing or invalid.
fn time(text: Option<&String>) -> Option<Timestamp> {
    text?.parse().ok()
}

/// Parses a body as JSON.
fn parse<T: serde::de::DeserializeOwned>(body: &Bytes) -> Result<T, serde_json::Error> {
    serde_json::from_slice(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_shortened_by_characters() {
        assert_eq!(shortened("all\nwell", 20), "all well");
        assert_eq!(shortened("a\u{202e}b\u{200b}", 20), "a\\u{202e}b\\u{200b}");
        assert_eq!(shortened("äöü äöü", 7), "äöü äöü");
        assert_eq!(shortened("äöü äöü", 5), "äöü…");
    }

    #[test]
    fn line_endings_do_not_matter() {
        assert!(is_same("a  \r\nb\r\n\r\n", "a\nb"));
        assert!(!is_same("a\nb", "a\n\nb"));
    }
}
