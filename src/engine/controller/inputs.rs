//! What an environment was read from: a commit that changes nothing of it changes
//! nothing of the environment either, and is not read again.

use pleach_domain::object::Digest;
use pleach_domain::repo::{FileTree as _, Record};

use crate::io::git::GitTree;

/// Everything that was asked of a tree, and what the answers were.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Inputs {
    record: Record,
    answers: Digest,
}

impl Inputs {
    /// Takes what was asked of a tree.
    pub(super) fn of(tree: &GitTree, record: Record) -> Self {
        let answers = answers(tree, &record);
        Self { record, answers }
    }

    /// Whether another tree answers all of it in the same way.
    pub(super) fn are_those_of(&self, tree: &GitTree) -> bool {
        answers(tree, &self.record) == self.answers
    }
}

/// The answers in short. Files are compared by the names that git gives to
/// their contents: nothing is read.
fn answers(tree: &GitTree, record: &Record) -> Digest {
    let files = record.read.iter().map(|file| (file, tree.content(file)));
    let folders = record.listed.iter();
    let folders = folders.map(|folder| (folder, tree.list(folder).ok()));
    let names = record.named.iter();
    let names = names.map(|(folder, name)| (folder, name, tree.kind(folder, name)));
    let said: Vec<String> = files
        .map(|answer| format!("{answer:?}"))
        .chain(folders.map(|answer| format!("{answer:?}")))
        .chain(names.map(|answer| format!("{answer:?}")))
        .collect();
    Digest::of(said.join("\n").as_bytes())
}
