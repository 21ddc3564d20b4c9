//! Packages of Helm charts: unpacking, and digests.
//!
//! Packages are untrusted. They are unpacked in memory, with limits on the number of files, their
//! size and the ratio of compression. Links, devices and paths that leave the chart are refused.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, Read as _};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use sha2::{Digest as _, Sha256};
use tar::{Archive, Builder, EntryType, Header};

use pleach_model::engines::EngineFiles;
use pleach_model::tree::{MOST_BYTES, MOST_ENTRIES};

/// Largest size of the unpacked files, as a multiple of the package.
const RATIO: usize = 100;
/// Unpacked size that every package is allowed, in bytes. Tiny archives are mostly padding.
const LEAST: usize = 1 << 20;
/// Maximum depth of packages within packages.
const DEEPEST: usize = 5;

/// Reason why a package cannot be unpacked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PackageError {
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

impl From<io::Error> for PackageError {
    fn from(error: io::Error) -> Self {
        Self::Format(error.to_string())
    }
}

/// Remaining limits of a chart with its subcharts.
struct Budget {
    entries: usize,
    bytes: usize,
}

/// Unpacks a package. Paths are relative to the chart. Packages of subcharts are unpacked, too.
pub fn unpack(package: &[u8]) -> Result<EngineFiles, PackageError> {
    let mut budget = Budget {
        entries: MOST_ENTRIES,
        bytes: MOST_BYTES,
    };
    let files = budget.unpack(package)?;
    budget.expand(files, 1)
}

/// Unpacks the packages of subcharts in the files of a chart.
pub fn expand(files: EngineFiles) -> Result<EngineFiles, PackageError> {
    let mut budget = Budget {
        entries: MOST_ENTRIES,
        bytes: MOST_BYTES,
    };
    budget.expand(files, 0)
}

impl Budget {
    fn expand(&mut self, files: EngineFiles, depth: usize) -> Result<EngineFiles, PackageError> {
        let mut expanded = EngineFiles::new();
        for (path, content) in files {
            let Some(folder) = subchart(&path) else {
                expanded.insert(path, content);
                continue;
            };
            let refuse = |why| PackageError::Entry {
                path: path.clone(),
                why,
            };
            if depth >= DEEPEST {
                return Err(refuse("is a package within too many others"));
            }
            let inner = self.unpack(&content)?;
            for (inner, content) in self.expand(inner, depth + 1)? {
                expanded.insert(format!("{folder}/{inner}"), content);
            }
        }
        Ok(expanded)
    }

    /// Unpacks one package, without those in it.
    fn unpack(&mut self, package: &[u8]) -> Result<EngineFiles, PackageError> {
        let most = package.len().saturating_mul(RATIO).max(LEAST);
        let limit = most.min(self.bytes);
        let too_much = || {
            PackageError::TooMuch(if limit == most {
                format!("{RATIO} times the size of the package")
            } else {
                format!("{} MiB of files", MOST_BYTES >> 20)
            })
        };
        let exceeded = Cell::new(false);
        let read = self.read(Limited {
            inner: MultiGzDecoder::new(package),
            left: limit,
            exceeded: &exceeded,
        });
        if exceeded.get() {
            return Err(too_much());
        }
        let files = read?;
        let used: usize = files.values().map(Bytes::len).sum();
        self.bytes = self.bytes.saturating_sub(used);
        Ok(files)
    }

    fn read(&mut self, archive: impl io::Read) -> Result<EngineFiles, PackageError> {
        let mut archive = Archive::new(archive);
        let mut files = EngineFiles::new();
        for entry in archive.entries()? {
            let mut entry = entry?;
            self.entries = self.entries.checked_sub(1).ok_or_else(|| {
                PackageError::TooMuch(format!("{MOST_ENTRIES} files and folders"))
            })?;
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let refuse = |why| PackageError::Entry {
                path: name.clone(),
                why,
            };
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

/// Returns the folder that replaces the package of a subchart.
fn subchart(path: &str) -> Option<&str> {
    let name = path.strip_prefix("charts/")?;
    let folder = path.strip_suffix(".tgz")?;
    (!name.contains('/')).then_some(folder)
}

/// Returns a path without its first folder, which has the name of the chart.
fn within(name: &str) -> Result<String, &'static str> {
    let name = name.strip_prefix("./").unwrap_or(name);
    let is_outside = |part: &str| matches!(part, "" | "." | "..") || part.contains(['\\', ':']);
    if name.split('/').any(is_outside) {
        return Err("is not a path within the chart");
    }
    let (_, path) = name
        .split_once('/')
        .ok_or("is outside of the folder of the chart")?;
    Ok(path.to_owned())
}

/// Returns the digest of a package.
pub fn package_digest(package: &[u8]) -> String {
    written(&Sha256::digest(package))
}

/// Returns the digest of a folder: that of a tar archive of its files, sorted by path, with mode
/// 0644 and without owner and time.
pub fn folder_digest(files: &BTreeMap<String, Bytes>) -> String {
    let mut archive = Builder::new(Hashed(Sha256::new()));
    for (path, content) in files {
        let mut header = Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        // Writing to a hash cannot fail, and a longer path gets an entry of its own.
        let _written = archive.append_data(&mut header, path, &**content);
    }
    let hashed = archive.into_inner().map(|Hashed(hash)| hash);
    written(&hashed.unwrap_or_default().finalize())
}

struct Hashed(Sha256);

impl io::Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn written(digest: &[u8]) -> String {
    use std::fmt::Write as _;

    let mut text = "sha256:".to_owned();
    for byte in digest {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// Builds a package from names, types and contents.
    fn package(entries: &[(&str, EntryType, &[u8])]) -> Vec<u8> {
        let mut archive = Builder::new(Vec::new());
        for (name, kind, content) in entries {
            let mut header = Header::new_gnu();
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            header.set_cksum();
            archive.append(&header, *content).unwrap();
        }
        gzip(&archive.into_inner().unwrap())
    }

    const FILE: EntryType = EntryType::Regular;

    #[test]
    fn a_package_is_unpacked_with_its_subcharts() {
        let inner = package(&[("sub/Chart.yaml", FILE, b"name: sub\n")]);
        let outer = package(&[
            ("web/", EntryType::Directory, b""),
            ("./web/Chart.yaml", FILE, b"name: web\n"),
            ("web/charts/sub-1.0.tgz", FILE, &inner),
            ("web/files/charts/data.tgz", FILE, b"data"),
        ]);
        let files = unpack(&outer).unwrap();
        let expected = [
            ("Chart.yaml", "name: web\n"),
            ("charts/sub-1.0/Chart.yaml", "name: sub\n"),
            ("files/charts/data.tgz", "data"),
        ];
        let expected = expected.map(|(path, text)| (path.to_owned(), Bytes::from(text)));
        assert_eq!(files, EngineFiles::from(expected));
    }

    #[test]
    fn a_package_that_leaves_its_limits_is_refused() {
        // A generator of numbers that cannot be compressed.
        let noise: Vec<u8> = (0..200_000)
            .scan(1_u64, |state, _| {
                *state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                Some(state.to_be_bytes()[0])
            })
            .collect();
        let mut many: Vec<(&str, EntryType, &[u8])> = vec![("web/noise", FILE, &noise)];
        many.resize(MOST_ENTRIES + 1, ("web/", EntryType::Directory, b""));
        let zeros = vec![0; 2 << 20];
        let half = vec![0; 700 << 10];
        let mut nested = package(&[("a/Chart.yaml", FILE, b"")]);
        for _ in 0..DEEPEST {
            nested = package(&[("a/charts/b.tgz", FILE, &nested)]);
        }
        for (name, package, expected) in [
            ("no archive", b"hello".to_vec(), "it is not a gzip archive"),
            (
                "a link",
                package(&[("web/a", EntryType::Symlink, b"")]),
                "`web/a` is neither a file nor a folder",
            ),
            (
                "a hard link",
                package(&[("web/a", EntryType::Link, b"")]),
                "`web/a` is neither a file nor a folder",
            ),
            (
                "a device",
                package(&[("web/a", EntryType::Block, b"")]),
                "`web/a` is neither a file nor a folder",
            ),
            (
                "a path to the outside",
                package(&[("web/../../a", FILE, b"")]),
                "`web/../../a` is not a path within the chart",
            ),
            (
                "an absolute path",
                package(&[("/web/a", FILE, b"")]),
                "`/web/a` is not a path within the chart",
            ),
            (
                "a path beside the chart",
                package(&[("a", FILE, b"")]),
                "`a` is outside of the folder of the chart",
            ),
            (
                "a file twice",
                package(&[("web/a", FILE, b"1"), ("web/a", FILE, b"2")]),
                "`web/a` is there twice",
            ),
            (
                "many entries",
                package(&many),
                "it has more than 10000 files",
            ),
            (
                "a compressed file",
                package(&[("web/a", FILE, &zeros)]),
                "it has more than 100 times the size of the package",
            ),
            (
                "compressed files",
                package(&[("web/a", FILE, &half), ("web/b", FILE, &half)]),
                "it has more than 100 times the size of the package",
            ),
            (
                "packages in packages",
                nested,
                "is a package within too many",
            ),
        ] {
            let error = unpack(&package).unwrap_err().to_string();
            assert!(error.contains(expected), "{name}: {error}");
        }
    }

    #[test]
    fn the_digest_of_a_folder_is_that_of_a_canonical_archive() {
        let long = "a/".repeat(80);
        let files = [("Chart.yaml", "name: a\n"), (&*format!("{long}b"), "")];
        let files = files.map(|(path, text)| (path.to_owned(), Bytes::from(text.to_owned())));
        let files = BTreeMap::from(files);
        let digest = folder_digest(&files);
        assert_eq!(
            digest,
            "sha256:ff227252c932079c49e6136d7632dfc649d70e64bb0db44e9bd401b6c5c468a9"
        );
        let mut other = files.clone();
        other.insert("b".to_owned(), Bytes::new());
        assert_ne!(folder_digest(&other), digest);
        assert_eq!(
            package_digest(b""),
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }
}
