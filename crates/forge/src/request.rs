//! Sends single requests to a forge: credentials, time-outs, size limits, retries and rate limits.
//! HTTP is limited to this module.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, LINK, RETRY_AFTER};
use http::{Method, StatusCode};
use jiff::Timestamp;
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until};

use super::{ForgeError, Token};

/// Time-out of the connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Time-out of a whole request.
const REQUEST: Duration = Duration::from_secs(30);
/// Maximum size of an answer, in bytes: a page of comments of maximum length.
const LARGEST: usize = 32 * 1024 * 1024;
/// Maximum length of a forge's message in our errors, in characters.
const LONGEST_WORDS: usize = 300;
/// Maximum number of attempts after temporary failures.
const ATTEMPTS: u32 = 3;
/// First backoff; doubles with every attempt.
const PAUSE: Duration = Duration::from_secs(1);
/// Delay after a rate limit without an end.
const TOO_MANY: Duration = Duration::from_mins(1);
/// Minimum delay that a forge can ask for. Zero would cause a busy loop.
const SHORTEST: Duration = Duration::from_secs(1);
/// Maximum delay. Rate limits are per hour.
const LONGEST: Duration = Duration::from_hours(1);

/// Request before it is sent.
#[derive(Debug, Clone)]
pub(super) struct Call {
    /// Purpose, as the continuation of "failed to".
    pub(super) what: &'static str,
    pub(super) method: Method,
    /// Path and query relative to the API root, or a whole URL.
    pub(super) path: String,
    pub(super) body: Option<Value>,
    /// Whether the request is idempotent.
    pub(super) repeatable: bool,
}

impl Call {
    pub(super) fn get(what: &'static str, path: String) -> Self {
        Self {
            what,
            method: Method::GET,
            path,
            body: None,
            repeatable: true,
        }
    }

    pub(super) fn send(what: &'static str, method: Method, path: String, body: Value) -> Self {
        let repeatable = method != Method::POST;
        Self {
            what,
            method,
            path,
            body: Some(body),
            repeatable,
        }
    }

    /// Marks the request as idempotent, so that it is repeated if its result is unknown.
    pub(super) fn repeatable(mut self) -> Self {
        self.repeatable = true;
        self
    }
}

/// Successful answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) body: Bytes,
    /// Whether there is another page.
    pub(super) more: bool,
}

/// Client of one API with one account.
#[derive(Debug)]
pub(super) struct Sender {
    http: reqwest::Client,
    api: String,
    token: Token,
    /// Maximum wait for the end of a rate limit.
    patience: Duration,
    /// End of the current rate limit.
    closed: Mutex<Option<Instant>>,
}

/// Failure of an attempt.
enum Failure {
    /// Repeating does not help.
    Final(ForgeError),
    /// Temporary failure of the forge or the network.
    Passing(ForgeError),
    /// Rate limit with its remaining time.
    Closed(Duration),
}

impl Sender {
    pub(super) fn new(api: String, token: Token, patience: Duration) -> Result<Self, ForgeError> {
        let http = reqwest::Client::builder()
            .user_agent(concat!("pleach/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT)
            .timeout(REQUEST)
            // Do not send the credentials to another host.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|source| ForgeError::Client { source })?;
        Ok(Self {
            http,
            api,
            token,
            patience,
            closed: Mutex::new(None),
        })
    }

    pub(super) fn api(&self) -> &str {
        &self.api
    }

    /// Sends a request until it is answered or repeating does not help.
    pub(super) async fn send(
        &self,
        call: &Call,
        authorize: impl Fn(&str) -> (HeaderName, String),
    ) -> Result<Answer, ForgeError> {
        let give_up = Instant::now() + self.patience;
        let (mut attempts, mut is_renewed) = (0, false);
        loop {
            self.until_open(call, give_up).await?;
            attempts += 1;
            match self.send_once(call, &authorize).await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Final(error)) => {
                    let is_unknown = matches!(error, ForgeError::Refused { status: 401, .. });
                    // The request was not executed, and an app can get another token.
                    if !is_unknown || is_renewed || !self.token.renew().await {
                        return Err(error);
                    }
                    is_renewed = true;
                }
                Err(Failure::Passing(error)) => {
                    if !call.repeatable || attempts >= ATTEMPTS {
                        return Err(error);
                    }
                    sleep(PAUSE * 2_u32.pow(attempts - 1)).await;
                }
                // The request was not executed, so repeating it is safe.
                Err(Failure::Closed(pause)) => self.close(pause),
            }
        }
    }

    async fn until_open(&self, call: &Call, give_up: Instant) -> Result<(), ForgeError> {
        let Some(at) = *self.lock() else {
            return Ok(());
        };
        if at > give_up {
            return Err(ForgeError::TooMany {
                what: call.what,
                after: at.saturating_duration_since(Instant::now()),
            });
        }
        sleep_until(at).await;
        Ok(())
    }

    fn close(&self, pause: Duration) {
        let until = Instant::now() + pause;
        let mut closed = self.lock();
        if closed.is_none_or(|known| known < until) {
            *closed = Some(until);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send_once(
        &self,
        call: &Call,
        authorize: &impl Fn(&str) -> (HeaderName, String),
    ) -> Result<Answer, Failure> {
        let what = call.what;
        let token = self.token.read().await.map_err(Failure::Final)?;
        let (name, value) = authorize(&token);
        let mut value = HeaderValue::try_from(value).map_err(|_| {
            Failure::Final(ForgeError::UnusableToken {
                place: self.token.place(),
            })
        })?;
        value.set_sensitive(true);
        let url = if call.path.contains("://") {
            call.path.clone()
        } else {
            format!("{}{}", self.api, call.path)
        };
        let mut request = self
            .http
            .request(call.method.clone(), url)
            .header(name, value)
            .header("accept", "application/json");
        if let Some(body) = &call.body {
            request = request
                .header("content-type", "application/json")
                .body(body.to_string());
        }
        let passing = |source: reqwest::Error| {
            Failure::Passing(ForgeError::Unreachable {
                what,
                api: self.api.clone(),
                source: source.without_url(),
            })
        };
        let mut response = request.send().await.map_err(passing)?;
        let status = response.status();
        let headers = response.headers().clone();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(passing)? {
            if body.len() + chunk.len() > LARGEST {
                return Err(Failure::Final(ForgeError::TooLarge { what }));
            }
            body.extend_from_slice(&chunk);
        }
        if status.is_success() {
            if let Some(pause) = used_up(&headers) {
                self.close(pause);
            }
            let more = headers.get_all(LINK).iter().any(|value| {
                value
                    .to_str()
                    .is_ok_and(|value| value.contains("rel=\"next\""))
            });
            return Ok(Answer {
                body: body.into(),
                more,
            });
        }
        let message = message(&body).replace(&*token, "…");
        if let Some(pause) = closed_for(status, &headers, &message) {
            return Err(Failure::Closed(pause));
        }
        let error = ForgeError::Refused {
            what,
            status: status.as_u16(),
            message,
        };
        Err(match status {
            StatusCode::REQUEST_TIMEOUT
            | StatusCode::INTERNAL_SERVER_ERROR
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Failure::Passing(error),
            _ => Failure::Final(error),
        })
    }
}

/// Returns the authorization header that most forges use.
pub(super) fn bearer(token: &str) -> (HeaderName, String) {
    (AUTHORIZATION, format!("Bearer {token}"))
}

/// Returns the remaining time of an exhausted rate limit, from the headers of any answer.
fn used_up(headers: &HeaderMap) -> Option<Duration> {
    let left = number(headers, &["x-ratelimit-remaining", "ratelimit-remaining"])?;
    (left <= 0).then(|| until_reset(headers)).flatten()
}

/// Returns the remaining time of the rate limit that caused a refusal. `None` for other refusals.
fn closed_for(status: StatusCode, headers: &HeaderMap, message: &str) -> Option<Duration> {
    let retry_after = number(headers, &[RETRY_AFTER.as_str()]).map(bounded);
    let is_limit = match status {
        StatusCode::TOO_MANY_REQUESTS => true,
        StatusCode::SERVICE_UNAVAILABLE => retry_after.is_some(),
        // A refusal for another reason is final.
        StatusCode::FORBIDDEN => {
            retry_after.is_some()
                || used_up(headers).is_some()
                || message.to_lowercase().contains("rate limit")
        }
        _ => false,
    };
    is_limit.then(|| {
        retry_after
            .or_else(|| until_reset(headers))
            .unwrap_or(TOO_MANY)
    })
}

fn until_reset(headers: &HeaderMap) -> Option<Duration> {
    let at = number(headers, &["x-ratelimit-reset", "ratelimit-reset"])?;
    let left = at.saturating_sub(Timestamp::now().as_second());
    // The forge's clock can be slightly ahead of ours.
    Some(bounded(left.saturating_add(1)))
}

/// Limits a delay that a forge asks for.
fn bounded(seconds: i64) -> Duration {
    let retry_after = Duration::from_secs(seconds.try_into().unwrap_or(0));
    retry_after.clamp(SHORTEST, LONGEST)
}

fn number(headers: &HeaderMap, names: &[&str]) -> Option<i64> {
    names
        .iter()
        .find_map(|name| headers.get(*name))
        .and_then(|value| value.to_str().ok()?.trim().parse().ok())
}

/// Returns the message of a refusal, on one line.
fn message(body: &[u8]) -> String {
    let text = match serde_json::from_slice::<Value>(body) {
        Ok(value) => {
            let message = ["message", "error_description", "error"]
                .iter()
                .find_map(|key| value.get(*key));
            let mut words = match message {
                Some(Value::String(message)) => message.clone(),
                Some(other) => other.to_string(),
                None => value.to_string(),
            };
            if let Some(errors) = value.get("errors").filter(|errors| !errors.is_null()) {
                words.push_str(": ");
                words.push_str(&errors.to_string());
            }
            words
        }
        // For example, an HTML page of a proxy.
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    let mut line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(LONGEST_WORDS)
        .collect();
    line.truncate(line.trim_end().len());
    line
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn headers(pairs: &[(&'static str, String)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, value.parse().unwrap());
        }
        headers
    }

    #[rstest]
    #[case(429, &[("retry-after", "7")], "", Some(7))]
    #[case(429, &[], "", Some(60))]
    #[case(403, &[("retry-after", "3")], "", Some(3))]
    #[case(403, &[], "You have exceeded a secondary rate limit", Some(60))]
    #[case(403, &[("x-ratelimit-remaining", "12")], "Resource not accessible", None)]
    #[case(429, &[("retry-after", "0")], "", Some(1))]
    #[case(429, &[("retry-after", "9223372036854775807")], "", Some(3600))]
    #[case(403, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "9223372036854775807")],
        "", Some(3600))]
    #[case(503, &[("retry-after", "2")], "", Some(2))]
    #[case(503, &[], "", None)]
    #[case(404, &[("retry-after", "2")], "", None)]
    fn rate_limits_are_distinguished_from_other_refusals(
        #[case] status: u16,
        #[case] named_headers: &[(&'static str, &str)],
        #[case] message: &str,
        #[case] seconds: Option<u64>,
    ) {
        let named_headers: Vec<_> = named_headers
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect();
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(
            closed_for(status, &headers(&named_headers), message),
            seconds.map(Duration::from_secs)
        );
    }

    #[test]
    fn an_exhausted_limit_resets_at_the_time_of_the_forge() {
        let reset = Timestamp::now().as_second() + 100;
        let limited = headers(&[
            ("x-ratelimit-remaining", "0".to_owned()),
            ("x-ratelimit-reset", reset.to_string()),
        ]);
        let pause = used_up(&limited).unwrap().as_secs();
        assert!((99..=101).contains(&pause), "{pause}");
        assert_eq!(used_up(&headers(&[])), None);
        // A reset time in the past counts as now.
        let past = headers(&[
            ("ratelimit-remaining", "0".to_owned()),
            ("ratelimit-reset", "1".to_owned()),
        ]);
        assert_eq!(used_up(&past), Some(Duration::from_secs(1)));
    }

    #[rstest]
    #[case(r#"{"message":"Not Found"}"#, "Not Found")]
    #[case(r#"{"message":{"base":["no"]}}"#, r#"{"base":["no"]}"#)]
    #[case(r#"{"error":"insufficient_scope"}"#, "insufficient_scope")]
    #[case(
        r#"{"message":"Validation Failed","errors":[{"field":"body"}]}"#,
        r#"Validation Failed: [{"field":"body"}]"#
    )]
    #[case(
        "<html>\n\u{1b}[31mBad gateway</html>\n",
        "<html>  [31mBad gateway</html>"
    )]
    fn words_of_a_forge_are_one_line(#[case] body: &str, #[case] expected: &str) {
        assert_eq!(message(body.as_bytes()), expected);
        assert!(message("x".repeat(5000).as_bytes()).len() <= LONGEST_WORDS);
    }
}
