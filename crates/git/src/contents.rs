//! All files of a commit, for an artifact.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use pleach_model::tree::{
    FileTree as _, MOST_BYTES, MOST_ENTRIES, TreeError, TreeKind, is_too_deep,
};

use super::tree::GitTree;
use super::{Source, without_credentials};
use pleach_files::{join, unreadable};

/// Files of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// Files by path.
    pub files: BTreeMap<String, Bytes>,
    /// Paths of links and submodules, which pleach does not follow.
    pub skipped: Vec<String>,
}

impl GitTree {
    /// Returns the time of the commit. `None` if it is out of range.
    pub fn time(&self) -> Option<Timestamp> {
        Timestamp::from_second(self.seconds()?).ok()
    }

    /// Reads all files, except below names that start with a dot, which pleach does not read.
    pub fn contents(&self) -> Result<Contents, TreeError> {
        let mut contents = Contents {
            files: BTreeMap::new(),
            skipped: Vec::new(),
        };
        let (mut entries, mut bytes) = (0, 0);
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            for entry in self.list(&folder)? {
                if entry.name.starts_with('.') {
                    continue;
                }
                let path = join(&folder, &entry.name);
                entries += 1;
                if entries > MOST_ENTRIES {
                    let why = format!("there are more than {MOST_ENTRIES} files and folders");
                    return Err(unreadable(&path, why));
                }
                match entry.kind {
                    TreeKind::Folder if is_too_deep(&path) => {
                        return Err(unreadable(&path, "it is too deep"));
                    }
                    TreeKind::Folder => folders.push(path),
                    TreeKind::Link | TreeKind::Submodule => contents.skipped.push(path),
                    TreeKind::File => {
                        let content = self.read(&path)?;
                        bytes += content.len();
                        if bytes > MOST_BYTES {
                            let why = format!("the files exceed {} MiB", MOST_BYTES >> 20);
                            return Err(unreadable(&path, why));
                        }
                        contents.files.insert(path, content);
                    }
                }
            }
        }
        contents.skipped.sort();
        Ok(contents)
    }
}

impl Source {
    /// Returns the URL of a remote without user name and password. `None` if there is no remote of
    /// this name.
    pub fn public_remote(&self, name: &str) -> Option<String> {
        let url = without_credentials(&self.remote(name)?);
        Some(url.replace("\u{2026}@", ""))
    }
}
