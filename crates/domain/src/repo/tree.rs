//! The files of a repository at one revision, wherever they come from.

use std::collections::BTreeMap;

use bytes::Bytes;

/// Files and folders that are read below one folder. A repository stores what is
/// repeated only once: a few kilobytes of it can be any number of files.
pub(crate) const MOST_ENTRIES: usize = 10_000;
/// Bytes of the files that are read below one folder.
pub(crate) const MOST_BYTES: usize = 256 * 1024 * 1024;

/// Levels of folders that are gone into.
pub(super) const DEEPEST: usize = 100;

/// Whether a folder is too deep to be gone into: git knows no limit.
pub(crate) fn is_too_deep(folder: &str) -> bool {
    folder.split('/').count() > DEEPEST
}

/// What lies in a folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TreeEntry {
    /// Name within the folder.
    pub name: String,
    /// What it is.
    pub kind: TreeKind,
}

/// What a name in a folder stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TreeKind {
    /// A file with content.
    File,
    /// A folder.
    Folder,
    /// A symbolic link: never followed.
    Link,
    /// A git submodule: never entered.
    Submodule,
}

/// A file or folder that cannot be read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TreeError {
    /// Nothing has that path.
    #[error("{path} does not exist")]
    Missing {
        /// Path within the repository.
        path: String,
    },
    /// It is there and cannot be read.
    #[error("failed to read {path}: {reason}")]
    Unreadable {
        /// Path within the repository.
        path: String,
        /// Why.
        reason: String,
    },
}

/// The files of a repository at one revision. Paths use `/`, have no leading
/// `/` and no `.` or `..`; the root folder is the empty path.
///
/// Implementations do not change while they are used, so that what reads them
/// stays a pure function, and they never follow links.
pub trait FileTree {
    /// What lies in a folder, sorted by name.
    fn list(&self, folder: &str) -> Result<Vec<TreeEntry>, TreeError>;
    /// The content of a file.
    fn read(&self, file: &str) -> Result<Bytes, TreeError>;
    /// What a name in a folder stands for; none where it is not there, or the
    /// folder cannot be listed. Asks about this one name: what else lies beside it
    /// does not matter to who asks so.
    fn kind(&self, folder: &str, name: &str) -> Option<TreeKind> {
        let entries = self.list(folder).ok()?;
        let found = entries.into_iter().find(|entry| entry.name == name)?;
        Some(found.kind)
    }
}

/// Files in memory.
#[derive(Debug, Clone, Default)]
pub struct MemoryTree {
    files: BTreeMap<String, Bytes>,
}

impl MemoryTree {
    /// Takes paths and their content.
    pub fn new<P: Into<String>, C: Into<Bytes>>(files: impl IntoIterator<Item = (P, C)>) -> Self {
        Self {
            files: files
                .into_iter()
                .map(|(path, content)| (path.into(), content.into()))
                .collect(),
        }
    }
}

impl FileTree for MemoryTree {
    fn list(&self, folder: &str) -> Result<Vec<TreeEntry>, TreeError> {
        let prefix = if folder.is_empty() {
            String::new()
        } else {
            format!("{folder}/")
        };
        let mut entries = BTreeMap::new();
        for path in self
            .files
            .keys()
            .filter_map(|path| path.strip_prefix(&prefix))
        {
            match path.split_once('/') {
                Some((name, _)) => entries.insert(name.to_owned(), TreeKind::Folder),
                None => entries.insert(path.to_owned(), TreeKind::File),
            };
        }
        if entries.is_empty() && !folder.is_empty() {
            return Err(TreeError::Missing {
                path: folder.to_owned(),
            });
        }
        Ok(entries
            .into_iter()
            .map(|(name, kind)| TreeEntry { name, kind })
            .collect())
    }

    fn read(&self, file: &str) -> Result<Bytes, TreeError> {
        self.files
            .get(file)
            .cloned()
            .ok_or_else(|| TreeError::Missing {
                path: file.to_owned(),
            })
    }
}
