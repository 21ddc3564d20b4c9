//! Fake forge on loopback with the parts of GitHub, GitLab and Gitea that pleach uses.
//!
//! It has one repository and one token with its account. A request that does not follow the
//! product's documentation is answered with 404 and recorded in [`FakeForge::wrong`].

mod github;
mod gitlab;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::Response;
use pleach_formats::file::ForgeKind;
use serde_json::{Value, json};

use crate::loopback::{Loopback, response};

/// Accepted token.
pub const TOKEN: &str = "forge-token-tell-nobody";

/// Id of the token's account.
pub const ACCOUNT: u64 = 42;

/// Repository.
pub const PROJECT: &str = "example/fleet";

/// A pull request.
#[derive(Debug, Clone, Default)]
pub struct Pull {
    /// The newest commit.
    pub head: String,
    /// Target branch.
    pub base_branch: String,
    /// Whether the source is another repository.
    pub is_fork: bool,
    /// Whether it was merged or closed.
    pub is_closed: bool,
    /// Commit on the target branch.
    pub merged_as: Option<String>,
    /// Its labels.
    pub labels: Vec<String>,
    /// Account id of the author.
    pub author: u64,
}

impl Pull {
    /// Returns whether the pull request introduced a commit.
    fn came_as(&self, commit: &str) -> bool {
        self.head == commit || self.merged_as.as_deref() == Some(commit)
    }
}

/// A review of a pull request.
#[derive(Debug, Clone)]
struct Review {
    author: u64,
    commit: String,
    state: String,
}

/// Recorded request.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The method.
    pub method: String,
    /// Path and query as sent.
    pub path: String,
    /// The headers.
    pub headers: BTreeMap<String, String>,
    /// Body. Null without one.
    pub body: Value,
}

#[derive(Debug, Clone)]
struct Note {
    id: u64,
    author: u64,
    body: String,
    /// Time of the last change.
    changed_at: &'static str,
}

/// Time of all merges.
const MERGED_AT: &str = "2026-11-02T09:14:03Z";

#[derive(Debug, Clone)]
struct Known {
    commit: String,
    context: String,
    state: String,
    description: String,
}

/// Injected answer.
#[derive(Debug, Clone)]
struct Fault {
    status: StatusCode,
    headers: Vec<(String, String)>,
    body: String,
}

#[derive(Debug)]
struct Inner {
    kind: ForgeKind,
    /// Maximum number of items per page.
    page: usize,
    token: String,
    pulls: BTreeMap<u64, Pull>,
    notes: BTreeMap<u64, Vec<Note>>,
    reviews: BTreeMap<u64, Vec<Review>>,
    /// Accounts with push access.
    members: BTreeSet<u64>,
    /// Number of updates by pull request.
    updates: BTreeMap<u64, u64>,
    statuses: Vec<Known>,
    opened: Vec<Value>,
    seen: Vec<Seen>,
    wrong: Vec<String>,
    faults: VecDeque<Fault>,
    next: u64,
}

/// Running fake forge. Dropping it ends it.
///
/// ```
/// use pleach_formats::file::ForgeKind;
/// use pleach_testkit::forge::{FakeForge, Pull};
///
/// # fn main() -> anyhow::Result<()> {
/// let forge = FakeForge::start(ForgeKind::Gitea)?;
/// forge.put(7, Pull { head: "abc".to_owned(), ..Pull::default() });
/// assert!(forge.api().ends_with("/api/v1"));
/// assert!(forge.notes(7).is_empty());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct FakeForge {
    inner: Arc<Mutex<Inner>>,
    running: Loopback,
}

impl FakeForge {
    /// Starts a forge on a free port.
    pub fn start(kind: ForgeKind) -> anyhow::Result<Self> {
        let inner = Arc::new(Mutex::new(Inner {
            kind,
            page: 100,
            token: TOKEN.to_owned(),
            pulls: BTreeMap::new(),
            notes: BTreeMap::new(),
            reviews: BTreeMap::new(),
            members: BTreeSet::new(),
            updates: BTreeMap::new(),
            statuses: Vec::new(),
            opened: Vec::new(),
            seen: Vec::new(),
            wrong: Vec::new(),
            faults: VecDeque::new(),
            next: 1000,
        }));
        let router = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&inner));
        Ok(Self {
            inner,
            running: Loopback::start(0, router)?,
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the root of the API, as in a self-hosted product.
    pub fn api(&self) -> String {
        let version = match self.inner().kind {
            ForgeKind::Github => "v3",
            ForgeKind::Gitlab => "v4",
            ForgeKind::Gitea => "v1",
        };
        format!("http://{}/api/{version}", self.running.address())
    }

    /// Sets the maximum number of items per page.
    pub fn page(&self, items: usize) {
        self.inner().page = items;
    }

    /// Replaces the accepted token.
    pub fn demand(&self, token: &str) {
        token.clone_into(&mut self.inner().token);
    }

    /// Opens or replaces a pull request.
    pub fn put(&self, number: u64, pull: Pull) {
        let mut inner = self.inner();
        inner.pulls.insert(number, pull);
        inner.is_updated(number);
    }

    /// Gives an account push access.
    pub fn admit(&self, account: u64) {
        self.inner().members.insert(account);
    }

    /// Adds a review of a commit, with a state such as `APPROVED`.
    pub fn review(&self, number: u64, author: u64, commit: &str, state: &str) {
        let mut inner = self.inner();
        let review = Review {
            author,
            commit: commit.to_owned(),
            state: state.to_owned(),
        };
        inner.reviews.entry(number).or_default().push(review);
        inner.is_updated(number);
    }

    /// Adds a comment by an account.
    pub fn note(&self, number: u64, author: u64, body: &str) {
        self.inner().add_note(number, author, body);
    }

    /// Returns the comments on a pull request: author and text.
    pub fn notes(&self, number: u64) -> Vec<(u64, String)> {
        let inner = self.inner();
        let notes = inner.notes.get(&number).into_iter().flatten();
        notes.map(|note| (note.author, note.body.clone())).collect()
    }

    /// Returns the statuses of a commit in order: context, state and description.
    pub fn statuses(&self, commit: &str) -> Vec<(String, String, String)> {
        let inner = self.inner();
        let of_commit = inner.statuses.iter().filter(|one| one.commit == commit);
        of_commit
            .map(|one| {
                let Known {
                    context,
                    state,
                    description,
                    ..
                } = one.clone();
                (context, state, description)
            })
            .collect()
    }

    /// Returns the bodies of requests that opened pull requests.
    pub fn opened(&self) -> Vec<Value> {
        self.inner().opened.clone()
    }

    /// Returns the requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.inner().seen.clone()
    }

    /// Returns method and path of each request so far.
    pub fn asked(&self) -> Vec<String> {
        let inner = self.inner();
        let seen = inner.seen.iter();
        seen.map(|one| format!("{} {}", one.method, one.path))
            .collect()
    }

    /// Returns the requests that do not follow the product's documentation.
    pub fn wrong(&self) -> Vec<String> {
        self.inner().wrong.clone()
    }

    /// Replaces the answer to the next request. Further calls apply to the following requests.
    pub fn fail(&self, status: u16, headers: &[(&str, &str)], body: &str) {
        let headers = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let fault = Fault {
            status: StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            headers: headers.collect(),
            body: body.to_owned(),
        };
        self.inner().faults.push_back(fault);
    }
}

type Shared = Arc<Mutex<Inner>>;

async fn answer(
    State(shared): State<Shared>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mut inner = shared.lock().unwrap_or_else(PoisonError::into_inner);
    let path = uri.path_and_query().map_or("", |path| path.as_str());
    let seen = Seen {
        method: method.to_string(),
        path: path.to_owned(),
        headers: headers
            .iter()
            .map(|(name, value)| {
                let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
                (name.to_string(), value)
            })
            .collect(),
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
    };
    inner.seen.push(seen.clone());
    if let Some(fault) = inner.faults.pop_front() {
        return response(fault.status, &fault.headers, fault.body);
    }
    if !inner.is_let_in(&seen) {
        return json_response(
            StatusCode::UNAUTHORIZED,
            &json!({"message": "Bad credentials"}),
        );
    }
    let Some((status, body, link)) = inner.act(&seen) else {
        inner.wrong.push(format!("{method} {path} {}", seen.body));
        return json_response(StatusCode::NOT_FOUND, &json!({"message": "Not Found"}));
    };
    let headers: Vec<_> = link
        .into_iter()
        .map(|link| ("link".to_owned(), link))
        .chain([("content-type".to_owned(), "application/json".to_owned())])
        .collect();
    response(status, &headers, body.to_string())
}

fn json_response(status: StatusCode, body: &Value) -> Response {
    let headers = [("content-type".to_owned(), "application/json".to_owned())];
    response(status, &headers, body.to_string())
}

/// Status, body, and a header with the next page.
type Answer = (StatusCode, Value, Option<String>);

fn ok(body: Value) -> Answer {
    (StatusCode::OK, body, None)
}

fn created(body: Value) -> Answer {
    (StatusCode::CREATED, body, None)
}

fn missing(what: &str) -> Answer {
    (StatusCode::NOT_FOUND, json!({"message": what}), None)
}

impl Inner {
    fn is_let_in(&self, seen: &Seen) -> bool {
        let (name, value) = match self.kind {
            ForgeKind::Github => ("authorization", format!("Bearer {}", self.token)),
            ForgeKind::Gitlab => ("private-token", self.token.clone()),
            ForgeKind::Gitea => ("authorization", format!("token {}", self.token)),
        };
        let is_named = seen
            .headers
            .get("user-agent")
            .is_some_and(|agent| agent.starts_with("pleach/"));
        is_named && seen.headers.get(name) == Some(&value)
    }

    fn add_note(&mut self, number: u64, author: u64, body: &str) -> Note {
        self.next += 1;
        let note = Note {
            id: self.next,
            author,
            body: body.to_owned(),
            changed_at: self.time_of(number),
        };
        self.notes.entry(number).or_default().push(note.clone());
        self.is_updated(number);
        note
    }

    fn is_updated(&mut self, number: u64) {
        *self.updates.entry(number).or_default() += 1;
    }

    /// Returns the update time of a pull request. It is only compared.
    fn updated_at(&self, number: u64) -> String {
        let updates = self.updates.get(&number).copied().unwrap_or_default();
        format!("2026-11-02T08:{:02}:{:02}Z", updates / 60, updates % 60)
    }

    fn act(&mut self, seen: &Seen) -> Option<Answer> {
        match self.kind {
            ForgeKind::Github => self.as_github(seen, "/api/v3"),
            ForgeKind::Gitea => self.as_github(seen, "/api/v1"),
            ForgeKind::Gitlab => self.as_gitlab(seen),
        }
    }

    fn edit(&mut self, id: u64, body: &str) -> Option<Note> {
        let has = |notes: &Vec<Note>| notes.iter().any(|note| note.id == id);
        let (&number, _) = self.notes.iter().find(|(_, notes)| has(notes))?;
        let changed_at = self.time_of(number);
        self.is_updated(number);
        let mut notes = self.notes.get_mut(&number)?.iter_mut();
        let note = notes.find(|note| note.id == id)?;
        body.clone_into(&mut note.body);
        note.changed_at = changed_at;
        Some(note.clone())
    }

    /// Returns the time of a comment: before or after the merge.
    fn time_of(&self, number: u64) -> &'static str {
        let pull = self.pulls.get(&number);
        if pull.is_some_and(|pull| pull.merged_as.is_some()) {
            "2026-11-02T10:00:00Z"
        } else {
            "2026-11-02T09:00:00Z"
        }
    }

    /// Returns one page with the header for the next one.
    fn pages(&self, items: Vec<Value>, query: &str, is_gitea: bool) -> Option<Answer> {
        let number = |name: &str| -> Option<usize> { value(query, name)?.parse().ok() };
        let size = number(if is_gitea { "limit" } else { "per_page" })?.min(self.page);
        let page = number("page")?;
        let start = (page.checked_sub(1)? * size).min(items.len());
        let end = (start + size).min(items.len());
        let more = end < items.len();
        let link = format!(
            "<http://other.example.org/?page={}>; rel=\"next\"",
            page + 1
        );
        Some((
            StatusCode::OK,
            items.into_iter().skip(start).take(end - start).collect(),
            more.then_some(link),
        ))
    }
}

fn value<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query
        .split('&')
        .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

fn has(query: &str, name: &str, expected: &str) -> bool {
    value(query, name) == Some(expected)
}
