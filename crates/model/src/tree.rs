//! Files of a repository at one revision, from any source.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::data_keys::{DataKeys, EncryptedValues};
use crate::engines::Engines;

/// Maximum number of files and folders below one folder. git stores repeated content once, so a few
/// kilobytes can contain any number of files.
pub const MOST_ENTRIES: usize = 10_000;
/// Maximum total size of the files below one folder, in bytes.
pub const MOST_BYTES: usize = 256 * 1024 * 1024;

/// Maximum depth of folders.
pub const DEEPEST: usize = 100;

/// Returns whether a folder exceeds the maximum depth. git has no limit.
pub fn is_too_deep(folder: &str) -> bool {
    folder.split('/').count() > DEEPEST
}

/// An entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TreeEntry {
    /// Name within the folder.
    pub name: String,
    /// Kind of the entry.
    pub kind: TreeKind,
}

/// Kind of an entry.
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

/// Error from reading a file or folder.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TreeError {
    /// The path does not exist.
    #[error("{path} does not exist")]
    Missing {
        /// Path within the repository.
        path: String,
    },
    /// The path exists, but is unreadable.
    #[error("failed to read {path}: {reason}")]
    Unreadable {
        /// Path within the repository.
        path: String,
        /// Reason.
        reason: String,
    },
}

/// Files of a repository at one revision. Paths use `/`, have no leading `/` and no `.` or `..`.
/// The root folder is the empty path.
///
/// Implementations must be immutable while in use, so that their readers are pure functions. They
/// must never follow links.
pub trait FileTree {
    /// Returns the entries of a folder, sorted by name.
    fn list(&self, folder: &str) -> Result<Vec<TreeEntry>, TreeError>;
    /// Returns the content of a file.
    fn read(&self, file: &str) -> Result<Bytes, TreeError>;
    /// Returns the kind of an entry. `None` if it does not exist or the folder cannot be listed.
    /// Requests only this entry, so a recorded result does not depend on its siblings.
    fn kind(&self, folder: &str, name: &str) -> Option<TreeKind> {
        let entries = self.list(folder).ok()?;
        let found = entries.into_iter().find(|entry| entry.name == name)?;
        Some(found.kind)
    }
    /// Says how encrypted values are read. A tree without keys, such as that of a pull request, has
    /// stand-ins.
    fn encrypted_values(&self) -> EncryptedValues<'_> {
        EncryptedValues::StandIns
    }
    /// Returns the program that renders charts and overlays. `None` if this reader has none.
    fn engines(&self) -> Option<&dyn Engines> {
        None
    }
}

/// A tree with keys for its encrypted files, and a program for its charts.
pub struct KeyedTree<T, K> {
    tree: T,
    keys: K,
    /// Whether a file without a fitting key is an error.
    must_decrypt: bool,
    engines: Option<Arc<dyn Engines>>,
}

impl<T: FileTree, K: DataKeys> KeyedTree<T, K> {
    /// Wraps a tree. Without a fitting key, values are replaced by stand-ins.
    pub fn new(tree: T, keys: K) -> Self {
        Self {
            tree,
            keys,
            must_decrypt: false,
            engines: None,
        }
    }

    /// Returns the keys.
    pub fn keys(&self) -> &K {
        &self.keys
    }

    /// Adds the program that renders charts and overlays.
    #[must_use]
    pub fn with_engines(self, engines: Arc<dyn Engines>) -> Self {
        Self {
            engines: Some(engines),
            ..self
        }
    }

    /// Wraps a tree whose values must be decrypted, because they are written to a cluster.
    pub fn decrypted(tree: T, keys: K) -> Self {
        Self {
            must_decrypt: true,
            ..Self::new(tree, keys)
        }
    }
}

impl<T: FileTree, K: DataKeys> FileTree for KeyedTree<T, K> {
    fn list(&self, folder: &str) -> Result<Vec<TreeEntry>, TreeError> {
        self.tree.list(folder)
    }

    fn read(&self, file: &str) -> Result<Bytes, TreeError> {
        self.tree.read(file)
    }

    fn kind(&self, folder: &str, name: &str) -> Option<TreeKind> {
        self.tree.kind(folder, name)
    }

    fn encrypted_values(&self) -> EncryptedValues<'_> {
        if self.must_decrypt {
            EncryptedValues::Decrypt(&self.keys)
        } else {
            EncryptedValues::DecryptIfPossible(&self.keys)
        }
    }

    fn engines(&self) -> Option<&dyn Engines> {
        self.engines.as_deref()
    }
}

/// A tree of files in memory.
#[derive(Debug, Clone, Default)]
pub struct MemoryTree {
    files: BTreeMap<String, Bytes>,
}

impl MemoryTree {
    /// Creates a tree from paths and contents.
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
