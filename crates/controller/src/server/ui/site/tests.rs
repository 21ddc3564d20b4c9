//! The page over an API server with scripted answers.

mod api;
#[cfg(feature = "oidc")]
mod oidc;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, to_bytes};
use axum::extract::Path as UrlPath;
use axum::http::header::{LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, Request as HttpRequest, StatusCode};
use axum::routing::get;
use pleach_cluster::{Connection, OwnCluster};
use pleach_engine::decryption::KeySources;
use pleach_files::FileContent;
use pleach_formats::sync::Minimum;
use pleach_model::object::{Digest, ReleaseName};
use pleach_page::board::Board;
use pleach_page::outline::{Outline, OutlineRow};
use pleach_page::viewer::{Verb, Viewer};
use pleach_planner::observe::ClusterId;
use pleach_reconciler::config::{Branches, Page, Reserved, SignIn};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower::ServiceExt as _;

use self::api::{Script, answer, release};
use super::*;
use crate::board::BoardWriter;
use crate::server::Peer;
use crate::server::ui::auth::cookie::CookieKey;
use crate::server::ui::auth::{KnownRelease, Means};
use crate::{ControllerEvent, SourcePolicy};

const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const OTHER_DIGEST: &str =
    "sha256:ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";
const RELEASE: &str = "/apis/pleach.dev/v1alpha1/releases/prod.web";
const TOKEN: &str = "token-of-ann";

/// The page and its API server. Dropping it ends the server.
struct Fixture {
    router: Router,
    script: Arc<Mutex<Script>>,
    metrics: Arc<Metrics>,
    /// Releases that the controller knows.
    releases: Arc<Mutex<Vec<KnownRelease>>>,
    board: watch::Sender<Arc<Board>>,
    _folder: TempDir,
    _server: JoinSet<()>,
}

fn connection(folder: &Path, url: &str) -> Connection {
    let path = folder.join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: \"{url}\"}}}}]\nusers: [{{name: u, user: {{}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
    );
    pleach_files::write_atomic(&path, &FileContent::new(text)).unwrap();
    Connection {
        kubeconfig: Some(path),
        patience: Duration::ZERO,
        ..Connection::new("test")
    }
}

fn known(release: &str, namespace: Option<&str>) -> KnownRelease {
    KnownRelease {
        name: ReleaseName {
            environment: "prod".to_owned(),
            release: release.to_owned(),
        },
        namespace: namespace.map(str::to_owned),
    }
}

/// Pages that show what the viewer may do.
fn pages() -> Router {
    let of_release = |UrlPath((environment, release)): UrlPath<(String, String)>,
                      Extension(viewer): Extension<Viewer>| async move {
        let name = ReleaseName {
            environment,
            release,
        };
        if !viewer.may(Verb::Get, &name) {
            return (StatusCode::NOT_FOUND, String::new());
        }
        let verbs = Verb::ALL
            .into_iter()
            .filter(|verb| viewer.may(*verb, &name));
        let verbs: Vec<&str> = verbs.map(Verb::as_str).collect();
        let user = viewer.name.unwrap_or_default();
        (StatusCode::OK, format!("{user}: {}", verbs.join(" ")))
    };
    Router::new()
        .route(
            "/",
            get(|Extension(viewer): Extension<Viewer>| async move {
                format!("overview, partial: {}", viewer.is_partial())
            }),
        )
        .route("/releases/{environment}/{release}", get(of_release))
}

impl Fixture {
    async fn new(verbs: &[&'static str]) -> Self {
        Self::with(verbs, |_, means| Auth::tokens(means)).await
    }

    async fn with(verbs: &[&'static str], sign_in: impl FnOnce(&Path, Means) -> Auth) -> Self {
        let script = Arc::new(Mutex::new(Script {
            verbs: verbs.to_vec(),
            release: release(DIGEST),
            seen: Vec::new(),
            interference: None,
            is_closed: false,
        }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let scripted = Arc::clone(&script);
        let app =
            Router::new().fallback(move |request: Request| answer(Arc::clone(&scripted), request));
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, app).await.unwrap() });
        let folder = tempfile::tempdir().unwrap();
        let connection = connection(folder.path(), &url);
        let key = folder.path().join("key");
        pleach_files::write_atomic(&key, &FileContent::private(vec![7; 32])).unwrap();
        let metrics = Arc::new(Metrics::default());
        let releases = Arc::new(Mutex::new(vec![known("web", None)]));
        let listed = Arc::clone(&releases);
        let known: auth::KnownReleases = Arc::new(move || listed.lock().unwrap().clone());
        let means = Means {
            own: OwnCluster::new(connection.clone()),
            cookies: CookieKey::new(key, false),
            behind_proxy: false,
            known: Arc::clone(&known),
            metrics: Arc::clone(&metrics),
        };
        let auth = Arc::new(sign_in(folder.path(), means));
        let policy = SourcePolicy {
            url: "https://git.example.org/fleet.git".to_owned(),
            branches: Branches::pattern("env/*").unwrap(),
            cluster: Some(ClusterId("c1".to_owned())),
            fallback: None,
            connection,
            allow: None,
            minimum: Minimum::default(),
            keys: KeySources::default(),
            reserved: Reserved::default(),
            forge: None,
        };
        let board = watch::Sender::new(Arc::<Board>::default());
        let actions = Actions::new(
            Arc::clone(&auth),
            vec![Arc::new(policy)],
            known,
            board.subscribe(),
            Arc::clone(&metrics),
        );
        let page = Page {
            listen: "127.0.0.1:8081".parse().unwrap(),
            sign_in: SignIn::Off,
            url: None,
            tls: None,
            behind_proxy: false,
        };
        let router = router(Parts {
            pages: pages(),
            files: Router::new().route("/static/style.css", get(|| async { "body {}" })),
            auth,
            actions,
            security: Security::of(&page),
            metrics: Arc::clone(&metrics),
        });
        Self {
            router,
            script,
            metrics,
            releases,
            board,
            _folder: folder,
            _server: server,
        }
    }

    async fn send(&self, request: axum::http::request::Builder, body: &str) -> Answer {
        let mut request = request
            .header("host", "localhost:8081")
            .body(Body::from(body.to_owned()))
            .unwrap();
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        request.extensions_mut().insert(Peer(address));
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    async fn get(&self, path: &str, cookie: &str) -> Answer {
        self.send(HttpRequest::get(path).header("cookie", cookie), "")
            .await
    }

    async fn post(&self, path: &str, cookie: &str, form: &str) -> Answer {
        let request = HttpRequest::post(path)
            .header("cookie", cookie)
            .header("sec-fetch-site", "same-origin")
            .header("content-type", "application/x-www-form-urlencoded");
        self.send(request, form).await
    }

    /// Signs in as ann, and returns the cookie.
    async fn sign_in(&self) -> String {
        let answer = self.post("/login", "", &format!("token={TOKEN}")).await;
        assert_eq!(answer.status, 303, "{}", answer.body);
        let cookie = answer.headers[SET_COOKIE].to_str().unwrap();
        let (cookie, _) = cookie.split_once(';').unwrap();
        cookie.to_owned()
    }

    /// Returns the bodies of all requests with this method and path.
    fn seen(&self, method: &str, path: &str) -> Vec<Value> {
        let script = self.script.lock().unwrap();
        let seen = script.seen.iter();
        seen.filter(|(known, at, _)| known == method && at == path)
            .map(|(_, _, body)| body.clone())
            .collect()
    }
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    fn location(&self) -> &str {
        self.headers[LOCATION].to_str().unwrap()
    }
}

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

#[tokio::test]
async fn every_answer_has_the_headers() {
    let fixture = Fixture::new(&["get"]).await;
    for (path, expected) in [
        ("/", 303),
        ("/login", 200),
        ("/login?next=/waiting", 200),
        ("/static/style.css", 200),
        ("/static/other.css", 404),
        ("/releases/prod/web", 303),
        ("/actions", 303),
        ("/logout", 405),
        ("/events", 404),
    ] {
        let answer = fixture.get(path, "").await;
        assert_eq!(answer.status, expected, "{path}");
        let header = |name: &str| answer.headers[name].to_str().unwrap().to_owned();
        let policy = header("content-security-policy");
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'"),
            "{path}: {policy}"
        );
        assert!(
            policy.contains("frame-ancestors 'none'"),
            "{path}: {policy}"
        );
        assert_eq!(header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(header("referrer-policy"), "no-referrer", "{path}");
        assert_eq!(header("cache-control"), "no-store", "{path}");
        assert_eq!(
            header("cross-origin-opener-policy"),
            "same-origin",
            "{path}"
        );
        assert!(
            !answer.headers.contains_key("strict-transport-security"),
            "{path}"
        );
    }
    let request = HttpRequest::post("/login").header("sec-fetch-site", "cross-site");
    let answer = fixture.send(request, &format!("token={TOKEN}")).await;
    assert_eq!(answer.status, 403);
    assert!(answer.headers.contains_key("content-security-policy"));
    let large = format!("token={}", "x".repeat(17 * 1024));
    assert_eq!(fixture.post("/login", "", &large).await.status, 413);
}

#[tokio::test]
async fn a_token_signs_in_and_is_stored_nowhere() {
    let fixture = Fixture::new(&["get", "approve"]).await;
    let answer = fixture.get("/releases/prod/web?x=1", "").await;
    let expected = "/login?next=%2Freleases%2Fprod%2Fweb%3Fx%3D1";
    assert_eq!(answer.location(), expected);
    let form = format!("token={TOKEN}&next=%2Freleases%2Fprod%2Fweb%3Fx%3D1");
    let answer = fixture.post("/login", "", &form).await;
    assert_eq!(
        (answer.status, answer.location()),
        (303, "/releases/prod/web?x=1")
    );
    let cookie = answer.headers[SET_COOKIE].to_str().unwrap();
    assert!(!cookie.contains(TOKEN), "{cookie}");
    let cookie = fixture.sign_in().await;
    let answer = fixture.get("/releases/prod/web", &cookie).await;
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (200, "ann: get approve")
    );
    assert_eq!(fixture.get("/releases/prod/db", &cookie).await.status, 404);
    // Answers of the last minute are used for pages.
    let reviews = fixture.seen("POST", REVIEWS).len();
    fixture.get("/releases/prod/web", &cookie).await;
    assert_eq!(fixture.seen("POST", REVIEWS).len(), reviews);
    let answer = fixture.post("/logout", &cookie, "").await;
    let removed = answer.headers[SET_COOKIE].to_str().unwrap();
    assert!(removed.contains("Max-Age=0"), "{removed}");
    // Nothing but a path of the page is returned to.
    let form = format!("token={TOKEN}&next=https%3A%2F%2Fevil.example.org");
    assert_eq!(fixture.post("/login", "", &form).await.location(), "/");
    let text = fixture.metrics.text();
    assert!(
        text.contains("pleach_ui_sign_ins_total{method=\"token\",result=\"accepted\"} 3"),
        "{text}"
    );
    let page = "page=\"/releases/{environment}/{release}\"";
    assert!(
        text.contains(&format!(
            "pleach_ui_requests_total{{{page},code=\"200\"}} 2"
        )),
        "{text}"
    );
}

#[tokio::test]
async fn a_wrong_token_does_not_sign_in() {
    let fixture = Fixture::new(&["get"]).await;
    for attempt in 1..=6 {
        let answer = fixture
            .post("/login", "", "token=guess&next=%2Fwaiting")
            .await;
        let expected = if attempt <= 5 { 403 } else { 429 };
        assert_eq!(answer.status, expected, "{attempt}");
        assert!(!answer.headers.contains_key(SET_COOKIE));
        assert!(!answer.body.contains("guess"), "{}", answer.body);
    }
    let answer = fixture.post("/login", "", &format!("token={TOKEN}")).await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.headers["retry-after"], "60");
}

#[tokio::test]
async fn a_silent_api_server_is_not_waited_for() {
    let fixture = Fixture::new(&["get"]).await;
    let cookie = fixture.sign_in().await;
    fixture.get("/", &cookie).await;
    // The connection exists; from here on, only time-outs are waited for.
    tokio::time::pause();
    let answer = fixture.post("/login", "", "token=slow").await;
    assert_eq!(answer.status, 503);
    tokio::time::resume();
    // The cookie stays valid.
    assert_eq!(fixture.get("/", &cookie).await.status, 200);
}

#[tokio::test]
async fn a_proxy_can_send_the_token() {
    let fixture = Fixture::new(&["get"]).await;
    for (token, expected) in [(TOKEN, 200), ("guess", 401)] {
        let request = HttpRequest::get("/releases/prod/web");
        let request = request.header("authorization", format!("Bearer {token}"));
        assert_eq!(fixture.send(request, "").await.status, expected, "{token}");
    }
}

#[tokio::test]
async fn scripts_get_no_sign_in_page() {
    let fixture = Fixture::new(&["get"]).await;
    assert_eq!(
        fixture
            .get("/releases/prod/web?fragment=main", "")
            .await
            .status,
        401
    );
}

#[tokio::test]
async fn a_plan_is_approved_by_its_digest() {
    let fixture = Fixture::new(&["get", "approve"]).await;
    let cookie = fixture.sign_in().await;
    let approve = "/releases/prod/web/approve";
    let answer = fixture
        .post(approve, &cookie, &format!("digest={OTHER_DIGEST}"))
        .await;
    assert_eq!(answer.status, 409, "{}", answer.body);
    assert!(answer.body.contains(DIGEST), "{}", answer.body);
    let unknown = "does not know the differences";
    assert!(answer.body.contains(unknown), "{}", answer.body);
    assert!(fixture.seen("PATCH", RELEASE).is_empty());

    let answer = fixture
        .post(approve, &cookie, &format!("digest={DIGEST}"))
        .await;
    assert_eq!(
        (answer.status, answer.location()),
        (303, "/releases/prod/web"),
        "{}",
        answer.body
    );
    let written = fixture.seen("PATCH", RELEASE);
    let annotations = json!({"pleach.dev/approved": DIGEST,
        "pleach.dev/approved-by": format!("{DIGEST} ann")});
    let expected = json!({"metadata": {"annotations": annotations, "resourceVersion": "1"}});
    assert_eq!(written, [expected]);
    let events = fixture.seen("POST", "/api/v1/namespaces/default/events");
    let [event] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(event["reason"], "Approved");
    assert_eq!(event["message"], format!("approved by ann: {DIGEST}"));

    let audit = fixture.get("/actions", &cookie).await.body;
    for text in [
        "the plan has changed",
        "done",
        DIGEST,
        "192.0.2.1",
        "approve",
    ] {
        assert!(audit.contains(text), "{text}: {audit}");
    }
    let text = fixture.metrics.text();
    for result in ["done", "outdated"] {
        let line = format!("pleach_ui_actions_total{{action=\"approve\",result=\"{result}\"}} 1");
        assert!(text.contains(&line), "{text}");
    }
}

#[tokio::test]
async fn a_plan_that_changes_during_the_write_is_not_approved() {
    let fixture = Fixture::new(&["get", "approve"]).await;
    let cookie = fixture.sign_in().await;
    let mut newer = release(OTHER_DIGEST);
    newer["metadata"]["resourceVersion"] = json!("5");
    fixture.script.lock().unwrap().interference = Some(newer);
    let form = format!("digest={DIGEST}");
    let answer = fixture
        .post("/releases/prod/web/approve", &cookie, &form)
        .await;
    assert_eq!(answer.status, 409, "{}", answer.body);
    let release = fixture.script.lock().unwrap().release.clone();
    assert_eq!(release["metadata"]["annotations"], Value::Null);
}

#[tokio::test]
async fn each_action_needs_its_verb_now() {
    let fixture = Fixture::new(&["get", "suspend"]).await;
    let cookie = fixture.sign_in().await;
    let approve = format!("digest={DIGEST}");
    for (path, form, expected) in [
        ("/releases/prod/web/approve", approve.as_str(), 403),
        ("/releases/prod/web/sync", "", 403),
        ("/releases/prod/web/resume", "", 403),
        ("/releases/prod/web/suspend", "reason=", 400),
        ("/releases/prod/web/suspend", "reason=r&until=2027", 400),
        ("/releases/prod/web/suspend", "reason=r&duration=2h", 303),
        ("/releases/prod/db/sync", "", 404),
        ("/releases/prod/web/delete", "", 404),
    ] {
        let answer = fixture.post(path, &cookie, form).await;
        assert_eq!(answer.status, expected, "{path} {form}: {}", answer.body);
        if expected == 403 {
            let verb = path.rsplit('/').next().unwrap();
            let text =
                format!("ann may not {verb} prod.web; needs verb {verb} on releases.pleach.dev");
            assert!(answer.body.contains(&text), "{}", answer.body);
        }
    }
    let written = fixture.seen("PATCH", RELEASE);
    let [written] = &written[..] else {
        panic!("{written:?}")
    };
    assert_eq!(written["spec"]["suspend"]["by"], "ann");
    assert_eq!(written["spec"]["suspend"]["reason"], "r");
    // A permission that is withdrawn counts at once, though pages used it within the last minute.
    fixture.script.lock().unwrap().verbs = vec!["get"];
    let answer = fixture
        .post("/releases/prod/web/suspend", &cookie, "reason=r")
        .await;
    assert_eq!(answer.status, 403);
    // An invisible release looks like one that does not exist.
    fixture.script.lock().unwrap().verbs = vec!["suspend"];
    let answer = fixture
        .post("/releases/prod/web/suspend", &cookie, "reason=r")
        .await;
    assert_eq!(answer.status, 404);
}

#[tokio::test]
async fn without_sign_in_the_page_is_read_only() {
    let fixture = Fixture::with(&["get", "sync"], |_, means| Auth::off(means.metrics)).await;
    let answer = fixture.get("/releases/prod/web", "").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, ": get"));
    assert_eq!(
        fixture.post("/releases/prod/web/sync", "", "").await.status,
        403
    );
    assert_eq!(fixture.get("/login", "").await.location(), "/");
    assert!(fixture.script.lock().unwrap().seen.is_empty());
}

#[tokio::test]
async fn an_action_without_sign_in_returns_to_its_page() {
    let fixture = Fixture::new(&["get", "sync"]).await;
    let answer = fixture.post("/releases/prod/web/sync", "", "").await;
    assert_eq!(answer.location(), "/login?next=%2Freleases%2Fprod%2Fweb");
    assert!(fixture.seen("PATCH", RELEASE).is_empty());
}

#[tokio::test]
async fn the_permission_is_checked_before_the_cluster_is_asked() {
    for (verbs, is_known, expected, is_asked) in [
        (&[][..], true, 404, false),
        (&["get"], true, 403, false),
        (&["get", "sync"], true, 502, true),
        // The namespace of a release of another replica is found by its record only.
        (&[], false, 404, true),
        (&["get"], false, 404, true),
        (&["get", "sync"], false, 502, true),
    ] {
        let fixture = Fixture::new(verbs).await;
        fixture.script.lock().unwrap().is_closed = true;
        if !is_known {
            fixture.releases.lock().unwrap().clear();
        }
        let cookie = fixture.sign_in().await;
        let answer = fixture.post("/releases/prod/web/sync", &cookie, "").await;
        assert_eq!(
            answer.status, expected,
            "{verbs:?} {is_known}: {}",
            answer.body
        );
        let asked = !fixture.seen("GET", RELEASE).is_empty();
        assert_eq!(asked, is_asked, "{verbs:?} {is_known}");
    }
}

#[tokio::test]
async fn slow_reviews_do_not_hide_the_other_releases() {
    let fixture = Fixture::new(&["get"]).await;
    let cookie = fixture.sign_in().await;
    assert_eq!(
        fixture.get("/", &cookie).await.body,
        "overview, partial: false"
    );
    fixture.releases.lock().unwrap().push(known("slow", None));
    // All other answers are known; from here on, only time-outs are waited for.
    tokio::time::pause();
    let answer = fixture.get("/", &cookie).await;
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (200, "overview, partial: true")
    );
    let answer = fixture.get("/releases/prod/web", &cookie).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "ann: get"));
}

#[tokio::test]
async fn namespaces_are_reviewed_as_a_whole_first() {
    let fixture = Fixture::new(&["get"]).await;
    let names: Vec<String> = (0..40).map(|number| format!("app-{number}")).collect();
    let mut releases: Vec<KnownRelease> =
        names.iter().map(|name| known(name, Some("team"))).collect();
    releases.extend([
        known("one", Some("alone")),
        known("a", Some("dark")),
        known("b", Some("dark")),
    ]);
    *fixture.releases.lock().unwrap() = releases;
    let cookie = fixture.sign_in().await;
    let answer = fixture.get("/releases/prod/app-39", &cookie).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "ann: get"));
    let answer = fixture.get("/releases/prod/a", &cookie).await;
    assert_eq!(answer.status, 404);
    // Five verbs on all releases and on the release of each page, two namespaces, and the three
    // releases without an answer by then.
    let reviews = fixture.seen("POST", REVIEWS);
    assert!(reviews.len() <= 5 + 5 + 5 + 2 + 3, "{}", reviews.len());
}

#[tokio::test]
async fn a_refused_approval_names_what_changed() {
    let fixture = Fixture::new(&["get", "approve"]).await;
    let (mut writer, board) = BoardWriter::new();
    writer.process(&ControllerEvent::EnvironmentLoaded {
        repository: "fleet".to_owned(),
        environment: "prod".to_owned(),
        cluster: None,
        revision: "9683080".to_owned(),
        releases: vec!["web".to_owned()],
        stalled: BTreeMap::new(),
        took: Duration::ZERO,
    });
    writer.publish();
    let mut board = Board::clone(&board.borrow());
    let outline = |effects: &str, step: &str| {
        Arc::new(Outline {
            effects: effects.to_owned(),
            rows: vec![OutlineRow {
                object: "Deployment shop/web".to_owned(),
                step: step.to_owned(),
                effect: Digest::of(step.as_bytes()),
            }],
        })
    };
    let environment = Arc::make_mut(board.environments.get_mut("prod").unwrap());
    let release = Arc::make_mut(environment.releases.get_mut("web").unwrap());
    release.earlier = vec![
        outline(OTHER_DIGEST, "create in stage one"),
        outline(DIGEST, "delete in stage two"),
    ];
    fixture.board.send_replace(Arc::new(board));
    let cookie = fixture.sign_in().await;
    let form = format!("digest={OTHER_DIGEST}");
    let answer = fixture
        .post("/releases/prod/web/approve", &cookie, &form)
        .await;
    assert_eq!(answer.status, 409, "{}", answer.body);
    let expected = "<td>create in stage one</td><td>delete in stage two</td>";
    assert!(answer.body.contains(expected), "{}", answer.body);
}
