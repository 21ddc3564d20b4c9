//! What an environment is to be made of.

use std::sync::Arc;

use super::Grant;
use crate::io::git::mirror::Reader;
use crate::io::git::remote::Remote;

/// What an environment is to be made of.
#[derive(Debug, Clone)]
pub(super) struct Assigned {
    /// The repository whose branch says what it is.
    pub(super) repository: String,
    /// Where that is.
    pub(super) remote: Remote,
    /// Where to, and within which limits.
    pub(super) grant: Arc<Grant>,
    /// Branch and repository, in words.
    pub(super) by: String,
    /// The commit, or why there is none.
    pub(super) what: Assignment,
    /// Why its repository cannot be reached now.
    pub(super) source: Option<String>,
    /// Which questions about the repository this answers.
    pub(super) answered: u64,
    /// Whether git has it no more: there is nothing to do once that is told.
    pub(super) is_over: bool,
}

/// The commit of an environment, or why there is none.
#[derive(Debug, Clone)]
pub(super) enum Assignment {
    /// A commit of its branch.
    Follow { commit: String, reader: Reader },
    /// It is not synced.
    Held {
        reason: &'static str,
        message: String,
    },
    /// The newest commit is not signed by somebody who counts: what was read
    /// before stays.
    Distrusted { commit: String, message: String },
    /// Its repository was not reached yet.
    Unknown,
}

impl Assigned {
    /// Whether they mean the same: mirrors are made anew without a change.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let what = match (&self.what, &other.what) {
            (Assignment::Follow { commit: a, .. }, Assignment::Follow { commit: b, .. })
            | (Assignment::Held { message: a, .. }, Assignment::Held { message: b, .. })
            | (
                Assignment::Distrusted { message: a, .. },
                Assignment::Distrusted { message: b, .. },
            ) => a == b,
            (Assignment::Unknown, Assignment::Unknown) => true,
            _ => false,
        };
        let is_same_way = Arc::ptr_eq(&self.grant, &other.grant) && self.by == other.by;
        let is_as_new = self.answered == other.answered && self.is_over == other.is_over;
        what && is_same_way && is_as_new && self.source == other.source
    }
}
