//! What is different from forge to forge: where things are, and how they are
//! written. Pure: nothing is sent here.

use bytes::Bytes;
use http::header::HeaderName;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::consent::{Account, Review};
use super::request::{Call, bearer};
use super::{Comment, ForgeError, Opened, Proposal, PullRequest, Status};

/// What a segment of a path need not escape.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

type Read<T> = Result<T, serde_json::Error>;

/// A product. Paths are below the root of its API.
pub(super) trait Dialect: std::fmt::Debug + Send + Sync {
    /// The header that carries a token.
    fn authorize(&self, token: &str) -> (HeaderName, String) {
        bearer(token)
    }

    /// The longest comment, in characters.
    fn longest_comment(&self) -> usize;

    /// The longest description of a state, in characters.
    fn longest_description(&self) -> usize;

    /// Where git has the commits of a pull request.
    fn reference(&self, number: u64) -> String;

    fn account(&self, api: &str) -> Call;
    fn read_account(&self, body: &Bytes) -> Read<u64>;

    fn pull_request(&self, project: &str, number: u64) -> String;
    fn read_pull_request(&self, body: &Bytes) -> Read<PullRequest>;

    /// Those that are open.
    fn pull_requests(&self, project: &str, page: u32) -> String;
    fn read_pull_requests(&self, body: &Bytes) -> Read<Vec<PullRequest>>;

    /// Those that a commit belongs to.
    fn pull_requests_of(&self, project: &str, commit: &str) -> String;
    fn read_pull_requests_of(&self, body: &Bytes) -> Read<Vec<PullRequest>> {
        self.read_pull_requests(body)
    }

    fn comments(&self, project: &str, number: u64, page: u32) -> String;
    fn read_comments(&self, body: &Bytes) -> Read<Vec<Comment>>;
    fn create_comment(&self, project: &str, number: u64, body: &str) -> Call;
    fn update_comment(&self, project: &str, number: u64, id: u64, body: &str) -> Call;

    /// Path of the reviews of a pull request, the oldest first; none where reviews
    /// name no commit.
    fn reviews(&self, _project: &str, _number: u64, _page: u32) -> Option<String> {
        None
    }
    fn read_reviews(&self, _body: &Bytes) -> Read<Vec<Review>> {
        Ok(Vec::new())
    }

    /// Path of the permissions of an account; none of an account without a name.
    fn permission(&self, project: &str, account: &Account) -> Option<String>;
    /// Whether the account may push.
    fn read_permission(&self, body: &Bytes, account: &Account) -> Read<bool>;

    /// The newest first.
    fn statuses(&self, project: &str, commit: &str, page: u32) -> String;
    fn read_statuses(&self, body: &Bytes) -> Read<Vec<Status>>;
    fn set_status(&self, project: &str, commit: &str, status: &Status) -> Call;

    /// Whether a state was refused because it is the one that is known.
    fn is_so_already(&self, _error: &ForgeError) -> bool {
        false
    }

    fn open(&self, project: &str, proposal: &Proposal) -> Call;
    fn read_opened(&self, body: &Bytes) -> Read<Opened>;
}

/// One segment of a path.
pub(super) fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// Owner and name as segments of a path.
pub(super) fn segments(project: &str) -> String {
    let parts: Vec<String> = project.split('/').map(segment).collect();
    parts.join("/")
}
