//! Copies of repositories that are elsewhere: bare, shallow where the transport
//! allows it, with no more than the branches that somebody wants.
//!
//! Calls block, and every one of them ends: the transport has time-outs, a
//! download has a deadline and a largest size.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
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
use super::signature::Signatures;
use super::ssh::{self, Call};
use super::{GitError, GitTree, prefix, unfetched};
use crate::io::files::{self, TemporaryFolder};

/// How long a server may take to answer at all.
const CONNECT: i32 = 10_000;
/// How long it may be silent.
const SILENCE: i32 = 15_000;
/// How long a fetch may take as a whole.
const DEADLINE: Duration = Duration::from_mins(5);
/// The most that is downloaded at once.
pub(super) const LARGEST: usize = 1 << 30;
/// Downloads leave packs behind, and nothing collects them: after so many of
/// them the mirror is made anew.
const DOWNLOADS: u32 = 200;

/// Matches nothing: a fetch of it asks what there is and downloads nothing.
const NOTHING: &str = "+refs/pleach/nothing:refs/pleach/nothing";

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

/// A copy of a repository.
pub struct Mirror {
    remote: Remote,
    signatures: Option<Signatures>,
    reader: Option<Reader>,
    downloads: u32,
}

/// Reads commits of a mirror, also while it is fetched or made anew.
#[derive(Debug, Clone)]
pub struct Reader {
    pub(super) folder: Arc<TemporaryFolder>,
    /// Where the pleach repository lies within the git repository.
    pub(super) prefix: Arc<str>,
}

/// What a repository has.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// The commits of the branches that were wanted.
    pub heads: BTreeMap<String, String>,
    /// Those of these branches whose commit is not signed as it has to be, and
    /// why not.
    pub distrusted: BTreeMap<String, String>,
    /// Names of all branches.
    pub branches: Vec<String>,
    /// The branch that the repository calls its default.
    pub default_branch: Option<String>,
    /// Reads those commits.
    pub reader: Reader,
}

impl Mirror {
    /// A mirror that has nothing yet.
    pub fn new(remote: Remote) -> Self {
        limit_silence();
        Self {
            signatures: remote.keys.clone().map(Signatures::new),
            remote,
            reader: None,
            downloads: 0,
        }
    }

    /// Follows the branches that are wanted, wherever they moved to.
    pub fn fetch(&mut self, is_wanted: impl Fn(&str) -> bool) -> Result<Fetched, GitError> {
        // Somebody may have cleaned up where it lies.
        let is_gone = |reader: &Reader| Repository::open_bare(reader.folder.path()).is_err();
        if self.downloads >= DOWNLOADS || self.reader.as_ref().is_some_and(is_gone) {
            self.reader = None;
        }
        let (url, prefix) = self.remote.location()?;
        let reader = match &self.reader {
            Some(reader) => reader.clone(),
            None => Reader {
                folder: Arc::new(files::temporary_folder()?),
                prefix: prefix.into(),
            },
        };
        let failed = |source: git2::Error| unfetched(&self.remote.url, &source);
        let repository = if self.reader.is_none() {
            Repository::init_bare(reader.folder.path())
        } else {
            Repository::open_bare(reader.folder.path())
        }
        .map_err(failed)?;
        let mut remote = repository.remote_anonymous(&url).map_err(failed)?;
        let session = Session::open(&self.remote)?;
        session
            .fetch(&mut remote, &[NOTHING.to_owned()], false)
            .map_err(failed)?;
        let mut there: BTreeMap<String, String> = BTreeMap::new();
        let mut branches = Vec::new();
        for head in remote.list().map_err(failed)? {
            let Some(branch) = head.name().strip_prefix("refs/heads/") else {
                continue;
            };
            branches.push(branch.to_owned());
            if is_wanted(branch) {
                there.insert(branch.to_owned(), head.oid().to_string());
            }
        }
        let default_branch = remote.default_branch().ok().and_then(|name| {
            let name = name.as_str().ok()?.strip_prefix("refs/heads/")?;
            Some(name.to_owned())
        });
        let missing: Vec<String> = there
            .iter()
            .filter(|(branch, commit)| local(&repository, branch).as_ref() != Some(commit))
            .map(|(branch, _)| format!("+refs/heads/{branch}:{}", reference(branch)))
            .collect();
        if !missing.is_empty() {
            let shallow = Transport::of(&self.remote.url) != Some(Transport::Local);
            session
                .fetch(&mut remote, &missing, shallow)
                .map_err(failed)?;
            self.downloads += 1;
        }
        if self.reader.is_none() {
            self.downloads = 1;
            self.reader = Some(reader.clone());
        }
        // What was there when it was downloaded may be newer than what was listed.
        let heads = there
            .into_keys()
            .filter_map(|branch| {
                let commit = local(&repository, &branch)?;
                Some((branch, commit))
            })
            .collect();
        let signatures = self.signatures.as_mut();
        let distrusted = signatures.map(|one| one.distrusted(reader.folder.path(), &heads));
        Ok(Fetched {
            heads,
            distrusted: distrusted.unwrap_or_default(),
            branches,
            default_branch,
            reader,
        })
    }
}

impl Reader {
    /// The files of a commit.
    pub fn tree(&self, commit: &str) -> Result<GitTree, GitError> {
        let path = self.folder.path();
        let repository = Repository::open_bare(path).map_err(|source| GitError::Open {
            path: path.to_owned(),
            source,
        })?;
        GitTree::open(repository, &self.prefix, commit)
    }
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
}

impl<'a> Session<'a> {
    pub(super) fn open(remote: &'a Remote) -> Result<Self, GitError> {
        let mut session = Self::with(&remote.url, remote.auth.credentials()?)?;
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

    pub(super) fn fetch(
        &self,
        remote: &mut git2::Remote<'_>,
        refspecs: &[String],
        shallow: bool,
    ) -> Result<(), git2::Error> {
        let refused = Cell::new(false);
        let broken: RefCell<Option<&str>> = RefCell::new(None);
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
            let why = if progress.received_bytes() > LARGEST {
                Some("it is larger than 1 GiB")
            } else if Instant::now() > self.deadline {
                Some("it takes longer than five minutes")
            } else {
                None
            };
            *broken.borrow_mut() = why;
            why.is_none()
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
        match (fetched, broken.into_inner(), complaint) {
            (Err(_), Some(why), _) => Err(git2::Error::from_str(why)),
            (Err(_), None, Some(why)) => Err(git2::Error::from_str(&why)),
            (fetched, ..) => fetched,
        }
    }
}

/// The content of a file, without the end of its line.
fn secret(path: &Path) -> Result<String, GitError> {
    let bytes = files::read(path)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// Where a branch is kept.
fn reference(branch: &str) -> String {
    format!("refs/pleach/heads/{branch}")
}

/// The commit of a branch as it was last fetched.
fn local(repository: &Repository, branch: &str) -> Option<String> {
    let reference = repository.find_reference(&reference(branch)).ok()?;
    let commit = reference.peel_to_commit().ok()?;
    Some(commit.id().to_string())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_that_was_cleaned_up_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let source = Repository::init(folder.path()).unwrap();
        let ann = git2::Signature::now("Ann", "ann@example.org").unwrap();
        let tree = source.treebuilder(None).unwrap().write().unwrap();
        let tree = source.find_tree(tree).unwrap();
        let branch = Some("refs/heads/env/web");
        let commit = source.commit(branch, &ann, &ann, "start", &tree, &[]);
        let commit = commit.unwrap().to_string();
        let mut mirror = Mirror::new(Remote {
            url: folder.path().display().to_string(),
            auth: Auth::Anonymous,
            keys: None,
        });
        let first = mirror.fetch(|_| true).unwrap();
        #[expect(clippy::disallowed_methods, reason = "what only a test would do")]
        std::fs::remove_dir_all(first.reader.folder.path()).unwrap();
        assert!(first.reader.tree(&commit).is_err());
        let second = mirror.fetch(|_| true).unwrap();
        assert_eq!(second.heads["env/web"], commit);
        assert!(second.reader.tree(&commit).is_ok());
    }
}
