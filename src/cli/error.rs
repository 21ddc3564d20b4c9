//! Errors of commands.
//!
//! Errors of the layers below are typed and have no exit codes. Here they get a classification,
//! which decides the exit code, and hints.

use std::error::Error;
use std::fmt;

use pleach_model::finding::{self, Finding};

use super::Exit;
use pleach_files::FileError;
use pleach_forge::ForgeError;
use pleach_git::GitError;

/// Kind of failure, which decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Invalid usage.
    Usage,
    /// The repository is invalid.
    Repository,
    /// The cluster is unreachable or denies access.
    Cluster,
    /// Conflict, or stale plan.
    Conflict,
    /// Not ready in time.
    NotReady,
    /// Refused by policy.
    Policy,
    /// Interrupted.
    Interrupted,
    /// Any other failure.
    Failed,
}

impl Kind {
    /// Returns the exit code.
    pub fn exit(self) -> Exit {
        match self {
            Self::Usage => Exit::USAGE,
            Self::Repository => Exit::REPOSITORY,
            Self::Cluster => Exit::CLUSTER,
            Self::Conflict => Exit::CONFLICT,
            Self::NotReady => Exit::NOT_READY,
            Self::Policy => Exit::POLICY,
            Self::Interrupted => Exit::INTERRUPTED,
            Self::Failed => Exit::FAILED,
        }
    }
}

impl From<finding::Kind> for Kind {
    fn from(kind: finding::Kind) -> Self {
        match kind {
            finding::Kind::Repository => Self::Repository,
            finding::Kind::Cluster => Self::Cluster,
            finding::Kind::Conflict => Self::Conflict,
            finding::Kind::Policy => Self::Policy,
        }
    }
}

/// A failure of a command.
#[derive(Debug)]
pub struct CliError {
    kind: Kind,
    source: Box<dyn Error + Send + Sync>,
    hints: Vec<String>,
    findings: Vec<Finding>,
}

impl CliError {
    /// Creates an error from another error or from a message, which is a lower-case fragment.
    pub fn new(kind: Kind, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            kind,
            source: source.into(),
            hints: Vec::new(),
            findings: Vec::new(),
        }
    }

    /// Creates a usage error.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message.into())
    }

    /// Creates the error for Ctrl-C or SIGTERM.
    pub fn interrupted() -> Self {
        Self::new(Kind::Interrupted, "interrupted")
    }

    /// Creates the error for the second Ctrl-C, which does not wait for running requests.
    pub fn interrupted_at_once() -> Self {
        Self::new(
            Kind::Interrupted,
            "interrupted without waiting for requests in flight",
        )
        .hint("requests in flight can have taken effect; the next run checks the cluster")
    }

    /// Creates an error from findings with at least one error. All of them are shown. The message
    /// names the operation that was stopped.
    pub fn from_findings(message: impl Into<String>, findings: Vec<Finding>) -> Self {
        let kind = findings
            .iter()
            .filter(|finding| finding.is_error())
            .map(|finding| Kind::from(finding.kind))
            .reduce(|a, b| {
                if a.exit().and(b.exit()) == a.exit() {
                    a
                } else {
                    b
                }
            })
            .unwrap_or(Kind::Failed);
        Self {
            findings,
            ..Self::new(kind, message.into())
        }
    }

    /// Adds a next step for the user.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Returns the error as another kind of failure.
    #[must_use]
    pub fn of_kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// Returns the kind of failure.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the exit code.
    pub fn exit(&self) -> Exit {
        self.kind.exit()
    }

    /// Returns the next steps for the user.
    pub fn hints(&self) -> &[String] {
        &self.hints
    }

    /// Returns the findings to show.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Returns the causes, outermost first, without duplicates. Some libraries repeat the message
    /// of their source.
    pub fn causes(&self) -> Vec<String> {
        let mut causes: Vec<String> = Vec::new();
        let mut next = self.source.source();
        while let Some(error) = next {
            let text = error.to_string();
            if !text.is_empty() && causes.last() != Some(&text) {
                causes.push(text);
            }
            next = error.source();
        }
        causes
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl From<FileError> for CliError {
    fn from(error: FileError) -> Self {
        Self::new(Kind::Failed, error)
    }
}

impl From<ForgeError> for CliError {
    fn from(error: ForgeError) -> Self {
        let hint = error.hint();
        let error = Self::new(Kind::Failed, error);
        match hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

impl From<GitError> for CliError {
    fn from(error: GitError) -> Self {
        let hint = error.hint();
        let kind = if error.is_conflict() {
            Kind::Conflict
        } else if error.is_about_writing() {
            Kind::Failed
        } else {
            Kind::Repository
        };
        let error = Self::new(kind, error);
        match hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_decides_the_code() {
        let findings = vec![
            Finding::warning(finding::Kind::Repository, "a", "a"),
            Finding::error(finding::Kind::Conflict, "b", "b"),
            Finding::error(finding::Kind::Policy, "c", "c"),
        ];
        assert_eq!(CliError::from_findings("x", findings).exit(), Exit::POLICY);
    }

    #[test]
    fn causes_are_listed_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("{text}")]
        struct Layer {
            text: &'static str,
            #[source]
            source: Option<Box<Self>>,
        }
        let layer = |text, source: Option<Layer>| Layer {
            text,
            source: source.map(Box::new),
        };
        let error = layer(
            "top",
            Some(layer(
                "same",
                Some(layer("same", Some(layer("root", None)))),
            )),
        );
        let error = CliError::new(Kind::Failed, error);
        assert_eq!(error.to_string(), "top");
        assert_eq!(error.causes(), ["same", "root"]);
    }
}
