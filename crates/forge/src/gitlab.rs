//! Dialect of GitLab, with merge requests and notes instead of pull requests and comments.

use bytes::Bytes;
use http::Method;
use http::header::HeaderName;
use serde::Deserialize;
use serde_json::json;

use super::consent::Account;
use super::dialect::{Dialect, segment};
use super::request::Call;
use super::{Comment, ForgeError, Opened, Proposal, PullRequest, State, Status, parse, time};

#[derive(Debug)]
pub(super) struct Gitlab;

#[derive(Deserialize)]
struct User {
    id: u64,
}

#[derive(Deserialize)]
struct MergeRequest {
    iid: u64,
    state: String,
    sha: Option<String>,
    target_branch: String,
    /// `None` if the project was deleted.
    source_project_id: Option<u64>,
    target_project_id: u64,
    #[serde(default)]
    labels: Vec<String>,
    merge_commit_sha: Option<String>,
    squash_commit_sha: Option<String>,
    merged_at: Option<String>,
    author: Option<User>,
    updated_at: Option<String>,
}

/// A member of a project, or of a group above it.
#[derive(Deserialize)]
struct Member {
    id: u64,
    access_level: u32,
    state: Option<String>,
}

/// Minimum access level for push access: Developer.
const DEVELOPER: u32 = 30;

#[derive(Deserialize)]
struct Note {
    id: u64,
    author: Option<User>,
    #[serde(default)]
    body: String,
    /// Whether GitLab itself wrote the note.
    #[serde(default)]
    system: bool,
    created_at: Option<String>,
    updated_at: Option<String>,
}

#[derive(Deserialize)]
struct CommitStatus {
    name: String,
    status: String,
    description: Option<String>,
}

#[derive(Deserialize)]
struct OpenedRequest {
    iid: u64,
    web_url: String,
}

impl From<MergeRequest> for PullRequest {
    fn from(request: MergeRequest) -> Self {
        let is_merged = request.state == "merged";
        let commits = [request.merge_commit_sha, request.squash_commit_sha];
        let merged_as = commits.into_iter().flatten().filter(|_| is_merged);
        Self {
            merged_as: merged_as
                .chain(request.sha.clone().filter(|_| is_merged))
                .collect(),
            merged_at: time(request.merged_at.as_ref()),
            number: request.iid,
            is_open: request.state == "opened",
            head: request.sha.unwrap_or_default(),
            base_branch: request.target_branch,
            is_fork: request.source_project_id != Some(request.target_project_id),
            author: request.author.map(|user| user.id),
            labels: request.labels,
            updated_at: request.updated_at,
        }
    }
}

impl From<Note> for Comment {
    fn from(note: Note) -> Self {
        let changed_at = note.updated_at.or(note.created_at);
        Self {
            changed_at: time(changed_at.as_ref()),
            id: note.id,
            author: note.author.filter(|_| !note.system).map(|user| user.id),
            login: None,
            body: note.body,
        }
    }
}

impl From<CommitStatus> for Status {
    fn from(status: CommitStatus) -> Self {
        Self {
            context: status.name,
            state: match status.status.as_str() {
                "success" => State::Success,
                "failed" => State::Failure,
                "canceled" => State::Error,
                _ => State::Pending,
            },
            description: status.description.unwrap_or_default(),
        }
    }
}

fn project_path(project: &str) -> String {
    format!("/projects/{}", segment(project))
}

impl Dialect for Gitlab {
    fn authorize(&self, token: &str) -> (HeaderName, String) {
        (HeaderName::from_static("private-token"), token.to_owned())
    }

    fn longest_comment(&self) -> usize {
        1_000_000
    }

    fn longest_description(&self) -> usize {
        255
    }

    fn reference(&self, number: u64) -> String {
        format!("refs/merge-requests/{number}/head")
    }

    fn account(&self, _api: &str) -> Call {
        Call::get("read the account of the token", "/user".to_owned())
    }

    fn read_account(&self, body: &Bytes) -> Result<u64, serde_json::Error> {
        parse::<User>(body).map(|user| user.id)
    }

    fn pull_request(&self, project: &str, number: u64) -> String {
        format!("{}/merge_requests/{number}", project_path(project))
    }

    fn read_pull_request(&self, body: &Bytes) -> Result<PullRequest, serde_json::Error> {
        parse::<MergeRequest>(body).map(PullRequest::from)
    }

    fn pull_requests(&self, project: &str, page: u32) -> String {
        let project = project_path(project);
        format!("{project}/merge_requests?state=opened&per_page=100&page={page}")
    }

    fn read_pull_requests(&self, body: &Bytes) -> Result<Vec<PullRequest>, serde_json::Error> {
        let requests = parse::<Vec<MergeRequest>>(body)?;
        Ok(requests.into_iter().map(PullRequest::from).collect())
    }

    fn pull_requests_of(&self, project: &str, commit: &str) -> String {
        let (project, commit) = (project_path(project), segment(commit));
        format!("{project}/repository/commits/{commit}/merge_requests?per_page=100")
    }

    fn comments(&self, project: &str, number: u64, page: u32) -> String {
        let project = project_path(project);
        format!(
            "{project}/merge_requests/{number}/notes?sort=asc&order_by=created_at&per_page=20&page={page}"
        )
    }

    fn read_comments(&self, body: &Bytes) -> Result<Vec<Comment>, serde_json::Error> {
        let notes = parse::<Vec<Note>>(body)?;
        Ok(notes.into_iter().map(Comment::from).collect())
    }

    fn create_comment(&self, project: &str, number: u64, body: &str) -> Call {
        Call::send(
            "write the comment",
            Method::POST,
            format!("{}/merge_requests/{number}/notes", project_path(project)),
            json!({"body": body}),
        )
    }

    fn update_comment(&self, project: &str, number: u64, id: u64, body: &str) -> Call {
        Call::send(
            "change the comment",
            Method::PUT,
            format!(
                "{}/merge_requests/{number}/notes/{id}",
                project_path(project)
            ),
            json!({"body": body}),
        )
    }

    /// Includes members of the groups above the project. Approvals do not name a commit here.
    fn permission(&self, project: &str, account: &Account) -> Option<String> {
        let project = project_path(project);
        Some(format!("{project}/members/all/{}", account.id))
    }

    fn read_permission(&self, body: &Bytes, account: &Account) -> Result<bool, serde_json::Error> {
        let member = parse::<Member>(body)?;
        let is_active = member.state.is_none_or(|state| state == "active");
        Ok(member.id == account.id && is_active && member.access_level >= DEVELOPER)
    }

    /// The list has one status per name: the newest.
    fn statuses(&self, project: &str, commit: &str, page: u32) -> String {
        let (project, commit) = (project_path(project), segment(commit));
        format!("{project}/repository/commits/{commit}/statuses?per_page=100&page={page}")
    }

    fn read_statuses(&self, body: &Bytes) -> Result<Vec<Status>, serde_json::Error> {
        let statuses = parse::<Vec<CommitStatus>>(body)?;
        Ok(statuses.into_iter().map(Status::from).collect())
    }

    fn set_status(&self, project: &str, commit: &str, status: &Status) -> Call {
        let state = match status.state {
            State::Pending => "pending",
            State::Success => "success",
            State::Failure => "failed",
            State::Error => "canceled",
        };
        Call::send(
            "set the status of the commit",
            Method::POST,
            format!("{}/statuses/{}", project_path(project), segment(commit)),
            json!({
                "name": status.context,
                "state": state,
                "description": status.description,
            }),
        )
    }

    /// GitLab rejects a status that the commit already has.
    fn is_so_already(&self, error: &ForgeError) -> bool {
        matches!(error, ForgeError::Refused { status: 400, message, .. }
            if message.contains("Cannot transition status via"))
    }

    fn open(&self, project: &str, proposal: &Proposal) -> Call {
        Call::send(
            "open the pull request",
            Method::POST,
            format!("{}/merge_requests", project_path(project)),
            json!({
                "title": proposal.title,
                "description": proposal.body,
                "source_branch": proposal.head_branch,
                "target_branch": proposal.base_branch,
                "remove_source_branch": true,
            }),
        )
    }

    fn read_opened(&self, body: &Bytes) -> Result<Opened, serde_json::Error> {
        parse::<OpenedRequest>(body).map(|opened| Opened {
            number: opened.iid,
            url: opened.web_url,
        })
    }
}
