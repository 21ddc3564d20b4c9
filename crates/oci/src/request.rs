//! Single requests: credentials, redirects, time-outs, size limits and retries.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER,
    WWW_AUTHENTICATE,
};
use http::{Method, StatusCode};
use jiff::Timestamp;
use pleach_model::oci::is_loopback;
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Response, Url};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout_at};

use crate::challenge::Challenge;
use crate::credentials::Credentials;
use crate::{Class, OciError};

/// Time-out of the connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Maximum silence of the server.
const SILENCE: Duration = Duration::from_secs(15);
/// Maximum number of redirects of a request. Registries often have their blobs elsewhere.
const REDIRECTS: usize = 5;
/// Maximum number of attempts after temporary failures.
const ATTEMPTS: u32 = 3;
/// First backoff; doubles with every attempt.
const PAUSE: Duration = Duration::from_secs(1);
/// Delay after a rate limit without an end.
const TOO_MANY: Duration = Duration::from_mins(1);
/// Bounds of a delay that a registry asks for. Zero would cause a busy loop.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_hours(1);
/// Maximum size of an error message and of the answer of a token service, in bytes.
const LARGEST_MESSAGE: u64 = 64 << 10;
/// Maximum length of a registry's message in our errors, in characters.
const LONGEST_WORDS: usize = 300;

/// Request before it is sent.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// Operation and object, as the continuation of "failed to".
    pub(crate) what: String,
    pub(crate) method: Method,
    pub(crate) url: Url,
    /// Accepted media types.
    pub(crate) accept: Option<&'static str>,
    pub(crate) body: Option<Body>,
    /// Maximum size of the answer, in bytes.
    pub(crate) most: u64,
}

/// Body of a request.
#[derive(Debug, Clone)]
pub(crate) struct Body {
    pub(crate) media_type: &'static str,
    pub(crate) bytes: Bytes,
}

/// Successful answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

/// Value of an `Authorization` header, with the only origin that receives it.
#[derive(Clone)]
struct Authorization {
    value: HeaderValue,
    origin: Url,
}

impl Authorization {
    fn new(text: &str, origin: &Url, what: &str) -> Result<Self, OciError> {
        let mut value = HeaderValue::try_from(text).map_err(|_| OciError::Request {
            what: what.to_owned(),
            class: Class::Unauthorized,
            why: "the credentials contain a control character".to_owned(),
        })?;
        value.set_sensitive(true);
        Ok(Self {
            value,
            origin: origin.clone(),
        })
    }

    fn is_for(&self, url: &Url) -> bool {
        self.origin.origin() == url.origin()
    }
}

/// Client of one registry with one account and a deadline for everything.
pub(crate) struct Sender {
    http: Client,
    base: Url,
    credentials: Option<Credentials>,
    authorization: Mutex<Option<Authorization>>,
    deadline: Instant,
    /// Time-out, for messages.
    time: Duration,
}

/// Failure of an attempt.
enum Failure {
    /// Repeating does not help.
    Final(OciError),
    /// Temporary failure, with the delay that the registry asked for.
    Passing(OciError, Option<Duration>),
}

impl From<OciError> for Failure {
    fn from(error: OciError) -> Self {
        match error.class() {
            Some(Class::RateLimited { after }) => Self::Passing(error, Some(after)),
            Some(Class::Unavailable) => Self::Passing(error, None),
            Some(Class::Unauthorized | Class::NotFound | Class::Refused) | None => {
                Self::Final(error)
            }
        }
    }
}

impl Sender {
    /// Creates a client of the registry at `base`. `authorities` are CA certificates in PEM, besides
    /// those of the machine.
    pub(crate) fn new(
        base: Url,
        credentials: Option<Credentials>,
        authorities: Option<&[u8]>,
        time: Duration,
    ) -> Result<Self, OciError> {
        let failed = |why: &dyn std::error::Error| OciError::Client {
            host: base.authority().to_owned(),
            why: with_causes(why),
        };
        // Fails if the program has installed one, which is the same.
        drop(rustls::crypto::ring::default_provider().install_default());
        let mut client = Client::builder();
        if base.scheme() == "http" {
            // Only registries on this machine have http. A proxy must not receive credentials.
            client = client.no_proxy();
        }
        if let Some(authorities) = authorities {
            let trusted =
                Certificate::from_pem_bundle(authorities).map_err(|error| failed(&error))?;
            client = client.tls_certs_merge(trusted);
        }
        let http = client
            .user_agent(concat!("pleach/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            // Redirects are followed here, so that credentials stay at their origin.
            .redirect(Policy::none())
            .build()
            .map_err(|error| failed(&error))?;
        Ok(Self {
            http,
            base,
            credentials,
            authorization: Mutex::default(),
            deadline: Instant::now() + time,
            time,
        })
    }

    /// Returns the address of the registry.
    pub(crate) fn base(&self) -> &Url {
        &self.base
    }

    /// Sends a request until it is answered or repeating does not help.
    pub(crate) async fn send(&self, call: &Call) -> Result<Answer, OciError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let (error, delay) = match self.attempt(call).await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Passing(error, delay)) => (error, delay),
            };
            let delay = delay.unwrap_or_else(|| PAUSE * 2_u32.pow(attempts - 1));
            if attempts >= ATTEMPTS || Instant::now() + delay >= self.deadline {
                return Err(error);
            }
            sleep(delay).await;
        }
    }

    async fn attempt(&self, call: &Call) -> Result<Answer, Failure> {
        let authorization = self.lock().clone();
        let response = self.follow(call, authorization.as_ref()).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(self.answer(call, response).await?);
        }
        // A token is missing or expired.
        let authorization = self.authorize(call, &response).await?;
        *self.lock() = Some(authorization.clone());
        let response = self.follow(call, Some(&authorization)).await?;
        Ok(self.answer(call, response).await?)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Authorization>> {
        self.authorization
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request and follows redirects. Credentials are sent to their origin only.
    async fn follow(
        &self,
        call: &Call,
        authorization: Option<&Authorization>,
    ) -> Result<Response, OciError> {
        let mut url = call.url.clone();
        for _ in 0..=REDIRECTS {
            let response = self.exchange(call, &url, authorization).await?;
            let is_read = matches!(call.method, Method::GET | Method::HEAD);
            let to = response.headers().get(LOCATION);
            let (true, true, Some(to)) = (response.status().is_redirection(), is_read, to) else {
                return Ok(response);
            };
            let to = to.to_str().ok().and_then(|to| url.join(to).ok());
            url = self.checked(call, to)?;
        }
        Err(refused(
            call,
            Class::Refused,
            format!("the registry redirects more than {REDIRECTS} times"),
        ))
    }

    /// Checks an address that an answer names: https, or http on this machine if the registry is
    /// there, too.
    pub(crate) fn checked(&self, call: &Call, to: Option<Url>) -> Result<Url, OciError> {
        let is_safe = |url: &Url| match url.scheme() {
            "https" => true,
            "http" => self.base.scheme() == "http" && url.host_str().is_some_and(is_loopback),
            _ => false,
        };
        to.filter(is_safe).ok_or_else(|| {
            let why = "the registry answered with an address that is not https".to_owned();
            refused(call, Class::Refused, why)
        })
    }

    async fn exchange(
        &self,
        call: &Call,
        url: &Url,
        authorization: Option<&Authorization>,
    ) -> Result<Response, OciError> {
        let mut request = self.http.request(call.method.clone(), url.clone());
        if let Some(Authorization { value, .. }) = authorization.filter(|one| one.is_for(url)) {
            request = request.header(AUTHORIZATION, value);
        }
        if let Some(accept) = call.accept {
            request = request.header(ACCEPT, accept);
        }
        if let Some(Body { media_type, bytes }) = &call.body {
            request = request
                .header(CONTENT_TYPE, *media_type)
                .body(bytes.clone());
        }
        self.wait(call, request.send()).await
    }

    /// Waits until the deadline.
    async fn wait<T>(
        &self,
        call: &Call,
        work: impl Future<Output = reqwest::Result<T>>,
    ) -> Result<T, OciError> {
        let why = match timeout_at(self.deadline, work).await {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(error)) => with_causes(&error.without_url()),
            Err(_) => format!("it took longer than {:?}", self.time),
        };
        Err(refused(call, Class::Unavailable, why))
    }

    async fn answer(&self, call: &Call, mut response: Response) -> Result<Answer, OciError> {
        let (status, headers) = (response.status(), response.headers().clone());
        let Some(class) = class_of(status, &headers) else {
            let body = self.body(call, &mut response, call.most).await?;
            let Some(body) = body else {
                return Err(OciError::TooLarge {
                    what: call.what.clone(),
                    most: call.most,
                });
            };
            return Ok(Answer { headers, body });
        };
        let body = self.body(call, &mut response, LARGEST_MESSAGE).await;
        let words = words_of(&body.ok().flatten().unwrap_or_default());
        let why = format!("the registry answered {status}{words}");
        Err(refused(call, class, why))
    }

    /// Reads a body. `None` if it is larger than `most` bytes.
    async fn body(
        &self,
        call: &Call,
        response: &mut Response,
        most: u64,
    ) -> Result<Option<Vec<u8>>, OciError> {
        let mut body = Vec::new();
        if call.method == Method::HEAD {
            return Ok(Some(body));
        }
        while let Some(chunk) = self.wait(call, response.chunk()).await? {
            body.extend_from_slice(&chunk);
            if body.len() as u64 > most {
                return Ok(None);
            }
        }
        Ok(Some(body))
    }

    /// Answers the challenge of a registry: with the credentials, or with a token for them.
    async fn authorize(&self, call: &Call, response: &Response) -> Result<Authorization, OciError> {
        let denied = |why: &str| refused(call, Class::Unauthorized, why.to_owned());
        let headers = response.headers().get_all(WWW_AUTHENTICATE).iter();
        let mut challenges = headers.filter_map(|header| Challenge::parse(header.to_str().ok()?));
        let credentials = self.credentials.as_ref();
        match challenges.next() {
            None => Err(denied("the registry answered 401 Unauthorized")),
            Some(Challenge::Basic) => {
                let credentials = credentials
                    .ok_or_else(|| denied("the registry requires a user name and a password"))?;
                Authorization::new(&credentials.basic(), &self.base, &call.what)
            }
            Some(Challenge::Bearer {
                realm,
                service,
                scope,
            }) => {
                let realm = self.checked(call, Url::parse(&realm).ok())?;
                let mut url = realm.clone();
                for (name, value) in [("service", service), ("scope", scope)] {
                    if let Some(value) = value {
                        url.query_pairs_mut().append_pair(name, &value);
                    }
                }
                let basic = credentials
                    .map(|one| Authorization::new(&one.basic(), &realm, &call.what))
                    .transpose()?;
                let token = self.token(call, url, basic.as_ref()).await?;
                Authorization::new(&format!("Bearer {token}"), &self.base, &call.what)
            }
        }
    }

    /// Requests a token from a token service.
    async fn token(
        &self,
        call: &Call,
        url: Url,
        basic: Option<&Authorization>,
    ) -> Result<String, OciError> {
        #[derive(Deserialize)]
        struct Answered {
            token: Option<String>,
            access_token: Option<String>,
        }
        let asking = Call {
            what: format!("{} (token of {})", call.what, url.authority()),
            method: Method::GET,
            url,
            accept: None,
            body: None,
            most: LARGEST_MESSAGE,
        };
        let response = self.follow(&asking, basic).await?;
        let answer = self.answer(&asking, response).await?;
        let answered = serde_json::from_slice(&answer.body).ok();
        let token = answered.and_then(|one: Answered| one.token.or(one.access_token));
        token.ok_or_else(|| {
            let why = "the token service answered without a token".to_owned();
            refused(&asking, Class::Unauthorized, why)
        })
    }
}

fn refused(call: &Call, class: Class, why: String) -> OciError {
    OciError::Request {
        what: call.what.clone(),
        class,
        why,
    }
}

/// Returns the class of a status. `None` for success.
fn class_of(status: StatusCode, headers: &HeaderMap) -> Option<Class> {
    match status {
        _ if status.is_success() => None,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Some(Class::Unauthorized),
        StatusCode::NOT_FOUND => Some(Class::NotFound),
        StatusCode::TOO_MANY_REQUESTS => Some(Class::RateLimited {
            after: retry_after(headers).unwrap_or(TOO_MANY),
        }),
        StatusCode::REQUEST_TIMEOUT => Some(Class::Unavailable),
        _ if status.is_server_error() => match retry_after(headers) {
            Some(after) => Some(Class::RateLimited { after }),
            None => Some(Class::Unavailable),
        },
        _ => Some(Class::Refused),
    }
}

/// Returns the delay that a registry asks for, as seconds or as a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = text.parse::<i64>().ok().or_else(|| {
        let at = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
        Some(at.as_second().saturating_sub(Timestamp::now().as_second()))
    })?;
    let delay = Duration::from_secs(seconds.try_into().unwrap_or(0));
    Some(delay.clamp(SHORTEST, LONGEST))
}

/// Returns the message of an error of the distribution specification, on one line, with a colon in
/// front. Empty if there is none.
fn words_of(body: &[u8]) -> String {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    let error = &value["errors"][0];
    let words = [&error["code"], &error["message"]].map(|part| part.as_str().unwrap_or_default());
    let words = words.join(" ");
    let readable = |char: char| if char.is_control() { ' ' } else { char };
    let words: String = words
        .trim()
        .chars()
        .map(readable)
        .take(LONGEST_WORDS)
        .collect();
    if words.is_empty() {
        words
    } else {
        format!(": {words}")
    }
}

/// Formats an error with its causes, on one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        words = format!("{words}: {cause}");
        next = cause.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_classes() {
        let limited = |seconds| {
            Some(Class::RateLimited {
                after: Duration::from_secs(seconds),
            })
        };
        for (status, retry_after, expected) in [
            (200, None, None),
            (202, None, None),
            (401, None, Some(Class::Unauthorized)),
            (403, None, Some(Class::Unauthorized)),
            (404, None, Some(Class::NotFound)),
            (429, None, limited(60)),
            (429, Some("7"), limited(7)),
            (429, Some("0"), limited(1)),
            (429, Some("-5"), limited(1)),
            (429, Some("999999"), limited(3600)),
            (429, Some("soon"), limited(60)),
            (429, Some("Wed, 21 Oct 2015 07:28:00 GMT"), limited(1)),
            (500, None, Some(Class::Unavailable)),
            (502, None, Some(Class::Unavailable)),
            (503, Some("7"), limited(7)),
            (408, None, Some(Class::Unavailable)),
            (400, None, Some(Class::Refused)),
            (302, None, Some(Class::Refused)),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(text) = retry_after {
                headers.insert(RETRY_AFTER, HeaderValue::from_static(text));
            }
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(
                class_of(status, &headers),
                expected,
                "{status} {retry_after:?}"
            );
        }
    }

    #[test]
    fn messages_of_registries_are_one_short_line() {
        let long = "x".repeat(1000);
        for (body, expected) in [
            (
                r#"{"errors":[{"code":"DENIED","message":"no\naccess"}]}"#,
                ": DENIED no access",
            ),
            (r#"{"errors":[{"code":"DENIED"}]}"#, ": DENIED"),
            ("<html>", ""),
            ("", ""),
        ] {
            assert_eq!(words_of(body.as_bytes()), expected, "{body}");
        }
        let body = format!(r#"{{"errors":[{{"message":"{long}"}}]}}"#);
        assert_eq!(words_of(body.as_bytes()).len(), 2 + LONGEST_WORDS);
    }
}
