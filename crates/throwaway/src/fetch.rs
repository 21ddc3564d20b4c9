//! Download of the official programs.
//!
//! Every program appears whole or not at all, and only from a file with its pinned checksum. What an
//! interrupted download has stays, and the next one continues with it.
#![expect(
    clippy::disallowed_methods,
    reason = "writes only inside the folder of the programs; FetchError names the path"
)]

use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::read::GzDecoder;
use http::header::RANGE;
use http::{HeaderMap, StatusCode};
use sha2::{Sha256, Sha512};

use crate::pins::Pin;

/// Time-out of a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Longest silence of a server.
const SILENCE: Duration = Duration::from_secs(30);
/// Longest download of one file.
const WHOLE: Duration = Duration::from_mins(30);
/// Number of redirects. Release files are often elsewhere.
const REDIRECTS: usize = 5;
/// Attempts for one file, each of which continues the previous one.
const ATTEMPTS: u32 = 3;
/// Longest file in bytes. The archive of Kubernetes has about 400 MB.
const LONGEST: u64 = 1 << 30;
/// Longest program in bytes.
const LONGEST_PROGRAM: u64 = 512 << 20;
/// Interval of the check for another download.
const CHECK: Duration = Duration::from_millis(200);

/// Progress of a download.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// Address of the file.
    pub url: &'a str,
    /// Number of bytes that are there.
    pub done: u64,
    /// Number of bytes of the file, if the server says so.
    pub total: Option<u64>,
}

/// Errors of a download.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// No programs are pinned for this machine.
    #[error("there are no official programs of the control plane for {0}")]
    Architecture(&'static str),
    /// The user has no cache.
    #[error("there is no folder for downloads: set HOME or XDG_CACHE_HOME")]
    NoCache,
    /// The server is unreachable, or the connection was lost.
    #[error("failed to download {url}")]
    Unreachable {
        /// The address.
        url: String,
        /// Cause.
        #[source]
        source: reqwest::Error,
    },
    /// The server answered with an error status.
    #[error("failed to download {url}: the server answered {status}")]
    Refused {
        /// The address.
        url: String,
        /// The status.
        status: StatusCode,
    },
    /// The file ended early.
    #[error("failed to download {url}: it ended after {done} of {total} bytes")]
    Cut {
        /// The address.
        url: String,
        /// Number of bytes that arrived.
        done: u64,
        /// Number of bytes of the file.
        total: u64,
    },
    /// The file is longer than allowed.
    #[error("{url} is too long; the file was removed")]
    TooLong {
        /// The address.
        url: String,
    },
    /// The file is another one than pinned.
    #[error("{url} differs from its pinned checksum; the file was removed")]
    Checksum {
        /// The address.
        url: String,
    },
    /// The archive lacks a program.
    #[error("{url} contains no program {program}")]
    Missing {
        /// The address.
        url: String,
        /// Name of the program.
        program: String,
    },
    /// A file could not be written or read.
    #[error("failed to write {}", path.display())]
    File {
        /// The path.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
}

impl FetchError {
    /// Returns whether another attempt can help.
    fn can_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Cut { .. } => true,
            Self::Refused { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            _ => false,
        }
    }
}

/// Downloads the programs that are missing in a folder.
///
/// Waits while another process downloads into the same folder. A mirror replaces scheme and host of
/// all addresses, and needs no https.
pub(super) async fn fetch(
    pins: &[Pin<'static>],
    folder: &Path,
    mirror: Option<&str>,
    progress: &mut (dyn FnMut(Progress<'_>) + Send),
) -> Result<(), FetchError> {
    fs::create_dir_all(folder).map_err(at(folder))?;
    let _lock = locked(&folder.join(".lock")).await?;
    let missing = pins.iter().filter(|pin| !has(pin, folder));
    for pin in missing {
        let file = folder.join(format!(".download-{}", &pin.sum[..16]));
        let url = pin.address(mirror);
        let client = client(mirror).map_err(unreachable(&url))?;
        let mut attempt = 1;
        while let Err(error) = download(&client, &url, &file, progress).await {
            if matches!(error, FetchError::TooLong { .. }) {
                fs::remove_file(&file).map_err(at(&file))?;
            }
            if attempt == ATTEMPTS || !error.can_pass() {
                return Err(error);
            }
            tracing::debug!(%error, attempt, "the download is continued");
            attempt += 1;
        }
        let (pin, folder) = (pin.clone(), folder.to_owned());
        let installed = tokio::task::spawn_blocking(move || install(&pin, &url, &file, &folder));
        installed.await.map_err(|error| FetchError::File {
            path: PathBuf::new(),
            source: io::Error::other(error),
        })??;
    }
    Ok(())
}

/// Returns whether the programs of a file are there.
fn has(pin: &Pin<'_>, folder: &Path) -> bool {
    pin.programs.iter().all(|program| {
        let sum = fs::read_to_string(sum_of(folder, program));
        folder.join(program).is_file() && sum.is_ok_and(|sum| sum.trim_end() == pin.sum)
    })
}

/// Returns the file with the checksum that a program was downloaded with.
fn sum_of(folder: &Path, program: &str) -> PathBuf {
    folder.join(format!("{program}.sha256"))
}

/// Locks a file until the returned handle is dropped.
async fn locked(path: &Path) -> Result<File, FetchError> {
    let file = File::create(path).map_err(at(path))?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(fs::TryLockError::WouldBlock) => tokio::time::sleep(CHECK).await,
            Err(fs::TryLockError::Error(source)) => return Err(at(path)(source)),
        }
    }
}

fn client(mirror: Option<&str>) -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder()
        .user_agent(concat!("pleach/", env!("CARGO_PKG_VERSION")))
        .https_only(mirror.is_none())
        .connect_timeout(CONNECT)
        .read_timeout(SILENCE)
        .timeout(WHOLE)
        .redirect(reqwest::redirect::Policy::limited(REDIRECTS))
        .build()
}

/// Downloads a file, and continues one that is there in part.
async fn download(
    client: &reqwest::Client,
    url: &str,
    path: &Path,
    progress: &mut (dyn FnMut(Progress<'_>) + Send),
) -> Result<(), FetchError> {
    let mut options = File::options();
    options.create(true).append(true);
    let mut file = options.open(path).map_err(at(path))?;
    let mut done = file.metadata().map_err(at(path))?.len();
    let mut request = client.get(url);
    if done > 0 {
        request = request.header(RANGE, format!("bytes={done}-"));
    }
    let mut response = request.send().await.map_err(unreachable(url))?;
    let status = response.status();
    if status == StatusCode::RANGE_NOT_SATISFIABLE {
        return Ok(()); // The whole file is there; its checksum decides.
    }
    if !status.is_success() {
        let url = url.to_owned();
        return Err(FetchError::Refused { url, status });
    }
    if status != StatusCode::PARTIAL_CONTENT || starts_elsewhere(response.headers(), done) {
        file.set_len(0).map_err(at(path))?;
        done = 0;
    }
    let total = response.content_length().map(|length| done + length);
    let too_long = || FetchError::TooLong {
        url: url.to_owned(),
    };
    if total.is_some_and(|total| total > LONGEST) {
        return Err(too_long());
    }
    while let Some(chunk) = response.chunk().await.map_err(unreachable(url))? {
        done += chunk.len() as u64;
        if done > LONGEST {
            return Err(too_long());
        }
        file.write_all(&chunk).map_err(at(path))?;
        progress(Progress { url, done, total });
    }
    match total {
        Some(total) if done < total => Err(FetchError::Cut {
            url: url.to_owned(),
            done,
            total,
        }),
        _ => Ok(()),
    }
}

/// Returns whether a part of a file starts elsewhere than requested.
fn starts_elsewhere(headers: &HeaderMap, requested: u64) -> bool {
    let range = headers.get(http::header::CONTENT_RANGE);
    let range = range.and_then(|it| it.to_str().ok());
    !range.is_some_and(|it| it.starts_with(&format!("bytes {requested}-")))
}

/// Checks a downloaded file and takes the programs from it.
fn install(pin: &Pin<'_>, url: &str, file: &Path, folder: &Path) -> Result<(), FetchError> {
    if !has_sum(file, pin.sum).map_err(at(file))? {
        fs::remove_file(file).map_err(at(file))?;
        let url = url.to_owned();
        return Err(FetchError::Checksum { url });
    }
    let mut missing = pin.programs.clone();
    if pin.is_archive() {
        let archive = File::open(file).map_err(at(file))?;
        let mut archive = tar::Archive::new(GzDecoder::new(io::BufReader::new(archive)));
        for entry in archive.entries().map_err(at(file))? {
            let entry = entry.map_err(at(file))?;
            let path = entry.path().map_err(at(file))?.into_owned();
            let name = path.file_name().and_then(|name| name.to_str());
            let found = missing.iter().position(|it| Some(*it) == name);
            if let Some(index) = found.filter(|_| entry.header().entry_type().is_file()) {
                let program = missing.swap_remove(index);
                write_program(entry, folder, program, pin.sum)?;
            }
            if missing.is_empty() {
                break;
            }
        }
    } else {
        for program in missing.drain(..) {
            let content = File::open(file).map_err(at(file))?;
            write_program(content, folder, program, pin.sum)?;
        }
    }
    fs::remove_file(file).map_err(at(file))?;
    match missing.first() {
        None => Ok(()),
        Some(program) => Err(FetchError::Missing {
            url: url.to_owned(),
            program: (*program).to_owned(),
        }),
    }
}

/// Writes a program. It appears whole, with its mode, and is marked with its checksum afterwards.
fn write_program(
    content: impl Read,
    folder: &Path,
    program: &str,
    sum: &str,
) -> Result<(), FetchError> {
    let (new, mark) = (
        folder.join(format!(".new-{program}")),
        sum_of(folder, program),
    );
    let write = || -> io::Result<()> {
        let mut file = File::create(&new)?;
        if io::copy(&mut content.take(LONGEST_PROGRAM + 1), &mut file)? > LONGEST_PROGRAM {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
        fs::write(&mark, "")?;
        fs::rename(&new, folder.join(program))?;
        fs::write(&mark, sum)
    };
    write().map_err(at(&folder.join(program)))
}

/// Returns whether a file has a SHA-256 or SHA-512.
fn has_sum(file: &Path, expected: &str) -> io::Result<bool> {
    let mut file = File::open(file)?;
    let found = if expected.len() == 128 {
        hex(&digest::<Sha512>(&mut file)?)
    } else {
        hex(&digest::<Sha256>(&mut file)?)
    };
    Ok(found == expected)
}

fn digest<D: sha2::Digest>(file: &mut File) -> io::Result<Vec<u8>> {
    let mut digest = D::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(digest.finalize().to_vec()),
            length => digest.update(&buffer[..length]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn at(path: &Path) -> impl Fn(io::Error) -> FetchError + '_ {
    |source| FetchError::File {
        path: path.to_owned(),
        source,
    }
}

fn unreachable(url: &str) -> impl Fn(reqwest::Error) -> FetchError + '_ {
    |source| FetchError::Unreachable {
        url: url.to_owned(),
        // The address is in the message already.
        source: source.without_url(),
    }
}

#[cfg(test)]
mod tests;
