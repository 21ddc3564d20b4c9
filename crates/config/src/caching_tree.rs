//! Caching of files that are read twice.

use std::cell::RefCell;
use std::collections::HashMap;

use bytes::Bytes;

use pleach_model::data_keys::EncryptedValues;
use pleach_model::engines::Engines;
use pleach_model::tree::{FileTree, TreeEntry, TreeError, TreeKind};

/// Maximum size of the cache in bytes. Files beyond it are read again.
const LARGEST_CACHE: usize = 16 * 1024 * 1024;

/// A tree that caches each file until its second read: the files of a bundle are checked before
/// they are rendered.
pub struct CachingTree<'a> {
    tree: &'a dyn FileTree,
    cached: RefCell<Cache>,
}

#[derive(Default)]
struct Cache {
    files: HashMap<String, Bytes>,
    /// Total size of the cached files in bytes.
    bytes: usize,
}

impl<'a> CachingTree<'a> {
    /// Wraps a tree.
    pub fn new(tree: &'a dyn FileTree) -> Self {
        Self {
            tree,
            cached: RefCell::default(),
        }
    }
}

impl Cache {
    fn take(&mut self, file: &str) -> Option<Bytes> {
        let content = self.files.remove(file)?;
        self.bytes -= content.len();
        Some(content)
    }

    fn keep(&mut self, file: &str, content: &Bytes) {
        if self.bytes + content.len() <= LARGEST_CACHE {
            self.bytes += content.len();
            self.files.insert(file.to_owned(), content.clone());
        }
    }
}

impl FileTree for CachingTree<'_> {
    fn list(&self, folder: &str) -> Result<Vec<TreeEntry>, TreeError> {
        self.tree.list(folder)
    }

    fn read(&self, file: &str) -> Result<Bytes, TreeError> {
        let cached = self.cached.borrow_mut().take(file);
        if let Some(content) = cached {
            return Ok(content);
        }
        let content = self.tree.read(file)?;
        self.cached.borrow_mut().keep(file, &content);
        Ok(content)
    }

    fn kind(&self, folder: &str, name: &str) -> Option<TreeKind> {
        self.tree.kind(folder, name)
    }

    fn encrypted_values(&self) -> EncryptedValues<'_> {
        self.tree.encrypted_values()
    }

    fn engines(&self) -> Option<&dyn Engines> {
        self.tree.engines()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Files of equal size, with a read counter.
    struct Counting {
        size: usize,
        reads: Cell<usize>,
    }

    impl FileTree for Counting {
        fn list(&self, _: &str) -> Result<Vec<TreeEntry>, TreeError> {
            Ok(Vec::new())
        }

        fn read(&self, file: &str) -> Result<Bytes, TreeError> {
            self.reads.set(self.reads.get() + 1);
            Ok(Bytes::from(vec![file.as_bytes()[0]; self.size]))
        }
    }

    fn reads(size: usize, files: &[&str]) -> usize {
        let counting = Counting {
            size,
            reads: Cell::new(0),
        };
        let tree = CachingTree::new(&counting);
        for file in files {
            let content = tree.read(file).unwrap();
            assert_eq!((content.len(), content[0]), (size, file.as_bytes()[0]));
        }
        counting.reads.get()
    }

    #[test]
    fn a_repeated_read_is_cached() {
        assert_eq!(reads(1, &["a", "b", "b", "a"]), 2);
        // The second read removes the file from the cache, so a third one reads it again.
        assert_eq!(reads(1, &["a", "a", "a"]), 2);
    }

    #[test]
    fn the_cache_is_bounded() {
        assert_eq!(reads(LARGEST_CACHE / 2, &["a", "b", "c", "a", "b", "c"]), 4);
        assert_eq!(reads(LARGEST_CACHE + 1, &["a", "a"]), 2);
    }
}
