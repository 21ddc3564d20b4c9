//! Tokens of GitHub Apps, from a server that verifies the signatures.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp};
use pleach_forge::{Forge, State as CommitState, Status, Token};
use pleach_formats::file::ForgeKind;
use pleach_git::{
    app::GithubApp,
    mirror::Mirror,
    remote::{Auth, Remote},
};
use pleach_reconciler::config::ForgeAddress;
use pleach_testkit::forge::{FakeForge, PROJECT};
use pleach_testkit::git_server::GitServer;
use pleach_testkit::repository::TestRepo;
use rustls::SignatureScheme;
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Parts of the API that apps use.
struct Api {
    url: String,
    state: Arc<Mutex<Asked>>,
    /// Ends the server when dropped.
    _runtime: tokio::runtime::Runtime,
}

#[derive(Default)]
struct Asked {
    /// Public key of the app.
    key: Vec<u8>,
    /// Statuses of all answers so far.
    answers: Vec<u16>,
    /// Lifetime of the next token.
    lifetime: SignedDuration,
}

impl Api {
    fn start(key: Vec<u8>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let state = Arc::new(Mutex::new(Asked {
            key,
            answers: Vec::new(),
            lifetime: SignedDuration::from_hours(1),
        }));
        let router = Router::new()
            .route("/app/installations/77/access_tokens", post(give))
            .with_state(Arc::clone(&state));
        let bind = tokio::net::TcpListener::bind("127.0.0.1:0");
        let listener = runtime.block_on(bind).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let _serving = runtime.spawn(async move { axum::serve(listener, router).await });
        Self {
            url,
            state,
            _runtime: runtime,
        }
    }

    fn answers(&self) -> Vec<u16> {
        self.state.lock().unwrap().answers.clone()
    }
}

async fn give(State(state): State<Arc<Mutex<Asked>>>, headers: HeaderMap) -> (StatusCode, String) {
    let mut asked = state.lock().unwrap();
    let sent = headers.get("authorization").unwrap().to_str().unwrap();
    let answer = match check(sent, &asked.key) {
        Ok(()) => {
            let number = asked.answers.iter().filter(|code| **code == 201).count();
            let until = Timestamp::now() + asked.lifetime;
            let token = format!("ghs_{number}");
            let body = json!({ "token": token, "expires_at": until.to_string() });
            (StatusCode::CREATED, body.to_string())
        }
        Err(why) => {
            let body = json!({ "message": why });
            (StatusCode::UNAUTHORIZED, body.to_string())
        }
    };
    asked.answers.push(answer.0.as_u16());
    answer
}

/// Verifies a token as GitHub does.
fn check(sent: &str, key: &[u8]) -> Result<(), String> {
    let token = sent.strip_prefix("Bearer ").ok_or("no bearer token")?;
    let (text, signature) = token.rsplit_once('.').ok_or("no JSON web token")?;
    let part = |text: &str| {
        URL_SAFE_NO_PAD
            .decode(text)
            .map_err(|error| error.to_string())
    };
    let provider = rustls::crypto::ring::default_provider();
    let algorithms = provider.signature_verification_algorithms.mapping;
    let rsa = algorithms
        .iter()
        .find(|(scheme, _)| *scheme == SignatureScheme::RSA_PKCS1_SHA256)
        .map(|(_, algorithms)| algorithms[0])
        .ok_or("no RSA")?;
    rsa.verify_signature(key, text.as_bytes(), &part(signature)?)
        .map_err(|_| "the signature is wrong".to_owned())?;
    let (header, claims) = text.split_once('.').ok_or("no claims")?;
    let read = |text: &str| -> Result<Value, String> {
        serde_json::from_slice(&part(text)?).map_err(|error| error.to_string())
    };
    let (header, claims) = (read(header)?, read(claims)?);
    if header != json!({ "alg": "RS256", "typ": "JWT" }) || claims["iss"] != "4711" {
        return Err(format!("{header} {claims}"));
    }
    let (from, until) = (
        claims["iat"].as_i64().unwrap(),
        claims["exp"].as_i64().unwrap(),
    );
    let now = Timestamp::now().as_second();
    if from > now || until < now || until - from > 600 {
        return Err(format!("{claims} at {now}"));
    }
    Ok(())
}

/// Creates a private key in GitHub's format (PKCS#1 in PEM) and returns its public key.
fn rsa_key(path: &Path) -> Vec<u8> {
    let run = |args: &[&str]| {
        let output = Command::new("ssh-keygen").args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    let text = path.to_str().unwrap();
    run(&[
        "-q", "-t", "rsa", "-b", "2048", "-m", "PEM", "-N", "", "-f", text,
    ]);
    let public = run(&["-e", "-m", "PKCS8", "-f", text]);
    let info = SubjectPublicKeyInfoDer::from_pem_slice(&public).unwrap();
    // The key is at the end, after a header of 24 bytes.
    info[24..].to_vec()
}

struct Scene {
    folder: TempDir,
    api: Api,
    server: GitServer,
    _repo: TestRepo,
}

impl Scene {
    fn new() -> Self {
        // The program does this in `main`.
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let repo = TestRepo::new([("pleach.yaml", "first")]).unwrap();
        repo.commit("first").unwrap();
        repo.git(&["branch", "env/a"]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let key = rsa_key(&folder.path().join("key"));
        let scene = Self {
            folder,
            api: Api::start(key),
            server: GitServer::start(repo.path()).unwrap(),
            _repo: repo,
        };
        scene.demand(0);
        scene
    }

    fn app(&self, number: &str) -> GithubApp {
        let key = self.folder.path().join("key");
        GithubApp::new(
            number.to_owned(),
            "77".to_owned(),
            key,
            self.api.url.clone(),
        )
    }

    fn mirror(&self, app: &GithubApp) -> Mirror {
        Mirror::new(Remote {
            url: self.server.url(".git"),
            auth: Auth::GithubApp(app.clone()),
            keys: None,
        })
    }

    /// Accepts only this token.
    fn demand(&self, token: usize) {
        let basic = STANDARD.encode(format!("x-access-token:ghs_{token}"));
        self.server.demand(&format!("Basic {basic}"));
    }
}

fn fetch(mirror: &mut Mirror) -> Result<usize, String> {
    let fetched = mirror.fetch(|branch| branch.starts_with("env/"));
    fetched
        .map(|fetched| fetched.heads.len())
        .map_err(|error| error.to_string())
}

#[test]
fn a_token_is_asked_for_once_and_kept_until_shortly_before_its_end() {
    let scene = Scene::new();
    let app = scene.app("4711");
    let mut mirror = scene.mirror(&app);
    assert_eq!(fetch(&mut mirror), Ok(1));
    assert_eq!(fetch(&mut mirror), Ok(1));
    // Also with a new mirror.
    assert_eq!(fetch(&mut scene.mirror(&app)), Ok(1));
    assert_eq!(scene.api.answers(), [201]);

    // A token that expires soon is requested again each time.
    scene.api.state.lock().unwrap().lifetime = SignedDuration::from_mins(5);
    let app = scene.app("4711");
    let mut mirror = scene.mirror(&app);
    for number in 1..=2 {
        scene.demand(number);
        assert_eq!(fetch(&mut mirror), Ok(1));
    }
    assert_eq!(scene.api.answers(), [201; 3]);
}

#[test]
fn a_token_that_is_not_taken_any_more_is_asked_for_anew() {
    let scene = Scene::new();
    let mut mirror = scene.mirror(&scene.app("4711"));
    assert_eq!(fetch(&mut mirror), Ok(1));
    scene.demand(1);
    let error = fetch(&mut mirror).unwrap_err();
    assert!(
        error.contains("the server rejected the credentials"),
        "{error}"
    );
    assert!(!error.contains("ghs_"), "{error}");
    assert_eq!(fetch(&mut mirror), Ok(1));
    assert_eq!(scene.api.answers(), [201; 2]);
}

#[test]
fn a_refusal_is_told_in_the_words_of_github_and_without_secrets() {
    let scene = Scene::new();
    let error = fetch(&mut scene.mirror(&scene.app("4712"))).unwrap_err();
    let start = format!(
        "failed to get a token from {}: the API answered 401",
        scene.api.url
    );
    assert!(error.starts_with(&start), "{error}");
    let key = scene.folder.path().join("key");
    let text = std::fs::read_to_string(&key).unwrap();
    assert!(!error.contains(text.lines().nth(1).unwrap()), "{error}");

    std::fs::write(&key, text.replace("BEGIN", "begin")).unwrap();
    let error = fetch(&mut scene.mirror(&scene.app("4711"))).unwrap_err();
    assert!(error.contains("not a private key in PEM"), "{error}");
    // Another app with the right name but its own key.
    std::fs::remove_file(&key).unwrap();
    rsa_key(&key);
    let error = fetch(&mut scene.mirror(&scene.app("4711"))).unwrap_err();
    assert!(error.contains("the signature is wrong"), "{error}");
    assert_eq!(scene.api.answers(), [401, 401]);
}

/// Sets the status of a commit like the controller.
fn set(forge: &Forge) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let status = Status {
        context: "pleach/a".to_owned(),
        state: CommitState::Success,
        description: "1 release in sync".to_owned(),
    };
    let set = runtime.block_on(forge.set_status("abc", &status));
    set.map_err(|error| error.to_string())
}

fn forge(fake: &FakeForge, app: &GithubApp) -> Forge {
    let address = ForgeAddress::named(ForgeKind::Github, fake.api(), PROJECT).unwrap();
    Forge::new(address, Token::App(app.clone()), Duration::from_secs(5)).unwrap()
}

#[test]
fn a_forge_is_asked_with_the_token_that_is_fetched_with() {
    let scene = Scene::new();
    let app = scene.app("4711");
    let fake = FakeForge::start(ForgeKind::Github).unwrap();
    let forge = forge(&fake, &app);
    fake.demand("ghs_0");
    assert_eq!(set(&forge), Ok(()));
    assert_eq!(set(&forge), Ok(()));
    assert_eq!(fetch(&mut scene.mirror(&app)), Ok(1));
    assert_eq!(scene.api.answers(), [201]);
    // A rejected token is replaced at once.
    fake.demand("ghs_1");
    assert_eq!(set(&forge), Ok(()));
    assert_eq!(scene.api.answers(), [201; 2]);
    assert_eq!(fake.statuses("abc").len(), 3);
    // Only once: a forge that rejects all tokens is not retried.
    fake.demand("nothing of ours");
    let error = set(&forge).unwrap_err();
    assert!(error.contains("the forge answered 401"), "{error}");
    assert!(!error.contains("ghs_"), "{error}");
    assert_eq!(scene.api.answers(), [201; 3]);
    assert!(!format!("{forge:?}").contains("ghs_"));
}

#[test]
fn a_forge_that_gives_an_app_no_token_is_asked_nothing() {
    let scene = Scene::new();
    let fake = FakeForge::start(ForgeKind::Github).unwrap();
    let error = set(&forge(&fake, &scene.app("4712"))).unwrap_err();
    let start = format!("failed to get a token from {}: ", scene.api.url);
    assert!(error.starts_with(&start), "{error}");
    assert_eq!(fake.asked(), [""; 0]);
}

#[test]
fn an_api_that_is_not_there_is_named() {
    let scene = Scene::new();
    let key = scene.folder.path().join("key");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    drop(silent);
    let app = GithubApp::new("4711".to_owned(), "77".to_owned(), key, url.clone());
    let error = fetch(&mut scene.mirror(&app)).unwrap_err();
    let start = format!("failed to get a token from {url}: ");
    assert!(
        error.starts_with(&start) && error.contains("refused"),
        "{error}"
    );
}
