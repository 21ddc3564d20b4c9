//! Packages of Helm charts: unpacking, and digests.
//!
//! Packages are untrusted. They are unpacked with the limits of [`pleach_model::archive`], and paths
//! that leave the chart are refused.

use std::collections::BTreeMap;
use std::io;

use bytes::Bytes;
use pleach_model::archive::{ArchiveError, Budget, write};
use pleach_model::engines::EngineFiles;
use sha2::{Digest as _, Sha256};

/// Maximum depth of packages within packages.
const DEEPEST: usize = 5;

/// Unpacks a package. Paths are relative to the chart. Packages of subcharts are unpacked, too.
pub fn unpack(package: &[u8]) -> Result<EngineFiles, ArchiveError> {
    let mut budget = Budget::default();
    let files = budget.unpack(package, within)?;
    expand_within(&mut budget, files, 1)
}

/// Unpacks the packages of subcharts in the files of a chart.
pub fn expand(files: EngineFiles) -> Result<EngineFiles, ArchiveError> {
    expand_within(&mut Budget::default(), files, 0)
}

fn expand_within(
    budget: &mut Budget,
    files: EngineFiles,
    depth: usize,
) -> Result<EngineFiles, ArchiveError> {
    let mut expanded = EngineFiles::new();
    for (path, content) in files {
        let Some(folder) = subchart(&path) else {
            expanded.insert(path, content);
            continue;
        };
        if depth >= DEEPEST {
            return Err(ArchiveError::entry(
                &path,
                "is a package within too many others",
            ));
        }
        let inner = budget.unpack(&content, within)?;
        for (inner, content) in expand_within(budget, inner, depth + 1)? {
            expanded.insert(format!("{folder}/{inner}"), content);
        }
    }
    Ok(expanded)
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
    let mut hash = Hashed(Sha256::new());
    // Writing to a hash cannot fail.
    let _written = write(files, &mut hash);
    written(&hash.0.finalize())
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
    use pleach_model::tree::MOST_ENTRIES;
    use tar::{Builder, EntryType, Header};

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
