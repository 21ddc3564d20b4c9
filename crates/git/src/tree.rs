//! Files of a commit.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use git2::{ErrorCode, ObjectType, Oid, Repository};
use pleach_model::tree::{FileTree, TreeEntry, TreeError, TreeKind};

use super::GitError;
use pleach_files::{check_content, check_size, is_inside, join, missing, unreadable};

const LINK: i32 = 0o120_000;

/// Maximum number of folder entries in the cache.
const MOST_ENTRIES: usize = 200_000;

/// Folder of a commit as a [`FileTree`], read without a checkout.
pub struct GitTree {
    repository: Repository,
    commit: Oid,
    root: Oid,
    /// Cache of folders.
    folders: RefCell<Folders>,
}

/// Folders by path.
#[derive(Default)]
struct Folders {
    known: HashMap<String, Arc<Folder>>,
    /// Number of entries in all folders.
    entries: usize,
}

/// Entries of a folder, by name.
type Folder = BTreeMap<Box<[u8]>, Entry>;

#[derive(Clone, Copy)]
struct Entry {
    id: Oid,
    kind: TreeKind,
    /// Bits of `st_mode` that git stores.
    mode: i32,
}

impl GitTree {
    /// Opens `folder`, relative to the root of the git repository, at a revision.
    pub(super) fn open(
        repository: Repository,
        folder: &str,
        revision: &str,
    ) -> Result<Self, GitError> {
        let (commit, top) = resolve(&repository, revision)?;
        let mut tree = Self {
            repository,
            commit,
            root: top,
            folders: RefCell::default(),
        };
        if !folder.is_empty() {
            let no_folder = |source| GitError::NoFolder {
                revision: revision.to_owned(),
                folder: folder.to_owned(),
                source,
            };
            let entry = tree.entry(folder).map_err(no_folder)?;
            if entry.kind != TreeKind::Folder {
                let source = self::no_folder("it", entry.kind, folder);
                return Err(no_folder(source));
            }
            tree.root = entry.id;
            tree.folders.take();
        }
        Ok(tree)
    }

    /// Returns the full id of the commit.
    pub fn commit(&self) -> String {
        self.commit.to_string()
    }

    /// Returns the time of the commit, in seconds since 1970.
    pub(super) fn seconds(&self) -> Option<i64> {
        let commit = self.repository.find_commit(self.commit).ok()?;
        Some(commit.time().seconds())
    }

    /// Returns an identifier of the content at a path. Equal content has equal identifiers.
    pub fn content(&self, path: &str) -> Result<String, TreeError> {
        let Entry { id, mode, .. } = self.entry(path)?;
        Ok(format!("{mode:o} {id}"))
    }

    /// Returns the kind of an entry in a folder. Unlike [`FileTree::kind`], it reports the reason
    /// of a failure.
    pub fn named(&self, folder: &str, name: &str) -> Result<TreeKind, TreeError> {
        let entries = self.folder(folder, folder)?;
        let found = entries.get(name.as_bytes());
        found
            .map(|entry| entry.kind)
            .ok_or_else(|| missing(&join(folder, name)))
    }

    /// Returns the entry at a path other than the root.
    fn entry(&self, path: &str) -> Result<Entry, TreeError> {
        if !is_inside(path) {
            return Err(unreadable(path, "it is not a path within the repository"));
        }
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let folder = self.folder(above, path)?;
        let entry = folder.get(name.as_bytes());
        entry.copied().ok_or_else(|| missing(path))
    }

    /// Returns the entries of a folder. Errors name the path `requested`.
    fn folder(&self, folder: &str, requested: &str) -> Result<Arc<Folder>, TreeError> {
        if !is_inside(folder) {
            return Err(unreadable(
                requested,
                "it is not a path within the repository",
            ));
        }
        if let Some(known) = self.folders.borrow().known.get(folder) {
            return Ok(Arc::clone(known));
        }
        let mut at = self.read_folder("", self.root, requested)?;
        let slashes = folder.match_indices('/').map(|(end, _)| end);
        let slashes = slashes.chain((!folder.is_empty()).then_some(folder.len()));
        for path in slashes.map(|end| &folder[..end]) {
            let name = path.rsplit('/').next().unwrap_or(path);
            let entry = *at.get(name.as_bytes()).ok_or_else(|| missing(requested))?;
            let what = if path == requested { "it" } else { path };
            match entry.kind {
                TreeKind::Folder => at = self.read_folder(path, entry.id, requested)?,
                kind => return Err(no_folder(what, kind, requested)),
            }
        }
        Ok(at)
    }

    /// Reads a folder or returns it from the cache. libgit2 would read a large folder again for
    /// each name.
    fn read_folder(&self, path: &str, id: Oid, requested: &str) -> Result<Arc<Folder>, TreeError> {
        if let Some(known) = self.folders.borrow().known.get(path) {
            return Ok(Arc::clone(known));
        }
        let tree = self
            .repository
            .find_tree(id)
            .map_err(|error| failed(requested, &error))?;
        let entries = tree.iter().map(|entry| {
            let kind = match entry.kind() {
                Some(ObjectType::Tree) => TreeKind::Folder,
                Some(ObjectType::Commit) => TreeKind::Submodule,
                _ if entry.filemode() == LINK => TreeKind::Link,
                _ => TreeKind::File,
            };
            let found = Entry {
                id: entry.id(),
                kind,
                mode: entry.filemode(),
            };
            (entry.name_bytes().into(), found)
        });
        let folder: Arc<Folder> = Arc::new(entries.collect());
        let mut folders = self.folders.borrow_mut();
        if folders.entries + folder.len() > MOST_ENTRIES {
            *folders = Folders::default();
        }
        folders.entries += folder.len();
        folders.known.insert(path.to_owned(), Arc::clone(&folder));
        Ok(folder)
    }
}

/// Returns the error for a path that should be a folder but is not.
fn no_folder(what: &str, kind: TreeKind, requested: &str) -> TreeError {
    match kind {
        TreeKind::Link => unreadable(
            requested,
            format!("{what} is a symbolic link, and links are not followed"),
        ),
        TreeKind::Submodule => unreadable(
            requested,
            format!("{what} is a submodule, and submodules are not entered"),
        ),
        TreeKind::File | TreeKind::Folder => missing(requested),
    }
}

impl FileTree for GitTree {
    fn list(&self, folder: &str) -> Result<Vec<TreeEntry>, TreeError> {
        let entries = self.folder(folder, folder)?;
        // Sort by name. git sorts folders as if their names ended with a slash.
        let entries = entries.iter().map(|(name, entry)| {
            let name = str::from_utf8(name).map_err(|_| {
                let name = String::from_utf8_lossy(name);
                unreadable(&join(folder, &name), "its name is not UTF-8")
            })?;
            Ok(TreeEntry {
                name: name.to_owned(),
                kind: entry.kind,
            })
        });
        entries.collect()
    }

    fn kind(&self, folder: &str, name: &str) -> Option<TreeKind> {
        let folder = self.folder(folder, folder).ok()?;
        folder.get(name.as_bytes()).map(|entry| entry.kind)
    }

    fn read(&self, file: &str) -> Result<Bytes, TreeError> {
        if file.is_empty() {
            return Err(unreadable(file, "it is a folder"));
        }
        let Entry { id, kind, .. } = self.entry(file)?;
        match kind {
            TreeKind::File => {}
            TreeKind::Folder => return Err(unreadable(file, "it is a folder")),
            kind => return Err(no_folder("it", kind, file)),
        }
        let (size, _) = self
            .repository
            .odb()
            .and_then(|odb| odb.read_header(id))
            .map_err(|error| failed(file, &error))?;
        check_size(file, size as u64)?;
        let blob = self
            .repository
            .find_blob(id)
            .map_err(|error| failed(file, &error))?;
        check_content(file, blob.content())?;
        Ok(Bytes::copy_from_slice(blob.content()))
    }
}

/// Returns the commit of a revision and its tree.
pub(super) fn resolve(repository: &Repository, revision: &str) -> Result<(Oid, Oid), GitError> {
    let object = repository
        .revparse_single(revision)
        .map_err(|error| match error.code() {
            ErrorCode::Ambiguous => GitError::AmbiguousRevision {
                revision: revision.to_owned(),
            },
            _ => GitError::UnknownRevision {
                revision: revision.to_owned(),
                path: repository
                    .workdir()
                    .unwrap_or_else(|| repository.path())
                    .components()
                    .collect(),
                shallow: repository.is_shallow(),
            },
        })?;
    let no_commit = |source| GitError::NoCommit {
        revision: revision.to_owned(),
        source,
    };
    let commit = object.peel_to_commit().map_err(no_commit)?;
    Ok((commit.id(), commit.tree_id()))
}

fn failed(path: &str, error: &git2::Error) -> TreeError {
    match error.code() {
        ErrorCode::NotFound => missing(path),
        _ => unreadable(path, error.message()),
    }
}
