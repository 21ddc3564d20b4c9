//! A forge on loopback: as much of GitHub, GitLab and Gitea as pleach asks for.
//!
//! It knows one repository, one token and the account that it is of. Whatever is
//! asked in another way than the product documents is answered 404, and kept
//! among [`FakeForge::wrong`].

use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anyhow::Context as _;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::Response;
use pleach_domain::repo::format::ForgeKind;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// The token that is let in.
pub const TOKEN: &str = "forge-token-tell-nobody";

/// Number of the account that it is of.
pub const ACCOUNT: u64 = 42;

/// The repository.
pub const PROJECT: &str = "example/fleet";

/// A pull request.
#[derive(Debug, Clone, Default)]
pub struct Pull {
    /// The newest commit.
    pub head: String,
    /// The branch that it is to be merged into.
    pub base_branch: String,
    /// Whether it comes from another repository.
    pub is_fork: bool,
    /// Whether it was merged or closed.
    pub is_closed: bool,
    /// The commit that it was merged as.
    pub merged_as: Option<String>,
    /// Its labels.
    pub labels: Vec<String>,
}

impl Pull {
    /// Whether a commit came by it.
    fn came_as(&self, commit: &str) -> bool {
        self.head == commit || self.merged_as.as_deref() == Some(commit)
    }
}

/// A request that arrived.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The method.
    pub method: String,
    /// Path and query, as they were on the wire.
    pub path: String,
    /// The headers.
    pub headers: BTreeMap<String, String>,
    /// The body; null where there was none.
    pub body: Value,
}

#[derive(Debug, Clone)]
struct Note {
    id: u64,
    author: u64,
    body: String,
}

#[derive(Debug, Clone)]
struct Known {
    commit: String,
    context: String,
    state: String,
    description: String,
}

/// An answer instead of the one that would be given.
#[derive(Debug, Clone)]
struct Fault {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

#[derive(Debug)]
struct Inner {
    kind: ForgeKind,
    /// How many items are on a page at most.
    page: usize,
    token: String,
    pulls: BTreeMap<u64, Pull>,
    notes: BTreeMap<u64, Vec<Note>>,
    statuses: Vec<Known>,
    opened: Vec<Value>,
    seen: Vec<Seen>,
    wrong: Vec<String>,
    faults: VecDeque<Fault>,
    next: u64,
}

/// The forge; gone with the value.
///
/// ```
/// use pleach_domain::repo::format::ForgeKind;
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
    address: SocketAddr,
    running: Option<(CancellationToken, JoinHandle<()>)>,
}

impl FakeForge {
    /// Starts one on a port of its own.
    pub fn start(kind: ForgeKind) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("failed to listen")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let inner = Arc::new(Mutex::new(Inner {
            kind,
            page: 100,
            token: TOKEN.to_owned(),
            pulls: BTreeMap::new(),
            notes: BTreeMap::new(),
            statuses: Vec::new(),
            opened: Vec::new(),
            seen: Vec::new(),
            wrong: Vec::new(),
            faults: VecDeque::new(),
            next: 1000,
        }));
        let stop = CancellationToken::new();
        let (served, ending) = (Arc::clone(&inner), stop.clone());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let router = Router::new()
                    .fallback(answer)
                    .layer(DefaultBodyLimit::disable())
                    .with_state(served);
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
                    return;
                };
                tokio::select! {
                    _ended = async { axum::serve(listener, router).await } => {}
                    () = ending.cancelled() => {}
                }
            });
        });
        Ok(Self {
            inner,
            address,
            running: Some((stop, thread)),
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Root of the API, as the product has it on one's own servers.
    pub fn api(&self) -> String {
        let version = match self.inner().kind {
            ForgeKind::Github => "v3",
            ForgeKind::Gitlab => "v4",
            ForgeKind::Gitea => "v1",
        };
        format!("http://{}/api/{version}", self.address)
    }

    /// Puts at most so many items on a page.
    pub fn page(&self, items: usize) {
        self.inner().page = items;
    }

    /// Lets in another token from now on.
    pub fn demand(&self, token: &str) {
        token.clone_into(&mut self.inner().token);
    }

    /// Opens a pull request, or makes another one of it.
    pub fn put(&self, number: u64, pull: Pull) {
        self.inner().pulls.insert(number, pull);
    }

    /// Writes a comment as somebody.
    pub fn note(&self, number: u64, author: u64, body: &str) {
        self.inner().add_note(number, author, body);
    }

    /// The comments on a pull request: who wrote them, and what they say.
    pub fn notes(&self, number: u64) -> Vec<(u64, String)> {
        let inner = self.inner();
        let notes = inner.notes.get(&number).into_iter().flatten();
        notes.map(|note| (note.author, note.body.clone())).collect()
    }

    /// What was said of a commit, in turn: name, state and description.
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

    /// The pull requests that were opened, as they were asked for.
    pub fn opened(&self) -> Vec<Value> {
        self.inner().opened.clone()
    }

    /// What was asked so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.inner().seen.clone()
    }

    /// Methods and paths of what was asked so far.
    pub fn asked(&self) -> Vec<String> {
        let inner = self.inner();
        let seen = inner.seen.iter();
        seen.map(|one| format!("{} {}", one.method, one.path))
            .collect()
    }

    /// What was asked in another way than the product documents.
    pub fn wrong(&self) -> Vec<String> {
        self.inner().wrong.clone()
    }

    /// Answers the next request, and each of these after it the following one,
    /// with something else.
    pub fn fail(&self, status: u16, headers: &[(&str, &str)], body: &str) {
        let headers = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let fault = Fault {
            status,
            headers: headers.collect(),
            body: body.to_owned(),
        };
        self.inner().faults.push_back(fault);
    }
}

impl Drop for FakeForge {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            stop.cancel();
            drop(thread.join());
        }
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
        return json_response(401, &json!({"message": "Bad credentials"}));
    }
    match inner.act(&seen) {
        Some((status, body, link)) => {
            let headers: Vec<_> = link
                .into_iter()
                .map(|link| ("link".to_owned(), link))
                .chain([("content-type".to_owned(), "application/json".to_owned())])
                .collect();
            response(status, &headers, body.to_string())
        }
        None => {
            inner.wrong.push(format!("{method} {path} {}", seen.body));
            json_response(404, &json!({"message": "Not Found"}))
        }
    }
}

fn json_response(status: u16, body: &Value) -> Response {
    let headers = [("content-type".to_owned(), "application/json".to_owned())];
    response(status, &headers, body.to_string())
}

fn response(status: u16, headers: &[(String, String)], body: String) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut builder = Response::builder().status(status);
    for (name, value) in headers {
        builder = builder.header(name, value);
    }
    builder
        .body(Body::from(body))
        .unwrap_or_else(|_| Response::new(Body::empty()))
}

/// Status, body, and a header with the next page.
type Answered = Option<(u16, Value, Option<String>)>;

fn ok(body: Value) -> Answered {
    Some((200, body, None))
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
        };
        self.notes.entry(number).or_default().push(note.clone());
        note
    }

    fn act(&mut self, seen: &Seen) -> Answered {
        match self.kind {
            ForgeKind::Github => self.as_github(seen, "/api/v3"),
            ForgeKind::Gitea => self.as_github(seen, "/api/v1"),
            ForgeKind::Gitlab => self.as_gitlab(seen),
        }
    }

    fn as_github(&mut self, seen: &Seen, root: &str) -> Answered {
        let is_gitea = self.kind == ForgeKind::Gitea;
        let (path, query) = seen.path.split_once('?').unwrap_or((&seen.path, ""));
        if path == "/api/graphql" && !is_gitea {
            let is_asked = seen.method == "POST" && seen.body["query"] == "{viewer{databaseId}}";
            return is_asked
                .then(|| json!({"data": {"viewer": {"databaseId": ACCOUNT}}}))
                .and_then(ok);
        }
        let path = path.strip_prefix(root)?;
        if path == "/user" && is_gitea {
            return ok(json!({"id": ACCOUNT, "login": "pleach"}));
        }
        let path = path.strip_prefix(&format!("/repos/{PROJECT}/"))?;
        let parts: Vec<&str> = path.split('/').collect();
        let body = &seen.body;
        match (seen.method.as_str(), parts.as_slice()) {
            ("GET", ["pulls"]) if has(query, "state", "open") => {
                let pulls = self.pulls.iter().filter(|(_, pull)| !pull.is_closed);
                let pulls = pulls.map(|(number, pull)| github_pull(*number, pull));
                self.pages(pulls.collect(), query, is_gitea)
            }
            ("GET", ["pulls", number]) => {
                let number = number.parse().ok()?;
                ok(github_pull(number, self.pulls.get(&number)?))
            }
            ("POST", ["pulls"]) => {
                for key in ["title", "head", "base"] {
                    body[key].as_str()?;
                }
                self.opened.push(body.clone());
                let url = format!("https://git.example.org/{PROJECT}/pull/77");
                Some((201, json!({"number": 77, "html_url": url}), None))
            }
            ("GET", ["commits", commit, "pulls"]) if !is_gitea => {
                let pulls = self.pulls.iter().filter(|(_, pull)| pull.came_as(commit));
                let pulls = pulls.map(|(number, pull)| github_pull(*number, pull));
                ok(pulls.collect())
            }
            ("GET", ["commits", commit, "pull"]) if is_gitea => {
                // It knows only those that were merged.
                let mut pulls = self.pulls.iter();
                match pulls.find(|(_, pull)| pull.merged_as.as_deref() == Some(*commit)) {
                    Some((number, pull)) => ok(github_pull(*number, pull)),
                    None => Some((404, json!({"message": "no such pull request"}), None)),
                }
            }
            ("GET", ["issues", number, "comments"]) => {
                let notes = self.notes.get(&number.parse().ok()?);
                let notes = notes.into_iter().flatten().map(github_note).collect();
                if is_gitea {
                    // It knows no pages here.
                    return ok(Value::Array(notes));
                }
                self.pages(notes, query, false)
            }
            ("POST", ["issues", number, "comments"]) => {
                let note = self.add_note(number.parse().ok()?, ACCOUNT, body["body"].as_str()?);
                Some((201, github_note(&note), None))
            }
            ("PATCH", ["issues", "comments", id]) => {
                let note = self.edit(id.parse().ok()?, body["body"].as_str()?)?;
                ok(github_note(&note))
            }
            ("GET", ["commits", commit, "statuses"] | ["statuses", commit]) => {
                let is_gitea_path = parts[0] == "statuses";
                if is_gitea_path != is_gitea {
                    return None;
                }
                let key = if is_gitea { "status" } else { "state" };
                let known = self
                    .statuses
                    .iter()
                    .rev()
                    .filter(|one| one.commit == *commit);
                let known = known.map(|one| {
                    json!({key: one.state, "context": one.context, "description": one.description})
                });
                self.pages(known.collect(), query, is_gitea)
            }
            ("POST", ["statuses", commit]) => {
                let state = body["state"].as_str()?;
                let is_known = ["pending", "success", "failure", "error"].contains(&state);
                let longest = if is_gitea { 255 } else { 140 };
                let description = body["description"].as_str()?;
                if !is_known || description.chars().count() > longest {
                    return None;
                }
                self.statuses.push(Known {
                    commit: (*commit).to_owned(),
                    context: body["context"].as_str()?.to_owned(),
                    state: state.to_owned(),
                    description: description.to_owned(),
                });
                Some((201, json!({"id": 1}), None))
            }
            _ => None,
        }
    }

    fn as_gitlab(&mut self, seen: &Seen) -> Answered {
        let (path, query) = seen.path.split_once('?').unwrap_or((&seen.path, ""));
        let path = path.strip_prefix("/api/v4")?;
        if path == "/user" {
            return ok(json!({"id": ACCOUNT, "username": "pleach"}));
        }
        let project = PROJECT.replace('/', "%2F");
        let path = path.strip_prefix(&format!("/projects/{project}/"))?;
        let parts: Vec<&str> = path.split('/').collect();
        let body = &seen.body;
        match (seen.method.as_str(), parts.as_slice()) {
            ("GET", ["merge_requests"]) if has(query, "state", "opened") => {
                let pulls = self.pulls.iter().filter(|(_, pull)| !pull.is_closed);
                let pulls = pulls.map(|(number, pull)| gitlab_request(*number, pull));
                self.pages(pulls.collect(), query, false)
            }
            ("GET", ["merge_requests", number]) => {
                let number = number.parse().ok()?;
                ok(gitlab_request(number, self.pulls.get(&number)?))
            }
            ("GET", ["repository", "commits", commit, "merge_requests"]) => {
                let pulls = self.pulls.iter().filter(|(_, pull)| pull.came_as(commit));
                let pulls = pulls.map(|(number, pull)| gitlab_request(*number, pull));
                ok(pulls.collect())
            }
            ("POST", ["merge_requests"]) => {
                for key in ["title", "source_branch", "target_branch"] {
                    body[key].as_str()?;
                }
                self.opened.push(body.clone());
                let url = format!("https://git.example.org/{PROJECT}/-/merge_requests/77");
                Some((201, json!({"iid": 77, "web_url": url}), None))
            }
            ("GET", ["merge_requests", number, "notes"]) if has(query, "sort", "asc") => {
                let notes = self.notes.get(&number.parse().ok()?);
                let notes = notes.into_iter().flatten().map(gitlab_note).collect();
                self.pages(notes, query, false)
            }
            ("POST", ["merge_requests", number, "notes"]) => {
                let note = self.add_note(number.parse().ok()?, ACCOUNT, body["body"].as_str()?);
                Some((201, gitlab_note(&note), None))
            }
            ("PUT", ["merge_requests", _, "notes", id]) => {
                let note = self.edit(id.parse().ok()?, body["body"].as_str()?)?;
                ok(gitlab_note(&note))
            }
            ("GET", ["repository", "commits", commit, "statuses"]) => {
                let mut newest: BTreeMap<&str, &Known> = BTreeMap::new();
                for one in self.statuses.iter().filter(|one| one.commit == *commit) {
                    newest.insert(&one.context, one);
                }
                let known = newest.values().map(|one| {
                    json!({"name": one.context, "status": one.state, "description": one.description})
                });
                self.pages(known.collect(), query, false)
            }
            ("POST", ["statuses", commit]) => {
                let state = body["state"].as_str()?;
                let context = body["name"].as_str()?;
                let is_known = ["pending", "running", "success", "failed", "canceled"];
                if !is_known.contains(&state) {
                    return None;
                }
                let of_commit = |one: &&Known| one.commit == *commit && one.context == context;
                if self
                    .statuses
                    .iter()
                    .rev()
                    .find(of_commit)
                    .is_some_and(|one| one.state == state)
                {
                    let message = format!(
                        "Cannot transition status via :enqueue from :{state} (Reason(s): Status cannot transition via \"enqueue\")"
                    );
                    return Some((400, json!({"message": message}), None));
                }
                self.statuses.push(Known {
                    commit: (*commit).to_owned(),
                    context: context.to_owned(),
                    state: state.to_owned(),
                    description: body["description"].as_str()?.to_owned(),
                });
                Some((201, json!({"id": 1}), None))
            }
            _ => None,
        }
    }

    fn edit(&mut self, id: u64, body: &str) -> Option<Note> {
        let mut notes = self.notes.values_mut().flatten();
        let note = notes.find(|note| note.id == id)?;
        body.clone_into(&mut note.body);
        Some(note.clone())
    }

    /// One page, with a header that names the next one.
    fn pages(&self, items: Vec<Value>, query: &str, is_gitea: bool) -> Answered {
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
            200,
            Value::Array(items[start..end].to_vec()),
            more.then_some(link),
        ))
    }
}

fn value<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query
        .split('&')
        .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

fn has(query: &str, name: &str, wanted: &str) -> bool {
    value(query, name) == Some(wanted)
}

fn github_pull(number: u64, pull: &Pull) -> Value {
    let labels: Vec<Value> = pull
        .labels
        .iter()
        .map(|name| json!({"name": name}))
        .collect();
    json!({
        "number": number,
        "state": if pull.is_closed { "closed" } else { "open" },
        "title": "A change",
        "head": {"sha": pull.head, "ref": "change", "repo": {"id": if pull.is_fork { 2 } else { 1 }}},
        "base": {"sha": "0000", "ref": pull.base_branch, "repo": {"id": 1}},
        "labels": labels,
        "merged_at": pull.merged_as.as_ref().map(|_| "2026-11-02T09:14:03Z"),
        // While it is open: a merge that was tried.
        "merge_commit_sha": pull.merged_as.as_deref().unwrap_or("0000"),
    })
}

fn gitlab_request(number: u64, pull: &Pull) -> Value {
    json!({
        "id": number + 5000,
        "iid": number,
        "state": if pull.is_closed { "merged" } else { "opened" },
        "title": "A change",
        "sha": pull.head,
        "source_branch": "change",
        "target_branch": pull.base_branch,
        "source_project_id": if pull.is_fork { 2 } else { 1 },
        "target_project_id": 1,
        "labels": pull.labels,
        "merge_commit_sha": pull.merged_as,
        "squash_commit_sha": null,
    })
}

fn github_note(note: &Note) -> Value {
    json!({"id": note.id, "user": {"id": note.author, "login": "somebody"}, "body": note.body})
}

fn gitlab_note(note: &Note) -> Value {
    json!({"id": note.id, "author": {"id": note.author}, "body": note.body, "system": false})
}
