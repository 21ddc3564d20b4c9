//! One connection to a repository elsewhere: lists its branches, or downloads
//! references into a bare repository that is there.
//!
//! The order is data, so a process with limits can execute it. Such a process can be
//! killed: a server that never answers costs no thread of the controller.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use git2::{ErrorClass, Repository};
use serde::{Deserialize, Serialize};

use super::remote::{Credentials, Exceeded, Session, limit_silence};
use super::{GitError, said, without_credentials};
use crate::io::files;
use crate::io::sandbox::{self, SandboxError, Work};

/// Matches nothing: a fetch of it lists what there is and downloads nothing.
const NOTHING: &str = "+refs/pleach/nothing:refs/pleach/nothing";
/// The most that a list of branches may take, in bytes.
const LIST: u64 = 64 << 20;
/// Bytes that libgit2 writes at most before it reports them.
const AHEAD: u64 = 1 << 20;
/// How long a list of branches may take.
const LISTING: Duration = Duration::from_mins(1);

/// Executes orders: [`Fetch::execute`], or a process that does.
pub type Carrier<'a> = dyn Fn(&Fetch) -> Result<Received, FetchError> + 'a;

/// An order, with the credentials that it needs.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fetch {
    /// URL of the repository.
    url: String,
    /// Where libgit2 finds it: a URL or a folder.
    from: String,
    credentials: Credentials,
    /// The bare repository that is written to.
    folder: PathBuf,
    /// References to download. Without any, the branches are listed.
    refspecs: Vec<String>,
    /// Whether history is left out.
    shallow: bool,
    /// The most that is downloaded, in bytes: the pack with its index.
    largest: u64,
    time: Duration,
    /// Whether other work comes first.
    background: bool,
}

/// Result of an order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Received {
    /// Commits of all branches, where they were listed.
    pub(super) branches: BTreeMap<String, String>,
    /// The branch that the repository calls its default, where they were listed.
    pub(super) default_branch: Option<String>,
}

/// Kinds of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Failure {
    /// It may work another time.
    Passing,
    /// The server refuses the credentials.
    Refused,
    /// The download is larger than its limit, or unpacking it takes too much.
    TooLarge,
    /// The download takes longer than its limit.
    TooSlow,
}

/// Why an order was not executed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{said}")]
#[serde(rename_all = "camelCase")]
pub struct FetchError {
    /// Its kind.
    pub failure: Failure,
    /// The reason, in one line.
    pub said: String,
}

impl FetchError {
    /// A failure that may pass.
    pub fn passing(said: impl Into<String>) -> Self {
        Self {
            failure: Failure::Passing,
            said: said.into(),
        }
    }

    /// Whether the same download fails again.
    pub(super) fn is_beyond(&self) -> bool {
        match self.failure {
            Failure::TooLarge | Failure::TooSlow => true,
            Failure::Passing | Failure::Refused => false,
        }
    }

    /// The error of the repository of this URL.
    pub(super) fn of(self, url: &str) -> GitError {
        GitError::Fetch {
            url: without_credentials(url),
            said: self.said,
        }
    }
}

impl From<GitError> for FetchError {
    fn from(error: GitError) -> Self {
        Self::passing(super::with_causes(&error))
    }
}

/// A repository elsewhere, with credentials as they were read.
#[derive(Clone)]
pub(super) struct Peer {
    pub(super) url: String,
    pub(super) from: String,
    pub(super) credentials: Credentials,
}

/// What is downloaded.
pub(super) struct Download {
    pub(super) refspecs: Vec<String>,
    pub(super) shallow: bool,
    pub(super) largest: u64,
    pub(super) time: Duration,
    pub(super) background: bool,
}

impl Fetch {
    /// Orders a list of the branches.
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

    /// Orders a download.
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

    /// How long it may take.
    pub fn time(&self) -> Duration {
        self.time
    }

    /// Whether other work comes first.
    pub fn is_background(&self) -> bool {
        self.background
    }

    /// The size that no file that it writes may exceed, in bytes. A download stops before:
    /// it can say why.
    pub fn largest_file(&self) -> u64 {
        self.largest.saturating_add(AHEAD)
    }

    /// Restricts this process to what the order needs, for good: it may also read `read`, and
    /// write to `scratch`.
    pub fn confine(&self, read: &[PathBuf], scratch: &Path) -> Result<(), SandboxError> {
        let mut read = read.to_vec();
        read.extend(local_folders(Path::new(&self.from)));
        let read: Vec<&Path> = read.iter().map(PathBuf::as_path).collect();
        sandbox::confine(Work::Fetch {
            read: &read,
            write: &[&self.folder, scratch],
        })
    }

    /// Executes it in this process. Blocks, and takes as much memory as the pack needs.
    pub fn execute(&self) -> Result<Received, FetchError> {
        limit_silence();
        let passing = |error: git2::Error| FetchError::passing(said(&error));
        let repository = Repository::open_bare(&self.folder).map_err(passing)?;
        let mut remote = repository.remote_anonymous(&self.from).map_err(passing)?;
        let session = Session::open(
            &self.url,
            self.credentials.clone(),
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
                said: said(&error),
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

/// Folders of a repository on this machine, with those whose objects it borrows. None for the
/// URL of another machine.
fn local_folders(from: &Path) -> Vec<PathBuf> {
    if !from.is_absolute() {
        return Vec::new();
    }
    // Whatever cannot be opened here cannot be fetched from either, which is reported then.
    let common = Repository::open(from).map(|repository| repository.commondir().to_owned());
    let common = common.unwrap_or_else(|_| from.to_owned());
    let objects = common.join("objects");
    let mut folders = vec![from.to_owned(), common];
    let borrowed = objects.join("info/alternates");
    // Most repositories have no such file.
    let _none = files::each_line(&borrowed, |line| folders.push(objects.join(line)));
    folders
}
