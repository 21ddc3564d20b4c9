//! Remote repositories and their transports.
//!
//! Calls block. The transport has time-outs, and a download has a deadline and a size limit.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use git2::opts::{set_server_connect_timeout_in_milliseconds, set_server_timeout_in_milliseconds};
use git2::{
    AutotagOption, Cred, CredentialType, FetchOptions, RemoteCallbacks, RemoteRedirect, Repository,
};
use pleach_reconciler::config::Transport;
use serde::{Deserialize, Serialize};

use super::app::{self, GithubApp};
use super::fetch::{Carrier, Failure, Fetch, FetchError, Peer, Received};
use super::ssh::{self, Call};
use super::{GitError, prefix};

/// Time-out of the connection, in milliseconds.
const CONNECT: i32 = 10_000;
/// Maximum silence of the server, in milliseconds.
const SILENCE: i32 = 15_000;
/// Default deadline of a download.
pub(super) const DEADLINE: Duration = Duration::from_mins(5);
/// Default maximum size of one download, in bytes.
pub(super) const LARGEST: u64 = 1 << 30;
/// Bytes per object in the index of a pack.
const INDEXED: u64 = 36;
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
    Basic { username: String, password: String },
    Header(String),
    Ssh { key: Part, known_hosts: Part },
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
            Self::Basic { username, password } => Credentials::Basic {
                username: secret(username)?,
                password: secret(password)?,
            },
            Self::Bearer { token } => {
                Credentials::Header(format!("Authorization: Bearer {}", secret(token)?))
            }
            Self::Ssh { key, known_hosts } => Credentials::Ssh {
                key: Part::read(key)?,
                known_hosts: Part::read(known_hosts)?,
            },
            Self::GithubApp(app) => Credentials::Basic {
                username: app::USER.to_owned(),
                password: app.token()?,
            },
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
    pub(super) fn carry(
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

/// Credentials and limits of a fetch.
pub(super) struct Session {
    basic: Option<(String, String)>,
    header: Option<String>,
    ssh: Option<Arc<Call>>,
    /// Whether the server rejected the credentials.
    is_refused: Cell<bool>,
    time: Duration,
    deadline: Instant,
    /// Maximum download, in bytes.
    largest: u64,
    exceeded: RefCell<Option<Exceeded>>,
}

impl Session {
    /// Creates the session for a URL, with limits in bytes and time.
    pub(super) fn open(
        url: &str,
        credentials: Credentials,
        (largest, time): (u64, Duration),
    ) -> Result<Self, FetchError> {
        let mut session = Self {
            basic: None,
            header: None,
            ssh: None,
            is_refused: Cell::new(false),
            time,
            deadline: Instant::now() + time,
            largest,
            exceeded: RefCell::default(),
        };
        match credentials {
            Credentials::Anonymous => {}
            Credentials::Basic { username, password } => {
                session.basic = Some((username, password));
            }
            Credentials::Header(header) => session.header = Some(header),
            Credentials::Ssh { key, known_hosts } => {
                let call = Call::prepare(url, [&key, &known_hosts], (session.deadline, time))?;
                session.ssh = Some(call);
            }
        }
        Ok(session)
    }

    /// Returns whether a server rejected the credentials.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.get()
    }

    /// Returns the limit that the download exceeded.
    pub(super) fn exceeded(&self) -> Option<Exceeded> {
        self.exceeded.borrow().clone()
    }

    pub(super) fn fetch(
        &self,
        remote: &mut git2::Remote<'_>,
        refspecs: &[String],
        shallow: bool,
    ) -> Result<(), git2::Error> {
        let refused = Cell::new(false);
        let mut callbacks = RemoteCallbacks::new();
        callbacks.credentials(|_, _, allowed| match &self.basic {
            Some((name, password))
                if allowed.contains(CredentialType::USER_PASS_PLAINTEXT)
                    // Sending the same credentials again does not help.
                    && !refused.replace(true) =>
            {
                Cred::userpass_plaintext(name, password)
            }
            Some(_) => Err(git2::Error::from_str("the server rejected the credentials")),
            None => Err(git2::Error::from_str("the server requires credentials")),
        });
        callbacks.transfer_progress(|progress| {
            let index = INDEXED * progress.total_objects() as u64;
            let exceeded = if progress.received_bytes() as u64 + index > self.largest {
                let mebibytes = self.largest.div_ceil(1 << 20);
                Some(Exceeded::Size(format!("it is larger than {mebibytes} MiB")))
            } else if Instant::now() > self.deadline {
                let words = format!("it takes longer than {:?}", self.time);
                Some(Exceeded::Time(words))
            } else {
                None
            };
            let goes_on = exceeded.is_none();
            *self.exceeded.borrow_mut() = exceeded;
            goes_on
        });
        let mut options = FetchOptions::new();
        options
            .download_tags(AutotagOption::None)
            .update_fetchhead(false)
            .remote_callbacks(callbacks);
        if let Some(header) = &self.header {
            options.custom_headers(&[header]);
        }
        if self.header.is_some() || self.basic.is_some() {
            // Do not send the credentials to another host.
            options.follow_redirects(RemoteRedirect::None);
        }
        if shallow {
            options.depth(1);
        }
        let mut fetch = || remote.fetch(refspecs, Some(&mut options), None);
        let fetched = match &self.ssh {
            Some(call) => call.around(fetch),
            None => fetch(),
        };
        drop(options);
        if refused.get() && fetched.is_err() {
            self.is_refused.set(true);
        }
        let complaint = self.ssh.as_ref().and_then(|call| call.complaint());
        // Our reason for the abort is more specific than libgit2's error.
        let exceeded = self.exceeded().map(|exceeded| match exceeded {
            Exceeded::Size(words) | Exceeded::Time(words) => words,
        });
        match (fetched, exceeded.or(complaint)) {
            (Err(_), Some(why)) => Err(git2::Error::from_str(&why)),
            (fetched, _) => fetched,
        }
    }
}

/// Reads a file without the line ending.
fn secret(path: &Path) -> Result<String, GitError> {
    let bytes = pleach_files::read(path)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Sets the process-wide time-outs of libgit2 and registers ssh. Without a time-out, libgit2 waits
/// forever for a silent server.
pub(super) fn limit_silence() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        ssh::register();
        #[expect(
            unsafe_code,
            reason = "libgit2 keeps its time-outs in a global; nothing was fetched yet"
        )]
        let set = unsafe {
            set_server_connect_timeout_in_milliseconds(CONNECT)
                .and_then(|()| set_server_timeout_in_milliseconds(SILENCE))
        };
        if let Err(error) = set {
            tracing::warn!(%error, "failed to set the time-outs of git");
        }
    });
}
