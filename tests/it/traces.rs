//! Exported traces of the controller (feature `otlp`).

use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use pleach_controller::{ControllerEvent, ReconcileOutcome, server::traces::Traces};
use pleach_engine::sync::{
    events::{EventKind, StepOutcome, SyncEvent, Verb, WaitState},
    report::SyncResult,
};
use pleach_model::object::{ObjectId, ReleaseName};
use pleach_planner::plan::StepId;
use pleach_testkit::repository::TestRepo;
use serde_json::{Value, json};

/// Time-out for the arrival of spans.
const PATIENCE: Duration = Duration::from_secs(30);

/// Simulated trace collector.
struct Collector {
    url: String,
    spans: Arc<Mutex<Vec<Value>>>,
    /// Ends the server when dropped.
    runtime: tokio::runtime::Runtime,
}

impl Collector {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let spans: Arc<Mutex<Vec<Value>>> = Arc::default();
        let router = Router::new()
            .route("/v1/traces", post(take))
            .with_state(Arc::clone(&spans));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
        Self {
            url,
            spans,
            runtime,
        }
    }

    /// Returns the spans with a name.
    fn spans(&self, name: &str) -> Vec<Value> {
        let spans = self.spans.lock().unwrap();
        let named = spans.iter().filter(|span| span["name"] == name);
        named.cloned().collect()
    }

    #[track_caller]
    fn span(&self, name: &str) -> Value {
        let spans = self.spans(name);
        assert_eq!(spans.len(), 1, "{name}: {spans:?}");
        spans[0].clone()
    }

    #[track_caller]
    fn until(&self, name: &str) -> Value {
        let begun = Instant::now();
        loop {
            if let Some(span) = self.spans(name).pop() {
                return span;
            }
            assert!(begun.elapsed() < PATIENCE, "no span {name}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

async fn take(State(spans): State<Arc<Mutex<Vec<Value>>>>, Json(body): Json<Value>) -> Json<Value> {
    let of = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    for resource in of(&body, "resourceSpans") {
        let name = attribute(&resource["resource"], "service.name");
        assert_eq!(name, "pleach");
        for scope in of(&resource, "scopeSpans") {
            spans.lock().unwrap().extend(of(&scope, "spans"));
        }
    }
    Json(json!({}))
}

fn attribute(of: &Value, key: &str) -> Value {
    let attributes = of["attributes"].as_array().into_iter().flatten();
    let mut found = attributes.filter(|one| one["key"] == key);
    found
        .next()
        .map_or(Value::Null, |one| one["value"]["stringValue"].clone())
}

/// Returns the duration of a span.
fn lasted(span: &Value) -> Duration {
    let at = |key: &str| -> u64 { span[key].as_str().unwrap().parse().unwrap() };
    Duration::from_nanos(at("endTimeUnixNano") - at("startTimeUnixNano"))
}

fn release() -> ReleaseName {
    ReleaseName {
        environment: "staging".to_owned(),
        release: "web".to_owned(),
    }
}

#[test]
fn a_look_is_a_trace_with_what_was_done_in_it() {
    let collector = Collector::start();
    drop(rustls::crypto::ring::default_provider().install_default());
    let mut traces = Traces::to(&format!("{}/v1/traces", collector.url)).unwrap();
    let sync = |kind: EventKind| SyncEvent {
        release: release(),
        kind,
    };
    traces.process(&ControllerEvent::ReconcileStarted { release: release() });
    traces.process(&ControllerEvent::Planned {
        release: release(),
        answered: true,
        facts: None,
        took: Duration::from_secs(2),
    });
    traces.process_sync(&sync(EventKind::Phase(Verb::Apply)));
    for since in [3, 4] {
        traces.process_sync(&sync(EventKind::Waiting(
            StepId(7),
            WaitState {
                object: ObjectId::new("apps", "Deployment", Some("shop"), "web"),
                message: "0 of 1 ready".to_owned(),
                since: Duration::from_secs(since),
            },
        )));
    }
    traces.process_sync(&sync(EventKind::Done(
        StepId(7),
        ObjectId::new("apps", "Deployment", Some("shop"), "web"),
        StepOutcome::Done,
    )));
    traces.process_sync(&sync(EventKind::Finished(SyncResult::default())));
    traces.process(&ControllerEvent::ReconcileFinished {
        release: release(),
        cluster: None,
        revision: "0123abc".to_owned(),
        outcome: ReconcileOutcome::Failed,
        message: "Deployment/web: no".to_owned(),
        is_correction: false,
        public_message: String::new(),
        retained: None,
        took: Duration::from_secs(5),
    });
    traces.process(&ControllerEvent::SourceUnreachable {
        repository: "fleet".to_owned(),
        message: "no route".to_owned(),
    });
    collector.runtime.block_on(traces.end());

    let reconcile = collector.span("reconcile");
    assert_eq!(attribute(&reconcile, "pleach.environment"), "staging");
    assert_eq!(attribute(&reconcile, "pleach.release"), "web");
    assert_eq!(attribute(&reconcile, "pleach.revision"), "0123abc");
    assert_eq!(attribute(&reconcile, "pleach.result"), "failed");
    assert_eq!(reconcile["status"]["message"], "Deployment/web: no");
    let child_of = |name: &str, parent: &Value| {
        let span = collector.span(name);
        assert_eq!(span["parentSpanId"], parent["spanId"], "{name}");
        assert_eq!(span["traceId"], parent["traceId"], "{name}");
        span
    };
    let plan = child_of("plan", &reconcile);
    assert_eq!(lasted(&plan).as_secs(), 2);
    let apply = child_of("apply", &reconcile);
    let wait = child_of("wait", &apply);
    assert_eq!(
        attribute(&wait, "pleach.object"),
        "Deployment.apps/shop/web"
    );
    assert_eq!(lasted(&wait).as_secs(), 3);
    let fetch = collector.span("fetch");
    assert_ne!(fetch["traceId"], reconcile["traceId"]);
    assert_eq!(fetch["status"]["message"], "no route");
}

/// Running controller. Dropping it kills it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn the_loop_sends_to_where_its_environment_says() {
    let collector = Collector::start();
    let repo = TestRepo::new([
        (
            "pleach.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Repository\nid: traced\n",
        ),
        (
            "environments/staging.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Environment\ncluster: {id: nowhere}\nreleases: [{name: web, bundle: web, namespace: web}]\n",
        ),
        (
            "manifests/web/bundle.yaml",
            "apiVersion: pleach.dev/v1alpha1\nkind: Bundle\n",
        ),
        (
            "manifests/web/web.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\n",
        ),
    ])
    .unwrap();
    let commit = repo.commit("start").unwrap();
    repo.git(&["branch", "env/staging"]).unwrap();
    let home = tempfile::tempdir().unwrap();
    let kubeconfig = home.path().join("kubeconfig");
    // No server listens there.
    let text = "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: a, cluster: {server: \"https://127.0.0.1:1\"}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {token: t}}]\n";
    std::fs::write(&kubeconfig, text).unwrap();
    let _running = Running(
        Command::new(env!("CARGO_BIN_EXE_pleach"))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", home.path())
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url)
            .env("OTEL_BSP_SCHEDULE_DELAY", "100")
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .arg("--repo")
            .arg(repo.path())
            .args(["run", "staging"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let fetch = collector.until("fetch");
    assert_eq!(attribute(&fetch, "pleach.repository"), "repository");
    let render = collector.until("render");
    assert_eq!(attribute(&render, "pleach.environment"), "staging");
    assert_eq!(attribute(&render, "pleach.revision"), commit.as_str());
}
