//! What is wrong with a text, without quoting it.

/// A place where a text is not the YAML that pleach reads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct YamlError {
    /// Line within the text, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// A sentence fragment in lower case without a period. Names keys, never values.
    pub message: String,
}
