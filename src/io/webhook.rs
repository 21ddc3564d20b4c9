//! Calls webhooks of others. Their address may be a secret by itself: it is in
//! a file, and in no message.

use std::path::Path;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{StatusCode, header};

use super::files;

/// How long it may take until a connection is there.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a call may take as a whole.
const REQUEST: Duration = Duration::from_secs(10);
/// How often it is tried.
const ATTEMPTS: u32 = 5;
/// The pause before the second attempt; doubles.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause that a server may ask for.
const LONGEST: Duration = Duration::from_mins(1);

/// Why a webhook was not called.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// There is no way to call anybody.
    #[error("failed to prepare calls of webhooks")]
    Client(#[source] reqwest::Error),
    /// The file with its address.
    #[error(transparent)]
    Address(#[from] files::FileError),
    /// What the file holds is no address.
    #[error("{0} does not hold an http or https URL")]
    NoUrl(String),
    /// It cannot be reached.
    #[error("failed to call the webhook")]
    Unreachable(#[source] reqwest::Error),
    /// It answers something else than that it is well.
    #[error("the webhook answered {0}")]
    Refused(StatusCode),
}

/// Calls webhooks.
#[derive(Debug, Clone)]
pub struct Caller {
    http: reqwest::Client,
}

/// Why a call did not succeed, and what to do about it.
enum Failure {
    Final(WebhookError),
    Passing(WebhookError, Option<Duration>),
}

impl Caller {
    /// Prepares to call.
    pub fn new() -> Result<Self, WebhookError> {
        let http = reqwest::Client::builder()
            .user_agent(concat!("pleach/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT)
            .timeout(REQUEST)
            // What is said is for the host that was named.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(WebhookError::Client)?;
        Ok(Self { http })
    }

    /// Posts a body to the address in a file, which is read anew. Somebody who
    /// does not answer is called again a few times; who refuses is not.
    pub async fn post(&self, address: &Path, body: &str) -> Result<(), WebhookError> {
        let url = read(address)?;
        let mut pause = PAUSE;
        for attempt in 1.. {
            let failure = match self.post_once(&url, body).await {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            match failure {
                Failure::Passing(_, asked) if attempt < ATTEMPTS => {
                    let asked = asked.unwrap_or_default().min(LONGEST);
                    tokio::time::sleep(pause.max(asked)).await;
                    pause *= 2;
                }
                Failure::Passing(error, _) | Failure::Final(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn post_once(&self, url: &reqwest::Url, body: &str) -> Result<(), Failure> {
        let is_json = serde_json::from_str::<serde::de::IgnoredAny>(body).is_ok();
        let kind = if is_json {
            "application/json"
        } else {
            "text/plain; charset=utf-8"
        };
        let request = self.http.post(url.clone()).header(CONTENT_TYPE, kind);
        let answer = request
            .body(body.to_owned())
            .send()
            .await
            .map_err(|error| {
                // The address is in it otherwise.
                Failure::Passing(WebhookError::Unreachable(error.without_url()), None)
            })?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        let asked = answer.headers().get(header::RETRY_AFTER);
        let asked = asked.and_then(|seconds| seconds.to_str().ok()?.parse().ok());
        let error = WebhookError::Refused(status);
        if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
            Err(Failure::Passing(error, asked.map(Duration::from_secs)))
        } else {
            Err(Failure::Final(error))
        }
    }
}

fn read(address: &Path) -> Result<reqwest::Url, WebhookError> {
    let bytes = files::read(address)?;
    let wrong = || WebhookError::NoUrl(address.display().to_string());
    let text = str::from_utf8(&bytes).map_err(|_| wrong())?;
    let url = reqwest::Url::parse(text.trim()).map_err(|_| wrong())?;
    if matches!(url.scheme(), "http" | "https") {
        Ok(url)
    } else {
        Err(wrong())
    }
}
