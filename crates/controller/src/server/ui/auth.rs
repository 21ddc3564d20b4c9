//! Sign-in, and the permissions of users of the web page.
//!
//! The controller acts with its own account and never impersonates a user. It asks the API server
//! who a token belongs to, and whether that user is allowed to use a verb on a release.

mod attempts;
pub mod cookie;
mod next;
#[cfg(feature = "oidc")]
pub mod oidc;
mod review;
mod sign_in;
mod token;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HeaderMap, WWW_AUTHENTICATE};
use axum::http::{Method as HttpMethod, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Redirect, Response};
use jiff::Timestamp;
use pleach_cluster::{ClusterError, OwnCluster, User};
use pleach_model::object::ReleaseName;
use pleach_page::viewer::{Permissions, Verb, Viewer};

use self::cookie::CookieKey;
use self::review::Reviews;
use self::token::Tokens;
use crate::server::Peer;
use crate::server::metrics::Metrics;

pub use self::review::{Freshness, KnownRelease};
pub use self::sign_in::router;

/// Time-out of all questions to the API server that one request needs.
const DEADLINE: Duration = Duration::from_secs(5);
/// Prefix of facts about a token itself, which decide about no permission.
const OF_TOKEN: &str = "authentication.kubernetes.io/";

/// User of the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// User name, as RBAC names it.
    pub name: String,
    /// Groups, as RBAC names them.
    pub groups: Vec<String>,
    /// Further facts from the authenticator, such as scopes of the token.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl From<User> for Identity {
    fn from(user: User) -> Self {
        let extra = user.extra.into_iter();
        Self {
            name: user.username,
            groups: user.groups,
            extra: extra
                .filter(|(key, _)| !key.starts_with(OF_TOKEN))
                .collect(),
        }
    }
}

/// The API server did not answer a question about a user.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// The time-out passed.
    #[error("the API server did not answer in {DEADLINE:?}")]
    Late,
    /// The request failed.
    #[error("the API server refused a review")]
    Failed(#[source] ClusterError),
}

/// Returns the releases that exist, as far as the controller knows.
pub type KnownReleases = Arc<dyn Fn() -> Vec<KnownRelease> + Send + Sync>;

/// Sign-in and permissions.
pub struct Auth {
    /// `None`: there is no sign-in, and the page is read-only.
    users: Option<Users>,
    /// Whether the last hop of `X-Forwarded-For` is the address of a client.
    behind_proxy: bool,
    metrics: Arc<Metrics>,
}

/// Means to recognize users.
struct Users {
    cookies: CookieKey,
    method: Method,
    reviews: Reviews,
    known: KnownReleases,
}

/// How users sign in.
enum Method {
    /// With a bearer token.
    Token(Tokens),
    /// At an identity provider.
    #[cfg(feature = "oidc")]
    Oidc(Box<oidc::Issuer>),
}

/// Parts of a sign-in that do not depend on its method.
pub struct Means {
    /// The cluster that reviews users.
    pub own: OwnCluster,
    /// Key of the cookies.
    pub cookies: CookieKey,
    /// Whether the last hop of `X-Forwarded-For` is the address of a client.
    pub behind_proxy: bool,
    /// The releases that exist.
    pub known: KnownReleases,
    /// Counts sign-ins.
    pub metrics: Arc<Metrics>,
}

/// Result of a sign-in check of a request.
enum SignedIn {
    Yes(Identity),
    No,
    /// The request has a token that the API server does not accept.
    WrongToken,
    /// Too many wrong tokens came from the address.
    TooOften,
}

impl Auth {
    /// Creates a page without sign-in.
    pub fn off(metrics: Arc<Metrics>) -> Self {
        Self {
            users: None,
            behind_proxy: false,
            metrics,
        }
    }

    /// Creates the sign-in with bearer tokens of a cluster.
    pub fn tokens(means: Means) -> Self {
        let tokens = Tokens::new(means.own.clone());
        Self::with(Method::Token(tokens), means)
    }

    /// Creates the sign-in at an identity provider.
    #[cfg(feature = "oidc")]
    pub fn oidc(issuer: oidc::Issuer, means: Means) -> Self {
        Self::with(Method::Oidc(Box::new(issuer)), means)
    }

    fn with(method: Method, means: Means) -> Self {
        let Means {
            own,
            cookies,
            behind_proxy,
            known,
            metrics,
        } = means;
        Self {
            users: Some(Users {
                cookies,
                method,
                reviews: Reviews::new(own),
                known,
            }),
            behind_proxy,
            metrics,
        }
    }

    /// Returns whether a user is allowed to use a verb on a release. False without sign-in.
    pub async fn may(
        &self,
        user: &Identity,
        verb: Verb,
        release: &KnownRelease,
        freshness: Freshness,
    ) -> Result<bool, Unanswered> {
        match &self.users {
            Some(users) => users.reviews.may(user, verb, release, freshness).await,
            None => Ok(false),
        }
    }

    /// Returns the address of the client.
    pub fn address(&self, request: &Request) -> IpAddr {
        let peer = request.extensions().get::<Peer>();
        let peer = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |Peer(address)| *address);
        let forwarded = self.behind_proxy.then(|| forwarded(request.headers()));
        forwarded.flatten().unwrap_or(peer)
    }
}

/// Returns the client that the proxy in front of the listener adds last.
fn forwarded(headers: &HeaderMap) -> Option<IpAddr> {
    let line = headers.get_all("x-forwarded-for").iter().next_back()?;
    let last = line.to_str().ok()?.rsplit(',').next()?.trim();
    last.parse().ok()
}

/// Returns the token of a request, which a proxy that signs users in sends.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Adds user and permissions to a request, or answers that a sign-in is needed.
pub(super) async fn identify(
    State(auth): State<Arc<Auth>>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(users) = &auth.users else {
        request.extensions_mut().insert(Viewer::read_only());
        return next.run(request).await;
    };
    let address = auth.address(&request);
    let signed_in = match users.signed_in(request.headers(), address).await {
        Ok(signed_in) => signed_in,
        Err(error) => return unavailable(&error),
    };
    let user = match signed_in {
        SignedIn::Yes(user) => user,
        SignedIn::No => return to_sign_in(&request),
        SignedIn::WrongToken => {
            let challenge = [(WWW_AUTHENTICATE, "Bearer")];
            let message = "the API server does not accept the token\n";
            return (StatusCode::UNAUTHORIZED, challenge, message).into_response();
        }
        SignedIn::TooOften => return StatusCode::TOO_MANY_REQUESTS.into_response(),
    };
    // An action reviews its own verb at the time of the request.
    if request.method().is_safe() {
        let path = request.uri().path();
        let viewer = match users.viewer(&user, path).await {
            Ok(viewer) => viewer,
            Err(error) => return unavailable(&error),
        };
        request.extensions_mut().insert(viewer);
    }
    request.extensions_mut().insert(user);
    next.run(request).await
}

impl Users {
    async fn signed_in(
        &self,
        headers: &HeaderMap,
        address: IpAddr,
    ) -> Result<SignedIn, Unanswered> {
        if let (Method::Token(tokens), Some(token)) = (&self.method, bearer(headers)) {
            return tokens.of_request(token, address).await;
        }
        Ok(match self.cookies.user(headers, Timestamp::now()) {
            Ok(Some(user)) => SignedIn::Yes(user),
            Ok(None) => SignedIn::No,
            Err(error) => {
                tracing::warn!(error = %pleach_engine::words(&error), "cannot read the cookies of the web page");
                SignedIn::No
            }
        })
    }

    /// Returns the permissions that a page needs: whether the user sees each release, and all verbs
    /// on the release of the page.
    async fn viewer(&self, user: &Identity, path: &str) -> Result<Viewer, Unanswered> {
        let known = (self.known)();
        let of_page = release_of(path);
        let permissions = self.reviews.permissions(user, &known, of_page.as_ref());
        let permissions: Permissions = permissions.await?;
        Ok(Viewer::signed_in(user.name.clone(), permissions))
    }
}

/// Returns the release of a path `/releases/ENV/NAME/…`.
fn release_of(path: &str) -> Option<ReleaseName> {
    let mut parts = path.strip_prefix("/releases/")?.split('/');
    let name = |part: Option<&str>| part.filter(|part| !part.is_empty()).map(str::to_owned);
    Some(ReleaseName {
        environment: name(parts.next())?,
        release: name(parts.next())?,
    })
}

/// Returns the redirection to the sign-in. Scripts get an error instead of a page.
fn to_sign_in(request: &Request) -> Response {
    let path = request.uri().path();
    let query = request.uri().query().unwrap_or_default();
    if path == "/events" || query.split('&').any(|pair| pair.starts_with("fragment=")) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let path = match request.method() {
        &HttpMethod::GET | &HttpMethod::HEAD => request
            .uri()
            .path_and_query()
            .map_or(path, |all| all.as_str()),
        // The form of an action is on the page above.
        _ => path.rsplit_once('/').map_or("/", |(page, _)| page),
    };
    Redirect::to(&next::sign_in_path(path)).into_response()
}

fn unavailable(error: &Unanswered) -> Response {
    tracing::warn!(error = %pleach_engine::words(error), "cannot review a user of the web page");
    let message = format!("{error}; try again later\n");
    (StatusCode::SERVICE_UNAVAILABLE, message).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_about_a_token_are_no_facts_about_its_user() {
        let extra = [
            ("authentication.kubernetes.io/credential-id", "JTI=1"),
            ("scopes.example.org", "user:info"),
        ];
        let user = User {
            username: "ann".to_owned(),
            extra: extra
                .map(|(key, value)| (key.to_owned(), vec![value.to_owned()]))
                .into(),
            ..User::default()
        };
        let identity = Identity::from(user);
        let keys: Vec<&String> = identity.extra.keys().collect();
        assert_eq!(keys, ["scopes.example.org"]);
    }

    #[test]
    fn the_last_hop_is_the_client_of_the_proxy() {
        for (lines, expected) in [
            (&["10.0.0.1, 192.0.2.7"][..], Some("192.0.2.7")),
            (&["10.0.0.1", "2001:db8::1"], Some("2001:db8::1")),
            (&["unknown"], None),
            (&[], None),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append("x-forwarded-for", line.parse().unwrap());
            }
            let expected = expected.map(|address| address.parse().unwrap());
            assert_eq!(forwarded(&headers), expected, "{lines:?}");
        }
    }

    #[test]
    fn a_path_names_its_release() {
        for (path, expected) in [
            ("/releases/prod/web", Some("prod.web")),
            ("/releases/prod/web/plan", Some("prod.web")),
            ("/releases/prod/", None),
            ("/releases/prod", None),
            ("/environments/prod", None),
            ("/", None),
        ] {
            let found = release_of(path).map(|release| release.to_string());
            assert_eq!(found.as_deref(), expected, "{path}");
        }
    }
}
