//! Differences between forge products: paths and formats. Pure: nothing is sent here.

use bytes::Bytes;
use http::header::HeaderName;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::consent::{Account, Review};
use super::request::{Call, bearer};
use super::{Comment, ForgeError, Opened, Proposal, PullRequest, Status};

/// Characters to escape in a path segment.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

type Read<T> = Result<T, serde_json::Error>;

/// Forge product. Paths are relative to the root of its API.
pub(super) trait Dialect: std::fmt::Debug + Send + Sync {
    /// Returns the header for a token.
    fn authorize(&self, token: &str) -> (HeaderName, String) {
        bearer(token)
    }

    /// Returns the maximum length of a comment, in characters.
    fn longest_comment(&self) -> usize;

    /// Returns the maximum length of a status description, in characters.
    fn longest_description(&self) -> usize;

    /// Returns the git reference of a pull request.
    fn reference(&self, number: u64) -> String;

    fn account(&self, api: &str) -> Call;
    fn read_account(&self, body: &Bytes) -> Read<u64>;

    fn pull_request(&self, project: &str, number: u64) -> String;
    fn read_pull_request(&self, body: &Bytes) -> Read<PullRequest>;

    /// Returns the path of the list of open pull requests.
    fn pull_requests(&self, project: &str, page: u32) -> String;
    fn read_pull_requests(&self, body: &Bytes) -> Read<Vec<PullRequest>>;

    /// Returns the path of the list of pull requests that contain a commit.
    fn pull_requests_of(&self, project: &str, commit: &str) -> String;
    fn read_pull_requests_of(&self, body: &Bytes) -> Read<Vec<PullRequest>> {
        self.read_pull_requests(body)
    }

    fn comments(&self, project: &str, number: u64, page: u32) -> String;
    fn read_comments(&self, body: &Bytes) -> Read<Vec<Comment>>;
    fn create_comment(&self, project: &str, number: u64, body: &str) -> Call;
    fn update_comment(&self, project: &str, number: u64, id: u64, body: &str) -> Call;

    /// Returns the path of the reviews of a pull request, oldest first. `None` if reviews do not
    /// name a commit.
    fn reviews(&self, _project: &str, _number: u64, _page: u32) -> Option<String> {
        None
    }
    fn read_reviews(&self, _body: &Bytes) -> Read<Vec<Review>> {
        Ok(Vec::new())
    }

    /// Returns the path of the permissions of an account. `None` for an account without a login.
    fn permission(&self, project: &str, account: &Account) -> Option<String>;
    /// Returns whether the account has push access.
    fn read_permission(&self, body: &Bytes, account: &Account) -> Read<bool>;

    /// Returns the path of the commit statuses, newest first.
    fn statuses(&self, project: &str, commit: &str, page: u32) -> String;
    fn read_statuses(&self, body: &Bytes) -> Read<Vec<Status>>;
    fn set_status(&self, project: &str, commit: &str, status: &Status) -> Call;

    /// Returns whether a status was refused because the commit already has it.
    fn is_so_already(&self, _error: &ForgeError) -> bool {
        false
    }

    fn open(&self, project: &str, proposal: &Proposal) -> Call;
    fn read_opened(&self, body: &Bytes) -> Read<Opened>;
}

/// Escapes one path segment.
pub(super) fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// Escapes owner and name as path segments.
pub(super) fn segments(project: &str) -> String {
    let parts: Vec<String> = project.split('/').map(segment).collect();
    parts.join("/")
}
