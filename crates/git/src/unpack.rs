//! Unpacking of one fetch by libgit2. It parses data of a stranger, so it runs in a process without
//! credentials, network and other programs: `pleach worker unpack`. That process reaches the server
//! through frames that it exchanges with the process with the connection.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use git2::{AutotagOption, ErrorClass, FetchOptions, RemoteCallbacks, Repository};
use serde::{Deserialize, Serialize};

use super::channel::{self, Channel};
use super::fetch::{Failure, FetchError, Received};
use super::frames::{self, FrameError, FramedChannel, Kind};
use super::message;
use super::remote::{too_large, too_slow};
use pleach_files::sandbox::{self, SandboxError, Work};

/// Refspec without a match. Fetching it lists the branches and downloads nothing.
const NOTHING: &str = "+refs/pleach/nothing:refs/pleach/nothing";
/// Maximum number of bytes that libgit2 writes between two progress reports.
const AHEAD: u64 = 1 << 20;
/// Bytes per object in the index of a pack.
const INDEXED: u64 = 36;

/// Part of a fetch request without the connection. It has no credentials.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unpack {
    /// URL or folder for libgit2.
    pub(super) from: String,
    /// Bare repository to write to.
    pub(super) folder: PathBuf,
    /// References to download. If empty, lists the branches.
    pub(super) refspecs: Vec<String>,
    /// Whether to omit the history.
    pub(super) shallow: bool,
    /// Maximum download in bytes, for the pack and its index.
    pub(super) largest: u64,
    pub(super) time: Duration,
}

/// Failure of the process that unpacks.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The process with the connection ended, or one of the two broke their protocol.
    #[error("failed to communicate with the process that has the connection")]
    Frames(#[from] FrameError),
    /// The request or the answer is not valid JSON.
    #[error("failed to read the request or to write the response")]
    Json(#[from] serde_json::Error),
}

impl Unpack {
    /// Reads the request from the process with the connection.
    pub fn receive(from: &mut impl Read) -> Result<Self, UnpackError> {
        let frame = frames::read(from)?;
        if frame.kind != Kind::Order {
            return Err(FrameError::unexpected(frame.kind).into());
        }
        Ok(serde_json::from_slice(&frame.payload)?)
    }

    /// Sends the request to the process that unpacks.
    pub(super) fn send(&self, to: &mut impl Write) -> Result<(), FrameError> {
        let order = serde_json::to_vec(self).map_err(std::io::Error::other)?;
        frames::write(to, Kind::Order, &order)
    }

    /// Returns the maximum size of a written file, in bytes. A download stops earlier, with an
    /// error.
    pub fn largest_file(&self) -> u64 {
        self.largest.saturating_add(AHEAD)
    }

    /// Permanently restricts this process to what the request needs. Additionally allows to read
    /// `read`.
    pub fn confine(&self, read: &[PathBuf]) -> Result<(), SandboxError> {
        let mut read = read.to_vec();
        read.extend(local_folders(Path::new(&self.from)));
        let read: Vec<&Path> = read.iter().map(PathBuf::as_path).collect();
        sandbox::confine(Work::Unpack {
            read: &read,
            write: &[&self.folder],
        })
    }

    /// Executes the request with the server at the other end of two pipes.
    pub fn execute_over(
        &self,
        from: impl Read + Send + 'static,
        to: impl Write + Send + 'static,
    ) -> Result<Received, FetchError> {
        self.execute(Some(Box::new(FramedChannel::new(from, to))))
    }

    /// Sends the result to the process with the connection.
    pub fn answer(
        result: &Result<Received, FetchError>,
        to: &mut impl Write,
    ) -> Result<(), UnpackError> {
        let answer = serde_json::to_vec(result)?;
        Ok(frames::write(to, Kind::Answer, &answer)?)
    }

    /// Executes the request with a connection, if it needs one. Blocks, and needs memory in
    /// proportion to the pack.
    pub(super) fn execute(
        &self,
        channel: Option<Box<dyn Channel>>,
    ) -> Result<Received, FetchError> {
        channel::with(channel, || self.fetch())
    }

    fn fetch(&self) -> Result<Received, FetchError> {
        let passing = |error: git2::Error| FetchError::passing(message(&error));
        let repository = Repository::open_bare(&self.folder).map_err(passing)?;
        let mut remote = repository.remote_anonymous(&self.from).map_err(passing)?;
        self.download(&mut remote)?;
        if !self.refspecs.is_empty() {
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

    /// Downloads the references within the limits.
    fn download(&self, remote: &mut git2::Remote<'_>) -> Result<(), FetchError> {
        let deadline = Instant::now() + self.time;
        let exceeded = RefCell::new(None);
        let mut callbacks = RemoteCallbacks::new();
        callbacks.transfer_progress(|progress| {
            let index = INDEXED * progress.total_objects() as u64;
            let found = if progress.received_bytes() as u64 + index > self.largest {
                Some(too_large(self.largest))
            } else if Instant::now() > deadline {
                Some(too_slow(self.time))
            } else {
                None
            };
            let is_within = found.is_none();
            *exceeded.borrow_mut() = found;
            is_within
        });
        let mut options = FetchOptions::new();
        options
            .download_tags(AutotagOption::None)
            .update_fetchhead(false)
            .remote_callbacks(callbacks);
        if self.shallow {
            options.depth(1);
        }
        let nothing = [NOTHING.to_owned()];
        let refspecs = if self.refspecs.is_empty() {
            &nothing
        } else {
            &self.refspecs[..]
        };
        let fetched = remote.fetch(refspecs, Some(&mut options), None);
        drop(options);
        fetched.map_err(|error| match exceeded.take() {
            // Our reason for the abort is more specific than libgit2's error.
            Some(exceeded) => exceeded.into(),
            None if error.class() == ErrorClass::NoMemory => FetchError {
                failure: Failure::TooLarge,
                message: message(&error),
            },
            None => FetchError::passing(message(&error)),
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
