//! http and https transport: the smart protocol of git over our HTTP client.
//!
//! The protocol is described in gitprotocol-http(5). A fetch is a `GET` of the references, and a
//! `POST` for each round of the negotiation. A push is a `GET` and one `POST`. Certificates are verified against the roots of the
//! machine, and proxies are taken from the usual environment variables.

use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use pleach_reconciler::config::Transport as Scheme;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, LOCATION};
use reqwest::redirect::{Attempt, Policy};
use reqwest::{Certificate, Client, RequestBuilder, Response, StatusCode};
use tokio::runtime::Runtime;

use super::channel::{Channel, Request};
use super::fetch::{FetchError, LIST};
use super::program::one_line;
use super::remote::{Exceeded, too_large, too_slow};
use super::with_causes;

/// Time-out of the connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Maximum silence of the server.
const SILENCE: Duration = Duration::from_secs(15);
/// Maximum number of redirects of one fetch.
const REDIRECTS: usize = 5;
/// Suffix of the URL that lists the references, before the name of the service.
const REFERENCES: &str = "/info/refs?service=";
/// Maximum silence of the server after a push. Its hooks can be slow.
const HOOKS: Duration = Duration::from_mins(1);
/// Servers choose the smart protocol for clients whose name begins with `git/`.
const USER_AGENT: &str = concat!("git/2.0 (pleach ", env!("CARGO_PKG_VERSION"), ")");

/// Service of git on a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RemoteService {
    /// Sends objects to a client.
    UploadPack,
    /// Receives objects from a client.
    ReceivePack,
}

impl RemoteService {
    /// Returns the name of the service, which is that of its program.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::UploadPack => "git-upload-pack",
            Self::ReceivePack => "git-receive-pack",
        }
    }

    /// Returns the maximum time without a byte over https.
    pub(super) fn silence(self) -> Duration {
        match self {
            Self::UploadPack => SILENCE,
            Self::ReceivePack => HOOKS,
        }
    }
}

/// Reason for the end of a call.
#[derive(Debug, Clone)]
pub(super) enum Trouble {
    /// The download exceeded a limit.
    Exceeded(Exceeded),
    /// The server rejected the credentials.
    Refused(String),
    /// Any other failure.
    Failed(String),
}

impl Trouble {
    /// Returns the message for people.
    pub(super) fn words(&self) -> &str {
        match self {
            Self::Exceeded(Exceeded::Size(words) | Exceeded::Time(words))
            | Self::Refused(words)
            | Self::Failed(words) => words,
        }
    }
}

/// HTTP client for one fetch.
pub(super) struct Call {
    client: Client,
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    authorization: Option<HeaderValue>,
    deadline: Instant,
    /// Time-out, for messages.
    time: Duration,
    /// Maximum download in bytes.
    largest: u64,
    state: Mutex<State>,
}

/// State of a call.
#[derive(Default)]
struct State {
    /// URL of the repository after redirects.
    base: Option<String>,
    /// Number of received bytes of the list of references.
    listed: u64,
    /// Number of received bytes of other answers.
    received: u64,
    trouble: Option<Trouble>,
}

/// Returns the value of an `Authorization` header with a user name and a password.
pub(super) fn basic(username: &str, password: &str) -> String {
    format!(
        "Basic {}",
        STANDARD.encode(format!("{username}:{password}"))
    )
}

impl Call {
    /// Prepares a call. `authorization` is the value of the header. `authorities` are CA certificates
    /// in PEM, besides those of the machine. The limits are bytes and time.
    pub(super) fn prepare(
        url: &str,
        authorization: Option<&str>,
        authorities: Option<&[u8]>,
        (largest, time): (u64, Duration),
    ) -> Result<Arc<Self>, FetchError> {
        let authorization = authorization.map(|text| {
            let mut value = HeaderValue::from_str(text)
                .map_err(|_| FetchError::passing("the credentials contain a control character"))?;
            value.set_sensitive(true);
            Ok::<_, FetchError>(value)
        });
        let authorization = authorization.transpose()?;
        // Fails if the program has installed one, which is the same.
        drop(rustls::crypto::ring::default_provider().install_default());
        let mut client = Client::builder();
        if authorization.is_some() && Scheme::of(url) == Some(Scheme::Http) {
            // The configuration allows credentials over http only to this machine. A proxy must not
            // receive them.
            client = client.no_proxy();
        }
        if let Some(authorities) = authorities {
            let trusted = Certificate::from_pem_bundle(authorities).map_err(|error| {
                FetchError::passing(format!("the CA certificates: {}", with_causes(&error)))
            })?;
            client = client.tls_certs_merge(trusted);
        }
        let client = client
            .user_agent(USER_AGENT)
            .connect_timeout(CONNECT)
            .redirect(redirects(authorization.is_some()))
            .build()
            .map_err(|error| FetchError::passing(with_causes(&error)))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| FetchError::passing(error.to_string()))?;
        Ok(Arc::new(Self {
            client,
            runtime: Some(runtime),
            authorization,
            deadline: Instant::now() + time,
            time,
            largest,
            state: Mutex::default(),
        }))
    }

    /// Returns the reason for which the call ended.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        self.state().trouble.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, trouble: Trouble) -> io::Error {
        let error = io::Error::other(trouble.words().to_owned());
        self.state().trouble = Some(trouble);
        error
    }

    fn failed(&self, words: impl AsRef<str>) -> io::Error {
        self.fail(Trouble::Failed(one_line(words.as_ref())))
    }

    /// Waits for the server, until it is silent for too long or the deadline passes.
    fn wait<T>(
        &self,
        silence: Duration,
        work: impl Future<Output = reqwest::Result<T>>,
    ) -> io::Result<T> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let limited = async { tokio::time::timeout(left.min(silence), work).await };
        let Some(runtime) = &self.runtime else {
            return Err(self.failed("the connection is closed"));
        };
        match runtime.block_on(limited) {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err(self.failed(with_causes(&error.without_url()))),
            Err(_) if left <= silence => Err(self.fail(Trouble::Exceeded(too_slow(self.time)))),
            Err(_) => Err(self.failed(format!("the server sent nothing for {silence:?}"))),
        }
    }

    /// Sends a request and checks the status and the type of the answer.
    fn send(
        &self,
        request: RequestBuilder,
        service: RemoteService,
        kind: &str,
    ) -> io::Result<Response> {
        let kind = format!("application/x-{}-{kind}", service.name());
        let request = match &self.authorization {
            Some(value) => request.header(AUTHORIZATION, value),
            None => request,
        };
        let request = request.header(ACCEPT, &kind);
        let response = self.wait(service.silence(), request.send())?;
        let status = response.status();
        if !status.is_success() {
            return Err(self.fail(self.refusal(&response)));
        }
        let header = response.headers().get(CONTENT_TYPE);
        if header.is_none_or(|header| header != kind.as_str()) {
            return Err(self.failed("the server does not answer with the protocol of git"));
        }
        Ok(response)
    }

    fn refusal(&self, response: &Response) -> Trouble {
        let status = response.status();
        match (status, &self.authorization) {
            (StatusCode::UNAUTHORIZED, None) => {
                Trouble::Failed("the server requires credentials".to_owned())
            }
            (StatusCode::UNAUTHORIZED, Some(_)) => {
                Trouble::Refused("the server rejected the credentials".to_owned())
            }
            // Servers hide repositories from tokens that were revoked.
            (StatusCode::FORBIDDEN | StatusCode::NOT_FOUND, Some(_)) => {
                Trouble::Refused(format!("the server answered {status}"))
            }
            _ if status.is_redirection() => {
                let to = response.headers().get(LOCATION);
                let to = to.and_then(|to| to.to_str().ok()).unwrap_or("another URL");
                Trouble::Failed(one_line(&format!(
                    "the server redirects to {to}, which is not followed"
                )))
            }
            _ => Trouble::Failed(format!("the server answered {status}")),
        }
    }

    /// Requests the references.
    fn references(&self, url: &str, service: RemoteService) -> io::Result<Response> {
        let suffix = format!("{REFERENCES}{}", service.name());
        let request = self.client.get(format!("{url}{suffix}"));
        let response = self.send(request, service, "advertisement")?;
        let base = response.url().as_str().strip_suffix(&suffix);
        let base = base.ok_or_else(|| {
            self.failed("the server redirects to a URL that is not that of a repository")
        })?;
        self.state().base = Some(base.to_owned());
        Ok(response)
    }

    /// Sends a round of the negotiation, or a push.
    fn negotiate(&self, url: &str, service: RemoteService, body: Vec<u8>) -> io::Result<Response> {
        let base = self.state().base.clone();
        let base = base.as_deref().unwrap_or(url);
        let name = service.name();
        let request = self.client.post(format!("{base}/{name}"));
        let request = request.header(CONTENT_TYPE, format!("application/x-{name}-request"));
        self.send(request.body(body), service, "result")
    }

    /// Requests the references for a push.
    pub(super) fn receiver(&self, url: &str) -> io::Result<Vec<u8>> {
        let mut response = self.references(url, RemoteService::ReceivePack)?;
        self.whole(&mut response)
    }

    /// Sends a push and returns the report.
    pub(super) fn push(&self, url: &str, body: Vec<u8>) -> io::Result<Vec<u8>> {
        let mut response = self.negotiate(url, RemoteService::ReceivePack, body)?;
        self.whole(&mut response)
    }

    /// Reads an answer to its end.
    fn whole(&self, response: &mut Response) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let part = self.part(response, true, HOOKS)?;
            if part.is_empty() {
                return Ok(all);
            }
            all.extend_from_slice(&part);
        }
    }

    /// Reads the next part of an answer. It is empty at the end.
    fn part(&self, response: &mut Response, is_list: bool, silence: Duration) -> io::Result<Bytes> {
        let part = self.wait(silence, response.chunk())?.unwrap_or_default();
        let (count, largest) = {
            let mut state = self.state();
            let state = &mut *state;
            // A list has all references of the repository, whatever is downloaded.
            let (count, largest) = if is_list {
                (&mut state.listed, LIST)
            } else {
                (&mut state.received, self.largest)
            };
            *count += part.len() as u64;
            (*count, largest)
        };
        if count > largest {
            return Err(self.fail(Trouble::Exceeded(too_large(largest))));
        }
        if Instant::now() > self.deadline {
            return Err(self.fail(Trouble::Exceeded(too_slow(self.time))));
        }
        Ok(part)
    }
}

impl Drop for Call {
    /// Does not wait for a name lookup, which nothing can cancel.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Follows redirects of the first request, as git does. Credentials are not sent to another URL,
/// and https is never left.
fn redirects(has_credentials: bool) -> Policy {
    if has_credentials {
        return Policy::none();
    }
    Policy::custom(|attempt| {
        if may_follow(&attempt) {
            attempt.follow()
        } else {
            attempt.stop()
        }
    })
}

fn may_follow(attempt: &Attempt<'_>) -> bool {
    let previous = attempt.previous();
    let is_first = previous
        .first()
        .is_some_and(|url| url.as_str().contains(REFERENCES));
    let leaves_https =
        previous.iter().any(|url| url.scheme() == "https") && attempt.url().scheme() != "https";
    is_first && !leaves_https && previous.len() <= REDIRECTS
}

/// Requests of one fetch.
pub(super) struct Fetching {
    call: Arc<Call>,
    /// URL of the repository.
    url: String,
    /// Request that is not sent yet.
    request: Option<(Request, Vec<u8>)>,
    /// Answer to the last request.
    response: Option<Response>,
    is_list: bool,
}

impl Fetching {
    pub(super) fn new(call: Arc<Call>, url: &str) -> Self {
        Self {
            call,
            url: url.trim_end_matches('/').to_owned(),
            request: None,
            response: None,
            is_list: false,
        }
    }
}

impl Channel for Fetching {
    fn begin(&mut self, request: Request) -> io::Result<()> {
        self.is_list = request == Request::List;
        self.request = Some((request, Vec::new()));
        self.response = None;
        Ok(())
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.request {
            Some((Request::Negotiate, body)) => body.extend_from_slice(bytes),
            _ => return Err(io::Error::other("the request has no body")),
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<Bytes> {
        let service = RemoteService::UploadPack;
        let mut response = match (self.request.take(), self.response.take()) {
            (Some((Request::List, _)), _) => self.call.references(&self.url, service)?,
            (Some((Request::Negotiate, body)), _) => {
                self.call.negotiate(&self.url, service, body)?
            }
            (None, Some(response)) => response,
            (None, None) => return Err(io::Error::other("there is no request")),
        };
        let part = self.call.part(&mut response, self.is_list, SILENCE)?;
        self.response = Some(response);
        Ok(part)
    }
}
