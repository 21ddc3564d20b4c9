//! Reasons why an environment or a release is stalled.

use pleach_planner::observe::ClusterId;

/// Reason of an environment that the commit does not contain. It is not synced any more.
pub const ENVIRONMENT_MISSING: &str = "EnvironmentMissing";
/// Longest message of a condition, in bytes.
const LONGEST_MESSAGE: usize = 1024;

/// Reason why an environment is stalled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stall {
    /// Reason of the condition, in one word.
    pub reason: String,
    /// Message of the condition.
    pub message: String,
    /// The stalled commit, if one is the cause.
    pub revision: Option<String>,
}

impl Stall {
    /// Creates a stall without a commit. Truncates a long message.
    pub fn new(reason: &str, message: impl Into<String>) -> Self {
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

    /// Creates the stall of an environment that names another cluster than its source policy.
    pub fn wrong_cluster(intended: &ClusterId, named: &ClusterId) -> Self {
        Self::new(
            "WrongCluster",
            format!(
                "the environment file names cluster {named}, and the controller is allowed to sync it to {intended} only"
            ),
        )
    }
}
