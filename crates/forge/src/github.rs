//! Dialect of GitHub and GitHub Enterprise Server.

use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use serde_json::json;

use super::consent::{Account, Opinion, Review};
use super::dialect::{Dialect, segment, segments};
use super::request::Call;
use super::{Comment, Opened, Proposal, PullRequest, State, Status, parse, time};

#[derive(Debug)]
pub(super) struct Github;

#[derive(Deserialize)]
struct Viewer {
    data: ViewerData,
}

#[derive(Deserialize)]
struct ViewerData {
    viewer: ViewerUser,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ViewerUser {
    database_id: u64,
}

/// Pull request as sent by GitHub and Gitea.
#[derive(Deserialize)]
pub(super) struct Pull {
    number: u64,
    state: String,
    user: Option<User>,
    head: End,
    base: End,
    #[serde(default)]
    labels: Vec<Label>,
    /// Null while the pull request is open.
    merged_at: Option<String>,
    merge_commit_sha: Option<String>,
    updated_at: Option<String>,
}

#[derive(Deserialize)]
struct End {
    sha: String,
    #[serde(rename = "ref")]
    branch: String,
    /// `None` if the repository was deleted.
    repo: Option<Repository>,
}

#[derive(Deserialize)]
struct Repository {
    id: u64,
}

#[derive(Deserialize)]
struct Label {
    name: String,
}

/// Comment as sent by GitHub and Gitea.
#[derive(Deserialize)]
pub(super) struct IssueComment {
    id: u64,
    user: Option<User>,
    body: Option<String>,
    created_at: Option<String>,
    updated_at: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct User {
    pub(super) id: u64,
    #[serde(default)]
    pub(super) login: Option<String>,
}

/// Review as sent by GitHub and Gitea.
#[derive(Deserialize)]
struct PullReview {
    user: Option<User>,
    state: String,
    commit_id: Option<String>,
    /// Gitea only: whether the author has push access.
    #[serde(default)]
    official: bool,
    /// Gitea only. GitHub has a state for this.
    #[serde(default)]
    dismissed: bool,
}

/// Permission of an account as sent by GitHub and Gitea.
#[derive(Deserialize)]
struct Permission {
    permission: String,
    user: Option<User>,
}

/// Commit status as sent by GitHub, and by Gitea with another name for the state.
#[derive(Deserialize)]
pub(super) struct CommitStatus {
    #[serde(alias = "status")]
    state: String,
    context: String,
    description: Option<String>,
}

/// Opened pull request as sent by GitHub and Gitea.
#[derive(Deserialize)]
pub(super) struct OpenedPull {
    number: u64,
    html_url: String,
}

impl From<Pull> for PullRequest {
    fn from(pull: Pull) -> Self {
        let id = |end: &End| end.repo.as_ref().map(|repository| repository.id);
        // An open pull request can name a test merge.
        let merged_as = pull.merge_commit_sha.filter(|_| pull.merged_at.is_some());
        Self {
            merged_at: time(pull.merged_at.as_ref()),
            number: pull.number,
            is_open: pull.state == "open",
            merged_as: merged_as.into_iter().collect(),
            // If the source repository was deleted, it was another repository.
            is_fork: id(&pull.head).is_none() || id(&pull.head) != id(&pull.base),
            head: pull.head.sha,
            base_branch: pull.base.branch,
            author: pull.user.map(|user| user.id),
            updated_at: pull.updated_at,
            labels: pull.labels.into_iter().map(|label| label.name).collect(),
        }
    }
}

impl From<IssueComment> for Comment {
    fn from(comment: IssueComment) -> Self {
        let changed_at = comment.updated_at.or(comment.created_at);
        let (author, login) = match comment.user {
            Some(user) => (Some(user.id), user.login),
            None => (None, None),
        };
        Self {
            changed_at: time(changed_at.as_ref()),
            id: comment.id,
            author,
            login,
            body: comment.body.unwrap_or_default(),
        }
    }
}

impl From<PullReview> for Review {
    fn from(review: PullReview) -> Self {
        Self {
            author: review.user.map(Account::from),
            commit: review.commit_id.unwrap_or_default(),
            opinion: match review.state.as_str() {
                "APPROVED" if !review.dismissed => Opinion::Approves,
                "APPROVED" | "CHANGES_REQUESTED" | "REQUEST_CHANGES" | "DISMISSED" => {
                    Opinion::Objects
                }
                _ => Opinion::None,
            },
            is_official: review.official,
        }
    }
}

impl From<User> for Account {
    fn from(user: User) -> Self {
        Self {
            id: user.id,
            login: user.login,
        }
    }
}

impl From<CommitStatus> for Status {
    fn from(status: CommitStatus) -> Self {
        Self {
            context: status.context,
            state: match status.state.as_str() {
                "success" => State::Success,
                "failure" => State::Failure,
                "pending" => State::Pending,
                _ => State::Error,
            },
            description: status.description.unwrap_or_default(),
        }
    }
}

impl From<OpenedPull> for Opened {
    fn from(opened: OpenedPull) -> Self {
        Self {
            number: opened.number,
            url: opened.html_url,
        }
    }
}

/// Returns GitHub's and Gitea's name of a state.
pub(super) fn word(state: State) -> &'static str {
    match state {
        State::Pending => "pending",
        State::Success => "success",
        State::Failure => "failure",
        State::Error => "error",
    }
}

impl Dialect for Github {
    fn longest_comment(&self) -> usize {
        65_536
    }

    fn longest_description(&self) -> usize {
        140
    }

    fn reference(&self, number: u64) -> String {
        format!("refs/pull/{number}/head")
    }

    /// Uses GraphQL, because REST does not reveal the account of app and pipeline tokens.
    fn account(&self, api: &str) -> Call {
        let root = api.strip_suffix("/v3").unwrap_or(api);
        let query = json!({"query": "{viewer{databaseId}}"});
        let path = format!("{root}/graphql");
        Call::send("read the account of the token", Method::POST, path, query).repeatable()
    }

    fn read_account(&self, body: &Bytes) -> Result<u64, serde_json::Error> {
        parse::<Viewer>(body).map(|answer| answer.data.viewer.database_id)
    }

    fn pull_request(&self, project: &str, number: u64) -> String {
        format!("/repos/{}/pulls/{number}", segments(project))
    }

    fn read_pull_request(&self, body: &Bytes) -> Result<PullRequest, serde_json::Error> {
        parse::<Pull>(body).map(PullRequest::from)
    }

    fn pull_requests(&self, project: &str, page: u32) -> String {
        let project = segments(project);
        format!("/repos/{project}/pulls?state=open&per_page=100&page={page}")
    }

    fn read_pull_requests(&self, body: &Bytes) -> Result<Vec<PullRequest>, serde_json::Error> {
        let pulls = parse::<Vec<Pull>>(body)?;
        Ok(pulls.into_iter().map(PullRequest::from).collect())
    }

    fn pull_requests_of(&self, project: &str, commit: &str) -> String {
        let (project, commit) = (segments(project), segment(commit));
        format!("/repos/{project}/commits/{commit}/pulls?per_page=100")
    }

    fn comments(&self, project: &str, number: u64, page: u32) -> String {
        let project = segments(project);
        format!("/repos/{project}/issues/{number}/comments?per_page=100&page={page}")
    }

    fn read_comments(&self, body: &Bytes) -> Result<Vec<Comment>, serde_json::Error> {
        let comments = parse::<Vec<IssueComment>>(body)?;
        Ok(comments.into_iter().map(Comment::from).collect())
    }

    fn create_comment(&self, project: &str, number: u64, body: &str) -> Call {
        Call::send(
            "write the comment",
            Method::POST,
            format!("/repos/{}/issues/{number}/comments", segments(project)),
            json!({"body": body}),
        )
    }

    fn update_comment(&self, project: &str, _number: u64, id: u64, body: &str) -> Call {
        Call::send(
            "change the comment",
            Method::PATCH,
            format!("/repos/{}/issues/comments/{id}", segments(project)),
            json!({"body": body}),
        )
    }

    fn reviews(&self, project: &str, number: u64, page: u32) -> Option<String> {
        let project = segments(project);
        Some(format!(
            "/repos/{project}/pulls/{number}/reviews?per_page=100&page={page}"
        ))
    }

    fn read_reviews(&self, body: &Bytes) -> Result<Vec<Review>, serde_json::Error> {
        let reviews = parse::<Vec<PullReview>>(body)?;
        Ok(reviews.into_iter().map(Review::from).collect())
    }

    fn permission(&self, project: &str, account: &Account) -> Option<String> {
        let (project, login) = (segments(project), segment(account.login.as_deref()?));
        Some(format!("/repos/{project}/collaborators/{login}/permission"))
    }

    fn read_permission(&self, body: &Bytes, account: &Account) -> Result<bool, serde_json::Error> {
        let permission = parse::<Permission>(body)?;
        // A login can be reassigned to another account.
        let is_it = permission.user.is_some_and(|user| user.id == account.id);
        let may_push = ["owner", "admin", "maintain", "write"].contains(&&*permission.permission);
        Ok(is_it && may_push)
    }

    fn statuses(&self, project: &str, commit: &str, page: u32) -> String {
        let (project, commit) = (segments(project), segment(commit));
        format!("/repos/{project}/commits/{commit}/statuses?per_page=100&page={page}")
    }

    fn read_statuses(&self, body: &Bytes) -> Result<Vec<Status>, serde_json::Error> {
        let statuses = parse::<Vec<CommitStatus>>(body)?;
        Ok(statuses.into_iter().map(Status::from).collect())
    }

    fn set_status(&self, project: &str, commit: &str, status: &Status) -> Call {
        Call::send(
            "set the status of the commit",
            Method::POST,
            format!("/repos/{}/statuses/{}", segments(project), segment(commit)),
            json!({
                "context": status.context,
                "state": word(status.state),
                "description": status.description,
            }),
        )
    }

    fn open(&self, project: &str, proposal: &Proposal) -> Call {
        Call::send(
            "open the pull request",
            Method::POST,
            format!("/repos/{}/pulls", segments(project)),
            json!({
                "title": proposal.title,
                "body": proposal.body,
                "head": proposal.head_branch,
                "base": proposal.base_branch,
            }),
        )
    }

    fn read_opened(&self, body: &Bytes) -> Result<Opened, serde_json::Error> {
        parse::<OpenedPull>(body).map(Opened::from)
    }
}
