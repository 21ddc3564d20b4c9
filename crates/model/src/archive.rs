//! Archives of files: tar with gzip, as packages of charts and artifacts have it.
//!
//! Archives are untrusted. They are unpacked in memory, with limits on the number of files, their
//! size and the ratio of compression. Links and devices are refused.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::io::Read as _;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use tar::{Archive, Builder, EntryType, Header};

use crate::tree::{MOST_BYTES, MOST_ENTRIES};

/// Largest size of the unpacked files, as a multiple of the package.
const RATIO: usize = 100;
/// Unpacked size that every package is allowed, in bytes. Tiny archives are mostly padding.
const LEAST: usize = 1 << 20;

/// Maximum length of a name in messages, in characters.
const LONGEST_NAME: usize = 200;

/// Reason why an archive cannot be unpacked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    /// The package is no compressed archive.
    #[error("it is not a gzip archive of tar: {0}")]
    Format(String),
    /// A limit is exceeded.
    #[error("it has more than {0}")]
    TooMuch(String),
    /// An entry is not allowed.
    #[error("`{path}` {why}")]
    Entry {
        /// Path within the package.
        path: String,
        /// Reason, as a clause after the path.
        why: &'static str,
    },
}

impl ArchiveError {
    /// Refuses an entry. Its name is foreign text, so the message has a short one without control
    /// characters.
    pub fn entry(name: &str, why: &'static str) -> Self {
        let name = name.chars().filter(|char| !char.is_control());
        Self::Entry {
            path: name.take(LONGEST_NAME).collect(),
            why,
        }
    }
}

impl From<io::Error> for ArchiveError {
    fn from(error: io::Error) -> Self {
        Self::Format(error.to_string())
    }
}

/// Remaining limits of archives that belong together.
#[derive(Debug, Clone)]
pub struct Budget {
    entries: usize,
    bytes: usize,
}

impl Default for Budget {
    /// Returns the limits of one folder of a repository.
    fn default() -> Self {
        Self {
            entries: MOST_ENTRIES,
            bytes: MOST_BYTES,
        }
    }
}

impl Budget {
    /// Unpacks one archive, without archives in it. `within` maps the name of an entry to its path,
    /// or returns a reason to refuse it, as a clause after the name.
    pub fn unpack(
        &mut self,
        package: &[u8],
        within: impl Fn(&str) -> Result<String, &'static str>,
    ) -> Result<BTreeMap<String, Bytes>, ArchiveError> {
        let most = package.len().saturating_mul(RATIO).max(LEAST);
        let limit = most.min(self.bytes);
        let too_much = || {
            ArchiveError::TooMuch(if limit == most {
                format!("{RATIO} times the size of the package")
            } else {
                format!("{} MiB of files", MOST_BYTES >> 20)
            })
        };
        let exceeded = Cell::new(false);
        let limited = Limited {
            inner: MultiGzDecoder::new(package),
            left: limit,
            exceeded: &exceeded,
        };
        let read = self.read(limited, within);
        if exceeded.get() {
            return Err(too_much());
        }
        let files = read?;
        let used: usize = files.values().map(Bytes::len).sum();
        self.bytes = self.bytes.saturating_sub(used);
        Ok(files)
    }

    fn read(
        &mut self,
        archive: impl io::Read,
        within: impl Fn(&str) -> Result<String, &'static str>,
    ) -> Result<BTreeMap<String, Bytes>, ArchiveError> {
        let mut archive = Archive::new(archive);
        let mut files = BTreeMap::new();
        for entry in archive.entries()? {
            let mut entry = entry?;
            self.entries = self.entries.checked_sub(1).ok_or_else(|| {
                ArchiveError::TooMuch(format!("{MOST_ENTRIES} files and folders"))
            })?;
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let refuse = |why| ArchiveError::entry(&name, why);
            match entry.header().entry_type() {
                EntryType::Regular | EntryType::Continuous => {}
                EntryType::Directory | EntryType::XGlobalHeader => continue,
                _ => return Err(refuse("is neither a file nor a folder")),
            }
            let path = within(&name).map_err(refuse)?;
            let mut content = Vec::new();
            entry.read_to_end(&mut content)?;
            if files.insert(path, content.into()).is_some() {
                return Err(refuse("is there twice"));
            }
        }
        Ok(files)
    }
}

/// Reader that fails beyond a number of bytes.
struct Limited<'a, R> {
    inner: R,
    left: usize,
    exceeded: &'a Cell<bool>,
}

impl<R: io::Read> io::Read for Limited<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let Some(left) = self.left.checked_sub(read) else {
            self.exceeded.set(true);
            return Err(io::ErrorKind::FileTooLarge.into());
        };
        self.left = left;
        Ok(read)
    }
}

/// Writes files as a tar archive, sorted by path, with mode 0644 and without owner and time. Equal
/// files give equal bytes.
pub fn write(files: &BTreeMap<String, Bytes>, to: impl io::Write) -> io::Result<()> {
    let mut archive = Builder::new(to);
    for (path, content) in files {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        // A longer path gets an entry of its own.
        archive.append_data(&mut header, path, &**content)?;
    }
    archive.finish()
}
