//! Assignments: the source and commit of each environment.

use std::sync::Arc;

use pleach_reconciler::environment::{AssignmentFacts, Commit};

use super::SourcePolicy;
use pleach_git::mirror::Reader;
use pleach_git::remote::Remote;

/// Assignment of an environment.
#[derive(Debug, Clone)]
pub(super) struct Assigned {
    /// The repository with its branch.
    pub(super) repository: String,
    /// The remote of the repository.
    pub(super) remote: Remote,
    /// Source policy: the cluster and the restrictions.
    pub(super) grant: Arc<SourcePolicy>,
    /// Branch and repository, as text.
    pub(super) origin: String,
    /// The commit, or the reason why there is none.
    pub(super) what: Assignment,
    /// Error if the repository is unreachable now.
    pub(super) source: Option<String>,
    /// Sequence number of the latest fetch request that this answers.
    pub(super) answered: u64,
    /// Whether git no longer contains the environment. Its task ends once that is reported.
    pub(super) is_removed: bool,
}

/// Commit of an environment, or the reason why there is none.
#[derive(Debug, Clone)]
pub(super) enum Assignment {
    /// A commit of its branch.
    Follow { commit: String, reader: Reader },
    /// The environment is stalled.
    Held {
        reason: &'static str,
        message: String,
    },
    /// The newest commit lacks a trusted signature. The last loaded commit stays in effect.
    Distrusted { commit: String, message: String },
    /// The repository was not reached yet.
    Unknown,
}

impl Assigned {
    /// Returns the facts that decide about an environment.
    pub(super) fn facts(&self, environment: &str) -> AssignmentFacts {
        let commit = match &self.what {
            Assignment::Follow { commit, reader: _ } => Commit::Followed(commit.clone()),
            Assignment::Held { reason, message } => Commit::Stalled {
                reason: (*reason).to_owned(),
                message: message.clone(),
            },
            Assignment::Distrusted { commit, message } => Commit::Untrusted {
                commit: commit.clone(),
                message: message.clone(),
            },
            Assignment::Unknown => Commit::Unknown,
        };
        AssignmentFacts {
            commit,
            origin: self.origin.clone(),
            has_branch: self.grant.source(environment).is_some(),
            unreachable: self.source.clone(),
            answered: self.answered,
            is_removed: self.is_removed,
            cluster: self.grant.cluster.clone(),
            fallback: self.grant.fallback.clone(),
        }
    }

    /// Returns whether both assign the same content. A recreated mirror does not count as a change.
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
        let is_same_way = Arc::ptr_eq(&self.grant, &other.grant) && self.origin == other.origin;
        let is_as_new = self.answered == other.answered && self.is_removed == other.is_removed;
        what && is_same_way && is_as_new && self.source == other.source
    }
}
