//! Git server on loopback: git's own `http-backend` behind HTTP.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, ensure};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::response::Response;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::loopback::{Loopback, response};

/// Settings and recorded requests of a server.
#[derive(Debug, Default)]
struct Shared {
    /// Required `Authorization` header. `None`: no authentication.
    authorization: Option<String>,
    /// Methods and paths of all requests.
    requests: Vec<String>,
}

#[derive(Debug, Clone)]
struct Server {
    root: PathBuf,
    shared: Arc<Mutex<Shared>>,
}

/// Server of the repositories below a folder.
///
/// ```
/// use pleach_testkit::git_server::GitServer;
/// use pleach_testkit::repository::TestRepo;
///
/// # fn main() -> anyhow::Result<()> {
/// let repo = TestRepo::new([("pleach.yaml", "kind: Repository\n")])?;
/// repo.commit("start")?;
/// let server = GitServer::start(repo.path())?;
/// let heads = repo.git(&["ls-remote", "--heads", &server.url(".git")])?;
/// assert!(heads.ends_with("refs/heads/main"));
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct GitServer {
    server: Server,
    port: u16,
    running: Option<Loopback>,
}

impl GitServer {
    /// Starts the server on a free port.
    pub fn start(root: &Path) -> anyhow::Result<Self> {
        let mut server = Self {
            server: Server {
                root: root.to_owned(),
                shared: Arc::default(),
            },
            port: 0,
            running: None,
        };
        server.open()?;
        Ok(server)
    }

    /// Returns the URL of a repository, from its path below the folder.
    pub fn url(&self, repository: &str) -> String {
        format!("http://127.0.0.1:{}/{repository}", self.port)
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Requires this `Authorization` header from now on.
    pub fn demand(&self, authorization: &str) {
        self.shared().authorization = Some(authorization.to_owned());
    }

    /// Returns the requests so far, such as `POST /fleet.git/git-upload-pack`.
    pub fn requests(&self) -> Vec<String> {
        self.shared().requests.clone()
    }

    fn shared(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.server
            .shared
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses connections from now on.
    pub fn close(&mut self) {
        self.running = None;
    }

    /// Accepts connections again, on the same port.
    pub fn open(&mut self) -> anyhow::Result<()> {
        ensure!(self.running.is_none(), "it is open");
        let router = Router::new()
            .fallback(answer)
            .with_state(self.server.clone());
        let running = Loopback::start(self.port, router)?;
        self.port = running.address().port();
        self.running = Some(running);
        Ok(())
    }
}

async fn answer(
    State(server): State<Server>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let refused = {
        let mut shared = server.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.requests.push(format!("{method} {}", uri.path()));
        let sent = headers.get("authorization").map(HeaderValue::as_bytes);
        let authorization = shared.authorization.as_ref().map(String::as_bytes);
        authorization.is_some() && sent != authorization
    };
    if refused {
        return response(
            StatusCode::UNAUTHORIZED,
            &[(
                "www-authenticate".to_owned(),
                "Basic realm=\"git\"".to_owned(),
            )],
            Vec::new(),
        );
    }
    match backend(&server.root, &method, &uri, &headers, body).await {
        Ok(answer) => answer,
        Err(error) => response(
            StatusCode::INTERNAL_SERVER_ERROR,
            &[],
            error.to_string().into_bytes(),
        ),
    }
}

/// Runs `git http-backend`, a CGI program.
async fn backend(
    root: &Path,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    body: Bytes,
) -> anyhow::Result<Response> {
    let header = |name: &str| {
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let mut child = Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env("PATH_INFO", uri.path())
        .env("QUERY_STRING", uri.query().unwrap_or_default())
        .env("REQUEST_METHOD", method.as_str())
        .env("CONTENT_TYPE", header("content-type"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .env("HTTP_GIT_PROTOCOL", header("git-protocol"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("failed to run git http-backend")?;
    let mut input = child.stdin.take().context("it has a stdin")?;
    // The program can exit before it has read the whole body.
    let (_written, output) = tokio::join!(
        async move { input.write_all(&body).await },
        child.wait_with_output()
    );
    let output = output?.stdout;
    let end = output
        .windows(4)
        .position(|bytes| bytes == b"\r\n\r\n")
        .context("it printed no headers")?;
    let mut status = StatusCode::OK;
    let mut fields = Vec::new();
    for line in String::from_utf8_lossy(&output[..end]).lines() {
        let Some((name, value)) = line.split_once(": ") else {
            continue;
        };
        if name.eq_ignore_ascii_case("status") {
            status = value.split(' ').next().unwrap_or_default().parse()?;
        } else {
            fields.push((name.to_owned(), value.to_owned()));
        }
    }
    Ok(response(status, &fields, output[end + 4..].to_vec()))
}
