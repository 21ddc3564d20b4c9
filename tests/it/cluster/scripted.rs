//! Server with scripted answers that records its requests.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use pleach_cluster::{Cluster, Connection, ResourcePath, Retry};
use pleach_model::object::ObjectId;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// Recorded request.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: String,
    /// Path as sent.
    pub(crate) path: String,
    /// Query, decoded only as far as needed: `%3D` and `%2F`.
    pub(crate) query: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Bytes,
    /// Number of earlier requests.
    pub(crate) before: usize,
}

impl Seen {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// Scripted answer.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Json(u16, Value),
    Text(u16, &'static str),
    /// Answer with an additional header.
    Header(&'static str, String, Box<Self>),
    /// Chunks of a complete body.
    Chunks(Vec<String>),
    /// Chunks of a body that stays open.
    Open(Vec<String>),
    /// Half of an answer, then a closed connection.
    Cut,
    /// No answer.
    Silence,
}

impl Answer {
    pub(crate) fn ok(value: Value) -> Self {
        Self::Json(200, value)
    }

    /// Creates a Status object.
    pub(crate) fn status(code: u16, reason: &str, message: &str) -> Self {
        Self::Json(
            code,
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "code": code, "reason": reason, "message": message}),
        )
    }

    async fn response(self) -> Response {
        match self {
            Self::Json(code, value) => Response::builder()
                .status(code)
                .header("content-type", "application/json")
                .body(Body::from(value.to_string()))
                .unwrap(),
            Self::Text(code, text) => Response::builder()
                .status(code)
                .header("content-type", "text/plain; charset=utf-8")
                .body(Body::from(text))
                .unwrap(),
            Self::Header(name, value, answer) => {
                let mut response = Box::pin(answer.response()).await;
                response.headers_mut().append(name, value.parse().unwrap());
                response
            }
            Self::Chunks(chunks) => {
                let chunks = stream::iter(chunks.into_iter().map(Ok::<_, std::io::Error>));
                Response::new(Body::from_stream(chunks))
            }
            Self::Open(chunks) => {
                let chunks = stream::iter(chunks.into_iter().map(Ok::<_, std::io::Error>));
                Response::new(Body::from_stream(chunks.chain(stream::pending())))
            }
            Self::Cut => {
                let chunks = [Ok("{\"kind\": ".to_owned()), Err("cut")];
                Response::new(Body::from_stream(stream::iter(chunks)))
            }
            Self::Silence => std::future::pending().await,
        }
    }
}

/// Running server. Dropping it ends it.
pub(crate) struct Scripted {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    dir: TempDir,
    _server: JoinSet<()>,
}

impl Scripted {
    /// Starts a server with a script.
    pub(crate) async fn start(
        script: impl Fn(&Seen) -> Answer + Send + Sync + Clone + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let record = Arc::clone(&seen);
        let app = axum::Router::new().fallback(move |request: Request| {
            let record = Arc::clone(&record);
            let script = script.clone();
            async move {
                let seen = see(request, &record).await;
                script(&seen).response().await
            }
        });
        let mut server = JoinSet::new();
        server.spawn(async move {
            axum::serve(listener, app).await.unwrap();
        });
        Self {
            url,
            seen,
            dir: TempDir::new().unwrap(),
            _server: server,
        }
    }

    /// Returns all requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// Returns connection settings with short time-outs and no retries.
    pub(crate) fn connection(&self) -> Connection {
        let path = write(&self.dir, "config", &kubeconfig(&self.url, "{}"));
        Connection {
            kubeconfig: Some(path),
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(5),
            watch_timeout: Duration::from_secs(5),
            patience: Duration::ZERO,
            ..Connection::new("pleach/0.0.0 test.a")
        }
    }

    /// Returns a client without an initial request.
    pub(crate) async fn cluster(&self) -> Cluster {
        self.over(&self.connection()).await
    }

    /// Returns a client with other settings.
    pub(crate) async fn over(&self, connection: &Connection) -> Cluster {
        let kubeconfig = kube::config::Kubeconfig::from_yaml(&kubeconfig(&self.url, "{}")).unwrap();
        let mut config = kube::Config::from_custom_kubeconfig(
            kubeconfig,
            &kube::config::KubeConfigOptions::default(),
        )
        .await
        .unwrap();
        config.default_retry = false;
        let client = kube::Client::try_from(config).unwrap();
        Cluster::over(client, connection, &self.url)
    }

    /// Returns a client that retries failed requests for a while.
    pub(crate) async fn patient(&self) -> Cluster {
        let retry = Retry::within(Duration::from_secs(20));
        self.cluster().await.with_retry(retry)
    }
}

async fn see(request: Request, record: &Mutex<Vec<Seen>>) -> Seen {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let mut record = record.lock().unwrap();
    let seen = Seen {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: parts
            .uri
            .query()
            .unwrap_or_default()
            .replace("%3D", "=")
            .replace("%2F", "/"),
        headers: parts
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect(),
        body,
        before: record.len(),
    };
    record.push(seen.clone());
    seen
}

/// Returns a kubeconfig with the contexts `test` and `other`. `user` is a YAML map.
pub(crate) fn kubeconfig(url: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
         clusters:\n- name: c\n  cluster: {{server: \"{url}\"}}\n\
         users:\n- name: u\n  user: {user}\n\
         contexts:\n- name: test\n  context: {{cluster: c, user: u}}\n\
         - name: other\n  context: {{cluster: c, user: u}}\n"
    )
}

/// Writes a file into a folder.
pub(crate) fn write(dir: &TempDir, name: &str, text: &str) -> std::path::PathBuf {
    let path = dir.path().join(name);
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    path
}

pub(crate) fn config_maps() -> ResourcePath {
    ResourcePath::namespaced("v1", "ConfigMap", "configmaps")
}

pub(crate) fn deployments() -> ResourcePath {
    ResourcePath::namespaced("apps/v1", "Deployment", "deployments")
}

pub(crate) fn config_map(name: &str) -> ObjectId {
    ObjectId::new("", "ConfigMap", Some("web"), name)
}
