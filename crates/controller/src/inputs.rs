//! Inputs of an environment: a commit that changes none of them does not reload it.

use pleach_config::Record;
use pleach_model::object::Digest;
use pleach_model::tree::{FileTree, TreeError, TreeKind};
use serde::Serialize;

use pleach_git::GitTree;

/// All queries to a file tree with their answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Inputs {
    record: Record,
    /// Digest of the answers. `None` after a failed query: then never equal, not even to itself.
    answers: Option<Digest>,
}

impl Inputs {
    /// Collects the answers of a tree to recorded queries.
    pub(super) fn of(tree: &GitTree, record: Record) -> Self {
        let answers = answers(tree, &record);
        Self { record, answers }
    }

    /// Returns whether another tree gives the same answers.
    pub(super) fn are_those_of(&self, tree: &GitTree) -> bool {
        let now = answers(tree, &self.record);
        now.is_some() && now == self.answers
    }
}

/// A file tree that identifies contents without reading them.
trait Contents: FileTree {
    /// Returns an id of the content at a path. Equal contents have equal ids.
    fn content(&self, path: &str) -> Result<String, TreeError>;
    /// Returns the kind of an entry in a folder.
    fn named(&self, folder: &str, name: &str) -> Result<TreeKind, TreeError>;
}

impl Contents for GitTree {
    fn content(&self, path: &str) -> Result<String, TreeError> {
        Self::content(self, path)
    }

    fn named(&self, folder: &str, name: &str) -> Result<TreeKind, TreeError> {
        Self::named(self, folder, name)
    }
}

/// Answers to the queries of a record, in its order; `None` for a missing file.
#[derive(Debug, Serialize)]
struct Answers {
    read: Vec<Option<String>>,
    listed: Vec<Option<Vec<(String, Kind)>>>,
    named: Vec<Option<Kind>>,
}

/// Serializable form of [`TreeKind`].
#[derive(Debug, Clone, Copy, Serialize)]
enum Kind {
    File,
    Folder,
    Link,
    Submodule,
}

impl From<TreeKind> for Kind {
    fn from(kind: TreeKind) -> Self {
        match kind {
            TreeKind::File => Self::File,
            TreeKind::Folder => Self::Folder,
            TreeKind::Link => Self::Link,
            TreeKind::Submodule => Self::Submodule,
        }
    }
}

/// Digests the answers; `None` if a query failed. Files are compared by their git object ids,
/// without reading them.
fn answers(tree: &impl Contents, record: &Record) -> Option<Digest> {
    let Record {
        read,
        listed,
        named,
    } = record;
    let list = |folder: &String| {
        let entries = tree.list(folder)?.into_iter();
        Ok(entries
            .map(|entry| (entry.name, entry.kind.into()))
            .collect())
    };
    let kind = |(folder, name): &(String, String)| tree.named(folder, name).map(Kind::from);
    let answers = Answers {
        read: all(read.iter().map(|file| tree.content(file)))?,
        listed: all(listed.iter().map(list))?,
        named: all(named.iter().map(kind))?,
    };
    let text = serde_json::to_vec(&answers).ok()?;
    Some(Digest::of(&text))
}

/// Collects answers. A missing file is an answer; any other error makes it `None`.
fn all<T>(answers: impl Iterator<Item = Result<T, TreeError>>) -> Option<Vec<Option<T>>> {
    answers
        .map(|answer| match answer {
            Ok(answer) => Some(Some(answer)),
            Err(TreeError::Missing { .. }) => Some(None),
            Err(TreeError::Unreadable { .. }) => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pleach_model::tree::{MemoryTree, TreeEntry};

    use super::*;

    /// Files in memory, optionally with an unreadable folder.
    struct Tree {
        files: MemoryTree,
        broken: Option<&'static str>,
    }

    impl Tree {
        fn new(files: &[(&str, &str)], broken: Option<&'static str>) -> Self {
            let files = files.iter().map(|(path, text)| {
                let text = Bytes::copy_from_slice(text.as_bytes());
                ((*path).to_owned(), text)
            });
            Self {
                files: MemoryTree::new(files),
                broken,
            }
        }

        fn check(&self, path: &str) -> Result<(), TreeError> {
            match self.broken {
                Some(broken) if path.starts_with(broken) => Err(TreeError::Unreadable {
                    path: path.to_owned(),
                    reason: "a broken disk".to_owned(),
                }),
                _ => Ok(()),
            }
        }
    }

    impl FileTree for Tree {
        fn list(&self, folder: &str) -> Result<Vec<TreeEntry>, TreeError> {
            self.check(folder)?;
            self.files.list(folder)
        }

        fn read(&self, file: &str) -> Result<Bytes, TreeError> {
            self.check(file)?;
            self.files.read(file)
        }
    }

    impl Contents for Tree {
        fn content(&self, path: &str) -> Result<String, TreeError> {
            Ok(format!("{:?}", self.read(path)?))
        }

        fn named(&self, folder: &str, name: &str) -> Result<TreeKind, TreeError> {
            self.check(folder)?;
            let missing = || TreeError::Missing {
                path: format!("{folder}/{name}"),
            };
            self.files.kind(folder, name).ok_or_else(missing)
        }
    }

    #[test]
    fn an_error_is_no_answer() {
        let record = Record {
            read: ["a/file".to_owned()].into(),
            listed: ["b".to_owned()].into(),
            named: [("c".to_owned(), "name".to_owned())].into(),
        };
        let good = [("a/file", "x"), ("b/one", ""), ("c/name", "")];
        let of = |files: &[(&str, &str)], broken| answers(&Tree::new(files, broken), &record);
        let known = of(&good, None);
        assert!(known.is_some());
        assert_eq!(of(&good, None), known);
        // A missing file gives a different answer, for each file another one.
        let gone = (0..3).map(|at| {
            let mut files = good.to_vec();
            files.remove(at);
            of(&files, None).unwrap()
        });
        let mut different: Vec<Digest> = gone.chain(known).collect();
        different.sort();
        different.dedup();
        assert_eq!(different.len(), 4);
        for broken in ["a", "b", "c"] {
            assert_eq!(of(&good, Some(broken)), None, "{broken}");
        }
    }
}
