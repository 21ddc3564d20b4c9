//! Findings about the input, shared by lint, render and plan.
//!
//! Passes collect findings and continue. The CLI derives the exit code from the [`Kind`] of the
//! errors.

pub mod excerpt;
pub mod overridable;

use std::cmp::Reverse;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::object::{ObjectId, Origin};

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Information. No action is required.
    Note,
    /// Probably a mistake. The command continues.
    Warning,
    /// Stops the command before its first write.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// Category of a finding. It determines the exit code of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Files, values, templates or manifests of the repository (exit 3).
    Repository,
    /// The cluster is unreachable or denies access (exit 4).
    Cluster,
    /// Fields of another manager, or a precondition that no longer holds (exit 5).
    Conflict,
    /// Refused by policy: version, consent, prune cap, guard, ownership (exit 7).
    Policy,
}

/// A problem in the input, with its location and a hint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Finding {
    /// Severity.
    pub severity: Severity,
    /// Category.
    pub kind: Kind,
    /// Stable name in kebab case, for programs and for the documentation.
    pub code: String,
    /// Message: a sentence fragment in lower case without a period. Never contains a secret value.
    pub message: String,
    /// File and line of the cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Origin>,
    /// Column of the location in characters, starting at 1, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
    /// Source line of the location, without values that are possibly secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excerpt: Option<String>,
    /// The affected object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectId>,
    /// Suggested next step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Finding {
    /// Creates a finding. `code` is its stable name.
    pub fn new(severity: Severity, kind: Kind, code: &str, message: impl Into<String>) -> Self {
        Self {
            severity,
            kind,
            code: code.to_owned(),
            message: message.into(),
            place: None,
            column: None,
            excerpt: None,
            object: None,
            hint: None,
        }
    }

    /// Creates an error.
    pub fn error(kind: Kind, code: &str, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, kind, code, message)
    }

    /// Creates a warning.
    pub fn warning(kind: Kind, code: &str, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, kind, code, message)
    }

    /// Creates a note.
    pub fn note(kind: Kind, code: &str, message: impl Into<String>) -> Self {
        Self::new(Severity::Note, kind, code, message)
    }

    /// Sets the file and line.
    #[must_use]
    pub fn at(mut self, place: Origin) -> Self {
        self.place = Some(place);
        self
    }

    /// Sets the column within the line.
    #[must_use]
    pub fn column(mut self, column: usize) -> Self {
        self.column = Some(column);
        self
    }

    /// Sets the affected object.
    #[must_use]
    pub fn on(mut self, object: ObjectId) -> Self {
        self.object = Some(object);
        self
    }

    /// Sets the next step.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Sets the category.
    #[must_use]
    pub fn of_kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Returns whether this finding stops the command.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        if let Some(object) = &self.object {
            write!(f, "{object}: ")?;
        }
        f.write_str(&self.message)
    }
}

/// Returns the number of errors and warnings, such as `1 error, 2 warnings`.
pub fn summary(findings: &[Finding]) -> String {
    let count = |severity, name| {
        let number = findings
            .iter()
            .filter(|finding| finding.severity == severity)
            .count();
        match number {
            0 => None,
            1 => Some(format!("1 {name}")),
            _ => Some(format!("{number} {name}s")),
        }
    };
    [
        count(Severity::Error, "error"),
        count(Severity::Warning, "warning"),
    ]
    .into_iter()
    .flatten()
    .collect::<Vec<_>>()
    .join(", ")
}

/// Sorts by file, line and descending severity. Removes duplicates.
pub fn sort(findings: &mut Vec<Finding>) {
    findings.sort_by(|a, b| {
        (&a.place, Reverse(a.severity), a.column, a).cmp(&(
            &b.place,
            Reverse(b.severity),
            b.column,
            b,
        ))
    });
    findings.dedup();
}
