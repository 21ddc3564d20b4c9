//! Users who sign in and act with the keyboard only.

use std::sync::Arc;

use pleach_cluster::OwnCluster;
use pleach_controller::SourcePolicy;
use pleach_controller::server::ui::actions::Actions;
use pleach_controller::server::ui::auth::cookie::CookieKey;
use pleach_controller::server::ui::auth::oidc::{Issuer, IssuerConfig};
use pleach_controller::server::ui::auth::{Auth, KnownRelease, KnownReleases, Means};
use pleach_controller::server::ui::security::Security;
use pleach_controller::server::ui::site::{Parts, router};
use pleach_controller::server::{self, ui};
use pleach_engine::decryption::KeySources;
use pleach_formats::sync::Minimum;
use pleach_page::board::Board;
use pleach_planner::observe::ClusterId;
use pleach_reconciler::config::{Branches, OidcClient, Page, Reserved, SignIn};
use pleach_state::inventory::{AWAITING_APPROVAL, awaiting_approval};
use pleach_testkit::browser::{Browser, Window, keys};
use pleach_testkit::issuer::{self, CLIENT, SECRET};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{WINDOWS, check};
use crate::cluster::scripted::{Answer, Scripted, Seen};
use crate::page_fixtures::{every_state, name};

const TOKEN: &str = "token-of-ann";
const RELEASE: &str = "/apis/pleach.dev/v1alpha1/releases/production.approval";
const PATH: &str = "/releases/production/approval";

/// How users sign in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Token,
    Issuer,
}

/// The page with its API server and its issuer. Dropping it ends all of them.
struct Site {
    url: String,
    api: Scripted,
    effects: String,
    _issuer: issuer::Issuer,
    _folder: TempDir,
    _served: JoinSet<()>,
}

/// Answers as an API server where user ann sees and approves one release.
fn answer(seen: &Seen, effects: &str) -> Answer {
    let spec = || seen.json()["spec"].clone();
    match (seen.method.as_str(), seen.path.as_str()) {
        (_, "/version") => Answer::ok(json!({"gitVersion": "v1.36.3"})),
        (_, "/api/v1/namespaces/kube-system") => {
            Answer::ok(json!({"metadata": {"name": "kube-system", "uid": "c1"}}))
        }
        (_, "/apis/authentication.k8s.io/v1/tokenreviews") => {
            let is_ann = spec()["token"] == TOKEN;
            let user = json!({"username": "ann", "groups": ["devs"]});
            Answer::ok(json!({"status": {"authenticated": is_ann, "user": user}}))
        }
        (_, "/apis/authorization.k8s.io/v1/subjectaccessreviews") => {
            let spec = spec();
            let asked = &spec["resourceAttributes"];
            let is_allowed = spec["user"] == "ann"
                && asked["name"] == "production.approval"
                && (asked["verb"] == "get" || asked["verb"] == "approve");
            Answer::ok(json!({"status": {"allowed": is_allowed}}))
        }
        (_, RELEASE) => Answer::ok(json!({
            "apiVersion": "pleach.dev/v1alpha1", "kind": "Release",
            "metadata": {"name": "production.approval", "uid": "u1", "resourceVersion": "1"},
            "spec": {},
            "status": {"conditions": [{"type": "Stalled", "status": "True",
                "reason": AWAITING_APPROVAL, "message": awaiting_approval(effects, "1 to create")}]},
        })),
        (_, "/api/v1/configmaps") => Answer::ok(json!({"kind": "ConfigMapList",
            "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []})),
        ("POST", "/api/v1/namespaces/default/events") => Answer::Json(201, seen.json()),
        _ => Answer::status(404, "NotFound", "not found"),
    }
}

fn effects(board: &Board) -> String {
    let release = &board.environments["production"].releases["approval"];
    release.facts.as_ref().unwrap().plan.effects.clone()
}

impl Site {
    async fn start(method: Method) -> Self {
        let board = every_state();
        let effects = effects(&board);
        let awaited = effects.clone();
        let api = Scripted::start(move |seen: &Seen| answer(seen, &awaited)).await;
        let issuer = issuer::Issuer::start(json!({"email": "ann"})).unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let listening = server::listen(any).await.unwrap();
        // Another site than the issuer, which has the address as its name.
        let url = format!("http://localhost:{}", listening.address.port());
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("key"), [7; 32]).unwrap();
        std::fs::write(folder.path().join("secret"), SECRET).unwrap();
        let known: KnownReleases = Arc::new(|| {
            vec![KnownRelease {
                name: name("production", "approval"),
                namespace: None,
            }]
        });
        let means = Means {
            own: OwnCluster::new(api.connection()),
            cookies: CookieKey::new(folder.path().join("key"), false),
            behind_proxy: false,
            known: Arc::clone(&known),
            metrics: Arc::default(),
        };
        let auth = Arc::new(match method {
            Method::Token => Auth::tokens(means),
            Method::Issuer => {
                let config = IssuerConfig {
                    client: client(&issuer.url()),
                    folder: folder.path().to_owned(),
                    page: url.clone(),
                };
                Auth::oidc(Issuer::new(config).unwrap(), means)
            }
        });
        let policy = SourcePolicy {
            url: "https://git.example.org/fleet.git".to_owned(),
            branches: Branches::pattern("env/*").unwrap(),
            cluster: Some(ClusterId("c1".to_owned())),
            fallback: None,
            connection: api.connection(),
            allow: None,
            minimum: Minimum::default(),
            keys: KeySources::default(),
            reserved: Reserved::default(),
            forge: None,
        };
        let board = watch::Sender::new(Arc::new(board));
        let (auth_of_actions, policies) = (Arc::clone(&auth), vec![Arc::new(policy)]);
        let actions = Actions::new(
            auth_of_actions,
            policies,
            known,
            board.subscribe(),
            Arc::default(),
        );
        let page = Page {
            listen: listening.address,
            sign_in: SignIn::Off,
            url: None,
            tls: None,
            behind_proxy: false,
        };
        let router = router(Parts {
            pages: ui::pages(board.subscribe(), Arc::default()),
            files: ui::files(),
            auth,
            actions,
            security: Security::of(&page),
            metrics: Arc::default(),
        });
        let mut served = JoinSet::new();
        served.spawn(async move {
            listening
                .serve(router, CancellationToken::new())
                .await
                .unwrap();
            drop(board);
        });
        Self {
            url,
            api,
            effects,
            _issuer: issuer,
            _folder: folder,
            _served: served,
        }
    }

    /// Returns the bodies of the writes to the release.
    fn written(&self) -> Vec<Value> {
        let seen = self.api.seen();
        let writes = seen.iter().filter(|one| one.method == "PATCH");
        writes.map(Seen::json).collect()
    }
}

fn client(issuer: &str) -> OidcClient {
    OidcClient {
        issuer: issuer.to_owned(),
        id: CLIENT.to_owned(),
        secret: Some("secret".to_owned()),
        authorities: None,
        scopes: None,
        username_claim: "email".to_owned(),
        username_prefix: String::new(),
        groups_claim: None,
        groups_prefix: String::new(),
    }
}

async fn press_enter(browser: &Browser) {
    browser.types(&keys::ENTER.to_string()).await.unwrap();
}

/// Signs in and approves the plan without a mouse.
async fn approve(browser: &Browser, method: Method, site: &Site) {
    browser.open(&format!("{}{PATH}", site.url)).await.unwrap();
    let is_sign_in = browser.url().await.unwrap().contains("/login?next=");
    assert!(is_sign_in, "{}", browser.url().await.unwrap());
    match method {
        Method::Token => {
            browser.tab_to("Token of a Kubernetes user").await.unwrap();
            browser.types(TOKEN).await.unwrap();
        }
        Method::Issuer => browser.tab_to("Sign in at 127.0.0.1").await.unwrap(),
    }
    press_enter(browser).await;
    browser.until("waits for approval").await.unwrap();
    assert_eq!(browser.url().await.unwrap(), format!("{}{PATH}", site.url));
    let text = browser.text().await.unwrap();
    assert!(text.contains("ann"), "{text}");
    assert!(site.written().is_empty());
    browser.tab_to("Approve").await.unwrap();
    press_enter(browser).await;
    let mut written = site.written();
    let start = std::time::Instant::now();
    while written.is_empty() && start.elapsed().as_secs() < 20 {
        // The answer of the browser comes after the write.
        drop(browser.text().await);
        written = site.written();
    }
    let annotations = json!({"pleach.dev/approved": site.effects,
        "pleach.dev/approved-by": format!("{} ann", site.effects)});
    let expected = json!({"metadata": {"annotations": annotations, "resourceVersion": "1"}});
    assert_eq!(written, [expected]);
    // Signing out is the last step.
    browser.tab_to("Sign out").await.unwrap();
    press_enter(browser).await;
    browser.until("Sign in").await.unwrap();
    browser.open(&format!("{}{PATH}", site.url)).await.unwrap();
    assert!(browser.url().await.unwrap().contains("/login"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_approved_with_the_keyboard_only() {
    for (method, has_scripts) in [
        (Method::Token, true),
        (Method::Token, false),
        (Method::Issuer, true),
    ] {
        let site = Site::start(method).await;
        let browser = Browser::start().await.unwrap();
        browser.allow_scripts(has_scripts).await.unwrap();
        approve(&browser, method, &site).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sign_in_is_accessible() {
    let browser = Browser::start().await.unwrap();
    for method in [Method::Token, Method::Issuer] {
        let site = Site::start(method).await;
        for window in WINDOWS {
            let window: Window = window;
            browser.resize(window).await.unwrap();
            browser.open(&format!("{}/login", site.url)).await.unwrap();
            check(&browser, "/login", window).await;
        }
    }
}
