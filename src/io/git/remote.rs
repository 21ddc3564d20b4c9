//! Repositories that are elsewhere, and how they are talked to.
//!
//! Calls block, and every one of them ends: the transport has time-outs, a download
//! has a deadline and a largest size.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use git2::opts::{set_server_connect_timeout_in_milliseconds, set_server_timeout_in_milliseconds};
use git2::{
    AutotagOption, Cred, CredentialType, FetchOptions, RemoteCallbacks, RemoteRedirect, Repository,
};
use pleach_domain::repo::controller::Transport;
use serde::{Deserialize, Serialize};

use super::app::{self, GithubApp};
use super::ssh::{self, Call};
use super::{GitError, prefix};
use crate::io::files;

/// How long a server may take to answer at all.
const CONNECT: i32 = 10_000;
/// How long it may be silent.
const SILENCE: i32 = 15_000;
/// How long a fetch may take as a whole.
const DEADLINE: Duration = Duration::from_mins(5);
/// The most that is downloaded at once.
pub(super) const LARGEST: usize = 1 << 30;
/// Credentials, as the files that hold them: read for every fetch, so that they
/// can be changed.
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
    /// A key for ssh, and the keys of the hosts that are talked to.
    Ssh {
        /// File with the private key.
        key: PathBuf,
        /// File with the keys of hosts.
        known_hosts: PathBuf,
    },
    /// Tokens that an app of GitHub asks for.
    GithubApp(GithubApp),
}

/// Credentials as they were read: what whoever fetches is told.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Credentials {
    Anonymous,
    Basic { username: String, password: String },
    Header(String),
    Ssh { key: PathBuf, known_hosts: PathBuf },
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

impl Auth {
    /// Reads the files, or asks for a token.
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
                key: key.clone(),
                known_hosts: known_hosts.clone(),
            },
            Self::GithubApp(app) => Credentials::Basic {
                username: app::USER.to_owned(),
                password: app.token()?,
            },
        })
    }

    /// Notes that a server does not take the credentials: somebody may have taken a
    /// token back. Blocks while one is asked for.
    pub(super) fn refused(&self) {
        if let Self::GithubApp(app) = self {
            app.forget();
        }
    }
}

/// A repository that is elsewhere.
#[derive(Debug, Clone)]
pub struct Remote {
    /// Its URL, or the path of a folder. It holds no credentials.
    pub url: String,
    /// Who we are for it.
    pub auth: Auth,
    /// File with the keys that commits have to be signed with; none where they
    /// need not be signed.
    pub keys: Option<PathBuf>,
}

impl Remote {
    /// What is fetched from, and where the pleach repository lies in it.
    pub(super) fn location(&self) -> Result<(String, String), GitError> {
        location(&self.url)
    }
}

/// What is fetched from for a URL, and where the pleach repository lies in it.
pub(super) fn location(url: &str) -> Result<(String, String), GitError> {
    match Transport::of(url) {
        Some(Transport::Local) => {}
        Some(Transport::Ssh) => return Ok((ssh::URL.to_owned(), String::new())),
        _ => return Ok((url.to_owned(), String::new())),
    }
    let path = url.strip_prefix("file://").unwrap_or(url);
    let folder = files::canonical(Path::new(path))?;
    let repository =
        Repository::discover(&folder).map_err(|error| super::open_error(&folder, error))?;
    let prefix = prefix(&folder, &repository)?;
    Ok((repository.path().to_string_lossy().into_owned(), prefix))
}

/// Credentials that were read, and what a fetch may take.
pub(super) struct Session<'a> {
    basic: Option<(String, String)>,
    header: Option<String>,
    ssh: Option<Arc<Call>>,
    /// Whose credentials these are, where somebody can be told that they are refused.
    auth: Option<&'a Auth>,
    /// Whether they are.
    is_refused: Cell<bool>,
    deadline: Instant,
    /// The most that is downloaded, in bytes.
    largest: usize,
    /// Why a download was broken off.
    exceeded: RefCell<Option<String>>,
}

impl<'a> Session<'a> {
    pub(super) fn open(remote: &'a Remote, largest: usize) -> Result<Self, GitError> {
        let mut session = Self::with(&remote.url, remote.auth.credentials()?)?;
        session.largest = largest;
        session.auth = Some(&remote.auth);
        Ok(session)
    }

    /// For a repository by its URL.
    pub(super) fn with(url: &str, credentials: Credentials) -> Result<Self, GitError> {
        let mut session = Self {
            basic: None,
            header: None,
            ssh: None,
            auth: None,
            is_refused: Cell::new(false),
            deadline: Instant::now() + DEADLINE,
            largest: LARGEST,
            exceeded: RefCell::default(),
        };
        match credentials {
            Credentials::Anonymous => {}
            Credentials::Basic { username, password } => {
                session.basic = Some((username, password));
            }
            Credentials::Header(header) => session.header = Some(header),
            Credentials::Ssh { key, known_hosts } => {
                let call = Call::prepare(url, &key, &known_hosts, session.deadline)?;
                session.ssh = Some(call);
            }
        }
        Ok(session)
    }

    /// Whether a server did not take the credentials.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.get()
    }

    /// Why a download was broken off, where it took more than it may.
    pub(super) fn exceeded(&self) -> Option<String> {
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
                    // The same credentials once more help nobody.
                    && !refused.replace(true) =>
            {
                Cred::userpass_plaintext(name, password)
            }
            Some(_) => Err(git2::Error::from_str("the credentials are refused")),
            None => Err(git2::Error::from_str("it asks for credentials")),
        });
        callbacks.transfer_progress(|progress| {
            let why = if progress.received_bytes() > self.largest {
                Some(format!("it is larger than {} MiB", self.largest >> 20))
            } else if Instant::now() > self.deadline {
                Some(format!("it takes longer than {DEADLINE:?}"))
            } else {
                None
            };
            let goes_on = why.is_none();
            *self.exceeded.borrow_mut() = why;
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
            // Credentials are for the host that they were given for.
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
            if let Some(auth) = self.auth {
                auth.refused();
            }
        }
        let complaint = self.ssh.as_ref().and_then(|call| call.complaint());
        // What broke it off says more than what libgit2 makes of that.
        match (fetched, self.exceeded().or(complaint)) {
            (Err(_), Some(why)) => Err(git2::Error::from_str(&why)),
            (fetched, _) => fetched,
        }
    }
}

/// The content of a file, without the end of its line.
fn secret(path: &Path) -> Result<String, GitError> {
    let bytes = files::read(path)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Without this a server that says nothing is waited for without end, and ssh is
/// unknown. There is one setting for the whole process.
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
            tracing::warn!(%error, "git has no time-outs");
        }
    });
}
