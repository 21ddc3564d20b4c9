//! The files of a commit.

use std::path::Path;

use bytes::Bytes;
use git2::{ErrorCode, ObjectType, Oid, Repository, Tree};
use pleach_domain::repo::{FileTree, TreeEntry, TreeError, TreeKind};

use super::{GitError, extent};
use crate::io::files::{check_content, check_size, is_inside, join, missing, unreadable};

const LINK: i32 = 0o120_000;

/// A folder of a commit as a [`FileTree`], read without a checkout.
pub struct GitTree {
    repository: Repository,
    commit: Oid,
    root: Oid,
}

impl GitTree {
    /// Opens `folder` (from the top of the git repository) at a revision.
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
        };
        if !folder.is_empty() {
            tree.root = tree.folder(folder).map_err(|source| GitError::NoFolder {
                revision: revision.to_owned(),
                folder: folder.to_owned(),
                source,
            })?;
        }
        extent::check(&tree.repository, tree.root, revision)?;
        Ok(tree)
    }

    /// The full id of the commit.
    pub fn commit(&self) -> String {
        self.commit.to_string()
    }

    /// Names what is at a path: the same content has the same name. None where
    /// nothing is.
    pub fn content(&self, path: &str) -> Option<String> {
        let (id, _, mode) = self.entry(path).ok()?;
        Some(format!("{mode:o} {id}"))
    }

    fn tree(&self, path: &str, id: Oid) -> Result<Tree<'_>, TreeError> {
        self.repository
            .find_tree(id)
            .map_err(|error| failed(path, &error))
    }

    /// The entry at a path that is not the root: its id, type and mode.
    fn entry(&self, path: &str) -> Result<(Oid, Option<ObjectType>, i32), TreeError> {
        if !is_inside(path) {
            return Err(unreadable(path, "it is not a path within the repository"));
        }
        let root = self.tree("", self.root)?;
        let entry = root
            .get_path(Path::new(path))
            .map_err(|error| self.failed_entry(path, &error))?;
        Ok((entry.id(), entry.kind(), entry.filemode()))
    }

    /// Says which part of a path is a link or a submodule, when that is why
    /// git finds nothing there.
    fn failed_entry(&self, path: &str, error: &git2::Error) -> TreeError {
        let above = path.match_indices('/').map(|(end, _)| &path[..end]);
        for part in above {
            match self.entry(part) {
                Ok((_, Some(ObjectType::Blob), LINK)) => {
                    let reason = format!("{part} is a symbolic link, and links are not followed");
                    return unreadable(path, reason);
                }
                Ok((_, Some(ObjectType::Commit), _)) => {
                    let reason = format!("{part} is a submodule, and submodules are not entered");
                    return unreadable(path, reason);
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
        failed(path, error)
    }

    fn folder(&self, path: &str) -> Result<Oid, TreeError> {
        if path.is_empty() {
            return Ok(self.root);
        }
        match self.entry(path)? {
            (id, Some(ObjectType::Tree), _) => Ok(id),
            (_, Some(ObjectType::Commit), _) => Err(unreadable(
                path,
                "it is a submodule, and submodules are not entered",
            )),
            (_, _, LINK) => Err(unreadable(
                path,
                "it is a symbolic link, and links are not followed",
            )),
            _ => Err(missing(path)),
        }
    }
}

impl FileTree for GitTree {
    fn list(&self, folder: &str) -> Result<Vec<TreeEntry>, TreeError> {
        let tree = self.tree(folder, self.folder(folder)?)?;
        let mut entries = Vec::with_capacity(tree.len());
        for entry in &tree {
            let name = str::from_utf8(entry.name_bytes()).map_err(|_| {
                let name = String::from_utf8_lossy(entry.name_bytes());
                unreadable(&join(folder, &name), "its name is not UTF-8")
            })?;
            let kind = match entry.kind() {
                Some(ObjectType::Tree) => TreeKind::Folder,
                Some(ObjectType::Commit) => TreeKind::Submodule,
                _ if entry.filemode() == LINK => TreeKind::Link,
                _ => TreeKind::File,
            };
            entries.push(TreeEntry {
                name: name.to_owned(),
                kind,
            });
        }
        // git sorts folders as if their names ended with a slash.
        entries.sort();
        Ok(entries)
    }

    fn read(&self, file: &str) -> Result<Bytes, TreeError> {
        if file.is_empty() {
            return Err(unreadable(file, "it is a folder"));
        }
        let id = match self.entry(file)? {
            (_, _, LINK) => {
                return Err(unreadable(
                    file,
                    "it is a symbolic link, and links are not followed",
                ));
            }
            (id, Some(ObjectType::Blob), _) => id,
            (_, Some(ObjectType::Commit), _) => {
                return Err(unreadable(
                    file,
                    "it is a submodule, and submodules are not entered",
                ));
            }
            _ => return Err(unreadable(file, "it is a folder")),
        };
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

/// The commit that a revision names, and its tree.
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
