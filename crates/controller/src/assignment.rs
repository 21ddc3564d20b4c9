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
    /// Whether previous commits can be fetched. Artifacts have none.
    pub(super) has_history: bool,
    /// Source policy: the cluster and the restrictions.
    pub(super) source_policy: Arc<SourcePolicy>,
    /// Branch and repository, as text.
    pub(super) origin: String,
    /// The commit, or the reason why there is none.
    pub(super) commit: AssignedCommit,
    /// Error if the repository is unreachable now.
    pub(super) source: Option<String>,
    /// Sequence number of the latest fetch request that this answers.
    pub(super) answered: u64,
    /// Whether git no longer contains the environment. Its task ends once that is reported.
    pub(super) is_removed: bool,
}

/// Commit of an environment, or the reason why there is none.
#[derive(Debug, Clone)]
pub(super) enum AssignedCommit {
    /// A commit of its branch.
    Followed { commit: String, reader: Reader },
    /// The environment is stalled.
    Stalled {
        reason: &'static str,
        message: String,
    },
    /// The newest commit lacks a trusted signature. The last loaded commit stays in effect.
    Untrusted {
        reason: &'static str,
        commit: String,
        message: String,
    },
    /// The repository was not fetched yet.
    Unknown,
}

impl Assigned {
    /// Returns the facts that decide about an environment.
    pub(super) fn facts(&self, environment: &str) -> AssignmentFacts {
        let commit = match &self.commit {
            AssignedCommit::Followed { commit, reader: _ } => Commit::Followed(commit.clone()),
            AssignedCommit::Stalled { reason, message } => Commit::Stalled {
                reason: (*reason).to_owned(),
                message: message.clone(),
            },
            AssignedCommit::Untrusted {
                reason,
                commit,
                message,
            } => Commit::Untrusted {
                reason: (*reason).to_owned(),
                commit: commit.clone(),
                message: message.clone(),
            },
            AssignedCommit::Unknown => Commit::Unknown,
        };
        AssignmentFacts {
            commit,
            origin: self.origin.clone(),
            has_branch: self.source_policy.source(environment).is_some(),
            unreachable: self.source.clone(),
            answered: self.answered,
            is_removed: self.is_removed,
            cluster: self.source_policy.cluster.clone(),
            fallback: self.source_policy.fallback.clone(),
        }
    }

    /// Returns whether both assign the same content. A recreated mirror does not count as a change.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let is_same_commit = match (&self.commit, &other.commit) {
            (
                AssignedCommit::Followed { commit: a, .. },
                AssignedCommit::Followed { commit: b, .. },
            )
            | (
                AssignedCommit::Stalled { message: a, .. },
                AssignedCommit::Stalled { message: b, .. },
            )
            | (
                AssignedCommit::Untrusted { message: a, .. },
                AssignedCommit::Untrusted { message: b, .. },
            ) => a == b,
            (AssignedCommit::Unknown, AssignedCommit::Unknown) => true,
            _ => false,
        };
        let is_same_way =
            Arc::ptr_eq(&self.source_policy, &other.source_policy) && self.origin == other.origin;
        let is_as_new = self.answered == other.answered && self.is_removed == other.is_removed;
        is_same_commit && is_same_way && is_as_new && self.source == other.source
    }
}
