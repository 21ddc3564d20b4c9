//! What pleach has to say about its input: one type for lint, render and plan.
//!
//! Passes collect findings and go on; only the edge decides, from the
//! [`Kind`] of the errors among them, with which exit code the command ends.

pub mod excerpt;

use std::cmp::Reverse;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::object::{ObjectId, Origin};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Said for the record; nothing needs to be done.
    Note,
    /// Probably not what was meant; carried out all the same.
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

/// What a finding is about; decides the exit code of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Files, values, templates or manifests of the repository (exit 3).
    Repository,
    /// The cluster cannot be reached, or does not let us (exit 4).
    Cluster,
    /// Another manager's fields, or a precondition that no longer holds (exit 5).
    Conflict,
    /// Refused by policy: version, consent, prune cap, guard, ownership (exit 7).
    Policy,
}

/// One thing to say about the input, with its place and its way out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about.
    pub kind: Kind,
    /// A stable name in kebab case, for machines and for the documentation.
    pub code: String,
    /// One sentence fragment in lower case without a period. Never a secret value.
    pub message: String,
    /// File and line it comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<Origin>,
    /// Column of the place in characters, from 1, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
    /// The line of source at the place, as far as it can be shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excerpt: Option<String>,
    /// The object it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectId>,
    /// The obvious next step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Finding {
    /// Starts a finding; `code` is its stable name.
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

    /// Starts an error.
    pub fn error(kind: Kind, code: &str, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, kind, code, message)
    }

    /// Starts a warning.
    pub fn warning(kind: Kind, code: &str, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, kind, code, message)
    }

    /// Starts a note.
    pub fn note(kind: Kind, code: &str, message: impl Into<String>) -> Self {
        Self::new(Severity::Note, kind, code, message)
    }

    /// Adds the file and line.
    #[must_use]
    pub fn at(mut self, place: Origin) -> Self {
        self.place = Some(place);
        self
    }

    /// Adds the column within the line.
    #[must_use]
    pub fn column(mut self, column: usize) -> Self {
        self.column = Some(column);
        self
    }

    /// Adds the object.
    #[must_use]
    pub fn on(mut self, object: ObjectId) -> Self {
        self.object = Some(object);
        self
    }

    /// Adds the next step.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Says what it is about.
    #[must_use]
    pub fn of_kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Whether this finding stops the command.
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

/// How many errors and warnings there are, as people say it.
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

/// Sorts by file and line, errors first, and drops repetitions.
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
