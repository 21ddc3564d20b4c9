//! Recording of the files that a result depends on.

use std::cell::RefCell;
use std::collections::BTreeSet;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use pleach_model::data_keys::EncryptedValues;
use pleach_model::engines::Engines;
use pleach_model::tree::{FileTree, TreeEntry, TreeError, TreeKind};

/// A tree that records all requests, including failed ones. Changes of other files cannot change a
/// result computed from it.
pub struct RecordingTree<'a> {
    tree: &'a dyn FileTree,
    record: RefCell<Record>,
}

/// Requests to a tree.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Files that were read.
    pub read: BTreeSet<String>,
    /// Folders that were listed.
    pub listed: BTreeSet<String>,
    /// Folder and name pairs whose kind was requested.
    pub named: BTreeSet<(String, String)>,
}

impl Record {
    /// Adds the requests of another record.
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
    /// Wraps a tree.
    pub fn new(tree: &'a dyn FileTree) -> Self {
        Self {
            tree,
            record: RefCell::default(),
        }
    }

    /// Returns the requests so far.
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
        let query = (folder.to_owned(), name.to_owned());
        self.record.borrow_mut().named.insert(query);
        self.tree.kind(folder, name)
    }

    fn encrypted_values(&self) -> EncryptedValues<'_> {
        self.tree.encrypted_values()
    }

    fn engines(&self) -> Option<&dyn Engines> {
        self.tree.engines()
    }
}
