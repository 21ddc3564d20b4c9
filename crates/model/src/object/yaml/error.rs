//! YAML errors that quote no values.

use serde_yaml::Error;
use serde_yaml::budget::BudgetBreach;

/// A syntax error in a YAML text, with its position.
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

/// Prefix of messages created by this crate's visitors. Only these are passed on verbatim, because
/// they are known to quote no value.
pub(super) const OURS: &str = "pleach: ";

impl YamlError {
    /// Converts an error of the YAML crate. The text starts at line `offset + 1` of its file.
    pub(super) fn from_crate(error: &Error, offset: usize) -> Self {
        let location = error.location();
        let position = |number: Option<u64>| number.and_then(|number| usize::try_from(number).ok());
        let line = position(location.map(|location| location.line())).unwrap_or(0);
        let column = position(location.map(|location| location.column())).unwrap_or(0);
        Self {
            line: line.max(1) + offset,
            column: column.max(1),
            message: message(error),
        }
    }
}

/// Returns the message. Passes on only texts known to quote no value: a new error variant of the
/// crate must not leak a Secret.
fn message(error: &Error) -> String {
    match error {
        Error::WithSnippet { error, .. } | Error::AliasError { error, .. } => message(error),
        Error::ExternalMessage { msg, .. } => scanner_message(msg),
        Error::Message { msg, .. } => match msg.split_once(OURS) {
            Some((_, message)) => message.to_owned(),
            None => UNREADABLE.to_owned(),
        },
        Error::DuplicateMappingKey { key: Some(key), .. } => duplicate_key(key),
        Error::DuplicateMappingKey { key: None, .. } => "duplicate key".to_owned(),
        Error::NonFiniteFloat { .. } => {
            "infinity, NaN and numbers beyond 64-bit floats have no JSON form; put it in quotes if it is a string".to_owned()
        }
        Error::UnknownAnchor { .. } => "alias of an undefined anchor".to_owned(),
        Error::RecursiveReferencesRequireWeakTypes { .. } => {
            "alias within the value that it refers to".to_owned()
        }
        Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => {
            "aliases expand to more than pleach can read".to_owned()
        }
        Error::MergeValueNotMapOrSeqOfMaps { .. } => {
            "`<<` takes a map or a list of maps".to_owned()
        }
        Error::InvalidBinaryBase64 { .. } => "the !!binary value is not base64".to_owned(),
        Error::BinaryNotUtf8 { .. } => "the !!binary value is not UTF-8".to_owned(),
        Error::InvalidScalar { .. } => "the tag does not match the value".to_owned(),
        Error::Eof { .. } => "unexpected end of the input".to_owned(),
        Error::Budget { breach, .. } => match breach {
            BudgetBreach::Depth { .. } => {
                format!("nested deeper than {} levels", super::parse::MAX_DEPTH)
            }
            BudgetBreach::Documents { .. } => "too many documents".to_owned(),
            BudgetBreach::Aliases { .. }
            | BudgetBreach::Anchors { .. }
            | BudgetBreach::AliasAnchorRatio { .. }
            | BudgetBreach::RecordedAnchorEvents { .. }
            | BudgetBreach::RecordedAnchorBytes { .. } => {
                "too many anchors and aliases".to_owned()
            }
            BudgetBreach::SequenceUnbalanced => UNREADABLE.to_owned(),
            _ => "the document is too large".to_owned(),
        },
        _ => UNREADABLE.to_owned(),
    }
}

const UNREADABLE: &str = "not valid YAML";

/// Formats the error with a shortened key. A key is no value, but a string without quotes can be
/// parsed as a key.
pub(super) fn duplicate_key(key: &str) -> String {
    let short: String = key.chars().take(63).collect();
    let dots = if short.len() < key.len() { "…" } else { "" };
    format!("duplicate key `{}{dots}`", short.escape_debug())
}

/// Translates a message of the scanner. All are fixed texts except one, which quotes a character.
fn scanner_message(message: &str) -> String {
    if let Some(character) = message.strip_prefix("unexpected character: `") {
        return if character.starts_with(INDICATORS) {
            "a string cannot start with this character; put it in quotes".to_owned()
        } else {
            UNPRINTABLE.to_owned()
        };
    }
    if message.starts_with("recursion limit") {
        return format!("nested deeper than {} levels", super::parse::MAX_DEPTH);
    }
    if message.to_lowercase().contains("tab") && !message.contains("alphabet") {
        return TAB.to_owned();
    }
    if message == "simple key expected ':'" {
        return "expected `:` after a key".to_owned();
    }
    if message == "mapping values are not allowed in this context" {
        return "`:` is not allowed here; check the indentation, or put the string in quotes"
            .to_owned();
    }
    message.to_owned()
}

/// Characters that cannot start an unquoted string. Any other unexpected character is one that YAML
/// allows nowhere.
const INDICATORS: [char; 5] = ['|', '>', '%', '@', '`'];

const UNPRINTABLE: &str =
    r"YAML does not allow this character; remove it, or escape it in double quotes, such as \x00";

pub(super) const TAB: &str = "YAML does not allow tabs here; use spaces";
