//! Folders of bundles, as they are at two revisions.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::finding::{Finding, Kind};
use crate::object::Origin;
use crate::repo::tree::{DEEPEST, is_too_deep};
use crate::repo::{FileChanges, FileTree, TreeError, TreeKind};

/// The folder of a bundle.
pub(in crate::repo) fn of_bundle(bundle: &str) -> String {
    format!("manifests/{bundle}")
}

/// All files below a folder; none where it is not there. What cannot be read
/// is an error, and what is no file is left out.
pub(in crate::repo) fn files(
    tree: &dyn FileTree,
    folder: &str,
) -> Result<BTreeMap<String, Bytes>, String> {
    let entries = match tree.list(folder) {
        Err(TreeError::Missing { .. }) => return Ok(BTreeMap::new()),
        entries => entries.map_err(|error| error.to_string())?,
    };
    let mut found = BTreeMap::new();
    for entry in entries {
        let path = format!("{folder}/{}", entry.name);
        match entry.kind {
            TreeKind::Folder if is_too_deep(&path) => {
                return Err(format!(
                    "{path}: more than {DEEPEST} levels of folders are not entered"
                ));
            }
            TreeKind::Folder => found.extend(files(tree, &path)?),
            TreeKind::File => {
                let content = tree.read(&path).map_err(|error| error.to_string())?;
                found.insert(path, content);
            }
            TreeKind::Link | TreeKind::Submodule => {}
        }
    }
    Ok(found)
}

fn unreadable(message: String) -> Vec<Finding> {
    vec![Finding::error(Kind::Repository, "unreadable-file", message)]
}

/// Brings the folder of a version back where git has it no more, and the
/// bundle's own file with it. One that is there stays: others have it too.
pub(super) fn bring_back(
    now: &dyn FileTree,
    then: &dyn FileTree,
    bundle: &str,
    version: &str,
    changes: &mut FileChanges,
    findings: &mut Vec<Finding>,
) -> Result<Option<String>, Vec<Finding>> {
    let folder = format!("{}/{version}", of_bundle(bundle));
    let (present, former) = both(now, then, &folder)?;
    let own = format!("{}/bundle.yaml", of_bundle(bundle));
    if let (Err(TreeError::Missing { .. }), Ok(content)) = (now.read(&own), then.read(&own)) {
        changes.insert(own, Some(content));
    }
    if !present.is_empty() {
        if present != former {
            findings.push(
                not_restored(&format!("{folder} was changed since"))
                    .at(Origin::new(folder, 0))
                    .hint("a version that is installed somewhere is best left as it is; other releases may use it"),
            );
        }
        return Ok(None);
    }
    for (path, content) in former {
        changes.insert(path, Some(content));
    }
    Ok(Some(folder))
}

/// Sets the folder of a bundle without versions back.
pub(super) fn set_back(
    now: &dyn FileTree,
    then: &dyn FileTree,
    bundle: &str,
    changes: &mut FileChanges,
) -> Result<Option<String>, Vec<Finding>> {
    let folder = of_bundle(bundle);
    let (present, former) = both(now, then, &folder)?;
    if present == former {
        return Ok(None);
    }
    for path in present.keys().filter(|path| !former.contains_key(*path)) {
        changes.insert(path.clone(), None);
    }
    for (path, content) in former {
        if present.get(&path) != Some(&content) {
            changes.insert(path, Some(content));
        }
    }
    Ok(Some(folder))
}

type Contents = BTreeMap<String, Bytes>;

fn both(
    now: &dyn FileTree,
    then: &dyn FileTree,
    folder: &str,
) -> Result<(Contents, Contents), Vec<Finding>> {
    let present = files(now, folder).map_err(unreadable)?;
    let former = files(then, folder).map_err(unreadable)?;
    Ok((present, former))
}

/// Something that is not what it was, and stays as it is.
pub(super) fn not_restored(what: &str) -> Finding {
    Finding::warning(
        Kind::Policy,
        "not-restored",
        format!("not restored: {what}"),
    )
}
