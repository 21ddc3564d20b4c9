//! Entry of a release in an environment's own file, edited as text to preserve the rest of the
//! file.

use serde_json::Value;

use super::edit::{self, EditError, Step, Written};
use super::environment::{Merged, release_name};
use pleach_model::finding::{Finding, Kind};
use pleach_model::object::{Origin, yaml::Node};
use pleach_model::tree::FileTree;

/// Entry of a release within the text of its file.
pub(super) struct Entry {
    /// Path of the file within the repository.
    pub(super) file: String,
    /// Text with all changes so far.
    pub(super) text: String,
    before: String,
    /// Index of the release in the file's list.
    at: usize,
    /// Whether the entry itself was changed, beyond adding it.
    touched: bool,
}

/// Returns the entry of a release in a file, or in the merged environment.
pub(super) fn item<'n>(file: &'n Node, release: &str) -> Option<&'n Node> {
    let mut items = file.get("releases")?.items().iter();
    items.find(|item| release_name(item) == Some(release))
}

/// Returns the index of a release in the environment's own file.
pub(super) fn position(merged: &Merged, release: &str) -> Option<usize> {
    let items = merged.own().get("releases").map_or(&[][..], Node::items);
    items
        .iter()
        .position(|item| release_name(item) == Some(release))
}

/// Returns the version that an entry names.
pub(super) fn version(item: &Node) -> Option<&str> {
    item.get("version")?.as_str()
}

/// Returns the bundle that an entry names.
pub(super) fn bundle(item: &Node) -> Option<&str> {
    item.get("bundle")?.as_str()
}

/// Returns the text of an environment's own file.
pub(super) fn text(tree: &dyn FileTree, file: &str) -> String {
    let bytes = tree.read(file).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Entry {
    /// Finds the entry. If only an extended file contains it, adds an entry that overrides that
    /// one.
    pub(super) fn read(
        tree: &dyn FileTree,
        merged: &Merged,
        release: &str,
    ) -> Result<Self, Vec<Finding>> {
        let file = merged.own().file.to_string();
        let before = text(tree, &file);
        let mut entry = Self {
            text: before.clone(),
            before,
            at: 0,
            touched: false,
            file,
        };
        match position(merged, release) {
            Some(at) => entry.at = at,
            None => entry.add(merged, release)?,
        }
        Ok(entry)
    }

    fn add(&mut self, merged: &Merged, release: &str) -> Result<(), Vec<Finding>> {
        let entry = serde_json::json!({ "name": release });
        let (path, value) = match merged.own().get("releases").map(Node::items) {
            Some(items) if !items.is_empty() => {
                self.at = items.len();
                (vec!["releases".into(), items.len().into()], entry)
            }
            _ => (vec!["releases".into()], serde_json::json!([entry])),
        };
        let written = Written { value, text: None };
        self.text = edit::set(&self.file, &self.text, &path, &written)
            .map_err(|error| self.by_hand(&error))?;
        Ok(())
    }

    /// Returns whether the text of the file has changed.
    pub(super) fn is_changed(&self) -> bool {
        self.touched && self.text != self.before
    }

    /// Returns the value of a key. `None` if absent or null.
    pub(super) fn present(&self, key: &str) -> Option<Value> {
        let written = edit::written(&self.file, &self.text, &self.path(key))?;
        Some(written.value).filter(|value| !value.is_null())
    }

    /// Sets a key of the entry.
    pub(super) fn set(&mut self, key: &str, to: &Written) -> Result<(), Vec<Finding>> {
        self.text = edit::set(&self.file, &self.text, &self.path(key), to)
            .map_err(|error| self.by_hand(&error))?;
        self.touched = true;
        Ok(())
    }

    /// Removes a key of the entry.
    pub(super) fn remove(&mut self, key: &str) -> Result<(), Vec<Finding>> {
        self.text = edit::remove(&self.file, &self.text, &self.path(key))
            .map_err(|error| self.by_hand(&error))?;
        self.touched = true;
        Ok(())
    }

    fn path(&self, key: &str) -> Vec<Step> {
        vec!["releases".into(), self.at.into(), key.into()]
    }

    fn by_hand(&self, error: &EditError) -> Vec<Finding> {
        vec![
            Finding::error(Kind::Repository, "not-editable", error.to_string())
                .at(Origin::new(self.file.clone(), 0))
                .hint("write it as plain maps and lists, without anchors, or edit it by hand"),
        ]
    }
}
