//! Handlers of the sign-in at an identity provider.
//!
//! A link starts it: the content security policy forbids redirections of forms to other web sites.
//! A cookie binds the answer of the issuer to the browser that started the sign-in.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::header::{HeaderMap, HeaderValue, SET_COOKIE};
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::get;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::super::cookie::{CookieKey, CookieKind};
use super::super::sign_in::Failure;
use super::super::{Auth, Method, Users, next};
use super::{Issuer, OidcError, Started};
use crate::server::metrics::SignInResult;

/// Time that a user has to sign in at the issuer.
const LIFETIME: SignedDuration = SignedDuration::from_mins(10);
/// Largest difference between the clocks of two replicas.
const SKEW: SignedDuration = SignedDuration::from_mins(1);
/// Longest error code of an issuer that is logged, in bytes.
const CODE: usize = 40;

/// Query of the start.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Return {
    next: String,
}

/// Answer of the issuer, which a browser brings.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Returned {
    state: String,
    code: String,
    error: String,
}

/// A started sign-in, in a cookie.
#[derive(Serialize, Deserialize)]
struct Pending {
    started: Started,
    /// Path to return to.
    next: String,
    /// Time of the start, in seconds since 1970.
    at: i64,
}

/// Returns the routes of the sign-in at an issuer.
pub(in super::super) fn router() -> Router<Arc<Auth>> {
    Router::new()
        .route("/login/start", get(start))
        .route("/login/callback", get(finish))
}

/// Returns the issuer, if users sign in there.
fn issuer(auth: &Auth) -> Option<(&Users, &Issuer)> {
    let users = auth.users.as_ref()?;
    match &users.method {
        Method::Oidc(issuer) => Some((users, issuer)),
        Method::Token(_) => None,
    }
}

/// Redirects to the issuer.
async fn start(
    State(auth): State<Arc<Auth>>,
    Query(query): Query<Return>,
    request: Request,
) -> Response {
    let Some((users, issuer)) = issuer(&auth) else {
        return Redirect::to("/login").into_response();
    };
    let (address, next) = (auth.address(&request), next::checked(&query.next));
    let started = match begin(users, issuer, address, next).await {
        Ok(started) => started,
        Err(failure) => {
            auth.metrics.ui_sign_in("oidc", failure.result());
            return users.failed(failure, next);
        }
    };
    let (url, cookie) = started;
    ([(SET_COOKIE, cookie)], Redirect::to(&url)).into_response()
}

/// Returns the URL at the issuer, and the cookie of the started sign-in.
async fn begin(
    users: &Users,
    issuer: &Issuer,
    address: IpAddr,
    next: &str,
) -> Result<(String, String), Failure> {
    if !issuer.starts.admit(address) {
        return Err(Failure::TooOften);
    }
    let (url, started) = issuer.start().await.map_err(failure)?;
    let pending = Pending {
        started,
        next: next.to_owned(),
        at: Timestamp::now().as_second(),
    };
    let cookie = pending.seal(&users.cookies)?;
    Ok((url, cookie))
}

/// Signs the user in whom the issuer names.
async fn finish(
    State(auth): State<Arc<Auth>>,
    query: Result<Query<Returned>, QueryRejection>,
    request: Request,
) -> Response {
    let Some((users, issuer)) = issuer(&auth) else {
        return Redirect::to("/login").into_response();
    };
    let Ok(Query(returned)) = query else {
        auth.metrics.ui_sign_in("oidc", SignInResult::Refused);
        return users.failed(Failure::Malformed, "/");
    };
    let address = auth.address(&request);
    let (result, mut response, is_used) =
        match Pending::of(&users.cookies, request.headers(), &returned) {
            Ok(pending) => {
                let next = next::checked(&pending.next).to_owned();
                let (result, response) =
                    match complete(users, issuer, address, (&returned, pending)).await {
                        Ok(cookie) => {
                            let answer = ([(SET_COOKIE, cookie)], Redirect::to(&next));
                            (SignInResult::Accepted, answer.into_response())
                        }
                        Err(failure) => {
                            (failure.result(), refused(users, failure, (address, &next)))
                        }
                    };
                (result, response, true)
            }
            Err(failure) => {
                let response = refused(users, failure, (address, "/"));
                (failure.result(), response, false)
            }
        };
    auth.metrics.ui_sign_in("oidc", result);
    let removed = users.cookies.remove(CookieKind::Pending);
    if is_used && let Ok(removed) = HeaderValue::try_from(removed) {
        response.headers_mut().append(SET_COOKIE, removed);
    }
    response
}

fn refused(users: &Users, failure: Failure, (address, next): (IpAddr, &str)) -> Response {
    tracing::info!(%address, reason = failure.message(), "a sign-in to the web page failed");
    users.failed(failure, next)
}

/// Returns the cookie of the user whom the issuer names.
async fn complete(
    users: &Users,
    issuer: &Issuer,
    address: IpAddr,
    (returned, pending): (&Returned, Pending),
) -> Result<String, Failure> {
    if !issuer.ends.admit(address) {
        return Err(Failure::TooOften);
    }
    if !returned.error.is_empty() || returned.code.is_empty() {
        let is_code = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
        let error = Some(returned.error.as_str());
        let error = error.filter(|text| text.len() <= CODE && text.bytes().all(is_code));
        tracing::info!(
            error = error.unwrap_or("unknown"),
            "the issuer signed no user in"
        );
        return Err(Failure::Denied);
    }
    let finishing = issuer.finish(returned.code.clone(), pending.started);
    let user = finishing.await.map_err(failure)?;
    let cookie = users.issue(&user)?;
    tracing::info!(user = user.name, %address, "a user signed in to the web page");
    Ok(cookie)
}

/// Logs an error, which has no text of a token.
#[expect(clippy::needless_pass_by_value, reason = "the argument of `map_err`")]
fn failure(error: OidcError) -> Failure {
    let failure = match error {
        OidcError::IdToken(_) => Failure::IdToken,
        OidcError::Claims(_) => Failure::Name,
        _ => Failure::Issuer,
    };
    tracing::warn!(error = %pleach_engine::words(&error), "cannot sign a user in at the issuer");
    failure
}

impl Pending {
    fn seal(&self, cookies: &CookieKey) -> Result<String, Failure> {
        let content = serde_json::to_vec(self).map_err(|_| Failure::NoKey)?;
        let cookie = cookies.seal(CookieKind::Pending, content, LIFETIME);
        cookie.map_err(|error| Failure::no_key(&error))
    }

    /// Returns the sign-in that this browser started and the issuer answers.
    fn of(cookies: &CookieKey, headers: &HeaderMap, returned: &Returned) -> Result<Self, Failure> {
        let content = cookies.open(CookieKind::Pending, headers);
        let content = content.map_err(|error| Failure::no_key(&error))?;
        let pending = content.and_then(|content| serde_json::from_slice::<Self>(&content).ok());
        let pending = pending.filter(|pending| {
            let is_recent = pending.is_recent(Timestamp::now());
            is_recent && pending.started.has_state(&returned.state)
        });
        pending.ok_or(Failure::NotStarted)
    }

    fn is_recent(&self, now: Timestamp) -> bool {
        let at = Timestamp::from_second(self.at).map(|at| now.duration_since(at));
        at.is_ok_and(|age| -SKEW <= age && age < LIFETIME)
    }
}
