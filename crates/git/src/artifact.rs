//! Copies of OCI artifacts. A pulled artifact becomes a commit in a bare repository. From there on,
//! it is a commit of a branch like any other.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use git2::build::TreeUpdateBuilder;
use git2::{FileMode, Repository, Signature, Time};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::GitError;
use super::budget::Store;
use super::mirror::{Fetched, Limits, Reader};

/// Name and address in imported commits.
const AUTHOR: [&str; 2] = ["pleach", "pleach@localhost"];

/// Content of an imported commit.
#[derive(Debug, Clone, Copy)]
pub struct Import<'a> {
    /// Files by path.
    pub files: &'a BTreeMap<String, Bytes>,
    /// Message of the commit.
    pub message: &'a str,
    /// Time of the commit. `None`: 1970.
    pub time: Option<Timestamp>,
}

/// Writes a commit without a parent into a bare repository, and returns its id. Equal content gives
/// an equal id, so all replicas of a controller have the same commit.
pub fn import(folder: &Path, import: &Import<'_>) -> Result<String, GitError> {
    let repository = Repository::open_bare(folder).map_err(|source| GitError::Open {
        path: folder.to_owned(),
        source,
    })?;
    write(&repository, import).map_err(|source| GitError::Build { source })
}

fn write(repository: &Repository, import: &Import<'_>) -> Result<String, git2::Error> {
    let empty = repository.treebuilder(None)?.write()?;
    let empty = repository.find_tree(empty)?;
    let mut tree = TreeUpdateBuilder::new();
    for (path, content) in import.files {
        tree.upsert(path.as_str(), repository.blob(content)?, FileMode::Blob);
    }
    let tree = tree.create_updated(repository, &empty)?;
    let tree = repository.find_tree(tree)?;
    let seconds = import.time.map_or(0, Timestamp::as_second);
    let [name, address] = AUTHOR;
    let author = Signature::new(name, address, &Time::new(seconds, 0))?;
    let commit = repository.commit(None, &author, &author, import.message, &tree, &[])?;
    Ok(commit.to_string())
}

/// Artifact in a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Imported {
    /// Digest of the artifact.
    pub digest: String,
    /// The commit.
    pub commit: String,
    /// Time of the revision that the publisher declares.
    pub created: Option<Timestamp>,
}

/// Result of a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArtifactHead {
    /// The tag has the artifact that the copy has already.
    Unchanged,
    /// The tag has another artifact, which is imported now.
    Imported(Imported),
    /// The tag has an artifact without a trusted signature.
    Untrusted {
        /// Digest of the artifact.
        digest: String,
        /// Reason.
        message: String,
    },
}

/// Copy of the artifacts that a tag had.
pub struct ArtifactMirror {
    limits: Limits,
    reader: Option<Reader>,
    last: Option<Imported>,
    imports: u32,
}

impl ArtifactMirror {
    /// Creates an empty copy within these limits.
    pub fn within(limits: Limits) -> Self {
        Self {
            limits,
            reader: None,
            last: None,
            imports: 0,
        }
    }

    /// Returns the bare repository for the next import, and the digest that it has already. Reserves
    /// disk space until the next call of [`Self::finish`] or [`Self::free`].
    pub fn prepare(&mut self) -> Result<(PathBuf, Option<String>), GitError> {
        let is_gone = |reader: &Reader| Repository::open_bare(reader.store.path()).is_err();
        if self.imports >= self.limits.downloads || self.reader.as_ref().is_some_and(is_gone) {
            self.reader = None;
        }
        let reader = self.reader()?;
        reader.store.promise(self.limits.download);
        let known = self.last.as_ref().map(|last| last.digest.clone());
        Ok((reader.store.path().to_owned(), known))
    }

    /// Returns the reader, of a new repository if there is none.
    fn reader(&mut self) -> Result<Reader, GitError> {
        if let Some(reader) = &self.reader {
            return Ok(reader.clone());
        }
        self.imports = 0;
        self.last = None;
        let reader = Reader {
            store: Arc::new(Store::make(&self.limits.budget)?),
            prefix: "".into(),
        };
        Ok(self.reader.insert(reader).clone())
    }

    /// Frees the reserved disk space after a pull, and returns the content of the tag as that of a
    /// branch.
    pub fn finish(&mut self, tag: &str, head: ArtifactHead) -> Result<Fetched, GitError> {
        let reader = self.free()?;
        let mut heads = BTreeMap::new();
        let mut distrusted = BTreeMap::new();
        match head {
            ArtifactHead::Untrusted { digest, message } => {
                heads.insert(tag.to_owned(), digest);
                distrusted.insert(tag.to_owned(), message);
            }
            ArtifactHead::Imported(imported) => {
                self.warn_of_older(tag, &imported);
                self.imports += 1;
                self.last = Some(imported);
            }
            ArtifactHead::Unchanged => {}
        }
        if heads.is_empty()
            && let Some(last) = &self.last
        {
            heads.insert(tag.to_owned(), last.commit.clone());
        }
        Ok(Fetched {
            heads,
            distrusted,
            behind: BTreeMap::new(),
            branches: vec![tag.to_owned()],
            default_branch: None,
            reader,
        })
    }

    /// Frees the reserved disk space, also after a failed pull.
    pub fn free(&mut self) -> Result<Reader, GitError> {
        let reader = self.reader()?;
        reader.store.clean_up()?;
        Ok(reader)
    }

    /// Warns if a tag moved to an older artifact. It is followed: a trusted key signed it.
    fn warn_of_older(&self, tag: &str, imported: &Imported) {
        let Some(last) = &self.last else {
            return;
        };
        if let (Some(before), Some(now)) = (last.created, imported.created)
            && now < before
        {
            tracing::warn!(
                tag,
                digest = imported.digest,
                created = %now,
                previous.digest = last.digest,
                previous.created = %before,
                "the tag moved back to an older artifact"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use pleach_model::tree::FileTree as _;

    use super::*;
    use crate::budget::Budget;

    fn files(text: &str) -> BTreeMap<String, Bytes> {
        let files = [("pleach.yaml", text), ("manifests/web/v1/a.yaml", "a: b\n")];
        files
            .map(|(path, text)| (path.to_owned(), Bytes::from(text.to_owned())))
            .into()
    }

    fn mirror() -> ArtifactMirror {
        ArtifactMirror::within(Limits::of(Budget::of(1 << 24)))
    }

    /// Imports files as an artifact of a minute.
    fn pulled(mirror: &mut ArtifactMirror, text: &str, minute: i64) -> Fetched {
        let (folder, _) = mirror.prepare().unwrap();
        let created = Timestamp::from_second(minute * 60).ok();
        let import = Import {
            files: &files(text),
            message: text,
            time: created,
        };
        let commit = self::import(&folder, &import).unwrap();
        let head = ArtifactHead::Imported(Imported {
            digest: format!("sha256:{text}"),
            commit,
            created,
        });
        mirror.finish("production", head).unwrap()
    }

    #[test]
    fn equal_artifacts_become_the_same_commit() {
        let [mut one, mut other] = [mirror(), mirror()];
        let [first, again] = [&mut one, &mut other].map(|mirror| pulled(mirror, "a", 1));
        assert_eq!(first.heads, again.heads);
        let commit = &first.heads["production"];
        let tree = first.reader.tree(commit).unwrap();
        assert_eq!(&*tree.read("manifests/web/v1/a.yaml").unwrap(), b"a: b\n");
        assert_eq!(tree.contents().unwrap().files, files("a"));
        assert_eq!(tree.time(), Timestamp::from_second(60).ok());
        let next = pulled(&mut one, "b", 2);
        assert_ne!(&next.heads["production"], commit);
        // The previous artifact stays readable.
        assert!(next.reader.tree(commit).is_ok());
    }

    #[test]
    fn an_untrusted_artifact_has_no_commit() {
        let mut mirror = mirror();
        let trusted = pulled(&mut mirror, "a", 1);
        let (_, known) = mirror.prepare().unwrap();
        assert_eq!(known.as_deref(), Some("sha256:a"));
        let head = ArtifactHead::Untrusted {
            digest: "sha256:b".to_owned(),
            message: "no".to_owned(),
        };
        let untrusted = mirror.finish("production", head).unwrap();
        assert_eq!(untrusted.heads["production"], "sha256:b");
        assert_eq!(untrusted.distrusted["production"], "no");
        mirror.prepare().unwrap();
        let back = mirror
            .finish("production", ArtifactHead::Unchanged)
            .unwrap();
        assert_eq!(back.heads, trusted.heads);
        assert!(back.distrusted.is_empty());
    }

    #[test]
    fn a_deleted_copy_is_imported_again() {
        let mut mirror = mirror();
        let first = pulled(&mut mirror, "a", 1);
        #[expect(clippy::disallowed_methods, reason = "deletes what a cleaner would")]
        std::fs::remove_dir_all(first.reader.place().folder()).unwrap();
        let (_, known) = mirror.prepare().unwrap();
        assert_eq!(known, None);
        assert_eq!(pulled(&mut mirror, "a", 1).heads, first.heads);
    }
}
