//! What a release was at another revision, put back into the files of this one.
//!
//! Restored is what belongs to the release alone: version, values and patches
//! of its entry in the environment file, and the folder of the version where git
//! has it no more. What it shares with others (values of the environment, files
//! that are extended, defaults of the bundle, macros) stays as it is, and is
//! named where it is not what it was.

mod diff;
pub(super) mod folders;
mod shared;

use serde_json::Value;

pub use diff::unified;

use super::edit::{self, Written};
use super::entry::{self, Entry, bundle, item, version};
use super::environment::{self, Merged};
use super::{FileChanges, FileTree, PatchedTree};
use crate::finding::{Finding, Kind};
use crate::object::yaml::Node;

/// Keys of a release that are its own to go back.
const KEYS: [&str; 3] = ["version", "values", "patches"];

/// A release that goes back.
pub struct Wish<'a> {
    /// Its name.
    pub release: &'a str,
    /// The files to which it goes back.
    pub then: &'a dyn FileTree,
    /// The version that is left, where going back must be said.
    pub leaves: Option<String>,
}

/// What going back does to the files.
#[derive(Debug, Clone, Default)]
pub struct Restoration {
    /// What is written, and what goes.
    pub files: FileChanges,
    /// What is restored of each release, in words, in the order of the wishes.
    pub restored: Vec<Vec<String>>,
    /// What is not what it was, and stays; and whom it concerns beside.
    pub findings: Vec<Finding>,
}

/// The version of a release at a revision, as its environment says; none where
/// there is no such release, or its bundle has no versions.
pub fn pinned(
    tree: &dyn FileTree,
    environment: &str,
    release: &str,
) -> Result<Option<String>, Vec<Finding>> {
    let merged = read(tree, environment)?;
    let item = item(&merged.node, release);
    Ok(item.and_then(version).map(str::to_owned))
}

/// Whether a release has the version of another one, with which it goes back.
pub fn is_follower(
    tree: &dyn FileTree,
    environment: &str,
    release: &str,
) -> Result<bool, Vec<Finding>> {
    let merged = read(tree, environment)?;
    Ok(item(&merged.node, release).is_some_and(follows))
}

/// Whether version, values and patches of a release are the same at two
/// revisions, with the folder of a bundle without versions.
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
                // What cannot be read may be anything.
                files.is_ok() && files == folders::files(other, &folder)
            })))
}

/// Puts releases of an environment back. Fails with every error found.
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

fn read(tree: &dyn FileTree, environment: &str) -> Result<Merged, Vec<Finding>> {
    let mut findings = Vec::new();
    environment::read(tree, environment, &mut findings).ok_or(findings)
}

/// Whether its version is that of another release.
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
        return Err(refuse(&now, what, "revert the commit that took it out"));
    };
    let Some(former) = item(&then.node, release) else {
        let what = format!("environment {environment} had no release {release} at that revision");
        return Err(refuse(&then, what, "choose another revision"));
    };
    if bundle(present) != bundle(former) {
        let what = format!("release {release} was of another bundle at that revision");
        return Err(refuse(&now, what, "revert the commit that changed it"));
    }
    if follows(present) || follows(former) {
        let what = format!("release {release} follows the version of another one");
        return Err(refuse(&now, what, "roll that one back"));
    }
    let mut own = Own::read(&tree, wish.then, &now, &then, release)?;
    let mut restored = Vec::new();
    for key in KEYS {
        restored.extend(own.restore(key, present, former)?);
    }
    own.mark(wish.leaves.as_deref(), version(former))?;
    let mut files = FileChanges::new();
    if own.entry.is_changed() {
        let Entry { file, text, .. } = own.entry;
        files.insert(file, Some(text.into()));
    }
    let mut findings = Vec::new();
    if let Some(bundle) = bundle(former) {
        let (now, then): (&dyn FileTree, _) = (&tree, wish.then);
        match version(former) {
            Some(version) => restored.extend(folders::bring_back(
                now,
                then,
                bundle,
                version,
                &mut files,
                &mut findings,
            )?),
            None => restored.extend(folders::set_back(now, then, bundle, &mut files)?),
        }
        if version(former).is_none() && !files.is_empty() {
            findings.extend(shared::users(now, bundle, environment, release));
        }
    }
    let after = PatchedTree::new(&tree, &files);
    findings.extend(shared::differences(&after, wish.then, environment, release));
    done.files.extend(files);
    done.findings.extend(findings);
    Ok(restored)
}

/// The entry of a release that is put back, and what it was.
struct Own {
    entry: Entry,
    former: String,
    former_at: Option<usize>,
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
            former: entry::text(then, &entry.file),
            former_at: entry::position(merged_then, release),
            entry,
        })
    }

    /// What the own entry had of a key at that revision.
    fn former(&self, key: &str) -> Option<Written> {
        let path = ["releases".into(), self.former_at?.into(), key.into()];
        edit::written(&self.entry.file, &self.former, &path)
            .filter(|written| !written.value.is_null())
    }

    /// Puts one key of the entry back; says what was done. Values are merged
    /// layer by layer: only those of this entry go back. Version and patches
    /// replace what lies below them, and become what they were as a whole.
    fn restore(
        &mut self,
        key: &str,
        present: &Node,
        former: &Node,
    ) -> Result<Option<String>, Vec<Finding>> {
        let own = self.former(key);
        let (now, then) = if key == "values" {
            let former = own.as_ref().map(|written| written.value.clone());
            (self.entry.present(key), former)
        } else {
            (value(present, key), value(former, key))
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
        Ok(Some(match (key, version(present), version(former)) {
            ("version", Some(now), Some(then)) => format!("version {now} -> {then}"),
            _ => key.to_owned(),
        }))
    }

    /// Whether a key comes from a file that is extended.
    fn is_from_below(&self, key: &str, present: &Node) -> bool {
        present
            .get(key)
            .is_some_and(|value| *value.file != *self.entry.file)
    }

    /// Says that going down is meant, or takes away what said it of another way.
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
