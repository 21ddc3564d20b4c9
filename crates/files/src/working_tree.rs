//! Files of a repository in its working tree.

use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use pleach_model::tree::{FileTree, TreeEntry, TreeError, TreeKind};

use super::{MAX_FILE_BYTES, check_content, check_size, is_inside, join, missing, unreadable};

/// Folder as a [`FileTree`].
///
/// Links are listed, but never followed in any part of a path. `.git` is not listed. A nested git
/// repository counts as a submodule.
#[derive(Debug, Clone)]
pub struct WorkingTree {
    root: PathBuf,
}

impl WorkingTree {
    /// Creates the tree of a root folder.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the path on disk. Fails if a part of the path is a link.
    #[expect(clippy::disallowed_methods, reason = "the home of std::fs")]
    fn place(&self, path: &str) -> Result<PathBuf, TreeError> {
        if !is_inside(path) {
            return Err(unreadable(path, "it is not a path within the repository"));
        }
        let mut place = self.root.clone();
        let mut seen = String::new();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            place.push(part);
            seen = join(&seen, part);
            let metadata = std::fs::symlink_metadata(&place).map_err(|e| failed(path, &e))?;
            if metadata.is_symlink() {
                let reason = if seen == path {
                    "it is a symbolic link, and links are not followed".to_owned()
                } else {
                    format!("{seen} is a symbolic link, and links are not followed")
                };
                return Err(unreadable(path, reason));
            }
        }
        Ok(place)
    }
}

impl FileTree for WorkingTree {
    #[expect(clippy::disallowed_methods, reason = "the home of std::fs")]
    fn list(&self, folder: &str) -> Result<Vec<TreeEntry>, TreeError> {
        let place = self.place(folder)?;
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(&place).map_err(|error| failed(folder, &error))? {
            let entry = entry.map_err(|error| failed(folder, &error))?;
            let name = entry.file_name().into_string().map_err(|name| {
                let name = join(folder, &name.to_string_lossy());
                unreadable(&name, "its name is not UTF-8")
            })?;
            if name == ".git" {
                continue;
            }
            let kind = entry
                .file_type()
                .map_err(|error| failed(&join(folder, &name), &error))?;
            let kind = if kind.is_symlink() {
                TreeKind::Link
            } else if kind.is_dir() {
                if is_repository(&entry.path()) {
                    TreeKind::Submodule
                } else {
                    TreeKind::Folder
                }
            } else {
                // Also for pipes and devices; `read` refuses them.
                TreeKind::File
            };
            entries.push(TreeEntry { name, kind });
        }
        entries.sort();
        Ok(entries)
    }

    fn read(&self, file: &str) -> Result<Bytes, TreeError> {
        let place = self.place(file)?;
        // O_NOFOLLOW closes the gap after the check in `place`. O_NONBLOCK prevents blocking on a
        // pipe without a writer.
        let opened = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(&place)
            .map_err(|error| failed(file, &error))?;
        let metadata = opened.metadata().map_err(|error| failed(file, &error))?;
        if metadata.is_dir() {
            return Err(unreadable(file, "it is a folder"));
        }
        if !metadata.is_file() {
            return Err(unreadable(file, "it is neither a file nor a folder"));
        }
        check_size(file, metadata.len())?;
        // One more byte detects a file that has grown.
        let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0) + 1);
        // Enforce the limit even if the file grows during the read.
        opened
            .take(MAX_FILE_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| failed(file, &error))?;
        check_size(file, bytes.len() as u64)?;
        check_content(file, &bytes)?;
        Ok(bytes.into())
    }
}

#[expect(clippy::disallowed_methods, reason = "the home of std::fs")]
fn is_repository(folder: &Path) -> bool {
    std::fs::symlink_metadata(folder.join(".git")).is_ok()
}

fn failed(path: &str, error: &io::Error) -> TreeError {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => missing(path),
        _ => unreadable(path, error.to_string()),
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "what only a test would make")]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn check(tree: &WorkingTree, path: &str, expected: &str) {
        let error = tree.read(path).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn files_and_folders_are_listed_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("b/.git")).unwrap();
        fs::create_dir_all(root.join(".git")).unwrap();
        fs::create_dir_all(root.join("c")).unwrap();
        fs::write(root.join("a.yaml"), "a").unwrap();
        symlink("a.yaml", root.join("d")).unwrap();
        let entries = WorkingTree::new(root).list("").unwrap();
        let entries: Vec<_> = entries.iter().map(|e| (e.name.as_str(), e.kind)).collect();
        assert_eq!(
            entries,
            [
                ("a.yaml", TreeKind::File),
                ("b", TreeKind::Submodule),
                ("c", TreeKind::Folder),
                ("d", TreeKind::Link)
            ]
        );
        assert_eq!(&WorkingTree::new(root).read("a.yaml").unwrap()[..], b"a");
    }

    #[test]
    fn links_are_followed_nowhere_on_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "s").unwrap();
        symlink(outside.path(), folder.path().join("out")).unwrap();
        symlink(outside.path().join("secret"), folder.path().join("file")).unwrap();
        let tree = WorkingTree::new(folder.path());
        check(
            &tree,
            "file",
            "failed to read file: it is a symbolic link, and links are not followed",
        );
        check(
            &tree,
            "out/secret",
            "failed to read out/secret: out is a symbolic link, and links are not followed",
        );
        assert!(tree.list("out").is_err());
    }

    #[test]
    fn the_root_is_not_left() {
        let folder = tempfile::tempdir().unwrap();
        let tree = WorkingTree::new(folder.path());
        for path in ["../x", "/etc/hostname", "a/../../x", "a//b"] {
            check(
                &tree,
                path,
                &format!("failed to read {path}: it is not a path within the repository"),
            );
        }
    }

    #[test]
    fn special_files_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("folder")).unwrap();
        let made = std::process::Command::new("mkfifo")
            .arg(folder.path().join("pipe"))
            .status()
            .unwrap();
        assert!(made.success());
        let tree = WorkingTree::new(folder.path());
        check(
            &tree,
            "pipe",
            "failed to read pipe: it is neither a file nor a folder",
        );
        check(&tree, "folder", "failed to read folder: it is a folder");
        check(&tree, "nothing", "nothing does not exist");
        check(&tree, "folder/nothing", "folder/nothing does not exist");
    }

    #[test]
    fn large_files_are_refused_before_they_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = fs::File::create(folder.path().join("large.yaml")).unwrap();
        file.set_len(MAX_FILE_BYTES + 1).unwrap();
        check(
            &WorkingTree::new(folder.path()),
            "large.yaml",
            "failed to read large.yaml: it has 16777217 bytes, and at most 16 MiB are read",
        );
    }

    #[test]
    fn pointers_of_lfs_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
        fs::write(folder.path().join("a.yaml"), pointer).unwrap();
        let error = WorkingTree::new(folder.path()).read("a.yaml").unwrap_err();
        assert!(error.to_string().contains("git LFS pointer"), "{error}");
    }
}
