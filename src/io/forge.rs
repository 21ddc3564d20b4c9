//! Forges, as far as pleach talks to them: pull requests, one comment of ours on
//! each, the states of commits.
//!
//! Each product has a dialect of its own: where things are, and how they are
//! written. What is sent when is the same for all of them.

pub mod consent;
mod dialect;
mod gitea;
mod github;
mod gitlab;
mod request;
mod token;

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use pleach_domain::plain::one_line;
use pleach_domain::repo::controller::ForgeAddress;
use pleach_domain::repo::format::ForgeKind;

use self::dialect::Dialect;
use self::request::{Answer, Call, Sender};
use super::files::FileError;
use super::git::GitError;

pub use self::token::Token;

/// How many pages of one list are read at most.
const PAGES: u32 = 100;

/// Errors from talking to a forge. None of them holds a token.
#[derive(Debug, thiserror::Error)]
pub enum ForgeError {
    /// The file with the token cannot be read.
    #[error(transparent)]
    Token(#[from] FileError),
    /// What is said to be a token is none.
    #[error("{place} holds no token that can be sent")]
    UnusableToken {
        /// Where it comes from.
        place: String,
    },
    /// The app got no token.
    #[error(transparent)]
    App(Box<GitError>),
    /// Nothing can be sent at all.
    #[error("failed to prepare for requests")]
    Client {
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// No answer, or none that arrived whole.
    #[error("failed to {what} at {api}")]
    Unreachable {
        /// What was asked for.
        what: &'static str,
        /// The API.
        api: String,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// The answer is longer than any should be.
    #[error("failed to {what}: the answer is too long")]
    TooLarge {
        /// What was asked for.
        what: &'static str,
    },
    /// The forge refused.
    #[error("failed to {what}: the forge answers {status}: {said}")]
    Refused {
        /// What was asked for.
        what: &'static str,
        /// The status of the answer.
        status: u16,
        /// Its words.
        said: String,
    },
    /// The forge takes no requests for longer than somebody wants to wait.
    #[error("failed to {what}: the forge takes no requests for {} seconds", after.as_secs())]
    TooMany {
        /// What was asked for.
        what: &'static str,
        /// For how long.
        after: Duration,
    },
    /// The answer is not what such a forge says.
    #[error("failed to {what}: the answer is not understood")]
    NotUnderstood {
        /// What was asked for.
        what: &'static str,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A comment that the forge would not take.
    #[error("a comment of {length} characters is longer than the {limit} that the forge takes")]
    TooLong {
        /// Its length.
        length: usize,
        /// What the forge takes.
        limit: usize,
    },
}

impl ForgeError {
    /// The obvious next step, where there is one.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Refused { status: 401, .. } => Some("the token is wrong, or it has expired"),
            Self::Refused { status: 403, .. } => Some(
                "the token may not do this: it needs to write comments, commit statuses and pull requests; in pipelines for forks there is no such token",
            ),
            Self::Refused { status: 404, .. } => Some(
                "look at the root of the API and at the name of the repository; forges also answer so to tokens that may not see it",
            ),
            Self::Refused {
                status: 301 | 302 | 307 | 308,
                ..
            } => Some("the repository or the API has moved: name where it is now"),
            _ => None,
        }
    }

    /// Whether it is the token: somebody has to put another one into its place.
    pub fn is_about_token(&self) -> bool {
        match self {
            Self::Token(_) | Self::UnusableToken { .. } => true,
            Self::Refused { status, .. } => matches!(status, 401 | 403),
            _ => false,
        }
    }

    /// Whether it may work later without anybody doing something.
    pub fn is_passing(&self) -> bool {
        match self {
            // What an app lacks may be that nobody answers.
            Self::App(_) | Self::Unreachable { .. } | Self::TooMany { .. } => true,
            Self::Refused { status, .. } => *status >= 500 || *status == 408,
            _ => false,
        }
    }
}

/// A repository on a forge, and who we are there.
#[derive(Debug)]
pub struct Forge {
    dialect: &'static dyn Dialect,
    project: String,
    sender: Sender,
}

/// A pull request, or what its forge calls it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullRequest {
    /// Its number.
    pub number: u64,
    /// Whether it still may be merged.
    pub is_open: bool,
    /// The newest commit of it.
    pub head: String,
    /// The branch that it is to be merged into.
    pub base_branch: String,
    /// Whether it comes from another repository.
    pub is_fork: bool,
    /// Number of the account that opened it; none for one that is gone.
    pub author: Option<u64>,
    /// Names of its labels.
    pub labels: Vec<String>,
    /// When something last happened on it, in the words of the forge: only compared.
    pub updated_at: Option<String>,
    /// The commits that it was merged as, if it was: a merge, or what its own
    /// commits became.
    pub merged_as: Vec<String>,
    /// When it was merged, if it was and the forge says so.
    pub merged_at: Option<Timestamp>,
}

/// A comment on a pull request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comment {
    /// Its number.
    pub id: u64,
    /// Number of the account that wrote it; none for one that is gone.
    pub author: Option<u64>,
    /// Name of that account, where the forge finds accounts by name.
    pub login: Option<String>,
    /// Its text.
    pub body: String,
    /// When it was last changed, or written; none where the forge does not say so.
    pub changed_at: Option<Timestamp>,
}

/// What is to be known of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// What it is about: a newer one of the same name replaces it.
    pub context: String,
    /// The state.
    pub state: State,
    /// One line.
    pub description: String,
}

/// The state of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Nobody knows yet.
    Pending,
    /// All is well.
    Success,
    /// Something about the commit is wrong.
    Failure,
    /// Something went wrong that is not the commit's fault.
    Error,
}

/// A pull request that is to be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// Its title.
    pub title: String,
    /// Its text.
    pub body: String,
    /// The branch with the change.
    pub head_branch: String,
    /// The branch that it is to be merged into.
    pub base_branch: String,
}

/// A pull request that was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// Its number.
    pub number: u64,
    /// Where people find it.
    pub url: String,
}

/// What became of a comment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// There was none.
    Created,
    /// It says something else now.
    Updated,
    /// It said the same.
    Unchanged,
}

impl Forge {
    /// Prepares to talk to a forge. `patience` is for how long it is waited for
    /// when it takes no requests.
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

    /// The longest comment that the product takes, in characters.
    pub fn longest_comment(&self) -> usize {
        self.dialect.longest_comment()
    }

    /// Where git has the commits of a pull request.
    pub fn reference(&self, number: u64) -> String {
        self.dialect.reference(number)
    }

    /// One pull request.
    pub async fn pull_request(&self, number: u64) -> Result<PullRequest, ForgeError> {
        let path = self.dialect.pull_request(&self.project, number);
        let call = Call::get("read the pull request", path);
        let answer = self.send(&call).await?;
        read(&call, self.dialect.read_pull_request(&answer.body))
    }

    /// All pull requests that are open.
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

    /// The pull requests by which a commit came, as far as the forge knows them.
    pub async fn pull_requests_of(&self, commit: &str) -> Result<Vec<PullRequest>, ForgeError> {
        let path = self.dialect.pull_requests_of(&self.project, commit);
        let call = Call::get("find the pull request of a commit", path);
        match self.send(&call).await {
            Ok(answer) => read(&call, self.dialect.read_pull_requests_of(&answer.body)),
            // It came by none, or is not known yet.
            Err(ForgeError::Refused {
                status: 404 | 422, ..
            }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Number of the account that the token is of.
    pub async fn account(&self) -> Result<u64, ForgeError> {
        let call = self.dialect.account(self.sender.api());
        let answer = self.send(&call).await?;
        read(&call, self.dialect.read_account(&answer.body))
    }

    /// The comment of an account that begins with a marker. What others wrote is
    /// never taken for it, whatever it begins with.
    pub async fn find_comment(
        &self,
        number: u64,
        account: u64,
        marker: &str,
    ) -> Result<Option<Comment>, ForgeError> {
        let mut found = self.own_comments(number, account, marker, 1).await?;
        Ok(found.pop())
    }

    /// All comments of an account that begin with a text.
    pub async fn find_comments(
        &self,
        number: u64,
        account: u64,
        start: &str,
    ) -> Result<Vec<Comment>, ForgeError> {
        self.own_comments(number, account, start, usize::MAX).await
    }

    /// The first comments of an account that begin with a text.
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

    /// All comments on a pull request, the oldest first.
    async fn comments(&self, number: u64) -> Result<Vec<Comment>, ForgeError> {
        self.some_comments(number, |_| true, usize::MAX).await
    }

    /// The first comments that are looked for.
    async fn some_comments(
        &self,
        number: u64,
        is_wanted: impl Fn(&Comment) -> bool,
        most: usize,
    ) -> Result<Vec<Comment>, ForgeError> {
        let mut found = Vec::new();
        for page in 1..=PAGES {
            let path = self.dialect.comments(&self.project, number, page);
            let call = Call::get("list the comments", path);
            let answer = self.send(&call).await?;
            let comments = read(&call, self.dialect.read_comments(&answer.body))?;
            found.extend(comments.into_iter().filter(&is_wanted));
            if !answer.more || found.len() >= most {
                found.truncate(most);
                return Ok(found);
            }
        }
        // One on the pages after these may be looked for.
        Err(ForgeError::TooLarge {
            what: "list the comments",
        })
    }

    /// Says something on a pull request: once, in one comment, which begins with
    /// the marker and is changed where it says something else.
    pub async fn tell(&self, number: u64, marker: &str, body: &str) -> Result<Told, ForgeError> {
        let (length, limit) = (body.chars().count(), self.longest_comment());
        if length > limit {
            return Err(ForgeError::TooLong { length, limit });
        }
        let account = self.account().await?;
        let Some(comment) = self.find_comment(number, account, marker).await? else {
            let call = self.dialect.create_comment(&self.project, number, body);
            self.send(&call).await?;
            return Ok(Told::Created);
        };
        if is_same(&comment.body, body) {
            return Ok(Told::Unchanged);
        }
        let call = self
            .dialect
            .update_comment(&self.project, number, comment.id, body);
        self.send(&call).await?;
        Ok(Told::Updated)
    }

    /// What was last said of a commit under a name.
    pub async fn status(&self, commit: &str, context: &str) -> Result<Option<Status>, ForgeError> {
        for page in 1..=PAGES {
            let path = self.dialect.statuses(&self.project, commit, page);
            let call = Call::get("list the states of the commit", path);
            let answer = self.send(&call).await?;
            let statuses = read(&call, self.dialect.read_statuses(&answer.body))?;
            // The newest comes first.
            if let Some(status) = statuses.into_iter().find(|one| one.context == context) {
                return Ok(Some(status));
            }
            if !answer.more {
                break;
            }
        }
        Ok(None)
    }

    /// Says what is to be known of a commit.
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

/// Forges keep the ends of lines, and of the text, in ways of their own.
fn is_same(a: &str, b: &str) -> bool {
    let lines = |text: &'_ str| -> Vec<String> {
        let lines = text.trim_end().lines();
        lines.map(|line| line.trim_end().to_owned()).collect()
    };
    lines(a) == lines(b)
}

/// As much of a line as there is room for.
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

/// A time as forges write it; none for anything else.
fn time(text: Option<&String>) -> Option<Timestamp> {
    text?.parse().ok()
}

/// A body as JSON.
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
    fn ends_of_lines_make_no_difference() {
        assert!(is_same("a  \r\nb\r\n\r\n", "a\nb"));
        assert!(!is_same("a\nb", "a\n\nb"));
    }
}
