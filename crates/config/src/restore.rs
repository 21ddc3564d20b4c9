//! Rollback of a release: restores files from another revision.
//!
//! Only what belongs to the release alone is restored: version, values and patches of its entry in
//! the environment file, and the version's folder if git no longer contains it. Shared files stay:
//! values of the environment, extended files, defaults of the bundle, macros. Their differences are
//! reported.

mod diff;
pub(super) mod folders;
mod shared;

use serde_json::Value;

pub use diff::unified;

use super::edit::{self, Written};
use super::entry::{self, Entry, bundle, item, version};
use super::environment::{Merged, read_merged as read};
use super::{FileChanges, PatchedTree};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::yaml::Node;
use pleach_model::tree::FileTree;

/// Keys of a release's entry that are restored.
const KEYS: [&str; 3] = ["version", "values", "patches"];

/// A release to roll back.
pub struct Wish<'a> {
    /// Name of the release.
    pub release: &'a str,
    /// Files of the target revision.
    pub then: &'a dyn FileTree,
    /// Present version, if the entry needs a `rollback` key for the downgrade.
    pub leaves: Option<String>,
}

/// Result of a rollback.
#[derive(Debug, Clone, Default)]
pub struct Restoration {
    /// Changed and deleted files.
    pub files: FileChanges,
    /// Descriptions of the restored parts, one list for each wish, in their order.
    pub restored: Vec<Vec<String>>,
    /// Differences that remain, and other users of the restored files.
    pub findings: Vec<Finding>,
}

/// Returns the version of a release in an environment file. `None` if the release does not exist,
/// or its bundle has no versions.
pub fn pinned(
    tree: &dyn FileTree,
    environment: &str,
    release: &str,
) -> Result<Option<String>, Vec<Finding>> {
    let merged = read(tree, environment)?;
    let item = item(&merged.node, release);
    Ok(item.and_then(version).map(str::to_owned))
}

/// Returns whether a release takes its version from another one. It is then rolled back together
/// with that release.
pub fn is_follower(
    tree: &dyn FileTree,
    environment: &str,
    release: &str,
) -> Result<bool, Vec<Finding>> {
    let merged = read(tree, environment)?;
    Ok(item(&merged.node, release).is_some_and(follows))
}

/// Returns whether version, values and patches of a release are equal at two revisions. For a
/// bundle without versions, its folder must be equal, too.
pub fn is_same(
    one: &dyn FileTree,
    other: &dyn FileTree,
    environment: &str,
    release: &str,
) -> Result<bool, Vec<Finding>> {
    let (first, second) = (read(one, environment)?, read(other, environment)?);
    let (Some(a), Some(b)) = (item(&first.node, release), item(&second.node, release)) else {
        return Ok(false);
    };
    let same = |key: &str| value(a, key) == value(b, key);
    Ok(KEYS.iter().all(|key| same(key))
        && same("bundle")
        && (version(a).is_some()
            || bundle(a).is_none_or(|bundle| {
                let folder = folders::of_bundle(bundle);
                let files = folders::files(one, &folder);
                // Unreadable files count as different.
                files.is_ok() && files == folders::files(other, &folder)
            })))
}

/// Rolls back releases of an environment. Fails with every error found.
pub fn restore(
    now: &dyn FileTree,
    environment: &str,
    wishes: &[Wish<'_>],
) -> Result<Restoration, Vec<Finding>> {
    let mut done = Restoration::default();
    let mut errors = Vec::new();
    for wish in wishes {
        match one(now, environment, wish, &mut done) {
            Ok(restored) => done.restored.push(restored),
            Err(found) => errors.extend(found),
        }
    }
    if errors.is_empty() {
        Ok(done)
    } else {
        Err(errors)
    }
}

/// Returns whether the version is taken from another release.
fn follows(item: &Node) -> bool {
    item.get("versionFrom").is_some_and(|node| !node.is_null())
}

fn value(item: &Node, key: &str) -> Option<Value> {
    item.get(key)
        .filter(|value| !value.is_null())
        .map(Node::to_value)
}

fn one(
    base: &dyn FileTree,
    environment: &str,
    wish: &Wish<'_>,
    done: &mut Restoration,
) -> Result<Vec<String>, Vec<Finding>> {
    let release = wish.release;
    let tree = PatchedTree::new(base, &done.files);
    let (now, then) = (read(&tree, environment)?, read(wish.then, environment)?);
    let refuse = |file: &Merged, what: String, hint: &str| {
        vec![
            Finding::error(Kind::Repository, "unknown-release", what)
                .at(file.node.origin())
                .hint(hint),
        ]
    };
    let Some(present) = item(&now.node, release) else {
        let what = format!("environment {environment} has no release {release}");
        return Err(refuse(&now, what, "revert the commit that removed it"));
    };
    let Some(previous) = item(&then.node, release) else {
        let what = format!("environment {environment} had no release {release} at that revision");
        return Err(refuse(&then, what, "choose another revision"));
    };
    if bundle(present) != bundle(previous) {
        let what = format!("release {release} used another bundle at that revision");
        return Err(refuse(&now, what, "revert the commit that changed it"));
    }
    if follows(present) || follows(previous) {
        let what = format!("release {release} follows the version of another one");
        return Err(refuse(&now, what, "roll back that release"));
    }
    let mut own = Own::read(&tree, wish.then, &now, &then, release)?;
    let mut restored = Vec::new();
    for key in KEYS {
        restored.extend(own.restore(key, present, previous)?);
    }
    own.mark(wish.leaves.as_deref(), version(previous))?;
    let mut files = FileChanges::new();
    if own.entry.is_changed() {
        let Entry { file, text, .. } = own.entry;
        files.insert(file, Some(text.into()));
    }
    let mut findings = Vec::new();
    if let Some(bundle) = bundle(previous) {
        let (now, then): (&dyn FileTree, _) = (&tree, wish.then);
        match version(previous) {
            Some(version) => restored.extend(folders::restore_version(
                now,
                then,
                bundle,
                version,
                &mut files,
                &mut findings,
            )?),
            None => restored.extend(folders::restore_folder(now, then, bundle, &mut files)?),
        }
        if version(previous).is_none() && !files.is_empty() {
            findings.extend(shared::users(now, bundle, environment, release));
        }
    }
    let after = PatchedTree::new(&tree, &files);
    findings.extend(shared::differences(&after, wish.then, environment, release));
    done.files.extend(files);
    done.findings.extend(findings);
    Ok(restored)
}

/// Entry of a release to restore, and its previous text.
struct Own {
    entry: Entry,
    previous: String,
    previous_at: Option<usize>,
}

impl Own {
    fn read(
        now: &dyn FileTree,
        then: &dyn FileTree,
        merged: &Merged,
        merged_then: &Merged,
        release: &str,
    ) -> Result<Self, Vec<Finding>> {
        let entry = Entry::read(now, merged, release)?;
        Ok(Self {
            previous: entry::text(then, &entry.file),
            previous_at: entry::position(merged_then, release),
            entry,
        })
    }

    /// Returns a key of the entry at the target revision.
    fn previous(&self, key: &str) -> Option<Written> {
        let path = ["releases".into(), self.previous_at?.into(), key.into()];
        edit::written(&self.entry.file, &self.previous, &path)
            .filter(|written| !written.value.is_null())
    }

    /// Restores one key of the entry. Returns a description of the change. Values are merged layer
    /// by layer, so only the values of this entry are restored. Version and patches override lower
    /// layers, so their merged value is restored.
    fn restore(
        &mut self,
        key: &str,
        present: &Node,
        previous: &Node,
    ) -> Result<Option<String>, Vec<Finding>> {
        let own = self.previous(key);
        let (now, then) = if key == "values" {
            let previous = own.as_ref().map(|written| written.value.clone());
            (self.entry.present(key), previous)
        } else {
            (value(present, key), value(previous, key))
        };
        if now == then {
            return Ok(None);
        }
        match (own, then) {
            (Some(own), Some(then)) if own.value == then => self.entry.set(key, &own)?,
            (_, Some(value)) => self.entry.set(key, &Written { value, text: None })?,
            (_, None) if self.is_from_below(key, present) => {
                self.entry.set(key, &Written::in_one_line(Value::Null))?;
            }
            (_, None) => self.entry.remove(key)?,
        }
        Ok(Some(match (key, version(present), version(previous)) {
            ("version", Some(now), Some(then)) => format!("version {now} -> {then}"),
            _ => key.to_owned(),
        }))
    }

    /// Returns whether a key comes from an extended file.
    fn is_from_below(&self, key: &str, present: &Node) -> bool {
        present
            .get(key)
            .is_some_and(|value| *value.file != *self.entry.file)
    }

    /// Sets the `rollback` key for a downgrade, or removes an obsolete one.
    fn mark(&mut self, leaves: Option<&str>, to: Option<&str>) -> Result<(), Vec<Finding>> {
        match (leaves, to) {
            (Some(from), Some(to)) => {
                let value = serde_json::json!({"from": from, "to": to});
                self.entry.set("rollback", &Written::in_one_line(value))
            }
            _ if self.entry.present("rollback").is_some() => self.entry.remove("rollback"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
