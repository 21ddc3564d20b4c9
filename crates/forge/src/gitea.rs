//! Dialect of Gitea and Forgejo: GitHub's with differences.

use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderName};

use super::consent::{Account, Review};
use super::dialect::{Dialect, segment, segments};
use super::github::{CommitStatus, Github, IssueComment, Pull, User};
use super::request::Call;
use super::{Comment, Opened, Proposal, PullRequest, Status, parse};

#[derive(Debug)]
pub(super) struct Gitea;

impl Dialect for Gitea {
    fn authorize(&self, token: &str) -> (HeaderName, String) {
        (AUTHORIZATION, format!("token {token}"))
    }

    /// Gitea has no limit. This one keeps comments readable.
    fn longest_comment(&self) -> usize {
        65_536
    }

    fn longest_description(&self) -> usize {
        255
    }

    fn reference(&self, number: u64) -> String {
        Github.reference(number)
    }

    fn account(&self, _api: &str) -> Call {
        Call::get("read the account of the token", "/user".to_owned())
    }

    fn read_account(&self, body: &Bytes) -> Result<u64, serde_json::Error> {
        parse::<User>(body).map(|user| user.id)
    }

    fn pull_request(&self, project: &str, number: u64) -> String {
        Github.pull_request(project, number)
    }

    fn read_pull_request(&self, body: &Bytes) -> Result<PullRequest, serde_json::Error> {
        parse::<Pull>(body).map(PullRequest::from)
    }

    fn pull_requests(&self, project: &str, page: u32) -> String {
        let project = segments(project);
        format!("/repos/{project}/pulls?state=open&limit=50&page={page}")
    }

    fn read_pull_requests(&self, body: &Bytes) -> Result<Vec<PullRequest>, serde_json::Error> {
        Github.read_pull_requests(body)
    }

    fn pull_requests_of(&self, project: &str, commit: &str) -> String {
        let (project, commit) = (segments(project), segment(commit));
        format!("/repos/{project}/commits/{commit}/pull")
    }

    /// Gitea returns only the pull request that was merged.
    fn read_pull_requests_of(&self, body: &Bytes) -> Result<Vec<PullRequest>, serde_json::Error> {
        parse::<Pull>(body).map(|pull| vec![pull.into()])
    }

    /// Gitea ignores the page and returns all comments.
    fn comments(&self, project: &str, number: u64, page: u32) -> String {
        let project = segments(project);
        format!("/repos/{project}/issues/{number}/comments?limit=50&page={page}")
    }

    fn read_comments(&self, body: &Bytes) -> Result<Vec<Comment>, serde_json::Error> {
        let comments = parse::<Vec<IssueComment>>(body)?;
        Ok(comments.into_iter().map(Comment::from).collect())
    }

    fn create_comment(&self, project: &str, number: u64, body: &str) -> Call {
        Github.create_comment(project, number, body)
    }

    fn update_comment(&self, project: &str, number: u64, id: u64, body: &str) -> Call {
        Github.update_comment(project, number, id, body)
    }

    fn reviews(&self, project: &str, number: u64, page: u32) -> Option<String> {
        let project = segments(project);
        Some(format!(
            "/repos/{project}/pulls/{number}/reviews?limit=50&page={page}"
        ))
    }

    fn read_reviews(&self, body: &Bytes) -> Result<Vec<Review>, serde_json::Error> {
        Github.read_reviews(body)
    }

    /// Gitea answers this only to repository administrators.
    fn permission(&self, project: &str, account: &Account) -> Option<String> {
        Github.permission(project, account)
    }

    fn read_permission(&self, body: &Bytes, account: &Account) -> Result<bool, serde_json::Error> {
        Github.read_permission(body, account)
    }

    fn statuses(&self, project: &str, commit: &str, page: u32) -> String {
        let (project, commit) = (segments(project), segment(commit));
        format!("/repos/{project}/statuses/{commit}?sort=recentupdate&limit=50&page={page}")
    }

    fn read_statuses(&self, body: &Bytes) -> Result<Vec<Status>, serde_json::Error> {
        let statuses = parse::<Vec<CommitStatus>>(body)?;
        Ok(statuses.into_iter().map(Status::from).collect())
    }

    fn set_status(&self, project: &str, commit: &str, status: &Status) -> Call {
        Github.set_status(project, commit, status)
    }

    fn open(&self, project: &str, proposal: &Proposal) -> Call {
        Github.open(project, proposal)
    }

    fn read_opened(&self, body: &Bytes) -> Result<Opened, serde_json::Error> {
        Github.read_opened(body)
    }
}
