//! Sign-in at an issuer.

use axum::http::header::{LOCATION, SET_COOKIE};
use pleach_reconciler::config::OidcClient;
use pleach_testkit::issuer::{CLIENT, Fault, Issuer, SECRET};
use reqwest::Url;
use serde_json::json;

use super::*;
use crate::server::ui::auth::oidc;

/// External address of the page.
const PAGE: &str = "http://localhost:8081";

/// The page, and the issuer at which its users sign in.
struct Site {
    fixture: Fixture,
    issuer: Issuer,
}

/// A sign-in that a browser has started.
struct Started {
    /// Cookie of the sign-in.
    cookie: String,
    /// URL at the issuer.
    url: String,
}

impl Site {
    async fn new() -> Self {
        let claims = json!({"email": "ann", "email_verified": true, "groups": ["devs"]});
        let issuer = Issuer::start(claims).unwrap();
        let client = OidcClient {
            issuer: issuer.url(),
            id: CLIENT.to_owned(),
            secret: Some("secret".to_owned()),
            authorities: None,
            scopes: None,
            username_claim: "email".to_owned(),
            username_prefix: String::new(),
            groups_claim: Some("groups".to_owned()),
            groups_prefix: "oidc:".to_owned(),
        };
        let sign_in = |folder: &Path, means: Means| {
            let secret = FileContent::private(format!("{SECRET}\n").into_bytes());
            pleach_files::write_atomic(&folder.join("secret"), &secret).unwrap();
            let config = oidc::IssuerConfig {
                client,
                folder: folder.to_owned(),
                page: PAGE.to_owned(),
            };
            Auth::oidc(oidc::Issuer::new(config).unwrap(), means)
        };
        let fixture = Fixture::with(&["get", "sync"], sign_in).await;
        Self { fixture, issuer }
    }

    async fn start(&self, next: &str) -> Started {
        let path = format!("/login/start?next={}", next.replace('/', "%2F"));
        let answer = self.fixture.get(&path, "").await;
        assert_eq!(answer.status, 303, "{}", answer.body);
        Started {
            cookie: cookie(&answer, "pleach-sign-in"),
            url: answer.location().to_owned(),
        }
    }

    /// Follows the URL at the issuer. Returns the path to which it returns.
    async fn at_issuer(&self, started: &Started) -> String {
        let client = reqwest::Client::builder().no_proxy();
        let client = client.redirect(reqwest::redirect::Policy::none());
        let sent = client.build().unwrap().get(&started.url).send().await;
        let location = sent.unwrap().headers()[LOCATION]
            .to_str()
            .unwrap()
            .to_owned();
        location.strip_prefix(PAGE).unwrap().to_owned()
    }

    /// Signs in. Returns the answer to the callback.
    async fn sign_in(&self, next: &str) -> Answer {
        let started = self.start(next).await;
        let callback = self.at_issuer(&started).await;
        self.fixture.get(&callback, &started.cookie).await
    }
}

/// Returns the pair of a cookie that an answer sets.
fn cookie(answer: &Answer, name: &str) -> String {
    let cookies = answer.headers.get_all(SET_COOKIE).iter();
    let mut cookies = cookies.map(|value| value.to_str().unwrap().to_owned());
    let cookie = cookies.find(|cookie| cookie.starts_with(&format!("{name}=")));
    let cookie = cookie.unwrap_or_else(|| panic!("no cookie {name}"));
    cookie.split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_user_of_the_issuer_signs_in() {
    let site = Site::new().await;
    let fixture = &site.fixture;
    let answer = fixture.get("/login?next=%2Fwaiting", "").await;
    let body = answer.body.replace("&#x2f;", "/");
    assert!(
        body.contains("href=\"/login/start?next=%2Fwaiting\""),
        "{body}"
    );
    let started = site.start("/releases/prod/web").await;
    let url = Url::parse(&started.url).unwrap();
    let query: BTreeMap<_, _> = url.query_pairs().collect();
    assert_eq!(query["redirect_uri"], format!("{PAGE}/login/callback"));
    assert_eq!(query["scope"], "openid email groups");
    for secret in ["state", "nonce"] {
        assert!(query[secret].len() >= 20, "{url}");
        assert!(!started.cookie.contains(&*query[secret]), "{url}");
    }
    let callback = site.at_issuer(&started).await;
    let answer = fixture.get(&callback, &started.cookie).await;
    assert_eq!(
        (answer.status, answer.location()),
        (303, "/releases/prod/web")
    );
    assert_eq!(cookie(&answer, "pleach-sign-in"), "pleach-sign-in=");
    let session = cookie(&answer, "pleach");
    let page = fixture.get("/releases/prod/web", &session).await;
    assert_eq!((page.status, page.body.as_str()), (200, "ann: get sync"));
    // The API server reviews the user and the groups that the issuer names.
    let review = fixture.seen("POST", REVIEWS).remove(0);
    let groups = json!(["system:authenticated", "oidc:devs"]);
    assert_eq!(review["spec"]["groups"], groups);
    let tokens = fixture.seen("POST", "/apis/authentication.k8s.io/v1/tokenreviews");
    assert!(tokens.is_empty(), "{tokens:?}");
    let text = fixture.metrics.text();
    let accepted = "pleach_ui_sign_ins_total{method=\"oidc\",result=\"accepted\"} 1";
    assert!(text.contains(accepted), "{text}");
    // Endpoints and keys are read once.
    site.sign_in("/").await;
    let requests = site.issuer.requests();
    let count = requests
        .iter()
        .filter(|path| *path == "configuration")
        .count();
    assert_eq!(count, 1, "{requests:?}");
    // Tokens of Kubernetes do not sign in here.
    let answer = fixture.post("/login", "", &format!("token={TOKEN}")).await;
    assert_eq!((answer.status, answer.location()), (303, "/login"));
    let request = HttpRequest::get("/releases/prod/web");
    let request = request.header("authorization", format!("Bearer {TOKEN}"));
    assert_eq!(fixture.send(request, "").await.status, 303);
}

#[tokio::test]
async fn a_faulty_issuer_signs_nobody_in() {
    let token = "no valid ID token";
    let issuer = "does not answer as expected";
    for (fault, status, message) in [
        (Fault::RefusedCode, 503, issuer),
        (Fault::HugeToken, 503, issuer),
        (Fault::NoIdToken, 403, token),
        (Fault::WrongNonce, 403, token),
        (Fault::WrongAudience, 403, token),
        (Fault::WrongIssuer, 403, token),
        (Fault::Expired, 403, token),
        (Fault::WrongSignature, 403, token),
        (Fault::NoSignature, 403, token),
        (Fault::SharedKey, 403, token),
        (Fault::ChangedClaims, 403, token),
        (Fault::Denied, 403, "did not sign you in"),
    ] {
        let site = Site::new().await;
        site.issuer.fail(fault);
        let answer = site.sign_in("/").await;
        assert_eq!(answer.status, status, "{fault:?}: {}", answer.body);
        assert!(answer.body.contains(message), "{fault:?}: {}", answer.body);
        let cookies = answer.headers.get_all(SET_COOKIE).iter();
        let cookies: Vec<&str> = cookies.map(|one| one.to_str().unwrap()).collect();
        assert!(
            cookies
                .iter()
                .all(|one| one.starts_with("pleach-sign-in=;")),
            "{fault:?}: {cookies:?}"
        );
        // The same browser signs in afterwards.
        site.issuer.fail(Fault::None);
        assert_eq!(site.sign_in("/").await.status, 303, "{fault:?}");
    }
}

#[tokio::test]
async fn an_unusable_configuration_is_reported() {
    let site = Site::new().await;
    for fault in [Fault::HugeConfiguration, Fault::OtherConfiguration] {
        site.issuer.fail(fault);
        let answer = site.fixture.get("/login/start?next=%2Fwaiting", "").await;
        assert_eq!(answer.status, 503, "{fault:?}");
        assert!(!answer.headers.contains_key(SET_COOKIE), "{fault:?}");
        let body = answer.body.replace("&#x2f;", "/");
        assert!(body.contains("/login/start?next=%2Fwaiting"), "{body}");
    }
    let text = site.fixture.metrics.text();
    let unavailable = "pleach_ui_sign_ins_total{method=\"oidc\",result=\"unavailable\"} 2";
    assert!(text.contains(unavailable), "{text}");
}

#[tokio::test]
async fn an_answer_belongs_to_the_browser_that_started_the_sign_in() {
    let site = Site::new().await;
    let started = site.start("/").await;
    let callback = site.at_issuer(&started).await;
    let changed = callback.replace("state=", "state=x");
    let other = site.start("/").await;
    let without = "/login/callback?code=code-of-the-issuer&state=".to_owned();
    for (path, cookie) in [
        (&changed, &started.cookie),
        (&callback, &String::new()),
        // The cookie of a sign-in that was started later, as in another tab.
        (&callback, &other.cookie),
        (&without, &started.cookie),
    ] {
        let answer = site.fixture.get(path, cookie).await;
        assert_eq!(answer.status, 400, "{path} {}", answer.body);
        assert!(!answer.headers.contains_key(SET_COOKIE), "{path}");
    }
    // The session of a user is no started sign-in, and the other way round.
    let answer = site.sign_in("/").await;
    let session = cookie(&answer, "pleach");
    let (_, value) = session.split_once('=').unwrap();
    let answer = site
        .fixture
        .get(&callback, &format!("pleach-sign-in={value}"))
        .await;
    assert_eq!(answer.status, 400);
    let (_, value) = started.cookie.split_once('=').unwrap();
    let answer = site.fixture.get("/", &format!("pleach={value}")).await;
    assert_eq!(answer.status, 303);
    assert!(!site.issuer.requests().is_empty());
}

#[tokio::test]
async fn a_silent_issuer_blocks_nobody_else() {
    let site = Site::new().await;
    let fixture = &site.fixture;
    let session = cookie(&site.sign_in("/").await, "pleach");
    fixture.get("/", &session).await;
    let started = site.start("/").await;
    let callback = site.at_issuer(&started).await;
    site.issuer.fail(Fault::SilentToken);
    let signing_in = fixture.get(&callback, &started.cookie);
    let mut signing_in = std::pin::pin!(signing_in);
    // The request of the other user is answered while the issuer is silent.
    tokio::select! {
        biased;
        answer = &mut signing_in => panic!("{}", answer.status),
        answer = fixture.get("/", &session) => assert_eq!(answer.status, 200),
    }
    tokio::time::pause();
    let answer = signing_in.await;
    assert_eq!(answer.status, 503, "{}", answer.body);
    assert!(answer.body.contains("try again later"), "{}", answer.body);
}

#[tokio::test]
async fn a_silent_configuration_is_not_waited_for() {
    let site = Site::new().await;
    site.issuer.fail(Fault::SilentConfiguration);
    tokio::time::pause();
    let answer = site.fixture.get("/login/start", "").await;
    assert_eq!(answer.status, 503, "{}", answer.body);
}

#[tokio::test]
async fn a_rotated_key_is_read_again() {
    let site = Site::new().await;
    assert_eq!(site.sign_in("/").await.status, 303);
    site.issuer.rotate_key().unwrap();
    // The keys are not read again at once: a faulty token would cause it each time.
    assert_eq!(site.sign_in("/").await.status, 403);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(31)).await;
    tokio::time::resume();
    assert_eq!(site.sign_in("/").await.status, 303);
}

#[tokio::test]
async fn an_address_has_few_sign_ins_a_minute() {
    let site = Site::new().await;
    for _ in 0..5 {
        site.start("/").await;
    }
    let answer = site.fixture.get("/login/start", "").await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.headers["retry-after"], "60");
}
