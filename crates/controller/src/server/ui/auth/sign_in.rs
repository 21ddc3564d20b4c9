//! The page to sign in and out.

use std::fmt;
use std::sync::Arc;

use axum::extract::rejection::FormRejection;
use axum::extract::{FromRequest as _, Query, Request, State};
use axum::http::StatusCode;
use axum::http::header::{HeaderValue, RETRY_AFTER, SET_COOKIE};
use axum::response::{Html, IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};
use axum::{Form, Router};
use jiff::Timestamp;
use pleach_page::pages::{self, SignInForm};
use pleach_page::viewer::Viewer;
use serde::Deserialize;

use super::cookie::{CookieError, CookieKind};
use super::token::Tokens;
use super::{Auth, Identity, Method, Users, next};
use crate::server::metrics::SignInResult;

/// Delay before the next attempt, in seconds.
const LATER: HeaderValue = HeaderValue::from_static("60");

/// Query of the sign-in page.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Return {
    next: String,
}

/// Fields of the form.
#[derive(Deserialize)]
struct Fields {
    token: Token,
    #[serde(default)]
    next: String,
}

/// A bearer token, which is never shown.
#[derive(Deserialize)]
#[serde(transparent)]
struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Failure of a sign-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    TooOften,
    Malformed,
    Refused,
    Unanswered,
    TooManyGroups,
    NoKey,
    /// This browser did not start the sign-in that the issuer answers.
    #[cfg(feature = "oidc")]
    NotStarted,
    /// The issuer did not sign the user in.
    #[cfg(feature = "oidc")]
    Denied,
    /// The issuer did not answer, or with an error.
    #[cfg(feature = "oidc")]
    Issuer,
    /// The ID token is not valid.
    #[cfg(feature = "oidc")]
    IdToken,
    /// The ID token has no user name that can be used.
    #[cfg(feature = "oidc")]
    Name,
}

/// Returns the routes `/login` and `/logout`.
pub fn router(auth: Arc<Auth>) -> Router {
    let router = Router::new()
        .route("/login", get(show).post(sign_in))
        .route("/logout", post(sign_out));
    #[cfg(feature = "oidc")]
    let router = router.merge(super::oidc::router());
    router.with_state(auth)
}

async fn show(State(auth): State<Arc<Auth>>, Query(query): Query<Return>) -> Response {
    match &auth.users {
        Some(users) => users.page(StatusCode::OK, next::checked(&query.next), ""),
        None => Redirect::to("/").into_response(),
    }
}

async fn sign_in(State(auth): State<Arc<Auth>>, request: Request) -> Response {
    let Some(users) = &auth.users else {
        return Redirect::to("/").into_response();
    };
    let Some(tokens) = users.tokens() else {
        return Redirect::to("/login").into_response();
    };
    let address = auth.address(&request);
    if !tokens.admit(address) {
        auth.metrics.ui_sign_in("token", SignInResult::Limited);
        return users.failed(Failure::TooOften, "/");
    }
    let form: Result<Form<Fields>, FormRejection> = Form::from_request(request, &()).await;
    let Fields { token, next } = match form {
        Ok(Form(fields)) => fields,
        Err(error) if error.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            return StatusCode::PAYLOAD_TOO_LARGE.into_response();
        }
        Err(_) => return users.failed(Failure::Malformed, "/"),
    };
    let next = next::checked(&next);
    let (result, answer) = match cookie(users, tokens, token.0.trim()).await {
        Ok((user, cookie)) => {
            tracing::info!(user, %address, "a user signed in to the web page");
            let answer = ([(SET_COOKIE, cookie)], Redirect::to(next)).into_response();
            (SignInResult::Accepted, answer)
        }
        Err(failure) => {
            tracing::info!(%address, reason = failure.message(), "a sign-in to the web page failed");
            (failure.result(), users.failed(failure, next))
        }
    };
    auth.metrics.ui_sign_in("token", result);
    answer
}

/// Returns the name of the user of a token, and the cookie.
async fn cookie(users: &Users, tokens: &Tokens, token: &str) -> Result<(String, String), Failure> {
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Failure::Refused);
    }
    let user = tokens.review(token).await.map_err(|error| {
        tracing::warn!(error = %pleach_engine::words(&error), "cannot review a token for the web page");
        Failure::Unanswered
    })?;
    let user = user.ok_or(Failure::Refused)?;
    let cookie = users.issue(&user)?;
    Ok((user.name, cookie))
}

async fn sign_out(State(auth): State<Arc<Auth>>) -> Response {
    match &auth.users {
        Some(users) => {
            let removed = [(SET_COOKIE, users.cookies.remove(CookieKind::Session))];
            (removed, Redirect::to("/login")).into_response()
        }
        None => Redirect::to("/").into_response(),
    }
}

impl Users {
    fn tokens(&self) -> Option<&Tokens> {
        match &self.method {
            Method::Token(tokens) => Some(tokens),
            #[cfg(feature = "oidc")]
            Method::Oidc(_) => None,
        }
    }

    /// Returns the value of `Set-Cookie` for a user who signs in now.
    pub(super) fn issue(&self, user: &Identity) -> Result<String, Failure> {
        let cookie = self.cookies.issue(user, Timestamp::now());
        cookie.map_err(|error| match error {
            CookieError::TooLong => Failure::TooManyGroups,
            error => Failure::no_key(&error),
        })
    }

    pub(super) fn failed(&self, failure: Failure, next: &str) -> Response {
        let mut response = self.page(failure.status(), next, failure.message());
        if failure == Failure::TooOften {
            response.headers_mut().insert(RETRY_AFTER, LATER);
        }
        response
    }

    fn page(&self, status: StatusCode, next: &str, message: &str) -> Response {
        let request = pages::Request {
            viewer: &Viewer::read_only(),
            now: Timestamp::now(),
            epoch: "",
        };
        let page = match &self.method {
            Method::Token(_) => pages::sign_in(&request, SignInForm::Token { next }, message),
            #[cfg(feature = "oidc")]
            Method::Oidc(issuer) => {
                let (start, host) = (&*next::start_path(next), issuer.host());
                pages::sign_in(&request, SignInForm::Issuer { start, host }, message)
            }
        };
        match page {
            Ok(html) => (status, Html(html)).into_response(),
            Err(error) => {
                tracing::error!(error = %pleach_engine::words(&error), "failed to render a page");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

impl Failure {
    /// Logs an error of the cookies.
    pub(super) fn no_key(error: &CookieError) -> Self {
        tracing::warn!(error = %pleach_engine::words(error), "cannot sign a user in to the web page");
        Self::NoKey
    }

    fn status(self) -> StatusCode {
        match self {
            Self::TooOften => StatusCode::TOO_MANY_REQUESTS,
            Self::Malformed => StatusCode::BAD_REQUEST,
            Self::Refused | Self::TooManyGroups => StatusCode::FORBIDDEN,
            Self::Unanswered | Self::NoKey => StatusCode::SERVICE_UNAVAILABLE,
            #[cfg(feature = "oidc")]
            Self::NotStarted => StatusCode::BAD_REQUEST,
            #[cfg(feature = "oidc")]
            Self::Denied | Self::IdToken | Self::Name => StatusCode::FORBIDDEN,
            #[cfg(feature = "oidc")]
            Self::Issuer => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    pub(super) fn result(self) -> SignInResult {
        match self {
            Self::TooOften => SignInResult::Limited,
            Self::Malformed | Self::Refused | Self::TooManyGroups => SignInResult::Refused,
            Self::Unanswered | Self::NoKey => SignInResult::Unavailable,
            #[cfg(feature = "oidc")]
            Self::NotStarted | Self::Denied | Self::IdToken | Self::Name => SignInResult::Refused,
            #[cfg(feature = "oidc")]
            Self::Issuer => SignInResult::Unavailable,
        }
    }

    pub(super) fn message(self) -> &'static str {
        match self {
            Self::TooOften => "too many attempts from this address; try again in a minute",
            Self::Malformed => "the form was not understood",
            Self::Refused => "the API server does not accept this token",
            Self::Unanswered => "the API server did not answer; try again later",
            Self::TooManyGroups => {
                "name and groups of the user are too long for a cookie; use a proxy that sends the token"
            }
            Self::NoKey => "the controller cannot read its cookie key; see its log",
            #[cfg(feature = "oidc")]
            Self::NotStarted => {
                "this browser did not start the sign-in, or more than ten minutes ago; sign in again"
            }
            #[cfg(feature = "oidc")]
            Self::Denied => "the identity provider did not sign you in",
            #[cfg(feature = "oidc")]
            Self::Issuer => {
                "the identity provider does not answer as expected; try again later, or see the log of the controller"
            }
            #[cfg(feature = "oidc")]
            Self::IdToken => {
                "the identity provider sent no valid ID token; see the log of the controller"
            }
            #[cfg(feature = "oidc")]
            Self::Name => {
                "the ID token has no user name that can be used; see the log of the controller"
            }
        }
    }
}
