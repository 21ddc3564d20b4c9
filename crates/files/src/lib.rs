//! Files and folders on disk. Only this module uses `std::fs`.
//!
//! Every error names its path. Writes are atomic: a reader or an interrupted run leaves the old or
//! the new content, never a part. This module does not interpret the files.

pub mod age_keys;
pub mod bounds;
pub mod sandbox;
mod temporary;
mod working_tree;

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use pleach_model::tree::{FileTree as _, TreeEntry, TreeError, TreeKind};
use tempfile::{Builder, NamedTempFile, TempDir};

pub use temporary::{TemporaryFolder, remove_abandoned, temporary, temporary_folder};
pub use working_tree::WorkingTree;

/// Maximum size of a file of a repository, in bytes.
pub const MAX_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// Prefix of the names of incomplete files.
const STAGING: &str = ".pleach-tmp-";

/// Errors of file operations. Each names the path.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// A file or folder could not be read.
    #[error("failed to read {}", path.display())]
    Read {
        /// Path that was read.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// A file or folder could not be written.
    #[error("failed to write {}", path.display())]
    Write {
        /// Path that was written.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The path already exists, and pleach must not replace it.
    #[error("{} exists already", path.display())]
    Exists {
        /// Existing path.
        path: PathBuf,
    },
    /// The path would be outside of its folder.
    #[error("`{path}` is not a path within a folder")]
    Outside {
        /// The path, as given.
        path: String,
    },
}

impl FileError {
    fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::Read { path, source }
    }

    fn write(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::Write { path, source }
    }
}

/// Desired content of a folder: content by path, with `/` as separator.
pub type Files = BTreeMap<String, FileContent>;

/// Content of a file to write.
#[derive(Clone, PartialEq, Eq)]
pub struct FileContent {
    bytes: Bytes,
    private: bool,
}

impl FileContent {
    /// Creates content with permissions limited only by the umask.
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self {
            bytes: bytes.into(),
            private: false,
        }
    }

    /// Creates secret content that only the owner can read.
    pub fn private(bytes: impl Into<Bytes>) -> Self {
        Self {
            bytes: bytes.into(),
            private: true,
        }
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    fn permissions(&self) -> std::fs::Permissions {
        // The umask applies in both cases.
        std::fs::Permissions::from_mode(if self.private { 0o600 } else { 0o666 })
    }
}

impl std::fmt::Debug for FileContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never show the bytes, which can be secret.
        f.debug_struct("FileContent")
            .field("length", &self.bytes.len())
            .field("private", &self.private)
            .finish()
    }
}

/// Reads a whole file at any path. Follows links.
#[expect(clippy::disallowed_methods, reason = "the home of std::fs")]
pub fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    std::fs::read(path).map_err(FileError::read(path))
}

/// Reads the first bytes of a file, at most `longest`. Follows links.
pub fn read_start(path: &Path, longest: u64) -> Result<Vec<u8>, FileError> {
    let file = std::fs::File::open(path).map_err(FileError::read(path))?;
    let mut bytes = Vec::new();
    let read = file.take(longest).read_to_end(&mut bytes);
    read.map_err(FileError::read(path))?;
    Ok(bytes)
}

/// Reads a file of any length line by line. Follows links.
pub fn each_line(path: &Path, mut see: impl FnMut(&str)) -> Result<(), FileError> {
    let file = std::fs::File::open(path).map_err(FileError::read(path))?;
    let mut reader = io::BufReader::new(file);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line);
        if read.map_err(FileError::read(path))? == 0 {
            return Ok(());
        }
        see(String::from_utf8_lossy(&line).trim_end());
    }
}

/// Returns the absolute path of an existing file or folder, without links.
#[expect(clippy::disallowed_methods, reason = "the home of std::fs")]
pub fn canonical(path: &Path) -> Result<PathBuf, FileError> {
    std::fs::canonicalize(path).map_err(FileError::read(path))
}

/// Returns whether a path is a folder. Follows links.
#[expect(clippy::disallowed_methods, reason = "the home of std::fs")]
pub fn is_folder(path: &Path) -> Result<bool, FileError> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok(metadata.is_dir()),
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => Err(FileError::read(path)(error)),
    }
}

/// Returns whether a path exists. A dangling link counts.
#[expect(clippy::disallowed_methods, reason = "the home of std::fs")]
pub fn exists(path: &Path) -> Result<bool, FileError> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => Err(FileError::read(path)(error)),
    }
}

/// Returns the names in a folder, sorted. Empty if the folder does not exist.
#[expect(clippy::disallowed_methods, reason = "the home of std::fs")]
pub fn names(folder: &Path) -> Result<Vec<PathBuf>, FileError> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(FileError::read(folder)(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(PathBuf::from(
            entry.map_err(FileError::read(folder))?.file_name(),
        ));
    }
    names.sort();
    Ok(names)
}

/// Returns the relative paths of all files below a folder, sorted. Links and special files count as
/// files.
pub fn files_below(folder: &Path) -> Result<Vec<String>, FileError> {
    let tree = WorkingTree::new(folder);
    let mut files = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(path) = folders.pop() {
        let entries = tree.list(&path).map_err(|error| FileError::Read {
            path: folder.join(&path),
            source: io::Error::other(error.to_string()),
        })?;
        for TreeEntry { name, kind } in entries {
            let path = join(&path, &name);
            match kind {
                TreeKind::Folder => folders.push(path),
                TreeKind::File | TreeKind::Link | TreeKind::Submodule => files.push(path),
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Returns all files below a folder with their sizes in bytes, unordered. Does not follow links.
#[expect(clippy::disallowed_methods, reason = "the home of std::fs")]
pub fn sizes_below(folder: &Path) -> Result<Vec<(PathBuf, u64)>, FileError> {
    let mut sizes = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for name in names(&folder)? {
            let path = folder.join(name);
            let metadata = match std::fs::symlink_metadata(&path) {
                Ok(metadata) => metadata,
                Err(error) if is_absent(&error) => continue,
                Err(error) => return Err(FileError::read(&path)(error)),
            };
            if metadata.is_dir() {
                folders.push(path);
            } else {
                sizes.push((path, metadata.len()));
            }
        }
    }
    Ok(sizes)
}

/// Reads a small file of this user in a shared folder. `None` if the file does not exist, has
/// another owner, or has more than `longest` bytes.
#[expect(clippy::disallowed_methods, reason = "the home of std::fs")]
pub fn read_own(path: &Path, longest: u64) -> Result<Option<Vec<u8>>, FileError> {
    let is_own = match std::fs::symlink_metadata(path) {
        Ok(data) => {
            data.is_file()
                && data.uid() == rustix::process::geteuid().as_raw()
                && data.len() <= longest
        }
        Err(error) if is_absent(&error) => false,
        Err(error) => return Err(FileError::read(path)(error)),
    };
    is_own.then(|| read(path)).transpose()
}

/// Writes a file atomically.
pub fn write_atomic(path: &Path, content: &FileContent) -> Result<(), FileError> {
    let file = prepared(path, content)?;
    file.persist(path)
        .map_err(|error| FileError::write(path)(error.error))?;
    Ok(())
}

/// Writes a new file atomically. Fails if the path exists.
pub fn write_new(path: &Path, content: &FileContent) -> Result<(), FileError> {
    let file = prepared(path, content)?;
    file.persist_noclobber(path).map_err(|error| {
        if error.error.kind() == io::ErrorKind::AlreadyExists {
            FileError::Exists {
                path: path.to_owned(),
            }
        } else {
            FileError::write(path)(error.error)
        }
    })?;
    Ok(())
}

fn prepared(path: &Path, content: &FileContent) -> Result<NamedTempFile, FileError> {
    let mut file = Builder::new()
        .prefix(STAGING)
        .permissions(content.permissions())
        .tempfile_in(parent(path))
        .map_err(FileError::write(path))?;
    file.write_all(&content.bytes)
        .and_then(|()| file.as_file().sync_all())
        .map_err(FileError::write(path))?;
    Ok(file)
}

/// Fills a folder. A new folder appears in one step; an existing folder is filled file by file. It
/// can be empty or contain paths in `ours` from an earlier call. Any other content is
/// [`FileError::Exists`].
pub fn write_folder(folder: &Path, files: &Files, ours: &[String]) -> Result<(), FileError> {
    let present = exists(folder)?;
    if present && !is_folder(folder)? {
        return Err(FileError::Exists {
            path: folder.to_owned(),
        });
    }
    if present {
        // Leftovers of a killed run belong to us as well.
        let strange = files_below(folder)?
            .into_iter()
            .find(|path| !path.starts_with(STAGING) && !ours.contains(path));
        if let Some(path) = strange {
            return Err(FileError::Exists {
                path: folder.join(path),
            });
        }
    }
    // Move only the content of an existing folder. The folder itself can be a mount point or the
    // user's working directory.
    if present {
        let staged = stage(folder, files)?;
        for path in files.keys() {
            let target = folder.join(path);
            create_folders(parent(&target))?;
            rename(&staged.path().join(path), &target)?;
        }
        for path in ours.iter().filter(|path| !files.contains_key(*path)) {
            remove_file(&folder.join(path))?;
        }
        remove_empty_folders(folder, ours)
    } else {
        let parent = parent(folder);
        create_folders(parent)?;
        let staged = stage(parent, files)?;
        rename(staged.path(), folder)?;
        // The staged folder was moved, so there is nothing to clean up.
        drop(staged.keep());
        Ok(())
    }
}

/// Adds new files to a folder. Fails if one of them exists. If a write fails, removes the files
/// that were already added.
pub fn add_files(folder: &Path, files: &Files) -> Result<(), FileError> {
    for path in files.keys() {
        if !is_inside(path) || path.is_empty() {
            return Err(FileError::Outside { path: path.clone() });
        }
        let target = folder.join(path);
        if exists(&target)? {
            return Err(FileError::Exists { path: target });
        }
    }
    let mut written = Vec::new();
    for (path, content) in files {
        let target = folder.join(path);
        let result = create_folders(parent(&target)).and_then(|()| write_new(&target, content));
        if let Err(error) = result {
            for path in &written {
                remove_file(&folder.join(path))?;
            }
            remove_empty_folders(folder, &written)?;
            return Err(error);
        }
        written.push(path.clone());
    }
    Ok(())
}

/// Writes all files into a hidden folder below `parent`. Dropping the value removes it.
fn stage(parent: &Path, files: &Files) -> Result<TempDir, FileError> {
    let staged = Builder::new()
        .prefix(STAGING)
        .permissions(std::fs::Permissions::from_mode(0o777))
        .tempdir_in(parent)
        .map_err(FileError::write(parent))?;
    for (path, content) in files {
        if !is_inside(path) || path.is_empty() {
            return Err(FileError::Outside { path: path.clone() });
        }
        let target = staged.path().join(path);
        create_folders(self::parent(&target))?;
        write_new(&target, content)?;
    }
    Ok(staged)
}

/// Creates a folder and the folders above it, if they do not exist.
#[expect(clippy::disallowed_methods, reason = "the home of std::fs")]
pub fn create_folders(folder: &Path) -> Result<(), FileError> {
    std::fs::create_dir_all(folder).map_err(FileError::write(folder))
}

#[expect(clippy::disallowed_methods, reason = "the home of std::fs")]
fn rename(from: &Path, to: &Path) -> Result<(), FileError> {
    std::fs::rename(from, to).map_err(FileError::write(to))
}

/// Removes a file. A missing file is not an error.
#[expect(clippy::disallowed_methods, reason = "the home of std::fs")]
pub fn remove_file(path: &Path) -> Result<(), FileError> {
    match std::fs::remove_file(path) {
        Err(error) if !is_absent(&error) => Err(FileError::write(path)(error)),
        _ => Ok(()),
    }
}

#[expect(clippy::disallowed_methods, reason = "the home of std::fs")]
fn remove_empty_folders(folder: &Path, files: &[String]) -> Result<(), FileError> {
    let mut folders: Vec<&str> = files
        .iter()
        .flat_map(|path| path.match_indices('/').map(|(end, _)| &path[..end]))
        .collect();
    // Longest first: children before their parents.
    folders.sort_by_key(|path| (std::cmp::Reverse(path.len()), *path));
    folders.dedup();
    for path in folders {
        let path = folder.join(path);
        match std::fs::remove_dir(&path) {
            Err(error)
                if !is_absent(&error) && error.kind() != io::ErrorKind::DirectoryNotEmpty =>
            {
                return Err(FileError::write(&path)(error));
            }
            _ => {}
        }
    }
    Ok(())
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Returns the folder of a file. For a bare name this is the current folder.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Joins a path within a tree and a name.
pub fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() {
        name.to_owned()
    } else {
        format!("{folder}/{name}")
    }
}

/// Returns whether a path stays within a tree: relative, without `.`, `..` and empty parts. The
/// empty path is the root.
pub fn is_inside(path: &str) -> bool {
    path.is_empty()
        || path
            .split('/')
            .all(|part| !matches!(part, "" | "." | "..") && !part.contains('\0'))
}

/// Refuses files with content that is not allowed in a repository: too large, or a git LFS pointer.
pub fn check_content(path: &str, bytes: &[u8]) -> Result<(), TreeError> {
    if bytes.starts_with(b"version https://git-lfs.github.com/spec/") {
        return Err(unreadable(
            path,
            "it is a git LFS pointer, and LFS is not supported; keep the file itself in git",
        ));
    }
    Ok(())
}

/// Refuses a file larger than [`MAX_FILE_BYTES`] before it is read.
pub fn check_size(path: &str, size: u64) -> Result<(), TreeError> {
    if size > MAX_FILE_BYTES {
        return Err(unreadable(
            path,
            format!(
                "it has {size} bytes, and at most {} MiB are read",
                MAX_FILE_BYTES / 1024 / 1024
            ),
        ));
    }
    Ok(())
}

/// Creates the error of a file that cannot be read.
pub fn unreadable(path: &str, reason: impl Into<String>) -> TreeError {
    TreeError::Unreadable {
        path: if path.is_empty() { "." } else { path }.to_owned(),
        reason: reason.into(),
    }
}

/// Creates the error of a file that does not exist.
pub fn missing(path: &str) -> TreeError {
    TreeError::Missing {
        path: if path.is_empty() { "." } else { path }.to_owned(),
    }
}

#[cfg(test)]
mod tests;
