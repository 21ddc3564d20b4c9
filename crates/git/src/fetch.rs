//! Single connection to a remote repository: lists its branches, or downloads references into an
//! existing bare repository.
//!
//! A request is plain data, so that processes with limits can execute it. They can be killed, so a
//! server that never answers blocks no thread of the controller. One process has the connection
//! with the credentials and transfers bytes; another one [unpacks](super::unpack) them.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Child;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::frames::{self, FrameError};
use super::program::{listen, one_line};
use super::remote::{Credentials, Session};
use super::unpack::Unpack;
use super::{GitError, readable, without_credentials};

/// Maximum size of a branch list, in bytes.
pub(super) const LIST: u64 = 64 << 20;
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
    credentials: Credentials,
    #[serde(flatten)]
    unpack: Unpack,
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
            credentials,
            unpack: Unpack {
                from,
                folder,
                refspecs,
                shallow,
                largest,
                time,
            },
            background,
        }
    }

    /// Returns the time-out.
    pub fn time(&self) -> Duration {
        self.unpack.time
    }

    /// Returns whether to run at low priority.
    pub fn is_background(&self) -> bool {
        self.background
    }

    /// Executes the request in this process. Blocks, and needs memory in proportion to the pack.
    pub fn execute(&self) -> Result<Received, FetchError> {
        self.execute_trusting(None)
    }

    /// Executes the request like [`Fetch::execute`]. `authorities` are CA certificates in PEM for
    /// https, besides those of the machine.
    pub fn execute_trusting(&self, authorities: Option<&[u8]>) -> Result<Received, FetchError> {
        let session = self.session(authorities)?;
        let received = self.unpack.execute(session.channel(&self.url));
        received.map_err(|error| session.explain(error))
    }

    /// Executes the request with another process that unpacks. It was started with pipes as its
    /// input and output, and gets no credentials. Blocks.
    pub fn execute_with(&self, mut unpacker: Child) -> Result<Received, FetchError> {
        let errors = unpacker.stderr.take().map(listen);
        let session = self.session(None)?;
        let pipes = (unpacker.stdin.take(), unpacker.stdout.take());
        let (Some(mut to), Some(mut from)) = pipes else {
            return Err(FetchError::passing("the unpacking process has no pipes"));
        };
        let sent = self.unpack.send(&mut to);
        let served = sent.and_then(|()| {
            let channel = session.channel(&self.url);
            frames::serve(&mut from, &mut to, channel)
        });
        // It can wait for the end of its input.
        drop(to);
        let answer = match served {
            Ok(answer) => answer,
            Err(FrameError::Ended) => return Err(crash(unpacker, errors)),
            Err(error) => {
                let why = format!("the unpacking process sent an invalid request: {error}");
                return Err(FetchError::passing(why));
            }
        };
        // From now on, it writes no files.
        drop(unpacker.wait());
        let received = serde_json::from_slice(&answer).unwrap_or_else(|_| {
            let why = "the unpacking process sent an invalid result";
            Err(FetchError::passing(why))
        });
        received.map_err(|error: FetchError| {
            session.explain(FetchError {
                message: readable(&error.message),
                ..error
            })
        })
    }

    fn session(&self, authorities: Option<&[u8]>) -> Result<Session, FetchError> {
        let limits = (self.unpack.largest, self.unpack.time);
        Session::open(&self.url, self.credentials.clone(), authorities, limits)
    }
}

/// Describes the end of a process that sent no result.
fn crash(mut unpacker: Child, errors: Option<JoinHandle<Vec<u8>>>) -> FetchError {
    let status = match unpacker.wait() {
        Ok(status) => status,
        Err(error) => return FetchError::passing(error.to_string()),
    };
    let errors = errors.and_then(|errors| errors.join().ok());
    let errors = String::from_utf8_lossy(&errors.unwrap_or_default()).into_owned();
    let last = errors.lines().rev().find(|line| !line.trim().is_empty());
    let last = last.map(|line| format!(": {}", one_line(line)));
    let last = last.unwrap_or_default();
    if status.signal().is_none() {
        return FetchError::passing(format!("the unpacking process crashed ({status}){last}"));
    }
    FetchError {
        failure: Failure::TooLarge,
        message: format!(
            "the unpacking process was killed ({status}): unpacking exceeds its limits{last}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_that_unpacks_gets_no_credentials() {
        let order = serde_json::json!({
            "url": "https://git.example.org/fleet",
            "from": "https://git.example.org/fleet",
            "credentials": {"authorization": "Bearer t0ken"},
            "folder": "/srv/copy",
            "refspecs": ["+refs/heads/main:refs/pleach/heads/main"],
            "shallow": true,
            "largest": 7,
            "time": {"secs": 60, "nanos": 0},
            "background": true,
        });
        let fetch: Fetch = serde_json::from_value(order.clone()).unwrap();
        assert_eq!(serde_json::to_value(&fetch).unwrap(), order);
        let mut sent = Vec::new();
        fetch.unpack.send(&mut sent).unwrap();
        assert!(!String::from_utf8_lossy(&sent).contains("t0ken"));
        let received = Unpack::receive(&mut &sent[..]).unwrap();
        assert_eq!(received.refspecs, fetch.unpack.refspecs);
        assert_eq!(received.largest_file(), 7 + (1 << 20));
    }
}
