//! Remote repositories and their transports.
//!
//! Calls block. The transport has time-outs, and a download has a deadline and a size limit.

use std::fmt;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use git2::Repository;
use pleach_reconciler::config::Transport;
use serde::{Deserialize, Serialize};

use super::app::{self, GithubApp};
use super::channel::Channel;
use super::fetch::{Carrier, Failure, Fetch, FetchError, Peer, Received};
use super::https::{self, RemoteService, Trouble};
use super::push::{PushError, References, Report};
use super::{GitError, prefix, ssh};

/// Default deadline of a download.
pub(super) const DEADLINE: Duration = Duration::from_mins(5);
/// Default maximum size of one download, in bytes.
pub(super) const LARGEST: u64 = 1 << 30;
/// Credentials as file paths. The files are read for each fetch, so they can be rotated.
#[derive(Debug, Clone)]
pub enum Auth {
    /// None.
    Anonymous,
    /// User name and password.
    Basic {
        /// File with the name.
        username: PathBuf,
        /// File with the password.
        password: PathBuf,
    },
    /// A bearer token.
    Bearer {
        /// File with the token.
        token: PathBuf,
    },
    /// ssh key with the known hosts.
    Ssh {
        /// File with the private key.
        key: PathBuf,
        /// File with the known host keys.
        known_hosts: PathBuf,
    },
    /// Installation tokens of a GitHub App.
    GithubApp(GithubApp),
}

/// Loaded credentials, as passed to the process that fetches.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Credentials {
    Anonymous,
    /// Value of the `Authorization` header.
    Authorization(String),
    Ssh {
        key: Part,
        known_hosts: Part,
    },
}

/// Credential file and its content.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Part {
    /// Path, for messages.
    pub(super) path: PathBuf,
    pub(super) content: String,
}

impl Part {
    fn read(path: &Path) -> Result<Self, GitError> {
        let mut content = secret(path)?;
        // ssh rejects a key without a final newline.
        content.push('\n');
        Ok(Self {
            path: path.to_owned(),
            content,
        })
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

impl Auth {
    /// Reads the files or requests a token.
    pub(super) fn credentials(&self) -> Result<Credentials, GitError> {
        Ok(match self {
            Self::Anonymous => Credentials::Anonymous,
            Self::Basic { username, password } => {
                Credentials::Authorization(https::basic(&secret(username)?, &secret(password)?))
            }
            Self::Bearer { token } => {
                Credentials::Authorization(format!("Bearer {}", secret(token)?))
            }
            Self::Ssh { key, known_hosts } => Credentials::Ssh {
                key: Part::read(key)?,
                known_hosts: Part::read(known_hosts)?,
            },
            Self::GithubApp(app) => {
                Credentials::Authorization(https::basic(app::USER, &app.token()?))
            }
        })
    }

    /// Discards a cached token that the server rejected, for example after a revocation. Blocks
    /// during a running token request.
    pub(super) fn refused(&self) {
        if let Self::GithubApp(app) = self {
            app.forget();
        }
    }
}

/// Remote repository.
#[derive(Debug, Clone)]
pub struct Remote {
    /// URL or path of a folder, without credentials.
    pub url: String,
    /// Credentials.
    pub auth: Auth,
    /// File with the trusted signing keys. `None`: signatures are not required.
    pub keys: Option<PathBuf>,
}

impl Remote {
    /// Returns the URL to fetch from and the path of the pleach repository in it.
    pub(super) fn location(&self) -> Result<(String, String), GitError> {
        location(&self.url)
    }

    /// Reads the credentials for one connection.
    pub(super) fn peer(&self, from: &str) -> Result<Peer, GitError> {
        Ok(Peer {
            url: self.url.clone(),
            from: from.to_owned(),
            credentials: self.auth.credentials()?,
        })
    }

    /// Executes a fetch request. Discards cached credentials that the server rejected.
    pub(super) fn receive_by(
        &self,
        carrier: &Carrier<'_>,
        order: &Fetch,
    ) -> Result<Received, FetchError> {
        let received = carrier(order);
        if let Err(error) = &received
            && error.failure == Failure::Refused
        {
            self.auth.refused();
        }
        received
    }
}

/// Returns the URL to fetch from and the path of the pleach repository in it.
fn location(url: &str) -> Result<(String, String), GitError> {
    match Transport::of(url) {
        Some(Transport::Local) => {}
        Some(Transport::Ssh) => return Ok((ssh::URL.to_owned(), String::new())),
        _ => return Ok((url.to_owned(), String::new())),
    }
    let path = url.strip_prefix("file://").unwrap_or(url);
    let folder = pleach_files::canonical(Path::new(path))?;
    let repository =
        Repository::discover(&folder).map_err(|error| super::open_error(&folder, error))?;
    let prefix = prefix(&folder, &repository)?;
    Ok((repository.path().to_string_lossy().into_owned(), prefix))
}

/// Exceeded limit of a download, with a message.
#[derive(Debug, Clone)]
pub(super) enum Exceeded {
    Size(String),
    Time(String),
}

impl From<Exceeded> for FetchError {
    fn from(exceeded: Exceeded) -> Self {
        let (failure, message) = match exceeded {
            Exceeded::Size(message) => (Failure::TooLarge, message),
            Exceeded::Time(message) => (Failure::TooSlow, message),
        };
        Self { failure, message }
    }
}

/// Describes a download that is larger than `largest` bytes.
pub(super) fn too_large(largest: u64) -> Exceeded {
    let mebibytes = largest.div_ceil(1 << 20);
    Exceeded::Size(format!("it is larger than {mebibytes} MiB"))
}

/// Describes a download that exceeds its time-out.
pub(super) fn too_slow(time: Duration) -> Exceeded {
    Exceeded::Time(format!("it takes longer than {time:?}"))
}

/// Transport of a fetch with its credentials.
enum Connection {
    /// A folder.
    Local,
    Http(Arc<https::Call>),
    Ssh(Arc<ssh::Call>),
}

/// Connection of a fetch or a push.
pub(super) struct Session {
    connection: Connection,
}

impl Session {
    /// Creates the session for a URL, with limits in bytes and time. `authorities` are CA
    /// certificates for https, besides those of the machine.
    pub(super) fn open(
        url: &str,
        credentials: Credentials,
        authorities: Option<&[u8]>,
        (largest, time): (u64, Duration),
    ) -> Result<Self, FetchError> {
        let limits = (largest, time);
        let connection = match credentials {
            Credentials::Ssh { key, known_hosts } => Connection::Ssh(ssh::Call::prepare(
                url,
                [&key, &known_hosts],
                (Instant::now() + time, time),
            )?),
            Credentials::Authorization(value) => {
                let call = https::Call::prepare(url, Some(&value), authorities, limits)?;
                Connection::Http(call)
            }
            Credentials::Anonymous if Transport::of(url) == Some(Transport::Local) => {
                Connection::Local
            }
            Credentials::Anonymous => {
                Connection::Http(https::Call::prepare(url, None, authorities, limits)?)
            }
        };
        Ok(Self { connection })
    }

    fn trouble(&self) -> Option<Trouble> {
        match &self.connection {
            Connection::Http(call) => call.trouble(),
            Connection::Local | Connection::Ssh(_) => None,
        }
    }

    /// Returns whether a server rejected the credentials.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self.trouble(), Some(Trouble::Refused(_)))
    }

    /// Returns whether an ssh server answered.
    pub(super) fn has_ssh_answer(&self) -> bool {
        matches!(&self.connection, Connection::Ssh(call) if !call.is_abandoned())
    }

    /// Returns the connection for a fetch of this URL. A folder needs none.
    pub(super) fn channel(&self, url: &str) -> Option<Box<dyn Channel>> {
        match &self.connection {
            Connection::Local => None,
            Connection::Http(call) => Some(Box::new(https::Fetching::new(Arc::clone(call), url))),
            Connection::Ssh(call) => Some(Box::new(ssh::Fetching::new(Arc::clone(call)))),
        }
    }

    /// Replaces an error of libgit2 by the reason that the connection knows. Only the connection
    /// knows whether the server rejected the credentials.
    pub(super) fn explain(&self, error: FetchError) -> FetchError {
        if let Some(Trouble::Exceeded(exceeded)) = self.trouble() {
            return exceeded.into();
        }
        if error.is_beyond() {
            return error;
        }
        FetchError {
            failure: if self.is_refused() {
                Failure::Refused
            } else {
                Failure::Passing
            },
            message: self.reason().unwrap_or(error.message),
        }
    }

    /// Sends a push and returns the report of the server. `request` makes the request from the
    /// references that the server lists.
    pub(super) fn push(
        &self,
        url: &str,
        request: impl FnOnce(&References) -> Result<Vec<u8>, PushError>,
    ) -> Result<Report, PushError> {
        match &self.connection {
            Connection::Local => Err(PushError::Failed("a folder accepts no push".to_owned())),
            Connection::Http(call) => {
                let listed = call.receiver(url)?;
                let references = References::read(&mut listed.as_slice(), true)?;
                let report = call.push(url, request(&references)?)?;
                Ok(Report::read(&mut report.as_slice(), &references)?)
            }
            Connection::Ssh(call) => {
                let mut stream = call.connect(RemoteService::ReceivePack)?;
                let references = References::read(&mut stream, false)?;
                stream.write_all(&request(&references)?)?;
                stream.flush()?;
                Ok(Report::read(&mut stream, &references)?)
            }
        }
    }

    /// Returns the reason for a failed connection, if it is known.
    pub(super) fn reason(&self) -> Option<String> {
        match &self.connection {
            Connection::Local => None,
            Connection::Http(call) => call.trouble().map(|trouble| trouble.words().to_owned()),
            Connection::Ssh(call) => call.complaint(),
        }
    }
}

/// Reads a file without the line ending.
fn secret(path: &Path) -> Result<String, GitError> {
    let bytes = pleach_files::read(path)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}
