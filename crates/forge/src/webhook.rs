//! Client for outgoing webhooks. A URL can be a secret, so it is in a file and not in messages.

use std::path::Path;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{StatusCode, header};

/// Time-out of the connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Time-out of a whole call.
const REQUEST: Duration = Duration::from_secs(10);
/// Maximum number of attempts.
const ATTEMPTS: u32 = 5;
/// First backoff; doubles with every attempt.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum delay that a server can ask for.
const LONGEST: Duration = Duration::from_mins(1);

/// Error of a webhook call.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// The HTTP client could not be built.
    #[error("failed to create the HTTP client for webhooks")]
    Client(#[source] reqwest::Error),
    /// The file with the URL could not be read.
    #[error(transparent)]
    Address(#[from] pleach_files::FileError),
    /// The file does not contain a URL.
    #[error("{0} does not contain an http or https URL")]
    NoUrl(String),
    /// The server is unreachable.
    #[error("failed to call the webhook")]
    Unreachable(#[source] reqwest::Error),
    /// The server answered with an error status.
    #[error("the webhook answered {0}")]
    Refused(StatusCode),
}

/// HTTP client for webhooks.
#[derive(Debug, Clone)]
pub struct Caller {
    http: reqwest::Client,
}

/// Failure of one attempt, with its consequence.
enum Failure {
    Final(WebhookError),
    Passing(WebhookError, Option<Duration>),
}

impl Caller {
    /// Creates the client.
    pub fn new() -> Result<Self, WebhookError> {
        let http = reqwest::Client::builder()
            .user_agent(concat!("pleach/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT)
            .timeout(REQUEST)
            // Do not send the message to another host.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(WebhookError::Client)?;
        Ok(Self { http })
    }

    /// Posts a body to the URL in a file, which is read for each call. Retries temporary failures,
    /// but not refusals.
    pub async fn post(&self, address: &Path, body: &str) -> Result<(), WebhookError> {
        let url = read(address)?;
        let mut pause = PAUSE;
        for attempt in 1.. {
            let failure = match self.post_once(&url, body).await {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            match failure {
                Failure::Passing(_, requested) if attempt < ATTEMPTS => {
                    let requested = requested.unwrap_or_default().min(LONGEST);
                    tokio::time::sleep(pause.max(requested)).await;
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
                // Remove the URL, which can be secret.
                Failure::Passing(WebhookError::Unreachable(error.without_url()), None)
            })?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        let requested = answer.headers().get(header::RETRY_AFTER);
        let requested = requested.and_then(|seconds| seconds.to_str().ok()?.parse().ok());
        let error = WebhookError::Refused(status);
        if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
            Err(Failure::Passing(error, requested.map(Duration::from_secs)))
        } else {
            Err(Failure::Final(error))
        }
    }
}

fn read(address: &Path) -> Result<reqwest::Url, WebhookError> {
    let bytes = pleach_files::read(address)?;
    let wrong = || WebhookError::NoUrl(address.display().to_string());
    let text = str::from_utf8(&bytes).map_err(|_| wrong())?;
    let url = reqwest::Url::parse(text.trim()).map_err(|_| wrong())?;
    if matches!(url.scheme(), "http" | "https") {
        Ok(url)
    } else {
        Err(wrong())
    }
}
