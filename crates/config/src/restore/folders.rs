//! Comparison of bundle folders at two revisions.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::FileChanges;
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::Origin;
use pleach_model::tree::{
    DEEPEST, FileTree, MOST_BYTES, MOST_ENTRIES, TreeEntry, TreeError, TreeKind, is_too_deep,
};

/// Returns the folder of a bundle.
pub(crate) fn of_bundle(bundle: &str) -> String {
    format!("manifests/{bundle}")
}

type Contents = BTreeMap<String, Bytes>;

/// Reads all files below a folder. Empty if the folder does not exist. Fails for unreadable files
/// and for folders that exceed the limits of a bundle. Skips links and submodules.
pub(crate) fn files(tree: &dyn FileTree, folder: &str) -> Result<Contents, Box<Finding>> {
    let mut walk = Walk {
        tree,
        folder,
        found: Contents::new(),
        entries: 0,
        bytes: 0,
    };
    walk.enter(folder)?;
    Ok(walk.found)
}

/// State of reading a folder.
struct Walk<'a> {
    tree: &'a dyn FileTree,
    folder: &'a str,
    found: Contents,
    /// Number of files and folders so far.
    entries: usize,
    /// Total size of the files so far, in bytes.
    bytes: usize,
}

impl Walk<'_> {
    fn enter(&mut self, folder: &str) -> Result<(), Box<Finding>> {
        let entries = match self.tree.list(folder) {
            Err(TreeError::Missing { .. }) => return Ok(()),
            entries => entries.map_err(|error| unreadable(&error))?,
        };
        entries
            .into_iter()
            .try_for_each(|entry| self.meet(folder, &entry))
    }

    fn meet(&mut self, folder: &str, entry: &TreeEntry) -> Result<(), Box<Finding>> {
        let path = format!("{folder}/{}", entry.name);
        self.entries += 1;
        if self.entries > MOST_ENTRIES {
            return Err(self.too_much(&format!("more than {MOST_ENTRIES} files and folders")));
        }
        match entry.kind {
            TreeKind::Folder if is_too_deep(&path) => {
                let message = format!("folders are nested more than {DEEPEST} levels deep");
                return Err(error("too-deep", message).at(Origin::new(path, 0)).into());
            }
            TreeKind::Folder => self.enter(&path)?,
            TreeKind::File => {
                let content = self.tree.read(&path).map_err(|error| unreadable(&error))?;
                self.bytes += content.len();
                if self.bytes > MOST_BYTES {
                    let most = MOST_BYTES / 1024 / 1024;
                    return Err(self.too_much(&format!("more than {most} MiB of files")));
                }
                self.found.insert(path, content);
            }
            TreeKind::Link | TreeKind::Submodule => {}
        }
        Ok(())
    }

    fn too_much(&self, message: &str) -> Box<Finding> {
        let hint = format!(
            "this exceeds the limit of a bundle; `git checkout REVISION -- {}` restores the files anyway",
            self.folder
        );
        let finding = error("too-many-files", message.to_owned());
        let finding = finding.at(Origin::new(self.folder, 0)).hint(hint);
        Box::new(finding)
    }
}

fn error(code: &str, message: String) -> Finding {
    Finding::error(Kind::Repository, code, message)
}

fn unreadable(problem: &TreeError) -> Box<Finding> {
    Box::new(error("unreadable-file", problem.to_string()))
}

/// Restores the folder of a version that git no longer contains, and the bundle's own file. An
/// existing folder stays, because other releases can use it.
pub(super) fn restore_version(
    now: &dyn FileTree,
    then: &dyn FileTree,
    bundle: &str,
    version: &str,
    changes: &mut FileChanges,
    findings: &mut Vec<Finding>,
) -> Result<Option<String>, Vec<Finding>> {
    let folder = format!("{}/{version}", of_bundle(bundle));
    let (present, previous) = both(now, then, &folder)?;
    let own = format!("{}/bundle.yaml", of_bundle(bundle));
    if let (Err(TreeError::Missing { .. }), Ok(content)) = (now.read(&own), then.read(&own)) {
        changes.insert(own, Some(content));
    }
    if !present.is_empty() {
        if present != previous {
            findings.push(
                not_restored(&format!("{folder} was changed since"))
                    .at(Origin::new(folder, 0))
                    .hint("do not change a version that other releases can use"),
            );
        }
        return Ok(None);
    }
    for (path, content) in previous {
        changes.insert(path, Some(content));
    }
    Ok(Some(folder))
}

/// Restores the folder of a bundle without versions.
pub(super) fn restore_folder(
    now: &dyn FileTree,
    then: &dyn FileTree,
    bundle: &str,
    changes: &mut FileChanges,
) -> Result<Option<String>, Vec<Finding>> {
    let folder = of_bundle(bundle);
    let (present, previous) = both(now, then, &folder)?;
    if present == previous {
        return Ok(None);
    }
    for path in present.keys().filter(|path| !previous.contains_key(*path)) {
        changes.insert(path.clone(), None);
    }
    for (path, content) in previous {
        if present.get(&path) != Some(&content) {
            changes.insert(path, Some(content));
        }
    }
    Ok(Some(folder))
}

fn both(
    now: &dyn FileTree,
    then: &dyn FileTree,
    folder: &str,
) -> Result<(Contents, Contents), Vec<Finding>> {
    let read = |tree: &dyn FileTree| files(tree, folder).map_err(|finding| vec![*finding]);
    Ok((read(now)?, read(then)?))
}

/// Reports a difference that is not restored.
pub(super) fn not_restored(what: &str) -> Finding {
    Finding::warning(
        Kind::Policy,
        "not-restored",
        format!("not restored: {what}"),
    )
}
