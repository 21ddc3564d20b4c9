//! File tree with uncommitted changes on top of another tree.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use pleach_model::data_keys::EncryptedValues;
use pleach_model::engines::Engines;
use pleach_model::tree::{FileTree, TreeEntry, TreeError, TreeKind};

/// New file contents by path. `None` deletes a file.
pub type FileChanges = BTreeMap<String, Option<Bytes>>;

/// A tree with changes on top of another tree. As in git, a folder without files does not exist.
pub struct PatchedTree<'a> {
    base: &'a dyn FileTree,
    changes: &'a FileChanges,
}

impl<'a> PatchedTree<'a> {
    /// Puts changes on top of a tree.
    pub fn new(base: &'a dyn FileTree, changes: &'a FileChanges) -> Self {
        Self { base, changes }
    }

    fn is_changed_below(&self, folder: &str) -> bool {
        let prefix = format!("{folder}/");
        self.changes.keys().any(|path| path.starts_with(&prefix))
    }
}

impl FileTree for PatchedTree<'_> {
    fn list(&self, folder: &str) -> Result<Vec<TreeEntry>, TreeError> {
        let path = |name: &str| match folder {
            "" => name.to_owned(),
            folder => format!("{folder}/{name}"),
        };
        let (base, missing) = match self.base.list(folder) {
            Ok(entries) => (entries, None),
            Err(error @ TreeError::Missing { .. }) => (Vec::new(), Some(error)),
            Err(error) => return Err(error),
        };
        let mut entries: BTreeSet<TreeEntry> = BTreeSet::new();
        for entry in base {
            let path = path(&entry.name);
            let stays = match entry.kind {
                TreeKind::Folder if self.is_changed_below(&path) => {
                    self.list(&path).is_ok_and(|entries| !entries.is_empty())
                }
                _ => !self.changes.contains_key(&path),
            };
            if stays {
                entries.insert(entry);
            }
        }
        let prefix = path("");
        for (changed, content) in self.changes {
            let Some(rest) = changed.strip_prefix(&prefix).filter(|_| content.is_some()) else {
                continue;
            };
            let (name, kind) = match rest.split_once('/') {
                Some((name, _)) => (name, TreeKind::Folder),
                None => (rest, TreeKind::File),
            };
            entries.insert(TreeEntry {
                name: name.to_owned(),
                kind,
            });
        }
        match missing {
            Some(error) if entries.is_empty() => Err(error),
            _ => Ok(entries.into_iter().collect()),
        }
    }

    fn read(&self, file: &str) -> Result<Bytes, TreeError> {
        match self.changes.get(file) {
            Some(Some(content)) => Ok(content.clone()),
            Some(None) => Err(TreeError::Missing {
                path: file.to_owned(),
            }),
            None => self.base.read(file),
        }
    }

    fn encrypted_values(&self) -> EncryptedValues<'_> {
        self.base.encrypted_values()
    }

    fn engines(&self) -> Option<&dyn Engines> {
        self.base.engines()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pleach_model::tree::MemoryTree;

    #[test]
    fn changes_are_read_as_if_written() {
        let base = MemoryTree::new([("a/x", "1"), ("a/y", "2"), ("b/c/z", "3"), ("d", "4")]);
        let changes: FileChanges = [
            ("a/x", Some("5")),
            ("a/n/w", Some("6")),
            ("b/c/z", None),
            ("e/f", Some("7")),
        ]
        .into_iter()
        .map(|(path, content)| (path.to_owned(), content.map(Bytes::from)))
        .collect();
        let tree = PatchedTree::new(&base, &changes);
        let names = |folder: &str| -> Vec<String> {
            let entries = tree.list(folder).unwrap().into_iter();
            entries.map(|entry| entry.name).collect()
        };
        assert_eq!(names(""), ["a", "d", "e"]);
        assert_eq!(names("a"), ["n", "x", "y"]);
        assert_eq!(names("e"), ["f"]);
        assert!(matches!(tree.list("b"), Ok(entries) if entries.is_empty()));
        assert!(matches!(tree.list("g"), Err(TreeError::Missing { .. })));
        assert_eq!(tree.read("a/x").unwrap(), "5");
        assert_eq!(tree.read("a/y").unwrap(), "2");
        assert!(matches!(tree.read("b/c/z"), Err(TreeError::Missing { .. })));
    }
}
