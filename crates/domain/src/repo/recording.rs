//! Which files an answer depends on.

use std::cell::RefCell;
use std::collections::BTreeSet;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{FileTree, TreeEntry, TreeError, TreeKind};

/// A tree that remembers what was asked of it, also in vain: a change of
/// anything else cannot change what was made from the answers.
pub struct RecordingTree<'a> {
    tree: &'a dyn FileTree,
    record: RefCell<Record>,
}

/// What was asked of a tree.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Files that were read.
    pub read: BTreeSet<String>,
    /// Folders that were listed.
    pub listed: BTreeSet<String>,
    /// Folders and names in them of which only was asked what they stand for.
    pub named: BTreeSet<(String, String)>,
}

impl Record {
    /// Adds what else was asked.
    pub fn extend(&mut self, other: Self) {
        let Self {
            read,
            listed,
            named,
        } = other;
        self.read.extend(read);
        self.listed.extend(listed);
        self.named.extend(named);
    }
}

impl<'a> RecordingTree<'a> {
    /// Records what is asked of `tree`.
    pub fn new(tree: &'a dyn FileTree) -> Self {
        Self {
            tree,
            record: RefCell::default(),
        }
    }

    /// What has been asked so far.
    pub fn record(&self) -> Record {
        self.record.borrow().clone()
    }
}

impl FileTree for RecordingTree<'_> {
    fn list(&self, folder: &str) -> Result<Vec<TreeEntry>, TreeError> {
        self.record.borrow_mut().listed.insert(folder.to_owned());
        self.tree.list(folder)
    }

    fn read(&self, file: &str) -> Result<Bytes, TreeError> {
        self.record.borrow_mut().read.insert(file.to_owned());
        self.tree.read(file)
    }

    fn kind(&self, folder: &str, name: &str) -> Option<TreeKind> {
        let asked = (folder.to_owned(), name.to_owned());
        self.record.borrow_mut().named.insert(asked);
        self.tree.kind(folder, name)
    }
}
