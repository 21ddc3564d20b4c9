//! Reads an environment at a commit, where that is another one than before.

use pleach_domain::finding::Finding;
use pleach_domain::repo::{FileTree, RecordingTree};

use super::inputs::Inputs;
use crate::engine::load::{Loaded, is_unknown, read_all};
use crate::engine::words;
use crate::io::git::Revision;
use crate::io::git::mirror::Reader;

/// How long the message of a condition is at most.
const LONGEST_MESSAGE: usize = 1024;

/// Why nothing newer of an environment is synced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hold {
    pub(super) reason: String,
    pub(super) message: String,
    /// The commit that is held, where one is the reason.
    pub(super) revision: Option<String>,
}

impl Hold {
    pub(super) fn new(reason: &str, message: impl Into<String>) -> Self {
        let mut message: String = message.into();
        if message.len() > LONGEST_MESSAGE {
            let end = message.floor_char_boundary(LONGEST_MESSAGE);
            message.truncate(end);
            message.push('…');
        }
        Self {
            reason: reason.to_owned(),
            message,
            revision: None,
        }
    }
}

/// What reading an environment came to, and what it was read from; the last is not
/// there where the commit is not at hand.
pub(super) type Read = (Result<Loaded, Hold>, Option<Inputs>);

/// Reads an environment at a commit, or says why it cannot be synced. None where
/// it would be the same as what was read from `known`.
pub(super) fn load(
    reader: &Reader,
    commit: &str,
    name: &str,
    known: Option<&Inputs>,
) -> Option<Read> {
    let tree = match reader.tree(commit) {
        Ok(tree) => tree,
        Err(error) => {
            return Some((Err(Hold::new("InvalidRepository", words(&error))), None));
        }
    };
    if known.is_some_and(|known| known.are_those_of(&tree)) {
        return None;
    }
    let recording = RecordingTree::new(&tree);
    let read = load_from(&recording, commit, name);
    let inputs = Inputs::of(&tree, recording.record());
    Some((read, Some(inputs)))
}

/// Reads an environment at a commit, whatever it was before.
pub(super) fn load_anew(reader: &Reader, commit: &str, name: &str) -> Result<Loaded, Hold> {
    let tree = reader.tree(commit);
    let tree = tree.map_err(|error| Hold::new("InvalidRepository", words(&error)))?;
    load_from(&tree, commit, name)
}

fn load_from(tree: &dyn FileTree, commit: &str, name: &str) -> Result<Loaded, Hold> {
    let short = commit.get(..7).unwrap_or(commit);
    let invalid = |findings: &[Finding]| {
        let errors: Vec<String> = findings
            .iter()
            .filter(|finding| finding.is_error())
            .map(ToString::to_string)
            .collect();
        let reason = if is_unknown(findings) {
            "EnvironmentMissing"
        } else {
            "InvalidRepository"
        };
        Hold::new(reason, format!("commit {short}: {}", errors.join("; ")))
    };
    let loaded = read_all(tree, Revision::Commit(commit.to_owned()), name)
        .map_err(|findings| invalid(&findings))?;
    if !loaded.is_sound() {
        return Err(invalid(&loaded.findings));
    }
    let elsewhere = loaded.rendered.iter().find(|(release, _)| {
        let former = release.moved_from.as_ref();
        former.is_some_and(|former| former.environment != name)
    });
    if let Some((release, _)) = elsewhere {
        // One branch would take what another branch holds.
        return Err(Hold::new(
            "InvalidRepository",
            format!(
                "commit {short}: {}: release {} takes over objects of another environment, which is done from the desk: `pleach apply {name}`",
                release.origin, release.name.release
            ),
        ));
    }
    Ok(loaded)
}
