//! Single connection to a remote repository: lists its branches, or downloads references into an
//! existing bare repository.
//!
//! A request is plain data, so that a process with limits can execute it. Such a process can be
//! killed, so a server that never answers blocks no thread of the controller.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use git2::{ErrorClass, Repository};
use serde::{Deserialize, Serialize};

use super::remote::{Credentials, Exceeded, Session, register_transports};
use super::{GitError, message, without_credentials};
use pleach_files::sandbox::{self, SandboxError, Work};

/// Refspec without a match. Fetching it lists the branches and downloads nothing.
const NOTHING: &str = "+refs/pleach/nothing:refs/pleach/nothing";
/// Maximum size of a branch list, in bytes.
pub(super) const LIST: u64 = 64 << 20;
/// Maximum number of bytes that libgit2 writes between two progress reports.
const AHEAD: u64 = 1 << 20;
/// Time-out of a branch list.
const LISTING: Duration = Duration::from_mins(1);

/// Executor of requests: [`Fetch::execute`], or a child process.
pub type Carrier<'a> = dyn Fn(&Fetch) -> Result<Received, FetchError> + 'a;

/// Fetch request with its credentials.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fetch {
    /// URL of the repository.
    url: String,
    /// URL or folder for libgit2.
    from: String,
    credentials: Credentials,
    /// Bare repository to write to.
    folder: PathBuf,
    /// References to download. If empty, lists the branches.
    refspecs: Vec<String>,
    /// Whether to omit the history.
    shallow: bool,
    /// Maximum download in bytes, for the pack and its index.
    largest: u64,
    time: Duration,
    /// Whether to run at low priority.
    background: bool,
}

/// Result of a fetch request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Received {
    /// Commits of all branches, if they were listed.
    pub(super) branches: BTreeMap<String, String>,
    /// Default branch, if the branches were listed.
    pub(super) default_branch: Option<String>,
}

/// Kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Failure {
    /// Temporary failure.
    Passing,
    /// The server rejected the credentials.
    Refused,
    /// The download, or its unpacked content, exceeds the limit.
    TooLarge,
    /// The download exceeded its time-out.
    TooSlow,
}

/// Failure of a fetch request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
#[serde(rename_all = "camelCase")]
pub struct FetchError {
    /// Kind of failure.
    pub failure: Failure,
    /// Reason, on one line.
    #[serde(rename = "said")]
    pub message: String,
}

impl FetchError {
    /// Creates a temporary failure.
    pub fn passing(message: impl Into<String>) -> Self {
        Self {
            failure: Failure::Passing,
            message: message.into(),
        }
    }

    /// Returns whether the same download would fail again.
    pub(super) fn is_beyond(&self) -> bool {
        match self.failure {
            Failure::TooLarge | Failure::TooSlow => true,
            Failure::Passing | Failure::Refused => false,
        }
    }

    /// Converts the failure to an error with this URL.
    pub(super) fn of(self, url: &str) -> GitError {
        GitError::Fetch {
            url: without_credentials(url),
            message: self.message,
        }
    }
}

impl From<GitError> for FetchError {
    fn from(error: GitError) -> Self {
        Self::passing(super::with_causes(&error))
    }
}

/// Remote repository with its credentials.
#[derive(Clone)]
pub(super) struct Peer {
    pub(super) url: String,
    pub(super) from: String,
    pub(super) credentials: Credentials,
}

/// Parameters of a download.
pub(super) struct Download {
    pub(super) refspecs: Vec<String>,
    pub(super) shallow: bool,
    pub(super) largest: u64,
    pub(super) time: Duration,
    pub(super) background: bool,
}

impl Fetch {
    /// Creates a request that lists the branches.
    pub(super) fn list(peer: Peer, folder: PathBuf, time: Duration) -> Self {
        let nothing = Download {
            refspecs: Vec::new(),
            shallow: false,
            largest: LIST,
            time: time.min(LISTING),
            background: false,
        };
        Self::download(peer, folder, nothing)
    }

    /// Creates a download request.
    pub(super) fn download(peer: Peer, folder: PathBuf, download: Download) -> Self {
        let Peer {
            url,
            from,
            credentials,
        } = peer;
        let Download {
            refspecs,
            shallow,
            largest,
            time,
            background,
        } = download;
        Self {
            url,
            from,
            credentials,
            folder,
            refspecs,
            shallow,
            largest,
            time,
            background,
        }
    }

    /// Returns the time-out.
    pub fn time(&self) -> Duration {
        self.time
    }

    /// Returns whether to run at low priority.
    pub fn is_background(&self) -> bool {
        self.background
    }

    /// Returns the maximum size of a written file, in bytes. A download stops earlier, with an
    /// error.
    pub fn largest_file(&self) -> u64 {
        self.largest.saturating_add(AHEAD)
    }

    /// Permanently restricts this process to what the request needs. Additionally allows to read
    /// `read` and to write `scratch`.
    pub fn confine(&self, read: &[PathBuf], scratch: &Path) -> Result<(), SandboxError> {
        let mut read = read.to_vec();
        read.extend(local_folders(Path::new(&self.from)));
        let read: Vec<&Path> = read.iter().map(PathBuf::as_path).collect();
        sandbox::confine(Work::Fetch {
            read: &read,
            write: &[&self.folder, scratch],
        })
    }

    /// Executes the request in this process. Blocks, and needs memory in proportion to the pack.
    pub fn execute(&self) -> Result<Received, FetchError> {
        self.execute_trusting(None)
    }

    /// Executes the request like [`Fetch::execute`]. `authorities` are CA certificates in PEM for
    /// https, besides those of the machine.
    pub fn execute_trusting(&self, authorities: Option<&[u8]>) -> Result<Received, FetchError> {
        register_transports();
        let passing = |error: git2::Error| FetchError::passing(message(&error));
        let repository = Repository::open_bare(&self.folder).map_err(passing)?;
        let mut remote = repository.remote_anonymous(&self.from).map_err(passing)?;
        let session = Session::open(
            &self.url,
            self.credentials.clone(),
            authorities,
            (self.largest, self.time),
        )?;
        let is_list = self.refspecs.is_empty();
        let nothing = [NOTHING.to_owned()];
        let refspecs = if is_list {
            &nothing
        } else {
            &self.refspecs[..]
        };
        if let Err(error) = session.fetch(&mut remote, refspecs, self.shallow) {
            let failure = match session.exceeded() {
                Some(Exceeded::Size(_)) => Failure::TooLarge,
                Some(Exceeded::Time(_)) => Failure::TooSlow,
                None if error.class() == ErrorClass::NoMemory => Failure::TooLarge,
                None if session.is_refused() => Failure::Refused,
                None => Failure::Passing,
            };
            return Err(FetchError {
                failure,
                message: message(&error),
            });
        }
        if !is_list {
            return Ok(Received::default());
        }
        let heads = remote.list().map_err(passing)?;
        let branches = heads.iter().filter_map(|head| {
            let branch = head.name().strip_prefix("refs/heads/")?;
            Some((branch.to_owned(), head.oid().to_string()))
        });
        let branches = branches.collect();
        let default_branch = remote.default_branch().ok().and_then(|name| {
            let name = name.as_str().ok()?.strip_prefix("refs/heads/")?;
            Some(name.to_owned())
        });
        Ok(Received {
            branches,
            default_branch,
        })
    }
}

/// Returns the folders of a local repository, including its alternate object stores. Empty for a
/// remote URL.
fn local_folders(from: &Path) -> Vec<PathBuf> {
    if !from.is_absolute() {
        return Vec::new();
    }
    // If opening fails here, the fetch fails too and reports it.
    let common = Repository::open(from).map(|repository| repository.commondir().to_owned());
    let common = common.unwrap_or_else(|_| from.to_owned());
    let objects = common.join("objects");
    let mut folders = vec![from.to_owned(), common];
    let borrowed = objects.join("info/alternates");
    // Most repositories have no such file.
    let _none = pleach_files::each_line(&borrowed, |line| folders.push(objects.join(line)));
    folders
}
