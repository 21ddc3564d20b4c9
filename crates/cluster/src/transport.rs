//! Sends single requests, with time-out, retries and classification.
//!
//! Every request of pleach uses [`Cluster::send`]. HTTP is limited to this module.

use std::error::Error as StdError;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER, USER_AGENT, WARNING};
use http::{HeaderMap, Method, Request, Response};
use kube::client::Body;
use pleach_model::object::ObjectId;
use serde::de::{DeserializeOwned, DeserializeSeed};
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use super::classify::{Question, Verb};
use super::mask::Mask;
use super::retry::pause;
use super::shared::Taking;
use super::status::Status;
use super::{ApiError, Class, Cluster, warning};

/// Default media type.
pub(super) const JSON: &str = "application/json";
/// Maximum length in messages of an answer that is not a Status, in bytes.
const LONGEST_TEXT: usize = 300;

/// Maximum number of concurrent list responses. A page can take megabytes until it is parsed.
const LISTS: usize = 4;

/// How long a list waits for a permit. A slow list must not block the others for longer.
const PERMIT_DELAY: Duration = Duration::from_secs(1);

/// Permits for concurrent list responses.
#[derive(Debug, Clone)]
pub(super) struct ListPermits(Arc<Semaphore>);

impl Default for ListPermits {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LISTS)))
    }
}

impl ListPermits {
    /// Waits for a permit. `None` after [`PERMIT_DELAY`]: the list then proceeds without one.
    async fn take(&self) -> Option<SemaphorePermit<'_>> {
        timeout(PERMIT_DELAY, self.0.acquire()).await.ok()?.ok()
    }
}

/// Request before it is sent.
#[derive(Debug, Clone)]
pub(super) struct Call<'a> {
    pub(super) verb: Verb,
    pub(super) method: Method,
    /// Path and query.
    pub(super) url: String,
    pub(super) accept: &'static str,
    pub(super) content_type: Option<&'static str>,
    pub(super) body: Bytes,
    pub(super) about: About<'a>,
    /// Whether the request has a precondition. Repeating it after a conflict would fail again.
    pub(super) conditional: bool,
}

/// Subject of a request.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct About<'a> {
    pub(super) kind: &'a str,
    /// Whether to mask values that the server quotes.
    pub(super) secret: bool,
    /// Object with further values to mask, besides the request body.
    pub(super) hides: Option<&'a Value>,
}

impl<'a> About<'a> {
    pub(super) fn object(id: &'a ObjectId, secret: bool) -> Self {
        Self {
            kind: &id.kind,
            secret: secret || id.is("", "Secret"),
            hides: None,
        }
    }
}

impl<'a> Call<'a> {
    /// Creates a request that reads JSON.
    pub(super) fn read(verb: Verb, url: String, about: About<'a>) -> Self {
        Self {
            verb,
            method: Method::GET,
            url,
            accept: JSON,
            content_type: None,
            body: Bytes::new(),
            about,
            conditional: false,
        }
    }

    /// Returns the request with a body.
    pub(super) fn with_body(
        mut self,
        method: Method,
        content_type: &'static str,
        body: Bytes,
    ) -> Self {
        self.method = method;
        self.content_type = Some(content_type);
        self.body = body;
        self
    }
}

impl Call<'_> {
    /// Returns the mask for values in the answer. `None` if the object is not secret.
    fn mask(&self) -> Option<Mask> {
        let about = &self.about;
        about.secret.then(|| Mask::of(&self.body, about.hides))
    }
}

/// Answer with a status below 300.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Bytes,
    pub(super) warnings: Vec<String>,
    /// Whether an earlier attempt could have been executed.
    pub(super) repeated: bool,
}

impl Reply {
    /// Parses the body.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, Box<ApiError>> {
        self.json_with(PhantomData)
    }

    /// Parses the body with a seed.
    pub(super) fn json_with<'de, S: DeserializeSeed<'de>>(
        &'de self,
        seed: S,
    ) -> Result<S::Value, Box<ApiError>> {
        let mut deserializer = serde_json::Deserializer::from_slice(&self.body);
        let value = seed.deserialize(&mut deserializer);
        let whole = value.and_then(|value| deserializer.end().map(|()| value));
        whole.map_err(|error| {
            // Report only position and category. serde_json quotes values of the wrong type, and
            // the body can be a Secret.
            let mut error = ApiError::local(
                Class::NotKubernetes,
                format!(
                    "the response has an unexpected format ({:?} error at line {} column {})",
                    error.classify(),
                    error.line(),
                    error.column()
                ),
            );
            error.status = Some(self.status);
            Box::new(error)
        })
    }
}

impl Cluster {
    /// Sends a request until the answer is final or the time is up. Reads can use a shared answer.
    pub(super) async fn send(&self, call: Call<'_>) -> Result<Reply, Box<ApiError>> {
        match self.taking {
            Taking::Everything(since) if call.method == Method::GET => {
                Box::pin(self.send_shared(since, call)).await
            }
            _ => Box::pin(self.send_now(call)).await,
        }
    }

    /// Sends a request and ignores shared answers.
    pub(super) async fn send_now(&self, call: Call<'_>) -> Result<Reply, Box<ApiError>> {
        let deadline = self.retry.deadline();
        let mut unclear = false;
        let mut attempt = 1;
        loop {
            let mut error = match self.attempt(&call).await {
                Ok(mut reply) => {
                    reply.repeated = unclear;
                    return Ok(reply);
                }
                Err(error) => error,
            };
            unclear |= error.unclear;
            error.unclear = unclear;
            error.attempts = attempt;
            let repeat = error.class.may_repeat(call.verb, call.conditional)
                || self.retry.forgives(&error.class);
            let pause = pause(attempt, error.retry_after);
            if !repeat || Instant::now() + pause >= deadline {
                return Err(error);
            }
            tracing::debug!(
                url = %call.url,
                attempt,
                pause_ms = pause.as_millis(),
                error = %error,
                "request failed; retrying"
            );
            self.retry.report(&error, pause);
            if !self.retry.pause(pause).await {
                return Err(error);
            }
            attempt += 1;
        }
    }

    /// Sends a request once.
    async fn attempt(&self, call: &Call<'_>) -> Result<Reply, Box<ApiError>> {
        let exchange = async {
            let response = self.open(call).await?;
            let status = response.status().as_u16();
            let warnings = warnings(response.headers(), call.mask().as_ref());
            let _permit = match call.verb {
                Verb::List => self.list_permits.take().await,
                _ => None,
            };
            let body = self.collect(response).await?;
            Ok(Reply {
                status,
                body,
                warnings,
                repeated: false,
            })
        };
        self.in_time(exchange).await
    }

    /// Sends a request and returns the answer before its body is read.
    pub(super) async fn stream(&self, call: &Call<'_>) -> Result<Response<Body>, Box<ApiError>> {
        self.in_time(self.open(call)).await
    }

    /// Sends a request. Reads and classifies the answer if it is a failure.
    async fn open(&self, call: &Call<'_>) -> Result<Response<Body>, Box<ApiError>> {
        tracing::trace!(method = %call.method, url = %call.url, "request");
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(&call.url)
            .header(ACCEPT, call.accept)
            .header(USER_AGENT, self.user_agent.clone());
        if let Some(content_type) = call.content_type {
            request = request.header(CONTENT_TYPE, content_type);
        }
        let request = request
            .body(Body::from(call.body.clone()))
            .map_err(|error| {
                ApiError::local(Class::BadRequest, format!("invalid request: {error}"))
            })?;
        let response = self
            .client
            .send(request)
            .await
            .map_err(|error| self.broken(&error, false))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let http = response.status().as_u16();
        let headers = response.headers().clone();
        let body = self.collect(response).await?;
        Err(refused(call, http, &headers, &body).into())
    }

    async fn collect(&self, response: Response<Body>) -> Result<Bytes, Box<ApiError>> {
        let body = response.into_body().collect_bytes().await;
        Ok(body.map_err(|error| self.broken(&error, true))?)
    }

    async fn in_time<T>(
        &self,
        exchange: impl Future<Output = Result<T, Box<ApiError>>>,
    ) -> Result<T, Box<ApiError>> {
        let limit = self.retry.limit(self.limits.request);
        timeout(limit, exchange)
            .await
            .unwrap_or_else(|_| Err(self.timed_out(limit).into()))
    }

    fn timed_out(&self, limit: Duration) -> ApiError {
        ApiError::local(
            Class::Timeout,
            format!("no answer from {} within {limit:?}", self.server),
        )
    }

    /// Describes an exchange that ended without a complete answer. `begun`: the answer had started.
    pub(super) fn broken(&self, error: &kube::Error, begun: bool) -> ApiError {
        let class = broken_class(error, begun);
        let cause = match error {
            kube::Error::Auth(error) => super::connect::auth_message(error),
            error => root_cause(error),
        };
        let message = match class {
            Class::Unreachable => format!("no connection to {}: {cause}", self.server),
            Class::Tls => format!("no secure connection to {}: {cause}", self.server),
            Class::Credentials => format!("no credentials for {}: {cause}", self.server),
            _ => format!("the connection to {} was interrupted: {cause}", self.server),
        };
        ApiError::local(class, message)
    }
}

/// Classifies a failed answer.
fn refused(call: &Call<'_>, http: u16, headers: &HeaderMap, body: &[u8]) -> ApiError {
    let question = Question {
        verb: call.verb,
        kind: call.about.kind,
    };
    let mask = call.mask();
    let mut error = classify(
        question,
        http,
        Status::read(body),
        plain(body),
        mask.as_ref(),
    );
    let retry_after = headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.trim().parse().ok())
        .map(Duration::from_secs);
    error.retry_after = retry_after.or(error.retry_after);
    error
}

/// Classifies a failure from a Status, or from the text of another body. Masks values of secret
/// objects first, so that no result contains them.
pub(super) fn classify(
    question: Question<'_>,
    http: u16,
    mut status: Option<Status>,
    mut text: String,
    mask: Option<&Mask>,
) -> ApiError {
    if let Some(mask) = mask {
        if let Some(status) = &mut status {
            status.map_texts(|text| mask.apply(text));
        }
        text = mask.apply(&text);
    }
    let class = Class::of(question, http, status.as_ref(), &text);
    let unclear = class.is_unclear();
    let (reason, message, details) = match status {
        Some(status) => {
            let details = status.retry_after();
            (status.reason, status.message, details)
        }
        None => (String::new(), text, None),
    };
    let message = match (message.trim(), &class) {
        (_, Class::KindNotServed) => "the server does not serve this kind".to_owned(),
        ("", _) => format!("the server answered with HTTP status {http} without a message"),
        (text, _) => text.to_owned(),
    };
    ApiError {
        class,
        status: Some(http),
        reason,
        message,
        retry_after: details,
        unclear,
        attempts: 1,
    }
}

/// Returns the start of a body that is not a Status, on one line.
fn plain(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let mut words = String::new();
    for word in text.split_whitespace() {
        if words.len() + word.len() > LONGEST_TEXT {
            words.push_str(" …");
            break;
        }
        if !words.is_empty() {
            words.push(' ');
        }
        words.push_str(word);
    }
    words
}

fn warnings(headers: &HeaderMap, mask: Option<&Mask>) -> Vec<String> {
    headers
        .get_all(WARNING)
        .iter()
        .flat_map(|value| warning::read(&String::from_utf8_lossy(value.as_bytes())))
        .map(|text| mask.map_or_else(|| text.clone(), |mask| mask.apply(&text)))
        .collect()
}

/// Returns the error and its chain of sources. An `io::Error` does not expose its inner error as
/// source.
fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| {
        let error: &'a (dyn StdError + 'static) = *error;
        if let Some(inner) = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
        {
            let inner: &(dyn StdError + 'static) = inner;
            return Some(inner);
        }
        error.source()
    })
}

fn broken_class(error: &kube::Error, begun: bool) -> Class {
    if matches!(error, kube::Error::Auth(_)) {
        return Class::Credentials;
    }
    let mut connecting = false;
    for cause in causes(error) {
        if cause.is::<rustls::Error>() {
            return Class::Tls;
        }
        if cause.is::<kube::client::AuthError>() {
            return Class::Credentials;
        }
        connecting |= cause
            .downcast_ref::<hyper_util::client::legacy::Error>()
            .is_some_and(hyper_util::client::legacy::Error::is_connect);
    }
    if connecting && !begun {
        Class::Unreachable
    } else {
        Class::Interrupted
    }
}

/// Returns the innermost error, which is the most specific: `Connection refused`.
fn root_cause(error: &kube::Error) -> String {
    causes(error)
        .last()
        .map_or_else(String::new, ToString::to_string)
}
