//! Reasons why an environment or a release is stalled.

/// Longest message of a condition, in bytes.
const LONGEST_MESSAGE: usize = 1024;

/// Reason why an environment is stalled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// Reason of the condition, in one word.
    pub reason: String,
    /// Message of the condition.
    pub message: String,
    /// The stalled commit, if one is the cause.
    pub revision: Option<String>,
}

impl Hold {
    /// Creates a hold without a commit. Truncates a long message.
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
}
